"""Owns how the output of commands reads on a page: colours become classes, every other control character is written
out. Refuses links, cursor moves and whatever else a terminal would do for a text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import Final

from markupsafe import Markup, escape

from scheduler.reports.harmless import plain

_COLOURS: Final = re.compile(r"\x1b\[([0-9;:]{0,64})m")
_MARKS: Final = {1: "bold", 2: "dim", 3: "italic", 4: "under", 7: "inverse", 9: "struck"}
_ENDED: Final = {22: ("bold", "dim"), 23: ("italic",), 24: ("under",), 27: ("inverse",), 29: ("struck",)}
_BASIC: Final = (
    *((0, 0, 0), (205, 0, 0), (0, 205, 0), (205, 205, 0), (0, 0, 238), (205, 0, 205), (0, 205, 205), (229, 229, 229)),
    *((127, 127, 127), (255, 0, 0), (0, 255, 0), (255, 255, 0), (92, 92, 255), (255, 0, 255), (0, 255, 255)),
    (255, 255, 255),
)
"""The sixteen that have classes, as a terminal shows them: other colours become the nearest of these."""


@dataclass
class _Pen:
    """fore, back: a number of _BASIC, None for the page's own."""

    fore: int | None = None
    back: int | None = None
    marks: tuple[str, ...] = ()

    @property
    def classes(self) -> str:
        names = [*self.marks]
        names += [] if self.fore is None else [f"f{self.fore}"]
        names += [] if self.back is None else [f"b{self.back}"]
        return " ".join(f"a-{name}" for name in names)

    def take(self, told: str) -> None:
        """Follow the numbers of one sequence."""
        numbers = iter([int(one) if len(one) < 4 else 0 for one in re.split("[;:]", told or "0") if one] or [0])
        for number in numbers:
            if number == 0:
                self.fore = self.back = None
                self.marks = ()
            elif number in _MARKS and _MARKS[number] not in self.marks:
                self.marks = (*self.marks, _MARKS[number])
            elif number in _ENDED:
                self.marks = tuple(mark for mark in self.marks if mark not in _ENDED[number])
            elif number in (38, 48):
                kind = next(numbers, 0)
                parts = list(islice(numbers, {5: 1, 2: 3}.get(kind, 0)))
                colour = _nearest(parts)
                if number == 38:
                    self.fore = colour
                else:
                    self.back = colour
            elif 30 <= number <= 37 or 90 <= number <= 97:
                self.fore = number - 30 if number < 90 else number - 82
            elif 40 <= number <= 47 or 100 <= number <= 107:
                self.back = number - 40 if number < 100 else number - 92
            elif number == 39:
                self.fore = None
            elif number == 49:
                self.back = None


def html(text: str) -> Markup:
    """The text as markup of our own: nothing in it is taken for an element."""
    out: list[Markup] = []
    pen, at = _Pen(), 0
    for found in _COLOURS.finditer(text):
        _put(out, text[at : found.start()], pen)
        pen.take(found[1])
        at = found.end()
    _put(out, text[at:], pen)
    return Markup("").join(out)


def _put(out: list[Markup], text: str, pen: _Pen) -> None:
    if text:
        words = escape(plain(text, lines=True))
        classes = pen.classes
        out.append(Markup('<span class="{}">{}</span>').format(classes, words) if classes else words)


def _nearest(parts: list[int]) -> int | None:
    """Of an index of 256 colours, or red, green and blue."""
    if len(parts) == 1 and parts[0] < 16:
        return parts[0]
    if len(parts) == 1:
        index = min(parts[0], 255)
        level = 8 + 10 * (index - 232)
        cube = [
            0 if one == 0 else 55 + 40 * one for one in ((index - 16) // 36, (index - 16) // 6 % 6, (index - 16) % 6)
        ]
        parts = [level] * 3 if index >= 232 else cube
    if len(parts) != 3:
        return None
    away = [sum((one - two) ** 2 for one, two in zip(parts, basic, strict=True)) for basic in _BASIC]
    return away.index(min(away))
