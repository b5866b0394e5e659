"""Owns what the scheduler keeps of open runs: the folds of those that do something, few words of the others
(backlog.py), and how the targets of batches stand that begin in waves or have a breaker (ended.py). Refuses to
decide, and to hold truth: all of it is read from the archive again whenever another scheduler leads.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Final

from scheduler.planning.backlog import Backlog, Entry, common, plain
from scheduler.planning.ended import End, Ended, Member, end_of
from scheduler.planning.followers import Followers
from scheduler.planning.plan import USUAL_CLAIM_S, Group
from scheduler.retry import begin
from worker.contract.errors import Fault, IntegrityFault, NotFoundFault, StoreFault
from worker.contract.events import Sealed
from worker.contract.run import Run
from worker.contract.task import Task
from worker.store.archive import Archive
from worker.store.journal import Journal
from worker.store.members import members

LOADERS: Final = 8
AT_ONCE: Final = 500
"""Runs that are read between two signs of life of the scheduler, and ended ones that are looked up in a round: a
second or two."""


@dataclass
class Attended:
    """An open run that was begun, rung or spoken to. looked: what Redis said of it when `run` was folded: whether an
    attempt lives, whether a doorbell is not answered. rung: when it was, and how often the run was claimed before."""

    entry: Entry
    run: Run
    looked: tuple[bool, bool] = (False, False)
    rung: tuple[datetime, int] | None = None

    def rung_age_s(self, now: datetime, outstanding: bool) -> float | None:
        """Age of a doorbell that counts as unanswered: Redis says so, or it was answered a moment ago and the claim
        that must follow is not in the journal yet."""
        if self.rung is None:
            return 0.0 if outstanding else None
        at, claims = self.rung
        age_s = (now - at).total_seconds()
        return age_s if outstanding or (age_s < USUAL_CLAIM_S and claims == self.run.claims) else None


class Register:
    """by, at: who completes a submit that was cut off, and the time. keep: called now and then while many runs are
    read. Not thread-safe. Methods raise StoreFault."""

    def __init__(self, archive: Archive, by: str, at: Callable[[], str], keep: Callable[[], object]) -> None:
        self._archive, self._by, self._at, self._keep = archive, by, at, keep
        self.clear()

    def clear(self) -> None:
        """Know nothing."""
        self.attended: dict[str, Attended] = {}
        self.backlog = Backlog()
        self.followers = Followers(self._archive, self._by, self._at)
        self.broken: dict[str, str] = {}
        self._common: dict[str, Task] = {}
        self._ended: dict[str, Ended | None] = {}
        self._pending: dict[str, list[str]] = {}

    def __contains__(self, run: object) -> bool:
        return run in self.attended or run in self.backlog or run in self.followers

    def __len__(self) -> int:
        return len(self.attended) + len(self.backlog) + len(self.followers)

    @property
    def batches(self) -> set[str]:
        """Those with open runs."""
        others = self.followers.waiting.values()
        return {one.entry.batch for one in self.attended.values()}.union(self.backlog.batches, others)

    def of(self, batch: str) -> list[str]:
        """Its open runs, those aside that wait for another candidate."""
        return [name for name, one in self.attended.items() if one.entry.batch == batch] + self.backlog.of(batch)

    def update(self, found: Sequence[str], *, anew: bool) -> list[tuple[str, Fault]]:
        """Take in what is open, and let go of what is not any more. anew: fold those again that do something, too.
        Returns those that cannot be read, which are left aside until the next time anew."""
        if anew:
            self.broken.clear()
        now_open = set(found)
        for name in [*self.attended, *self.backlog, *self.followers.waiting]:
            if name not in now_open:
                self.leave(name)
        wanted = [name for name in found if name not in self.broken and name not in self.backlog]
        counted = set(self._ended)
        faults = self.load(name for name in wanted if anew or name not in self)
        if anew:
            self._forget()
        self._count([batch for batch in self._ended if anew or batch not in counted])
        return faults

    def load(self, names: Iterable[str]) -> list[tuple[str, Fault]]:
        """Fold what is new of these runs. Returns those that cannot be read."""
        wanted, faults = iter(list(names)), list[tuple[str, Fault]]()
        with ThreadPoolExecutor(LOADERS) as pool:
            while page := list(islice(wanted, AT_ONCE)):
                for name, loaded in zip(page, pool.map(self._read, page), strict=True):
                    if isinstance(loaded, Fault):
                        faults.append((name, loaded))
                    elif isinstance(loaded, Run):
                        self.attended[name].run = loaded
                    else:
                        self._add(name, *loaded)
                self._keep()
        return faults

    def follow(self, ending: Container[str]) -> list[tuple[str, Fault]]:
        """Begin those that need not wait longer for another candidate. ending: those that were told to end. Returns
        those that cannot be read then."""
        return self.load(self.followers.begin(self.backlog, ending))

    def attend(self, run: str) -> Attended:
        """Keep the run's fold from now on."""
        if (entry := self.backlog.take(run)) is not None:
            self.attended[run] = Attended(entry, entry.stub())
        return self.attended[run]

    def leave(self, run: str) -> None:
        """It is not open any more."""
        self.followers.leave(run)
        one = self.attended.pop(run, None)
        entry = self.backlog.take(run) if one is None else one.entry
        if entry is None:
            return
        if one is not None and one.run.sealed is not None:
            self.end(entry.batch, run, one.run.sealed, one.run.updated_at)
        elif entry.batch in self._ended:
            self._pending.setdefault(entry.batch, []).append(run)

    def set_aside(self, run: str, fault: Fault) -> None:
        """It cannot be read."""
        self.followers.leave(run)
        self.attended.pop(run, None)
        self.backlog.take(run)
        self.broken[run] = str(fault)

    def end(self, batch: str, run: str, sealed: Sealed, at: str) -> None:
        """A run of the batch has ended."""
        if (ended := self._ended.get(batch)) is not None:
            ended.end(run, end_of(sealed, at))

    def look_up(self) -> None:
        """Read how runs ended that left unseen, as many as a round has time for."""
        wanted = list(islice(((batch, run) for batch, runs in self._pending.items() for run in runs), AT_ONCE))
        if not wanted:
            return
        with ThreadPoolExecutor(LOADERS) as pool:
            for (batch, run), end in zip(wanted, pool.map(self._end, [run for _, run in wanted]), strict=True):
                self._pending[batch].remove(run)
                if end is not None and (ended := self._ended.get(batch)) is not None:
                    ended.end(run, end)
        self._pending = {batch: runs for batch, runs in self._pending.items() if runs}

    def group(self, batch: str, again_at: str) -> Group:
        """What its runs have in common. again_at: since when its breaker counts, "" for always."""
        task = self._common[batch]
        made = Group(task.weight, task.parallel, task.max_per_repo)
        if batch not in self._ended:
            return made
        ended = self._ended[batch]
        if ended is None or batch in self._pending:
            return replace(made, known=False)
        ended.again(again_at)
        wave, left = ended.current
        return replace(made, wave=wave, left=left, tripped=ended.tripped)

    def _read(self, name: str) -> tuple[Task, Run] | Run | Fault:
        journal, known = Journal(self._archive, name), self.attended.get(name)
        try:
            if known is not None:
                return journal.load(since=known.run)
            task, run = journal.task(), journal.load()
            if run.last_seq < 0 and task.prefix_of is None:
                begin(self._archive, task, by=self._by, at=self._at())
                run = journal.load()
            return task, run
        except StoreFault:
            raise
        except Fault as fault:
            return fault

    def _add(self, name: str, task: Task, run: Run) -> None:
        shared = self._common[task.batch] = common(task, self._common.get(task.batch))
        if task.batch not in self._ended and (task.waves is not None or task.breaker is not None):
            self._ended[task.batch] = self._members(task)
        if (ended := self._ended.get(task.batch)) is not None:
            ended.add([Member(name, task.target, task.ordinal)])
        if run.last_seq < 0:
            self.followers.add(task)
            return
        self.followers.leave(name)
        entry = Entry(
            run=name,
            task=shared,
            repo=task.repo.url or "",
            since=run.submitted_at,
            by=run.submitted_by,
            wave=1 if ended is None else ended.wave(task.target),
        )
        if plain(run):
            self.backlog.add(entry)
        else:
            self.attended[name] = Attended(entry, run)

    def _members(self, task: Task) -> Ended | None:
        """None where the list of the batch's runs is damaged: then nothing of its waves is known."""
        try:
            return Ended(task, members(self._archive, task.batch))
        except NotFoundFault:  # cut off before it named its runs: each is added when it is seen
            return Ended(task, ())
        except IntegrityFault:
            return None

    def _count(self, batches: Iterable[str]) -> None:
        """Of these, find out what was added to them, and what ended unseen."""
        for batch in batches:
            known, now = self._ended[batch], self._members(self._common[batch])
            if known is None or now is None:
                self._ended[batch] = known or now  # what it named before stands
                continue
            known.add(now.members)
            self._pending.pop(batch, None)
            if unknown := known.unknown(self):
                self._pending[batch] = unknown

    def _forget(self) -> None:
        """Batches that have no open runs."""
        left = self.batches
        self._common = {batch: task for batch, task in self._common.items() if batch in left}
        self._ended = {batch: ended for batch, ended in self._ended.items() if batch in left}
        self._pending = {batch: runs for batch, runs in self._pending.items() if batch in left}

    def _end(self, run: str) -> End | None:
        """How it ended, None where it has not, or was never written."""
        try:
            last = Journal(self._archive, run).tail()
        except StoreFault:
            raise
        except Fault:  # it is nobody's turn; dawn verify says what it is
            return None
        return end_of(last.event, last.at) if isinstance(last.event, Sealed) else None
