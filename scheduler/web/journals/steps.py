"""Owns the index of a run's journal: one small row a step, folded once and then kept up with the journal's tail.
Refuses to keep what a step said or printed: that is read again when somebody opens it (stepbody.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from scheduler.audit import Act, acts_of
from scheduler.web.journals import marks
from scheduler.web.journals.marks import Mark
from worker.contract.events import (
    Asked,
    Called,
    Compacted,
    Delegated,
    Observed,
    Record,
    Replied,
    ToolCall,
    Unrecorded,
    Usage,
)
from worker.contract.run import Run
from worker.contract.task import Task

LINE_CHARS: Final = 120
"""Of a call's arguments and of a reply's text in a row."""
CALLS_SHOWN: Final = 20
"""Of one reply, named in its row."""
SHARE: Final = 0.1
"""How many of the steps count as slow, and as costly: those above all others."""
SLOW_MS_MIN: Final = 1_000
"""A faster step is never slow."""

NOTHING: Final = Usage()

Filter = Literal["errors", "writes", "slow", "costly", "marks"]
FILTERS: Final[tuple[Filter, ...]] = ("errors", "writes", "slow", "costly", "marks")


@dataclass(slots=True)
class CallRow:
    """A call in few words. line: its arguments on one line. status: "" until it was observed. shown_bytes,
    total_bytes: of what it wrote. delegate: an agent of its own answered it. outside: it was recorded before it
    started, because it could not be rolled back."""

    id: str
    name: str
    line: str
    status: str = ""
    exit_code: int | None = None
    duration_ms: int = 0
    total_bytes: int = 0
    delegate: bool = False
    outside: bool = False
    failed: bool = False


@dataclass(slots=True)
class Row:
    """A step: a reply, its calls, and what came up to the next reply. Number 0 is what came before the first.

    first, last: its segments. hash: of its last line so far. at: when the reply was committed, UTC. model_ms: how
    long the reply took; call_ms: its calls; waited_ms: what the attempt waited for its turn before it. usage,
    cost_microusd: of the reply, cost None where no price is known. beside: what was spent besides, on delegates,
    summaries and replies nobody kept; beside_unpriced: how many of these had no price. context_tokens: of the
    request. copied: it is a
    parent's, which a fork took along. wrote: the work tree is another than before. said: the first line of the text.
    """

    number: int
    first: int
    last: int
    hash: str = ""
    at: str = ""
    phase: str = ""
    stop: str = ""
    model_ms: int = 0
    call_ms: int = 0
    waited_ms: int = 0
    usage: Usage = NOTHING
    cost_microusd: int | None = 0
    beside: Usage = NOTHING
    beside_microusd: int = 0
    beside_unpriced: int = 0
    context_tokens: int = 0
    said: str = ""
    calls: list[CallRow] = field(default_factory=list)
    more_calls: int = 0
    wrote: bool = False
    failed: bool = False
    copied: bool = False
    marks: list[Mark] = field(default_factory=list)

    @property
    def total_ms(self) -> int:
        """How long it took, without what it waited for its turn."""
        return self.model_ms + self.call_ms

    @property
    def spent_microusd(self) -> int:
        """With what was spent beside its reply."""
        return (self.cost_microusd or 0) + self.beside_microusd

    @property
    def tokens(self) -> int:
        return self.usage.total + self.beside.total

    @property
    def is_problem(self) -> bool:
        """Whether the keys h and l stop at it: a failure, or a mark that a person should see."""
        return self.failed or any(mark.problem for mark in self.marks)


class Index:
    """The steps of one journal as far as it was read. Not thread-safe: its owner (reading.py) holds a lock.

    run: the fold; texts of very long lines are cut in it. rows: the steps in order. acts: of people (audit.py).
    """

    def __init__(self, task: Task, run: str) -> None:
        self.task = task
        self.run = Run(id=run)
        self.rows: list[Row] = []
        self.acts: list[Act] = []
        self._places: dict[int, int] = {}
        self._calls: dict[str, CallRow] = {}
        self._tree = ""
        self._nudges = marks.Nudges(task)

    def take(self, lines: Iterable[tuple[Record, str]]) -> None:
        """Fold more lines of the journal."""
        for record, line_hash in lines:
            before, self.run = self.run, self.run.after(record, line_hash)
            row = self._row(record)
            row.last, row.hash = record.seq, line_hash
            row.marks += marks.of(record, before, self.run, self.task)
            self._add(row, record)
            row.marks += self._nudges.see(record, self.run)
            self.acts += acts_of(record)

    def row(self, number: int) -> Row | None:
        """The step of that number."""
        place = self._places.get(number)
        return None if place is None else self.rows[place]

    def place(self, number: int) -> int:
        """How many steps stand before it."""
        return self._places[number]

    def at_segment(self, seq: int) -> Row | None:
        """The step to which that segment belongs; of a fork's copied ones the last."""
        found = [row for row in self.rows if row.first <= seq <= row.last]
        return found[-1] if found else None

    def _row(self, record: Record) -> Row:
        event = record.event
        if not isinstance(event, Replied):
            return self.rows[-1] if self.rows else self._begin(Row(0, record.seq, record.seq, at=record.at))
        reply = event.reply
        row = Row(
            number=event.step,
            first=record.seq,
            last=record.seq,
            at=record.at,
            phase=event.phase,
            stop=reply.stop,
            model_ms=event.duration_ms,
            waited_ms=record.waited_ms,
            usage=reply.usage,
            cost_microusd=reply.cost_microusd,
            context_tokens=event.context_tokens,
            said=one_line(reply.text),
            calls=[CallRow(call.id, one_line(call.name), arguments_line(call)) for call in reply.calls[:CALLS_SHOWN]],
            more_calls=max(0, len(reply.calls) - CALLS_SHOWN),
            failed=reply.stop in ("length", "refusal", "content_filter"),
            copied=record.seq == 0,
        )
        self._calls = {call.id: call for call in row.calls}
        return self._begin(row)

    def _begin(self, row: Row) -> Row:
        self._places.setdefault(row.number, len(self.rows))
        self.rows.append(row)
        return row

    def _add(self, row: Row, record: Record) -> None:
        match record.event:
            case Called(call_id=call) if call in self._calls:
                self._calls[call].outside = True
            case Observed() as event:
                self._observed(row, event)
            case Delegated() as event:
                if event.call_id in self._calls:
                    self._calls[event.call_id].delegate = True
                _beside(row, event.usage, event.cost_microusd)
            case Compacted(usage=usage, cost_microusd=cost):
                _beside(row, usage, cost)
            case Unrecorded(tokens=tokens, cost_microusd=cost):
                _beside(row, Usage(input_tokens=tokens), cost)
            case Asked(call_id=call) if call in self._calls and not self._calls[call].status:
                self._calls[call].status = "asked"

    def _observed(self, row: Row, event: Observed) -> None:
        seen = event.observation
        failed = seen.status != "ok" or seen.exit_code not in (0, None)
        row.failed = row.failed or failed
        row.call_ms += seen.duration_ms
        call = self._calls.get(seen.call_id)
        if call is not None:
            call.status, call.exit_code, call.failed = seen.status, seen.exit_code, failed
            call.duration_ms, call.total_bytes = seen.duration_ms, seen.total_bytes
        if event.snapshot is not None:
            changed = event.snapshot.tree != self._tree if self._tree else event.snapshot.object is not None
            row.wrote, self._tree = row.wrote or changed, event.snapshot.tree


def _beside(row: Row, usage: Usage, cost_microusd: int | None) -> None:
    row.beside = Usage(**{kind: count + getattr(usage, kind) for kind, count in row.beside})
    row.beside_microusd += cost_microusd or 0
    row.beside_unpriced += cost_microusd is None


@dataclass(frozen=True)
class Bounds:
    """From where on a step is slow, milliseconds, and costly: micro-dollars, or tokens where nothing has a price.
    None where no step is."""

    slow_ms: int | None
    costly_microusd: int | None
    costly_tokens: int | None


def bounds(rows: Sequence[Row]) -> Bounds:
    """What the steps of a run are compared with."""
    slow = _top([row.total_ms for row in rows])
    return Bounds(
        None if slow is None else max(slow, SLOW_MS_MIN),
        money := _top([row.spent_microusd for row in rows]),
        _top([row.tokens for row in rows]) if money is None else None,
    )


def kept(rows: Sequence[Row], chosen: Iterable[Filter], at: Bounds) -> list[Row]:
    """The rows that any of the filters takes, all of them without one."""
    wanted = tuple(chosen)
    return [row for row in rows if any(fits(row, one, at) for one in wanted)] if wanted else list(rows)


def fits(row: Row, chosen: Filter, at: Bounds) -> bool:
    match chosen:
        case "errors":
            return row.failed
        case "writes":
            return row.wrote
        case "slow":
            return at.slow_ms is not None and row.total_ms >= at.slow_ms
        case "costly":
            if at.costly_microusd is not None:
                return row.spent_microusd >= at.costly_microusd
            return at.costly_tokens is not None and row.tokens >= at.costly_tokens
        case "marks":
            return any(mark.kind not in marks.PLAIN for mark in row.marks)


def _top(values: Sequence[int]) -> int | None:
    """The least of the values that count as high; None where all are 0."""
    ordered = sorted(values, reverse=True)
    return ordered[int((len(ordered) - 1) * SHARE)] or None if ordered and ordered[0] else None


def one_line(text: str, chars: int = LINE_CHARS) -> str:
    """The beginning of a text on one line."""
    line = " ".join(text[: 4 * chars].split())
    return line if len(line) <= chars and len(text) <= 4 * chars else line[: chars - 1] + "…"


def arguments_line(call: ToolCall) -> str:
    """What a call is about: of arguments with one text that text, else all of them as they were written."""
    import json

    try:
        told = json.loads(call.arguments) if len(call.arguments) <= 16 * LINE_CHARS else None
    except (ValueError, RecursionError):
        told = None
    if isinstance(told, dict):
        for name in ("command", "path", "query", "pattern", "goal", "question"):
            if isinstance(told.get(name), str):
                return one_line(told[name])
    return one_line(call.arguments)
