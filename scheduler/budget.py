"""Owns what a used up budget means to runs that nobody has begun, and how a batch's spending reads. Refuses to stop
what was begun: its own attempt meets the budget before its next model call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from scheduler.plan import Held
from scheduler.runs import View
from worker.contract.errors import InvalidFault
from worker.contract.model_name import ASKED, parse_model_name
from worker.contract.run import Run
from worker.contract.task import Task, budget_microusd, usd_text
from worker.store.archive import Archive
from worker.store.hints import Hints
from worker.store.inbox import Control
from worker.store.mail import Mail


class Gate:
    """Of one round of the scheduler: each counter is asked for once. day_usd: of the whole deployment, None for no
    bound. A counter that Redis lost holds nobody: a worker folds it before the next model call."""

    def __init__(self, hints: Hints, day_usd: float | None, now: datetime) -> None:
        self._hints, self._now = hints, now.astimezone(UTC)
        self._day_microusd = None if day_usd is None else round(day_usd * 1e6)
        self._spent: dict[str, int | None] = {}

    def held(self, task: Task, mail: Mail) -> Held | None:
        """Why a run that was never claimed must not begin, None when it may. Raises HintsFault."""
        if mail.run.claims or not asks(task):
            return None
        on_limit = "pause" if task.budget is None else task.budget.on_limit
        if self._over(f"batch:{task.batch}", mail.budget_microusd(task)):
            return Held(on_limit)
        if self._over(f"day:{self._now.date().isoformat()}", self._day_microusd):
            tomorrow = self._now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
            return Held(on_limit, tomorrow)
        return None

    def _over(self, level: str, limit_microusd: int | None) -> bool:
        if limit_microusd is None:
            return False
        if level not in self._spent:
            self._spent[level] = self._hints.spent(level)
        spent = self._spent[level]
        return spent is not None and spent >= limit_microusd


@dataclass(frozen=True)
class Spending:
    """What a batch spent, as its journals say, and what it may."""

    batch: str
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

    def holds(self, task: Task, run: Run) -> bool:
        """Whether a run that nobody began waits for it."""
        return self.used_up and self.on_limit == "pause" and not run.claims and run.sealed is None and asks(task)

    def as_json(self) -> dict[str, Any]:
        spent, limit = self.spent_microusd / 1e6, self.limit_microusd / 1e6
        return {"spent_usd": spent, "limit_usd": limit, "on_limit": self.on_limit}


def spending(archive: Archive, batch: str, views: Iterable[View]) -> Spending | None:
    """Of a batch, None when it has no budget. views: its runs. Raises StoreFault, IntegrityFault."""
    seen = [view for view in views if view.task.batch == batch]
    budget = next((view.task.budget for view in seen), None)
    told = [budget_microusd(one.text) for one in Control(archive, batch).read() if one.kind == "budget"]
    limits = [None if budget is None else budget.microusd, *told]
    limit = next((one for one in reversed(limits) if one is not None), None)
    if limit is None:
        return None
    spent = sum(view.run.spent_microusd for view in seen)
    return Spending(batch, spent, limit, "pause" if budget is None else budget.on_limit)


def asks(task: Task) -> bool:
    """Whether its model is one that may want money."""
    try:
        return parse_model_name(task.model).provider in ASKED
    except InvalidFault:  # its attempt says so
        return False
