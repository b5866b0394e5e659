"""Owns a deployment as a user has one: `dawn` as processes, with a state folder, an archive and an environment of
their own. Refuses to reach into those processes: it reads what they print, and the archive.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import program, wait_for

from worker.contract.errors import NotFoundFault
from worker.contract.events import Event
from worker.contract.events import digest as sha256
from worker.contract.run import Run
from worker.contract.settings import Settings
from worker.store.archive import Archive, open_archive
from worker.store.journal import Journal

QUICK = {
    "DAWN_STORE_IMAGES": "false",  # a quarter of a gigabyte for each archive
    "DAWN_LEASE_TTL_S": "8",
    "DAWN_HEARTBEAT_S": "1",
    "DAWN_OWN_DEADLINE_S": "5",
    "DAWN_HINT_POLL_S": "0.2",
    "DAWN_INBOX_POLL_S": "1",
    "DAWN_JANITOR_INTERVAL_S": "2",
    "DAWN_RING_AGAIN_S": "8",
    "DAWN_RELIST_S": "5",
    "DAWN_TICK_S": "0.1",
    "DAWN_DRAIN_SOFT_S": "4",
    "DAWN_INFRA_BACKOFF_S": "[1, 2, 4]",
}
"""Every wait of the protocol scaled down by about five; the proportions stay."""

OF_THE_HOST = ("DAWN_CA_BUNDLE", "DAWN_DOCKER_URL")
"""What says how this machine is, not what a test wants."""


@dataclass(frozen=True)
class Done:
    """What a `dawn` process said. code: its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Deployment:
    """folder: of the state and, unless an address is given, of the archive. env: changes to the environment."""

    def __init__(self, folder: Path, archive_url: str = "", **env: str) -> None:
        self.state = folder / "state"
        self.archive_url = archive_url or f"file://{folder / 'archive'}"
        ours = {"DAWN_STATE_DIR": str(self.state), "DAWN_ARCHIVE": self.archive_url}
        self.env = {**_clean(os.environ), **QUICK, **ours, **env}

    def dawn(self, *words: str | Path, timeout_s: float = 150, cwd: Path | None = None, **env: str) -> Done:
        """One command, to its end."""
        done = subprocess.run(
            self._command(words), env=self.env | env, cwd=cwd, capture_output=True, timeout=timeout_s, check=False
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    def ran(self, *words: str | Path, code: int = 0, **env: str) -> list[dict[str, Any]]:
        """The rows of a `dawn run` or `dawn submit`, which must end with this exit code."""
        done = self.dawn(*words, "--json", **env)
        assert done.code == code, done
        rows: list[dict[str, Any]] = done.json["runs"]
        return rows

    @contextmanager
    def begun(self, *words: str | Path, **env: str) -> Iterator[subprocess.Popen[str]]:
        """A command in the background, ended as Ctrl-C would when the block is left."""
        with (
            (self.state.parent / "background.log").open("a") as log,
            subprocess.Popen(
                self._command(words), env=self.env | env, stdout=subprocess.PIPE, stderr=log, text=True
            ) as process,
        ):
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
                try:
                    process.communicate(timeout=60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    raise

    @contextmanager
    def up(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """`dawn up`, ready."""
        with self.begun("up", *words) as process:
            wait_for(lambda: (self.state / "stack.json").exists() or process.poll() is not None)
            assert self.dawn("doctor").code == 0, self.background()
            yield process

    def background(self) -> str:
        """What commands in the background said on stderr."""
        return (self.state.parent / "background.log").read_text()

    @property
    def archive(self) -> Archive:
        names = {name.removeprefix("DAWN_").lower(): value for name, value in self.env.items() if "DAWN_S3" in name}
        return open_archive(self.archive_url, Settings(**names))  # type: ignore[arg-type]

    def runs(self) -> list[str]:
        return list(self.archive.folders("runs/"))

    def run(self, run: str) -> Run:
        return Journal(self.archive, run).load()

    def events(self, run: str) -> list[Event]:
        """All events of a run, none while it is being submitted."""
        try:
            return [record.event for record, _ in Journal(self.archive, run).read()]
        except NotFoundFault:
            return []

    def awaited(self, run: str, kind: str, number: int = 1) -> Event:
        """The number-th event of that kind of a run, once it is in the journal."""
        events: list[Event] = wait_for(
            lambda: found if len(found := [e for e in self.events(run) if e.type == kind]) >= number else None, 120
        )
        return events[number - 1]

    def patch(self, run: str) -> bytes:
        """The patch of a sealed run, empty when it has none."""
        sealed = self.run(run).sealed
        assert sealed is not None
        digest = sealed.artifacts.get("patch.diff")
        return Journal(self.archive, run).get_blob(digest) if digest else b""

    def processes(self) -> list[Path]:
        """/proc/<pid> of every process that has this deployment in its environment: commands, stack, workers."""
        ours = f"DAWN_STATE_DIR={self.state}\0".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended meanwhile, or is somebody else's
                if ours in (process / "environ").read_bytes():
                    found.append(process)
        return found

    def left(self) -> list[str]:
        """What is on the engine of this archive: containers in any state, volumes, networks."""
        label = f"label=dawnfleet.archive={sha256(self.archive.url.encode())[:12]}"
        listings = (["ps", "--all"], ["volume", "ls"], ["network", "ls"])
        return [
            f"{words[0]} {name}"
            for words in listings
            for name in _docker(*words, "--quiet", "--filter", label).split()
        ]

    def _command(self, words: Any) -> list[str]:
        return [program("dawn"), *map(str, words)]


def s3_environment(settings: Settings) -> dict[str, str]:
    """What tells a deployment where its bucket is."""
    return {
        "DAWN_S3_ENDPOINT_URL": str(settings.s3_endpoint_url),
        "DAWN_S3_ACCESS_KEY_ID": str(settings.s3_access_key_id),
        "DAWN_S3_SECRET_ACCESS_KEY": str(settings.s3_secret_access_key),
    }


def worker_process(worker: str) -> int:
    """Process id of a worker, from the name under which it claimed."""
    return int(worker.rpartition("-")[2])


def _docker(*words: str) -> str:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=True).stdout


def _clean(env: Mapping[str, str]) -> dict[str, str]:
    """Without the settings and keys of whoever runs the tests."""
    return {
        name: value
        for name, value in env.items()
        if name in OF_THE_HOST or not (name.startswith("DAWN_") or name.endswith("_API_KEY"))
    }


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """A deployment of the test's own, with nothing running."""
    return Deployment(tmp_path)
