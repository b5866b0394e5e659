"""Owns the page of schedules: what comes when, and what became of the times before. Refuses to change one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final

from scheduler.schedules import stored
from scheduler.schedules.stored import State
from scheduler.web.page import Asked, Page, Slice, Way, cut
from scheduler.web.site import Site
from worker.contract.errors import IntegrityFault, NotFoundFault
from worker.contract.zones import told, utc_text

FRESH_S: Final = 10.0
"""Schedules change seldom, and each costs a few requests."""
TIMES: Final = 3
READ_MAX: Final = 200
"""Schedules of one page."""


@dataclass(frozen=True)
class Time:
    """A moment: UTC, ISO 8601; and in the schedule's zone."""

    utc: str
    told: str


@dataclass(frozen=True)
class Past:
    """What became of a due time. batch: that was fired, "" for none."""

    due: Time
    what: str
    batch: str
    missed: int


@dataclass(frozen=True)
class Planned:
    """A schedule. next: its next due times, none while it is paused. last: what became of the last one, None before
    the first. wrong: why it cannot be read, "" where it can."""

    name: str
    cron: str = ""
    zone: str = ""
    overlap: str = ""
    missed: str = ""
    paused_by: str = ""
    set_by: str = ""
    next: tuple[Time, ...] = ()
    last: Past | None = None
    wrong: str = ""


@dataclass(frozen=True)
class Schedules:
    """stack: whether one runs; without one nothing is submitted."""

    schedules: tuple[Planned, ...]
    slice: Slice
    stack: bool


def planned(site: Site) -> tuple[Planned, ...]:
    """All that were not removed, by name, READ_MAX at most. Raises StoreFault."""
    return site.seen.answer("schedules", lambda: _planned(site), FRESH_S)


def _planned(site: Site) -> tuple[Planned, ...]:
    return tuple(one for name in stored.names(site.archive)[:READ_MAX] if (one := _one(site, name)) is not None)


def _one(site: Site, name: str) -> Planned | None:
    try:
        state = stored.read(site.archive, name)
        if state.schedule is None:
            return None
        history = stored.history(site.archive, name, site.now())
    except (IntegrityFault, NotFoundFault) as fault:
        return Planned(name, wrong=fault.message)
    asked, last = state.schedule, history[-1] if history else None
    times = () if state.paused_by else tuple(islice(asked.due_after(site.now()), TIMES))
    return Planned(
        name=name,
        cron=asked.cron,
        zone=asked.zone,
        overlap=asked.overlap,
        missed=asked.missed,
        paused_by=state.paused_by,
        set_by=state.set_by,
        next=tuple(_time(at, state) for at in times),
        last=None
        if last is None
        else Past(_time(datetime.fromisoformat(last.due), state), last.what, last.batch, last.missed),
    )


def _time(at: datetime, state: State) -> Time:
    return Time(utc_text(at), told(at, state.schedule.zone if state.schedule is not None else "UTC"))


def schedules(site: Site, asked: Asked) -> Page:
    found = planned(site)
    part = cut(len(found), asked)
    data = Schedules(found[part.start : part.stop], part, site.hints() is not None)
    return Page("schedules.html", "Schedules", data, "dawn schedule ls")


WAYS: Final = (Way("/schedules", schedules),)
