"""The janitor on the doubles: what is wrong with one run keeps it from nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from conftest import wait_for
from double_sandbox import MemorySandbox
from doubles import MemoryArchive
from world import IMAGES, task

from worker.contract.errors import EngineFault, IntegrityFault
from worker.contract.events import Sealed
from worker.contract.task import Limits
from worker.janitor import Janitor, sweep
from worker.sandbox.protocol import Owner
from worker.station import utc_now
from worker.store import keys
from worker.store.journal import Journal

ARCHIVE_ID = "archive-1"


class Stuck(MemorySandbox):
    """An engine that keeps some things. trimmed: how often images were looked at."""

    def __init__(self, folder: Path) -> None:
        super().__init__("engine", folder, IMAGES)
        self.keeps: set[str] = set()
        self.trimmed = 0

    def remove(self, resource: str) -> None:
        if resource in self.keeps:
            raise EngineFault("it is in use")
        super().remove(resource)

    def trim_images(self, most_bytes: int) -> int:
        self.trimmed += 1
        return 0


class Host:
    """An engine with something of two runs that have ended."""

    def __init__(self, folder: Path) -> None:
        self.memory = MemoryArchive()
        self.archive = cast(Any, self.memory)
        self.engine = Stuck(folder)
        self.left: dict[int, set[str]] = {}
        for number in range(2):
            asked = task(number, "repair")
            journal = Journal(self.archive, asked.run)
            journal.submit(asked, by="ann", at=utc_now())
            journal.append(journal.load(), [Sealed(outcome="cancelled")], attempt=None, at=utc_now())
            before = set(self.engine.things)
            self.engine.open(Owner(ARCHIVE_ID, asked.run, 1, "agent"), "python", Limits())
            self.left[number] = set(self.engine.things) - before

    def damage(self, number: int) -> None:
        """A journal that nobody can read."""
        key = keys.segment(task(number, "repair").run, 1)
        self.memory.delete([key])
        self.memory.create(key, b"torn")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_damaged_run_keeps_nothing_else_on_the_host(host: Host) -> None:
    """What belongs to a run that cannot be read stays and is told; everything else goes."""
    host.damage(0)
    with pytest.raises(IntegrityFault):
        sweep(host.archive, ARCHIVE_ID, cast(Any, host.engine))
    assert set(host.engine.things) == host.left[0]


def test_what_the_engine_keeps_holds_up_nothing_else(host: Host) -> None:
    """A container in use is tried again next time; the other run's things go now."""
    host.engine.keeps = host.left[0]
    with pytest.raises(EngineFault):
        sweep(host.archive, ARCHIVE_ID, cast(Any, host.engine))
    assert set(host.engine.things) == host.left[0]
    host.engine.keeps = set()
    assert sweep(host.archive, ARCHIVE_ID, cast(Any, host.engine)) == 2


def test_images_are_bounded_although_the_sweep_fails(host: Host) -> None:
    """A thing that cannot be removed does not let the disk fill with images."""
    host.engine.keeps = host.left[0]
    janitor = Janitor(host.archive, ARCHIVE_ID, cast(Any, host.engine), 0.01, 0)
    janitor.start()
    wait_for(lambda: host.engine.trimmed >= 2)
    janitor.stop()
    assert set(host.engine.things) == host.left[0]
