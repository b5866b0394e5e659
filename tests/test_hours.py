"""A window closes over runs: what waits, goes on, or ends; attempts on the real engine with a clock of the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nights import Night, types

from scheduler.planning import windows
from scheduler.planning.plan import Held
from worker.contract.events import Parked
from worker.contract.hours import Shut, ready, shut
from worker.contract.run import Run
from worker.contract.task import Repo, Task
from worker.contract.window import Window
from worker.store.journal import Journal

OPENS = datetime(2036, 11, 30, 21, 0, tzinfo=UTC)
"""Later than whatever the tests submit now."""
CLOSES = OPENS + timedelta(minutes=1)
AGAIN = OPENS + timedelta(days=1)
SUBMITTED = OPENS - timedelta(hours=9)
STEPS = """
- calls: [{tool: run_command, arguments: {command: 'echo one >> log'}}]
- calls: [{tool: run_command, arguments: {command: 'echo two >> log; echo 42 > answer.txt'}}]
- calls: [{tool: run_command, arguments: {command: 'echo three >> log'}}]
- text: Done.
"""
LONG = """
- calls: [{tool: run_command, arguments: {command: 'echo once >> log; sleep 600', timeout_s: 600}}]
- text: Done.
"""


def window(on_close: Any = "pause") -> Window:
    return Window(open="22:00", close="22:01", zone="Europe/Berlin", on_close=on_close)


def task(on_close: Any = "pause", **more: Any) -> Task:
    repo = Repo(url="https://git.example.org/a")
    return Task(run="a", batch="b", target="a", repo=repo, commands=("true",), window=window(on_close), **more)


def run(claims: int = 0) -> Run:
    return Run(id="a", submitted_at=SUBMITTED.isoformat(), claims=claims)


@pytest.mark.parametrize("on_close", ["pause", "finish", "cancel"])
def test_before_its_first_hours_a_run_waits(on_close: Any) -> None:
    """Submitted at noon for a night that has not begun, nothing is skipped."""
    assert shut(task(on_close), run(), OPENS - timedelta(seconds=1)) == Shut(OPENS)
    assert ready(task(on_close), run(), OPENS)


@pytest.mark.parametrize(
    ("on_close", "claims", "found"),
    [
        ("pause", 0, Held("window", until=AGAIN)),
        ("pause", 1, Held("window", until=AGAIN)),
        ("finish", 0, Held("window", until=AGAIN)),
        ("finish", 1, None),
        ("cancel", 0, Held("window", skip=True, until=AGAIN)),
        ("cancel", 1, Held("window", skip=True, until=AGAIN)),
    ],
)
def test_what_the_plan_makes_of_a_closed_window(on_close: Any, claims: int, found: Held | None) -> None:
    """At the closing itself, of runs that were begun and of others."""
    assert windows.held(task(on_close), run(claims), CLOSES) == found


def test_a_night_that_nobody_watched_is_over_all_the_same() -> None:
    """With `cancel`, a scheduler that was down over the closing does not give the run another night."""
    assert shut(task("cancel"), run(), AGAIN) == Shut(AGAIN + timedelta(days=1), over=True)


def test_a_night_counts_from_the_start_that_was_asked_for() -> None:
    """A run that starts tomorrow is not skipped by the closing of today."""
    later = task("cancel", start_at=AGAIN.isoformat())
    assert shut(later, run(), CLOSES) == Shut(AGAIN)
    assert not ready(later, run(), AGAIN - timedelta(seconds=1))
    assert ready(later, run(), AGAIN)


def of(journal: Journal, kind: type[Any]) -> list[Any]:
    return [record.event for record, _ in journal.read() if isinstance(record.event, kind)]


class Clock:
    """Of a worker; stands still."""

    at = OPENS

    def now(self) -> str:
        return self.at.isoformat(timespec="milliseconds")

    def strikes(self, night: Night, at: datetime, step: int) -> Callable[[Task], Any]:
        """Opens a model during whose step the clock comes to show `at`."""

        def opened(task: Task) -> Any:
            model = night.station.open_model(task)

            class Late:
                name = model.name

                def reply(_, request: Any, **rest: Any) -> Any:
                    if request.step == step:
                        self.at = at
                    return model.reply(request, **rest)

            return Late()

        return opened


def submitted(night: Night, on_close: Any, script: str = STEPS, **fields: Any) -> Journal:
    return night.submit(window=window(on_close), script=script, **fields)


@pytest.mark.docker
def test_a_run_parks_at_the_closing_and_goes_on_the_next_night(night: Night) -> None:
    """At a committed step, which a call of the model in flight may still make one; between the two nights no doorbell
    wakes it, and what comes out is what would have."""
    clock, undisturbed = Clock(), night.submit("run-2", script=STEPS)
    assert night.work("run-2") == "sealed"
    journal = submitted(night, "pause")
    assert night.work(now=clock.now, open_model=clock.strikes(night, CLOSES, 2)) == "parked"
    assert types(journal)[-2:] == ["replied", "parked"]
    [parked] = of(journal, Parked)
    assert (parked.waiting, datetime.fromisoformat(parked.until)) == ("window", AGAIN)
    assert night.leftovers() == []
    assert night.work(now=clock.now) == "not_due"
    clock.at = AGAIN
    assert night.work(now=clock.now) == "sealed"
    assert types(journal).count("claimed") == 2
    one, other = journal.load().sealed, undisturbed.load().sealed
    assert one is not None
    assert other is not None
    assert one.verdict == other.verdict == "verified"
    assert one.artifacts["patch.diff"] == other.artifacts["patch.diff"]


@pytest.mark.docker
@pytest.mark.full
def test_a_closing_kills_a_call_that_outlasts_the_soft_limit(night: Night, wait_until: Callable[..., Any]) -> None:
    """It is rolled back, so that the next night's call is the only one."""
    clock, journal = Clock(), submitted(night, "pause", LONG, checks=())
    settings = night.station.settings.model_copy(update={"drain_soft_s": 0.5})
    ended: list[str] = []
    thread = threading.Thread(target=lambda: ended.append(night.work(now=clock.now, settings=settings)))
    thread.start()
    wait_until(lambda: journal.load().pending)
    clock.at = CLOSES
    thread.join(60)
    assert ended == ["parked"]
    assert (types(journal).count("observed"), night.leftovers()) == (0, [])
    waiting = journal.load().waiting
    assert waiting is not None
    assert waiting.waiting == "window"


@pytest.mark.docker
@pytest.mark.full
def test_what_was_begun_is_finished_where_that_was_asked(night: Night) -> None:
    """One attempt, over the closing; another run that nobody began waits."""
    clock, journal = Clock(), submitted(night, "finish")
    submitted(night, "finish", run="run-2")
    assert night.work(now=clock.now, open_model=clock.strikes(night, CLOSES, 2)) == "sealed"
    assert types(journal).count("claimed") == 1
    assert night.work("run-2", now=clock.now) == "not_due"


@pytest.mark.docker
@pytest.mark.full
def test_what_was_begun_is_cancelled_where_that_was_asked(night: Night) -> None:
    """With what it has: its last snapshot is there, and no patch was made."""
    clock, journal = Clock(), submitted(night, "cancel", start_at=OPENS.isoformat())
    assert night.work(now=clock.now, open_model=clock.strikes(night, CLOSES, 2)) == "sealed"
    run = journal.load()
    assert run.sealed is not None
    assert (run.sealed.outcome, run.sealed.detail) == ("cancelled", "window")
    assert (bool(run.chain), run.verdict) == (True, None)


@pytest.mark.docker
@pytest.mark.full
def test_a_run_does_not_begin_before_the_time_it_was_asked_for(night: Night) -> None:
    """Whoever rings."""
    clock, journal = Clock(), night.submit(start_at=AGAIN.isoformat())
    assert night.work(now=clock.now) == "not_due"
    clock.at = AGAIN
    assert night.work(now=clock.now) == "sealed"
    assert types(journal).count("claimed") == 1
