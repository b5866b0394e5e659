"""Owns a patch as a page shows it: its files, and of one file a window of rows, unified or side by side. Refuses to
hold more of it than the window: a patch may have 20 MiB of empty lines, or may be made to harm its reader.

Places in a patch are found by searching its bytes, in time linear in them; unidiff reads what lies in the window.
What is no patch that we know, or one whose own numbers do not fit its lines, is shown as the text that it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import Final, Literal, cast

from scheduler.web.patches.highlight import Allowance, Span, highlighted
from worker.contract.difftext import name_said, same_name

FILES_MAX: Final = 5_000
"""Files of one patch that are told apart. A fleet's patches name a thousand at most; each costs 1 KB."""
HUNKS_MAX: Final = 20_000
"""Of one file: a hunk of our patches has three lines around it, so that a file of 1 MiB has fewer."""
HEADER_BYTES: Final = 64 * 1024
"""Of what stands before a file's first hunk so much is read: two paths of 4,096 bytes, quoted, in three places."""
PATH_CHARS: Final = 4_096
LINE_BYTES: Final = 5_000
"""Of a line that is shown; some files are one line of a megabyte. The whole patch can be had as a file."""
ROWS: Final = 1_000
"""Of one window: more than a person reads at once, and 0.3 MB of HTML."""
RAW_BYTES: Final = 128 * 1024
"""Of one window of text that is no diff."""
EDGE_BYTES: Final = 4 * 1024
"""A line that is no longer than this is not cut at the edge of such a window."""
NO_NEWLINE: Final = b"\\ No newline at end of file"

Sign = Literal["+", "-", " ", "\\"]
Kind = Literal["added", "removed", "renamed", "mode", "changed", "text"]
"""`text`: what stands before the first file, or all of what is no patch."""

_FILE: Final = re.compile(rb"^diff --git ", re.MULTILINE)
_HUNK: Final = re.compile(rb"^@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@", re.MULTILINE)
_HUNK_LINE: Final = re.compile(rb"^@@ -", re.MULTILINE)


@dataclass(frozen=True)
class FileChange:
    """One file of a patch. old, new: its paths, alike unless it was renamed. start, stop: its bytes in the patch;
    body: where its first hunk begins, stop without one."""

    number: int
    kind: Kind
    old: str
    new: str
    start: int
    stop: int
    body: int
    added: int = 0
    removed: int = 0
    binary: bool = False
    old_mode: str = ""
    new_mode: str = ""

    @property
    def path(self) -> str:
        """Where it lies after the patch; where it lay, if it was removed."""
        return self.new


@dataclass(frozen=True)
class Patch:
    """files: in the patch's order, at most FILES_MAX; more_files: how many others there are. added, removed: of the
    files."""

    size: int
    files: tuple[FileChange, ...]
    more_files: int
    added: int
    removed: int


@dataclass(frozen=True)
class Row:
    """A line of a hunk. old, new: its numbers before and after. text: exactly as it is, without sign and newline;
    bytes that are no UTF-8 as `\\xff`. spans: the same in pieces with their colour. more: bytes of it left out."""

    sign: Sign
    old: int | None
    new: int | None
    text: str
    spans: tuple[Span, ...] = ()
    more: int = 0


@dataclass(frozen=True)
class Hunk:
    """What a window shows of one. number: from 0, of its file. before, after: its rows above and below the window."""

    number: int
    header: str
    rows: tuple[Row, ...]
    before: int = 0
    after: int = 0


@dataclass(frozen=True)
class Window:
    """Part of one file. first: its first row; stop: the one behind its last; total: of the file. raw: text instead of
    hunks, where the file is none that we can read; then rows are bytes."""

    file: FileChange
    hunks: tuple[Hunk, ...] = ()
    raw: str | None = None
    first: int = 0
    stop: int = 0
    total: int = 0


@dataclass(frozen=True)
class Place:
    """Where a hunk lies in a patch. start: its header; body: its first line; stop: behind its last."""

    number: int
    old: int
    new: int
    start: int
    body: int
    stop: int
    lines: int


def read(patch: bytes) -> Patch:
    """The files of a patch."""
    starts = [found.start() for found in islice(_FILE.finditer(patch), FILES_MAX + 1)]
    more = 0
    if len(starts) > FILES_MAX:
        more = patch.count(b"\ndiff --git ", starts[FILES_MAX - 1])
    files: list[FileChange] = []
    if patch and (not starts or starts[0] > 0):
        stop = starts[0] if starts else len(patch)
        files.append(FileChange(0, "text", "", "", 0, stop, stop))
    for start, stop in zip(starts[:FILES_MAX], [*starts[1:], len(patch)], strict=False):
        files.append(_file(patch, len(files), start, stop))
    added, removed = sum(file.added for file in files), sum(file.removed for file in files)
    return Patch(len(patch), tuple(files), more, added, removed)


def hunks(patch: bytes, file: FileChange) -> list[Place] | None:
    """Where its hunks lie. None when they are not what their headers say, or too many: then it is shown as text."""
    starts = [found.start() for found in islice(_HUNK_LINE.finditer(patch, file.body, file.stop), HUNKS_MAX + 1)]
    if len(starts) > HUNKS_MAX:
        return None
    places: list[Place] = []
    for start, stop in zip(starts, [*starts[1:], file.stop], strict=False):
        place = _hunk(patch, len(places), start, stop)
        if place is None:
            return None
        places.append(place)
    return places


def window(
    patch: bytes, file: FileChange, first: int = 0, most: int = ROWS, allowance: Allowance | None = None
) -> Window:
    """The rows of a file from `first` on, at most `most`. allowance: the time that may go into colours."""
    places = None if file.kind == "text" or file.binary else hunks(patch, file)
    shown: list[Hunk] = []
    row = 0
    for place in places or ():
        skip, take = max(0, first - row), min(place.lines, first + most - row)
        row += place.lines
        if take <= skip and not (place.lines == 0 and first <= row <= first + most):
            continue
        hunk = _read(patch, place, skip, take)
        if hunk is None:
            places = None
            break
        shown.append(hunk)
    if places is None:
        return _raw(patch, file, first)
    colours = allowance or Allowance()
    coloured = tuple(_coloured(hunk, file.path, colours) for hunk in shown)
    return Window(file, coloured, None, min(first, row), min(row, first + most), row)


def pairs(rows: Sequence[Row]) -> list[tuple[Row | None, Row | None]]:
    """The same rows side by side: what was removed beside what was added in its place."""
    told: list[tuple[Row | None, Row | None]] = []
    left: list[Row] = []
    right: list[Row] = []
    last: Sign = " "
    for row in rows:
        if row.sign == " " or (row.sign == "-" and right):
            told += zip_longest(left, right)
            left, right = [], []
        if row.sign == " ":
            told.append((row, row))
        elif row.sign == "\\":
            if last in (" ", "-"):
                left.append(row)
            if last in (" ", "+"):
                right.append(row)
        else:
            (left if row.sign == "-" else right).append(row)
        last = row.sign
    return [*told, *zip_longest(left, right)]


def changed_lines(patch: bytes, place: Place) -> Iterator[tuple[Sign, bytes]]:
    """The lines that a hunk removes and adds, as they lie in the patch, without sign and newline."""
    at = place.body
    while at < place.stop:
        end = patch.find(b"\n", at, place.stop)
        end = place.stop if end < 0 else end
        match patch[at : at + 1]:
            case b"+":
                yield "+", patch[at + 1 : end]
            case b"-":
                yield "-", patch[at + 1 : end]
        at = end + 1


def ends_open(patch: bytes, place: Place) -> Iterator[Sign]:
    """Of a hunk the sides whose last line has no newline behind it: `+`, `-`, or a space for both."""
    at = patch.find(b"\n" + NO_NEWLINE, place.body - 1, place.stop)
    while at >= 0:
        start = patch.rfind(b"\n", 0, at) + 1
        if start >= place.body and patch[start : start + 1] in (b"+", b"-", b" "):
            yield cast(Sign, patch[start : start + 1].decode())
        at = patch.find(b"\n" + NO_NEWLINE, at + 1, place.stop)


def _file(patch: bytes, number: int, start: int, stop: int) -> FileChange:
    found = patch.find(b"\n@@ -", start, stop)
    body = stop if found < 0 else found + 1
    head = patch[start : min(body, start + HEADER_BYTES)].split(b"\n")
    path = same_name(head[0].removeprefix(b"diff --git "))[:PATH_CHARS]
    file = FileChange(number, "changed", path, path, start, stop, body)
    for line in head[1:]:
        if line.startswith(b"new file mode "):
            file = replace(file, kind="added", new_mode=_mode(line))
        elif line.startswith(b"deleted file mode "):
            file = replace(file, kind="removed", old_mode=_mode(line))
        elif line.startswith(b"old mode "):
            file = replace(file, old_mode=_mode(line))
        elif line.startswith(b"new mode "):
            file = replace(file, new_mode=_mode(line))
        elif line.startswith(b"rename from "):
            file = replace(file, kind="renamed", old=_name(line.removeprefix(b"rename from ")))
        elif line.startswith(b"rename to "):
            file = replace(file, new=_name(line.removeprefix(b"rename to ")))
        elif line == b"GIT binary patch" or line.startswith(b"Binary files "):
            return replace(file, binary=True, body=stop)
    if file.kind == "changed" and body == stop and file.old_mode:
        file = replace(file, kind="mode")
    # Its first line follows a newline too: the one that ends the line before the hunk.
    added, removed = (patch.count(sign, body - 1, stop) for sign in (b"\n+", b"\n-"))
    return replace(file, added=added, removed=removed) if body < stop else file


def _name(quoted: bytes) -> str:
    return name_said(quoted)[:PATH_CHARS]


def _mode(line: bytes) -> str:
    return line.rpartition(b" ")[2][:6].decode("ascii", "replace")


def _hunk(patch: bytes, number: int, start: int, stop: int) -> Place | None:
    said = _HUNK.match(patch, start, stop)
    newline = patch.find(b"\n", start, stop)
    if said is None or newline < 0:
        return None
    # Each line is counted by the newline before it; the last may have none behind it.
    plus, minus, same = (patch.count(sign, newline, stop) for sign in (b"\n+", b"\n-", b"\n "))
    ends = patch.count(b"\n" + NO_NEWLINE + b"\n", newline, stop)
    ends += patch.endswith(b"\n" + NO_NEWLINE, newline, stop)
    lines = patch.count(b"\n", newline, stop) - patch.endswith(b"\n", newline, stop)
    counts = [1 if count is None else int(count) for count in (said[2], said[4])]
    if counts != [minus + same, plus + same] or lines != plus + minus + same + ends:
        return None
    return Place(number, int(said[1]), int(said[3]), start, newline + 1, stop, lines)


def _read(patch: bytes, place: Place, skip: int, take: int) -> Hunk | None:
    """Its lines from `skip` up to `take`, by unidiff, which is handed a hunk of just those. None when what it says is
    not what stands there."""
    from unidiff.errors import UnidiffParseError
    from unidiff.patch import PatchSet

    header = _text(patch[place.start : place.body - 1])[:LINE_BYTES]
    start = _line(patch, place.body, place.stop, skip)
    stop = _line(patch, start, place.stop, take - skip)
    if start == stop:
        return Hunk(place.number, header, (), skip, place.lines - skip)
    before = [patch.count(sign, place.body - 1, start - 1) for sign in (b"\n ", b"\n-", b"\n+")]
    inside = [patch.count(sign, start - 1, stop) for sign in (b"\n ", b"\n-", b"\n+")]
    whole = patch[start:stop].removesuffix(b"\n").split(b"\n")
    lines = [_text(_cut(line)) for line in whole]
    old, new = place.old + before[0] + before[1], place.new + before[0] + before[2]
    told = f"@@ -{old},{inside[0] + inside[1]} +{new},{inside[0] + inside[2]} @@"
    try:
        read = PatchSet.from_string("\n".join(["--- a", "+++ b", told, *lines]))
    except UnidiffParseError:
        return None
    found = [line for file in read for hunk in file for line in hunk]
    if [f"{line.line_type}{line.value.removesuffix(chr(10))}" for line in found] != lines:
        return None
    rows = tuple(
        Row(
            cast(Sign, line.line_type),
            line.source_line_no,
            line.target_line_no,
            text[1:],
            (),
            len(said) - len(_cut(said)),
        )
        for line, text, said in zip(found, lines, whole, strict=True)
    )
    return Hunk(place.number, header, rows, skip, place.lines - take)


def _cut(line: bytes) -> bytes:
    """What is shown of a line with its sign: not ending within a character."""
    if len(line) <= LINE_BYTES + 1:
        return line
    end = LINE_BYTES + 1
    while end > LINE_BYTES - 2 and line[end] & 0xC0 == 0x80:
        end -= 1
    return line[:end]


def _coloured(hunk: Hunk, path: str, allowance: Allowance) -> Hunk:
    """With the spans of each row: the lines of either side are read as one text, as they stand in the file."""
    rows = list(hunk.rows)
    for signs in ("- ", "+ "):
        side = [place for place, row in enumerate(rows) if row.sign in signs]
        for place, spans in zip(
            side, highlighted(path, [rows[place].text for place in side], allowance), strict=True
        ):
            rows[place] = replace(rows[place], spans=spans)
    plain = [row if row.spans or not row.text else replace(row, spans=(("", row.text),)) for row in rows]
    return replace(hunk, rows=tuple(plain))


def _raw(patch: bytes, file: FileChange, first: int) -> Window:
    total = file.stop - file.start
    start = _edge(patch, file, file.start + min(first, total))
    stop = _edge(patch, file, file.start + min(first + RAW_BYTES, total))
    return Window(file, (), _text(patch[start:stop]), start - file.start, stop - file.start, total)


def _edge(patch: bytes, file: FileChange, at: int) -> int:
    """Where text is cut near a place: behind a line, or else between two characters. Windows that begin a full one
    apart leave nothing out, and neither do those that begin where another ends."""
    if at in (file.start, file.stop):
        return at
    newline = patch.rfind(b"\n", max(file.start, at - EDGE_BYTES), at)
    if newline >= 0:
        return newline + 1
    for back in range(min(4, at - file.start)):
        if patch[at - back] & 0xC0 != 0x80:
            return at - back
    return at


def _line(patch: bytes, start: int, stop: int, count: int) -> int:
    """Where the line begins that has `count` others before it, from `start` on. Newlines are counted a block at a
    time: a hunk may have ten million lines."""
    block = 64 * 1024
    while count > 0 and start < stop:
        end = min(stop, start + block)
        there = patch.count(b"\n", start, end)
        if there >= count:
            break
        start, count = end, count - there
    while count > 0:
        newline = patch.find(b"\n", start, stop)
        if newline < 0:
            return stop
        start, count = newline + 1, count - 1
    return start


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
