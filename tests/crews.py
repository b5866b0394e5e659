"""Owns a deployment whose workers a test starts and ends one by one, real processes all. Refuses to start any by
itself: the owner of the stack stands still, so that nothing it started comes back.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conftest import program, wait_for
from deployments import Deployment

from worker.contract.events import Claimed, Observed, digest
from worker.store.hints import Hints
from worker.store.journal import Journal

TESTS = Path(__file__).parent


@dataclass(frozen=True)
class Worker:
    """A worker process. name: as it claims."""

    process: subprocess.Popen[bytes]
    name: str
    log: Path

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def said(self, event: str) -> list[dict[str, Any]]:
        """Lines of its log about such an event."""
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [entry for line in lines if (entry := json.loads(line)).get("event") == event]


class Crew:
    """deployment: with Redis and a scheduler and no worker."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.folder = deployment.state.parent
        self.calls_noted = self.folder / "calls"
        recorded = json.loads((deployment.state / "stack.json").read_text())
        self.hints = Hints(recorded["redis_url"])
        self._number = 0

    @contextmanager
    def worker(self, slots: int = 2, *, before: Sequence[str] = (), **env: str) -> Iterator[Worker]:
        """A worker that takes doorbells; killed when the block is left. before: words of what becomes it."""
        self._number += 1
        log = self.folder / f"crew-{self._number}.log"
        noting = {"NOTED_CALLS": str(self.calls_noted), "DAWN_BEFORE_CALL": "python:call_hooks:notes"}
        path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
        words = [*before, program("dawn"), "worker", "--slots", str(slots)]
        with open(log, "wb") as file:
            process = subprocess.Popen(
                words,
                env={**self.deployment.env, "PYTHONPATH": path, **noting, **env},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        worker = Worker(process, f"{os.uname().nodename}-{process.pid}", log)
        try:
            wait_for(lambda: worker.name in self.offered() or process.poll() is not None)
            assert process.poll() is None, log.read_text()
            yield worker
        finally:
            process.kill()
            process.wait()
            wait_for(lambda: worker.name not in self.offered())

    def offered(self) -> set[str]:
        """Names of the workers that take runs, solo ones included."""
        return {offer.name for offer in self.hints.workers()}

    def solo(self) -> str:
        """The name of the one solo worker, once there is one."""
        found: list[str] = wait_for(lambda: [one.name for one in self.hints.workers() if "solo" in one.lanes])
        return found[0]

    def submit(
        self, name: str, *targets: str, model: str = "", commands: Sequence[str] = (), **more: Any
    ) -> list[str]:
        """The runs of a batch that is left to whoever works; targets: folders beside it, `code` by default.

        model: as a manifest names it, or the text of a script. more: other parts of a manifest.
        """
        if model.startswith("\n"):
            script = self.folder / f"{name}-script.yaml"
            script.write_text(model)
            model = f"scripted:{script}"
        task: dict[str, Any] = {"commands": list(commands)}
        if model:
            task |= {"model": model, "prompt": "Make it 42."}
        document = {"version": 1, "name": name, "targets": [{"repo": one} for one in targets or ("code",)]}
        manifest = self.folder / f"{name}.json"
        manifest.write_text(json.dumps(document | {"task": task} | more))
        done = self.deployment.dawn("submit", manifest, "--detach", "--json")
        assert done.code == 0, done
        [batch] = done.json["batches"]
        return [str(run) for run in batch["runs"]]

    def batch(self, run: str) -> str:
        """The batch of a run."""
        return Journal(self.deployment.archive, run).task().batch

    def calls(self, run: str) -> list[str]:
        """Calls of a run that were begun, by all workers, in order."""
        if not self.calls_noted.exists():
            return []
        pairs = [line.split() for line in self.calls_noted.read_text().splitlines()]
        return [call for name, call in pairs if name == run]

    def in_call(self, run: str, call: str, number: int = 1) -> None:
        """Wait until a call was begun for the number-th time, and its container has had what it needs to run."""
        wait_for(lambda: self.calls(run).count(call) >= number, 120)
        wait_for(lambda: self.of_run(run))

    def claims(self, run: str) -> list[Claimed]:
        return [event for event in self.deployment.events(run) if isinstance(event, Claimed)]

    def observed(self, run: str) -> list[str]:
        """Calls with a committed result, in order."""
        events = self.deployment.events(run)
        return [event.observation.call_id for event in events if isinstance(event, Observed)]

    def of_run(self, run: str) -> list[str]:
        """Containers of a run that live now."""
        return _docker("ps", *self._of(run))

    def left(self, run: str) -> list[str]:
        """Containers of a run in any state, else its volumes."""
        return _docker("ps", "--all", *self._of(run)) or _docker("volume", "ls", *self._of(run))

    def _of(self, run: str) -> tuple[str, ...]:
        """Run ids repeat from one archive to the next."""
        archive = digest(self.deployment.archive.url.encode())[:12]
        labels = (f"label=dawnfleet.run={run}", f"label=dawnfleet.archive={archive}")
        return ("--quiet", *(word for label in labels for word in ("--filter", label)))


def _docker(*words: str) -> list[str]:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=True).stdout.split()


def _killed(deployment: Deployment) -> int:
    """Kill the workers of the stack; how many there were."""
    workers = 0
    for process in deployment.processes():
        with suppress(OSError):
            if b"worker.main" in (process / "cmdline").read_bytes():
                workers += 1
                os.kill(int(process.name), signal.SIGKILL)
    return workers


@contextmanager
def crew(folder: Path, **env: str) -> Iterator[Crew]:
    """A crew of nobody yet, with a folder `code` to work on."""
    (folder / "code").mkdir()
    (folder / "code" / "answer.txt").write_text("41\n")
    deployment = Deployment(folder, **env)
    with deployment.up() as owner:
        owner.send_signal(signal.SIGSTOP)
        try:
            mine = Crew(deployment)
            wait_for(lambda: not _killed(deployment))
            wait_for(lambda: not mine.offered())
            yield mine
            mine.hints.close()
        finally:
            owner.send_signal(signal.SIGCONT)
