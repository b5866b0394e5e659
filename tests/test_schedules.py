"""Schedules on an archive in memory and a real Redis, by a clock of the test's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from doubles import MemoryArchive
from hypothesis import given, settings
from hypothesis import strategies as st
from runs_made import claimed, ended

from scheduler.enqueue import Batch, targets_json
from scheduler.reports import kept
from scheduler.schedules import stored
from scheduler.schedules.cron import Schedule
from scheduler.schedules.firing import MADE_UP, ON_TIME, QUEUED, Firings, decide
from worker.contract.errors import ConflictFault, NotFoundFault, StoreFault
from worker.contract.run import Run
from worker.contract.task import Repo, Task
from worker.contract.zones import utc_text
from worker.store import keys
from worker.store.hints import Hints
from worker.store.inbox import Control
from worker.store.journal import Journal

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
DAY = timedelta(days=1)
NAME = "nightly"


def batch(*targets: str, commands: tuple[str, ...] = ("true",)) -> Batch:
    tasks = tuple(
        Task(
            run=f"r-{target}",
            batch="b",
            target=target,
            repo=Repo(url=f"https://x.example/{target}"),
            commands=commands,
        )
        for target in targets or ("a", "b")
    )
    return Batch("b", b"name: nightly\n", targets_json("b", tasks, b"name: nightly\n"), tasks)


class Watched(MemoryArchive):
    """before: called with each key that is to be created; it may raise as a store would."""

    before: Callable[[str], None] = staticmethod(lambda key: None)

    def create(self, key: str, data: bytes | Path) -> bool:
        self.before(key)
        return super().create(key, data)


class Place:
    """An archive, its schedules, and who leads. open: batches that have not ended; a fired one is open until then."""

    def __init__(self, archive: Watched, hints: Hints) -> None:
        self.archive, self.hints = archive, hints
        self.now = NOON
        self.ended: set[str] = set()
        self.leader = self.another()

    def another(self) -> Firings:
        return Firings(self.archive, self.hints, relist_s=60)

    @property
    def open(self) -> set[str]:
        return set(self.archive.folders("batches/")) - self.ended

    def put(self, name: str = NAME, cron: str = "0 0 * * *", zone: str = "UTC", **more: Any) -> None:
        schedule = Schedule(cron=cron, zone=zone, **more)
        stored.put(self.archive, name, schedule, batch(), by="ann", at=self.now.isoformat())

    def say(self, kind: Any, name: str = NAME) -> None:
        state = stored.read(self.archive, name)
        stored.tell(self.archive, state, kind, by="bob", at=self.now.isoformat())
        self.leader = self.another()  # as a hint would have it read at once

    def act(self, after: timedelta = timedelta(0), leader: Firings | None = None) -> list[str]:
        """One round, that much later; the batches that came of it."""
        self.now += after
        before = self.open
        (leader or self.leader).act(self.now, before)
        return sorted(self.open - before)

    def days(self, count: int, *, end: bool = True) -> list[int]:
        """How many batches come of each of the next days, looked at every twelve hours; end: each has ended by
        the next look."""
        fired = []
        for _ in range(count):
            found = []
            for _ in range(2):
                found += self.act(timedelta(hours=12))
                if end:
                    self.ended |= self.open
            fired.append(len(found))
        return fired

    def told(self, name: str = NAME) -> list[tuple[str, str, int]]:
        """What became of each due time, as `2026-12-01T00:00`, and how many were missed."""
        found = (stored.firing(self.archive, name, due) for due in stored.dues(self.archive, name, NOON - DAY))
        return [(one.due[:16], one.what, one.missed) for one in found]


@pytest.fixture
def place(redis_url: str) -> Iterator[Place]:
    hints = Hints(redis_url)
    yield Place(Watched(), hints)
    hints.close()


def test_a_due_schedule_makes_a_batch_once(place: Place) -> None:
    """Not before its time, and not again by whoever looks later."""
    place.put()
    place.now = NOON + timedelta(hours=11, minutes=59, seconds=59)
    assert place.act() == []
    [fired] = place.act(timedelta(seconds=1))
    assert fired == stored.batch_id(NAME, stored.read(place.archive, NAME).template, place.now)
    assert place.act(timedelta(seconds=1)) == place.act(leader=place.another()) == []
    tasks = [place.archive.get(key) for key in place.archive.list("runs/") if key.endswith("task.json")]
    assert len(tasks) == 2
    assert sorted(key.partition("/")[2] for key in place.archive.list("open/")) == sorted(
        place.archive.folders("runs/")
    )


def test_every_night_is_a_batch_of_its_own(place: Place) -> None:
    """Other runs of the same work."""
    place.put()
    assert place.days(3) == [1, 1, 1]
    assert len(set(place.archive.folders("runs/"))) == 6


def done(place: Place, repo: Repo, **more: Any) -> tuple[str, list[Run]]:
    """The run of a first night, which ended as verified, and the runs of the next two nights."""
    asked = batch("a")
    tasks = tuple(task.model_copy(update={"repo": repo}) for task in asked.tasks)
    schedule = Schedule(cron="0 0 * * *", zone="UTC", **more)
    stored.put(place.archive, NAME, schedule, replace(asked, tasks=tasks), by="ann", at=place.now.isoformat())
    place.act(timedelta(hours=12))
    [first] = place.archive.folders("runs/")
    journal = Journal(place.archive, first)
    run = journal.load()
    for event in (claimed(), *ended(verdict="verified")):
        run = journal.append(run, [event], attempt=run.attempt, at=place.now.isoformat())
    place.ended |= place.open
    assert place.days(2) == [1, 1]
    return first, [Journal(place.archive, one).load() for one in place.archive.folders("runs/") if one != first]


def test_verified_work_on_a_commit_that_has_not_moved_is_reused(place: Place) -> None:
    """Night after night, naming the run that did it; each night has its batch, and nothing is left open by it."""
    first, nights = done(place, Repo(source="3" * 64, source_kind="git"))
    assert [(one.sealed.outcome, one.sealed.reused) for one in nights if one.sealed] == [("reused", first)] * 2
    assert set(place.archive.list("open/")) == {keys.open_marker(first)}


def test_a_schedule_that_reuses_nothing_has_the_work_done_again(place: Place) -> None:
    """As submit --again does."""
    _, nights = done(place, Repo(source="3" * 64, source_kind="git"), reuse=False)
    assert [one.status for one in nights] == ["queued", "queued"]


def test_of_a_branch_nothing_is_reused(place: Place) -> None:
    """What it points at is known when it is fetched."""
    _, nights = done(place, Repo(url="https://x.example/a", ref="main"))
    assert [one.status for one in nights] == ["queued", "queued"]


@pytest.mark.parametrize(
    "cut", ["schedules/nightly/begun", "schedules/nightly/2026-12-01", "batches/", "runs/", "open/"]
)
def test_the_next_leader_completes_what_was_cut_off(place: Place, cut: str) -> None:
    """Wherever the one before died between the right to fire and its last run: one batch, and it is whole."""
    place.put()

    def dies(key: str) -> None:
        if key.startswith(cut):
            raise StoreFault("it dies here")

    place.archive.before = dies
    with pytest.raises(StoreFault):
        place.act(timedelta(hours=12))
    place.archive.before = lambda key: None
    place.act(timedelta(seconds=50), place.another())
    assert len(place.open) == 1
    assert len(list(place.archive.list("open/"))) == 2
    assert [what for _, what, _ in place.told()] == ["fired"]
    assert place.days(1) == [1]


@pytest.mark.parametrize("where", ["schedules/nightly/begun", "schedules/nightly/2026", "batches/", "runs/", "open/"])
def test_a_leader_that_stood_still_fires_nothing_twice(place: Place, where: str) -> None:
    """T59: wherever it froze, another took over, fired that tick and the next, and then it thawed: one job a tick."""
    place.put(cron="*/10 * * * * *", overlap="skip")
    frozen, other = place.leader, place.another()
    place.act(leader=frozen)
    thawing = [where]

    def freezes(key: str) -> None:
        if thawing and key.startswith(thawing[0]):
            thawing.clear()
            for _ in range(2):
                other.act(place.now, ())
                place.now += timedelta(seconds=10)

    place.archive.before = freezes
    place.now += timedelta(seconds=10)
    frozen.act(place.now, ())
    for leader in (frozen, other, frozen):
        leader.act(place.now, ())
        place.now += timedelta(seconds=10)
    jobs = Counter(stored.firing(place.archive, NAME, due).batch for due in stored.dues(place.archive, NAME, NOON))
    assert set(jobs) == place.open
    assert set(jobs.values()) == {1}
    assert len(jobs) == 5
    assert len(list(place.archive.list("open/"))) == 10


@pytest.mark.parametrize(
    ("overlap", "first_ends", "fired", "what"),
    [
        ("skip", False, [1, 0, 0], ["fired", "overlap", "overlap"]),
        ("skip", True, [1, 1, 1], ["fired", "fired", "fired"]),
        ("queue", False, [1, 0, 0], ["fired", "fired", "fired"]),
    ],
)
def test_where_the_batch_before_has_not_ended(
    place: Place, overlap: str, first_ends: bool, fired: list[int], what: list[str]
) -> None:
    """A due one is left out, and says so, or waits."""
    place.put(overlap=overlap)
    assert place.days(3, end=first_ends) == fired
    assert [one for _, one, _ in place.told()] == what


def test_what_waits_for_the_batch_before_comes_in_its_turn(place: Place) -> None:
    """One after the other, also under another leader, and not more than a few wait."""
    place.put(overlap="queue")
    assert sum(place.days(QUEUED + 3, end=False)) == 1
    assert Counter(what for _, what, _ in place.told()) == {"fired": QUEUED + 1, "overlap": 2}
    turns = 0
    while place.open:
        place.ended |= place.open
        place.leader = place.another()
        assert len(place.act()) <= 1
        turns += 1
    assert turns == QUEUED + 1


def test_the_batch_before_is_cancelled_first(place: Place) -> None:
    """Told once, by the schedule, and the new one begins when it has ended."""
    place.put(overlap="cancel_previous")
    place.days(1, end=False)
    [first] = place.open
    assert place.days(1, end=False) == [0]
    [cancel] = Control(place.archive, first).read()
    assert (cancel.kind, cancel.by) == ("cancel", "schedule nightly")
    place.ended.add(first)
    assert len(place.act()) == 1


@pytest.mark.parametrize(
    ("missed", "told"),
    [
        ("skip", [("2026-12-03T00:00", "missed", 3)]),
        ("run_once", [("2026-12-02T00:00", "missed", 2), ("2026-12-03T00:00", "fired", 0)]),
        (
            "run_all",
            [("2026-12-01T00:00", "fired", 0), ("2026-12-02T00:00", "fired", 0), ("2026-12-03T00:00", "fired", 0)],
        ),
    ],
)
def test_due_times_at_which_nobody_was_there(place: Place, missed: str, told: list[Any]) -> None:
    """Three nights without a scheduler: what the policy says, on record, and only once."""
    place.put(missed=missed, overlap="queue")
    place.act()
    place.now += 3 * DAY
    for _ in range(5):
        place.act(timedelta(seconds=1), place.another())
        place.ended |= place.open
    assert place.told() == told
    assert sum(place.days(1)) == 1


def test_nights_without_a_scheduler_are_told_with_the_batch_before(place: Place) -> None:
    """Its report is due again, and says so."""
    place.put(missed="skip")
    [fired] = place.act(timedelta(hours=12))
    place.ended.add(fired)
    assert list(place.archive.list("due/")) == [keys.report_due(fired)]
    place.archive.delete([keys.report_due(fired)])
    assert place.act(timedelta(days=3, hours=1), place.another()) == []
    assert list(place.archive.list("due/")) == [keys.report_due(fired)]
    note = kept.gather(place.archive, fired, at=place.now.isoformat()).note
    assert note == "3 due times up to 2026-12-04 00:00 (UTC) passed without a batch: no scheduler was there"


def test_a_paused_schedule_does_nothing_and_makes_up_for_nothing(place: Place) -> None:
    """Whoever pauses it wants none of it."""
    place.put(missed="run_all")
    place.say("pause")
    assert place.days(2) == [0, 0]
    place.say("unpause")
    assert place.act() == []
    assert place.days(1) == [1]


def test_a_pause_counts_at_once_also_where_its_hint_was_lost(place: Place) -> None:
    """Whoever fires looks once more."""
    place.put()
    leader = place.leader
    place.act(timedelta(hours=11, minutes=59, seconds=59))
    place.say("pause")
    assert place.act(timedelta(seconds=1), leader) == []


def test_a_person_can_have_it_run_now(place: Place) -> None:
    """Once, also where it is paused; its next time is what it was."""
    place.put()
    place.say("pause")
    place.say("run")
    [fired] = place.act()
    assert fired == stored.batch_id(NAME, stored.read(place.archive, NAME).template, place.now)
    assert place.act(leader=place.another()) == []
    [due] = stored.dues(place.archive, NAME, NOON - DAY)
    assert stored.firing(place.archive, NAME, due).by == "bob"


def test_what_a_person_wants_waits_for_the_batch_before(place: Place) -> None:
    """A schedule that leaves out what overlaps does not leave out that."""
    place.put()
    [first] = place.act(timedelta(hours=12))
    place.now += timedelta(minutes=1)
    place.say("run")
    assert place.act() == []
    place.ended.add(first)
    assert len(place.act()) == 1


def test_a_removed_schedule_fires_no_more(place: Place) -> None:
    """And can be set again, without what it missed."""
    place.put(missed="run_all")
    place.say("remove")
    assert place.days(2) == [0, 0]
    with pytest.raises(NotFoundFault):
        stored.existing(place.archive, NAME)
    place.put(missed="run_all")
    place.leader = place.another()
    assert place.days(1) == [1]


def test_the_same_schedule_again_changes_nothing(place: Place) -> None:
    """Another one of its name takes its place, from then on."""
    place.put()
    place.put()
    assert len(list(place.archive.list(keys.schedule_specs(NAME)))) == 1
    place.put(cron="0 13 * * *")
    assert len(place.act(timedelta(hours=1))) == 1


def test_of_two_who_change_a_schedule_one_is_told(place: Place) -> None:
    """The other's message has its number."""
    place.put()
    state = stored.read(place.archive, NAME)
    stored.tell(place.archive, state, "pause", by="bob", at=place.now.isoformat())
    with pytest.raises(ConflictFault, match="somebody else"):
        stored.tell(place.archive, state, "remove", by="eve", at=place.now.isoformat())


@pytest.mark.parametrize("jump", [timedelta(hours=1), timedelta(hours=36), timedelta(days=400)])
def test_a_clock_that_jumps_fires_nothing_twice_and_loses_nothing(place: Place, jump: timedelta) -> None:
    """Ahead and back, over due times: each of the nights after has its batch."""
    place.put()
    place.days(1)
    place.act(jump)
    place.ended |= place.open
    place.now -= jump
    place.act()
    ahead = len([due for due in stored.dues(place.archive, NAME, NOON - DAY) if due > utc_text(place.now)])
    days = place.days(4)
    fired = [due for due, what, _ in place.told() if what == "fired"]
    assert len(fired) == len(set(fired))
    assert set(days) <= {0, 1}
    assert sum(days) >= 4 - ahead


def test_a_clock_that_is_set_back_fires_nothing_again(place: Place) -> None:
    """Two nights are lived through twice."""
    place.put()
    assert place.days(2) == [1, 1]
    place.now -= 2 * DAY
    assert place.days(3) == [0, 0, 1]


def test_a_damaged_schedule_stops_no_other(place: Place) -> None:
    """It is set aside, with its name in the log."""
    place.put()
    place.archive.create(keys.schedule_spec("broken", 0), b"nonsense")
    assert place.days(1) == [1]


@given(
    st.sampled_from(["skip", "run_once", "run_all"]),
    st.timedeltas(timedelta(0), timedelta(days=1)),
    st.sampled_from(["0 * * * *", "30 1 * * *", "*/20 2-6 * * *"]),
)
@settings(max_examples=50)
def test_each_due_time_is_decided_once(missed: Any, late: timedelta, cron: str) -> None:
    """It fires, or is counted as missed with one that lies later or is itself; the newest are never left out, and the
    number that is made up for is bounded."""
    schedule, now = Schedule(cron=cron, zone="Europe/Berlin", missed=missed), NOON + late
    due = list(takewhile(lambda at: at <= now, schedule.due_after(NOON)))
    found = decide(schedule, NOON, now)
    fires = [one.at for one in found if one.fires]
    assert len(due) == len(fires) + sum(one.missed for one in found)
    assert [one.at for one in found] == sorted({one.at for one in found})
    assert all(one.at > now - ON_TIME or missed != "skip" for one in found if one.fires)
    assert len([at for at in fires if at <= now - ON_TIME]) <= {"skip": 0, "run_once": 1, "run_all": MADE_UP}[missed]
