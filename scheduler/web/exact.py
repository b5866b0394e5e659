"""Owns showing a text exactly as it is, to a person who decides on it: whatever would not show is written out, and
marked, so that it cannot be mistaken for the same letters written plainly. Refuses to leave anything out.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

from scheduler.reports.harmless import plain

_UNSEEN: Final = ("Cf", "Zl", "Zp", "Cc", "Cs", "Co", "Cn")
"""Of characters that show as nothing, or as something else than they are."""
_BLANK_LETTERS: Final = frozenset("\u115f\u1160\u3164\uffa0\u2800\u034f\u180b\u180c\u180d")
"""Letters and marks that a font draws as nothing."""


@dataclass(frozen=True)
class Piece:
    """A part of a text. hidden: it is written out, and would not show."""

    text: str
    hidden: bool = False


@dataclass(frozen=True)
class Exact:
    """hidden: how many characters would not show."""

    pieces: tuple[Piece, ...]
    hidden: int
    lines: int


def exact(text: str) -> Exact:
    """The whole text in pieces. Newlines and tabs stay."""
    pieces: list[Piece] = []
    hidden, start = 0, 0
    for at, letter in enumerate(text):
        if not _is_hidden(letter):
            continue
        if start < at:
            pieces.append(Piece(text[start:at]))
        pieces.append(Piece(_written(letter), True))
        hidden, start = hidden + 1, at + 1
    if start < len(text):
        pieces.append(Piece(text[start:]))
    return Exact(tuple(pieces), hidden, text.count("\n") + 1)


def code(text: str) -> Markup:
    """A line of a patch, or a path in one: what would not show is written out and marked."""
    if text.isascii() and text.isprintable():
        return escape(text)
    mark = Markup("<mark>{}</mark>").format
    return Markup("").join(mark(one.text) if one.hidden else escape(one.text) for one in exact(text).pieces)


def _is_hidden(letter: str) -> bool:
    if letter in "\n\t " or (letter.isascii() and letter.isprintable()):
        return False
    if letter in _BLANK_LETTERS or 0xFE00 <= ord(letter) <= 0xFE0F or 0xE0100 <= ord(letter) <= 0xE01EF:
        return True
    kind = unicodedata.category(letter)
    return kind in _UNSEEN or kind == "Zs"


def _written(letter: str) -> str:
    told = plain(letter)
    if told != letter:
        return told
    code = ord(letter)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
