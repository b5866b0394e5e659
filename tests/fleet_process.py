"""Owns the two kinds of process of a fleet (fleets.py): a worker whose engine is in memory, and a scheduler. All else
is the product's own: settings, archive, Redis, Celery, heartbeats, signals. Refuses to hold rules: it only swaps the
engine, scales what is no setting (time limits of sockets), and notes each call and each request as it begins.

`fleet_process.py worker FOLDER [--slots N] [--visibility S] [--broker URL] [--stall] [--deaf N] [--patient]`, or
`fleet_process.py scheduler`.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from double_sandbox import MemorySandbox, MemoryWorkspace

from scheduler import service
from worker import main as worker_main
from worker.contract.events import Reply, digest
from worker.contract.redact import Redactor
from worker.contract.script import parse_script
from worker.contract.settings import Settings
from worker.contract.task import Limits, Task
from worker.models.protocol import ModelRequest
from worker.models.scripted import ScriptedModel
from worker.sandbox.protocol import Owner
from worker.station import Station
from worker.store import doorbell
from worker.store.archive import open_archive
from worker.store.hints import Hints
from worker.store.logs import configure_logs

IMAGES = {"python": "sha256:python"}
PATIENCE_S = 0.5
"""Time limit of a socket to Redis, a tenth of the product's for hints."""


def note(folder: Path, run: str, what: str) -> None:
    """Append `time run what` to the file `acts`; time is the monotonic clock's, which all processes share."""
    with (folder / "acts").open("a") as file:
        file.write(f"{time.monotonic()} {run} {what}\n")


class WatchedModel(ScriptedModel):
    """Notes each request to the model as it begins."""

    def __init__(self, folder: Path, task: Task) -> None:
        super().__init__(task.model, parse_script(task.script or "", "script"))
        self._note = partial(note, folder, task.run, "model")

    def reply(self, request: ModelRequest, **more: Any) -> Reply:
        self._note()
        return super().reply(request, **more)


class WatchedSandbox(MemorySandbox):
    """Notes each call of an agent as it begins."""

    def open(self, owner: Owner, image: str, limits: Limits) -> MemoryWorkspace:
        opened = super().open(owner, image, limits)
        if owner.role == "agent":
            opened.run = partial(self._run, owner, opened.run)  # type: ignore[method-assign]
        return opened

    def _run(self, owner: Owner, run: Callable[..., Any], command: Any, **more: Any) -> Any:
        if command.kind == "shell":
            note(self.folder.parent, owner.run, "call")
        return run(command, **more)


def station(folder: Path, settings: Settings, name: str, lane: str) -> Station:
    """What worker.main.open_station gives, but for the engine and the model."""
    configure_logs(mask=Redactor({}).text)
    archive = open_archive(settings.archive_url, settings)
    hints = Hints(str(settings.redis_url), socket_timeout_s=PATIENCE_S)
    hints.check()
    spool = folder / name
    spool.mkdir()
    return Station(
        name=name,
        lane=lane,
        settings=settings,
        archive=archive,
        archive_id=digest(archive.url.encode())[:12],
        hints=hints,
        sandbox=WatchedSandbox(name, spool, IMAGES),
        redactor=Redactor({}),
        secrets={},
        open_model=partial(WatchedModel, folder),
    )


def stall(mark: Path) -> None:
    """Stand still for ever where kombu has popped a message and not noted it yet; the mark says that it did."""
    from kombu.transport.redis import QoS

    def append(*_: Any) -> None:
        mark.touch()
        threading.Event().wait()

    QoS.append = append


def deaf(times: int) -> None:
    """Let the first acknowledgements fail, as when Redis is slow for a moment."""
    from kombu.transport.redis import QoS
    from redis.exceptions import TimeoutError as RedisTimeout

    plain, left = QoS.ack, list(range(times))

    def ack(self: Any, tag: Any) -> None:
        if left:
            left.pop()
            raise RedisTimeout("as asked by a test")
        plain(self, tag)

    QoS.ack = ack


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("worker", "scheduler"))
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--visibility", type=int, default=doorbell.VISIBILITY_TIMEOUT_S)
    parser.add_argument("--broker", default="")
    parser.add_argument("--stall", action="store_true")
    parser.add_argument("--deaf", type=int, default=0)
    parser.add_argument("--patient", action="store_true", help="leave time limits of sockets as they are")
    options = parser.parse_args()
    settings = Settings()
    if not options.patient:
        doorbell.SOCKET_TIMEOUT_S = doorbell.HEALTH_CHECK_S = doorbell.RETRY_MAX_S = 1  # type: ignore[misc]
    if options.role == "scheduler":
        service.Hints = partial(Hints, socket_timeout_s=PATIENCE_S)  # type: ignore[misc, assignment]
        service.serve(settings)
        return 0
    plain = doorbell.celery_app
    doorbell.celery_app = lambda url: plain(options.broker or url, visibility_timeout_s=options.visibility)
    worker_main.open_station = partial(station, options.folder)
    worker_main.solo_beside = worker_main.nothing_beside
    deaf(options.deaf)
    if options.stall:
        stall(options.folder / "stalled")
    return worker_main.serve(settings, worker_main.MAIN_LANES, options.slots)


if __name__ == "__main__":
    sys.exit(main())
