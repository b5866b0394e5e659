"""Owns watching batches from outside: their boards, drawn anew at each look, until all their runs have ended. Refuses
to ask anybody but the archive for what runs do; Redis tells only how many slots are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from scheduler.board import Board, board
from scheduler.budget import spending
from scheduler.follow import Follower
from scheduler.runs import Found, View, runs_in, standing
from worker.contract.errors import ExitCode, HintsFault, StoreFault
from worker.contract.events import Record
from worker.contract.run import exit_code
from worker.contract.task import Task
from worker.store.archive import Archive
from worker.store.hints import Hints
from worker.store.inbox import Control
from worker.store.journal import Journal
from worker.store.mail import Mail


class Watch:
    """batches: their ids. Runs that a retry adds are watched too. Not thread-safe."""

    def __init__(self, archive: Archive, hints: Hints | None, batches: Sequence[str]) -> None:
        self._archive, self._hints, self._batches = archive, hints, batches
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
        now, free = datetime.now(UTC), self._free()
        control = {batch: Control(self._archive, batch).read() for batch in self._batches}
        self._views = []
        for name, run in self._follower.runs.items():
            if run.last_seq < 0:
                continue  # a submit is about to write it, or was cut off
            task = self._tasks.get(name)
            if task is None:
                task = self._tasks[name] = Journal(self._archive, name).task()
            unread = [message for message in control[task.batch] if message.n >= run.control_seen]
            self._views.append(View(task, run, Mail(run, control=unread)))
        self.boards = []
        for batch in self._batches:
            views = [view for view in self._views if view.task.batch == batch]
            budget = spending(self._archive, views[0].task, views) if views else None
            self.boards.append(board(batch, views, now, budget=budget, free=free))

    def _free(self) -> int | None:
        """Slots that nobody uses, None where there is nobody to ask."""
        if self._hints is None:
            return None
        try:
            return sum(worker.free for worker in self._hints.workers() if "batch" in worker.lanes)
        except HintsFault:
            return None
