"""Owns the decision which sealed run is delivered when. Pure: no clock, no store, no Redis; refuses to act
(delivering.py does).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from worker.contract.delivered import Readiness
from worker.store.deliveries import HOUR, Mark


@dataclass(frozen=True)
class Wanted:
    """What the decision knows of one sealed run. token: name of the one it is delivered with, "" for none. repo: its
    address. since: when it was sealed. until: when a review is waited for no more. ended: nothing is left to do.
    leased: a deliverer works on it. rung_age_s: age of a doorbell that nobody answered, seconds, None for none.
    aside: it was set aside until then. cancelled: its batch was."""

    run: str
    readiness: Readiness
    rate_per_hour: int
    token: str = ""
    repo: str = ""
    since: str = ""
    until: datetime | None = None
    ended: bool = False
    leased: bool = False
    rung_age_s: float | None = None
    aside: datetime | None = None
    cancelled: bool = False


@dataclass(frozen=True)
class Ring:
    run: str


@dataclass(frozen=True)
class Wait:
    """Nothing to do now, and why: a deliverer is at it, a doorbell is not answered, a person must review the patch,
    the forge or the repository takes no more for now, the hour's are used up, another run of the same repository is
    being delivered, or no worker delivers."""

    run: str
    why: Literal["delivering", "doorbell", "review", "held", "rate", "repository", "workers"]
    until: datetime | None = None


@dataclass(frozen=True)
class Drop:
    """Nothing is left to do for the run, unless somebody asks."""

    run: str
    why: Literal["delivered", "never", "unreviewed", "cancelled"]


Decision = Ring | Wait | Drop


def decide(now: datetime, wanted: Iterable[Wanted], recent: Sequence[Mark], *, free: int) -> list[Decision]:
    """One decision a run, oldest first. recent: what was delivered in the last hour, or is rung to be. free: places
    of workers that deliver."""
    decisions: list[Decision] = []
    waiting = sorted(wanted, key=lambda one: (one.since, one.run))
    busy = {one.repo for one in waiting if one.leased or one.rung_age_s is not None}
    spent = list(recent)
    for one in waiting:
        decision = _without_turn(now, one)
        if decision is None:
            ours = sorted(mark.at for mark in spent if mark.token == one.token and mark.run != one.run)
            if len(ours) >= one.rate_per_hour:
                decision = Wait(one.run, "rate", ours[-one.rate_per_hour] + HOUR)
            elif one.repo in busy:
                decision = Wait(one.run, "repository")
            elif free <= 0:
                decision = Wait(one.run, "workers")
            else:
                decision = Ring(one.run)
                free -= 1
                busy.add(one.repo)
                spent.append(Mark(now, one.token, one.run))
        decisions.append(decision)
    return decisions


def _without_turn(now: datetime, one: Wanted) -> Decision | None:
    """The decision that needs no turn, None when the run wants one."""
    if one.leased:
        return Wait(one.run, "delivering")
    if one.ended:
        return Drop(one.run, "delivered")
    if one.readiness == "never":
        return Drop(one.run, "never")
    if one.cancelled:
        return Drop(one.run, "cancelled")
    if one.readiness == "review":
        if one.until is not None and now >= one.until:
            return Drop(one.run, "unreviewed")
        return Wait(one.run, "review", one.until)
    if one.rung_age_s is not None:
        return Wait(one.run, "doorbell")
    if one.aside is not None and now < one.aside:
        return Wait(one.run, "held", one.aside)
    return None
