"""Owns the page that searches all runs of an archive. Refuses to look for longer than a reader waits: it says how far
it came, and goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from scheduler.selection import STATES
from scheduler.web.found import CLASSES, Hit, Sought, sought
from scheduler.web.page import Asked, Page, Way
from scheduler.web.site import Site
from worker.contract.errors import IntegrityFault, NotFoundFault, UsageFault
from worker.contract.events import Record
from worker.store.journal import Journal, Line

FOUND_MAX: Final = 100
"""Rows of a page."""
LOOK_MAX: Final = 5_000
"""Runs that are looked at for a page."""
LOOK_S: Final = 3.0
DEEP_MAX: Final = 50
"""Journals that are read through for a page; each may be large."""
CHUNK: Final = 100


@dataclass(frozen=True)
class Row:
    """A run that was found. hits: where."""

    run: str
    batch: str
    target: str
    place: str
    state: str
    verdict: str
    submitted_at: str
    steps: int
    cost_text: str
    model: str
    hits: tuple[Hit, ...]


@dataclass(frozen=True)
class Search:
    """wanted: the words. rows: none before anything is sought. looked: runs that were looked at for this page; deep:
    of these the journals that were read through. of: runs of the archive. unread: that could not be. until: the time
    of the submit down to which all was looked at; onward: where it goes on, "" at the end."""

    wanted: dict[str, str]
    states: tuple[str, ...]
    classes: tuple[str, ...]
    rows: tuple[Row, ...]
    sought: bool
    looked: int
    deep: int
    of: int
    unread: int
    until: str
    onward: dict[str, str]


def search(site: Site, asked: Asked) -> Page:
    wanted = sought(asked.query)
    fields = {name: value for name, value in asked.query.items() if name in FIELDS and value.strip()}
    every = sum(len(listed.runs) for listed in site.seen.batches())
    found = _look(site, wanted, asked.query.get("from", "")) if wanted.says_something else _Look()
    data = Search(
        wanted=fields,
        states=STATES,
        classes=CLASSES,
        rows=tuple(found.rows),
        sought=wanted.says_something,
        looked=found.looked,
        deep=found.deep,
        of=every,
        unread=found.unread,
        until=found.until,
        onward={**fields, "from": found.onward} if found.onward else {},
    )
    return Page("search.html", "Search", data, wanted.command if wanted.says_something else "")


FIELDS: Final = (
    *("repo", "target", "file", "error", "command", "model", "state", "class"),
    *("since", "until", "cost_min", "cost_max", "deep"),
)


class _Look:
    """One page's way through the runs."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.looked = self.deep = self.unread = 0
        self.until = self.onward = ""
        self.broke_off = -1
        self._ends_s = time.monotonic() + LOOK_S

    @property
    def late(self) -> bool:
        return time.monotonic() > self._ends_s

    @property
    def full(self) -> bool:
        """No more is looked at for this page. Something always is."""
        return self.looked > 0 and (
            len(self.rows) >= FOUND_MAX or self.looked >= LOOK_MAX or self.deep >= DEEP_MAX or self.late
        )

    def in_time(self, lines: Iterator[Line]) -> Iterator[Record]:
        """The records of these lines, in whole segments, at least one, until it is late: then `broke_off` is the last
        segment of which they were."""
        self.broke_off = -1
        seq = -1
        for record, _ in lines:
            if -1 < seq < record.seq and self.late:
                self.broke_off = seq
                return
            seq = record.seq
            yield record


def _look(site: Site, wanted: Sought, since: str) -> _Look:
    look = _Look()
    for batch, at, start, after, runs in _chunks(site, since):
        if look.full:
            look.onward = f"{batch}:{start}"
            return look
        seen = site.seen.views(runs)
        look.unread += len(seen.damaged)
        by_run = {view.task.run: view for view in seen.found}
        for number, run in enumerate(runs):
            if look.full:
                look.onward = f"{batch}:{start + number}"
                return look
            look.looked, look.until = look.looked + 1, at
            view = by_run.get(run)
            hits = None if view is None else wanted.hits(view)
            if view is None or hits is None:
                continue
            if wanted.deep:
                look.deep += 1
                hit = _deep(site, look, wanted, run, -1 if number else after)
                if hit is None and look.broke_off >= 0:
                    look.onward = f"{batch}:{start + number}:{look.broke_off}"
                    return look
                if hit is None:
                    continue
                hits.append(hit)
            sealed = view.run.sealed
            look.rows.append(
                Row(
                    run=run,
                    batch=batch,
                    target=view.task.target,
                    place=view.place,
                    state=view.state,
                    verdict=(sealed and sealed.verdict) or "",
                    submitted_at=view.run.submitted_at,
                    steps=view.run.steps,
                    cost_text=view.run.cost_text,
                    model=view.task.model,
                    hits=tuple(hits),
                )
            )
    return look


def _chunks(site: Site, since: str) -> Iterator[tuple[str, str, int, int, list[str]]]:
    """(batch, time of its submit, number of the first, segment of that one that was read already, runs) of the newest
    batch first. since: `<batch>:<number>` or `<batch>:<number>:<segment>` to begin with. Raises UsageFault for
    another."""
    begin, *told = since.split(":")
    newest = site.seen.batches()[::-1]
    if since:
        is_known = begin in {one.batch for one in newest} and len(told) in (1, 2)
        if not is_known or not all(one.isdecimal() and len(one) <= 9 for one in told):
            raise UsageFault("nobody knows where that search goes on", hint="begin it anew")
        newest = newest[[one.batch for one in newest].index(begin) :]
    first, after = (*(int(one) for one in told), -1, -1)[:2] if since else (0, -1)
    for one in newest:
        for start in range(first, len(one.runs), CHUNK):
            yield one.batch, one.at, start, after, one.runs[start : start + CHUNK]
            after = -1
        first, after = 0, -1


def _deep(site: Site, look: _Look, wanted: Sought, run: str, after: int) -> Hit | None:
    try:
        return wanted.deep_hit(look.in_time(Journal(site.archive, run).read(after)))
    except (NotFoundFault, IntegrityFault):
        return None


WAYS: Final = (Way("/search", search),)
