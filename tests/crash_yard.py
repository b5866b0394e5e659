"""Owns a deployment whose processes die where a plan says (crashing.py), what is asked of its runs, and what of a run
must be the same whether anybody died or not. Refuses to help a run along: it submits, answers questions, and waits.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from conftest import valkey_server, wait_for
from crashing import read
from deployments import Deployment

from scheduler import enqueue
from scheduler.approvals import answer
from scheduler.control import announce, tell
from scheduler.fork import Wish, fork
from scheduler.launch import batch_of
from scheduler.manifests.reading import load
from scheduler.runs import Found
from worker.contract.errors import ConflictFault
from worker.contract.events import Claimed, Event, Observed, Replied, Sealed, Steered, Unrecorded, Yielded
from worker.contract.task import Limits
from worker.station import utc_now
from worker.store import keys
from worker.store.hints import Hints
from worker.store.inbox import Control
from worker.store.journal import Journal

PROGRAM = Path(__file__).parent / "crashing.py"
SCALED = {
    "DAWN_RING_AGAIN_S": "4",
    "DAWN_RELIST_S": "3",
    "DAWN_DECISION_POLL_S": "1",
    "DAWN_JANITOR_INTERVAL_S": "3",
    "DAWN_INFRA_BACKOFF_S": "[0.5, 0.5, 0.5]",
}
"""Scaled down further than in QUICK, but for the lease of 8 s: a shorter one is lost on a busy machine."""
LOOK_S = 0.2
"""Between two looks whether runs have ended, so that looking takes little from them."""
LIMITS = {"memory_bytes": 256 * 2**20, "tmpfs_bytes": 32 * 2**20, "call_timeout_s": 60}
FILE = "answer.txt"
KINDS = ("fresh", "agent", "checked", "asks", "fork", "closed")
"""fresh: makes its environment, then one command and a check. checked: the same in an environment that is known.
agent: steps of a model, without a check. asks: waits for an answer. fork: goes on from an agent's first step. closed:
cancelled before anybody claimed it."""


SHARED = "fresh-0"
"""Whose environment all but the fresh ones have: it is made before they begin."""


def agents_script(seed: int) -> list[dict[str, Any]]:
    """What the model says to an agent: a call that talks and writes, a reply with two calls, words at the end."""
    pick = random.Random(seed)
    number = pick.randrange(43, 100)
    writes = f"seq 100; sleep 0.3; mkdir -p made; seq {number} > made/numbers; rm gone.txt; seq 100"
    edit = {"tool": "edit_file", "arguments": {"path": FILE, "old_text": "41", "new_text": "42"}}
    looks = {"tool": "read_file", "arguments": {"path": "made/numbers"}}
    moves = {"tool": "run_command", "arguments": {"command": f"mv made/numbers made/{number}; wc -l made/*"}}
    stuck = {"tool": "run_command", "arguments": {"command": "echo lost > lost.txt; sleep 60", "timeout_s": 1}}
    both = [edit, looks] if seed == 1 else pick.sample([edit, looks, moves, stuck], 3)
    if edit not in both:
        both.append(edit)
    return [
        {"calls": [{"tool": "run_command", "arguments": {"command": writes}}]},
        {"calls": both},
        {"text": "Done."},
    ]


ASKS: list[dict[str, Any]] = [
    {"calls": [{"tool": "ask_person", "arguments": {"question": "Is it 42 or 43?"}}]},
    {
        "expect": "say (4.)",
        "calls": [{"tool": "run_command", "arguments": {"command": f"echo ${{1}} > {FILE}"}}],
    },
    {"text": "Done."},
]


@dataclass(frozen=True)
class Fate:
    """points: where whoever works on a run dies, in order. lost: its containers go with it, as on a lost host."""

    points: tuple[str, ...] = ()
    lost: bool = False


@dataclass(frozen=True)
class Death:
    """at: UTC seconds since the epoch."""

    run: str
    at: float
    point: str


class Yard:
    """folder: of everything. archive_url and env as in Deployment. seed: of what is asked."""

    def __init__(self, folder: Path, seed: int, archive_url: str = "", **env: str) -> None:
        self.seed = seed
        self.folder = folder
        self.valkey = valkey_server(folder, "--appendfsync", "no")
        url = f"unix://{folder / 'valkey.sock'}"
        self.deployment = Deployment(folder, archive_url, **SCALED, DAWN_REDIS_URL=url, **env)
        self.hints = Hints(url)
        for name in ("plan", "passed", "deaths", "lost"):
            (folder / name).mkdir()

    @contextmanager
    def open(self, workers: int) -> Iterator[Yard]:
        """Redis and a fleet, until the block is left."""
        self.valkey.start()
        command = [sys.executable, str(PROGRAM), str(self.folder), "fleet", str(workers)]
        with (self.folder / "fleet.log").open("a") as log:
            fleet = subprocess.Popen(command, env=self.deployment.env, stdout=log, stderr=log)
            try:
                yield self
            finally:
                fleet.send_signal(signal.SIGTERM)
                fleet.wait(60)
                self.valkey.kill()
                self._forget_images()

    def begin(self, kind: str, fates: Mapping[str, Fate], *, parent: str = "") -> list[str]:
        """A run of that kind for each label, left to the fleet; who works on it has that fate. parent: of forks."""
        if kind == "fork":
            return [self._fork(parent, name, fate) for name, fate in fates.items()]
        for name, fate in fates.items():
            self._plan(name, fate)
        if kind == "fresh":  # each makes an environment of its own
            return [run for name in fates for run in self._submit(self.manifest(kind, name, [name]))]
        return self._submit(self.manifest(kind, SHARED, list(fates)), closed=kind == "closed")

    def manifest(self, kind: str, name: str, labels: Sequence[str]) -> Path:
        """A batch of runs of a kind, one for each label. name: of its environment, which is made once."""
        task: dict[str, Any] = {"commands": [f"echo 42 > {FILE}"]}
        # A check that was red before is run twice.
        checks = [f"answer=grep -q {'4' if self.seed == 1 else '42'} {FILE}"]
        if kind in ("agent", "asks"):
            script = self._script(kind, agents_script(self.seed) if kind == "agent" else ASKS)
            task, checks = {"prompt": "Make it 42.", "model": f"scripted:{script}"}, []
        sources = self.folder / "sources"
        for one in labels:
            (sources / one).mkdir(parents=True)
            (sources / one / FILE).write_text("41\n")
            (sources / one / "gone.txt").write_text("gone\n")
        path = self.folder / f"{kind}-{labels[0]}.json"
        document = {"version": 1, "name": kind, "targets": [{"repo": str(sources / one)} for one in labels]}
        document |= {"task": task, "checks": checks, "limits": LIMITS}
        document |= {"environment": {"setup": f"echo {name} > /etc/made"}}
        path.write_text(json.dumps(document))
        return path

    def commands(self, *commands: tuple[str, Fate, list[str]]) -> list[int]:
        """Exit codes of `dawn` commands, one after the other, each in a process that has this fate. The first word of
        each names it, and what belongs to no run passes under that name."""
        for name, fate, _ in commands:
            self._plan(name, fate)
        listed = json.dumps([[name, *words] for name, _, words in commands])
        program = [sys.executable, str(PROGRAM), str(self.folder), "dawn", listed]
        done = subprocess.run(program, env=self.deployment.env, capture_output=True, timeout=300, check=False)
        assert done.returncode == 0, done
        codes: list[int] = json.loads(done.stdout.splitlines()[-1])
        return codes

    def _plan(self, name: str, fate: Fate) -> None:
        if fate.points:
            (self.folder / "plan" / name).write_text("".join(f"{point}\n" for point in fate.points))
        if fate.lost:
            (self.folder / "lost" / name).touch()

    def _script(self, kind: str, turns: list[dict[str, Any]]) -> Path:
        path = self.folder / f"{kind}.script.json"
        path.write_text(json.dumps(turns))
        return path

    def _submit(self, manifest: Path, *, closed: bool = False) -> list[str]:
        """closed: the batch is paused before anybody hears of it, and then all its runs are cancelled."""
        archive = self.deployment.archive
        batch = batch_of(load(manifest, Limits()), archive, say=lambda _: None)
        runs = [task.run for task in batch.tasks]
        if closed:
            Control(archive, batch.id).put("pause", by="boss", at=utc_now())
        enqueue.submit(batch, archive, by="tests", at=utc_now())
        for run in runs if closed else ():
            tell(archive, self.hints, Found("run", run), "cancel", by="boss", at=utc_now())
        announce(self.hints)
        return runs

    def _fork(self, parent: str, key: str, fate: Fate) -> str:
        """A run that goes on from the first step of `parent`; it has the parent's label."""
        made = fork(self.deployment.archive, parent, Wish(step=1), key=key)
        [task] = made.batch.tasks
        self._plan(task.run, fate)
        enqueue.submit(made.batch, self.deployment.archive, by="tests", at=utc_now())
        announce(self.hints)
        return task.run

    def ended(self, runs: Iterable[str], timeout_s: float) -> None:
        """Wait until they are sealed, their markers gone and their leases given back; what they ask is answered."""
        archive, left = self.deployment.archive, set(runs)

        def look() -> bool:
            time.sleep(LOOK_S)
            open_runs = {key.removeprefix("open/") for key in archive.list("open/")}
            held = {name.removeprefix("run:") for name in self.hints.held(f"run:{run}" for run in left)}
            for run in left & open_runs:
                if run.startswith("asks-") and Journal(archive, run).load().status == "waiting":
                    with suppress(ConflictFault):  # answered already
                        answer(archive, self.hints, run, "answered", by="boss", at=utc_now(), reason="say 42")
            left.intersection_update(open_runs | held)
            return not left

        try:
            wait_for(look, timeout_s)
        except TimeoutError:
            raise AssertionError(f"these runs did not end: {sorted(left)}; {self.log()}") from None

    def _forget_images(self) -> None:
        """Remove what preparation left on the engine."""
        archive = self.deployment.archive
        for key in archive.folders("environments/"):
            tag = json.loads(archive.get(keys.environment(key)))["setup_tag"]
            subprocess.run(["docker", "image", "rm", tag], capture_output=True, check=False)

    def log(self) -> str:
        """The last words of the fleet."""
        return (self.folder / "fleet.log").read_text()[-4000:]

    def passed(self, run: str) -> list[str]:
        """All points of a run, in order."""
        return read(self.folder / "passed" / run)

    def deaths(self) -> list[Death]:
        """Who died, in order."""
        found = []
        for path in (self.folder / "deaths").iterdir():
            for line in read(path):
                at, _, point = line.partition(" ")
                found.append(Death(path.name, float(at), point))
        return sorted(found, key=lambda death: death.at)

    def takeover_s(self, death: Death) -> float | None:
        """Time until the run was claimed again, None when it was not."""
        for record, _ in Journal(self.deployment.archive, death.run).read():
            at = datetime.fromisoformat(record.at).timestamp()
            if isinstance(record.event, Claimed) and at > death.at:
                return at - death.at
        return None


VOLATILE = {"duration_ms", "listing", "object", "bytes", "decided_at", "sent_at", "until", "binding"}
"""Times, and digests of what holds times: the listing and the tar of a snapshot. The tree hash is compared."""


def story(events: Iterable[Event]) -> list[dict[str, Any]]:
    """What of a journal must not depend on who died: all of it but claims, yields, what money may be lost, times and
    what hangs on them."""
    told = []
    for event in events:
        if isinstance(event, Claimed | Yielded | Unrecorded):
            continue
        if isinstance(event, Steered) and event.kind == "closed":
            continue  # of an inbox that a dead attempt had closed: the next one takes it in, and it is void
        fields = _stable(event.model_dump(mode="json"))
        if isinstance(event, Sealed):
            fields["artifacts"].pop("summary.md", None)  # says how long it took
        if event.type == "prepared":
            fields = {"snapshot": fields["snapshot"]}
        if event.type == "submitted":
            fields = {}
        told.append(fields)
    return told


def _stable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _stable(part) for name, part in value.items() if name not in VOLATILE}
    if isinstance(value, list):
        return [_stable(part) for part in value]
    return value


def once(events: Sequence[Event]) -> list[str]:
    """What is not there exactly once: each step, the result of each call, the seal at the end."""
    steps = [event.step for event in events if isinstance(event, Replied)]
    calls = [call.id for event in events if isinstance(event, Replied) for call in event.reply.calls]
    results = [event.observation.call_id for event in events if isinstance(event, Observed)]
    problems = []
    if steps != list(range(1, len(steps) + 1)):
        problems.append(f"steps {steps}")
    if sorted(calls) != sorted(results):
        problems.append(f"calls {calls}, results {results}")
    if [event.type for event in events].count("sealed") != 1 or not isinstance(events[-1], Sealed):
        problems.append("not sealed once, at the end")
    return problems
