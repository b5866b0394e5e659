"""Owns a batch in time: who worked on what when, and what was spent when, on what. Refuses to know what a call costs:
the journals say it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup

from scheduler.budget import Spending, spending
from scheduler.reports.morning import state_of
from scheduler.reports.reported import SAID
from scheduler.runs import View
from scheduler.web import charts
from scheduler.web.charts import Lane, Series, Shade
from scheduler.web.headline import Head, head
from scheduler.web.journals import timeline
from scheduler.web.journals.stories import stories
from scheduler.web.page import Asked, Page, Way
from scheduler.web.site import Site
from worker.contract.errors import IntegrityFault, NotFoundFault
from worker.contract.task import usd_text
from worker.contract.window import Window

COSTLIEST: Final = 10


@dataclass(frozen=True)
class Timeline:
    """lanes: one a worker; times are seconds since 1970. shades: while the window was closed. notes: what is not
    shown."""

    head: Head
    lanes: tuple[Lane, ...]
    shades: tuple[Shade, ...]
    notes: tuple[str, ...]

    def drawing(self) -> Markup:
        title = "Runs by worker; times are UTC"
        return charts.lanes("timeline", title, self.lanes, shades=self.shades, notes=self.notes)


def in_time(site: Site, asked: Asked) -> Page:
    batch = asked.path["batch"]
    site.seen.named(batch)  # raises for a batch that is not there
    told, top, now = stories(site, batch), head(site, batch), site.now()
    lanes = tuple(timeline.lanes(told.told, now))
    times = [one.start for lane in lanes for one in lane.stretches]
    ends = [one.end for lane in lanes for one in lane.stretches]
    shades: list[Shade] = []
    if times and (window := _window(site, batch)) is not None:
        first, last = (datetime.fromtimestamp(at, UTC) for at in (min(times), max(ends)))
        shades = timeline.shut_hours(window, first, last)
    data = Timeline(top, lanes, tuple(shades), tuple(told.notes))
    follows = f"batch:{batch}" if top.still_open else ""
    return Page(
        "batch_timeline.html", f"Timeline of {batch}", data, f"dawn watch {shlex.quote(batch)}", follows, "Timeline"
    )


def _window(site: Site, batch: str) -> Window | None:
    """The same in each of its tasks, so the first that can be read has it."""
    for member in site.seen.named(batch)[:8]:
        try:
            return site.seen.view(member.run).task.window
        except (NotFoundFault, IntegrityFault):
            continue
    return None


@dataclass(frozen=True)
class Part:
    """What went to one thing. runs: how many."""

    name: str
    runs: int
    tokens: int
    cost_microusd: int
    known: bool

    @property
    def cost_text(self) -> str:
        return usd_text(self.cost_microusd) if self.known else f"at least {usd_text(self.cost_microusd)}"


@dataclass(frozen=True)
class Costly:
    run: str
    target: str
    cost_microusd: int


@dataclass(frozen=True)
class Moment:
    """What all runs had spent at a time, UTC."""

    at: str
    total_microusd: int


@dataclass(frozen=True)
class Spent:
    """budget: None without one. unrecorded_microusd: counted for replies that nobody kept. every_min: how far apart
    the moments are. notes: what they leave out."""

    head: Head
    total: Part
    budget: Spending | None
    unrecorded_microusd: int
    by_state: tuple[Part, ...]
    by_model: tuple[Part, ...]
    costliest: tuple[Costly, ...]
    moments: tuple[Moment, ...]
    every_min: int
    notes: tuple[str, ...]

    def drawing(self) -> Markup:
        labels = [one.at[5:16].replace("T", " ") for one in self.moments]
        values = [float(one.total_microusd) for one in self.moments]
        title = "; ".join(["Spent by all runs together, over time, UTC", *self.notes])
        return charts.over(
            "spend",
            title,
            labels,
            [Series("spent", values)],
            shape="area",
            along="until the end of",
            told=lambda value: usd_text(round(value)),
            merge="last",
            limit=None if self.budget is None else float(self.budget.limit_microusd),
            limit_name="budget",
        )

    def gauge(self, cost_microusd: int) -> Markup:
        """A part of what was spent, as a bar."""
        return charts.gauge(cost_microusd, self.total.cost_microusd, usd_text(cost_microusd))


def spend(site: Site, asked: Asked) -> Page:
    batch = asked.path["batch"]
    site.seen.named(batch)  # raises for a batch that is not there
    views, told, top = site.seen.batch(batch).found, stories(site, batch), head(site, batch)
    width, moments = timeline.spent_by(told.told, charts.BARS_DRAWN)
    costly = sorted(views, key=lambda view: -view.run.spent_microusd)[:COSTLIEST]
    data = Spent(
        top,
        _part("all", views),
        spending(site.archive, views[0].task, views) if views else None,
        sum(view.run.unrecorded_microusd for view in views),
        _parts(views, lambda view: SAID[state_of(view)]),
        _parts(views, lambda view: view.task.model),
        tuple(
            Costly(view.task.run, view.task.target, view.run.spent_microusd)
            for view in costly
            if view.run.spent_microusd
        ),
        tuple(Moment(at.isoformat(timespec="minutes"), total) for at, total in moments),
        round(width.total_seconds() / 60),
        tuple(told.notes),
    )
    follows = f"batch:{batch}" if top.still_open else ""
    return Page("batch_spend.html", f"Spend of {batch}", data, f"dawn status {shlex.quote(batch)}", follows, "Spend")


def _parts(views: Iterable[View], of: Callable[[View], str]) -> tuple[Part, ...]:
    """The largest first."""
    found: dict[str, list[View]] = {}
    for view in views:
        found.setdefault(of(view), []).append(view)
    parts = [_part(name, some) for name, some in found.items()]
    return tuple(sorted(parts, key=lambda part: (-part.cost_microusd, part.name)))


def _part(name: str, views: Sequence[View]) -> Part:
    return Part(
        name,
        len(views),
        sum(view.run.tokens for view in views),
        sum(view.run.spent_microusd for view in views),
        all(view.run.cost_known for view in views),
    )


WAYS: Final = (
    Way("/batches/{batch}/timeline", in_time),
    Way("/batches/{batch}/spend", spend),
)
