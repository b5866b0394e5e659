"""Owns Window, the hours in which a batch may work: when it is open, and until when it is not. Pure; refuses to ask
what time it is.

It opens on each of its days at `open` and closes at the next `close`, as the clocks of its zone show them: where they
are set forward over one of the two it is moved on by as much, where they show it twice the first counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from typing import Annotated, Final, Literal
from zoneinfo import ZoneInfo

from pydantic import Field, model_validator

from worker.contract.frozen import Frozen
from worker.contract.zones import Zone, instant

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAYS_BACK: Final = 9
"""Spans that touch are one: of a window that closes once a week for a moment it began that long ago."""
DAYS_AHEAD: Final = 24
"""A day whose span a change of clocks leaves empty comes again a week later, twice in a row at most."""

Clock = Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?$")]
"""`22:00`, or with seconds."""
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
Span = tuple[datetime, datetime]


class Window(Frozen):
    """open, close: wall clock of the zone; a close that is not after open is the next day's, an equal one makes it a
    whole day. days: on which it opens. on_close: what was begun waits for the next opening at a committed step
    (pause), goes on (finish), or is cancelled, and what nobody began is skipped (cancel)."""

    open: Clock
    close: Clock
    days: Annotated[tuple[Day, ...], Field(min_length=1)] = DAYS
    zone: Zone
    on_close: Literal["pause", "finish", "cancel"] = "pause"

    @model_validator(mode="after")
    def _closes(self) -> Window:
        if time.fromisoformat(self.open) == time.fromisoformat(self.close) and set(self.days) == set(DAYS):
            raise ValueError("open and close are the same on every day, so it would never close; leave it out")
        return self

    def closes(self, now: datetime) -> datetime | None:
        """When it closes, None while it is closed. Moments are aware; what is returned is UTC."""
        start, end = self._span(now)
        return end if start <= now else None

    def opens(self, now: datetime) -> datetime:
        """When it opens next, later than now."""
        start, end = self._span(now)
        return start if start > now else self._span(end)[0]

    def closed_until(self, now: datetime) -> datetime | None:
        """When it opens again, None while it is open."""
        start, _ = self._span(now)
        return start if start > now else None

    def last_call(self, since: datetime) -> datetime:
        """Its first closing after `since`: then a run that was submitted at that time has had its hours."""
        return self._span(since)[1]

    def bars(self, now: datetime, *, begun: bool) -> datetime | None:
        """Until when a run may not be worked on, None when it may."""
        return None if begun and self.on_close == "finish" else self.closed_until(now)

    def _span(self, now: datetime) -> Span:
        """The first opening that ends after now: from when until when."""
        local = now.astimezone(ZoneInfo(self.zone)).date()
        return next(span for span in _spans(self, local) if span[1] > now)


@lru_cache(maxsize=1024)
def _spans(window: Window, near: date) -> tuple[Span, ...]:
    """Openings around a day, in order; those that touch or overlap are one."""
    joined: list[Span] = []
    for start, end in _each_day(window, near):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return tuple(joined)


def _each_day(window: Window, near: date) -> Iterator[Span]:
    zone = ZoneInfo(window.zone)
    opens, closes = time.fromisoformat(window.open), time.fromisoformat(window.close)
    overnight = timedelta(days=closes <= opens)
    for number in range(-DAYS_BACK, DAYS_AHEAD):
        day = near + timedelta(days=number)
        if DAYS[day.weekday()] in window.days:
            start, end = instant(day, opens, zone), instant(day + overnight, closes, zone)
            if start < end:  # not where clocks are set forward over all of it
                yield start, end
