"""Owns the page that sets runs side by side. Refuses to find out what differs (scheduler/reports/compare.py)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from scheduler import runs
from scheduler.reports import compare as comparing
from scheduler.reports.compare import Side
from scheduler.web.page import Asked, Page, Way
from scheduler.web.site import Site
from worker.contract.errors import NotFoundFault, UsageFault
from worker.contract.events import Observed, Replied

COMPARED: Final = 4
FRESH_S: Final = 60.0
"""Two whole journals are read for a comparison."""
PICK: Final = "pick."
"""Of fields of a form: `pick.<run>`, which is how rows are ticked."""
ALIKE_SHOWN: Final = 20


@dataclass(frozen=True)
class Line:
    """Of a difference of patches. kind: `add`, `del`, `hunk` or `same`."""

    kind: str
    text: str


@dataclass(frozen=True)
class Compared:
    """A run against the first. same: it did the same, step by step. first_seq, other_seq: segments of the steps at
    which their ways part, -1 for none. patch: what differs between the patches, none for equal ones."""

    run: str
    same: bool
    step: int
    first: str
    other: str
    first_seq: int
    other_seq: int
    patch: tuple[Line, ...]


@dataclass(frozen=True)
class Row:
    """A heading, and of each run a text. differs: not all say the same."""

    heading: str
    cells: tuple[str, ...]
    differs: bool


@dataclass(frozen=True)
class Alike:
    """Another run of the same target, to compare with."""

    run: str
    place: str
    state: str
    verdict: str
    chosen: bool


@dataclass(frozen=True)
class Comparison:
    """runs: ids. wanted: what was asked for, as it was written. rows: of all. against: the others against the first.
    alike: runs of the first one's target."""

    wanted: str
    runs: tuple[str, ...]
    rows: tuple[Row, ...]
    against: tuple[Compared, ...]
    alike: tuple[Alike, ...]


def compare(site: Site, asked: Asked) -> Page:
    picked = [name.removeprefix(PICK) for name, value in asked.query.items() if name.startswith(PICK) and value]
    words = list(dict.fromkeys([*re.split(r"[\s,]+", asked.query.get("runs", "")), *picked]))
    words = [word for word in words if word]
    if len(words) > COMPARED:
        raise UsageFault(f"{len(words)} runs are too many to compare", hint=f"take 2 to {COMPARED}")
    found = tuple(dict.fromkeys(_named(site, word) for word in words))
    rows, against = ((), ()) if len(found) < 2 else _compared(site, found)
    data = Comparison(",".join(found), found, rows, against, _alike(site, found))
    command = f"dawn compare {' '.join(found)}" if len(found) > 1 else ""
    return Page("compare.html", "Compare runs", data, command)


def _named(site: Site, word: str) -> str:
    """The run that a word names, by its first letters too."""
    try:
        return site.seen.view(word).task.run
    except (NotFoundFault, UsageFault):
        return runs.find(site.archive, word, kinds=("run",)).id


def _compared(site: Site, found: tuple[str, ...]) -> tuple[tuple[Row, ...], tuple[Compared, ...]]:
    stamps = tuple(site.seen.view(run).run.last_hash for run in found)
    return site.seen.answer(("compared", found, stamps), lambda: _compare(site, found), FRESH_S)


def _compare(site: Site, found: tuple[str, ...]) -> tuple[tuple[Row, ...], tuple[Compared, ...]]:
    first, *others = [comparing.side(site.archive, run) for run in found]
    rows = []
    for heading, cells in _joined(comparing.table([first, *others])):
        rows.append(Row(heading, cells, len(set(cells)) > 1))
    return tuple(rows), tuple(_against(first, other) for other in others)


def _joined(table: list[tuple[str, ...]]) -> list[tuple[str, tuple[str, ...]]]:
    """The lines of one cell together again."""
    number, named = 0, []
    for heading, *cells in table:
        number += bool(heading)
        named.append((number, heading, cells))
    joined = []
    for _, lines in groupby(named, key=lambda line: line[0]):
        of = list(lines)
        columns = zip(*(cells for _, _, cells in of), strict=True)
        joined.append((of[0][1], tuple("\n".join(filter(None, column)) for column in columns)))
    return joined


def _against(first: Side, other: Side) -> Compared:
    part, lines = comparing.parting(first, other), comparing.patches(first, other)
    return Compared(
        run=other.view.task.run,
        same=part is None,
        step=part.step if part else 0,
        first=part.first if part else "",
        other=part.other if part else "",
        first_seq=_step_at(first, part.first_seq) if part else -1,
        other_seq=_step_at(other, part.other_seq) if part else -1,
        patch=tuple(Line(_kind(line), line) for line in lines),
    )


def _step_at(side: Side, seq: int) -> int:
    """The segment, where a step's page shows it; else -1."""
    shown = (record.seq for record in side.records if isinstance(record.event, Replied | Observed))
    return seq if seq in shown else -1


def _kind(line: str) -> str:
    if line.startswith(("--- ", "+++ ", "@@")):
        return "hunk"
    return {"+": "add", "-": "del"}.get(line[:1], "same")


def _alike(site: Site, found: tuple[str, ...]) -> tuple[Alike, ...]:
    """Candidates and retries of the first run's target."""
    if not found:
        return ()
    task = site.seen.view(found[0]).task
    try:
        views = site.seen.batch(task.batch).found
    except NotFoundFault:
        return ()
    alike = [view for view in views if view.task.target == task.target]
    if len(alike) < 2:
        return ()
    return tuple(
        Alike(
            view.task.run,
            view.place,
            view.state,
            (view.run.sealed and view.run.sealed.verdict) or "",
            view.task.run in found,
        )
        for view in alike[:ALIKE_SHOWN]
    )


WAYS: Final = (Way("/compare", compare),)
