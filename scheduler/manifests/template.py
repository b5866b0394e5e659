"""Owns `{{ vars.name }}` in prompts and commands: data only, filled once. Refuses expressions, and to put a value
where a shell could read it as anything but one word.

`{{{{` is a literal `{{`. In a command a value becomes text in single quotes, so a place may only stand where the
shell reads no quotes around it; what comes before it must be plain enough to be sure of that. The value is one line,
because bash goes on with the next one after some errors of syntax. A program that evaluates its own arguments
(`eval`, `sh -c`, and of bash `printf -v`, `read`, `declare -i`, `[ -v`) is beyond this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

MARK: Final = "{{"
PLACE: Final = re.compile(
    r"\{\{(?:(?P<literal>\{\{)|[ \t]*(?P<name>[a-z_]\w*(?:\.[a-z_]\w*)+)[ \t]*\}\})?", re.ASCII | re.IGNORECASE
)
"""An escape, a place with its name, or `{{` that is neither."""

NO_NAME: Final = "{{ begins no name"
HOW_TO_NAME: Final = "write {{ vars.name }}, or {{{{ for {{ itself"
NO_WORD: Final = "stands where its value could not be quoted for the shell"
HOW_TO_QUOTE: Final = (
    "end quotes before it, as in 's/'{{ vars.old }}'/x/'; put $(...) in quotes, `...`, <<, (( and [[ behind it"
)

TOKEN: Final = re.compile(
    r"""
      '[^']*'
    | "(?: [^"\\`$] | \\. | \$\{\w+\} | \$(?![({\[\\]) )*"   # with no command inside
    | (?<=[ \t])\\\n(?!\#) | \\[^\n](?!\#)                     # a line that goes on; one letter, escaped
    | (?:^|(?<=[ \t\n]))\#[^\n]*                               # a comment
    | (?<![ \t\n;&|()<>])\#                                    # the same in the middle of a word is none
    | \$\{\w+\} | \$(?:\w+|[?!@*\#$-])(?!['"({]) | \$\((?![(\#])
    | \((?![(\#]) | <(?!<) | [?*+@!=](?!\() | (?<!\w)\[(?!\[)
    | [^'"\\`$\#(<?*+@!=\[]
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
"""What every POSIX shell and bash read alike; text that does not begin with one is refused before a place."""


def names(text: str) -> Iterator[tuple[int, str]]:
    """(offset, name) of each place."""
    return ((place.start(), place["name"]) for place in PLACE.finditer(text) if place["name"])


def faults(text: str, *, command: bool) -> Iterator[tuple[int, str, str]]:
    """(offset, message, hint) of each place that nothing could fill. command: the text is one of a shell."""
    for place in PLACE.finditer(text):
        if not place["name"] and not place["literal"]:
            yield place.start(), NO_NAME, HOW_TO_NAME
    at = 0
    for start, name in names(text) if command else ():
        while at < start and (token := TOKEN.match(text, at)):
            at = token.end()
        if at != start:
            yield start, f"{name} {NO_WORD}", HOW_TO_QUOTE
            return
        at = text.index("}}", start) + 2


def render(text: str, values: Mapping[str, str]) -> str:
    """The text with its places filled. Raises KeyError for a name without a value."""
    return PLACE.sub(lambda place: values[place["name"]] if place["name"] else MARK, text)


def render_command(text: str, values: Mapping[str, str]) -> str:
    """The same of a shell command: each value is one word in single quotes, whatever it holds."""
    return render(text, {name: _quoted(value) for name, value in values.items()})


def _quoted(value: str) -> str:
    """Always in quotes: beside other letters of its word a bare value could mean something."""
    return "'" + value.replace("'", "'\"'\"'") + "'"
