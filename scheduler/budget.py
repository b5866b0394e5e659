"""Owns what a batch's used up budget means to its runs that nobody has begun, and how spending reads. Refuses to stop
what was begun, or for the day's budget: its own attempt meets those before its next model call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from scheduler.control import open_runs, tell
from scheduler.runs import Found, View, runs_in, views
from worker.contract.errors import HintsFault, UsageFault
from worker.contract.task import Task, budget_microusd, budget_text, usd_text
from worker.store.archive import Archive
from worker.store.counters import Counters
from worker.store.hints import Hints
from worker.store.inbox import Control
from worker.store.journal import Journal
from worker.store.mail import Mail


class Gate:
    """Of one round of the scheduler: each counter is asked for once. A counter that Redis lost, or cannot read, holds
    nobody: a worker asks it before the next model call."""

    def __init__(self, hints: Hints) -> None:
        self._hints, self._counters = hints, Counters(hints)
        self._spent: dict[str, int | None] = {}

    def held(self, task: Task, mail: Mail) -> Literal["pause", "stop"] | None:
        """What becomes of a run that must not begin, None when it may, or has begun. Raises HintsFault."""
        if mail.run.claims or not self._over(f"batch:{task.batch}", mail.budget_microusd(task)):
            return None
        return "pause" if task.budget is None else task.budget.on_limit

    def _over(self, level: str, limit_microusd: int | None) -> bool:
        if limit_microusd is None:
            return False
        if level not in self._spent:
            self._spent[level] = self._ask(level)
        spent = self._spent[level]
        return spent is not None and spent >= limit_microusd

    def _ask(self, level: str) -> int | None:
        try:
            return self._counters.spent(level)
        except HintsFault:
            self._hints.epoch()  # raises where Redis is away; else it is this counter alone, and others' runs go on
            return None


@dataclass(frozen=True)
class Spending:
    """What was spent, and what may be. of: a batch, as its journals say, or `day:<date>`, as its counter says."""

    of: str
    spent_microusd: int
    limit_microusd: int
    on_limit: Literal["pause", "stop"] = "pause"

    @property
    def used_up(self) -> bool:
        return self.spent_microusd >= self.limit_microusd

    @property
    def text(self) -> str:
        """`$0.12 of $20.00 spent`."""
        return f"{usd_text(self.spent_microusd)} of {usd_text(self.limit_microusd)} spent"

    def holds(self, view: View) -> bool:
        """Whether the run waits for it: parked, or never begun."""
        run, waiting = view.run, view.run.waiting
        if run.sealed is not None:
            return False
        if waiting is not None:
            return waiting.waiting == "budget" and waiting.until is None
        return self.used_up and self.on_limit == "pause" and not run.claims

    def as_json(self) -> dict[str, Any]:
        spent, limit = self.spent_microusd / 1e6, self.limit_microusd / 1e6
        return {"spent_usd": spent, "limit_usd": limit, "on_limit": self.on_limit}


def spending(archive: Archive, task: Task, of: Iterable[View] | None = None) -> Spending | None:
    """Of the task's batch, None when it has no budget. of: all runs of the batch, None to read them. Raises
    StoreFault, IntegrityFault."""
    told = [budget_microusd(one.text) for one in Control(archive, task.batch).read() if one.kind == "budget"]
    limits = [None if task.budget is None else task.budget.microusd, *told]
    limit = next((one for one in reversed(limits) if one is not None), None)
    if limit is None:
        return None
    if of is None:
        of = views(archive, runs_in(archive, Found("batch", task.batch))).found
    spent = sum(view.run.spent_microusd for view in of)
    return Spending(task.batch, spent, limit, "pause" if task.budget is None else task.budget.on_limit)


@dataclass(frozen=True)
class Allowed:
    """What a batch may spend in all, in words; the runs that it concerns; what it comes to."""

    text: str
    runs: list[str]
    spending: Spending | None


def allow(archive: Archive, hints: Hints | None, batch: str, usd: str, *, by: str, at: str) -> Allowed:
    """Say what a batch may spend in all: dollars, as a person writes them. at: UTC, ISO 8601.

    Raises UsageFault for what is no sum, ConflictFault when every run has ended, StoreFault.
    """
    allowed = budget_microusd(usd)
    if allowed is None:
        raise UsageFault(f"{usd!r} is no sum of money", hint="dollars, like 20 or 0.50")
    found = Found("batch", batch)
    left = open_runs(archive, found)
    text = budget_text(allowed)
    tell(archive, hints, found, "budget", by=by, at=at, text=text)
    return Allowed(text, left, spending(archive, Journal(archive, left[0]).task()))


def spending_of_day(hints: Hints, usd: float, now: datetime) -> Spending | None:
    """Of the whole deployment today, None while nobody has counted it. Raises HintsFault."""
    level = _day(now)
    spent = Counters(hints).spent(level)
    return None if spent is None else Spending(level, spent, round(usd * 1e6))


def spendings(archive: Archive, of: Iterable[View]) -> dict[str, Spending]:
    """Of each batch with a budget, by its id. of: all runs of each. Raises StoreFault, IntegrityFault."""
    whole: dict[str, list[View]] = {}
    for view in of:
        whole.setdefault(view.task.batch, []).append(view)
    found = {batch: spending(archive, seen[0].task, seen) for batch, seen in whole.items()}
    return {batch: money for batch, money in found.items() if money is not None}


def _day(now: datetime) -> str:
    return f"day:{now.astimezone(UTC).date().isoformat()}"
