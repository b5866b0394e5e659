"""Owns candidates that go on from the commands of their target's first one: when each begins, and as what. Refuses to
change that one's journal, and to hold truth: whoever looks next finds the same.

Such a candidate is submitted without a segment 0. It is written as a fork's once the first one has committed the end
of its commands. Where that ended before, and its commands were at fault, this one is skipped: it would do the same;
else it begins alone, with commands of its own. The number 0 is the fence: of two schedulers one begins it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from scheduler.enqueue import submit_run
from worker.contract.errors import Fault, IntegrityFault, InvalidFault, NotFoundFault, StoreFault
from worker.contract.events import Event, Sealed
from worker.contract.fork import commands_end, inherited
from worker.contract.run import Run
from worker.contract.task import Task
from worker.store.archive import Archive
from worker.store.journal import Journal
from worker.store.mail import last_mail

WORKERS: Final = 8
AT_ONCE: Final = 100
"""That are begun at once: a second or two of writing."""
LOOK: Final = timedelta(seconds=5)
"""How often journals are looked at whose commands others wait for: a step of a model takes as long."""
AT_FAULT: Final = frozenset({"env", "refused", "agent", "limit"})
"""Classes of failures that the same setup and commands have again."""


@dataclass(frozen=True)
class _Begins:
    """What the first candidate means for those that wait for it. by: who submitted it. opening: of their segment 0,
    none for the usual one. skip: why they end at once. ends: they do, because they were told to."""

    by: str
    opening: Sequence[Event] = ()
    skip: str = ""
    ends: bool = False


@dataclass
class _Leader:
    """What is known of a first candidate, and who waits for it. task: of one of those; its commands are the same."""

    run: Run
    task: Task
    waiting: list[Task] = field(default_factory=list)


class Followers:
    """by, at: who writes what begins, where nobody knows who submitted it, and the time. Not thread-safe."""

    def __init__(self, archive: Archive, by: str, at: Callable[[], str]) -> None:
        self._archive, self._by, self._at = archive, by, at
        self._waiting: dict[str, Task] = {}
        self._leaders: dict[str, Run] = {}
        self._looked_at: datetime | None = None

    def __contains__(self, run: object) -> bool:
        return run in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting(self) -> dict[str, str]:
        """Run -> batch."""
        return {name: task.batch for name, task in self._waiting.items()}

    def due(self, now: datetime) -> bool:
        """Whether any waits, and nobody looked for LOOK: whoever asks does it then."""
        due = bool(self._waiting) and (self._looked_at is None or now - self._looked_at >= LOOK)
        self._looked_at = now if due else self._looked_at
        return due

    def add(self, task: Task) -> None:
        """It waits."""
        self._waiting[task.run] = task

    def leave(self, run: str) -> None:
        """It has begun, or is not open any more."""
        self._waiting.pop(run, None)

    def begin(self, unbegun: Container[str], ending: Container[str]) -> list[str]:
        """Write segment 0 of those that need not wait longer, AT_ONCE at most, and return them. unbegun: runs that
        nobody has begun. ending: those that were told to end. Raises StoreFault."""
        leaders: dict[str, _Leader] = {}
        ready: list[tuple[Task, _Begins]] = []
        for task in self._waiting.values():
            name = str(task.prefix_of)
            if task.run in ending:
                ready.append((task, _Begins(self._by, ends=True)))
            elif name not in unbegun:
                known = self._leaders.get(name, Run(id=name))
                leaders.setdefault(name, _Leader(known, task)).waiting.append(task)
        with ThreadPoolExecutor(WORKERS) as pool:
            for one, begins in zip(leaders.values(), pool.map(self._look, leaders.values()), strict=True):
                if begins is not None:
                    ready += [(task, begins) for task in one.waiting]
            list(pool.map(self._write, ready[:AT_ONCE]))
        self._leaders = {name: one.run for name, one in leaders.items()}
        if len(ready) > AT_ONCE:
            self._looked_at = None
        return [task.run for task, _ in ready[:AT_ONCE]]

    def _look(self, one: _Leader) -> _Begins | None:
        """None while nobody knows: also of one that cannot be read, which is ended in sight."""
        journal = Journal(self._archive, one.run.id)
        try:
            run = one.run = journal.load(since=one.run)
            if run.sealed is None and run.command_steps < len(one.task.commands):
                return None
            lines = list(journal.read())
        except StoreFault:
            raise
        except NotFoundFault:  # a submit writes it before those that wait for it: it was removed
            return _Begins(self._by)
        except Fault:
            return None
        if (end := commands_end(lines, one.task)) is not None:
            return _Begins(run.submitted_by, inherited(lines, end, run.submitted_by, words=False))
        if run.sealed is None:
            return None
        failure = run.sealed.failure
        if failure is None or failure.cls not in AT_FAULT:
            return _Begins(run.submitted_by)
        return _Begins(run.submitted_by, skip=f"candidate 1 ended before its commands were done: {failure}")

    def _write(self, ready: tuple[Task, _Begins]) -> None:
        """Whoever wrote it first, it has begun then."""
        task, begins = ready
        at = self._at()
        then = self._end(task, begins.skip, at) if begins.skip or begins.ends else ()
        try:
            submit_run(task, self._archive, by=begins.by, at=at, then=then, opening=begins.opening)
        except InvalidFault:  # what was said there is more than a segment holds
            submit_run(task, self._archive, by=begins.by, at=at)

    def _end(self, task: Task, skip: str, at: str) -> Sequence[Event]:
        """What it ends with, after all that people told it; a cancel among that wins. None where its mail is torn:
        then it is ended in sight, as any run is."""
        try:
            mail = last_mail(self._archive, Run(id=task.run), task.batch, by=self._by, at=at)
        except IntegrityFault:
            return ()
        if mail.cancel is not None:
            return *mail.steered(), Sealed(outcome="cancelled", detail=f"cancelled by {mail.cancel.by}")
        return *mail.steered(), Sealed(outcome="skipped", detail=skip)
