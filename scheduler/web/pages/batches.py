"""Owns the list of batches, and of each its runs and its failures. Refuses to retry: another page makes changes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from scheduler.reports.morning import failures, unread
from scheduler.reports.reported import Group
from scheduler.reports.rows import Budgets
from scheduler.runs import UNREADABLE, standing
from scheduler.selection import CLASSES, STATES
from scheduler.web.headline import Head, head, money
from scheduler.web.page import PER_PAGE, Asked, Page, Slice, Way, cut
from scheduler.web.runlist import RunRow, Wanted, row, wanted
from scheduler.web.site import Site
from worker.contract.errors import NotFoundFault
from worker.store.members import Member

ROWS_SHOWN: Final = PER_PAGE
BATCHES_SHOWN: Final = 30
"""On one page: the sentence of each is looked up."""


@dataclass(frozen=True)
class Listing:
    """heads: newest first."""

    archive: str
    heads: tuple[BatchRow, ...]
    slice: Slice


@dataclass(frozen=True)
class BatchRow:
    """A batch in the list. head: None where its list of runs cannot be read; why says so."""

    batch: str
    at: str
    head: Head | None
    why: str = ""


def listing(site: Site, asked: Asked) -> Page:
    known = site.seen.batches()[::-1]
    part = cut(len(known), asked, BATCHES_SHOWN)
    shown = tuple(_listed(site, one.batch, one.at) for one in known[part.start : part.stop])
    return Page("batches.html", "Batches", Listing(site.archive.url, shown, part), "dawn status --all", follows="all")


def _listed(site: Site, batch: str, at: str) -> BatchRow:
    try:
        return BatchRow(batch, at, head(site, batch))
    except (NotFoundFault, *UNREADABLE) as fault:
        return BatchRow(batch, at, None, fault.message)


@dataclass(frozen=True)
class Column:
    """A heading. query: of the address that sorts by it, the other way where that is so already. sorted: `ascending`,
    `descending` or "" for another."""

    name: str
    query: Mapping[str, str]
    sorted: str = ""


@dataclass(frozen=True)
class Runs:
    """The runs of a batch. wanted: the words of the address that chose them."""

    head: Head
    rows: tuple[RunRow, ...]
    slice: Slice
    wanted: Mapping[str, str]
    columns: tuple[Column, ...]
    commands: tuple[str, ...]
    filters: Filters


@dataclass(frozen=True)
class Filters:
    """What a filter may say."""

    states: tuple[str, ...] = STATES
    classes: tuple[str, ...] = CLASSES


def runs(site: Site, asked: Asked) -> Page:
    batch, want = asked.path["batch"], wanted(asked.query)
    named = site.seen.named(batch)
    found, part = _page(site, asked, named) if want.plain else _chosen(site, batch, asked, want, named)
    top = head(site, batch)  # after the rows: a large batch is counted and read behind the page from here on
    if len(named) > ROWS_SHOWN:
        site.seen.ahead(batch)
    commands = [want.command(batch)]
    if not want.every:
        commands.append(" ".join(["dawn retry", shlex.quote(batch), *(want.options() or ["--failed"])]))
    told = Runs(top, tuple(found), part, want.query(), _columns(want), tuple(commands), Filters())
    return Page("batch_runs.html", f"Batch {batch}", told, commands[0], follows=f"batch:{batch}", tab="Runs")


def _page(site: Site, asked: Asked, named: list[Member]) -> tuple[list[RunRow], Slice]:
    """Those of one page, and no other run is read."""
    batch = asked.path["batch"]
    targets = list(dict.fromkeys(member.target for member in named))
    part = cut(len(targets), asked, ROWS_SHOWN)
    meant = set(targets[part.start : part.stop])
    here = {member.run: member.target for member in named if member.target in meant}
    seen = site.seen.views(here)
    waits = any(view.run.sealed is None for view in seen.found)  # and perhaps for the batch's budget
    budgets = _budgets(site, batch) if waits else {}
    shown = {view.task.target: row(view, budgets) for view in standing(seen.found)}
    shown |= {one.target: RunRow(one.run, one.target, state=one.state) for one in unread(here, seen)}
    return [shown[target] for target in targets[part.start : part.stop] if target in shown], part


def _chosen(site: Site, batch: str, asked: Asked, want: Wanted, named: list[Member]) -> tuple[list[RunRow], Slice]:
    """All runs are read, since any of them may be meant."""
    seen = site.seen.batch(batch)
    found = want.of(seen.found if want.every else standing(seen.found), _budgets(site, batch))
    if not want.selection.narrows:
        targets = {member.run: member.target for member in named}
        lost = [RunRow(one.run, one.target, state=one.state) for one in unread(targets, seen)]
        found = want.arranged([*found, *lost])
    part = cut(len(found), asked, ROWS_SHOWN)
    return found[part.start : part.stop], part


def _budgets(site: Site, batch: str) -> Budgets:
    spent = money(site, batch)
    return {} if spent is None else {batch: spent}


def _columns(want: Wanted) -> tuple[Column, ...]:
    made = []
    for name in ("target", "state", "verdict", "class", "diff", "steps", "time", "cost", "until"):
        here = want.sort == name
        first_down = name in ("diff", "steps", "time", "cost")  # the largest is what people look for
        down = not want.down if here else first_down
        query = {**want.query(), "sort": ("-" if down else "") + name}
        made.append(Column(name, query, ("descending" if want.down else "ascending") if here else ""))
    return tuple(made)


@dataclass(frozen=True)
class Failures:
    """Those that failed alike, the largest group first. said: how many targets are in each state."""

    head: Head
    groups: tuple[Group, ...]
    failed: int


def failed(site: Site, asked: Asked) -> Page:
    batch = asked.path["batch"]
    site.seen.named(batch)  # raises for a batch that is not there
    groups = tuple(failures(batch, standing(site.seen.batch(batch).found)))
    top = head(site, batch)  # after all were read, so that they are not read twice at once
    told = Failures(top, groups, sum(len(group.runs) for group in groups))
    command = f"dawn report {shlex.quote(batch)}"
    title = f"Failures of {batch}"
    return Page("batch_failures.html", title, told, command, follows=f"batch:{batch}", tab="Failures")


WAYS: Final = (
    Way("/batches", listing),
    Way("/batches/{batch}", runs),
    Way("/batches/{batch}/failures", failed),
)
