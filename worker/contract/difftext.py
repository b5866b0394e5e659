"""Owns reading a patch of ours (sandbox_images/toolbox/patch.py makes it) as text: which files, which lines. Refuses
to apply one, and to read what another program wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

LINE_CHARS: Final = 1_000
"""Of a changed line so much is looked at."""
_HUNK: Final = re.compile(rb"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_ESCAPE: Final = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_NAMED: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}

Line = tuple[Literal["+", "-", " "], str]


@dataclass
class FileDiff:
    """One file of a patch. before: its path on the start commit, another one where it was renamed. hunks: its lines,
    none of a binary file."""

    path: str
    before: str
    status: Literal["added", "deleted", "renamed", "changed"] = "changed"
    hunks: list[list[Line]] = field(default_factory=list)

    def lines(self, sign: Literal["+", "-"]) -> Iterator[str]:
        """Its added or removed lines."""
        return (text for hunk in self.hunks for one, text in hunk if one == sign)


def files_of(patch: bytes) -> list[FileDiff]:
    """The files of a patch, in its order."""
    files: list[FileDiff] = []
    lines = iter(patch.split(b"\n"))
    for line in lines:
        if line.startswith(b"diff --git "):
            path = same_name(line.removeprefix(b"diff --git "))
            files.append(FileDiff(path, path))
        elif not files:
            continue
        elif line.startswith(b"new file mode"):
            files[-1].status = "added"
        elif line.startswith(b"deleted file mode"):
            files[-1].status = "deleted"
        elif line.startswith(b"rename from "):
            files[-1].status = "renamed"
            files[-1].before = name_said(line.removeprefix(b"rename from "))
        elif line.startswith(b"rename to "):
            files[-1].path = name_said(line.removeprefix(b"rename to "))
        elif hunk := _HUNK.match(line):
            counts = [1 if number is None else int(number) for number in hunk.groups()]
            files[-1].hunks.append(_hunk(lines, *counts))
    return files


def _hunk(lines: Iterator[bytes], before: int, after: int) -> list[Line]:
    """The lines of one hunk, by its own counts: one that was removed may look like a header."""
    hunk: list[Line] = []
    while before > 0 or after > 0:
        line = next(lines, None)
        if line is None:
            break
        text = line[1:].decode("utf-8", "replace")[:LINE_CHARS]
        match line[:1]:
            case b"+":
                after -= 1
                hunk.append(("+", text))
            case b"-":
                before -= 1
                hunk.append(("-", text))
            case b"\\":  # no newline at the end of the file
                continue
            case _:
                before, after = before - 1, after - 1
                hunk.append((" ", text))
    return hunk


def same_name(rest: bytes) -> str:
    """The path of `a/path b/path`, whose halves are alike; of a rename two other lines say more."""
    return name_said(rest[: len(rest) // 2]).removeprefix("a/")


def name_said(quoted: bytes) -> str:
    """A path as git writes it: in quotes where it holds what a line could not."""
    if quoted.startswith(b'"') and quoted.endswith(b'"') and len(quoted) > 1:
        quoted = _ESCAPE.sub(_unescaped, quoted[1:-1])
    return quoted.decode("utf-8", "backslashreplace")


def _unescaped(match: re.Match[bytes]) -> bytes:
    said = match[1]
    return bytes([int(said, 8) & 0xFF]) if len(said) == 3 else _NAMED.get(said, said)
