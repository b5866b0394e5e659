"""Owns the care for sealed runs that want to be delivered: what people and forges said of them, whose doorbell is
rung, whose marker goes. Refuses to decide (due.py), to push and to ask a forge: a worker with the token does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import structlog

from scheduler.deliveries.due import Drop, Ring, Wanted, decide
from scheduler.runs import standing, views
from scheduler.seal import BY
from scheduler.work import work_key
from worker.contract.delivered import (
    Delivered,
    Delivery,
    Readiness,
    accounts,
    branch_of,
    delivered,
    delivery_of,
    patch_of,
    readiness,
    review_state,
    review_until,
    token_of,
    wants_delivery,
)
from worker.contract.errors import ConflictFault, IntegrityFault, NotFoundFault, VersionFault
from worker.contract.run import Run
from worker.contract.settings import Settings
from worker.contract.task import Task
from worker.store import keys
from worker.store.archive import Archive
from worker.store.deliveries import HOUR, Mark, marks, read_deliveries, read_reviews, write_delivery
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

    def takes(self, run: Run, like: Task) -> bool:
        """Whether the sealed run's marker stays, because it wants to be delivered; then it is taken care of here.
        like: a task of its batch."""
        if not wants_delivery(like):
            return False
        try:
            self._kept[run.id] = _Kept(Journal(self._archive, run.id).task(), run)
        except (IntegrityFault, VersionFault, NotFoundFault):
            return False
        return True

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
            self._let_go(done)

    def _let_go(self, runs: list[str]) -> None:
        self._archive.delete(keys.open_marker(run) for run in runs)
        for run in runs:
            seen = self._kept.pop(run).fold.seen
            # Who asked at this very moment found the marker still there.
            if any(record.act == "asked" for record in self._records(run, seen)):
                self._archive.overwrite(keys.open_marker(run), b"")

    def _records(self, run: str, seen: int) -> list[Delivery]:
        try:
            return read_deliveries(self._archive, run, seen)
        except IntegrityFault:  # then nobody's wish can be read either
            return []

    def _read(self, now: datetime, kept: _Kept, leased: bool, rung: bool, hint: int) -> None:
        """What is stored of the run: where there may be news, and now and then without a hint."""
        if (
            kept.read_at is not None
            and (leased, hint) == (kept.leased, kept.hint)
            and (rung or leased or kept.rung_at is None or kept.rung_at < kept.read_at)
            and now - kept.read_at < REREAD
        ):
            return
        kept.fold = delivered(read_deliveries(self._archive, kept.run.id))
        review = review_state(kept.run, read_reviews(self._archive, kept.run.id))
        kept.readiness = readiness(kept.task, kept.run, review, asked=kept.fold.asked)
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
        elif not kept.fold.asked and (twin := self._twin(kept)) is not None:
            self._write(now, kept, twin)
        else:
            return True
        return False

    def _twin(self, kept: _Kept) -> Delivered | None:
        """The delivery of another batch that did the same work, and whose pull request is open for all we know."""
        if (work := work_key(kept.task)) is None:
            return None
        for key in self._archive.list(keys.work_folder(work)):
            run = key.rpartition("/")[2]
            came = delivered(read_deliveries(self._archive, run)) if run != kept.run.id else Delivered()
            if came.state in ("draft", "pr") and came.branch != branch_of(kept.task):
                return came.model_copy(update={"detail": f"the same work is open there, by run {run}"})
        return None

    def _write(self, now: datetime, kept: _Kept, twin: Delivered) -> None:
        """Say that another one stands for it; whoever has the number may say otherwise."""
        kept.read_at = None
        record = Delivery(
            n=kept.fold.seen,
            act="saw",
            by=BY,
            at=now.isoformat(timespec="milliseconds"),
            patch=str(patch_of(kept.run)),
            state=twin.state,
            url=twin.url,
            number=twin.number,
            detail=twin.detail,
        )
        with suppress(ConflictFault):
            write_delivery(self._archive, kept.run.id, record)

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
