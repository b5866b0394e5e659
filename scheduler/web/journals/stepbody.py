"""Owns what one step said and printed: read again from its segments when somebody opens it, proven by the line that
the index knows. Refuses to show all of a text without end: the raw bytes can be had as a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from markupsafe import Markup

from scheduler.cli import transcript
from scheduler.reports.harmless import plain
from scheduler.web.journals import ansi
from scheduler.web.journals.reading import Read
from scheduler.web.journals.steps import Row
from worker.contract.errors import IntegrityFault
from worker.contract.events import Observed, Record, Replied, ToolCall
from worker.store import keys
from worker.store.archive import Archive
from worker.store.journal import SEGMENT_BYTES
from worker.store.skim import skimmed

SEGMENTS_MAX: Final = 500
"""Of one step. It has two for each call, and a few more for each wait."""
TEXT_CHARS: Final = 64 * 1024
"""Shown of one text."""
STEP_CHARS: Final = 2_000_000
"""Shown of all results of a step together."""


@dataclass(frozen=True)
class Text:
    """A part of a text. html: with its colours. left_chars: how many are not shown."""

    text: str
    left_chars: int = 0

    @property
    def html(self) -> Markup:
        return ansi.html(self.text)


@dataclass
class Call:
    """A call with what came of it. arguments: written out, where they are JSON. status: "" while nothing has.
    blob: digest of what the command wrote, "" where that is not kept apart."""

    id: str
    name: str
    arguments: Text
    status: str = ""
    exit_code: int | None = None
    duration_ms: int = 0
    output: Text | None = None
    blob: str = ""
    total_bytes: int = 0
    kept_bytes: int = 0
    files: tuple[str, ...] = ()
    snapshot: str = ""
    delegate: bool = False


@dataclass(frozen=True)
class Other:
    """Another event of the step, as `dawn logs` tells it."""

    seq: int
    at: str
    type: str
    text: Text


@dataclass
class Body:
    """segments: of how many it was read; left_segments: those that are not shown."""

    reasoning: Text | None = None
    said: Text | None = None
    stop: str = ""
    model: str = ""
    price_source: str = ""
    calls: list[Call] = field(default_factory=list)
    others: list[Other] = field(default_factory=list)
    left_segments: int = 0


def body(archive: Archive, read: Read, row: Row) -> Body:
    """Raises IntegrityFault for segments that are not those which the index has seen, StoreFault."""
    made, left = Body(), STEP_CHARS
    made.left_segments = max(0, row.last - row.first + 1 - SEGMENTS_MAX)
    found: dict[str, Call] = {}
    for record in records(archive, read.index.run.id, row):
        match record.event:
            case Replied() as event if event.step == row.number:
                reply = event.reply
                made.reasoning, made.said = _text(reply.reasoning), _text(reply.text)
                made.stop, made.model, made.price_source = reply.stop, reply.model, reply.price_source
                made.calls = [Call(call.id, call.name, _arguments(call)) for call in reply.calls]
                found = {call.id: call for call in made.calls}
            case Observed() as event:
                seen = event.observation
                if seen.call_id not in found:
                    found[seen.call_id] = Call(seen.call_id, seen.tool, Text(""))
                    made.calls.append(found[seen.call_id])
                call = found[seen.call_id]
                call.status, call.exit_code, call.duration_ms = seen.status, seen.exit_code, seen.duration_ms
                call.output = _text(seen.output, left)
                left -= len(call.output.text) if call.output else 0
                call.blob, call.total_bytes, call.kept_bytes = seen.blob or "", seen.total_bytes, seen.kept_bytes
                call.files, call.snapshot = event.files, event.snapshot.tree if event.snapshot else ""
            case _:
                told = _text(transcript.full(record)) or Text("")
                made.others.append(Other(record.seq, record.at, record.event.type, told))
    for call in made.calls:
        call.delegate = call.id in read.index.run.delegates
    return made


def segments(row: Row) -> Sequence[int]:
    """Those that are read to show it."""
    return range(row.first, min(row.last + 1, row.first + SEGMENTS_MAX))


def records(archive: Archive, run: str, row: Row) -> Iterator[Record]:
    """Those of the step: of a segment that holds several steps, as a fork's first does, its own."""
    current = 0 if row.number == 0 else -1
    before = last = ""
    for seq in segments(row):
        key = keys.segment(run, seq)
        for line in archive.get(key, max_bytes=SEGMENT_BYTES)[:-1].split(b"\n"):
            try:
                record, line_hash = skimmed(line)
            except ValueError as error:
                raise IntegrityFault(f"{key} is not what was written", hint=f"look: dawn verify {run}") from error
            if before and record.prev != before:
                raise IntegrityFault(f"{key} does not continue the chain", hint=f"look: dawn verify {run}")
            before = line_hash
            if isinstance(record.event, Replied):
                current = record.event.step
            if current == row.number:
                last = line_hash
                yield record
    whole = row.last - row.first < SEGMENTS_MAX
    if whole and row.hash and last != row.hash:
        raise IntegrityFault(f"step {row.number} is not what was read before", hint=f"look: dawn verify {run}")


def _text(text: str, most: int = TEXT_CHARS) -> Text | None:
    """None for an empty one."""
    most = max(0, min(most, TEXT_CHARS))
    return Text(text[:most], max(0, len(text) - most)) if text else None


def _arguments(call: ToolCall) -> Text:
    """JSON with one member a line, its texts with their own lines; as they stand, where they are something else."""
    try:
        told = json.loads(call.arguments)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        return _text(call.arguments) or Text("")
    lines = []
    for name, value in told.items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        name = plain(name)  # which could look like another one with its value
        lines.append(f"{name}:\n{shown}" if "\n" in shown else f"{name}: {shown}")
    return _text("\n".join(lines)) or Text("")
