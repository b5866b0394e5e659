"""The scheduler's loop over windows, start times and schedules, on a real Redis, by a clock of the test's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from runs_made import Make, claimed, replied

from scheduler.enqueue import Batch, targets_json
from scheduler.gc import collect
from scheduler.schedules import stored
from scheduler.schedules.cron import Schedule
from scheduler.tick import Scheduler
from worker.contract.events import Parked, Yielded
from worker.contract.settings import Settings
from worker.contract.task import Repo, Task
from worker.contract.window import Window
from worker.store import keys
from worker.store.archive import Archive
from worker.store.hints import Hints, WorkerOffer
from worker.store.journal import Journal

OPENS = datetime(2026, 11, 30, 21, 0, tzinfo=UTC)
CLOSES = OPENS + timedelta(hours=8)
NOON = OPENS - timedelta(hours=9)
SETTINGS = Settings(lease_ttl_s=45, ring_again_s=45, relist_s=60)


class World:
    def __init__(self, archive: Archive, url: str) -> None:
        self.archive, self.hints, self.now = archive, Hints(url), NOON
        self.rings: list[str] = []
        self.hints.start_epoch("known")
        self.scheduler = Scheduler(archive, self.hints, lambda run, lane: self.rings.append(run), SETTINGS, self._now)

    def _now(self) -> datetime:
        return self.now

    def at(self, moment: datetime) -> list[str]:
        """The doorbells that are rung then."""
        self.now = moment
        for run in self.rings:
            self.hints.answered(run)
        self.rings.clear()
        self.hints.offer(WorkerOffer("w", ("interactive", "batch"), 8, 8), ttl_s=600)
        self.scheduler.tick()
        return sorted(self.rings)


@pytest.fixture
def world(archive: Archive, redis_url: str) -> World:
    return World(archive, redis_url)


@pytest.fixture
def windowed(make_run: Make) -> Callable[..., None]:
    """Three runs of a batch, submitted at noon: nobody began one, a worker of one died, one was given back."""

    def make(on_close: Any) -> None:
        window = Window(open="22:00", close="06:00", zone="Europe/Berlin", on_close=on_close)
        more: dict[str, Any] = {"at": NOON.isoformat(timespec="milliseconds"), "window": window}
        make_run("fresh", **more)
        make_run("orphan", claimed(), replied(), **more)
        make_run("given-back", claimed(), replied(), Yielded(why="drain"), **more)

    return make


def ends(archive: Archive) -> dict[str, tuple[str, str]]:
    found = {run: Journal(archive, run).load().sealed for run in ("fresh", "orphan", "given-back")}
    return {run: (sealed.outcome, sealed.detail) for run, sealed in found.items() if sealed is not None}


@pytest.mark.parametrize(
    ("on_close", "noon", "after"),
    [("pause", [], []), ("finish", ["given-back", "orphan"], ["given-back", "orphan"])],
)
def test_nothing_is_rung_while_a_window_is_closed(
    world: World, windowed: Any, on_close: str, noon: list[str], after: list[str]
) -> None:
    """But what was begun, where it may finish; when it opens, all."""
    windowed(on_close)
    assert world.at(NOON) == noon
    assert world.at(OPENS - timedelta(minutes=1)) == noon
    assert world.at(OPENS) == ["fresh", "given-back", "orphan"]
    assert world.at(CLOSES) == after
    assert ends(world.archive) == {}


def test_a_window_that_cancels_ends_what_is_left(world: World, windowed: Any) -> None:
    """Not before its first night was over; then all of it, with the reason."""
    windowed("cancel")
    assert world.at(NOON) == []
    assert world.at(OPENS) == ["fresh", "given-back", "orphan"]
    world.at(CLOSES)
    assert ends(world.archive) == {
        "fresh": ("skipped", "window"),
        "orphan": ("cancelled", "window"),
        "given-back": ("cancelled", "window"),
    }
    assert list(world.archive.list("open/")) == []


def test_a_parked_run_is_rung_when_its_window_opens(world: World, make_run: Make) -> None:
    """By itself; nobody must unpause it."""
    window = Window(open="22:00", close="06:00", zone="Europe/Berlin")
    parked = Parked(waiting="window", until=OPENS.isoformat(timespec="milliseconds"))
    make_run("a", claimed(), replied(), parked, window=window)
    assert world.at(OPENS - timedelta(seconds=1)) == []
    assert world.at(OPENS) == ["a"]


def test_a_run_is_rung_at_the_time_it_was_asked_for(world: World, make_run: Make) -> None:
    """F26: in the first round from then on, of which there are two a second; not before."""
    assert Settings().tick_s <= 0.5
    make_run("a", start_at=OPENS.isoformat(timespec="milliseconds"))
    assert world.at(OPENS - timedelta(milliseconds=1)) == []
    assert world.at(OPENS) == ["a"]


def scheduled(archive: Archive, source: str | None = None) -> None:
    repo = Repo(url="https://x.example/a") if source is None else Repo(source=source, source_kind="folder")
    task = Task(run="r", batch="b", target="a", repo=repo, commands=("true",))
    batch = Batch("b", b"", targets_json("b", [task], b""), (task,))
    schedule = Schedule(cron="0 22 * * *", zone="Europe/Berlin")
    stored.put(archive, "nightly", schedule, batch, by="ann", at=NOON.isoformat())


def test_a_schedule_fires_and_its_runs_are_rung_in_the_same_round(world: World) -> None:
    """At its time, once."""
    scheduled(world.archive)
    assert world.at(OPENS - timedelta(seconds=1)) == []
    [run] = world.at(OPENS)
    assert Journal(world.archive, run).task().batch.startswith("nightly-")
    assert Journal(world.archive, run).load().submitted_by == "schedule nightly"
    world.hints.rung(run, "batch", 45)
    assert world.at(OPENS + timedelta(seconds=1)) in ([], [run])
    assert len(list(world.archive.folders("batches/"))) == 1


def test_gc_keeps_what_a_schedule_will_need(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """A packed repository that no run has named yet; once the schedule is removed, it goes."""
    source, other = "a" * 64, "b" * 64
    for name in (source, other):
        archive.create(keys.source(name), b"packed")
    monkeypatch.setattr("scheduler.gc.UNNAMED_S", 0)
    scheduled(archive, source)
    assert collect(archive, keep_s=0, now=OPENS, dry_run=True).found["sources"] == [keys.source(other)]
    state = stored.read(archive, "nightly")
    stored.tell(archive, state, "remove", by="ann", at=NOON.isoformat())
    assert len(collect(archive, keep_s=0, now=OPENS, dry_run=True).found["sources"]) == 2
