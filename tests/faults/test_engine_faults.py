"""The container engine dies, answers wrongly, loses its disk, or a worker's own disk is full: what becomes of a run.

The engine is one of the tests' own (engines.py). A call that sleeps is found on the host by its mark, and ended from
there when it has served: so a run stands in a call for as long as a test needs, and no longer.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import wait_for
from engines import OwnEngine
from nights import Night

from worker.contract.events import Event, Observed, Yielded
from worker.contract.task import Check, Environment
from worker.sandbox.sandbox import DockerSandbox
from worker.store.journal import Journal

pytestmark = pytest.mark.docker

TOOLBOX = Environment(image="toolbox")
"""The one image of ours that the engine of the tests' own is given."""
GONE_S = 5
"""The promise: of a call that was ended nothing is alive after that."""


class Sleep:
    """A sleep that is known on this host by its length, which nobody else sleeps."""

    def __init__(self) -> None:
        self.command = f"sleep 600.{secrets.randbelow(10**9):09}"

    def processes(self) -> list[int]:
        """Its process ids, of all containers of all engines."""
        wanted = self.command.replace(" ", "\0").encode() + b"\0"
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (process / "cmdline").read_bytes() == wanted:
                    found.append(int(process.name))
            except OSError:  # it ended meanwhile
                continue
        return found

    def awaited(self) -> list[int]:
        """The same, once it sleeps somewhere."""
        return wait_for(self.processes)  # type: ignore[no-any-return]

    def end(self) -> None:
        """What called it goes on."""
        for process in self.awaited():
            os.kill(process, signal.SIGTERM)


@pytest.fixture
def sleep() -> Sleep:
    return Sleep()


@pytest.fixture
def own_night(tmp_path: Path, own_sandbox: DockerSandbox, redis_url: str) -> Iterator[Night]:
    """A worker's station on the engine of the tests' own."""
    night = Night(tmp_path / "archive", own_sandbox, redis_url)
    yield night
    night.station.hints.close()


@contextmanager
def working(night: Night) -> Iterator[list[str]]:
    """An attempt on run-1 meanwhile; the list holds how it ended once the block is left."""
    with ThreadPoolExecutor(1) as thread:
        ended: list[str] = []
        attempt = thread.submit(night.work)
        yield ended
        ended.append(attempt.result(120))


def due(journal: Journal, now: Callable[[], str]) -> None:
    """Wait until nobody has to wait for the run any more."""
    wait_for(lambda: (not_before := journal.load().not_before) is None or not_before <= now())


def of(journal: Journal, kind: type[Event]) -> list[Any]:
    return [record.event for record, _ in journal.read() if isinstance(record.event, kind)]


def given_back(journal: Journal, *failures: str) -> None:
    """Check that attempts ended so, each with a time before which nobody tries again."""
    yields = of(journal, Yielded)
    assert [(found.why, str(found.failure)) for found in yields] == [("infra", failure) for failure in failures]
    assert all(found.not_before for found in yields)


def logging(sleep: Sleep) -> dict[str, Any]:
    """A task of two calls that write to `log`, the second in two halves with a sleep between them."""
    script = f"""
- calls: [{{tool: run_command, arguments: {{command: "echo one >> log"}}}}]
- calls: [{{tool: run_command, arguments: {{command: "echo two >> log; {sleep.command}; echo three >> log"}}}}]
- text: Done.
"""
    checks = (Check(name="log", command="cat log"),)
    return {"environment": TOOLBOX, "script": script, "checks": checks}


def logged(journal: Journal) -> list[str]:
    """What a sealed run's patch adds to `log`."""
    sealed = journal.load().sealed
    assert sealed is not None
    assert (sealed.outcome, sealed.verdict) == ("changed", "verified")
    patch = journal.get_blob(sealed.artifacts["patch.diff"]).decode()
    return [line[1:] for line in patch.splitlines() if line.startswith("+") and not line.startswith("+++")]


# F31: the engine dies


def test_an_engine_that_dies_in_a_call_rolls_it_back(own_night: Night, own_engine: OwnEngine, sleep: Sleep) -> None:
    """F31: dockerd is killed in the middle of a call: infra/engine, and after its restart the call runs again, once
    as committed; what the dead engine kept is cleared up by the next claimer."""
    journal = own_night.submit(**logging(sleep))
    with working(own_night) as ended:
        first = sleep.awaited()
        own_engine.kill()
    assert ended == ["yielded"]
    given_back(journal, "infra/engine")
    assert len(of(journal, Observed)) == 1
    own_engine.start()
    due(journal, own_night.station.now)
    with working(own_night) as ended:
        wait_for(lambda: set(sleep.processes()) - set(first))
        sleep.end()
    assert ended == ["sealed"]
    assert logged(journal) == ["one", "two", "three"]
    assert [observed.observation.exit_code for observed in of(journal, Observed)] == [0, 0]
