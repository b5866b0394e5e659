"""Owns what the scheduler knows of people's words to open runs: inboxes, batch controls, decisions. It reads them
where a hint points, and of waiting runs now and then without one. Refuses to act on them, but for one thing: a
question that nobody answered in time is decided as expired.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from scheduler.seal import BY
from worker.contract.errors import IntegrityFault
from worker.contract.run import Run
from worker.store import keys
from worker.store.archive import Archive
from worker.store.decisions import Decision, decide, read_decision
from worker.store.inbox import Control, Inbox, Message
from worker.store.mail import Mail

READERS: Final = 8


@dataclass
class _Known:
    """What was read last. poked: the hint that led there."""

    poked: int | None = None
    inbox: list[Message] = field(default_factory=list)
    decision: Decision | None = None


class Post:
    """poll_s: how often waiting runs and controls are looked at without a hint. Not thread-safe."""

    def __init__(self, archive: Archive, poll_s: float) -> None:
        self._archive, self._poll = archive, timedelta(seconds=poll_s)
        self._runs: dict[str, _Known] = {}
        self._batches: dict[str, _Known] = {}
        self._patrolled_at: datetime | None = None

    def due(self, now: datetime) -> bool:
        """Whether the next look is one without hints, too."""
        return self._patrolled_at is None or now - self._patrolled_at >= self._poll

    def read_batches(
        self, now: datetime, batches: Iterable[str], poked: Mapping[str, int]
    ) -> list[tuple[str, IntegrityFault]]:
        """Look where there may be news of these, and return those whose control cannot be read: nobody knows what
        their runs were told. poked: as Hints.poked says. Raises StoreFault."""
        torn: list[tuple[str, IntegrityFault]] = []
        self._batches = {batch: self._batches.get(batch, _Known()) for batch in batches}
        for batch, known in self._batches.items():
            hint = poked.get(f"batch:{batch}", -1)
            if self.due(now) or hint != known.poked:
                try:
                    known.inbox += Control(self._archive, batch).read(len(known.inbox))
                except IntegrityFault as fault:
                    torn.append((batch, fault))
                    continue
                known.poked = hint
        return torn

    def read(
        self, now: datetime, runs: Iterable[tuple[Run, str]], poked: Mapping[str, int]
    ) -> list[tuple[str, IntegrityFault]]:
        """Look where there may be news of runs, and return those whose mail cannot be read. runs: those without a
        living attempt, each with its batch, which was read; poked: as Hints.poked says. Raises StoreFault."""
        faults: list[tuple[str, IntegrityFault]] = []
        patrol = self.due(now)
        wanted = []
        for run, batch in runs:
            known, hint = self._runs.setdefault(run.id, _Known(poked=-1)), poked.get(f"run:{run.id}", -1)
            # Who is blocked is not claimed, and no attempt would find what came without a hint.
            if hint != known.poked or (patrol and (run.status == "waiting" or self.mail(run, batch).blocks)):
                wanted.append((run, hint))
        if wanted:
            with ThreadPoolExecutor(READERS) as pool:
                faults += filter(None, pool.map(lambda one: self._look(one[0], one[1], now), wanted))
        if patrol:
            self._patrolled_at = now
        return faults

    def written_to(self, runs: Sequence[str]) -> list[str]:
        """Those of the runs whose inbox is not empty."""
        with ThreadPoolExecutor(READERS) as pool:
            found = pool.map(lambda run: next(iter(self._archive.list(keys.inbox_folder(run))), None), runs)
            return [run for run, key in zip(runs, found, strict=True) if key is not None]

    def ending(self, now: datetime, runs: Mapping[str, str], poked: Mapping[str, int]) -> set[str]:
        """Of runs that have read nothing, with their batches, which were read, those that were told to end. Raises
        StoreFault."""

        def told(run: str) -> bool:
            try:
                return any(message.kind == "cancel" for message in Inbox(self._archive, run).read())
            except IntegrityFault:  # it ends in sight
                return True

        written = {name.removeprefix("run:") for name in poked}
        written |= set(self.written_to(list(runs)) if self.due(now) else ())
        ending = {run for run, batch in runs.items() if self.mail(Run(), batch).cancel is not None}
        return ending | {run for run in written if told(run)}

    def mail(self, run: Run, batch: str) -> Mail:
        """What is known to lie unread."""
        known, asked = self._runs.get(run.id, _Known()), run.asked
        decided = known.decision is not None and asked is not None and known.decision.call == asked.call_id
        return Mail(
            run,
            [message for message in known.inbox if message.n >= run.inbox_seen],
            [message for message in self._batches.get(batch, _Known()).inbox if message.n >= run.control_seen],
            known.decision if decided else None,
        )

    def forget(self, runs: Iterable[str]) -> None:
        """These have ended."""
        for run in runs:
            self._runs.pop(run, None)

    def _look(self, run: Run, hint: int, now: datetime) -> tuple[str, IntegrityFault] | None:
        known, asked = self._runs[run.id], run.asked
        try:
            known.inbox = Inbox(self._archive, run.id).read(run.inbox_seen)
            if asked is not None:
                known.decision = read_decision(self._archive, run.id, asked.call_id)
                if known.decision is None and _expired(run, now):
                    at = now.isoformat(timespec="milliseconds")
                    known.decision = decide(self._archive, run.id, asked, "expired", by=BY, at=at)
        except IntegrityFault as fault:
            return run.id, fault
        known.poked = hint
        return None


def _expired(run: Run, now: datetime) -> bool:
    until = run.waiting.until if run.waiting else None
    return until is not None and datetime.fromisoformat(until) <= now
