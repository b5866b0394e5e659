"""Owns the scheduler's one append after segment 0: the end of a run without a living attempt. Refuses to end a run
that was claimed meanwhile: the journal's next number decides, not a lease.
"""

from __future__ import annotations

from scheduler.planning.plan import Close
from worker.contract.events import Sealed
from worker.contract.run import Run
from worker.store.archive import Archive
from worker.store.decisions import decide
from worker.store.journal import AppendConflict, Journal
from worker.store.mail import last_mail

BY = "scheduler"


def seal(archive: Archive, run: Run, decision: Close, *, at: str) -> Run:
    """Close the inbox and append what was in it with the `sealed` event, as one segment. What the run asked is
    decided first, so that a late answer meets it. at: UTC, ISO 8601.

    Returns the run after it, or, not sealed, the run as somebody's new claim left it. Raises StoreFault.
    """
    journal = Journal(archive, run.id)
    batch, claims = journal.task().batch, run.claims
    run = journal.load(since=run)
    while run.sealed is None and run.claims == claims:
        mail = last_mail(archive, run, batch, by=BY, at=at)
        by = mail.cancel.by if mail.cancel else BY
        if run.asked is not None:
            decide(archive, run.id, run.asked, "cancelled", by=by, at=at)
        cancelled = mail.cancel is not None and decision.outcome == "cancelled"
        detail = f"cancelled by {by}" if cancelled else decision.detail
        sealed = Sealed(outcome=decision.outcome, failure=decision.failure, detail=detail)
        try:
            return journal.append(run, [*mail.steered(), sealed], attempt=None, at=at)
        except AppendConflict:
            run = journal.load(since=run)
    return run
