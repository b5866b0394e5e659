"""Owns the decision which sealed run is delivered when, and the care for those that wait for it. Refuses to push, and
to ask a forge: a worker that holds the token does, when its doorbell rings.

`decide` is pure: the time, the runs, what was delivered in the last hour. `Deliveries` feeds and obeys it for the
scheduler's loop, and says of which runs nothing is left to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
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
    wants_delivery,
)
from worker.contract.errors import IntegrityFault, NotFoundFault, VersionFault
from worker.contract.run import Run
from worker.contract.settings import Settings
from worker.contract.task import Task
from worker.store import keys
from worker.store.archive import Archive
from worker.store.deliveries import HOUR, Mark, marks, read_deliveries, read_reviews
from worker.store.hints import Hints
from worker.store.inbox import Control
from worker.store.journal import Journal
from worker.store.members import members

LANE: Final = "deliver"
USUAL_CLAIM_S: Final = 5.0
"""A doorbell that was answered this long ago and led to no lease is rung again."""
NO_HINT: Final = -2
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
class _Kept:
    """One sealed run, and what was read last of what people and forges said of it. hint: that led there. aside: it is
    not looked at before."""

    task: Task
    run: Run
    fold: Delivered = field(default_factory=Delivered)
    readiness: Readiness = "never"
    read_at: datetime | None = None
    leased: bool = False
    hint: int = NO_HINT
    aside: datetime | None = None
    rung_at: datetime | None = None


@dataclass
class _Control:
    """What was read last of a batch's control. cancel: number of the last one there, -1 for none."""

    hint: int
    read_at: datetime
    cancel: int = -1


class Deliveries:
    """The sealed runs whose markers are kept for their delivery. ring: puts a doorbell (run, lane) into the queue.
    Not thread-safe. Methods raise HintsFault, StoreFault."""

    def __init__(self, archive: Archive, hints: Hints, ring: Callable[[str, str], None], settings: Settings) -> None:
        self._archive, self._hints, self._ring, self._settings = archive, hints, ring, settings
        self.clear()

    def clear(self) -> None:
        """Know nothing."""
        self._kept: dict[str, _Kept] = {}
        self._controls: dict[str, _Control] = {}
        self._marks: list[Mark] = []
        self._marked_at: datetime | None = None

    def __contains__(self, run: object) -> bool:
        return run in self._kept

    def takes(self, run: Run) -> bool:
        """Whether the sealed run's marker stays, because it wants to be delivered; then it is taken care of here."""
        try:
            task = Journal(self._archive, run.id).task()
        except (IntegrityFault, VersionFault, NotFoundFault):
            return False
        if wants_delivery(task):
            self._kept[run.id] = _Kept(task, run)
        return run.id in self._kept

    def attend(self, now: datetime) -> None:
        """Ring for what is due, and let go of what nothing is left to do for."""
        if not self._kept:
            return
        names = {delivery_of(run): run for run in self._kept}
        leased = {names[name] for name in self._hints.held(names)}
        poked, outstanding = self._hints.poked(names), set(self._hints.outstanding())
        self._read_controls(now)
        wanted, done = list[Wanted](), list[str]()
        for name, run in names.items():
            kept = self._kept[run]
            rung_age_s = _rung_age_s(kept, now, name in outstanding)
            try:
                self._read(now, kept, run in leased, rung_age_s is not None, poked.get(name, -1))
            except IntegrityFault as fault:
                log.error("what came of a delivery cannot be read", run=run, fault=str(fault)[:FAULT_CHARS])
                done.append(run)
                continue
            wanted.append(self._wanted(kept, rung_age_s))
        for decision in decide(now, wanted, self._recent(now), free=self._free()):
            match decision:
                case Ring(run) if self._may_begin(now, self._kept[run]):
                    self._hints.rung(delivery_of(run), LANE, self._settings.ring_again_s)
                    self._ring(run, LANE)
                    self._kept[run].rung_at = now
                case Drop(run, why):
                    log.info("nothing is left to deliver", run=run, why=why)
                    done.append(run)
        if done:
            self._archive.delete(keys.open_marker(run) for run in done)
            for run in done:
                del self._kept[run]

    def _read(self, now: datetime, kept: _Kept, leased: bool, rung: bool, hint: int) -> None:
        """What is stored of the run: where there may be news, and now and then without a hint."""
        if (
            kept.read_at is not None
            and (leased, hint) == (kept.leased, kept.hint)
            and (rung or leased or kept.rung_at is None or kept.rung_at < kept.read_at)
            and now - kept.read_at < REREAD
        ):
            return
        assert kept.task.deliver is not None, "it wants to be delivered"
        kept.fold = delivered(read_deliveries(self._archive, kept.run.id))
        review = review_state(kept.run, read_reviews(self._archive, kept.run.id))
        kept.readiness = readiness(kept.task.deliver, kept.run, review, asked=kept.fold.asked)
        kept.read_at, kept.leased, kept.hint, kept.aside = now, leased, hint, None

    def _read_controls(self, now: datetime) -> None:
        batches = {kept.task.batch for kept in self._kept.values()}
        poked = self._hints.poked(f"batch:{batch}" for batch in batches)
        self._controls = {batch: known for batch, known in self._controls.items() if batch in batches}
        for batch in batches:
            known, hint = self._controls.get(batch), poked.get(f"batch:{batch}", -1)
            if known is None or hint != known.hint or now - known.read_at >= REREAD:
                said = Control(self._archive, batch).read()
                cancels = [message.n for message in said if message.kind == "cancel"]
                self._controls[batch] = _Control(hint, now, max(cancels, default=-1))

    def _wanted(self, kept: _Kept, rung_age_s: float | None) -> Wanted:
        task, run, deliver = kept.task, kept.run, kept.task.deliver
        assert deliver is not None, "it wants to be delivered"
        return Wanted(
            run=run.id,
            readiness=kept.readiness,
            rate_per_hour=deliver.rate_per_hour,
            token=token_of(task),
            repo=task.repo.url or "",
            since=run.updated_at,
            until=review_until(run, self._settings.decision_expiry_s),
            ended=kept.fold.ends(deliver.kind),
            leased=kept.leased,
            rung_age_s=rung_age_s,
            aside=kept.aside,
            cancelled=self._controls[task.batch].cancel >= run.control_seen and not kept.fold.asked,
        )

    def _recent(self, now: datetime) -> list[Mark]:
        """What was delivered in the last hour, and what was rung to be."""
        if self._marked_at is None or now - self._marked_at >= timedelta(seconds=self._settings.relist_s):
            self._marks, self._marked_at = marks(self._archive, now), now
        rung = {
            kept.run.id: Mark(kept.rung_at, token_of(kept.task), kept.run.id)
            for kept in self._kept.values()
            if kept.rung_at is not None and now - HOUR < kept.rung_at
        }
        return [*(mark for mark in self._marks if mark.run not in rung), *rung.values()]

    def _free(self) -> int:
        return sum(worker.free for worker in self._hints.workers() if LANE in worker.lanes)

    def _may_begin(self, now: datetime, kept: _Kept) -> bool:
        """Whether nothing but a turn was missing: its forge does not wait, and it stands for its target."""
        held_s = max(self._hints.held_s(account) for account in accounts(kept.task))
        if held_s > 0:
            kept.aside = now + timedelta(seconds=held_s)
        elif not kept.fold.asked and (stands := self._standing(kept.task)) != kept.run.id:
            kept.aside = now + timedelta(seconds=self._settings.relist_s)
            if stands is not None:
                kept.readiness = "never"
        else:
            return True
        return False

    def _standing(self, task: Task) -> str | None:
        """The run of the task's target that is delivered; None while that is open."""
        same = [member for member in members(self._archive, task.batch) if member.target == task.target]
        if len(same) <= 1:
            return task.run
        found = views(self._archive, [member.run for member in same]).found
        counts = standing(found)[0]
        if counts.run.sealed is None and counts.task.ordinal < counts.task.candidates:
            return None
        return counts.task.run


def _rung_age_s(kept: _Kept, now: datetime, outstanding: bool) -> float | None:
    """Age of a doorbell that counts as unanswered: Redis says so, or it was answered a moment ago and the lease that
    must follow is not seen yet."""
    if kept.rung_at is None:
        return 0.0 if outstanding else None
    age_s = (now - kept.rung_at).total_seconds()
    return age_s if outstanding or age_s < USUAL_CLAIM_S else None
