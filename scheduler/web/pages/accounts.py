"""Owns the pages of what a run cost and of who did what to it. Refuses to repair: what is damaged is named."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final, cast

from markupsafe import Markup

from scheduler.audit import Act, audit_of
from scheduler.runs import Found
from scheduler.verify import check
from scheduler.web import charts
from scheduler.web.journals import runhead
from scheduler.web.journals.runhead import Head, Seen
from scheduler.web.journals.steps import Row
from scheduler.web.page import Asked, Page, Way
from scheduler.web.site import Site
from worker.contract.delivered import Delivery, Review
from worker.contract.task import usd_text

DEAREST: Final = 10
VERIFIED_STEPS: Final = 2_000
"""A longer run is verified in a terminal: to prove all that it names, its whole journal is held in memory."""
KEPT_S: Final = 7 * 86_400.0
PROBLEMS_SHOWN: Final = 50

_VERIFYING: Final = threading.Lock()
"""One at a time: each reads all that a run ever wrote."""


@dataclass(frozen=True)
class Spend:
    """beside_microusd, beside_tokens: on delegates, summaries and replies nobody kept."""

    head: Head
    steps: int
    cost_text: str
    inherited_microusd: int
    tokens: list[tuple[str, int]]
    beside_microusd: int
    beside_tokens: int
    cost: Markup
    used: Markup
    context: Markup
    dearest: list[Row]
    limits: list[tuple[str, str, str]]


def spend(site: Site, asked: Asked) -> Page:
    seen = runhead.look(site, asked)
    rows, run, limits = seen.read.index.rows, seen.view.run, seen.view.task.limits
    labels = [str(row.number) for row in rows]
    of_reply = charts.Series("reply", [(row.cost_microusd or 0) / 1e6 for row in rows], "one")
    beside = charts.Series("beside it", [row.beside_microusd / 1e6 for row in rows], "two")
    kinds = (
        ("in", "input_tokens", "one"),
        ("from the cache", "cache_read_tokens", "three"),
        ("into the cache", "cache_write_tokens", "five"),
        ("out", "output_tokens", "two"),
    )
    used = [charts.Series(name, [getattr(row.usage, field) for row in rows], kind) for name, field, kind in kinds]
    grown = charts.Series("context", [row.context_tokens for row in rows], "four")
    cost = [of_reply, beside] if any(beside.values) else [of_reply]
    data = Spend(
        head=seen.head,
        steps=run.steps,
        cost_text=run.cost_text,
        inherited_microusd=run.inherited_cost_microusd,
        tokens=[(name, getattr(run.usage, field)) for name, field, _ in kinds],
        beside_microusd=sum(row.beside_microusd for row in rows),
        beside_tokens=sum(row.beside.total for row in rows),
        cost=_drawn("cost", "Cost of each step", labels, cost, _usd),
        used=_drawn("tokens", "Tokens of each reply", labels, used),
        context=charts.over(
            "context",
            "Size of the context, tokens",
            labels,
            [grown],
            shape="area",
            merge="max",
            limit=limits.context_tokens if max(grown.values, default=0) > limits.context_tokens / 2 else None,
        ),
        dearest=sorted(rows, key=lambda row: (row.spent_microusd, row.tokens), reverse=True)[:DEAREST],
        limits=[
            ("steps", f"{run.steps:,}", f"{limits.steps:,}"),
            ("tokens", f"{run.tokens:,}", f"{limits.tokens:,}"),
            ("cost", usd_text(run.cost_microusd), "none" if limits.cost_usd is None else f"${limits.cost_usd:.2f}"),
            ("working time", f"{run.working_s / 60:.1f} min", f"{limits.working_time_s / 60:.1f} min"),
        ],
    )
    title = f"Spend of {seen.head.name}"
    return Page("run_spend.html", title, data, f"dawn show {seen.head.name}", seen.follows, "Spend")


def _drawn(
    name: str, title: str, labels: list[str], series: list[charts.Series], told: charts.Told = charts.count
) -> Markup:
    """Nothing where all of it is nothing: empty axes tell less than the numbers of the limits below."""
    if not any(any(one.values) for one in series):
        return Markup()
    return charts.over(name, title, labels, series, told=told)


def _usd(value: float) -> str:
    return usd_text(round(value * 1e6))


@dataclass(frozen=True)
class Chain:
    """state: `damaged`, `verified` (everything was, at `at`), `read` (the chain was proven as it was read, and
    nothing that it names). segments: how many. hash: of the last line."""

    state: str
    at: str
    segments: int
    hash: str
    objects: int
    bytes: int
    problems: list[str]
    more: int
    can_verify: bool


@dataclass(frozen=True)
class Audit:
    head: Head
    chain: Chain
    acts: list[Act]
    deliveries: list[Delivery]
    reviews: list[Review]


def audit(site: Site, asked: Asked) -> Page:
    seen = runhead.look(site, asked)
    index, after, now = seen.read.index, seen.view.after, asked.query.get("verify") == "now"
    data = Audit(
        head=seen.head,
        chain=_chain(site, seen, now=now),
        acts=index.acts if seen.read.damage else audit_of(site.archive, seen.view, index.acts),
        deliveries=[] if after is None else list(after.deliveries),
        reviews=[] if after is None else list(after.reviews),
    )
    title, command = f"Audit of {seen.head.name}", f"dawn verify {seen.head.name}"
    # Whoever verifies looks at one moment: a run that goes on must not be verified again at each of its steps.
    return Page("run_audit.html", title, data, command, "" if now else seen.follows, "Audit")


@dataclass(frozen=True)
class _Verified:
    at: str
    objects: int
    bytes: int
    problems: list[str]


def _chain(site: Site, seen: Seen, *, now: bool) -> Chain:
    """now: verify all of it; what that came to is kept for as long as the journal ends where it did."""
    run, damage = seen.view.run, seen.read.damage
    name = ("verified", run.id, run.last_hash, damage)
    can_verify = run.steps <= VERIFIED_STEPS
    if now and can_verify:
        with _VERIFYING:
            done: _Verified | None = site.seen.answer(name, lambda: _verified(site, run.id), KEPT_S)
    else:
        done = site.seen.answer(name, lambda: None, 0.0)
    problems = [damage] if damage else []
    if done is not None:
        problems = done.problems
    return Chain(
        state="damaged" if problems else "verified" if done is not None else "read",
        at=done.at if done is not None else "",
        segments=run.last_seq + 1,
        hash=run.last_hash,
        objects=done.objects if done is not None else 0,
        bytes=done.bytes if done is not None else 0,
        problems=problems[:PROBLEMS_SHOWN],
        more=max(0, len(problems) - PROBLEMS_SHOWN),
        can_verify=can_verify,
    )


def _verified(site: Site, run: str) -> _Verified:
    checked = check(site.archive, Found("run", run))
    return _Verified(site.stamp(), len(checked.tally.said), checked.tally.bytes, checked.problems)


WAYS: Final = cast(
    "tuple[Way, ...]",
    (
        Way("/runs/{run}/spend", spend),
        Way("/runs/{run}/delegates/{call}/spend", spend),
        Way("/runs/{run}/audit", audit),
    ),
)
