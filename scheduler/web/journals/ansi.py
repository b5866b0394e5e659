"""Owns how the output of commands reads on a page: colours become classes, every other control character is written
out. Refuses links, cursor moves and whatever else a terminal would do for a text: the library that makes the markup
sees none of it.
"""

from __future__ import annotations

import re
from typing import Final

from markupsafe import Markup

from scheduler.reports.harmless import plain

COLOURS_MAX: Final = 1_000
"""Changes of colour of one text, of 64 KiB at most; behind them it goes on without. Each takes 10 microseconds, and a
page may have forty such texts."""
_COLOURS: Final = re.compile(r"(\x1b\[[0-9;]{0,64}m)")


def html(text: str) -> Markup:
    """The text as markup of our own: nothing in it is taken for an element."""
    from ansi2html import Ansi2HTMLConverter

    *parts, rest = _COLOURS.split(text, COLOURS_MAX)  # every second one is a sequence
    left = _COLOURS.sub("", rest)
    parts += [left] if left == rest else ["", "\x1b[0m", left]
    kept = (part if number % 2 else plain(part, lines=True) for number, part in enumerate(parts))
    # In classes: the pages allow no style beside their sheet. It escapes the text.
    return Markup(Ansi2HTMLConverter(inline=False, linkify=False).convert("".join(kept), full=False))
