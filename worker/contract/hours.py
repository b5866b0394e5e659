"""Owns when a run may be worked on, by the time from which it was asked for and its batch's window. Pure; refuses to
know the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from worker.contract.run import Run
from worker.contract.task import Task
from worker.contract.zones import told


@dataclass(frozen=True)
class Shut:
    """A run's window is closed. until: when it opens again. over: it had its hours, and does not wait for more."""

    until: datetime
    over: bool = False


def shut(task: Task, run: Run, now: datetime) -> Shut | None:
    """Why its window keeps the run from being worked on, None when it may be. Of a window that cancels, the run had
    its hours at the first closing after it was submitted, or after it was to start."""
    window = task.window
    if window is None:
        return None
    if window.on_close == "cancel":
        since = max(datetime.fromisoformat(at) for at in (run.submitted_at, task.start_at) if at)
        if now >= window.last_call(since):
            return Shut(window.opens(now), over=True)
    until = window.bars(now, begun=run.claims > 0)
    return None if until is None else Shut(until)


def not_before(task: Task, run: Run) -> datetime | None:
    """Before when nobody should claim the run: it was asked for later, or given back for a while."""
    return max((datetime.fromisoformat(at) for at in (task.start_at, run.not_before) if at), default=None)


def ready(task: Task, run: Run, now: datetime) -> bool:
    """Whether its time has come, and its window is open."""
    at = not_before(task, run)
    return run.sealed is None and (at is None or at <= now) and shut(task, run, now) is None


def until_text(task: Task, until: datetime) -> str:
    """`window until Tue 2026-12-01 22:00 Europe/Berlin (2026-12-01T21:00:00Z)`."""
    return f"window until {told(until, task.window.zone if task.window else 'UTC')}"
