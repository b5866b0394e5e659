"""Owns what git's .gitignore patterns mean. Refuses to run git, and to spend more than linear time on a pattern.

Git compares bytes, so patterns and paths are compared as Latin-1 text. Compared with real git in the tests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

FILE_BYTES = 1 << 20
"""A .gitignore is read up to here."""

_CLASSES = {
    "alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "blank": r"\ \t", "cntrl": r"\x00-\x1f\x7f", "digit": "0-9",
    "graph": r"\x21-\x7e", "lower": "a-z", "print": r"\x20-\x7e", "punct": r"!-/:-@\[-`{-~", "space": r"\ \t-\r",
    "upper": "A-Z", "xdigit": "0-9a-fA-F",
}  # fmt: skip

Segment = str | re.Pattern[str] | None
"""What one component of a path must be: this text, a match, or (None, `**`) any number of components."""


@dataclass(frozen=True)
class Pattern:
    """One line. anywhere: it has no slash and is compared with the last component only."""

    segments: tuple[Segment, ...]
    negated: bool
    folders_only: bool
    anywhere: bool

    def matches(self, parts: list[str], is_folder: bool) -> bool:
        """parts: the components below the folder of the pattern's file."""
        if self.folders_only and not is_folder:
            return False
        if self.anywhere:
            return _fits(self.segments[0], parts[-1])
        return _match(self.segments, parts)


class Rules:
    """All .gitignore files of one work tree: folder ("" for the root, else `a/b`) -> content.

    Paths are text with surrogate escapes for bytes that are not UTF-8."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._patterns = {_bytewise(folder): parse(content) for folder, content in files.items()}

    def ignored(self, path: str, is_folder: bool) -> bool:
        """What the patterns say of this path alone; whoever asks has looked at the folders above it first."""
        parts = _bytewise(path).split("/")
        for depth in range(len(parts) - 1, -1, -1):
            patterns = self._patterns.get("/".join(parts[:depth]))
            for pattern in reversed(patterns or ()):
                if pattern.matches(parts[depth:], is_folder):
                    return not pattern.negated
        return False


def parse(content: bytes) -> list[Pattern]:
    """The patterns of one file, in its order."""
    text = content[:FILE_BYTES].removeprefix(b"\xef\xbb\xbf").decode("latin-1")
    lines = (_trim(line.removesuffix("\r")) for line in text.split("\n"))
    return [pattern for pattern in map(_pattern, lines) if pattern]


def globbed(folder: str, glob: str) -> list[Pattern]:
    """What a glob means that begins in a folder of the work tree, whose own name is no pattern."""
    literal = re.sub(r"([\\*?\[])", r"\\\1", folder)
    return parse("/".join(["", *filter(None, [literal, glob.removeprefix("./")])]).encode())


def named(patterns: list[Pattern], path: bytes) -> bool:
    """Whether one of them names this file of the work tree."""
    parts = path.decode("latin-1").split("/")
    return any(pattern.matches(parts, False) for pattern in patterns)


def _bytewise(path: str) -> str:
    return path if path.isascii() else os.fsencode(path).decode("latin-1")


def _trim(line: str) -> str:
    """Without the trailing spaces that no backslash protects."""
    kept = line.rstrip(" ")
    backslashes = len(kept) - len(kept.rstrip("\\"))
    return kept + " " if backslashes % 2 and len(kept) < len(line) else kept


def _pattern(line: str) -> Pattern | None:
    if not line or line.startswith("#"):
        return None
    negated = line.startswith("!")
    body = line[1:] if negated else line
    folders_only = body.endswith("/")
    body = body.removesuffix("/")
    anywhere = "/" not in body
    try:
        segments = [_segment(tokens) for tokens in _split(body.removeprefix("/"))]
    except ValueError:
        return None
    if anywhere and segments == [None]:
        segments = [_segment([_STAR])]
    return Pattern(tuple(segments), negated, folders_only, anywhere) if body else None


Token = tuple[str, str]
"""`text` and the character it is, `one` and the expression of a character it may be, or `star`."""
_STAR = ("star", "")


def _split(body: str) -> list[list[Token]]:
    """The tokens of each component. Raises ValueError for what git says matches nothing."""
    components: list[list[Token]] = [[]]
    at = 0
    while at < len(body):
        char = body[at]
        at += 1
        if char == "[":
            expression, at = _bracket(body, at)
            components[-1].append(("one", expression))
            continue
        if char == "\\":
            if at == len(body):
                raise ValueError("a backslash at the end matches nothing")
            char = body[at]
            at += 1
        elif char in "*?":
            components[-1].append(_STAR if char == "*" else ("one", "."))
            continue
        if char == "/":
            components.append([])
        else:
            components[-1].append(("text", char))
    return components


def _segment(tokens: list[Token]) -> Segment:
    if tokens == [_STAR, _STAR]:
        return None
    if all(kind == "text" for kind, _ in tokens):
        return "".join(char for _, char in tokens)
    runs = [""]
    for kind, value in tokens:
        if kind == "star":
            runs.append("")
        else:
            runs[-1] += re.escape(value) if kind == "text" else value
    first, *rest = runs
    if not rest:
        return re.compile(first, re.DOTALL)
    # Between stars the earliest place is as good as any other, so the group is atomic and nothing backtracks.
    middle = "".join(f"(?>.*?{run})" for run in rest[:-1] if run)
    return re.compile(f"{first}{middle}.*{rest[-1]}", re.DOTALL)


def _bracket(body: str, at: int) -> tuple[str, int]:
    """The class that starts after its `[`, and where it ends. Raises ValueError when it never does."""
    negated = body[at : at + 1] in {"!", "^"}
    at += negated
    items = ""
    first = True
    while first or body[at : at + 1] != "]":
        first = False
        named = re.compile(r"\[:(\w+):\]").match(body, at)
        if named:
            items += _CLASSES[named[1]] if named[1] in _CLASSES else _unknown(named[1])
            at = named.end()
            continue
        low, at = _literal(body, at)
        high = low
        if body[at : at + 1] == "-" and body[at + 1 : at + 2] not in {"]", ""}:
            high, at = _literal(body, at + 1)
        # A range that is upside down is empty in git.
        items += f"{re.escape(low)}-{re.escape(high)}" if low <= high else ""
    if not items:
        return ("." if negated else "(?!)"), at + 1
    return f"[{'^' if negated else ''}{items}]", at + 1


def _literal(body: str, at: int) -> tuple[str, int]:
    at += body[at : at + 1] == "\\"
    if at >= len(body):
        raise ValueError("a class without its closing bracket matches nothing")
    return body[at], at + 1


def _unknown(name: str) -> str:
    raise ValueError(f"no class [:{name}:]")


def _fits(segment: Segment, part: str) -> bool:
    if segment is None:
        return True
    return segment == part if isinstance(segment, str) else segment.fullmatch(part) is not None


def _match(segments: tuple[Segment, ...], parts: list[str]) -> bool:
    """Components against components; `**` takes as few as it can and one more whenever what follows fails."""
    at = place = 0
    retry_at, retry_place = -1, 0
    while place < len(parts):
        if at < len(segments) and segments[at] is None:
            if at == len(segments) - 1:
                return True
            retry_at, retry_place = at, place
            at += 1
        elif at < len(segments) and _fits(segments[at], parts[place]):
            at, place = at + 1, place + 1
        elif retry_at >= 0:
            retry_place += 1
            at, place = retry_at + 1, retry_place
        else:
            return False
    return at == len(segments)
