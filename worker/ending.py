"""Owns how an attempt ends: sealed, parked, or given back, and what the failure of a stage means for its run. Refuses
to work on the run.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import structlog

from worker import meter
from worker.contract.claims import contradictions
from worker.contract.delivered import wants_delivery
from worker.contract.errors import (
    EngineFault,
    EnvironmentFault,
    Fault,
    FencedFault,
    HintsFault,
    IntegrityFault,
    KeeperFault,
    NotFoundFault,
    ProviderFault,
    StoreFault,
)
from worker.contract.events import (
    Event,
    Failure,
    Finished,
    OutcomeName,
    Parked,
    Record,
    Replied,
    Sealed,
    Verdict,
    Yielded,
)
from worker.contract.task import Task
from worker.host import Stopped
from worker.ledger import Ledger
from worker.mailbox import Mailbox
from worker.publish import Patch, artifacts
from worker.purse import Purse
from worker.station import Station
from worker.store import keys
from worker.store.decisions import decide
from worker.toolbox import Cancelled

LOG = structlog.get_logger(__name__)

INFRA_LAST = 3
"""The third infra yield in a row without a step ends the run (plan, section 5)."""


@dataclass(frozen=True)
class Ending:
    """Of one attempt. Each method commits the end and returns the word for it: sealed, parked or yielded.

    All raise FencedFault, HintsFault and StoreFault as the ledger does.
    """

    task: Task
    station: Station
    ledger: Ledger
    mailbox: Mailbox
    purse: Purse

    def seal(self, patch: Patch, measured: Verdict) -> str:
        """The end, in one segment with what was measured, so that no crash falls between the two."""
        run = self.ledger.run.model_copy(update={"verdict": measured})
        stopped = run.finished.failure if run.finished is not None else None
        failure = stopped or _refused(measured.guards)
        outcome: OutcomeName = "failed" if failure else "no_change" if patch.empty else "changed"
        said = run.finished.text if run.finished is not None and stopped is None else ""
        against = contradictions(said, measured, self.task.checks, _calls(self.ledger.records))
        stored = artifacts(
            self.task,
            run,
            outcome,
            failure,
            patch,
            against,
            put_blob=self.ledger.put_blob,
            redactor=self.station.redactor,
        )
        sealed = Sealed(
            outcome=outcome, verdict=measured.verdict, failure=failure, artifacts=stored, contradictions=against
        )
        return self._end(measured, sealed)

    def fail(self, failure: Failure) -> str:
        """The end of a run whose agent could not work, or not go on."""
        text = meter.report(self.ledger.run, self.ledger.records)
        return self._end(Finished(text=text, failure=failure), Sealed(outcome="failed", failure=failure))

    def left(self, ended: Parked | Stopped) -> str:
        """The attempt ends before the run does."""
        return self.stopped(ended.why) if isinstance(ended, Stopped) else "parked"

    def stopped(self, why: str) -> str:
        """The attempt's Cancel was thrown, or this process drains."""
        if why == "cancel":
            return self._end(Sealed(outcome="cancelled"))  # who did stands in the inbox, which this consumes
        if why == "window":
            return self._end(Sealed(outcome="cancelled", detail="window"))
        if why in ("drain", "pause"):
            self.mailbox.expect()  # what people said goes before what this process wants
            if (ended := self.mailbox.take()) is not None:
                return self.left(ended)
            self._commit(Yielded(why="drain"))  # a pause that was taken back meanwhile ends like a drain
            return "yielded"
        raise FencedFault(f"stopped: {why}")

    def failed(self, error: Exception) -> str:
        """What a stage's failure means for the run. Raises HintsFault, and StoreFault where waiting helps."""
        match error:
            case Cancelled():
                return self.stopped(str(error))
            case EnvironmentFault():
                return self.fail(Failure(cls="env", reason=error.reason, detail=str(error)))
            case ProviderFault():
                return self.fail(Failure(cls="provider", reason=error.reason, detail=str(error)))
            case KeeperFault():
                return self._infra("keeper", error)
            case EngineFault():
                return self._infra("engine", error)
            case IntegrityFault() | NotFoundFault():
                return self.fail(Failure(cls="infra", reason="store", detail=str(error)))
            case StoreFault(retryable=False):
                return self._infra("store", error)
            case HintsFault() | StoreFault():
                raise error
            case OSError(errno=errno.ENOSPC | errno.EDQUOT):
                LOG.exception("disk_full")
                return self._infra("disk", error)
            case _:
                # A bug of ours must neither kill the worker's other runs nor spin: it counts as a lost worker.
                LOG.exception("internal_error")
                return self._infra("worker_lost", error)

    def lost(self, fault: HintsFault | StoreFault) -> str:
        """Redis or the store is away: given back for a while without counting against the run, which a claim that
        only ends would."""
        LOG.warning("attempt_lost", fault=str(fault))
        self._commit(Yielded(why="lost", not_before=self._pause(1)))
        return "yielded"

    def _infra(self, reason: Literal["engine", "keeper", "disk", "store", "worker_lost"], error: Exception) -> str:
        """An infra fault gives the run back for a while; the third in a row without a step ends it."""
        detail = str(error) if isinstance(error, Fault | OSError) else f"internal error: {error!r}"
        failure = Failure(cls="infra", reason=reason, detail=detail)
        faults = self.ledger.run.infra_yields + 1
        if faults >= INFRA_LAST:
            return self.fail(failure)
        not_before = self._pause(faults)
        LOG.warning("infra_fault", failure=str(failure), detail=failure.detail, not_before=not_before)
        self._commit(Yielded(why="infra", failure=failure, not_before=not_before))
        return "yielded"

    def _end(self, *events: Event) -> str:
        """Close the inbox, take in what came before, and append the last segment; then the marker goes.

        A cancel that came before the inbox closed wins: whoever sent it was told that it counts.
        """
        station, asked = self.station, self.ledger.run.asked
        mail = self.ledger.patiently(self.mailbox.end)
        if mail.cancel is not None:
            events = (Sealed(outcome="cancelled", detail=f"cancelled by {mail.cancel.by}"),)
        if asked is not None:  # so that a late answer meets it
            by, at = station.name, station.now()
            self.ledger.patiently(lambda: decide(station.archive, self.task.run, asked, "cancelled", by=by, at=at))
        self._commit(*mail.steered(), *events)
        if not wants_delivery(self.task):
            with suppress(StoreFault):  # the scheduler deletes the marker of a sealed run wherever it finds one
                station.archive.delete([keys.open_marker(self.task.run)])
        return "sealed"

    def _commit(self, *events: Event) -> None:
        """The last segment of the attempt, which also counts what a lost answer may have cost."""
        self.ledger.commit(*self.purse.unheard(), *events)

    def _pause(self, faults: int) -> str:
        """When to try again after so many faults in a row."""
        backoff_s = self.station.settings.infra_backoff_s
        return self.station.later(backoff_s[min(faults, len(backoff_s)) - 1])


def _refused(guards: Sequence[str]) -> Failure | None:
    """Of a patch that does what its task forbids: it is kept, and nobody takes the run for done."""
    return Failure(cls="refused", reason="guard", detail="; ".join(guards)) if guards else None


def _calls(records: Iterable[Record]) -> list[tuple[str, str]]:
    """(tool, arguments) of every call that a journal has a reply with."""
    replies = (record.event.reply for record in records if isinstance(record.event, Replied))
    return [(call.name, call.arguments) for reply in replies for call in reply.calls]
