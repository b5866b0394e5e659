"""Owns what goes on at this moment: the batches with open runs as boards, and what waits for a person. Refuses to
read more than a bound of open runs for one page; it says which batches it left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from scheduler.budget import Spending, spending
from scheduler.planning.plan import Decision
from scheduler.planning.why import Now, why
from scheduler.queues import as_planned
from scheduler.reports.board import Board, board
from scheduler.runs import UNREADABLE, View
from scheduler.web.site import Site
from worker.contract.errors import Fault, HintsFault, IntegrityFault
from worker.contract.run import Run
from worker.store.inbox import Control

OPEN_MAX: Final = 2_000
"""Open runs that are folded for one page: whole batches, the newest first."""
NAMED: Final = 5
ASKED_CHARS: Final = 300


@dataclass(frozen=True)
class Need:
    """What waits for a person. kind: `approval`, `question`, `budget`, `paused`, `review` or `delivery`. what: a line
    of it. runs: ids, and targets of the same; of many the first NAMED, count says how many there are."""

    kind: str
    what: str
    count: int
    runs: tuple[str, ...]
    targets: tuple[str, ...]
    batch: str


@dataclass(frozen=True)
class Standing:
    """boards: of batches with open runs, the newest first. needs: the cheapest decision first. left_out: ids of open
    batches that were not looked at."""

    boards: tuple[Board, ...]
    needs: tuple[Need, ...]
    left_out: tuple[str, ...]


def standing(site: Site) -> Standing:
    """As of now, at most a second old. Raises StoreFault, IntegrityFault."""
    return site.seen.answer("standing", lambda: _standing(site))


def _standing(site: Site) -> Standing:
    marked = site.seen.marked()
    boards: list[Board] = []
    needs: list[Need] = []
    left_out: list[str] = []
    read, now = 0, site.now()
    seen = _redis(site, marked)
    for listed in reversed(site.seen.batches()):
        if not marked.intersection(listed.runs):
            continue
        read += len(listed.runs)
        if read > OPEN_MAX and boards:
            left_out.append(listed.batch)
            continue
        try:
            views = site.seen.batch(listed.batch).found
            budget = spending(site.archive, views[0].task, views) if views else None
        except UNREADABLE:  # its own pages say why
            left_out.append(listed.batch)
            continue
        if any(view.run.sealed is None for view in views):
            decisions = _decisions(site, listed.batch, views, seen, budget)
            boards.append(board(listed.batch, views, now, budget=budget, decisions=decisions))
        needs += _needs([view for view in views if view.task.run in marked], budget)
    ranked = sorted(needs, key=lambda need: CHEAPEST.index(need.kind))
    return Standing(tuple(boards), tuple(ranked), tuple(left_out))


CHEAPEST: Final = ("approval", "question", "budget", "paused", "delivery", "review")
"""One word on one call; a sentence; a number; a word; a look at a forge; a patch to read."""


def _needs(views: Iterable[View], budget: Spending | None) -> Iterable[Need]:
    found: dict[tuple[str, str], list[View]] = {}
    for view in views:
        if (need := _need(view, budget)) is not None:
            found.setdefault(need, []).append(view)
    for (kind, what), of in sorted(found.items(), key=lambda entry: -len(entry[1])):
        yield Need(
            kind,
            what,
            len(of),
            tuple(view.task.run for view in of[:NAMED]),
            tuple(view.task.target for view in of[:NAMED]),
            of[0].task.batch,
        )


def _need(view: View, budget: Spending | None) -> tuple[str, str] | None:
    """Its kind, and what is asked in words that equal ones share."""
    run, after = view.run, view.after
    if run.sealed is not None:
        if after is not None and after.delivery.state == "error":
            return "delivery", f"it could not be delivered: {after.delivery.detail}".rstrip(": ")
        if after is not None and after.review == "pending" and view.awaits_review:
            return "review", "a patch waits for a review"
        return None
    if budget is not None and budget.holds(view):
        return "budget", f"the budget is used up: {budget.text}"
    if run.waiting is None or view.decision is not None or view.mail.cancel is not None:
        return None
    if run.asked is not None:
        return run.asked.kind, _asked(run)
    return ("paused", f"paused: {run.waiting.detail}".rstrip(": ")) if run.waiting.waiting == "paused" else None


def _asked(run: Run) -> str:
    asked = run.asked
    if asked is not None and asked.kind == "question":
        return asked.question[:ASKED_CHARS]
    call = next((one for one in run.pending if asked is not None and one.id == asked.call_id), None)
    return "" if call is None else f"{call.name} {call.arguments}"[:ASKED_CHARS]


def _decisions(
    site: Site, batch: str, views: list[View], seen: Now | None, budget: Spending | None
) -> dict[str, Decision]:
    """What a scheduler makes of each open run; nothing where none is there."""
    if seen is None or site.settings is None:
        return {}
    used_up = {batch} if budget is not None and budget.used_up else set()
    try:
        control = Control(site.archive, batch).read()
    except IntegrityFault:
        return {}
    return why(views, control, replace(seen, used_up=used_up), site.settings, site.now())


def _redis(site: Site, runs: Iterable[str]) -> Now | None:
    """None where there is nobody to ask."""
    try:
        hints = site.hints()
        return None if hints is None else as_planned(hints, runs)
    except HintsFault:
        return None


def holds(site: Site) -> dict[str, float] | None:
    """Of accounts, seconds left; None where no stack runs."""
    try:
        hints = site.hints()
        return None if hints is None else dict(hints.holds())
    except Fault:
        return None
