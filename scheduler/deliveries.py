"""Owns the decision which sealed run is delivered when, and the care for those that wait for it. Refuses to push, and
to ask a forge: a worker that holds the token does, when its doorbell rings.

`decide` is pure: the time, the runs, what was delivered in the last hour. `Deliveries` feeds and obeys it for the
scheduler's loop, and says of which runs nothing is left to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

import structlog

from scheduler.runs import standing, views
from worker.contract.delivered import (
    Delivered,
    Readiness,
    accounts,
    delivered,
    delivery_of,
    readiness,
    review_state,
    review_until,
    token_of,
)
from worker.contract.delivery import Deliver
from worker.contract.errors import IntegrityFault
from worker.contract.run import Run
from worker.contract.settings import Settings
from worker.contract.task import Task
from worker.store.archive import Archive
from worker.store.deliveries import HOUR, Mark, marks, read_deliveries, read_reviews
from worker.store.hints import Hints
from worker.store.members import members

LANE: Final = "deliver"
USUAL_CLAIM_S: Final = 5.0
"""A doorbell that was answered this long ago and led to no lease is rung again."""
REREAD: Final = timedelta(minutes=10)
"""How often what people and forges said of a run is read without a hint."""
FAULT_CHARS: Final = 200

log = structlog.get_logger()


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


@dataclass
class _Known:
    """What was read of one run last. hint: that led there. aside: it is not looked at before."""

    fold: Delivered
    readiness: Readiness
    read_at: datetime
    leased: bool
    hint: int
    aside: datetime | None = None


class Deliveries:
    """ring: puts a doorbell (run, lane) into the queue. Not thread-safe."""

    def __init__(self, archive: Archive, hints: Hints, ring: Callable[[str, str], None], settings: Settings) -> None:
        self._archive, self._hints, self._ring, self._settings = archive, hints, ring, settings
        self._known: dict[str, _Known] = {}
        self._rung: dict[str, Mark] = {}
        self._marks: list[Mark] = []
        self._marked_at: datetime | None = None

    def attend(
        self, now: datetime, sealed: Mapping[str, tuple[Task, Run]], outstanding: set[str], cancelled: set[str]
    ) -> set[str]:
        """Ring for what is due; the runs for which nothing is left to do. sealed: those whose markers are there.
        outstanding: unanswered doorbells. cancelled: runs whose batch was, since they ended. Raises HintsFault,
        StoreFault."""
        for run in self._known.keys() - sealed.keys():
            del self._known[run]
        asked = {run: both for run, both in sealed.items() if wants(both[0])}
        done = set(sealed) - set(asked)
        if not asked:
            return done
        names = {delivery_of(run): run for run in asked}
        leased = {names[name] for name in self._hints.held(names)}
        poked = self._hints.poked(names)
        wanted = []
        for name, run in names.items():
            rung_age_s = self._rung_age_s(now, run, name in outstanding)
            deliver, folded = asked[run][0].deliver, asked[run][1]
            assert deliver is not None, "it wants to be delivered"
            try:
                known = self._read(now, deliver, folded, run in leased, rung_age_s is not None, poked.get(name, -1))
            except IntegrityFault as fault:
                log.error("what came of a delivery cannot be read", run=run, fault=str(fault)[:FAULT_CHARS])
                done.add(run)
                continue
            wanted.append(self._wanted(*asked[run], known, rung_age_s, run in cancelled))
        for decision in decide(now, wanted, self._recent(now), free=self._free()):
            match decision:
                case Ring(run) if self._may_begin(now, asked[run][0]):
                    self._begin(now, asked[run][0])
                case Drop(run, why):
                    log.info("nothing is left to deliver", run=run, why=why)
                    done.add(run)
        return done

    def _read(self, now: datetime, deliver: Deliver, run: Run, leased: bool, rung: bool, hint: int) -> _Known:
        """What is stored of the run: read where there may be news, and now and then without a hint."""
        known = self._known.get(run.id)
        bell = self._rung.get(run.id)
        if (
            known is None
            or (leased, hint) != (known.leased, known.hint)
            or (bell is not None and bell.at > known.read_at and not rung and not leased)
            or now - known.read_at >= REREAD
        ):
            fold = delivered(read_deliveries(self._archive, run.id))
            review = review_state(run, read_reviews(self._archive, run.id))
            ready = readiness(deliver, run, review, asked=fold.asked)
            known = self._known[run.id] = _Known(fold, ready, now, leased, hint)
        return known

    def _wanted(self, task: Task, run: Run, known: _Known, rung_age_s: float | None, cancelled: bool) -> Wanted:
        assert task.deliver is not None, "it wants to be delivered"
        return Wanted(
            run=run.id,
            readiness=known.readiness,
            rate_per_hour=task.deliver.rate_per_hour,
            token=token_of(task),
            repo=task.repo.url or "",
            since=run.updated_at,
            until=review_until(run, self._settings.decision_expiry_s),
            ended=known.fold.ends(task.deliver.kind),
            leased=known.leased,
            rung_age_s=rung_age_s,
            aside=known.aside,
            cancelled=cancelled and not known.fold.asked,
        )

    def _rung_age_s(self, now: datetime, run: str, outstanding: bool) -> float | None:
        """Age of a doorbell that counts as unanswered: Redis says so, or it was answered a moment ago and the lease
        that must follow is not seen yet."""
        bell = self._rung.get(run)
        age_s = (now - bell.at).total_seconds() if bell else 0.0
        return age_s if outstanding or (bell is not None and age_s < USUAL_CLAIM_S) else None

    def _recent(self, now: datetime) -> list[Mark]:
        """What was delivered in the last hour, and what was rung to be."""
        if self._marked_at is None or now - self._marked_at >= timedelta(seconds=self._settings.relist_s):
            self._marks, self._marked_at = marks(self._archive, now), now
        self._rung = {run: mark for run, mark in self._rung.items() if now - HOUR < mark.at}
        return [*(mark for mark in self._marks if mark.run not in self._rung), *self._rung.values()]

    def _free(self) -> int:
        return sum(worker.free for worker in self._hints.workers() if LANE in worker.lanes)

    def _may_begin(self, now: datetime, task: Task) -> bool:
        """Whether nothing but a turn was missing: its forge does not wait, and it stands for its target."""
        known = self._known[task.run]
        held_s = max(self._hints.held_s(account) for account in accounts(task))
        if held_s > 0:
            known.aside = now + timedelta(seconds=held_s)
        elif not known.fold.asked and (standing := self._standing(task)) != task.run:
            known.aside = now + timedelta(seconds=self._settings.relist_s)
            if standing is not None:
                known.readiness = "never"
        else:
            return True
        return False

    def _standing(self, task: Task) -> str | None:
        """The run of the task's target that is delivered; None while that is open."""
        same = [member for member in members(self._archive, task.batch) if member.target == task.target]
        if len(same) <= 1:
            return task.run
        found = views(self._archive, [member.run for member in same]).found
        candidates = [view for view in found if view.task.ordinal < view.task.candidates]
        if any(view.run.sealed is None for view in candidates) and len(candidates) == len(found):
            return None
        return standing(found)[0].task.run

    def _begin(self, now: datetime, task: Task) -> None:
        self._hints.rung(delivery_of(task.run), LANE, self._settings.ring_again_s)
        self._ring(task.run, LANE)
        self._rung[task.run] = Mark(now, token_of(task), task.run)


def wants(task: Task) -> bool:
    """Whether a sealed run of the task may have to be delivered."""
    return task.deliver is not None and task.deliver.kind != "patch"
