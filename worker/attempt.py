"""Owns one attempt, a straight pipeline: lease > claim > restore > prepare > loop > verdict > seal > release.
Composes; refuses to hold rules of its own beyond what happens when a stage fails.
"""

from __future__ import annotations

import errno
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

import structlog

from worker import context, loop, meter, verdict
from worker.contract.cancel import Cancel
from worker.contract.errors import (
    ConflictFault,
    EngineFault,
    EnvironmentFault,
    Fault,
    FencedFault,
    HintsFault,
    IntegrityFault,
    InvalidFault,
    KeeperFault,
    NotFoundFault,
    ProviderFault,
    StoreFault,
)
from worker.contract.events import (
    Claimed,
    Event,
    Failure,
    FedBack,
    Finished,
    OutcomeName,
    Parked,
    Sealed,
    Verdict,
    Yielded,
)
from worker.contract.run import FAILED_VERDICTS, Run
from worker.environments import Prepared, recorded
from worker.host import Stopped
from worker.hosting import AttemptHost
from worker.janitor import sweep
from worker.lease import Lease
from worker.ledger import Ledger, due
from worker.lost_reply import lost_reply
from worker.mailbox import Mailbox
from worker.models.commands import CommandsModel
from worker.models.protocol import Model
from worker.prepare import prepare
from worker.publish import Patch, artifacts, make_patch
from worker.sandbox.protocol import Owner, Workspace
from worker.station import Station
from worker.store import keys
from worker.store.damage import end_damaged
from worker.store.decisions import decide
from worker.store.journal import Journal
from worker.store.mail import read_mail
from worker.toolbox import Cancelled
from worker.tools.toolset import Toolset, withheld

LOG = structlog.get_logger(__name__)

ENDED = {"sealed": "sealed", "waiting": "parked", "queued": "yielded"}
"""What an attempt says of its end, by the status in which it left its run."""

INFRA_LAST = 3
"""The third infra yield in a row without a step ends the run (plan, section 5)."""


def run(run_id: str, station: Station) -> str:
    """Work on a run until it is sealed, parked or given back; says how that ended, in a word for the log.

    Raises nothing for what may happen at night: faults of engine, store and Redis give the run back.
    """
    cancel = Cancel()
    try:
        with Lease(station.hints, f"run:{run_id}", station.settings, cancel) as lease:
            return _Attempt(run_id, station, lease, cancel).work()
    except ConflictFault:
        return "held"
    except IntegrityFault as fault:
        sealed = end_damaged(station.archive, run_id, by=station.name, at=station.now())
        LOG.error("journal_damaged", fault=str(fault), sealed=sealed)
        return "damaged"
    except FencedFault as fault:
        LOG.info("fenced", fault=str(fault))
        return "fenced"
    except NotFoundFault as fault:
        LOG.error("unknown_run", fault=str(fault))
        return "unknown"
    except (HintsFault, StoreFault) as fault:
        # Redis or the store being away never counts against the run: it is rung again when they are back.
        LOG.warning("attempt_left", fault=str(fault))
        return "left"


@dataclass
class _Attempt:
    """The stages of one attempt, under a held lease."""

    run_id: str
    station: Station
    lease: Lease
    cancel: Cancel

    def work(self) -> str:
        station = self.station
        self.journal = Journal(station.archive, self.run_id)
        self.ledger = Ledger(self.journal, self.lease, self.cancel, station.redactor, station.now)
        before = self.ledger.run
        self.task = self.journal.task()
        if not due(before, station.now()) or read_mail(station.archive, before, self.task.batch).blocks:
            return "not_due"
        engine, previous = station.sandbox.engine_id, _previous(before)
        self.ledger.claim(Claimed(worker=station.name, engine=engine, lane=station.lane, previous=previous))
        with ExitStack() as stack:
            stack.callback(station.drain_now.on_set(lambda: self.cancel.set("drain")))
            stack.enter_context(
                structlog.contextvars.bound_contextvars(batch=self.task.batch, attempt=self.ledger.run.attempt)
            )
            self.mailbox = Mailbox(station, self.ledger, self.cancel, self.task.batch)
            self.lease.each_beat(self.mailbox.beat)
            try:
                return self._worked(before)
            except (HintsFault, StoreFault) as fault:
                return self._lost(fault)

    def _worked(self, before: Run) -> str:
        """The stages, and what becomes of the run when one fails. Raises HintsFault and StoreFault, also when one
        comes while another failure is dealt with."""
        try:
            return self._stages(before)
        except FencedFault:
            raise
        except Exception as error:
            status = self.ledger.run.status
            if status == "running":
                return self._failed(error)
            # What was said last holds; what could not be removed is for the janitor.
            LOG.warning("left_behind", status=status, fault=str(error))
            return ENDED[status]

    def _failed(self, error: Exception) -> str:
        """What a stage's failure means for the run. Raises HintsFault, and StoreFault where waiting helps."""
        match error:
            case Cancelled():
                return self._stopped(str(error))
            case KeeperFault():
                return self._infra("keeper", error)
            case EngineFault():
                return self._infra("engine", error)
            case IntegrityFault() | NotFoundFault():
                return self._fail(Failure(cls="infra", reason="store", detail=str(error)))
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

    def _stages(self, before: Run) -> str:
        sweep(self.station.archive, self.station.archive_id, self.station.sandbox, run=self.run_id)
        if (lost := lost_reply(self.task, before, self.ledger.records, self._tools().specs)) is not None:
            self.ledger.commit(lost)
        if (ended := self.mailbox.take() or self.mailbox.decide()) is not None:
            return self._left(ended)
        try:
            model = None if self.task.model == "none" else self.station.open_model(self.task)
        except InvalidFault as fault:
            return self._fail(Failure(cls="provider", reason="bad_request", detail=str(fault)))
        except ProviderFault as fault:
            return self._fail(Failure(cls="provider", reason=fault.reason, detail=str(fault)))
        try:
            prepared = self._prepare()
        except EnvironmentFault as fault:
            return self._fail(_env_failure(fault))
        with (
            self.station.sandbox.workspace(self._owner, prepared.image, self.task.limits) as workspace,
            AttemptHost(self.task, self.station, self.ledger, workspace, prepared, self.cancel, self.mailbox) as host,
        ):
            try:
                host.restore()
            except EnvironmentFault as fault:
                return self._fail(_env_failure(fault))
            return self._loop(host, workspace, prepared, model)

    @property
    def _owner(self) -> Owner:
        claim = self.ledger.run.attempt
        assert claim is not None, "stages run after the claim"
        return Owner(self.station.archive_id, self.run_id, claim, "agent")

    def _prepare(self) -> Prepared:
        """The environment, built or found; a takeover uses the digests that the journal names."""
        station, named = self.station, self.ledger.run.prepared
        if named is not None:
            return recorded(station.archive, station.sandbox, named)
        prepared = prepare(
            self.task,
            archive=station.archive,
            sandbox=station.sandbox,
            owner=self._owner,
            redactor=station.redactor,
            secrets=station.secrets,
            cancel=self.cancel,
            store_images=station.settings.store_images,
        )
        self.ledger.commit(prepared.event())
        return prepared

    def _loop(self, host: AttemptHost, workspace: Workspace, prepared: Prepared, model: Model | None) -> str:
        """Work until there is nothing to feed back, measure, seal."""
        tools = self._tools()
        while True:
            if self.ledger.run.turn in ("model", "calls"):
                ended = self._work(host, tools, model)
                if not isinstance(ended, Finished):
                    return self._left(ended)
            patch, measured = self._measure(workspace, prepared)
            if not self._goes_on(measured, model):
                return self._seal(patch, measured)

    def _work(self, host: AttemptHost, tools: Toolset, model: Model | None) -> Finished | Parked | Stopped:
        """The commands, then the model where one was asked for."""
        if self.ledger.run.command_steps < len(self.task.commands) or self._command_pending():
            ended = loop.work(host, CommandsModel(self.task.commands), tools, phase="commands")
            if ended is not None:
                return ended
        if model is not None:
            ended = loop.work(host, model, tools)
            assert ended is not None, "the model phase ends with an outcome"
            return ended
        broken = meter.broken_command(self.ledger.records)
        said = f"All commands were started; {broken.detail}." if broken else "All commands were run."
        finished = Finished(text=said, failure=broken)
        self.ledger.commit(finished)
        return finished

    def _tools(self) -> Toolset:
        return Toolset(without=withheld(self.task))

    def _command_pending(self) -> bool:
        """Whether the last reply was a command whose call has no result yet."""
        run = self.ledger.run
        return bool(run.pending) and run.steps == run.command_steps

    def _measure(self, workspace: Workspace, prepared: Prepared) -> tuple[Patch, Verdict]:
        """The patch of the workspace as it lies, and what the clean room says of it."""
        station, put_blob = self.station, self._put_blob
        patch = make_patch(workspace, self.task, put_blob=put_blob, redactor=station.redactor, cancel=self.cancel)
        finished = self.ledger.run.finished
        if finished is not None and finished.failure is not None and patch.empty:
            return patch, Verdict(verdict=None, patch=patch.stat)
        measured = verdict.measure(
            self.task,
            prepared,
            patch,
            archive=station.archive,
            sandbox=station.sandbox,
            owner=self._owner,
            put_blob=put_blob,
            redactor=station.redactor,
            cancel=self.cancel,
        )
        return patch, measured

    def _put_blob(self, data: bytes | Path) -> str:
        """Store a blob of the run; while the store is away it stays here and waits."""
        return self.ledger.patiently(lambda: self.journal.put_blob(data))

    def _goes_on(self, measured: Verdict, model: Model | None) -> bool:
        """Whether a model that finished by its own words gets another turn (committed): red checks are shown to it,
        or words that came before the inbox could be closed."""
        run, limits = self.ledger.run, self.task.limits
        if (
            model is None
            or run.finished is None
            or run.finished.failure is not None
            or meter.stop(run, limits, repeats=0, working_s=self.ledger.working_s()) is not None
        ):
            return False
        red = measured.verdict in FAILED_VERDICTS and run.feedbacks < limits.feedbacks
        if red:
            self.ledger.commit(FedBack(text=context.feedback(measured.checks), checks=measured.checks))
            return True
        mail = self.ledger.patiently(self.mailbox.close)
        if not mail.words or mail.cancel is not None:
            return False
        self.ledger.commit(*mail.steered(), FedBack(text=""))
        return True

    def _seal(self, patch: Patch, measured: Verdict) -> str:
        """The end, in one segment with what was measured, so that no crash falls between the two."""
        run = self.ledger.run.model_copy(update={"verdict": measured})
        failure = run.finished.failure if run.finished is not None else None
        outcome: OutcomeName = "failed" if failure else "no_change" if patch.empty else "changed"
        stored = artifacts(
            self.task,
            run,
            outcome,
            failure,
            patch,
            put_blob=self._put_blob,
            redactor=self.station.redactor,
        )
        return self._end(
            measured, Sealed(outcome=outcome, verdict=measured.verdict, failure=failure, artifacts=stored)
        )

    def _fail(self, failure: Failure) -> str:
        """The end of a run whose agent could not work, or not go on."""
        text = meter.report(self.ledger.run, self.ledger.records)
        return self._end(Finished(text=text, failure=failure), Sealed(outcome="failed", failure=failure))

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
            self.ledger.patiently(lambda: decide(station.archive, self.run_id, asked, "cancelled", by=by, at=at))
        self.ledger.commit(*mail.steered(), *events)
        with suppress(StoreFault):  # the scheduler deletes the marker of a sealed run wherever it finds one
            station.archive.delete([keys.open_marker(self.run_id)])
        return "sealed"

    def _left(self, ended: Parked | Stopped) -> str:
        """The attempt ends before the run does."""
        return self._stopped(ended.why) if isinstance(ended, Stopped) else "parked"

    def _stopped(self, why: str) -> str:
        """The attempt's Cancel was thrown, or this process drains."""
        if why == "cancel":
            return self._end(Sealed(outcome="cancelled"))  # who did stands in the inbox, which this consumes
        if why == "pause" and (ended := self.mailbox.take()) is not None:
            return self._left(ended)
        if why in ("drain", "pause"):
            self.ledger.commit(Yielded(why="drain"))  # a pause that was taken back meanwhile ends like a drain
            return "yielded"
        raise FencedFault(f"stopped: {why}")

    def _infra(self, reason: Literal["engine", "keeper", "disk", "store", "worker_lost"], error: Exception) -> str:
        """An infra fault gives the run back for a while; the third in a row without a step ends it."""
        detail = str(error) if isinstance(error, Fault | OSError) else f"internal error: {error!r}"
        failure = Failure(cls="infra", reason=reason, detail=detail)
        faults = self.ledger.run.infra_yields + 1
        if faults >= INFRA_LAST:
            return self._fail(failure)
        not_before = self._pause(faults)
        LOG.warning("infra_fault", failure=str(failure), detail=failure.detail, not_before=not_before)
        self.ledger.commit(Yielded(why="infra", failure=failure, not_before=not_before))
        return "yielded"

    def _lost(self, fault: HintsFault | StoreFault) -> str:
        """Redis or the store is away: given back for a while without counting against the run, which a claim that
        only ends would."""
        LOG.warning("attempt_lost", fault=str(fault))
        self.ledger.commit(Yielded(why="lost", not_before=self._pause(1)))
        return "yielded"

    def _pause(self, faults: int) -> str:
        """When to try again after so many faults in a row."""
        backoff_s = self.station.settings.infra_backoff_s
        wait = timedelta(seconds=backoff_s[min(faults, len(backoff_s)) - 1])
        return (datetime.fromisoformat(self.station.now()) + wait).isoformat(timespec="milliseconds")


def _previous(run: Run) -> str:
    """How the attempt before ended, as far as the journal knows."""
    if run.attempt is None:
        return ""
    ends = {"running": "died or was cut off", "queued": "gave the run back", "waiting": "left the run waiting"}
    return f"{run.worker}: {ends[run.status]}"


def _env_failure(fault: EnvironmentFault) -> Failure:
    return Failure(cls="env", reason=fault.reason, detail=str(fault))
