"""Owns which call of a run made which lines of its patch. Refuses to guess: a hunk whose lines no call is shown to
have written is the last call's that changed its file, and says so; where there is none, nobody's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from scheduler.web.patches.diffs import FileChange, Place, changed_lines, hunks
from worker.contract.events import Observed, Record, Replied, ToolCall

LINES_MAX: Final = 200_000
"""Changed lines of a patch that are looked for in what calls said; hunks behind them are told by their file."""
HUNKS_MAX: Final = 5_000
"""Of a patch, that are given a call."""

How = Literal["text", "file"]
"""`text`: the call said these lines; `file`: it was the last that changed the file."""


@dataclass(frozen=True)
class Origin:
    """step: of the model or the commands, from 1. seq: of the segment in which its result stands. lines: how many of
    the hunk's changed lines the call wrote or replaced, of all that are not blank."""

    step: int
    seq: int
    call_id: str
    tool: str
    how: How
    lines: int = 0
    of: int = 0


@dataclass(frozen=True)
class HunkId:
    """file: its number in the patch; hunk: its number in the file."""

    file: int
    path: str
    hunk: int


@dataclass(frozen=True)
class Provenance:
    """origins: of the hunks that have one."""

    origins: Mapping[HunkId, Origin]

    def of(self, file: FileChange, hunk: int) -> Origin | None:
        return self.origins.get(HunkId(file.number, file.path, hunk))

    def made_by(self, step: int) -> list[HunkId]:
        """The hunks of a step, in the patch's order."""
        return [hunk for hunk, origin in self.origins.items() if origin.step == step]


@dataclass
class _Wanted:
    """A file of the patch. added, removed: its changed lines -> the last call that wrote or replaced each."""

    file: FileChange
    hunks: list[tuple[Place, list[bytes], list[bytes]]]
    added: dict[bytes, Origin | None]
    removed: dict[bytes, Origin | None]
    last: Origin | None = None


def provenance(records: Iterable[Record], patch: bytes, files: Sequence[FileChange]) -> Provenance:
    """Who made the hunks of these files of a patch. records: the journal, oldest first; each is looked at once.

    A line that several calls wrote is the last one's. A hunk is that call's which wrote most of its lines, the later
    of two; what only removes lines is that call's which named them as what is to be replaced.
    """
    wanted = _wanted(patch, files)
    by_path = {path: found for found in wanted for path in (found.file.old, found.file.new)}
    pending: dict[str, tuple[int, ToolCall]] = {}
    for record in records:
        event = record.event
        if isinstance(event, Replied):
            pending = {call.id: (event.step, call) for call in event.reply.calls}
        elif isinstance(event, Observed) and (asked := pending.pop(event.observation.call_id, None)) is not None:
            step, call = asked
            made = Origin(step, record.seq, call.id, call.name, "file")
            said = _arguments(call) if event.files or event.snapshot is not None else {}
            for path in dict.fromkeys((*event.files, *_named(event, said))):
                if path in by_path:
                    _credit(by_path[path], made, said)
    return Provenance({HunkId(*key): origin for found in wanted for key, origin in _origins(found)})


def _wanted(patch: bytes, files: Sequence[FileChange]) -> list[_Wanted]:
    found: list[_Wanted] = []
    lines = places = 0
    for file in files:
        if file.kind == "text":
            continue
        wanted = _Wanted(file, [], {}, {})
        for place in () if file.binary else hunks(patch, file) or ():
            places += 1
            if places > HUNKS_MAX:
                break
            sides: dict[str, list[bytes]] = {"+": [], "-": []}
            lines += place.lines
            if lines <= LINES_MAX:
                for sign, line in changed_lines(patch, place):
                    if line.strip():
                        sides[sign].append(line.strip())
            wanted.hunks.append((place, sides["+"], sides["-"]))
            wanted.added |= dict.fromkeys(sides["+"])
            wanted.removed |= dict.fromkeys(sides["-"])
        found.append(wanted)
    return found


def _arguments(call: ToolCall) -> dict[str, Any]:
    try:
        said = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _named(event: Observed, said: Mapping[str, Any]) -> Iterator[str]:
    """The file that a file tool names: of a call that changed very many, not each is in the journal."""
    path = said.get("path")
    if event.observation.tool in ("write_file", "edit_file") and event.observation.status == "ok":
        yield str(path).removeprefix("/workspace/repo/").removeprefix("./")


def _credit(wanted: _Wanted, made: Origin, said: Mapping[str, Any]) -> None:
    """Note the lines of the file that this call said: what it wrote, and what it wanted replaced."""
    wanted.last = made
    for name, text in said.items():
        if isinstance(text, str) and name != "path":
            side = wanted.removed if name == "old_text" else wanted.added
            for line in text.encode("utf-8", "replace").split(b"\n"):
                if (line := line.strip()) in side:
                    side[line] = made


def _origins(wanted: _Wanted) -> Iterator[tuple[tuple[int, str, int], Origin]]:
    for place, added, removed in wanted.hunks:
        side, lines = (wanted.added, added) if added else (wanted.removed, removed)
        votes = Counter(origin for line in lines if (origin := side[line]) is not None)
        origin = wanted.last
        if votes:
            most, count = max(votes.items(), key=lambda vote: (vote[1], vote[0].step, vote[0].seq))
            origin = Origin(most.step, most.seq, most.call_id, most.tool, "text", count, len(lines))
        if origin is not None:
            yield (wanted.file.number, wanted.file.path, place.number), origin
    if not wanted.hunks and wanted.last is not None:  # binary, a mode, a rename: the file as a whole
        yield (wanted.file.number, wanted.file.path, 0), wanted.last
