"""Owns an attempt's pen: the claim, each commit after it, and the transcript both agree on. Refuses to write after a
later claim or a seal: whoever loses a segment number reads what won and stops.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

import structlog
from pydantic import TypeAdapter

from worker.contract.cancel import Cancel
from worker.contract.errors import FencedFault, StoreFault
from worker.contract.events import Claimed, Event, Record, Replied, Sealed
from worker.contract.run import Run, fold
from worker.lease import Lease
from worker.redact import Redactor
from worker.store.journal import AppendConflict, Journal

EVENT: TypeAdapter[Event] = TypeAdapter(Event)
LOG = structlog.get_logger(__name__)

STORE_PATIENCE_S = 900.0
"""How long a commit is tried again while the store is away: longer than the promised ten minutes."""
STORE_DELAYS_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)


class Ledger:
    """One attempt on one run. Not thread-safe: one commit at a time, in order.

    run: the fold after the last commit. records: every record up to it.
    """

    def __init__(
        self, journal: Journal, lease: Lease, cancel: Cancel, redactor: Redactor, now: Callable[[], str]
    ) -> None:
        self.journal = journal
        self.run = Run(id=journal.run)
        self._records: list[Record] = []
        self._lease = lease
        self._cancel = cancel
        self._redactor = redactor
        self._now = now
        self._committed = time.monotonic()
        self._read()

    @property
    def records(self) -> Sequence[Record]:
        return self._records

    def working_s(self) -> float:
        """Working time of the run up to now, seconds."""
        return self.run.working_s + time.monotonic() - self._committed

    def claim(self, event: Claimed) -> None:
        """Start an attempt. An ordinary segment that won the number is taken in and the next one tried, because the
        attempt before may have committed its last step meanwhile. FencedFault when the run ended or was claimed."""
        while True:
            try:
                self._append([event], attempt=self.run.last_seq + 1)
                return
            except AppendConflict as conflict:
                if any(isinstance(record.event, Claimed | Sealed) for record, _ in conflict.winner):
                    raise FencedFault("somebody else claimed or ended the run first") from conflict
                self.run = fold(conflict.winner, self.run)
                self._records += [record for record, _ in conflict.winner]

    def commit(self, *events: Event) -> None:
        """Append events as one segment under the claim. FencedFault when somebody else wrote that number, when the
        lease is lost, or when the attempt was cancelled for that; StoreFault when the store stays away."""
        self.check()
        try:
            self._append(events, attempt=self.run.attempt)
        except AppendConflict as conflict:
            raise FencedFault(str(conflict)) from conflict

    def check(self) -> None:
        """Nothing new begins on an expired term: wait for a heartbeat, then look at the journal's tail."""
        if self._cancel.is_set() and self._cancel.reason == "lease":
            raise FencedFault("the lease is somebody else's")
        if self._lease.wait_current():
            return
        last = self.run.last_seq
        if self.journal.load(since=self.run).last_seq != last:
            raise FencedFault("the run went on elsewhere while this attempt was cut off")

    def _append(self, events: Iterable[Event], *, attempt: int | None) -> None:
        events = [masked(event, self._redactor) for event in events]
        nonce = secrets.token_hex(16)
        began, tries = time.monotonic(), 0
        while True:
            try:
                lines = self.journal.write(self.run, events, attempt=attempt, at=self._now(), nonce=nonce)
                break
            except StoreFault as fault:
                delay_s = STORE_DELAYS_S[min(tries, len(STORE_DELAYS_S) - 1)]
                tries += 1
                if not fault.retryable or time.monotonic() - began > STORE_PATIENCE_S:
                    raise
                LOG.warning("store_away", fault=str(fault), next_try_s=delay_s)
                if self._cancel.wait(delay_s) and self._cancel.reason == "lease":
                    raise FencedFault("the lease was lost while the store was away") from fault
        self._committed = time.monotonic()
        self.run = fold(lines, self.run)
        self._records += [record for record, _ in lines]

    def _read(self) -> None:
        for record, line_hash in self.journal.read():
            self.run = self.run.after(record, line_hash)
            self._records.append(record)


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
