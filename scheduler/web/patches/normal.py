"""Owns the normal form of a patch: what stays of it when all is set aside in which the same change of two
repositories differs. Pure. Refuses to set anything aside silently: what it was is told with the form.

Set aside are line numbers, context, object ids, the folders that files lie in, indentation that a hunk's changed
lines share, blanks at the ends of lines, the repository's own name, and versions that are the repository's: those of
removed lines, and in added ones those that the same hunk removes. A version that only added lines have is the change.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b, sha256
from heapq import nsmallest
from typing import Final

from scheduler.web.patches import diffs
from scheduler.web.patches.diffs import FileChange

PATCH_BYTES: Final = 2**20
"""A larger patch is not compared: it is read by a person, or by nobody."""
LINES_MAX: Final = 5_000
"""Changed lines of a patch that is compared."""
SKETCH: Final = 256
"""Of all shingles of a patch so many, the smallest by hash, stand for it: similarity is right to within 0.03."""
SHINGLES_MAX: Final = 10_000
SHINGLE_TOKENS: Final = 3
LINE_CHARS: Final = 1_000
"""Of a line that is cut into tokens; all of it is in the form's digest."""
ASIDE_MAX: Final = 12
"""Things set aside of one patch that are told by name; the others in number."""
BLANKS: Final = " \t\r"
"""What an editor puts before and behind a line. Other letters that show as nothing are part of it."""
LINE_ENDS: Final = "blanks at ends of lines"
NO_NEWLINE: Final = "no newline at the end"
NAME_CHARS_MIN: Final = 3
NAME: Final = "\0name\0"
VERSION: Final = "\0version\0"
"""No text can say these: a zero byte of its own is doubled."""

_VERSION: Final = re.compile(
    r"(?<![\w.])v?\d{1,9}(?:\.\d{1,9}){1,3}(?:[-.]?(?:rc|a|b|dev|post|alpha|beta)\.?\d{0,9})?(?![\w])"
)
_TOKEN: Final = re.compile(r"\w+|[^\w\s]")
_WORD: Final = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Form:
    """digest: of the whole form; two patches that have the same one differ only in what was set aside. sketch: what
    its similarity to others is told from. lines: its changed lines with their file as they are, to the last byte ->
    how often. aside: what was set aside, by name."""

    digest: str
    sketch: frozenset[int]
    lines: Counter[bytes]
    aside: tuple[str, ...] = ()
    more_aside: int = 0


class NotCompared(Exception):
    """Why a patch has no form, in words for a person."""


def form(patch: bytes, target: str) -> Form:
    """The normal form of a patch for this target. Raises NotCompared."""
    if len(patch) > PATCH_BYTES:
        raise NotCompared(f"its patch is over {PATCH_BYTES // 2**20} MiB")
    read = diffs.read(patch)
    if read.more_files or any(file.kind == "text" for file in read.files):
        raise NotCompared("its patch is none that can be read")
    names = _names(target)
    aside: dict[str, None] = {}
    lines: Counter[bytes] = Counter()
    texts: list[str] = []
    alike: Counter[str] = Counter()
    for file in sorted(read.files, key=lambda file: file.path):
        name, room = file.path.rpartition("/")[2], LINES_MAX - lines.total()
        texts.append("\n".join(_file(patch, file, alike[name], names, aside, lines, room)))
        alike[name] += 1
    texts.sort()
    whole = "\n".join(texts)
    told = list(aside)
    return Form(
        sha256(whole.encode("utf-8", "surrogatepass")).hexdigest(),
        frozenset(nsmallest(SKETCH, {*_shingles(whole)})),
        lines,
        tuple(told[:ASIDE_MAX]),
        max(0, len(told) - ASIDE_MAX),
    )


def differing(one: Form, other: Form) -> int:
    """How many changed lines stand in one patch and not in the other, as they are, each side counted."""
    return (one.lines - other.lines).total() + (other.lines - one.lines).total()


def similarity(one: Form, other: Form, at_least: float = 0.0) -> float:
    """From 0 to 1: the share of what either says that both say. 0 where it is under at_least."""
    both = len(one.sketch & other.sketch)
    union = len(one.sketch) + len(other.sketch) - both
    most = min(SKETCH, union)
    if not most or both < at_least * most:  # no more than those can be among the smallest of both
        return 0.0 if most else 1.0
    if union <= SKETCH:
        return both / union
    smallest = nsmallest(SKETCH, one.sketch | other.sketch)
    shared = sum(1 for hashed in smallest if hashed in one.sketch and hashed in other.sketch) / SKETCH
    return shared if shared >= at_least else 0.0


def _names(target: str) -> re.Pattern[str] | None:
    """What finds the repository's own name, however its words are joined and whatever their case."""
    last = re.split(r"[/:#@]", target.rstrip("/").removesuffix(".git"))[-1]
    words = _WORD.findall(last)[:8]
    if sum(map(len, words)) < NAME_CHARS_MIN:
        return None
    return re.compile(rf"(?<![^\W_]){'[-_. ]?'.join(map(re.escape, words))}(?![^\W_])", re.IGNORECASE)


def _file(
    patch: bytes,
    file: FileChange,
    number: int,
    names: re.Pattern[str] | None,
    aside: dict[str, None],
    lines: Counter[bytes],
    room: int,
) -> Iterator[str]:
    """The form of one file, line by line: of which kind, under which name, and what changes. number: among the files
    of its name. Notes in `aside` what it sets aside, and in `lines` what stands there really: the place once, and
    each changed line. Raises NotCompared over `room` lines."""
    folder, _, name = file.path.rpartition("/")
    if folder:
        aside[f"{folder}/"] = None
    mode = f"{file.old_mode}>{file.new_mode}" if file.old_mode or file.new_mode else ""
    yield f"{file.kind} {mode} {_nameless(file.old.rpartition('/')[2], names, aside)}>{_nameless(name, names, aside)}"
    path = f"{number} {name}\0".encode("utf-8", "surrogatepass")
    if file.binary:
        content = sha256(patch[patch.find(b"\n", file.start, file.stop) : file.stop]).hexdigest()
        lines[_hashed(path + content.encode())] += 1
        yield content
        return
    whole = f"{file.kind} {mode} {file.old}\0{file.new}\0"
    lines[_hashed(path + whole.encode("utf-8", "surrogatepass"))] += 1
    places = diffs.hunks(patch, file)
    if places is None or sum(place.lines for place in places) > 4 * LINES_MAX:
        raise NotCompared(
            "its patch is none that can be read" if places is None else f"over {LINES_MAX:,} lines change"
        )
    for place in places:
        changed = [
            (sign, line.decode("utf-8", "surrogateescape"))  # which no two texts have alike
            for sign, line in diffs.changed_lines(patch, place)
        ]
        room -= len(changed)
        if room < 0:
            raise NotCompared(f"over {LINES_MAX:,} lines change")
        for sign, line in changed:
            lines[_hashed(path + f"{sign}{line}".encode("utf-8", "surrogatepass"))] += 1
        for sign in diffs.ends_open(patch, place):
            lines[_hashed(path + f"{sign}\\".encode())] += 1
            aside[NO_NEWLINE] = None
        bare = [(sign, line.rstrip(BLANKS)) for sign, line in changed]
        if bare != changed:
            aside[LINE_ENDS] = None
        yield from _hunk(bare, names, aside)


def _hunk(
    changed: list[tuple[diffs.Sign, str]], names: re.Pattern[str] | None, aside: dict[str, None]
) -> Iterator[str]:
    indents = [len(line) - len(line.lstrip(BLANKS)) for _, line in changed if line]
    indent = min(indents, default=0)
    own = {version for sign, line in changed if sign == "-" for version in _VERSION.findall(line)}

    def set_aside(found: re.Match[str]) -> str:
        if found[0] not in own:
            return found[0]
        aside[found[0]] = None
        return VERSION

    for sign, line in changed:
        yield sign + _VERSION.sub(set_aside, _nameless(line[indent:], names, aside))


def _nameless(text: str, names: re.Pattern[str] | None, aside: dict[str, None]) -> str:
    text = text.replace("\0", "\0\0")
    if names is None:
        return text

    def set_aside(found: re.Match[str]) -> str:
        aside[found[0]] = None
        return NAME

    return names.sub(set_aside, text)


def _hashed(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _shingles(text: str) -> Iterable[int]:
    """Hashes of neighbouring tokens, each with the sign of its line."""
    left = SHINGLES_MAX
    for line in text.split("\n"):
        sign, tokens = line[:1], _TOKEN.findall(line[1 : LINE_CHARS + 1])
        for start in range(max(1, len(tokens) - SHINGLE_TOKENS + 1)):
            said = f"{sign} {' '.join(tokens[start : start + SHINGLE_TOKENS])}"
            yield (zlib.crc32(said.encode("utf-8", "surrogatepass")) * 0x9E3779B1) & 0xFFFFFFFF
            left -= 1
            if not left:
                return
