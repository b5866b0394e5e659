"""Owns the end of a run of which something stored cannot be read: a seal that names the damage. Refuses to guess what
was lost: a fork at the last sound step goes on from there, in sight."""

from __future__ import annotations

from contextlib import suppress

from worker.contract.errors import IntegrityFault
from worker.store import keys
from worker.store.archive import Archive
from worker.store.inbox import Inbox
from worker.store.journal import Journal


def end_damaged(archive: Archive, run: str, fault: IntegrityFault, *, by: str, at: str) -> bool:
    """Seal the run as failed, infra/store, for a fault of its journal or its mail, close its inbox and delete its
    marker; False when there is nothing to end.

    Only for whoever holds the run's lease, or found that nobody does. at: UTC, ISO 8601. Raises StoreFault.
    """
    ended = Journal(archive, run).seal_damaged(at, fault.message)
    if ended is None:
        return False
    with suppress(IntegrityFault):  # what cannot be read there was never acted on
        Inbox(archive, run).end(ended.inbox_seen, by=by, at=at)
    archive.delete([keys.open_marker(run)])
    return True
