"""Owns what of a batch has ended, for its waves and its breaker: how each target stands, and which wave may begin.
Refuses to store it: it is read from the ends of journals once, and goes on with each run that ends.

Of a target the last retry counts, else all its candidates, of which one good one is enough. What does not count: runs
that were cancelled or skipped, and failures that say nothing of the task: `infra`, a provider that could not be
reached, a budget of the batch or the day. A provider that refuses a key or a request counts, because it refuses the
next one, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from worker.contract.events import Sealed
from worker.contract.run import BUDGETS, FAILED_VERDICTS
from worker.contract.task import Task
from worker.contract.waves import wave_of
from worker.store.inbox import Message
from worker.store.members import Member as Named

OUTSIDE: Final = {("provider", "connection"), ("provider", "unavailable"), *(("limit", reason) for reason in BUDGETS)}
"""Failures, beside all of class `infra`, that say nothing of the task."""

Mark = Literal["ok", "failed", ""]
"""What an end is for the breaker; "" for nothing."""


@dataclass(frozen=True, slots=True)
class End:
    """of: what it is for the breaker. at: UTC, ISO 8601."""

    of: Mark
    at: str


@dataclass(frozen=True, slots=True)
class Member:
    """A run and its place in the batch."""

    run: str
    target: str
    ordinal: int


def end_of(sealed: Sealed, at: str) -> End:
    """What the breaker makes of an end."""
    failure = sealed.failure
    if sealed.outcome in ("cancelled", "skipped"):
        return End("", at)
    if failure is not None and (failure.cls == "infra" or (failure.cls, failure.reason) in OUTSIDE):
        return End("", at)
    return End("failed" if sealed.outcome == "failed" or sealed.verdict in FAILED_VERDICTS else "ok", at)


def again_at(control: Iterable[Message]) -> str:
    """Since when a batch's breaker counts, by what people said to it; "" for always."""
    return max((message.at for message in control if message.kind == "breaker"), default="")


class Ended:
    """Of one batch. task: of any of its runs; members: all its runs that are known. again_at: since when the breaker
    counts, "" for always."""

    def __init__(self, task: Task, members: Iterable[Named | Member]) -> None:
        self._waves, self._breaker, self._candidates = task.waves, task.breaker, task.candidates
        self._place: dict[str, int] = {}
        self._members: dict[str, Member] = {}
        self._targets: dict[str, list[Member]] = {}
        self._ends: dict[str, End] = {}
        self._left: Counter[int] = Counter()
        self._marks: dict[str, Mark] = {}
        self._counted: Counter[Mark] = Counter()
        self.again_at = ""
        members = list(members)
        for member in members:
            self._place.setdefault(member.target, len(self._place))
        self.add(members)

    @property
    def members(self) -> Iterable[Member]:
        """All that are known."""
        return self._members.values()

    def add(self, members: Iterable[Named | Member]) -> None:
        """More runs of it: retries. Known ones change nothing."""
        for one in members:
            if one.run not in self._members:
                member = self._members[one.run] = Member(one.run, one.target, one.ordinal)
                self._targets.setdefault(member.target, []).append(member)
                self._left[self.wave(member.target)] += 1
                self._judge(member.target)

    def end(self, run: str, end: End) -> None:
        """A run of it has ended."""
        if run in self._members and run not in self._ends:
            self._ends[run] = end
            target = self._members[run].target
            self._left[self.wave(target)] -= 1
            self._judge(target)

    def again(self, at: str) -> None:
        """What ended before counts no longer."""
        if at != self.again_at:
            self.again_at = at
            for target in self._targets:
                self._judge(target)

    def unknown(self, open_runs: Container[str]) -> list[str]:
        """Runs that are not open, and of which nobody has said how they ended."""
        return [run for run in self._members if run not in self._ends and run not in open_runs]

    def wave(self, target: str) -> int:
        """Of a target, from 1."""
        return wave_of(self._waves, self._place.get(target, 0), len(self._place))

    @property
    def current(self) -> tuple[int, int]:
        """The wave that may begin, and how many runs of it, and of those before, have not ended."""
        open_waves = [wave for wave, left in self._left.items() if left > 0]
        first = min(open_waves, default=len(self._waves or ()) or 1)
        return first, self._left[first]

    @property
    def counted(self) -> tuple[int, int]:
        """How many targets ended, and how many of these failed."""
        return self._counted["ok"] + self._counted["failed"], self._counted["failed"]

    @property
    def tripped(self) -> bool:
        return self._breaker is not None and self._breaker.tripped(*self.counted)

    def _judge(self, target: str) -> None:
        self._counted[self._marks.get(target, "")] -= 1
        self._marks[target] = mark = self._mark(self._targets[target])
        self._counted[mark] += 1

    def _mark(self, runs: list[Member]) -> Mark:
        last = max(runs, key=lambda one: one.ordinal)
        standing = [last] if last.ordinal >= self._candidates else runs
        ends = [self._ends.get(one.run) for one in standing]
        if None in ends:
            return ""
        marks = {end.of for end in ends if end is not None and end.at > self.again_at}
        return "ok" if "ok" in marks else "failed" if "failed" in marks else ""
