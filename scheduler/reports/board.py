"""Owns what a batch shows while it goes on: how many of its runs are where, what each works at, why others wait, and
when it may be done. Pure; refuses to look anything up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from scheduler.budget import Spending
from scheduler.planning.plan import Decision
from scheduler.planning.why import text
from scheduler.reports.morning import state_of
from scheduler.reports.reported import SAID
from scheduler.reports.rows import duration, waits_for
from scheduler.runs import View, standing
from worker.contract import hours
from worker.contract.task import Task, usd_text

NAMED: Final = 3
"""Targets of one line."""
NOBODY: Final[Mapping[str, Decision]] = {}


@dataclass(frozen=True)
class Working:
    """A run that somebody works on. age_s: seconds since its last event; working_s: in all."""

    run: str
    target: str
    step: int
    doing: str
    age_s: float
    working_s: float
    worker: str


@dataclass(frozen=True)
class Waiting:
    """Runs that wait for one thing."""

    why: str
    targets: tuple[str, ...]


@dataclass(frozen=True)
class Board:
    """Of one batch at one moment. counts: of its targets. limit_usd: its budget. eta_s: until all is done at the pace
    of now, None where nobody can know. window_s: until its window closes, None where it has none, or is closed."""

    batch: str
    counts: dict[str, int]
    spent_usd: float
    spend_known: bool
    limit_usd: float | None
    eta_s: float | None
    window_s: float | None
    working: tuple[Working, ...]
    waiting: tuple[Waiting, ...]
    ended: bool

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def lines(self) -> list[str]:
        """The same for a person: one line of numbers, then who works, then why others wait."""
        return [self.first, *map(_working, self.working), *map(_waiting, self.waiting)]

    @property
    def first(self) -> str:
        """`night-0123456789ab: 3 verified, 2 still running; $0.12 of $20.00; about 12 min 3 s left`"""
        spent = usd_text(round(self.spent_usd * 1e6))
        money = spent if self.limit_usd is None else f"{spent} of {usd_text(round(self.limit_usd * 1e6))}"
        told = [", ".join(f"{number} {state}" for state, number in self.counts.items()), money]
        if not self.spend_known:
            told[-1] = f"at least {money}"
        if not self.ended:
            told.append("time left unknown" if self.eta_s is None else f"about {duration(self.eta_s)} left")
        if self.window_s is not None:
            told.append(f"window closes in {duration(self.window_s)}")
        return f"{self.batch}: {'; '.join(told)}"


def board(
    batch: str,
    views: Sequence[View],
    now: datetime,
    *,
    budget: Spending | None = None,
    decisions: Mapping[str, Decision] = NOBODY,
) -> Board:
    """views: all runs of the batch. decisions: what the scheduler makes of each that has not ended; none where none
    is there."""
    targets = standing(views)
    states = Counter(state_of(view) for view in targets)
    left = [view for view in views if view.run.sealed is None]
    at_work = [view for view in left if view.run.status == "running"]
    task = views[0].task if views else None
    return Board(
        batch=batch,
        counts={said: states[state] for state, said in SAID.items() if states[state]},
        spent_usd=sum(view.run.spent_microusd for view in views) / 1e6,
        spend_known=all(view.run.cost_known for view in views),
        limit_usd=None if budget is None else budget.limit_microusd / 1e6,
        eta_s=_eta_s(views, left, at_work, now),
        window_s=_window_s(task, now),
        working=tuple(_at(view, now) for view in at_work),
        waiting=tuple(_waits(left, {} if budget is None else {batch: budget}, now, decisions)),
        ended=not left,
    )


def _at(view: View, now: datetime) -> Working:
    run = view.run
    doing = {"prepare": "prepares", "model": "asks the model", "verdict": "is measured", "seal": "is sealed"}
    call = run.pending[0].name if run.pending else ""
    return Working(
        run=view.task.run,
        target=view.task.target,
        step=run.steps,
        doing=call or doing.get(run.turn, run.turn),
        age_s=_age_s(run.updated_at, now),
        working_s=run.working_s + _age_s(run.updated_at, now),
        worker=run.worker,
    )


def _eta_s(views: Iterable[View], left: Sequence[View], at_work: Sequence[View], now: datetime) -> float | None:
    """By what those that ended took, and how many work now. Whoever waits for a person, or a window, is not waited
    for."""
    took = [view.run.working_s for view in views if view.run.sealed is not None and view.run.claims]
    if not left:
        return 0.0
    if not took or not at_work:
        return None
    mean = sum(took) / len(took)
    begun = sum(max(0.0, mean - view.run.working_s - _age_s(view.run.updated_at, now)) for view in at_work)
    others = sum(max(0.0, mean - view.run.working_s) for view in left if view.run.status == "queued")
    return (begun + others) / len(at_work)


def _window_s(task: Task | None, now: datetime) -> float | None:
    if task is None or task.window is None:
        return None
    closes = task.window.closes(now)
    return None if closes is None else (closes - now).total_seconds()


def _waits(
    left: Iterable[View], budgets: Mapping[str, Spending], now: datetime, decisions: Mapping[str, Decision]
) -> Iterable[Waiting]:
    """The most common reason first."""
    found: dict[str, list[str]] = {}
    for view in left:
        if view.run.status != "running":
            found.setdefault(why(view, budgets, now, decisions.get(view.task.run)), []).append(view.task.target)
    for reason, targets in sorted(found.items(), key=lambda entry: (-len(entry[1]), entry[0])):
        yield Waiting(reason, tuple(targets))


def why(view: View, budgets: Mapping[str, Spending], now: datetime, decision: Decision | None) -> str:
    """Why nobody works on the run. decision: what the scheduler makes of it, None where none is there."""
    task, run = view.task, view.run
    if view.state in ("paused", "cancelling"):
        return view.state if view.state == "cancelling" else f"paused by {view.mail.paused_by}"
    if told := waits_for(view, budgets):
        return told
    if (shut := hours.shut(task, run, now)) is not None:
        return hours.until_text(task, shut.until)
    return "no stack is running" if decision is None else text(decision, task)


def _age_s(at: str, now: datetime) -> float:
    return max(0.0, (now - datetime.fromisoformat(at)).total_seconds()) if at else 0.0


def _working(one: Working) -> str:
    at = f"step {one.step}, {one.doing}, for {duration(one.age_s)}"
    return f"  {one.target} ({one.run}): {at}; worked {duration(one.working_s)}"


def _waiting(one: Waiting) -> str:
    more = f" and {len(one.targets) - NAMED} more" if len(one.targets) > NAMED else ""
    return f"  {len(one.targets)} wait: {one.why} ({', '.join(one.targets[:NAMED])}{more})"
