"""Owns firing schedules: which due time becomes a batch, by whoever leads. Refuses to trust a clock or its own lead:
the creation of a firing's object is the right to enqueue it, and its batch is the same whoever writes it.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Final

import structlog

from scheduler import control
from scheduler.enqueue import submit
from scheduler.runs import Found
from scheduler.schedules import stored
from scheduler.schedules.cron import Schedule
from scheduler.schedules.stored import HORIZON, Firing, State
from worker.contract.errors import Fault, NotFoundFault, StoreFault
from worker.contract.events import canonical
from worker.contract.zones import utc_text
from worker.store import keys
from worker.store.archive import Archive
from worker.store.hints import Hints

BY: Final = "scheduler"
ON_TIME: Final = timedelta(seconds=90)
"""Twice a lease: a leader that takes over from a dead one is not late yet."""
MADE_UP: Final = 10
"""Missed due times that `run_all` makes up for."""
QUEUED: Final = 10
"""Batches that wait for the one before them; what is due beyond is left out."""

LOG = structlog.get_logger()


@dataclass(frozen=True)
class Due:
    """A due time of which something becomes. fires: a batch. missed: as Firing.missed."""

    at: datetime
    fires: bool = True
    missed: int = 0


def decide(schedule: Schedule, since: datetime, now: datetime) -> list[Due]:
    """What becomes of the due times after `since` and up to now, oldest first. Pure.

    Those up to ON_TIME ago fire, each; older ones were missed, and are told of with the last of them, or with what
    fires in their place.
    """
    found = list(takewhile(lambda at: at <= now, schedule.due_after(max(since, now - HORIZON))))
    late = bisect_right(found, now - ON_TIME)
    missed, on_time = found[:late], found[late:]
    makes_up = {"skip": 0, "run_once": 0 if on_time else 1, "run_all": MADE_UP}[schedule.missed]
    left_out = missed[: len(missed) - makes_up]
    made_up = [Due(at) for at in missed[len(left_out) :] + on_time]
    return [*([Due(left_out[-1], fires=False, missed=len(left_out))] if left_out else []), *made_up]


@dataclass
class _Known:
    """What is cached of a schedule. dues: of which something became, sorted. unfinished: firings whose batch is
    not written, oldest first. last: the newest firing, None for none. base, next: since when nothing became of any
    due time, and the first after it."""

    state: State
    dues: list[str] = field(default_factory=list)
    unfinished: list[Firing] = field(default_factory=list)
    last: Firing | None = None
    base: datetime | None = None
    next: datetime | None = None


class Firings:
    """relist_s: how often all schedules are read without a hint. Not thread-safe."""

    def __init__(self, archive: Archive, hints: Hints, relist_s: float) -> None:
        self._archive, self._hints, self._relist = archive, hints, timedelta(seconds=relist_s)
        self._known: dict[str, _Known] = {}
        self._cancelled: set[str] = set()
        self._poked = -1
        self._read_at: datetime | None = None

    def forget(self) -> None:
        """A new leader trusts nothing it cached when it led before."""
        self._known.clear()
        self._cancelled.clear()
        self._read_at = None

    def act(self, now: datetime, working: Iterable[str]) -> bool:
        """Fire what is due, and complete what somebody began to; whether there are new runs. working: batches with a
        run that has not ended. Raises HintsFault, StoreFault; one schedule that cannot be read stops no other."""
        self._read(now)
        fired, busy = False, set(working)
        for name, known in list(self._known.items()):
            try:
                fired |= self._complete(known, now, busy)
                fired |= self._requested(known, now, busy)
                fired |= self._due(known, now, busy)
            except StoreFault:
                raise
            except Fault as fault:
                self._set_aside(name, fault)
        return fired

    def _set_aside(self, name: str, fault: Fault) -> None:
        """Until all are read again."""
        LOG.error("a schedule cannot be read", schedule=name, fault=str(fault))
        self._known.pop(name, None)

    def _read(self, now: datetime) -> None:
        poked = self._hints.poked([control.SCHEDULES]).get(control.SCHEDULES, -1)
        stale = self._read_at is None or not timedelta(0) <= now - self._read_at < self._relist
        if not stale and poked == self._poked:
            return
        for name in stored.names(self._archive):
            try:
                known = self._known.get(name)
                if known is None:
                    self._known[name] = self._load(name, now)
                else:
                    known.state = stored.read(self._archive, name, known.state)
                    del known.dues[: bisect_right(known.dues, utc_text(now - HORIZON)) - 1]
            except StoreFault:
                raise
            except Fault as fault:
                self._set_aside(name, fault)
        self._poked, self._read_at = poked, now

    def _load(self, name: str, now: datetime) -> _Known:
        archive, since = self._archive, now - HORIZON
        known = _Known(stored.read(archive, name), stored.dues(archive, name, since))
        if known.dues:
            known.last = stored.firing(archive, name, known.dues[-1])
        for due in stored.begun(archive, name):
            try:
                known.unfinished.append(stored.firing(archive, name, due))
            except NotFoundFault:
                continue  # cut off before it was decided: it is due, and comes again
        return known

    def _complete(self, known: _Known, now: datetime, working: set[str]) -> bool:
        """Write the oldest batch that was fired and is not written, unless it waits for another to end."""
        if not known.unfinished:
            return False
        firing, name = known.unfinished[0], known.state.name
        if firing.what != "fired":  # somebody else decided that it does not
            self._finished(known)
            return False
        if firing.overlap != "skip" and firing.before in working:
            if firing.overlap == "cancel_previous" and firing.before not in self._cancelled:
                at = now.isoformat(timespec="milliseconds")
                found = Found("batch", firing.before)
                control.tell(self._archive, self._hints, found, "cancel", by=f"schedule {name}", at=at)
                self._cancelled.add(firing.before)
            return False
        due = datetime.fromisoformat(firing.due)
        batch = replace(stored.batch_of(self._archive, name, str(firing.template), due), reuse=firing.reuse)
        new = submit(batch, self._archive, by=f"schedule {name}", at=now.isoformat(timespec="milliseconds"))
        self._finished(known)
        if new:
            working.add(batch.id)
        LOG.info("fired", schedule=name, due=firing.due, batch=batch.id, runs=new)
        return True

    def _finished(self, known: _Known) -> None:
        """The oldest is written, or need not be. The marker goes last."""
        due = datetime.fromisoformat(known.unfinished.pop(0).due)
        self._archive.delete([keys.schedule_begun(known.state.name, utc_text(due))])

    def _requested(self, known: _Known, now: datetime, working: set[str]) -> bool:
        """What somebody wanted to run now, whether or not the schedule is paused."""
        fired = False
        for at, by in known.state.requests if known.state.schedule is not None else ():
            if utc_text(at) not in known.dues and now - HORIZON < at <= now:
                fired |= self._decided(known, Due(at), now, working, by=by)
        return fired

    def _due(self, known: _Known, now: datetime, working: set[str]) -> bool:
        if not known.state.active or not self._is_due(known, now):
            return False
        known.state = stored.read(self._archive, known.state.name, known.state)  # it may have been paused
        schedule = known.state.schedule
        if schedule is None or not known.state.active or not self._is_due(known, now):
            return False
        fired = False
        for due in decide(schedule, _base(known, now), now):
            fired |= self._decided(known, due, now, working)
        return fired

    def _is_due(self, known: _Known, now: datetime) -> bool:
        base, schedule = _base(known, now), known.state.schedule
        if known.base != base or known.next is None:
            known.base = base
            known.next = None if schedule is None else next(schedule.due_after(base), None)
        return known.next is not None and known.next <= now

    def _decided(self, known: _Known, due: Due, now: datetime, working: set[str], by: str = "") -> bool:
        """Create the firing of a due time, and write its batch where nothing is waited for. by: who asked for it, ""
        where its time has come."""
        state, schedule = known.state, known.state.schedule
        assert schedule is not None, "only an active schedule is due, or asked for"
        before = known.last.last_batch if known.last is not None else ""
        overlap = "queue" if by and schedule.overlap == "skip" else schedule.overlap
        busy = before in working or any(one.batch == before for one in known.unfinished)
        left_out = busy and (overlap == "skip" or len(known.unfinished) >= QUEUED)
        fires = due.fires and not left_out
        firing = Firing(
            due=due.at.isoformat(),
            at=now.isoformat(timespec="milliseconds"),
            by=by or BY,
            what="fired" if fires else "overlap" if due.fires else "missed",
            batch=stored.batch_id(state.name, state.template, due.at) if fires else "",
            template=state.template if fires else None,
            before=before,
            overlap=overlap,
            missed=due.missed,
            reuse=schedule.reuse,
        )
        name, key = utc_text(due.at), keys.schedule_firing(state.name, utc_text(due.at))
        if fires:
            self._archive.create(keys.schedule_begun(state.name, name), b"")
        if not self._archive.create(key, canonical(firing.model_dump(mode="json"))):
            firing = stored.firing(self._archive, state.name, name)  # somebody else's, who may have died since
        if name not in known.dues:
            insort(known.dues, name)
        known.last = firing
        if fires or firing.what == "fired":
            known.unfinished.append(firing)
            return self._complete(known, now, working)
        if firing.before:  # whose report tells of the night that was not
            self._archive.create(keys.report_due(firing.before), b"")
        LOG.info("not fired", schedule=state.name, due=firing.due, why=firing.what, missed=firing.missed)
        return False


def _base(known: _Known, now: datetime) -> datetime:
    """Since when nothing became of any due time, as far as the clock is right: one that jumped ahead, and back, fired
    what lies ahead, and nothing between."""
    number = bisect_right(known.dues, utc_text(now))
    last = datetime.fromisoformat(known.dues[number - 1]) if number else known.state.since
    return max(last, known.state.since)
