"""The scheduler's loop on a real Redis and a real archive; only the clock and the bell are the test's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from runs_made import claimed, ended, replied

from scheduler.approvals import answer
from scheduler.control import announce, tell
from scheduler.planning.plan import Close
from scheduler.runs import Found
from scheduler.seal import seal
from scheduler.tick import Scheduler
from worker.contract.errors import ConflictFault, HintsFault
from worker.contract.events import Asked, Parked, Steered, Submitted, Yielded
from worker.contract.run import Run
from worker.contract.settings import Settings
from worker.contract.task import Repo, Task
from worker.store import keys
from worker.store.archive import Archive
from worker.store.decisions import decide, read_decision
from worker.store.hints import Hints, WorkerOffer
from worker.store.inbox import Inbox
from worker.store.journal import Journal

SETTINGS = Settings(lease_ttl_s=45, ring_again_s=45, relist_s=60, decision_poll_s=15)
AT = "2026-11-30T02:00:00.000+00:00"


class World:
    """A scheduler, its bell and its clock."""

    def __init__(self, archive: Archive, url: str) -> None:
        self.archive, self.hints, self.url = archive, Hints(url), url
        self.now = datetime(2026, 11, 30, 3, 0, tzinfo=UTC)
        self.rings: list[tuple[str, str]] = []
        self.hints.start_epoch("known")
        self.scheduler = self.another()

    def another(self, url: str | None = None) -> Scheduler:
        hints = self.hints if url is None else Hints(url, socket_timeout_s=0.2)
        return Scheduler(self.archive, hints, lambda *bell: self.rings.append(bell), SETTINGS, now=lambda: self.now)

    def offer(self, free: int, lanes: tuple[str, ...] = ("interactive", "batch")) -> None:
        self.hints.offer(WorkerOffer(lanes[0], lanes, 4, free), ttl_s=600)

    def tick(self, after_s: float = 0) -> list[tuple[str, str]]:
        """One round, after_s later; returns the doorbells it rang."""
        self.now += timedelta(seconds=after_s)
        before = len(self.rings)
        self.scheduler.tick()
        return self.rings[before:]


@pytest.fixture
def world(archive: Archive, redis_url: str) -> World:
    return World(archive, redis_url)


Make = Callable[..., Run]
BATCH = Found("batch", "night-0123456789ab")


def cancel(archive: Archive, hints: Hints | None) -> None:
    """As `dawn cancel a` does."""
    tell(archive, hints, Found("run", "a"), "cancel", by="me", at=AT)


def test_as_many_runs_are_rung_as_slots_are_free(world: World, make_run: Make) -> None:
    """Two free slots, three runs: two doorbells, interactive first, and none again in the next round."""
    make_run("a")
    make_run("b")
    make_run("p", lane="interactive")
    world.offer(2)
    assert world.tick() == [("p", "interactive"), ("a", "batch")]
    assert world.tick(1) == []


def test_an_unanswered_doorbell_is_rung_again(world: World, make_run: Make) -> None:
    """A message lost with a dying worker only delays."""
    make_run("a")
    world.offer(4)
    world.tick()
    assert world.tick(44) == []
    world.hints.answered("a")  # what its time to live does after 45 s
    assert world.tick(1) == [("a", "batch")]


def test_a_run_with_a_lease_is_left_alone_until_the_lease_is_gone(world: World, make_run: Make) -> None:
    """A living attempt is not disturbed; an orphan is rung before queued runs."""
    make_run("orphan", claimed(), replied())
    world.hints.claim("run:orphan", "token", 45)
    world.offer(1)
    assert world.tick() == []
    make_run("queued", at="2020-01-01T00:00:00.000+00:00")
    announce(world.hints)
    world.hints.release("run:orphan", "token")
    assert world.tick(1) == [("orphan", "batch")]


def test_a_submit_is_seen_at_once_when_it_rings(world: World, make_run: Make) -> None:
    """The hint of a submit makes the scheduler list again in the next round."""
    world.offer(4)
    world.tick()
    make_run("a")
    announce(world.hints)
    assert world.tick(0.5) == [("a", "batch")]


def test_a_submit_without_a_hint_is_seen_when_it_lists_again(world: World, make_run: Make) -> None:
    """A lost hint costs relist_s, nothing else."""
    world.offer(4)
    world.tick()
    make_run("a")
    assert world.tick(59) == []
    assert world.tick(1) == [("a", "batch")]


def test_a_cancelled_run_without_an_attempt_is_sealed(world: World, make_run: Make, archive: Archive) -> None:
    """The journal says who cancelled it, and its marker is gone."""
    make_run("a")
    world.tick()
    cancel(archive, world.hints)
    world.tick(1)
    sealed = Journal(archive, "a").load().sealed
    assert sealed is not None
    assert (sealed.outcome, sealed.detail) == ("cancelled", "cancelled by me")
    assert list(archive.list("open/")) == []


def test_a_cancelled_run_with_an_attempt_is_its_attempts_business(
    world: World, make_run: Make, archive: Archive
) -> None:
    """Only a run that nobody holds is sealed by the scheduler."""
    make_run("a", claimed())
    world.hints.claim("run:a", "token", 45)
    cancel(archive, world.hints)
    world.tick()
    assert Journal(archive, "a").load().sealed is None


def test_a_parked_run_that_is_cancelled_without_a_hint_is_found(
    world: World, make_run: Make, archive: Archive
) -> None:
    """Inboxes of waiting runs are read now and then."""
    make_run("a", claimed(), replied(), Parked(waiting="question"))
    world.tick()
    cancel(archive, None)
    world.tick(14)
    assert Journal(archive, "a").load().sealed is None
    world.tick(1)
    assert Journal(archive, "a").load().sealed is not None


ASKED = Asked(call_id="c1", question="may it?", binding="ab" * 32)
UNTIL = "2026-11-30T04:00:00.000+00:00"


@pytest.fixture
def asking(make_run: Make) -> Run:
    """A run that waits for an approval, until an hour after the clock of these tests."""
    return make_run("a", claimed(), replied(), ASKED, Parked(waiting="approval", until=UNTIL))


def test_a_run_that_asked_is_rung_when_it_is_decided(world: World, asking: Run, archive: Archive) -> None:
    """At once with a hint."""
    world.offer(4)
    assert world.tick() == []
    answer(archive, world.hints, "a", "approved", by="me", at=AT)
    assert world.tick(0.5) == [("a", "batch")]


def test_a_decision_without_a_hint_is_found(world: World, asking: Run, archive: Archive) -> None:
    """A lost ring costs at most the time between two patrols."""
    world.offer(4)
    world.tick()
    answer(archive, None, "a", "approved", by="me", at=AT)
    assert world.tick(14) == []
    assert world.tick(1) == [("a", "batch")]


def test_a_new_scheduler_finds_what_was_decided_before_it_came(world: World, asking: Run, archive: Archive) -> None:
    """Its first round looks at every run that waits."""
    answer(archive, None, "a", "approved", by="me", at=AT)
    world.offer(4)
    assert world.tick() == [("a", "batch")]


def test_a_question_that_nobody_answers_expires(world: World, asking: Run, archive: Archive) -> None:
    """The decision says so before the run goes on, so that a late approval meets it."""
    world.offer(4)
    assert world.tick(3600 - 15) == []
    assert read_decision(archive, "a", "c1") is None
    assert world.tick(15) == [("a", "batch")]
    made = decide(archive, "a", ASKED, "approved", by="me", at=AT)
    assert (made.decision, made.by) == ("expired", "scheduler")


def test_a_waiting_run_that_is_cancelled_is_decided_and_sealed(world: World, asking: Run, archive: Archive) -> None:
    """The decision comes first."""
    world.tick()
    cancel(archive, world.hints)
    world.tick(1)
    made = read_decision(archive, "a", "c1")
    sealed = Journal(archive, "a").load().sealed
    assert made is not None
    assert sealed is not None
    assert (made.decision, made.by, sealed.outcome) == ("cancelled", "me", "cancelled")


def test_a_paused_batch_is_not_rung(world: World, make_run: Make, archive: Archive) -> None:
    """A thousand queued runs are not claimed one by one to be parked; unpaused, they go on."""
    make_run("a")
    make_run("b")
    tell(archive, world.hints, BATCH, "pause", by="me", at=AT)
    world.offer(4)
    assert world.tick() == []
    tell(archive, world.hints, BATCH, "unpause", by="me", at=AT)
    assert world.tick(1) == [("a", "batch"), ("b", "batch")]


def test_a_paused_run_is_rung_when_it_is_unpaused_without_a_hint(
    world: World, make_run: Make, archive: Archive
) -> None:
    """Its inbox is looked at now and then; the others go on meanwhile."""
    pause = Steered(n=0, kind="pause", by="me")
    make_run("a", claimed(), pause, Parked(waiting="paused"))
    tell(archive, None, Found("run", "a"), "pause", by="me", at=AT)
    world.offer(4)
    assert world.tick() == []
    tell(archive, None, Found("run", "a"), "unpause", by="me", at=AT)
    assert world.tick(15) == [("a", "batch")]


def test_a_run_of_a_paused_batch_that_is_cancelled_without_a_hint_is_found(
    world: World, make_run: Make, archive: Archive
) -> None:
    """It is queued, but nobody will claim it and find the message."""
    make_run("a")
    tell(archive, None, BATCH, "pause", by="me", at=AT)
    world.tick()
    cancel(archive, None)
    world.tick(14)
    assert Journal(archive, "a").load().sealed is None
    world.tick(1)
    assert Journal(archive, "a").load().sealed is not None


def test_a_cancelled_batch_is_sealed_run_by_run(world: World, make_run: Make, archive: Archive) -> None:
    """One object; each journal says who cancelled the batch."""
    make_run("a")
    make_run("b")
    tell(archive, None, BATCH, "cancel", by="me", at=AT)
    world.tick(15)
    for name in "ab":
        run = Journal(archive, name).load()
        assert run.sealed is not None
        assert (run.sealed.detail, run.control_seen) == ("cancelled by me", 1)


def test_an_orphan_of_a_paused_batch_is_claimed_once_more(world: World, make_run: Make, archive: Archive) -> None:
    """So that its journal says that it stopped, and a janitor may remove what is left of it."""
    make_run("a", claimed(), replied())
    tell(archive, world.hints, BATCH, "pause", by="me", at=AT)
    world.offer(4)
    assert world.tick() == [("a", "batch")]


def test_a_message_after_the_end_is_refused(world: World, make_run: Make, archive: Archive) -> None:
    """The sealer closes the inbox first."""
    make_run("a")
    cancel(archive, world.hints)
    world.tick()
    with pytest.raises(ConflictFault, match="has ended"):
        Inbox(archive, "a").put("message", by="me", at=AT, text="wait")


def test_a_run_that_killed_three_claimers_ends(world: World, make_run: Make, archive: Archive) -> None:
    """Two barren claims go to the solo lane, the third ends the run as infra/worker_lost."""
    run = make_run("p", claimed(), claimed())
    world.offer(4)
    world.offer(1, ("solo",))
    assert world.tick() == [("p", "solo")]
    Journal(archive, "p").append(run, [claimed()], attempt=None, at=AT)
    world.hints.answered("p")
    world.tick(6)
    sealed = Journal(archive, "p").load().sealed
    assert sealed is not None
    assert str(sealed.failure) == "infra/worker_lost"


def test_a_run_given_back_waits_for_its_time(world: World, make_run: Make) -> None:
    """not_before is honoured to the second."""
    later = "2026-11-30T03:00:30.000+00:00"
    make_run("a", claimed(), replied(), Yielded(why="infra", not_before=later))
    world.offer(4)
    assert world.tick() == []
    assert world.tick(29) == []
    assert world.tick(1) == [("a", "batch")]


def test_markers_of_sealed_runs_are_removed(world: World, make_run: Make, archive: Archive) -> None:
    """Whoever sealed it and died before the marker was gone."""
    make_run("a", claimed(), *ended())
    world.tick()
    assert archive.size(keys.open_marker("a")) is None


def test_a_marker_without_a_first_segment_is_completed(world: World, archive: Archive) -> None:
    """A submit that died after the marker is finished by the scheduler."""
    task = Task(run="a", batch="b", target="t", repo=Repo(url="https://git.example.org/a"), commands=("true",))
    whole = Journal(archive, "whole")
    whole.submit(task.model_copy(update={"run": "whole"}), "me", AT)
    archive.create(keys.task("a"), archive.get(keys.task("whole")).replace(b"whole", b"a"))
    archive.create(keys.open_marker("a"), b"")
    world.offer(4)
    assert ("a", "batch") in world.tick()
    [(first, _)] = list(Journal(archive, "a").read())
    assert isinstance(first.event, Submitted)
    assert first.event.by == "scheduler"


def test_a_wiped_redis_seals_and_takes_nothing_over_for_one_lease_time(world: World, make_run: Make) -> None:
    """A missing lease proves nothing while living attempts put theirs back; a queued run may start."""
    make_run("claimed", claimed(), replied())
    world.hints.claim("run:claimed", "token", 45)
    world.offer(4)
    assert world.tick() == []
    world.hints.release("run:claimed", "token")
    with_redis(world).flushall()
    world.offer(4)
    make_run("queued")
    assert world.tick(1) == [("queued", "batch")]
    assert world.tick(44) == []
    assert world.tick(1) == [("claimed", "batch")]


def test_one_scheduler_acts(world: World, make_run: Make) -> None:
    """A second one waits for the lease, and takes over when it is gone."""
    make_run("a")
    second = world.another()
    world.scheduler.tick()
    world.offer(4)
    second.tick()
    assert world.rings == []
    with_redis(world).delete("dawn:lease:scheduler")
    second.tick()
    assert world.rings == [("a", "batch")]


def test_a_run_that_cannot_be_read_stops_nobody(world: World, make_run: Make, archive: Archive) -> None:
    """A broken journal is set aside."""
    make_run("good")
    make_run("bad")
    archive.delete([keys.segment("bad", 0)])
    archive.create(keys.segment("bad", 0), b"torn")
    world.offer(4)
    assert world.tick() == [("good", "batch")]


def test_a_torn_message_stops_nobody(world: World, make_run: Make, archive: Archive) -> None:
    """A run whose inbox cannot be read is set aside, the others go on."""
    make_run("bad")
    make_run("good")
    archive.create(keys.inbox("bad", 0), b"torn")
    world.hints.poke("run:bad", 0)
    world.offer(4)
    assert world.tick() == [("good", "batch")]


def test_redis_away_is_a_fault_of_one_round(world: World, make_run: Make, crashing_valkey: Any) -> None:
    """The round fails, the next one after its return goes on."""
    server = crashing_valkey
    url = f"unix://{server.folder / 'valkey.sock'}"
    make_run("a")
    world.scheduler = world.another(url)
    Hints(url).offer(WorkerOffer("w", ("batch",), 4, 4), ttl_s=600)
    server.kill()
    with pytest.raises(HintsFault):
        world.tick()
    server.start()
    assert world.tick(1) == [("a", "batch")]


def test_a_claim_that_came_first_is_not_sealed_over(make_run: Make, archive: Archive) -> None:
    """The journal's next number is the fence: the scheduler keeps its hands off."""
    stale = make_run("a")
    Journal(archive, "a").append(stale, [claimed()], attempt=None, at=AT)
    after = seal(archive, stale, Close("a", "cancelled"), at=AT)
    assert after.sealed is None
    assert after.claims == 1


def test_what_was_said_before_the_end_is_in_the_journal(make_run: Make, archive: Archive) -> None:
    """Messages that won against the seal are consumed first."""
    run = make_run("a")
    Inbox(archive, "a").put("message", by="me", at=AT, text="mind the tests")
    after = seal(archive, run, Close("a", "cancelled"), at=AT)
    assert after.inbox_seen == 1
    assert after.sealed is not None


def with_redis(world: World) -> redis.Redis:
    return redis.Redis.from_url(world.url)


@pytest.mark.parametrize("epoch", ["nonsense", "2026-11-30T02:00:00", "9999-12-31T23:59:59+00:00"])
def test_an_epoch_that_makes_no_sense_holds_nobody_up(world: World, make_run: Make, epoch: str) -> None:
    """A clock that ran ahead, or a stranger, wrote it: an orphan goes on after one lease time at most."""
    make_run("a", claimed())
    world.offer(4)
    world.hints.start_epoch(epoch)
    world.tick()
    assert world.rings == [("a", "batch")] or world.tick(after_s=46) == [("a", "batch")]
