"""Owns an attempt's pen: the claim, each commit after it, and the transcript both agree on. Refuses to write after a
later claim or a seal: whoever loses a segment number reads what won and stops.

One observation may be shown before it is committed (`commit_later`): the transcript then ends with it, under the
number it will have, while a background thread finishes and appends it. There is one at most: the next commit waits.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeVar

import structlog
from pydantic import TypeAdapter

from worker.contract.cancel import Cancel
from worker.contract.errors import FencedFault, StoreFault
from worker.contract.events import Claimed, Event, Observed, Record, Replied, Sealed
from worker.contract.redact import Redactor
from worker.contract.run import Run, fold
from worker.sandbox.protocol import Snapshot
from worker.spool import Spool
from worker.store import rollup
from worker.store.journal import AppendConflict, Journal, Line

T = TypeVar("T")
EVENT: TypeAdapter[Event] = TypeAdapter(Event)
LOG = structlog.get_logger(__name__)

STORE_PATIENCE_S = 900.0
"""How long a write is tried again while the store is away: longer than the promised ten minutes."""
STORE_DELAYS_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)


@dataclass(frozen=True)
class _Appended:
    """lines: of the segment; when: monotonic time at which it was there, seconds."""

    lines: list[Line]
    when: float


@dataclass(frozen=True)
class _Shown:
    """An observation ahead of its commit. before, since: the run and the time of the commit before it."""

    observed: Observed
    before: Run
    since: float
    appended: Future[_Appended]


class Term(Protocol):
    """What allows an attempt to write: a Lease, or none at all where nobody else can write."""

    def wait_current(self) -> bool:
        """Whether the term runs, waited for (worker/lease.py)."""
        ...


class Ledger:
    """One attempt on one run. One thread uses it, and commits are in order; only `commit_later` finishes in another.

    run: the fold after the last record. records: every record, what is shown ahead of its commit included. committed:
    called with the events of each `commit`.
    """

    def __init__(
        self,
        journal: Journal,
        lease: Term,
        cancel: Cancel,
        redactor: Redactor,
        now: Callable[[], str],
        spool: Spool | None = None,
    ) -> None:
        """spool: of the worker, which its other attempts share; without one, an attempt's own."""
        self.journal = journal
        self._spool = spool or Spool()
        self.run = Run(id=journal.run)
        self._records: list[Record] = []
        self._shown: _Shown | None = None
        self._lease = lease
        self._cancel = cancel
        self._redactor = redactor
        self._now = now
        self._since = time.monotonic()
        self._waited_s = 0.0
        self.committed: Callable[[Sequence[Event]], None] = lambda events: None
        self._rolled = 0
        self._read()

    @property
    def records(self) -> Sequence[Record]:
        return self._records

    def working_s(self) -> float:
        """Working time of the run up to now, seconds."""
        return self.run.working_s + time.monotonic() - self._since - self._waited_s

    def waited(self, seconds: float) -> None:
        """That much of the time since the last commit was spent waiting for a provider's rate: no working time."""
        self._waited_s += seconds

    def claim(self, event: Claimed, lost: Callable[[Run], Event | None] = lambda before: None) -> Run:
        """Start an attempt; the run as the one before left it is returned. An ordinary segment that won the number is
        taken in and the next one tried, because that attempt may have committed its last step meanwhile. lost: what
        is counted because of how that one ended; it stands in the claim's segment, so that this attempt cannot end
        before it is counted. FencedFault when the run ended, was claimed, parked or was given back for a while, and
        when the lease was lost on the way."""
        while True:
            self.check()
            before, counted = self.run, lost(self.run)
            events = [event] if counted is None else [event, counted]
            try:
                self._take(self._append(before, events, attempt=before.last_seq + 1))
                return before
            except AppendConflict as conflict:
                if any(isinstance(record.event, Claimed | Sealed) for record, _ in conflict.winner):
                    raise FencedFault("somebody else claimed or ended the run first") from conflict
                self.run = fold(conflict.winner, self.run)
                self._records += [record for record, _ in conflict.winner]
            if self.run.status == "waiting" or not due(self.run, self._now()):
                raise FencedFault("the attempt before parked the run or gave it back for a while")

    def commit(self, *events: Event) -> None:
        """Append events as one segment under the claim, after what is shown. FencedFault when somebody else wrote
        that number, when the lease is lost, or when the attempt was cancelled for that; StoreFault when the store
        stays away."""
        self.settle()
        waited_ms, self._waited_s = round(self._waited_s * 1000), 0.0
        self._take(self._write(self.run, *events, waited_ms=waited_ms))
        self.committed(events)

    def commit_later(self, shown: Observed, finish: Callable[[], Observed], thread: Executor) -> None:
        """Show an observation now, and in the thread commit what `finish` makes of it. What that raises comes from
        the next `settle`."""
        self.settle()
        before = self.run
        event = masked(shown, self._redactor)
        assert isinstance(event, Observed), "masking keeps the type"
        appended = thread.submit(lambda: self._write(before, finish()))
        record = Record(
            run=before.id,
            seq=before.last_seq + 1,
            at=self._now(),
            attempt=before.attempt,
            nonce="",
            prev=before.last_hash,
            event=event,
        )
        self._shown = _Shown(event, before, self._since, appended)
        self.run = before.after(record, "")
        self._records.append(record)
        self._since = time.monotonic()

    def settle(self) -> bool:
        """Wait for the commit of what is shown; False when another observation was committed than was shown."""
        shown, self._shown = self._shown, None
        if shown is None:
            return True
        try:
            appended = shown.appended.result()
        finally:
            self.run, self._since = shown.before, shown.since
            self._records.pop()
        self._take(appended)
        committed = appended.lines[0][0].event
        return isinstance(committed, Observed) and committed.observation == shown.observed.observation

    def check(self) -> None:
        """Nothing new begins on an expired term: wait for a heartbeat, then look at the journal's tail. The commit of
        what is shown does both; then it is waited for."""
        if self._shown is None:
            self._check(self.run)
        elif not self._lease.wait_current():
            self.settle()

    def patiently(self, act: Callable[[], T]) -> T:
        """Try what needs the archive again while the store is away. FencedFault when the lease is lost meanwhile."""
        began, tries = time.monotonic(), 0
        while True:
            try:
                return act()
            except StoreFault as fault:
                delay_s = STORE_DELAYS_S[min(tries, len(STORE_DELAYS_S) - 1)]
                tries += 1
                if not fault.retryable or time.monotonic() - began > STORE_PATIENCE_S:
                    raise
                LOG.warning("store_away", fault=str(fault), next_try_s=delay_s)
                if self._cancel.wait(delay_s):
                    if self._fenced():
                        raise FencedFault("the lease was lost while the store was away") from fault
                    time.sleep(delay_s)  # a switch that is thrown already makes nobody wait

    def put_blob(self, data: bytes | Path) -> str:
        """Store a blob of the run and say its digest; while the store is away it waits in the spool."""
        with self._spool.hold(len(data) if isinstance(data, bytes) else data.stat().st_size):
            return self.patiently(lambda: self.journal.put_blob(data))

    def put_snapshot(self, most_bytes: int, take: Callable[[], Snapshot]) -> tuple[Snapshot, str | None]:
        """Take a snapshot of at most that size once the spool has room, store its file and remove that; with the
        digest it was stored under, None when nothing changed."""
        share = self._spool.reserve(most_bytes, patience_s=STORE_PATIENCE_S, give_up=self._fenced)
        if share is None:
            raise FencedFault("the lease was lost while the spool was full")
        with share:
            taken, stored = take(), None
            share.shrink(taken.bytes)
            if (path := taken.path) is not None:
                try:
                    stored = self.patiently(lambda: self.journal.put_snapshot(path))
                finally:
                    path.unlink(missing_ok=True)
            return taken, stored

    def has_room(self, most_bytes: int) -> bool:
        """Wait until the spool could take so much more; False when the attempt was cancelled first."""
        share = self._spool.reserve(most_bytes, patience_s=STORE_PATIENCE_S, give_up=self._cancel.is_set)
        if share is None:
            return False
        share.shrink(0)  # a call in hand is counted when its output waits: most have none to speak of
        return True

    def _fenced(self) -> bool:
        """Whether the lease is known to be somebody else's."""
        return self._cancel.is_set() and self._cancel.reason == "lease"

    def _check(self, run: Run) -> None:
        current = self._lease.wait_current()
        if self._fenced():
            raise FencedFault("the lease is somebody else's")
        if not current and self.journal.load(since=run).last_seq != run.last_seq:
            raise FencedFault("the run went on elsewhere while this attempt was cut off")

    def _write(self, run: Run, *events: Event, waited_ms: int = 0) -> _Appended:
        """Append under the claim, in whatever thread. What is to be written may be paid for: also the look at the
        journal's tail waits for the store."""
        self.patiently(lambda: self._check(run))
        try:
            return self._append(run, events, attempt=run.attempt, waited_ms=waited_ms)
        except AppendConflict as conflict:
            raise FencedFault(str(conflict)) from conflict

    def _append(self, run: Run, events: Iterable[Event], *, attempt: int | None, waited_ms: int = 0) -> _Appended:
        events = [masked(event, self._redactor) for event in events]
        nonce = secrets.token_hex(16)
        lines = self.patiently(
            lambda: self.journal.write(run, events, attempt=attempt, at=self._now(), nonce=nonce, waited_ms=waited_ms)
        )
        return _Appended(lines, time.monotonic())

    def _take(self, appended: _Appended) -> None:
        self._since = appended.when
        self.run = fold(appended.lines, self.run)
        self._records += [record for record, _ in appended.lines]
        self._roll_up()

    def _roll_up(self) -> None:
        """Where a span of segments is full, or the run has ended, leave the cache that saves whoever takes over or
        looks at it from reading each one."""
        full, rest = divmod(self.run.last_seq + 1, rollup.SPAN)
        firsts = [self._rolled * rollup.SPAN] if full > self._rolled else []
        if self.run.sealed is not None and rest >= rollup.LEAST:
            firsts.append(full * rollup.SPAN)
        self._rolled = full
        for first in firsts:
            span = [record for record in self._records if first <= record.seq < first + rollup.SPAN]
            try:
                self.journal.roll_up(span)
            except StoreFault as fault:
                LOG.warning("not_rolled_up", fault=str(fault))

    def _read(self) -> None:
        for record, line_hash in self.journal.read():
            self.run = self.run.after(record, line_hash)
            self._records.append(record)
        self._rolled = (self.run.last_seq + 1) // rollup.SPAN


def masked(event: Event, redactor: Redactor) -> Event:
    """The event without secrets, before its first write.

    A reply's native content is sent back to its provider as it came or not at all (signatures cover it), so it is
    dropped where masking would change it.
    """
    plain = event.model_dump(mode="json")
    clean = redactor.nested(plain)
    if clean == plain:
        return event
    if isinstance(event, Replied) and clean["reply"]["native"] != plain["reply"]["native"]:
        clean["reply"]["native"] = None
    return EVENT.validate_python(clean)


def due(run: Run, now: str) -> bool:
    """Whether anybody should claim the run now."""
    if run.sealed is not None:
        return False
    return run.not_before is None or datetime.fromisoformat(run.not_before) <= datetime.fromisoformat(now)
