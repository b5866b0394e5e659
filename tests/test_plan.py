"""The plan is a pure function: what holds for every input, and the few rules by name."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scheduler.planning.plan import SPARE_DOORBELLS, Bounds, Close, Group, Held, Pool, Ring, Seen, Slots, Wait, plan
from scheduler.planning.turns import PASSED_MAX, Turns
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
        begun=st.booleans(),
        batch=st.sampled_from("pqr"),
        by=st.sampled_from(["ann", "bob"]),
        repo=st.sampled_from(["", "", "x", "y"]),
        account=st.sampled_from(["", "openai"]),
        wave=st.integers(1, 3),
    ),
    max_size=12,
    unique_by=lambda run: run.id,
)
pools = st.builds(lambda total, free: Slots(total, min(free, total)), st.integers(0, 6), st.integers(0, 6))
slots = st.fixed_dictionaries({"main": pools, "solo": pools})
limit = st.none() | st.integers(1, 3)
group = st.builds(
    Group,
    weight=st.integers(1, 5),
    parallel=limit,
    per_repo=limit,
    wave=st.integers(1, 3),
    left=st.integers(0, 9),
    known=st.booleans(),
    tripped=st.sampled_from([False, False, True]),
)
groups = st.dictionaries(st.sampled_from("pqr"), group)
served = st.dictionaries(st.sampled_from("pqr"), st.floats(0, 1e6))
turns = st.fixed_dictionaries(
    {"interactive": st.builds(Turns), "batch": st.builds(Turns, served, st.integers(0, PASSED_MAX))}
)
bounds = st.builds(
    Bounds,
    reserve=st.sampled_from([0.0, 0.3, 0.9]),
    per_account=st.dictionaries(st.just("openai"), st.integers(1, 3)),
)
fleets = st.fixed_dictionaries({"settling": st.booleans(), "groups": groups, "turns": turns, "bounds": bounds})
Fleet = dict[str, Any]


def rung(decisions: list[Ring | Wait | Close]) -> list[Ring]:
    return [decision for decision in decisions if isinstance(decision, Ring)]


@given(runs, slots, fleets)
def test_every_open_run_gets_exactly_one_decision(found: list[Seen], free: dict[Pool, Slots], fleet: Fleet) -> None:
    """Nothing is forgotten, nothing is decided twice, sealed runs are left alone."""
    decisions = plan(NOW, found, free, **fleet)
    assert sorted(decision.run for decision in decisions) == sorted(run.id for run in found if run.status != "sealed")


@given(runs, slots, fleets, st.randoms())
def test_the_order_of_the_input_changes_nothing(
    found: list[Seen], free: dict[Pool, Slots], fleet: Fleet, random: object
) -> None:
    """The same state gives the same plan, whatever order a listing had."""
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert plan(NOW, found, free, **fleet) == plan(NOW, shuffled, free, **fleet)


@given(runs, slots, fleets)
def test_only_what_free_slots_can_take_is_rung(found: list[Seen], free: dict[Pool, Slots], fleet: Fleet) -> None:
    """New rings fit into free slots, and outstanding doorbells never exceed slots + 2."""
    rings = rung(plan(NOW, found, free, **fleet))
    for pool, offered in free.items():
        new = [ring for ring in rings if (ring.lane == "solo") == (pool == "solo")]
        unanswered = [
            run for run in found
            if run.rung_age_s is not None and not run.leased and run.status != "sealed"
            and (run.orphan and run.barren_claims >= 2) == (pool == "solo")
        ]  # fmt: skip
        assert len(new) <= offered.free
        assert not new or len(unanswered) + len(new) <= offered.total + SPARE_DOORBELLS


@given(runs, slots, fleets)
def test_nobody_is_rung_who_must_not_start(found: list[Seen], free: dict[Pool, Slots], fleet: Fleet) -> None:
    """Living attempts, cancelled runs, runs before their time, runs already rung get no doorbell; and what nobody has
    begun gets none before its wave, after its breaker, or while neither is known."""
    by_id = {run.id: run for run in found}
    for ring in rung(plan(NOW, found, free, **fleet)):
        run = by_id[ring.run]
        assert not run.leased
        assert not run.cancelled
        assert not run.blocked
        assert run.held is None
        assert run.rung_age_s is None
        assert run.not_before is None or run.not_before <= NOW
        assert not (fleet["settling"] and run.status == "running")
        group = fleet["groups"].get(run.batch, Group())
        assert run.begun or (run.wave <= group.wave and group.known and not group.tripped)


@given(runs, slots, fleets)
def test_nothing_with_a_living_attempt_is_closed(found: list[Seen], free: dict[Pool, Slots], fleet: Fleet) -> None:
    """Whoever is alive seals itself."""
    leased = {run.id for run in found if run.leased}
    closed = {decision.run for decision in plan(NOW, found, free, **fleet) if isinstance(decision, Close)}
    assert not closed & leased


@given(runs, slots, fleets)
def test_no_limit_is_passed_by_a_ring(found: list[Seen], free: dict[Pool, Slots], fleet: Fleet) -> None:
    """Of a batch, a repository and an account no more are at work than may be, but for those whose attempt died: they
    had their place already. Of the slots that batches leave to people they take none."""
    by_id = {run.id: run for run in found}
    rings = [by_id[ring.run] for ring in rung(plan(NOW, found, free, **fleet))]
    begun = [run for run in rings if not run.orphan]
    busy = [run for run in found if run.active and run.status != "sealed"] + rings
    for run in begun:
        group, most = fleet["groups"].get(run.batch, Group()), fleet["bounds"].per_account.get(run.account)
        assert group.parallel is None or sum(one.batch == run.batch for one in busy) <= group.parallel
        assert not run.repo or group.per_repo is None or sum(one.repo == run.repo for one in busy) <= group.per_repo
        assert most is None or sum(one.account == run.account for one in busy) <= most
    kept = int(fleet["bounds"].reserve * free["main"].total) - sum(run.lane == "interactive" for run in busy)
    if any(run.lane == "batch" for run in begun):
        assert free["main"].free - sum(not (run.orphan and run.barren_claims >= 2) for run in rings) >= kept


@given(runs, slots, fleets)
def test_no_slot_stays_free_while_a_run_waits_for_one(
    found: list[Seen], free: dict[Pool, Slots], fleet: Fleet
) -> None:
    """Were there more slots, and none kept for people, more runs would begin."""
    decisions = plan(NOW, found, free, **fleet)
    more = {pool: Slots(of.total + 20, of.free + 20) for pool, of in free.items()}
    plenty = plan(NOW, found, more, **fleet | {"bounds": replace(fleet["bounds"], reserve=0.0)})
    waits = any(isinstance(one, Wait) and one.why == "slots" for one in decisions)
    assert (len(rung(plenty)) > len(rung(decisions))) == waits


@given(runs, slots, fleets)
def test_inside_a_batch_a_later_run_is_never_preferred(
    found: list[Seen], free: dict[Pool, Slots], fleet: Fleet
) -> None:
    """Of one batch, or one person, whoever waits for a slot is younger than everyone who was rung."""
    by_id = {run.id: run for run in found}
    decisions = plan(NOW, found, free, **fleet)
    for waiting in [by_id[d.run] for d in decisions if isinstance(d, Wait) and d.why == "slots"]:
        for ring in rung(decisions):
            other = by_id[ring.run]
            alike = (other.orphan, other.lane, other.share) == (waiting.orphan, waiting.lane, waiting.share)
            if alike and ring.lane != "solo":
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
