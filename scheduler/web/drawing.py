"""Owns the marks that a drawing is made of, the table beside it, and the figure around both. Refuses a word in a
class or an id that is not plain, and an address outside the site: whatever else a text holds, it stays text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from markupsafe import Markup, escape

from scheduler.reports.harmless import plain as harmless

WIDTH: Final = 720
"""Of a drawing, in its own units; on the page it takes the room there is."""
_WORD: Final = re.compile(r"[a-z][a-z0-9-]*")
_ELSEWHERE: Final = re.compile(r"[^/?#]*:|//|[\\\x00-\x20]|/[\\\x00-\x20]")
"""What begins so is no address within the site: another scheme, another host, or what a browser takes for one."""


@dataclass(frozen=True)
class Table:
    """The numbers of a chart. Cells are texts, or made by this module."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = field(default_factory=frozenset)

    def markup(self, title: str) -> Markup:
        """Folded, for whoever does not see the drawing or wants it exact."""
        head = join(Markup('<th scope="col">{}</th>').format(said(text)) for text in self.headings)
        body = join(
            Markup("<tr>{}</tr>\n").format(
                join(
                    Markup('<td class="number">{}</td>' if n in self.numbers else "<td>{}</td>").format(said(text))
                    for n, text in enumerate(row)
                )
            )
            for row in self.rows
        )
        return Markup(
            '<details class="chart-table"><summary>The numbers as a table</summary>'
            '<div class="wide" role="group" tabindex="0" aria-label="{}"><table>\n'
            "<thead><tr>{}</tr></thead>\n<tbody>\n{}</tbody></table></div></details>"
        ).format(said(title), head, body)


def figure(
    name: str,
    title: str,
    height: float,
    parts: Sequence[Markup],
    table: Table,
    legend: Sequence[tuple[str, str]],
    notes: Sequence[str],
    links: bool = False,
    words: bool = True,
) -> Markup:
    """links: the marks can be followed, which what counts as one image could not have. words: there are some in it,
    for which a narrow screen scrolls sideways."""
    marks = [Markup('<li><i class="swatch {}"></i>{}</li>').format(colour(kind), said(text)) for kind, text in legend]
    return Markup(
        '<figure class="chart">\n<figcaption id="{name}-title">{title}{notes}</figcaption>\n'
        '{before}<svg class="chart" role="{role}" aria-labelledby="{name}-title" viewBox="0 0 {width} {height}">\n'
        "{parts}</svg>{after}\n{legend}{table}\n</figure>\n"
    ).format(
        name=plain(name),
        title=said(title),
        before=Markup('<div class="wide" role="group" tabindex="0" aria-labelledby="{}-title">').format(plain(name))
        if words
        else "",
        after=Markup("</div>") if words else "",
        notes=Markup(' <small class="faint">{}</small>').format(said("; ".join(notes))) if notes else "",
        role="group" if links else "img",
        width=WIDTH,
        height=short(height),
        parts=join(parts),
        legend=Markup('<ul class="legend">{}</ul>\n').format(join(marks)) if marks else "",
        table=table.markup(title),
    )


def rect(box: tuple[float, float, float, float], kind: str, words: str = "") -> Markup:
    """words: what it says when it is pointed at. kind: its colour."""
    x, y, width, height = (short(one) for one in box)
    inside = Markup("<title>{}</title>").format(said(words)) if words else ""
    return Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}">{}</rect>\n').format(
        colour(kind), x, y, width, height, inside
    )


def diamond(x: float, y: float, kind: str, words: str) -> Markup:
    """A mark around a point."""
    corners = [(x, y - 5), (x + 5, y), (x, y + 5), (x - 5, y)]
    path = " ".join(f"{short(across)},{short(down)}" for across, down in corners)
    return Markup('<polygon class="{}" points="{}"><title>{}</title></polygon>\n').format(
        colour(kind), path, said(words)
    )


def line(x: float, y: float, to_x: float, to_y: float, kind: str, words: str = "") -> Markup:
    """A straight one."""
    inside = Markup("<title>{}</title>").format(said(words)) if words else ""
    return Markup('<line class="{}" x1="{}" y1="{}" x2="{}" y2="{}">{}</line>\n').format(
        colour(kind), short(x), short(y), short(to_x), short(to_y), inside
    )


def text(x: float, y: float, words: str, kinds: str) -> Markup:
    """Words in the drawing. kinds: classes, of ours."""
    return Markup('<text class="{}" x="{}" y="{}">{}</text>\n').format(kinds, short(x), short(y), said(words))


def linked(mark: Markup, href: str, words: str) -> Markup:
    """Not among the stops of the tab key: the table has the same links in order."""
    if not within_site(href):
        return mark
    return Markup('<a href="{}" tabindex="-1" aria-label="{}">{}</a>\n').format(href, said(words), mark)


def link(href: str, words: str) -> Markup:
    """The words, followed where the address is one of ours."""
    return Markup('<a href="{}">{}</a>').format(href, said(words)) if within_site(href) else said(words)


def within_site(href: str) -> bool:
    """Whether an address leads to a page of ours."""
    return bool(href) and _ELSEWHERE.match(href) is None


def colour(kind: str) -> str:
    """The class of a colour. Raises ValueError for what is no plain word."""
    return f"k-{plain(kind)}"


def plain(word: str) -> str:
    """The same word. Raises ValueError for one that may not stand in a class or an id."""
    if not _WORD.fullmatch(word):
        raise ValueError(f"{word!r} is no name of a colour or a drawing")
    return word


def spoken(kind: str) -> str:
    """A colour's word as a person reads it."""
    return kind.replace("-", " ")


def short(value: float) -> str:
    """A coordinate: a tenth of a unit is finer than any screen."""
    return f"{value:.1f}".removesuffix(".0")


def said(text: str) -> Markup:
    """A text as text, with every control and direction character written out; what this module made stays."""
    return text if isinstance(text, Markup) else escape(harmless(text))


def join(parts: Iterable[Markup]) -> Markup:
    """One after the other."""
    return Markup("").join(parts)
