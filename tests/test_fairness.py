"""Batches and people take turns at slots: shares over time, and that nobody waits for ever."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.planning.plan import Bounds, Group, Ring, Seen, Slots, Wait, plan, usage
from scheduler.planning.turns import Turns

EPOCH = datetime(2026, 11, 30, tzinfo=UTC)


@dataclass(frozen=True)
class Batch:
    """weight; how long each of its runs takes, seconds; when it was submitted, and how many runs it has, seconds."""

    weight: int = 1
    takes_s: int = 5
    begins_s: int = 0
    runs: int = 10**9
    parallel: int | None = None


class Night:
    """So many slots, and batches that want more than there is; the clock goes by seconds, and the plan is asked as
    the scheduler asks it. had: batch -> seconds of slots. first: batch -> when its first run began."""

    def __init__(self, slots: int, batches: dict[str, Batch]) -> None:
        self.slots, self.batches = slots, batches
        self.had: Counter[str] = Counter()
        self.first: dict[str, int] = {}
        self._begun: Counter[str] = Counter()
        self._busy: list[tuple[Seen, int]] = []
        self._turns: dict[str, Turns] = {}
        self._clock = count()

    def play(self, seconds: int) -> None:
        groups = {name: Group(batch.weight, batch.parallel) for name, batch in self.batches.items()}
        for now_s in islice(self._clock, seconds):
            self._busy = [(run, ends_s) for run, ends_s in self._busy if ends_s > now_s]
            seen = [run for run, _ in self._busy] + [
                self._next(name, n)
                for name, batch in self.batches.items()
                if now_s >= batch.begins_s
                for n in range(min(batch.runs - self._begun[name], max(1, self.slots - len(self._busy))))
            ]
            free = {"main": Slots(self.slots, self.slots - len(self._busy))}
            decisions = plan(EPOCH + timedelta(seconds=now_s), seen, free, groups=groups, turns=self._turns)  # type: ignore[arg-type]
            for decision in decisions:
                if isinstance(decision, Ring):
                    self._begin(decision.run.split("-")[0], now_s)
            used = usage(seen, decisions, groups)["batch"]
            self._turns = {"batch": self._turns.get("batch", Turns()).after(1, used.using, used.wanting)}
            self.had.update(run.batch for run, _ in self._busy)

    def _next(self, batch: str, ahead: int) -> Seen:
        number = self._begun[batch] + ahead
        return Seen(f"{batch}-{number:06d}", "queued", since=f"{self.batches[batch].begins_s:09d}", batch=batch)

    def _begin(self, batch: str, now_s: int) -> None:
        run = replace(self._next(batch, 0), leased=True, status="running")
        self._busy.append((run, now_s + self.batches[batch].takes_s))
        self._begun[batch] += 1
        self.first.setdefault(batch, now_s)


batches = st.builds(Batch, weight=st.integers(1, 5), takes_s=st.integers(1, 20))


@settings(max_examples=6)
@given(st.integers(1, 5), st.lists(batches, min_size=2, max_size=4))
def test_shares_of_slot_time_come_to_the_weights(slots: int, chosen: list[Batch]) -> None:
    """Whatever their runs take, and however few slots there are."""
    night = Night(slots, {f"b{n}": batch for n, batch in enumerate(chosen)})
    night.play(800)
    weights = sum(batch.weight for batch in chosen)
    for name, batch in night.batches.items():
        share, due = night.had[name] / (800 * slots), batch.weight / weights
        assert share == pytest.approx(due, abs=0.12)


@settings(max_examples=8)
@given(st.integers(1, 4), st.lists(batches, min_size=1, max_size=4), st.integers(0, 100))
def test_nobody_waits_for_ever(slots: int, others: list[Batch], begins_s: int) -> None:
    """A batch that comes later, of the least weight, begins when the first slot is free that it wants more than
    others: nobody's long wait is passed by others' short runs."""
    late = Batch(weight=1, takes_s=20, begins_s=begins_s)
    night = Night(slots, {f"b{n}": batch for n, batch in enumerate(others)} | {"late": late})
    night.play(begins_s + 200)
    assert night.first["late"] - begins_s <= 60


def test_who_slept_has_saved_nothing() -> None:
    """A batch that comes late has its share from then on, and not what others had before."""
    night = Night(4, {"early": Batch(), "late": Batch(begins_s=500)})
    night.play(500)
    had = night.had["early"]
    night.play(300)
    assert night.had["early"] - had == pytest.approx(600, rel=0.15)


def test_what_a_batch_leaves_others_have() -> None:
    """One that may have one run at a time keeps its place, and no slot stays free."""
    night = Night(4, {"narrow": Batch(weight=100, parallel=1), "wide": Batch()})
    night.play(200)
    assert night.had["narrow"] == pytest.approx(200, abs=8)
    assert night.had["wide"] == pytest.approx(600, abs=8)


def test_people_take_turns_too() -> None:
    """One who asks for ten runs does not keep another waiting until they are done."""
    many = [Seen(f"a{n}", "queued", since="1", lane="interactive", by="ann", batch=f"x{n}") for n in range(10)]
    one = Seen("b", "queued", since="2", lane="interactive", by="bob", batch="y")
    decisions = plan(EPOCH, [*many, one], {"main": Slots(2, 2)})
    assert [decision for decision in decisions if isinstance(decision, Ring)] == [
        Ring("a0", "interactive"),
        Ring("b", "interactive"),
    ]


def test_batches_leave_people_their_share() -> None:
    """A tenth of ten slots is one; of nine it is none."""
    queued = [Seen(f"r{n}", "queued", batch="b") for n in range(12)]
    person = Seen("p", "queued", lane="interactive", by="ann")
    for total, begun in ((10, 9), (9, 9)):
        decisions = plan(EPOCH, queued, {"main": Slots(total, total)}, bounds=Bounds(reserve=0.1))
        assert sum(isinstance(decision, Ring) for decision in decisions) == begun
    decisions = plan(EPOCH, [*queued, person], {"main": Slots(10, 1)}, bounds=Bounds(reserve=0.1))
    assert [decision.run for decision in decisions if isinstance(decision, Ring)] == ["p"]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), min_size=1, max_size=15))
def test_a_batch_has_the_slot_after_twenty_that_people_took(rounds: list[tuple[int, int]]) -> None:
    """F28: however many people come, and however many slots are free when. rounds: both of each plan. Whoever comes
    before that goes before the batch, which has the slots that nobody else wants."""
    turns: dict[str, Turns] = {}
    waiting, in_a_row, begun = 0, 0, 0
    for come, free in rounds:
        waiting += come
        people = [Seen(f"p{n}", "queued", lane="interactive", by="ann") for n in range(waiting)]
        batch = [Seen(f"b{n}", "queued", batch="night") for n in range(begun, begun + 50)]
        decisions = plan(EPOCH, [*people, *batch], {"main": Slots(50, free)}, turns=turns)
        rings = Counter(one.lane for one in decisions if isinstance(one, Ring))
        expected: Counter[str] = Counter()
        for _ in range(free):
            lane = "interactive" if waiting and in_a_row < 20 else "batch"
            in_a_row = in_a_row + 1 if lane == "interactive" else 0
            waiting -= lane == "interactive"
            expected[lane] += 1
        assert rings == expected
        begun += rings["batch"]
        used = usage([*people, *batch], decisions, {})
        turns = {
            lane: turns.get(lane, Turns()).after(1, of.using, of.wanting, of.passed) for lane, of in used.items()
        }


@pytest.mark.parametrize(
    ("group", "bounds", "why"),
    [
        (Group(parallel=1), Bounds(), "parallel"),
        (Group(per_repo=1), Bounds(), "repository"),
        (Group(), Bounds(per_account={"openai": 1}), "account"),
        (Group(wave=0, left=3), Bounds(), "wave"),
        (Group(known=False), Bounds(), "settling"),
    ],
)
def test_a_run_says_which_limit_it_waits_for(group: Group, bounds: Bounds, why: str) -> None:
    """Slots are free, and another run is at work."""
    busy = Seen("busy", "running", leased=True, begun=True, batch="b", repo="x", account="openai")
    next_one = Seen("next", "queued", batch="b", repo="x", account="openai")
    decisions = plan(EPOCH, [busy, next_one], {"main": Slots(4, 3)}, groups={"b": group}, bounds=bounds)
    assert decisions == [Wait("busy", "attempt"), Wait("next", why, left=group.left)]  # type: ignore[arg-type]
