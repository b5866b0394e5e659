"""Owns the decision which run is rung when, over many batches. Pure: no clock, no store, no Redis; refuses to act.

`plan(now, runs, slots, ...)` gives exactly one decision a run: Ring its doorbell, Wait, or Close it.

Orphans go first, because somebody's work stands still, then people, then batches. Among people, and among batches,
it goes by turns (turns.py); inside a batch, and of one person, by age. Where batches wait, the slot after PASSED_MAX
that people took in a row is theirs. What is begun is held back by limits alone: waves and the breaker are for what
nobody has begun.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

from scheduler.planning.turns import PASSED_MAX, Turns
from worker.contract.events import Failure, OutcomeName
from worker.contract.run import Status

_Shared = Literal["interactive", "batch"]
Lane = Literal[_Shared, "solo"]
Pool = Literal["main", "solo"]
"""main workers take the lanes interactive and batch; a process of concurrency one beside them takes solo."""
POOLS: Final[tuple[Pool, ...]] = ("main", "solo")

SPARE_DOORBELLS: Final = 2
"""Outstanding doorbells never exceed slots + 2."""
USUAL_CLAIM_S: Final = 5.0
"""A doorbell this old that nobody answered no longer keeps a free slot from the next run."""
SOLO_AFTER_BARREN_CLAIMS: Final = 2
LOST_AFTER_BARREN_CLAIMS: Final = 3


@dataclass(frozen=True)
class Held:
    """A run must not be worked on now. skip: it does not wait, and ends: skipped, or cancelled where it was begun.
    until: when that ends by itself."""

    why: Literal["budget", "window"]
    skip: bool = False
    until: datetime | None = None


@dataclass(frozen=True)
class Seen:
    """What the plan knows of one run. leased: a living attempt holds it. cancelled: a cancel waits for it. blocked:
    what it waits for that no time ends (see Mail.blocks). begun: somebody claimed it once. held: it must not begin,
    or not go on, for now.

    since: UTC ISO time of submit, the order within a lane. rung_age_s: age of a doorbell that nobody answered yet,
    seconds, None when there is none. by: who submitted it. repo: where its code comes
    from, "" where that may be worked on by any number of runs. account: of its model's provider, "" for none. wave:
    of its target.
    """

    id: str
    status: Status
    since: str = ""
    lane: Literal["interactive", "batch"] = "batch"
    leased: bool = False
    cancelled: bool = False
    blocked: Literal["", "person", "paused", "budget"] = ""
    begun: bool = False
    held: Held | None = None
    barren_claims: int = 0
    not_before: datetime | None = None
    rung_age_s: float | None = None
    batch: str = ""
    by: str = ""
    repo: str = ""
    account: str = ""
    wave: int = 1

    @property
    def orphan(self) -> bool:
        """Claimed, not sealed, not given back, and nobody alive holds it."""
        return self.status == "running" and not self.leased

    @property
    def active(self) -> bool:
        """It holds a slot, or will when its doorbell is heard."""
        return self.leased or self.rung_age_s is not None

    @property
    def share(self) -> str:
        """Who takes turns: a person where people wait, a batch elsewhere."""
        return self.by if self.lane == "interactive" else self.batch


@dataclass(frozen=True)
class Group:
    """What the runs of a batch have in common. weight: how many turns it has for one of another's. parallel: how many
    of its runs may be worked on at a time; per_repo: how many of any batch on a repository, while one of its begins
    there. wave: of those that may begin now; left: runs of it, and of those before, that have not ended. known:
    whether all that ended was looked at, on which waves and breaker depend. tripped: too many have failed."""

    weight: int = 1
    parallel: int | None = None
    per_repo: int | None = None
    wave: int = 1
    left: int = 0
    known: bool = True
    tripped: bool = False


@dataclass(frozen=True)
class Bounds:
    """Of the deployment. reserve: share of the slots that batches leave to people, rounded down. per_account: runs of
    a provider's account that are worked on at a time."""

    reserve: float = 0.0
    per_account: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Slots:
    """What living workers published: places in all, and free ones."""

    total: int = 0
    free: int = 0


@dataclass(frozen=True)
class Ring:
    run: str
    lane: Lane


Limit = Literal["parallel", "repository", "account"]
Why = (
    Literal["attempt", "doorbell", "not_before", "slots", "settling", "person", "paused", "budget", "window", "wave"]
    | Limit
)
"""Nothing to do now: an attempt is alive, a doorbell is not answered yet, its time has not come, no slot is free,
the scheduler or Redis is new and it does not know enough, a person must answer, a person paused it, a budget is used
up, its window is closed, a wave before has not ended. Of a Limit: as many runs as may be are at work in its batch, on
its repository, for its provider's account."""


@dataclass(frozen=True)
class Wait:
    """until: when that ends by itself. left: runs that must end first."""

    run: str
    why: Why
    until: datetime | None = None
    left: int = 0


@dataclass(frozen=True)
class Close:
    """Seal the run: no attempt is alive and none may start."""

    run: str
    outcome: OutcomeName
    failure: Failure | None = None
    detail: str = ""


Decision = Ring | Wait | Close
NO_TURNS: Final[Mapping[str, Turns]] = {}
ALONE: Final = Group()


def plan(
    now: datetime,
    runs: Iterable[Seen],
    slots: Mapping[Pool, Slots],
    *,
    settling: bool = False,
    groups: Mapping[str, Group] | None = None,
    turns: Mapping[str, Turns] = NO_TURNS,
    bounds: Bounds = Bounds(),
) -> list[Decision]:
    """One decision for every run that is not sealed, most urgent first.

    settling: Redis was lost a moment ago, so that a missing lease proves nothing: claimed runs wait. The others
    go on, because their journal says that no attempt is alive. groups: by batch; turns: by lane.
    """
    left = sorted((run for run in runs if run.status != "sealed"), key=_urgency)
    table = _Table(left, slots, groups or {}, turns, bounds)
    decided = {run.id: _without_slots(now, run, table.group(run), settling) for run in left}
    wanting = [run for run in left if decided[run.id] is None]
    for run in (run for run in wanting if run.orphan):
        decided[run.id] = table.orphan(run)
    for decision in table.in_turn([run for run in wanting if not run.orphan]):
        decided[decision.run] = decision
    return [decision for decision in decided.values() if decision is not None]


@dataclass(frozen=True)
class Usage:
    """Of a lane, from one plan to the next. using: share -> slots that it holds, by its weight. wanting: shares that
    could use one more. passed: slots that others took before it, less those that it was given for that; None where
    it waits for none."""

    using: Mapping[str, float]
    wanting: frozenset[str]
    passed: int | None = None


def usage(runs: Iterable[Seen], decisions: Iterable[Decision], groups: Mapping[str, Group]) -> dict[str, Usage]:
    """What comes of a plan's decisions, by lane."""
    using: dict[str, dict[str, float]] = {"interactive": {}, "batch": {}}
    wanting: dict[str, set[str]] = {"interactive": set(), "batch": set()}
    rung, waits = Counter[str](), False
    made = {decision.run: decision for decision in decisions}
    for run in runs:
        decision = made.get(run.id)
        if run.active or isinstance(decision, Ring):
            held = using[run.lane]
            held[run.share] = held.get(run.share, 0.0) + 1 / weight(run, groups.get(run.batch, ALONE))
        if isinstance(decision, Ring) or (isinstance(decision, Wait) and decision.why == "slots"):
            wanting[run.lane].add(run.share)
            rung[run.lane] += isinstance(decision, Ring) and not run.orphan
            waits = waits or (run.lane == "batch" and isinstance(decision, Wait))
    passed = rung["interactive"] - PASSED_MAX * rung["batch"] if waits else None
    return {lane: Usage(using[lane], frozenset(wanting[lane]), passed if lane == "batch" else None) for lane in using}


class _Table:
    """Of one plan: the places that are left, and who holds how many."""

    def __init__(
        self,
        runs: list[Seen],
        slots: Mapping[Pool, Slots],
        groups: Mapping[str, Group],
        turns: Mapping[str, Turns],
        bounds: Bounds,
    ) -> None:
        self._groups, self._turns, self._bounds = groups, turns, bounds
        self._rooms = {pool: _room(pool, runs, slots.get(pool, Slots())) for pool in POOLS}
        self._held: Counter[tuple[str, str]] = Counter()
        self._reserve = int(bounds.reserve * slots.get("main", Slots()).total)
        for run in runs:
            if run.active:
                self._count(run)

    def group(self, run: Seen) -> Group:
        return self._groups.get(run.batch, ALONE)

    def orphan(self, run: Seen) -> Decision:
        """Limits and turns are no matter: it had its place already."""
        pool = _pool(run)
        if self._rooms[pool] <= 0:
            return Wait(run.id, "slots")
        self._rooms[pool] -= 1
        self._count(run)
        return Ring(run.id, "solo" if pool == "solo" else run.lane)

    def in_turn(self, wanting: list[Seen]) -> Iterator[Decision]:
        """A decision for each of these, who are in the order of their age."""
        lanes: dict[_Shared, dict[str, list[Seen]]] = {"interactive": {}, "batch": {}}
        for run in reversed(wanting):
            lanes[run.lane].setdefault(run.share, []).append(run)  # the oldest last
        passed = self._turns.get("batch", Turns()).passed
        while True:
            for queues in lanes.values():
                yield from self._kept_back(queues)
            lane: _Shared = "interactive" if lanes["interactive"] else "batch"
            if lanes["batch"] and passed >= PASSED_MAX and self._free("batch"):
                lane = "batch"
            if not lanes[lane] or not self._free(lane):
                break
            turns, queues = self._turns.get(lane, Turns()), lanes[lane]
            share = min(queues, key=lambda share: self._behind(turns, queues[share][-1]))
            run = queues[share].pop()
            passed = passed + 1 if lane == "interactive" and lanes["batch"] else 0
            self._rooms["main"] -= 1
            self._count(run)
            yield Ring(run.id, lane)
        yield from (Wait(run.id, "slots") for queues in lanes.values() for queue in queues.values() for run in queue)

    def _kept_back(self, queues: dict[str, list[Seen]]) -> Iterator[Decision]:
        """Takes off whoever a limit keeps back, until the first of each queue could go."""
        for share, queue in list(queues.items()):
            while queue and (why := self._full(queue[-1])) is not None:
                yield Wait(queue.pop().id, why)
            if not queue:
                del queues[share]

    def _behind(self, turns: Turns, oldest: Seen) -> tuple[float, str, str]:
        using = self._held[oldest.lane, oldest.share] / weight(oldest, self.group(oldest))
        return turns.behind(oldest.share, using), oldest.since, oldest.id

    def _free(self, lane: _Shared) -> bool:
        kept = max(0, self._reserve - self._held["lane", "interactive"]) if lane == "batch" else 0
        return self._rooms["main"] > kept

    def _full(self, run: Seen) -> Limit | None:
        """Which limit keeps the run from beginning, or going on."""
        group = self.group(run)
        if group.parallel is not None and self._held["batch of", run.batch] >= group.parallel:
            return "parallel"
        if run.repo and group.per_repo is not None and self._held["repo", run.repo] >= group.per_repo:
            return "repository"
        most = self._bounds.per_account.get(run.account)
        return "account" if most is not None and self._held["account", run.account] >= most else None

    def _count(self, run: Seen) -> None:
        for what in (
            (run.lane, run.share), ("lane", run.lane), ("batch of", run.batch), ("repo", run.repo),
            ("account", run.account),
        ):  # fmt: skip
            self._held[what] += 1


def closes(run: Seen, group: Group) -> bool:
    """Whether it is to be closed, as others of its batch are that were not begun."""
    return not run.begun and (run.cancelled or group.tripped or (run.held is not None and run.held.skip))


def weight(run: Seen, group: Group) -> int:
    """Of the run's share: people have all the same."""
    return 1 if run.lane == "interactive" else group.weight


def _urgency(run: Seen) -> tuple[bool, bool, str, str]:
    """Orphans, then people, then batches; oldest first."""
    return (not run.orphan, run.lane != "interactive", run.since, run.id)


def _pool(run: Seen) -> Pool:
    return "solo" if run.orphan and run.barren_claims >= SOLO_AFTER_BARREN_CLAIMS else "main"


def _room(pool: Pool, runs: list[Seen], slots: Slots) -> int:
    """How many more doorbells this pool may be rung now."""
    ages = [run.rung_age_s for run in runs if run.rung_age_s is not None and not run.leased and _pool(run) == pool]
    fresh = sum(age < USUAL_CLAIM_S for age in ages)
    return min(slots.free - fresh, slots.total + SPARE_DOORBELLS - len(ages))


def _without_slots(now: datetime, run: Seen, group: Group, settling: bool) -> Decision | None:
    """The decision that needs no free slot, None when the run wants one."""
    if run.leased:
        return Wait(run.id, "attempt")
    if run.orphan and settling:
        return Wait(run.id, "settling")
    if run.cancelled:
        return Close(run.id, "cancelled")
    if run.orphan and run.barren_claims >= LOST_AFTER_BARREN_CLAIMS:
        detail = f"{run.barren_claims} attempts in a row ended without a step"
        return Close(run.id, "failed", Failure(cls="infra", reason="worker_lost", detail=detail))
    if run.held is not None and run.held.skip:
        return Close(run.id, "cancelled" if run.begun else "skipped", detail=run.held.why)
    if not run.begun and group.tripped:
        return Close(run.id, "skipped", detail="breaker")
    if run.blocked:
        return Wait(run.id, run.blocked)
    if run.not_before is not None and now < run.not_before:
        return Wait(run.id, "not_before", run.not_before)
    if run.held is not None:
        return Wait(run.id, run.held.why, run.held.until)
    if run.rung_age_s is not None:
        return Wait(run.id, "doorbell")
    if not run.begun and not group.known:
        return Wait(run.id, "settling")
    if not run.begun and run.wave > group.wave:
        return Wait(run.id, "wave", left=group.left)
    return None
