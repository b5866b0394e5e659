"""The plan is a pure function: what holds for every input, and the few rules by name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from scheduler.plan import SPARE_DOORBELLS, Close, Held, Pool, Ring, Seen, Slots, Wait, plan
from worker.contract.events import Failure

NOW = datetime(2026, 11, 30, 2, 0, tzinfo=UTC)

runs = st.lists(
    st.builds(
        Seen,
        id=st.text("abcdef", min_size=1, max_size=4),
        status=st.sampled_from(["queued", "running", "waiting", "sealed"]),
        since=st.sampled_from(["2026-11-29T01", "2026-11-29T02", "2026-11-29T03"]),
        lane=st.sampled_from(["interactive", "batch"]),
        leased=st.booleans(),
        cancelled=st.booleans(),
        blocked=st.sampled_from(["", "", "person", "paused", "budget"]),
        held=st.sampled_from([None, None, Held("budget"), Held("budget", skip=True), Held("window", until=NOW)]),
        barren_claims=st.integers(0, 4),
        not_before=st.none() | st.sampled_from([NOW - timedelta(seconds=1), NOW, NOW + timedelta(seconds=1)]),
        rung_age_s=st.none() | st.sampled_from([0.0, 4.0, 6.0, 44.0]),
    ),
    max_size=12,
    unique_by=lambda run: run.id,
)
pools = st.builds(lambda total, free: Slots(total, min(free, total)), st.integers(0, 6), st.integers(0, 6))
slots = st.fixed_dictionaries({"main": pools, "solo": pools})


def rung(decisions: list[Ring | Wait | Close]) -> list[Ring]:
    return [decision for decision in decisions if isinstance(decision, Ring)]


@given(runs, slots, st.booleans())
def test_every_open_run_gets_exactly_one_decision(found: list[Seen], free: dict[Pool, Slots], settling: bool) -> None:
    """Nothing is forgotten, nothing is decided twice, sealed runs are left alone."""
    decisions = plan(NOW, found, free, settling=settling)
    assert sorted(decision.run for decision in decisions) == sorted(run.id for run in found if run.status != "sealed")


@given(runs, slots, st.booleans(), st.randoms())
def test_the_order_of_the_input_changes_nothing(
    found: list[Seen], free: dict[Pool, Slots], settling: bool, random: object
) -> None:
    """The same state gives the same plan, whatever order a listing had."""
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert plan(NOW, found, free, settling=settling) == plan(NOW, shuffled, free, settling=settling)


@given(runs, slots, st.booleans())
def test_only_what_free_slots_can_take_is_rung(found: list[Seen], free: dict[Pool, Slots], settling: bool) -> None:
    """New rings fit into free slots, and outstanding doorbells never exceed slots + 2."""
    rings = rung(plan(NOW, found, free, settling=settling))
    for pool, offered in free.items():
        new = [ring for ring in rings if (ring.lane == "solo") == (pool == "solo")]
        unanswered = [
            run for run in found
            if run.rung_age_s is not None and not run.leased and run.status != "sealed"
            and (run.orphan and run.barren_claims >= 2) == (pool == "solo")
        ]  # fmt: skip
        assert len(new) <= offered.free
        assert not new or len(unanswered) + len(new) <= offered.total + SPARE_DOORBELLS


@given(runs, slots, st.booleans())
def test_nobody_is_rung_who_must_not_start(found: list[Seen], free: dict[Pool, Slots], settling: bool) -> None:
    """Living attempts, cancelled runs, runs before their time and runs already rung get no doorbell."""
    by_id = {run.id: run for run in found}
    for ring in rung(plan(NOW, found, free, settling=settling)):
        run = by_id[ring.run]
        assert not run.leased
        assert not run.cancelled
        assert not run.blocked
        assert run.held is None
        assert run.rung_age_s is None
        assert run.not_before is None or run.not_before <= NOW
        assert not (settling and run.status == "running")


@given(runs, slots, st.booleans())
def test_nothing_with_a_living_attempt_is_closed(found: list[Seen], free: dict[Pool, Slots], settling: bool) -> None:
    """Whoever is alive seals itself."""
    leased = {run.id for run in found if run.leased}
    closed = {decision.run for decision in plan(NOW, found, free, settling=settling) if isinstance(decision, Close)}
    assert not closed & leased


@given(runs, slots)
def test_a_later_run_is_never_preferred(found: list[Seen], free: dict[Pool, Slots]) -> None:
    """In a pool and class, whoever waits for a slot is younger than everyone who was rung."""
    by_id = {run.id: run for run in found}
    decisions = plan(NOW, found, free)
    for waiting in [by_id[d.run] for d in decisions if isinstance(d, Wait) and d.why == "slots"]:
        for ring in rung(decisions):
            other = by_id[ring.run]
            if (other.orphan, other.lane, ring.lane == "solo") == (waiting.orphan, waiting.lane, False):
                assert (other.since, other.id) <= (waiting.since, waiting.id) or waiting.barren_claims >= 2


def decide(*found: Seen, free: int = 1, solo: int = 0, settling: bool = False) -> list[Ring | Wait | Close]:
    return plan(NOW, found, {"main": Slots(4, free), "solo": Slots(1, solo)}, settling=settling)


def test_an_orphan_goes_first() -> None:
    """A run whose attempt died stands still, so it is before even interactive ones."""
    orphan = Seen("late", "running", since="9")
    assert decide(Seen("person", "queued", lane="interactive"), orphan)[0] == Ring("late", "batch")


def test_a_person_goes_before_a_batch() -> None:
    """An interactive run takes the next slot."""
    decisions = decide(Seen("old", "queued", since="1"), Seen("new", "queued", since="2", lane="interactive"))
    assert decisions == [Ring("new", "interactive"), Wait("old", "slots")]


def test_two_barren_claims_lead_to_the_solo_lane() -> None:
    """A run that may kill its worker is tried where it takes nobody with it."""
    poison = Seen("p", "running", barren_claims=2)
    assert decide(poison, solo=1) == [Ring("p", "solo")]
    assert decide(poison, free=4, solo=0) == [Wait("p", "slots")]


def test_three_barren_claims_end_a_run() -> None:
    """The third attempt that died without a step was the last."""
    [closed] = decide(Seen("p", "running", barren_claims=3))
    assert isinstance(closed, Close)
    assert closed.failure is not None
    assert str(closed.failure) == str(Failure(cls="infra", reason="worker_lost"))


def test_a_doorbell_lost_on_the_way_does_not_keep_a_slot_for_long() -> None:
    """After the usual time of a claim the next run is rung, while the lost one is waited for."""
    lost = Seen("lost", "queued", since="1", rung_age_s=6.0)
    assert decide(lost, Seen("next", "queued", since="2")) == [Wait("lost", "doorbell"), Ring("next", "batch")]


def test_a_wiped_redis_is_no_proof_of_a_death() -> None:
    """While leases come back, claimed runs wait; a run that nobody holds by its journal may start."""
    decisions = decide(Seen("claimed", "running"), Seen("queued", "queued"), settling=True)
    assert decisions == [Wait("claimed", "settling"), Ring("queued", "batch")]


def test_a_parked_run_waits_for_its_time() -> None:
    """What no time ends is waited for; with an end it is rung when that has come."""
    assert decide(Seen("p", "waiting", blocked="person")) == [Wait("p", "person")]
    assert decide(Seen("p", "queued", blocked="paused")) == [Wait("p", "paused")]
    later = NOW + timedelta(hours=1)
    assert decide(Seen("p", "waiting", not_before=later)) == [Wait("p", "not_before", later)]
    assert decide(Seen("p", "waiting", not_before=NOW)) == [Ring("p", "batch")]
