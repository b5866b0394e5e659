"""Owns every drawing on the pages: inline SVG, and beside each the table of the numbers that it shows. Pure. Refuses
to choose a colour: assets/charts.css does, by class, light and dark.

There is no style in the markup, since the pages' policy forbids it. A chart that would have too many marks is drawn
of neighbours put together, and says so; its table then has the same rows. Marks are told apart by their words too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from markupsafe import Markup

from scheduler.web import drawing as draw
from scheduler.web.drawing import WIDTH, Table

BARS_DRAWN: Final = 120
"""Along an axis: each stays four units wide."""
CELLS_DRAWN: Final = 400
"""Of a strip: a screen of a laptop shows no more apart."""
LANES_DRAWN, STRETCHES_DRAWN, POINTS_DRAWN = 60, 1_500, 500
"""Of a timeline: about 1 MB of page with its table."""
SECONDS_TOLD_S: Final = 600.0
"""The axis of a shorter timeline has seconds, and no date: by minutes its ticks would be the same."""
LABEL_CHARS: Final = 28
"""Of a lane's name in the drawing; the table has all of it."""
HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 220, 64, 12, 12, 24
LANE_LEFT, ROW = 150, 14

Told = Callable[[float], str]
"""A value as its table and its mark have it: `$0.12`, `12,345`."""
Merge = Literal["sum", "max", "last"]
"""What neighbours that are put together come to."""


def count(value: float) -> str:
    """`12,345`: how a value reads where nothing else is said."""
    return f"{value:,.0f}"


@dataclass(frozen=True)
class Series:
    """One thing that is measured, with a value (0 or more) for each label. kind: its colour, a word of charts.css."""

    name: str
    values: Sequence[float]
    kind: str = "one"


@dataclass(frozen=True)
class Cell:
    """One step of a strip. kind: its colour, and what it is called in the legend. href: within the site; "" for no
    link, and an address of another kind makes none."""

    kind: str
    label: str
    href: str = ""


@dataclass(frozen=True)
class Stretch:
    """A bar on a lane. start, end: seconds since 1970; one that goes on ends now. does: what the colour says in
    words. kind: the colour."""

    start: float
    end: float
    kind: str
    label: str
    does: str
    href: str = ""


@dataclass(frozen=True)
class Point:
    """A moment on a lane. at: seconds since 1970."""

    at: float
    kind: str
    label: str


@dataclass(frozen=True)
class Lane:
    """One line of a timeline, which becomes several where its bars overlap."""

    name: str
    stretches: Sequence[Stretch] = ()
    points: Sequence[Point] = ()


@dataclass(frozen=True)
class Shade:
    """A span of time that is shaded behind all lanes. start, end: seconds since 1970."""

    start: float
    end: float
    label: str


def over(
    name: str,
    title: str,
    labels: Sequence[str],
    series: Sequence[Series],
    *,
    shape: Literal["bars", "area"] = "bars",
    along: str = "step",
    told: Told = count,
    merge: Merge = "sum",
    limit: float | None = None,
    limit_name: str = "limit",
) -> Markup:
    """Stacked bars or areas along steps or time. name: of the drawing on its page, letters, digits and `-`. labels:
    one for each value. along: what a label is. merge: what neighbours come to, where there are too many. limit: drawn
    as a line across. Raises ValueError for a name or kind that is no plain word, and for series that do not fit."""
    if any(len(one.values) != len(labels) for one in series):
        raise ValueError("a series has another number of values than there are labels")
    labels, series, together = _fewer(labels, series, merge)
    tops = [sum(one.values[n] for one in series) for n in range(len(labels))]
    most = _nice(max([*tops, limit or 0.0, 0.0]))
    step = (WIDTH - LEFT - RIGHT) / max(1, len(labels))

    def across(n: float) -> float:
        return LEFT + step * n

    def up(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / most)

    drawn = [_grid(most, told, up), _ticks([(across(n + 0.5), labels[n]) for n in _some(len(labels), 6)])]
    below = [0.0] * len(labels)
    for one in series:
        above = [low + value for low, value in zip(below, one.values, strict=True)]
        if shape == "area":
            drawn.append(_area(one, [across(n + 0.5) for n in range(len(labels))], below, above, up))
        for n, value in enumerate(one.values):
            if shape == "bars" and value > 0:
                box = across(n + 0.1), up(above[n]), step * 0.8, up(below[n]) - up(above[n])
                drawn.append(draw.rect(box, one.kind, f"{along} {labels[n]}: {one.name} {told(value)}"))
        below = above
    if shape == "area":  # an area has no parts to point at
        for n, label in enumerate(labels):
            said = ", ".join(f"{one.name} {told(one.values[n])}" for one in series)
            whole = across(n), TOP, step, HEIGHT - TOP - BOTTOM
            drawn.append(draw.rect(whole, "none", f"{along} {label}: {said}"))
    if limit is not None:
        drawn.append(draw.line(LEFT, up(limit), WIDTH - RIGHT, up(limit), "limit", f"{limit_name}: {told(limit)}"))
    rows = [[label, *(told(one.values[n]) for one in series)] for n, label in enumerate(labels)]
    if limit is not None:
        rows.append([limit_name, told(limit), *[""] * (len(series) - 1)])
    table = Table([along, *(one.name for one in series)], rows, frozenset(range(1, len(series) + 1)))
    notes = [f"each mark is {together} neighbours, {_MERGED[merge]}"] if together > 1 else []
    legend = [(one.kind, one.name) for one in series] if len(series) > 1 else []
    return draw.figure(name, title, HEIGHT, drawn, table, legend, notes)


def strip(name: str, title: str, cells: Sequence[Cell], kinds: Sequence[str], *, along: str = "step") -> Markup:
    """One cell for each step, linked. kinds: all that there may be, the most telling first: of cells that are put
    together the most telling is shown. Raises ValueError as `over`, and for a cell of another kind."""
    group = math.ceil(len(cells) / CELLS_DRAWN) or 1
    shown = [
        min(cells[at : at + group], key=lambda cell: kinds.index(cell.kind)) for at in range(0, len(cells), group)
    ]
    width = WIDTH / max(1, len(shown))
    drawn = [
        draw.linked(
            draw.rect((n * width, 0, max(0.5, width - 0.4), 18), cell.kind, cell.label), cell.href, cell.label
        )
        for n, cell in enumerate(shown)
    ]
    rows = [[draw.link(cell.href, cell.label), draw.spoken(cell.kind)] for cell in shown]
    notes = [f"each cell is {group} {along}s, and shows the most telling of them"] if group > 1 else []
    used = {cell.kind for cell in shown}
    legend = [(kind, draw.spoken(kind)) for kind in kinds if kind in used]
    return draw.figure(name, title, 18, drawn, Table([along, "what"], rows), legend, notes, links=True, words=False)


def lanes(
    name: str, title: str, given: Sequence[Lane], *, shades: Sequence[Shade] = (), notes: Sequence[str] = ()
) -> Markup:
    """Bars and points over time, one lane or more below each other; times are UTC. notes: what the picture leaves
    out, to be said below it. Raises ValueError as `over`."""
    shown, left = _bounded(given)
    times = [time for lane in shown for one in lane.stretches for time in (one.start, one.end)]
    times += [point.at for lane in shown for point in lane.points]
    first, last = (min(times), max(times)) if times else (0.0, 1.0)
    span = max(1.0, last - first)

    def across(at: float) -> float:
        return LANE_LEFT + (WIDTH - LANE_LEFT - RIGHT) * min(1.0, max(0.0, (at - first) / span))

    drawn: list[Markup] = []
    rows: list[list[str]] = []
    y = 4.0
    for lane in shown:
        packed = _packed(lane.stretches)
        high = ROW * max([1, *(row + 1 for row in packed)])
        cut = lane.name if len(lane.name) <= LABEL_CHARS else lane.name[: LABEL_CHARS - 1] + "…"
        drawn.append(draw.text(LANE_LEFT - 6, y + ROW - 4, cut, "lane"))
        drawn.append(draw.line(LANE_LEFT, y + high + 2, WIDTH - RIGHT, y + high + 2, "grid"))
        for one, row in zip(lane.stretches, packed, strict=True):
            box = across(one.start), y + row * ROW, max(1.0, across(one.end) - across(one.start)), ROW - 3.0
            words = f"{one.label}, {one.does}, {clock(one.start)} to {clock(one.end)}"
            drawn.append(draw.linked(draw.rect(box, one.kind, words), one.href, words))
            rows.append([lane.name, draw.link(one.href, one.label), one.does, clock(one.start), clock(one.end)])
        for point in lane.points:
            x, words = across(point.at), f"{point.label}, {clock(point.at)}"
            drawn.append(draw.diamond(x, y + ROW / 2 - 1.5, point.kind, words))
            rows.append([lane.name, point.label, draw.spoken(point.kind), clock(point.at), clock(point.at)])
        y += high + 5
    behind = [
        draw.rect((across(one.start), 0, across(one.end) - across(one.start), y), "shade", one.label)
        for one in shades
        if one.end > first and one.start < last
    ]
    rows += [["all", one.label, "shaded", clock(one.start), clock(one.end)] for one in shades]
    height = y + BOTTOM
    seen = slice(11, 19) if span < SECONDS_TOLD_S else slice(5, 16)
    ticks = [(across(first + span * n / 4), clock(first + span * n / 4)[seen]) for n in range(5)] if times else []
    axis = [draw.text(x, height - 8, text, _tick(n, len(ticks))) for n, (x, text) in enumerate(ticks)]
    kinds = dict.fromkeys((one.kind, one.does) for lane in shown for one in lane.stretches)
    kinds |= dict.fromkeys((point.kind, draw.spoken(point.kind)) for lane in shown for point in lane.points)
    table = Table(["lane", "what", "how", "from, UTC", "to, UTC"], rows)
    parts = [*behind, *drawn, *axis]
    return draw.figure(name, title, height, parts, table, list(_first_words(kinds)), [*notes, *left], links=True)


def gauge(value: float, of: float, text: str, kind: str = "one") -> Markup:
    """A small bar for a cell of a table; text says the same in words, and stands beside it. of: the full width."""
    share = min(1.0, max(0.0, value / of)) if of > 0 else 0.0
    bar = draw.rect((0, 0, 60 * share, 8), kind)
    return Markup(
        '<span class="gauge"><svg class="chart" viewBox="0 0 60 8" width="60" height="8" aria-hidden="true">'
        '<rect class="track" x="0" y="0" width="60" height="8"/>{}</svg> <span class="number">{}</span></span>'
    ).format(bar, draw.said(text))


def clock(at: float) -> str:
    """`2026-11-30 02:14:05`, UTC. at: seconds since 1970."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


_MERGES: Final[dict[Merge, Callable[[Sequence[float]], float]]] = {
    "sum": sum,
    "max": max,
    "last": lambda values: values[-1],
}
_MERGED: Final[dict[Merge, str]] = {"sum": "added up", "max": "the highest of them", "last": "the last of them"}


def _fewer(labels: Sequence[str], series: Sequence[Series], merge: Merge) -> tuple[list[str], list[Series], int]:
    group = math.ceil(len(labels) / BARS_DRAWN) or 1
    if group == 1:
        return list(labels), list(series), 1
    starts = range(0, len(labels), group)
    named = [_span(labels[at : at + group]) for at in starts]
    merged = _MERGES[merge]
    put = [Series(one.name, [merged(one.values[at : at + group]) for at in starts], one.kind) for one in series]
    return named, put, group


def _span(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{labels[0]} to {labels[-1]}"


def _nice(most: float) -> float:
    """The end of an axis: 1, 2, 2.5 or 5 times a power of ten."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(power * step for step in (1, 2, 2.5, 5, 10) if power * step >= most * (1 - 1e-9))


def _some(count: int, most: int) -> list[int]:
    """Places of so many at most, spread evenly."""
    return sorted({round(n * (count - 1) / max(1, most - 1)) for n in range(min(count, most))})


def _packed(stretches: Sequence[Stretch]) -> list[int]:
    """The row of each, so that none covers another: the first that is free when it begins."""
    rows: list[float] = []
    placed = [0] * len(stretches)
    for n in sorted(range(len(stretches)), key=lambda n: (stretches[n].start, stretches[n].end)):
        one = stretches[n]
        row = next((at for at, free in enumerate(rows) if free <= one.start), len(rows))
        rows[row : row + 1] = [max(one.end, one.start)]
        placed[n] = row
    return placed


def _bounded(given: Sequence[Lane]) -> tuple[list[Lane], list[str]]:
    shown: list[Lane] = []
    stretches = points = 0
    for lane in given[:LANES_DRAWN]:
        some = lane.stretches[: STRETCHES_DRAWN - stretches]
        marks = lane.points[: POINTS_DRAWN - points]
        stretches, points = stretches + len(some), points + len(marks)
        shown.append(Lane(lane.name, some, marks))
    left = [
        f"{number} more {what} are left out"
        for number, what in (
            (len(given) - len(shown), "lanes"),
            (sum(len(lane.stretches) for lane in given) - stretches, "bars"),
            (sum(len(lane.points) for lane in given) - points, "marks"),
        )
        if number
    ]
    return shown, left


def _first_words(kinds: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Each colour once, with all that it stands for."""
    found: dict[str, list[str]] = {}
    for kind, does in kinds:
        found.setdefault(kind, []).append(does)
    yield from ((kind, ", ".join(dict.fromkeys(does))) for kind, does in found.items())


def _grid(most: float, told: Told, up: Told | Callable[[float], float]) -> Markup:
    lines: list[Markup] = []
    for n in range(5):
        value, y = most * n / 4, float(up(most * n / 4))
        lines.append(draw.line(LEFT, y, WIDTH - RIGHT, y, "grid"))
        lines.append(draw.text(LEFT - 6, y + 4, told(value), "scale"))
    return draw.join(lines)


def _ticks(places: Sequence[tuple[float, str]]) -> Markup:
    room = LABEL_CHARS // 2
    return draw.join(
        draw.text(x, HEIGHT - 6, text[:room], _tick(n, len(places))) for n, (x, text) in enumerate(places)
    )


def _tick(n: int, of: int) -> str:
    """Its classes: the outer ones keep within the drawing."""
    return "tick first" if n == 0 else "tick last" if n == of - 1 else "tick"


def _area(
    one: Series, xs: Sequence[float], below: Sequence[float], above: Sequence[float], up: Callable[[float], float]
) -> Markup:
    if not xs:
        return Markup()
    points = [(x, up(value)) for x, value in zip(xs, above, strict=True)]
    points += [(x, up(value)) for x, value in zip(reversed(xs), reversed(below), strict=True)]
    path = " ".join(f"{'L' if n else 'M'}{draw.short(x)} {draw.short(y)}" for n, (x, y) in enumerate(points))
    return Markup('<path class="{}" d="{}Z"/>\n').format(draw.colour(one.kind), path)
