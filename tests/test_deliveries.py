"""Sealed runs that want to be delivered, from the scheduler's side: rung in turns, reviewed, held, and let go of."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from delivering import AT, ModelRemote, World

from scheduler.deliveries import reviews
from scheduler.gc import collect
from scheduler.tick import Scheduler
from scheduler.work import work_key
from worker.contract.errors import ConflictFault
from worker.contract.events import canonical, digest
from worker.contract.run import Run
from worker.contract.settings import Settings
from worker.store import keys
from worker.store.deliveries import mark, marks, read_after
from worker.store.hints import WorkerOffer
from worker.store.inbox import Control
from worker.store.journal import Journal


class Lane:
    """A scheduler, the lane `deliver`, and one worker that serves it when it is told to."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder, ModelRemote())
        self.rung: list[str] = []
        self.scheduler = self.lead()
        self.offer()

    def lead(self) -> Scheduler:
        """One that knows nothing."""
        world: Any = self.world
        return Scheduler(world.archive, world.hints, self.ring, Settings(), lambda: self.now)

    @property
    def now(self) -> datetime:
        return datetime.fromisoformat(AT) + timedelta(seconds=60 + self.world.now_s)

    def offer(self, *lanes: str) -> None:
        offer = WorkerOffer("w", lanes or ("deliver",), 4, 4)
        self.world.hints.offer(offer, 1e9)

    def ring(self, run: str, lane: str) -> None:
        assert lane == "deliver", (run, lane)
        self.rung.append(run)

    def tick(self, after_s: float = 6.0) -> list[str]:
        """What is rung in the next round."""
        self.world.now_s += after_s
        self.rung.clear()
        self.scheduler.tick()
        return list(self.rung)

    def work(self) -> list[str]:
        """Serve what was rung."""
        for run in self.rung:
            self.world.hints.answered(f"deliver:{run}")
        return [self.world.deliver(run) for run in self.rung]

    def open(self) -> list[str]:
        return [key.removeprefix("open/") for key in self.world.archive.list("open/")]

    def sealed(self, run: str = "hello-1", text: str = "one\nzwei\n", **words: Any) -> Run:
        """In a batch that names it."""
        made = self.world.sealed(run, text, **words)
        task = Journal(self.world.archive, run).task()
        named = {"v": 1, "batch": task.batch, "targets": [{"target": task.target, "run": run}]}
        self.world.archive.create(keys.batch_targets(task.batch), canonical(named))
        return made


@pytest.fixture
def lane(tmp_path: Path) -> Lane:
    return Lane(tmp_path)


def test_a_verified_run_is_rung_and_its_marker_goes_when_it_is_delivered(lane: Lane) -> None:
    """Not before: whoever leads next finds it by its marker."""
    lane.sealed()
    assert lane.tick() == []  # it is found
    assert lane.tick() == ["hello-1"]
    assert lane.open() == ["hello-1"]
    assert lane.work() == ["delivered"]
    assert lane.open() == ["hello-1"]
    lane.world.hints.drop_lease("scheduler")
    lane.scheduler = lane.lead()
    lane.tick()
    assert lane.tick() == []
    assert (lane.open(), len(lane.world.forge.rows)) == ([], 1)


def test_who_keeps_the_patch_only_is_let_go_at_once(lane: Lane) -> None:
    """The default costs nothing."""
    lane.sealed(kind="patch")
    assert lane.tick() == []
    assert lane.open() == []


def test_what_will_never_be_delivered_is_let_go(lane: Lane) -> None:
    """A verdict that is not what was asked for; a person may still ask."""
    run = lane.sealed(verdict="broke")
    lane.tick()
    lane.tick()
    assert lane.open() == []
    task = Journal(lane.world.archive, "hello-1").task()
    hints: Any = lane.world.hints
    reviews.ask(lane.world.archive, hints, task, run, by="ann", at=AT)
    assert lane.open() == ["hello-1"]
    lane.tick()
    assert lane.tick() == ["hello-1"]
    assert lane.work() == ["delivered"]
    lane.tick()
    assert lane.open() == []


def test_a_wish_at_the_moment_of_letting_go_is_not_lost(lane: Lane) -> None:
    """The marker that a person found there is put back when the scheduler has just deleted it."""
    run = lane.sealed(verdict="broke")
    lane.tick()
    archive: Any = lane.world.archive
    hints: Any = lane.world.hints
    delete = archive.delete

    def late(names: Any) -> None:
        archive.delete = delete
        reviews.ask(archive, hints, Journal(archive, "hello-1").task(), run, by="ann", at=AT)
        delete(names)

    archive.delete = late
    assert lane.tick() == []
    assert lane.open() == ["hello-1"]
    lane.tick()
    lane.tick()
    assert lane.work() == ["delivered"]


def test_a_review_is_waited_for(lane: Lane) -> None:
    """An approval lets it go on at once; without one it is let go after a week."""
    hints: Any = lane.world.hints
    run = lane.sealed(when="approved")
    other = lane.sealed("hello-2", "one\ndrei\n", when="approved", batch="night-2")
    lane.sealed("hello-3", "one\nvier\n", when="approved", batch="night-3")
    lane.tick()
    assert lane.tick() == []
    reviews.review(lane.world.archive, hints, run, "approved", by="ann", at=AT)
    reviews.review(lane.world.archive, hints, other, "rejected", by="ann", at=AT, comment="no")
    assert lane.tick() == ["hello-1"]
    assert lane.open() == ["hello-1", "hello-3"]
    lane.work()
    lane.tick(7 * 86400)
    assert lane.open() == []


def test_one_of_a_repository_goes_after_the_other(lane: Lane) -> None:
    """So that what is open there can be counted."""
    for number in (1, 2, 3):
        lane.sealed(f"hello-{number}", f"one\n{number}\n", batch=f"night-{number}")
    lane.tick()
    seen = []
    for _ in range(8):
        seen.append(lane.tick())
        lane.work()
    assert [rung for rung in seen if rung] == [["hello-1"], ["hello-2"], ["hello-3"]]


def test_an_hour_takes_no_more_than_its_rate_whoever_leads(lane: Lane) -> None:
    """A new scheduler counts the marks that deliveries left."""
    for number in (1, 2):
        lane.sealed(f"hello-{number}", f"one\n{number}\n", batch=f"night-{number}", rate_per_hour=1)
    lane.tick()
    assert lane.tick() == ["hello-1"]
    lane.work()
    lane.world.hints.drop_lease("scheduler")
    lane.scheduler = lane.lead()
    lane.tick()
    assert [lane.tick() for _ in range(3)] == [[], [], []]
    assert lane.tick(3600) == ["hello-2"]


def test_what_its_forge_asked_to_wait_is_waited(lane: Lane) -> None:
    """The hold is the token's, and ends by itself."""
    lane.sealed()
    lane.world.hints.hold("forge:FORGE", 100)
    lane.tick()
    assert [lane.tick(), lane.tick(40)] == [[], []]
    assert lane.tick(60) == ["hello-1"]


def test_an_unanswered_doorbell_is_rung_again(lane: Lane) -> None:
    """After the time that any doorbell has; not while it may be answered."""
    lane.sealed()
    lane.tick()
    assert lane.tick() == ["hello-1"]
    assert [lane.tick(), lane.tick(30)] == [[], []]
    assert lane.tick(30) == ["hello-1"]


def test_nobody_is_rung_who_does_not_deliver(lane: Lane) -> None:
    """A worker without the lane is none; and one of that lane alone takes no runs."""
    lane.offer("interactive", "batch")
    lane.sealed()
    assert [lane.tick(), lane.tick()] == [[], []]
    lane.offer("deliver")
    assert lane.tick() == ["hello-1"]
    assert lane.scheduler._slots()["main"].total == 0


def test_a_retry_is_delivered_in_the_place_of_what_it_repeats(lane: Lane) -> None:
    """The earlier run, whose review nobody has written yet, is let go."""
    hints: Any = lane.world.hints
    first = lane.sealed(when="approved")
    lane.sealed("hello-2", "one\ndrei\n", ordinal=1, when="approved")
    added = {"v": 1, "by": "ann", "at": AT, "runs": [{"target": "hello", "ordinal": 1, "run": "hello-2"}]}
    lane.world.archive.create(keys.batch_retries("night-1", 0), canonical(added))
    reviews.review(lane.world.archive, hints, first, "approved", by="ann", at=AT)
    lane.tick()
    assert [lane.tick(), lane.tick()] == [[], []]
    assert lane.open() == ["hello-2"]


def test_the_same_work_is_not_delivered_twice(lane: Lane) -> None:
    """Another batch came to another patch for the same work: it is told where the first one is, and no second is
    opened unless somebody asks."""
    locked = {"commit": lane.world.remote.start}
    lane.sealed(repo=locked)
    lane.tick()
    lane.tick()
    assert lane.work() == ["delivered"]
    run = lane.sealed("hello-2", "one\ndrei\n", batch="night-2", repo=locked)
    for name in ("hello-1", "hello-2"):
        work = work_key(Journal(lane.world.archive, name).task())
        assert work is not None
        lane.world.archive.create(keys.work_marker(work, name), b"")
    lane.world.hints.poke("submitted", 2)
    assert [lane.tick(), lane.tick(), lane.tick()] == [[], [], []]
    assert lane.open() == []
    came = lane.world.fold("hello-2")
    assert (came.state, came.url, "hello-1" in came.detail) == ("pr", lane.world.forge.rows[0].url, True)
    hints: Any = lane.world.hints
    reviews.ask(lane.world.archive, hints, Journal(lane.world.archive, "hello-2").task(), run, by="ann", at=AT)
    lane.tick()
    lane.tick()
    assert (lane.work(), len(lane.world.forge.rows)) == (["delivered"], 2)


def test_a_cancelled_batch_is_let_go(lane: Lane) -> None:
    """What is not delivered by then is not; a cancel from before the run ended was the run's."""
    lane.sealed(when="approved")
    lane.tick()
    Control(lane.world.archive, "night-1").put("cancel", by="ann", at=AT)
    lane.world.hints.poke("batch:night-1", 1)
    lane.tick()
    assert lane.open() == []


def test_records_that_cannot_be_read_hide_no_other_run(lane: Lane) -> None:
    """Nothing more is done for that one."""
    lane.sealed()
    lane.sealed("hello-2", "one\ndrei\n", batch="night-2")
    lane.world.archive.create(keys.delivery("hello-1", 0), b"{}")
    lane.tick()
    assert lane.tick() == ["hello-2"]
    assert lane.open() == ["hello-2"]


def test_marks_of_past_days_are_garbage(lane: Lane) -> None:
    """gc removes them with those of the days."""
    mark(lane.world.archive, "hello-1", "FORGE", "2026-10-01T02:00:00+00:00")
    mark(lane.world.archive, "hello-2", "FORGE", AT)
    archive: Any = lane.world.archive
    garbage = collect(archive, keep_s=7 * 86400, now=lane.now, dry_run=False)
    assert garbage.found["day markers"] == ["pushed/2026-10-01T02/"]
    assert [one.run for one in marks(archive, lane.now)] == ["hello-2"]


def test_a_word_is_on_the_patch_that_was_shown(lane: Lane) -> None:
    """Another digest is refused, and so is a word on a run without a patch; the same word twice is one."""
    run = lane.sealed()
    archive = lane.world.archive
    with pytest.raises(ConflictFault):
        reviews.review(archive, None, run, "approved", by="ann", at=AT, patch=digest(b"other")[:8])
    first = reviews.review(archive, None, run, "approved", by="ann", at=AT)
    assert reviews.review(archive, None, run, "approved", by="bob", at=AT) == first
    assert reviews.review(archive, None, run, "rejected", by="bob", at=AT, comment="no").n == 1
    after = read_after(archive, run)
    assert after is not None
    assert (after.review, after.delivery.state) == ("rejected", "none")
    task = Journal(archive, "hello-1").task()
    with pytest.raises(ConflictFault):
        reviews.ask(archive, None, task, run, by="ann", at=AT)
