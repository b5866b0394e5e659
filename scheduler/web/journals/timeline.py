"""Owns what a run's journal says of time: which worker had it and how that ended, when it waited and for whom, what
it spent when, and who did what. Pure. Refuses to keep a journal: what it makes of one is a few hundred bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from scheduler.audit import Act, acts_of
from scheduler.web.charts import Lane, Point, Shade, Stretch
from scheduler.web.page import address
from worker.contract.events import (
    Claimed,
    Compacted,
    Decided,
    Delegated,
    Parked,
    Record,
    Replied,
    Sealed,
    Steered,
    Unrecorded,
    Yielded,
)
from worker.contract.fork import Line
from worker.contract.window import Window

MINUTE_S: Final = 60
SHADES_MAX: Final = 60
NOBODY: Final = "no worker"
"""The lane of what happens while no worker has a run."""
ACT_CHARS: Final = 300
RUN: Final = "/runs/{run}"


@dataclass(frozen=True)
class Attempt:
    """One worker's stretch of a run. start, end: seconds since 1970; end None while it goes on. how: how it ended, in
    words. kind: the same as a colour of charts.css."""

    worker: str
    start: float
    end: float | None = None
    how: str = "working"
    kind: str = "working"


@dataclass(frozen=True)
class Mark:
    """A moment of a run. kind: approval, question, hold, kill or takeover."""

    at: float
    kind: str
    what: str
    worker: str = NOBODY


@dataclass(frozen=True)
class Story:
    """A run in time. spent: (minute since 1970, micro-dollars), in order. acts: of people, and what it asked them."""

    run: str
    target: str
    attempts: tuple[Attempt, ...] = ()
    marks: tuple[Mark, ...] = ()
    spent: tuple[tuple[int, int], ...] = ()
    acts: tuple[Act, ...] = ()


@dataclass
class Telling:
    """What the records of a run tell of time, heard in their order. attempts: the last one may go on. last: when the
    run was last heard of."""

    attempts: list[Attempt] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    spent: dict[int, int] = field(default_factory=dict)
    acts: list[Act] = field(default_factory=list)
    open: bool = False
    last: float = 0.0

    def further(self) -> Telling:
        """One that goes on from here, and leaves this one as it is."""
        return Telling([*self.attempts], [*self.marks], {**self.spent}, [*self.acts], self.open, self.last)

    def along(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Hear the lines that somebody reads."""
        for record, line_hash in lines:
            self.hear(record)
            yield record, line_hash

    def story(self, run: str, target: str) -> Story:
        """What was heard so far."""
        spent = tuple(sorted((minute, cost) for minute, cost in self.spent.items() if cost))
        return Story(run, target, tuple(self.attempts), tuple(self.marks), spent, tuple(self.acts))

    def hear(self, record: Record) -> None:
        now = seconds(record.at)
        if not _told_elsewhere(record):
            self.acts += [replace(act, what=act.what[:ACT_CHARS]) for act in acts_of(record)]
        match record.event:
            case Claimed() as event:
                if self.open:
                    self._end(self.last, "lost with its worker", "crash")
                    self.marks.append(Mark(now, "takeover", f"taken over by {event.worker}", event.worker))
                self.attempts.append(Attempt(event.worker, now))
                self.open = True
            case Parked() as event:
                self._end(now, f"parked: {event.waiting}", "parked")
                if event.waiting in ("approval", "question"):
                    self._mark(now, event.waiting, f"asks: {event.detail or event.waiting}")
                elif not event.paced and event.waiting != "window":
                    self._mark(now, "hold", f"holds: {event.waiting} {event.detail}".strip())
            case Yielded() as event:
                self._end(now, f"given back: {event.why}", "yielded")
            case Decided() as event:
                self.marks.append(
                    Mark(seconds(event.decided_at or record.at), "approval", f"{event.decision} by {event.by}")
                )
            case Sealed() as event:
                self._seal(event, now, by_worker=record.attempt is not None)
            case Replied() | Compacted() | Unrecorded() | Delegated() as event if record.seq > 0:  # 0: its parent's
                cost = event.reply.cost_microusd if isinstance(event, Replied) else event.cost_microusd
                minute = int(now // MINUTE_S)
                self.spent[minute] = self.spent.get(minute, 0) + (cost or 0)
            case _:
                pass
        self.last = now

    def _seal(self, event: Sealed, now: float, *, by_worker: bool) -> None:
        if self.open and not by_worker:
            self._end(self.last, "lost with its worker", "crash")
        kind, how = colour(event)
        if event.outcome == "cancelled":
            self._mark(now, "kill", f"cancelled {event.detail}".strip())
        self._end(now, how, kind)

    def _end(self, at: float, how: str, kind: str) -> None:
        if self.open:
            self.attempts[-1] = replace(self.attempts[-1], end=at, how=how, kind=kind)
            self.open = False

    def _mark(self, at: float, kind: str, what: str) -> None:
        self.marks.append(Mark(at, kind, what, self.attempts[-1].worker if self.attempts else NOBODY))


def _told_elsewhere(record: Record) -> bool:
    """Of what was said to the whole batch each of its runs has a line; how a run ended is no person's act."""
    event = record.event
    return isinstance(event, Sealed) or (isinstance(event, Steered) and event.scope == "batch")


def colour(sealed: Sealed) -> tuple[str, str]:
    """How a run ended, as a colour and in words."""
    if sealed.outcome == "failed":
        return "failed", f"failed: {sealed.failure}" if sealed.failure else "failed"
    if sealed.outcome in ("cancelled", "skipped"):
        return sealed.outcome, sealed.outcome
    if sealed.verdict in ("still_failing", "broke"):
        return "failed", sealed.verdict.replace("_", " ")
    if sealed.verdict in ("verified", "flaky"):
        return sealed.verdict, sealed.verdict
    return "unverified", f"{sealed.outcome.replace('_', ' ')}, unverified"


def lanes(stories: Iterable[Story], now: datetime) -> list[Lane]:
    """A lane for each worker, by name, and one for what no worker had to do with. now: until when what goes on is
    drawn."""
    bars: dict[str, list[Stretch]] = {}
    points: dict[str, list[Point]] = {}
    for one in stories:
        to = address(RUN, run=one.run)
        for attempt in one.attempts:
            end = now.timestamp() if attempt.end is None else attempt.end
            stretch = Stretch(attempt.start, max(attempt.start, end), attempt.kind, one.target, attempt.how, to)
            bars.setdefault(attempt.worker, []).append(stretch)
        for mark in one.marks:
            points.setdefault(mark.worker, []).append(Point(mark.at, mark.kind, f"{one.target}: {mark.what}"))
    names = sorted(bars.keys() | points.keys(), key=lambda name: (name == NOBODY, name))
    return [
        Lane(
            name,
            sorted(bars.get(name, ()), key=lambda bar: (bar.start, bar.label)),
            sorted(points.get(name, ()), key=lambda point: (point.at, point.label)),
        )
        for name in names
    ]


def shut_hours(window: Window | None, first: datetime, last: datetime) -> list[Shade]:
    """When the window was closed between two moments, SHADES_MAX spans at most."""
    found: list[Shade] = []
    at = first
    while window is not None and at < last and len(found) < SHADES_MAX:
        opens = window.closed_until(at)
        if opens is not None:
            found.append(Shade(at.timestamp(), min(opens, last).timestamp(), "the window is closed"))
            at = opens
            continue
        closes = window.closes(at)
        if closes is None:
            break
        at = closes
    return found


def spent_by(stories: Sequence[Story], buckets: int) -> tuple[timedelta, list[tuple[datetime, int]]]:
    """How wide a bucket is, and when each begins with what all runs had spent at its end: so many at most, from the
    first money to the last. Empty where nothing was spent."""
    minutes: dict[int, int] = {}
    for one in stories:
        for minute, cost in one.spent:
            minutes[minute] = minutes.get(minute, 0) + cost
    if not minutes:
        return timedelta(minutes=1), []
    first, last = min(minutes), max(minutes)
    width = next(size for size in _WIDTHS if (last - first + first % size) // size < buckets)
    start = first - first % width
    sums = [0] * ((last - start) // width + 1)
    for minute, cost in minutes.items():
        sums[(minute - start) // width] += cost
    told, total = [], 0
    for n, cost in enumerate(sums):
        total += cost
        told.append((datetime.fromtimestamp((start + n * width) * MINUTE_S, UTC), total))
    return timedelta(minutes=width), told


_WIDTHS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 240, 720, 1_440, *(1_440 * 10**n for n in range(1, 8)))
"""Minutes of a bucket."""


def seconds(at: str) -> float:
    """Of a time in an archive, since 1970."""
    return datetime.fromisoformat(at).timestamp()
