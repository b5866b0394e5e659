"""Owns what a closed window means to the plan. Refuses to know when one is open (contract/hours.py)."""

from __future__ import annotations

from datetime import datetime

from scheduler.planning.plan import Held
from worker.contract import hours
from worker.contract.run import Run
from worker.contract.task import Task


def held(task: Task, run: Run, now: datetime) -> Held | None:
    """What keeps the run from being worked on now, None when its window does not."""
    shut = hours.shut(task, run, now)
    return None if shut is None else Held("window", skip=shut.over, until=shut.until)
