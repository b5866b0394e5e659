"""Owns Station, what a worker process lends to each of its attempts. Refuses to do anything with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from worker.before_call import Hook, no_hook
from worker.contract.cancel import Cancel
from worker.contract.redact import Redactor
from worker.contract.settings import Settings
from worker.contract.task import Task
from worker.models.prices import TABLE_ALONE, Prices
from worker.models.protocol import Model
from worker.sandbox.protocol import Sandbox
from worker.spool import Spool
from worker.store.archive import Archive
from worker.store.hints import Hints


def utc_now() -> str:
    """UTC, ISO 8601 with milliseconds: the clock of every record."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class Station:
    """name: of this worker, unique among the living. lane: what it serves. archive_id: label on its containers.

    secrets: NAME -> value, from DAWN_SECRET_*. open_model: makes the model of a task; raises InvalidFault or
    ProviderFault. prices: of models. before_call: the deployment's ruling over a call. how_ended: what this host
    knows of the end of a worker that is gone, "" for nothing. spool: what of this process waits for the
    archive. drain: thrown when this process wants to end; attempts then stop between calls. drain_now: thrown when
    the soft limit is over; calls in hand are killed and rolled back.
    """

    name: str
    lane: str
    settings: Settings
    archive: Archive
    archive_id: str
    hints: Hints
    sandbox: Sandbox
    redactor: Redactor
    secrets: Mapping[str, str]
    open_model: Callable[[Task], Model]
    prices: Prices = TABLE_ALONE
    before_call: Hook = no_hook
    how_ended: Callable[[str], str] = lambda worker: ""
    spool: Spool = field(default_factory=Spool)
    drain: Cancel = field(default_factory=Cancel)
    drain_now: Cancel = field(default_factory=Cancel)
    now: Callable[[], str] = utc_now

    def later(self, seconds: float) -> str:
        """That much from now, as `now` writes it."""
        return (datetime.fromisoformat(self.now()) + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")
