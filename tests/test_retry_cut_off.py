"""Retries whose writer died behind their announcement: whoever leads the schedulers completes them."""

from __future__ import annotations

from typing import Any

import pytest
from doubles import Died, DiesAt
from runs_made import AT
from test_retry import INFRA, made
from test_tick import World

from scheduler.control import announce
from scheduler.enqueue import Batch
from scheduler.gc import collect
from scheduler.retry import begin, retry, wishes
from scheduler.selection import Selection
from worker.store import keys
from worker.store.archive import Archive
from worker.store.inbox import Control
from worker.store.journal import Journal
from worker.store.members import members


@pytest.fixture
def world(archive: Archive, redis_url: str) -> World:
    made_world = World(archive, redis_url)
    made_world.offer(4)
    return made_world


def cut_off(archive: Archive, at: str) -> tuple[Batch, str]:
    """A cancelled batch of one run, whose retry dies before it writes that; and the id of the new run."""
    one = made(archive, ("cancelled",))
    Control(archive, one.id).put("cancel", by="me", at=AT)
    wished = wishes(archive, [one.id], Selection(states=("cancelled",)))
    with pytest.raises(Died):
        retry(DiesAt(archive, at), one.id, wished, by="ann", at=AT)
    return one, members(archive, one.id)[-1].run


@pytest.mark.parametrize("at", ["/task.json", "open/", "/journal/"])
def test_the_scheduler_writes_what_was_announced(world: World, archive: Archive, at: str) -> None:
    """A retry that was cut off begins when the scheduler lists again, as asked by who announced it; the cancel that
    came before it does not end it, and the marker is gone."""
    world.tick()
    _, run = cut_off(archive, at)
    assert world.tick(59) == []
    assert world.tick(1) == [(run, "batch")]
    begun = Journal(archive, run).load()
    assert (begun.status, begun.submitted_by, begun.control_seen) == ("queued", "ann", 1)
    assert list(archive.list("announced/")) == []


def test_a_retry_without_its_first_segment_is_not_ended_by_an_old_cancel(world: World, archive: Archive) -> None:
    """Also where the scheduler finds it by its marker, between two listings of announcements."""
    world.tick()
    _, run = cut_off(archive, "/journal/")
    announce(world.hints)
    assert world.tick(1) == [(run, "batch")]
    assert world.tick(60) == []
    assert Journal(archive, run).load().status == "queued"


def test_a_retry_in_a_cancelled_batch_is_begun(world: World, archive: Archive) -> None:
    """The scheduler keeps in mind that it has read the cancel of those before it."""
    one = made(archive, ("cancelled",))
    Control(archive, one.id).put("cancel", by="me", at=AT)
    world.tick()
    [again] = retry(archive, one.id, wishes(archive, [one.tasks[0].run], Selection()), by="me", at=AT)
    announce(world.hints)
    assert world.tick(1) == [(again.run, "batch")]


def test_a_cancel_behind_the_announcement_ends_the_retry(world: World, archive: Archive) -> None:
    """It was meant for that, too, though nobody had written it."""
    one, run = cut_off(archive, "/task.json")
    Control(archive, one.id).put("cancel", by="you", at=AT)
    assert world.tick() == []
    sealed = Journal(archive, run).load().sealed
    assert sealed is not None
    assert (sealed.outcome, sealed.detail) == ("cancelled", "cancelled by you")


def test_retries_that_cannot_be_written_stop_no_others(world: World, archive: Archive) -> None:
    """Of a batch whose list of runs is damaged; its marker stays for when it is mended."""
    cut_off(archive, "/task.json")
    bad = made(archive, (INFRA,), key="bad")
    retry(archive, bad.id, wishes(archive, [bad.id], Selection()), by="me", at=AT)
    archive.create(keys.announced(bad.id, 0), b"")
    archive.delete([keys.batch_targets(bad.id)])
    archive.create(keys.batch_targets(bad.id), b"torn")
    assert len(world.tick()) == 2
    assert list(archive.list("announced/")) == [keys.announced(bad.id, 0)]


def test_a_marker_before_its_announcement_is_left_alone(world: World, archive: Archive) -> None:
    """Its writer may be about to announce; gc takes one that never came."""
    one, _ = cut_off(archive, "/retries/")
    world.tick()
    assert list(archive.list("announced/")) == [keys.announced(one.id, 0)]
    garbage = collect(_Aged(archive), keep_s=90 * 86400, now=world.now, dry_run=False)
    assert garbage.found["retry marks"] == [keys.announced(one.id, 0)]


def test_gc_keeps_the_marker_of_what_is_announced(archive: Archive, world: World) -> None:
    """However old it is: the runs are still to be written."""
    one, _ = cut_off(archive, "/task.json")
    assert collect(_Aged(archive), keep_s=1e9, now=world.now, dry_run=False).found["retry marks"] == []
    assert archive.size(keys.announced(one.id, 0)) is not None


def test_a_stranger_s_run_of_that_ordinal_begins_as_it_is(archive: Archive) -> None:
    """No announcement names it, so it has read nothing."""
    one = made(archive, (INFRA,))
    Control(archive, one.id).put("cancel", by="me", at=AT)
    task = one.tasks[0].model_copy(update={"run": "strange", "ordinal": 7})
    begin(archive, task, by="scheduler", at=AT)
    assert Journal(archive, "strange").load().control_seen == 0


class _Aged:
    """The archive, all of whose markers of retries are old."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive, name)

    def aged(self, prefix: str, *, older_than_s: float) -> Any:
        return (
            self._archive.list(prefix)
            if prefix == "announced/"
            else self._archive.aged(prefix, older_than_s=older_than_s)
        )
