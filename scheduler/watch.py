"""Owns watching batches from outside: their boards, drawn anew at each look, until all their runs have ended. Refuses
to ask anybody but the archive for what runs do; Redis tells only who is there to work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from scheduler.budget import spending
from scheduler.follow import Follower
from scheduler.planning.plan import Decision
from scheduler.planning.why import Now, why
from scheduler.queues import as_planned
from scheduler.reports.board import Board, board
from scheduler.runs import Found, View, runs_in, standing
from worker.contract.errors import ExitCode, HintsFault, NotFoundFault, StoreFault
from worker.contract.events import Record
from worker.contract.run import exit_code
from worker.contract.settings import Settings
from worker.contract.task import Task
from worker.store.archive import Archive
from worker.store.hints import Hints
from worker.store.inbox import Control
from worker.store.journal import Journal
from worker.store.mail import Mail


class Watch:
    """batches: their ids. Runs that a retry adds are watched too. Not thread-safe."""

    def __init__(self, archive: Archive, hints: Hints | None, settings: Settings, batches: Sequence[str]) -> None:
        self._archive, self._hints, self._settings, self._batches = archive, hints, settings, batches
        self._follower = Follower(archive, [])
        self._tasks: dict[str, Task] = {}
        self._views: list[View] = []
        self.boards: list[Board] = []

    @property
    def ended(self) -> bool:
        """No run of them is open."""
        return all(board.ended for board in self.boards)

    @property
    def exit_code(self) -> ExitCode:
        """Of them all."""
        return exit_code(view.run for view in standing(self._views))

    def pause_s(self, shortest_s: float) -> float:
        """How long to wait before the next look."""
        return self._follower.pause_s(shortest_s)

    def look(self) -> list[Record]:
        """Take in what is new, and draw the boards anew; what was appended since the last look, of the first look
        nothing. An archive that is away for a moment changes nothing. Raises NotFoundFault, IntegrityFault."""
        first = not self.boards
        try:
            self._follower.add(
                run for batch in self._batches for run in runs_in(self._archive, Found("batch", batch))
            )
            news = list(self._follower.poll())
            self._draw()
        except StoreFault as fault:
            if first or not fault.retryable:
                raise
            return []
        return [] if first else news

    def _draw(self) -> None:
        now, seen = datetime.now(UTC), self._seen()
        control = {batch: Control(self._archive, batch).read() for batch in self._batches}
        self._views = []
        for name, run in self._follower.runs.items():
            task = self._tasks.get(name)
            if task is None:
                try:
                    task = self._tasks[name] = Journal(self._archive, name).task()
                except NotFoundFault:
                    continue  # a submit is about to write it, or was cut off
            if run.last_seq < 0 and task.prefix_of is None:
                continue  # the same
            unread = [message for message in control[task.batch] if message.n >= run.control_seen]
            self._views.append(View(task, run, Mail(run, control=unread)))
        self.boards = []
        for batch in self._batches:
            views = [view for view in self._views if view.task.batch == batch]
            budget = spending(self._archive, views[0].task, views) if views else None
            decisions: dict[str, Decision] = {}
            if seen is not None:
                used_up = {batch} if budget is not None and budget.used_up else set()
                decisions = why(views, control[batch], replace(seen, used_up=used_up), self._settings, now)
            self.boards.append(board(batch, views, now, budget=budget, decisions=decisions))

    def _seen(self) -> Now | None:
        """What Redis says, None where there is nobody to ask."""
        if self._hints is None:
            return None
        try:
            return as_planned(self._hints, self._follower.open)
        except HintsFault:
            return None
