"""Owns the decision which run is rung when. Pure: no clock, no store, no Redis; refuses to act.

`plan(now, runs, slots, ...)` gives exactly one decision a run: Ring its doorbell, Wait, or Close it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from worker.contract.events import Failure, OutcomeName
from worker.contract.run import Status

Lane = Literal["interactive", "batch", "solo"]
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
    """A run must not be worked on now. skip: it is closed, and does not wait. until: when that ends by itself."""

    why: Literal["budget", "window"]
    skip: bool = False
    until: datetime | None = None


@dataclass(frozen=True)
class Seen:
    """What the plan knows of one run. leased: a living attempt holds it. cancelled: a cancel waits for it. blocked:
    what it waits for that no time ends (see Mail.blocks). held: it must not begin, or not go on, for now.

    since: UTC ISO time of submit, the order within a lane. rung_age_s: age of a doorbell that nobody answered yet,
    seconds, None when there is none.
    """

    id: str
    status: Status
    since: str = ""
    lane: Literal["interactive", "batch"] = "batch"
    leased: bool = False
    cancelled: bool = False
    blocked: Literal["", "person", "paused", "budget"] = ""
    held: Held | None = None
    barren_claims: int = 0
    not_before: datetime | None = None
    rung_age_s: float | None = None

    @property
    def orphan(self) -> bool:
        """Claimed, not sealed, not given back, and nobody alive holds it."""
        return self.status == "running" and not self.leased


@dataclass(frozen=True)
class Slots:
    """What living workers published: places in all, and free ones."""

    total: int = 0
    free: int = 0


@dataclass(frozen=True)
class Ring:
    run: str
    lane: Lane


@dataclass(frozen=True)
class Wait:
    """Nothing to do now, and why: an attempt is alive, a doorbell is not answered yet, its time has not come, no
    slot is free, Redis was wiped a moment ago, a person must answer, a person paused it, a budget is used up, or its
    window is closed."""

    run: str
    why: Literal["attempt", "doorbell", "not_before", "slots", "settling", "person", "paused", "budget", "window"]
    until: datetime | None = None


@dataclass(frozen=True)
class Close:
    """Seal the run: no attempt is alive and none may start."""

    run: str
    outcome: OutcomeName
    failure: Failure | None = None
    detail: str = ""


Decision = Ring | Wait | Close


def plan(
    now: datetime, runs: Iterable[Seen], slots: Mapping[Pool, Slots], *, settling: bool = False
) -> list[Decision]:
    """One decision for every run that is not sealed, most urgent first.

    settling: Redis was lost a moment ago, so that a missing lease proves nothing: claimed runs wait. The others
    go on, because their journal says that no attempt is alive.
    """
    left = sorted((run for run in runs if run.status != "sealed"), key=_urgency)
    rooms = {pool: _room(pool, left, slots.get(pool, Slots())) for pool in POOLS}
    decisions: list[Decision] = []
    for run in left:
        decision = _without_slots(now, run, settling)
        if decision is None:
            pool = _pool(run)
            if rooms[pool] > 0:
                rooms[pool] -= 1
                decision = Ring(run.id, "solo" if pool == "solo" else run.lane)
            else:
                decision = Wait(run.id, "slots")
        decisions.append(decision)
    return decisions


def _urgency(run: Seen) -> tuple[bool, bool, str, str]:
    """Orphans first (somebody's work stands still), then people, then the batch; oldest first."""
    return (not run.orphan, run.lane != "interactive", run.since, run.id)


def _pool(run: Seen) -> Pool:
    return "solo" if run.orphan and run.barren_claims >= SOLO_AFTER_BARREN_CLAIMS else "main"


def _room(pool: Pool, runs: list[Seen], slots: Slots) -> int:
    """How many more doorbells this pool may be rung now."""
    ages = [run.rung_age_s for run in runs if run.rung_age_s is not None and not run.leased and _pool(run) == pool]
    fresh = sum(age < USUAL_CLAIM_S for age in ages)
    return min(slots.free - fresh, slots.total + SPARE_DOORBELLS - len(ages))


def _without_slots(now: datetime, run: Seen, settling: bool) -> Decision | None:
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
        return Close(run.id, "skipped", detail=run.held.why)
    if run.blocked:
        return Wait(run.id, run.blocked)
    if run.not_before is not None and now < run.not_before:
        return Wait(run.id, "not_before", run.not_before)
    if run.held is not None:
        return Wait(run.id, run.held.why, run.held.until)
    if run.rung_age_s is not None:
        return Wait(run.id, "doorbell")
    return None
