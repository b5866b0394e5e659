"""Owns the scheduler's one append after segment 0: the end of a run without a living attempt. Refuses to end a run
that was claimed meanwhile: the journal's next number decides, not a lease.
"""

from __future__ import annotations

from scheduler.plan import Close
from worker.contract.events import Event, Sealed, Steered
from worker.contract.run import Run
from worker.store.archive import Archive
from worker.store.inbox import Inbox
from worker.store.journal import AppendConflict, Journal

BY = "scheduler"


def seal(archive: Archive, run: Run, decision: Close, *, at: str) -> Run:
    """Close the inbox and append what was in it with the `sealed` event, as one segment. at: UTC, ISO 8601.

    Returns the run after it, or, not sealed, the run as somebody's new claim left it. Raises StoreFault.
    """
    journal = Journal(archive, run.id)
    claims = run.claims
    run = journal.load(since=run)
    while run.sealed is None and run.claims == claims:
        messages = Inbox(archive, run.id).close(run.inbox_seen, by=BY, at=at)
        cancels = [message for message in messages if message.kind == "cancel"]
        detail = f"cancelled by {cancels[0].by}" if cancels and decision.outcome == "cancelled" else decision.detail
        events: list[Event] = [
            Steered(n=message.n, kind=message.kind, by=message.by, text=message.text) for message in messages
        ]
        events.append(Sealed(outcome=decision.outcome, failure=decision.failure, detail=detail))
        try:
            return journal.append(run, events, attempt=None, at=at)
        except AppendConflict:
            run = journal.load(since=run)
    return run
