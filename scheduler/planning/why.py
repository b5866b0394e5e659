"""Owns why each run that waits does, for a person: the plan's own decision on what an archive and Redis say now.
Pure; refuses to look anything up, and to know whose turn it was before: that the scheduler keeps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from scheduler.planning.ended import Ended, Member, again_at, end_of
from scheduler.planning.plan import Bounds, Close, Decision, Group, Held, Pool, Ring, Seen, Slots, Wait, plan
from scheduler.planning.windows import held
from scheduler.runs import View
from worker.contract import hours
from worker.contract.model_name import account_of
from worker.contract.run import Run
from worker.contract.settings import Settings
from worker.contract.task import Task
from worker.store.inbox import Message


@dataclass(frozen=True)
class Now:
    """What Redis says. leased: runs with a living attempt; rung: with a doorbell that nobody answered; used_up:
    batches that have spent their budget; slots: of living workers."""

    leased: Collection[str] = ()
    rung: Collection[str] = ()
    used_up: Collection[str] = ()
    slots: Mapping[Pool, Slots] = field(default_factory=dict)


@dataclass(frozen=True)
class BreakerState:
    """ended: targets that count; failed: of these. at: the rate that trips it, from min_runs on."""

    ended: int
    failed: int
    failure_rate: float
    min_runs: int
    tripped: bool

    @property
    def text(self) -> str:
        """`breaker: tripped, 3 of 5 targets failed (at 30 % of 5 or more)`."""
        state = "tripped" if self.tripped else "not tripped"
        return (
            f"breaker: {state}, {self.failed} of {self.ended} targets failed (trips at {self.failure_rate:.0%} of "
            f"{self.min_runs} or more)"
        )


def ended_of(found: Sequence[View], control: Iterable[Message]) -> Ended:
    """How the targets of a batch stand. found: all its runs, in its order, at least one; control: all that was said
    to it."""
    ended = Ended(found[0].task, [Member(view.task.run, view.task.target, view.task.ordinal) for view in found])
    ended.again(again_at(control))
    for view in found:
        if view.run.sealed is not None:
            ended.end(view.task.run, end_of(view.run.sealed, view.run.updated_at))
    return ended


def breaker_of(found: Sequence[View], control: Iterable[Message]) -> BreakerState | None:
    """Of a batch, as ended_of; None where it has none."""
    breaker = found[0].task.breaker if found else None
    if breaker is None:
        return None
    ended = ended_of(found, control)
    return BreakerState(*ended.counted, breaker.failure_rate, breaker.min_runs, ended.tripped)


def group_of(task: Task, ended: Ended) -> Group:
    """What a batch's runs have in common. task: of any of them."""
    wave, left = ended.current
    return Group(task.weight, task.parallel, task.max_per_repo, wave, left, True, ended.tripped)


def why(
    found: Sequence[View], control: Iterable[Message], seen: Now, settings: Settings, now: datetime
) -> dict[str, Decision]:
    """What the scheduler makes of each open run of a batch, were it the only one. found: all its runs, in its order;
    control: all that was said to it."""
    if not found:
        return {}
    ended = ended_of(found, control)
    group = group_of(found[0].task, ended)
    runs = [_seen(view, ended, seen, now) for view in found if view.run.sealed is None and not view.follows]
    bounds = Bounds(settings.interactive_reserve, settings.max_runs)
    decisions = plan(now, runs, seen.slots, groups={found[0].task.batch: group}, bounds=bounds)
    return {decision.run: decision for decision in decisions}


def behind(tasks: Mapping[str, Task], runs: Mapping[str, Run], stuck: Collection[str]) -> set[str]:
    """Runs that nobody began, and whose wave waits for none but those that are stuck. tasks: of whole batches, in
    their order; runs: those of them that are known."""
    found: set[str] = set()
    for batch in {task.batch: task for task in tasks.values() if task.waves is not None}.values():
        of = [task for task in tasks.values() if task.batch == batch.batch]
        ended = Ended(batch, [Member(task.run, task.target, task.ordinal) for task in of])
        left = {task.run: ended.wave(task.target) for task in of if task.run in runs and not runs[task.run].sealed}
        current = min(left.values(), default=0)
        if all(run in stuck for run, wave in left.items() if wave == current):
            found |= {run for run, wave in left.items() if wave > current and not runs[run].claims}
    return found


def text(decision: Decision, task: Task) -> str:
    """For a person."""
    match decision:
        case Ring():
            return "about to begin"
        case Close(outcome=outcome, detail=detail):
            return f"it will be closed: {outcome}" + (f", {detail}" if detail else "")
        case Wait(why="wave", left=left):
            return f"an earlier wave: {left} run{'s' if left != 1 else ''} left"
        case Wait(why="parallel"):
            return f"its batch has {task.parallel} at work already"
        case Wait(why="repository"):
            return "another run on its repository"
        case Wait(why="account"):
            return "its provider's account has as many runs at work as it may"
        case Wait(why="slots"):
            return "a free slot"
        case Wait(why=reason, until=until):
            return reason.replace("_", " ") + (f" {until.isoformat(timespec='seconds')}" if until else "")


def _seen(view: View, ended: Ended, seen: Now, now: datetime) -> Seen:
    task, run, mail = view.task, view.run, view.mail
    barred = held(task, run, now)
    if barred is None and task.batch in seen.used_up and not run.claims:
        barred = Held("budget", skip=task.budget is not None and task.budget.on_limit == "stop")
    return Seen(
        id=task.run,
        status=run.status,
        since=run.submitted_at,
        lane=task.lane,
        leased=task.run in seen.leased or (run.status == "running" and not seen.slots),
        cancelled=mail.cancel is not None,
        blocked=mail.blocks,
        begun=run.claims > 0,
        held=barred,
        barren_claims=run.barren_claims,
        not_before=hours.not_before(task, run),
        rung_age_s=0.0 if task.run in seen.rung else None,
        batch=task.batch,
        by=run.submitted_by,
        repo=task.repo.url or "",
        account=account_of(task.model),
        wave=ended.wave(task.target),
    )
