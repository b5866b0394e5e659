"""Owns the open runs of which nothing is known but that somebody submitted them: a few words each, in the order in
which they would begin. Refuses to hold what a run does: whoever begins, or is spoken to, leaves.

That keeps a round of the scheduler short: of ten thousand such runs it sees as many as there are places for.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from worker.contract.run import Run
from worker.contract.task import Environment, Repo, Task

_COMMON = {
    "run": "", "target": "", "ordinal": 0, "repo": Repo(url="-"), "environment": Environment(), "prompt": "",
    "commands": (), "script": None, "checks": (), "vars": {}, "tools": (), "policy": (),
}  # fmt: skip
"""What a scheduler does not ask of a task, or has in the run's own words."""


Queue = tuple[str, str]
"""Batch and lane."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An open run in few words. task: what it shares with the runs of its batch, nothing else is right in it. since,
    by: of its submit. repo: the address its code comes from, "" for a packed one. wave: of its target."""

    run: str
    task: Task
    repo: str
    since: str
    by: str
    wave: int = 1

    @property
    def batch(self) -> str:
        return self.task.batch

    @property
    def queue(self) -> Queue:
        """Those among which the oldest goes first."""
        return self.task.batch, self.task.lane

    @property
    def order(self) -> tuple[int, str, str]:
        """In its queue."""
        return self.wave, self.since, self.run

    def stub(self) -> Run:
        """The run as far as this knows it. Its journal is read on from the start."""
        return Run(id=self.run, submitted_at=self.since, submitted_by=self.by)


def common(task: Task, before: Task | None) -> Task:
    """What the run's task has in common with others of its batch. before: of another, to be kept once for all."""
    made = task.model_copy(update=_COMMON)
    return before if made == before else made


def plain(run: Run) -> bool:
    """Whether there is nothing to know of it but its submit. A retry may have read what its batch was told before."""
    return run.status == "queued" and run.last_seq == 0 and not run.parent and run.control_seen == 0


class Backlog:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._order: dict[Queue, list[tuple[int, str, str]]] = {}
        self._visited: Iterator[str] = iter(())

    def __contains__(self, run: object) -> bool:
        return run in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._entries))

    @property
    def queues(self) -> list[Queue]:
        """Those with any."""
        return list(self._order)

    @property
    def batches(self) -> set[str]:
        """Those with any."""
        return {batch for batch, _ in self._order}

    def of(self, batch: str) -> list[str]:
        """Its runs."""
        return [run for (of, _), order in self._order.items() if of == batch for _, _, run in order]

    def add(self, entry: Entry) -> None:
        self._entries[entry.run] = entry
        bisect.insort(self._order.setdefault(entry.queue, []), entry.order)

    def take(self, run: str) -> Entry | None:
        """Remove it; None when it is not there."""
        entry = self._entries.pop(run, None)
        if entry is not None:
            order = self._order[entry.queue]
            del order[bisect.bisect_left(order, entry.order)]
            if not order:
                del self._order[entry.queue]
        return entry

    def heads(self, queue: Queue, count: int, room: Callable[[Entry], int | None]) -> list[Entry]:
        """The first of a queue, at most count. room: how many more may begin on an entry's repository, None for any
        number: those behind that number are passed over."""
        found: list[Entry] = []
        begun: Counter[str] = Counter()
        for _, _, run in self._order.get(queue, ()):
            entry = self._entries[run]
            most = room(entry) if entry.repo else None
            if most is None or begun[entry.repo] < most:
                begun[entry.repo] += 1
                found.append(entry)
                if len(found) == count:
                    break
        return found

    def some(self, most: int) -> list[str]:
        """Others each time, until all had their turn: to look whether somebody knows more of them."""
        if len(self._entries) <= most:
            return list(self._entries)
        found = [run for run in islice(self._visited, most) if run in self._entries]
        if len(found) < most:
            self._visited = iter(list(self._entries))
            found += islice(self._visited, most - len(found))
        return list(dict.fromkeys(found))
