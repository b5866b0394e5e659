"""Owns one attempt, a straight pipeline: lease > claim > restore > prepare > loop > verdict > seal > release.
Composes; refuses to hold rules of its own: how it ends is `ending`'s.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import structlog

from worker import context, handed, meter, phases, verdict
from worker.contract import hours
from worker.contract.cancel import Cancel
from worker.contract.errors import (
    ConflictFault,
    EngineFault,
    FencedFault,
    HintsFault,
    IntegrityFault,
    InvalidFault,
    NotFoundFault,
    StoreFault,
)
from worker.contract.events import (
    Claimed,
    Failure,
    FedBack,
    Finished,
    Unrecorded,
    Verdict,
)
from worker.contract.run import Run
from worker.delegate import RunHost, take_stock
from worker.ending import Ending
from worker.environments import Prepared, recorded
from worker.hosting import AttemptHost
from worker.janitor import sweep
from worker.lease import Lease
from worker.ledger import Ledger
from worker.lost_reply import lost_reply
from worker.mailbox import Mailbox
from worker.models.protocol import Model
from worker.prepare import prepare
from worker.publish import Patch
from worker.purse import Purse
from worker.sandbox.protocol import Owner, Workspace
from worker.station import Station
from worker.store.damage import end_damaged
from worker.store.journal import Journal
from worker.store.mail import read_mail
from worker.tools.toolset import Toolset, toolset

LOG = structlog.get_logger(__name__)

ENDED = {"sealed": "sealed", "waiting": "parked", "queued": "yielded"}
"""What an attempt says of its end, by the status in which it left its run."""


def run(run_id: str, station: Station) -> str:
    """Work on a run until it is sealed, parked or given back; says how that ended, in a word for the log.

    Raises nothing for what may happen at night: faults of engine, store and Redis give the run back.
    """
    cancel = Cancel()
    try:
        with Lease(station.hints, f"run:{run_id}", station.settings, cancel) as lease:
            try:
                return _Attempt(run_id, station, lease, cancel).work()
            except IntegrityFault as fault:
                sealed = end_damaged(station.archive, run_id, fault, by=station.name, at=station.now())
                LOG.error("journal_damaged", fault=str(fault), sealed=sealed)
                return "damaged"
    except ConflictFault:
        return "held"
    except FencedFault as fault:
        LOG.info("fenced", fault=str(fault))
        return "fenced"
    except NotFoundFault as fault:
        LOG.error("unknown_run", fault=str(fault))
        return "unknown"
    except (EngineFault, HintsFault, StoreFault) as fault:
        # Redis or the store being away never counts against the run, and the engine only once it is claimed: it is
        # rung again, here when they are back, or on another host.
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
        self.ledger = Ledger(self.journal, self.lease, self.cancel, station.redactor, station.now, station.spool)
        before = self.ledger.run
        self.task = self.journal.task()
        ready = hours.ready(self.task, before, datetime.fromisoformat(station.now()))
        if not ready or read_mail(station.archive, before, self.task.batch).blocks:
            return "not_due"
        station.sandbox.has_image("toolbox")  # learns whether the engine answers: a claim without one would count
        engine, previous = station.sandbox.engine_id, _previous(before, station)
        claimed = Claimed(worker=station.name, engine=engine, lane=station.lane, previous=previous)
        before = self.ledger.claim(claimed, self._lost)
        with ExitStack() as stack:
            stack.callback(station.drain_now.on_set(lambda: self.cancel.set("drain")))
            stack.enter_context(
                structlog.contextvars.bound_contextvars(batch=self.task.batch, attempt=self.ledger.run.attempt)
            )
            purse = Purse(self.task, station, self.ledger)
            stack.callback(purse.close)
            self.station = replace(station, open_model=purse.open)
            shut = partial(hours.shut, self.task)
            self.mailbox = Mailbox(station, self.ledger, self.cancel, self.task.batch, shut)
            self.ending = Ending(self.task, station, self.ledger, self.mailbox, purse)
            self.lease.each_beat(self.mailbox.beat)
            try:
                return self._worked(before)
            except (HintsFault, StoreFault) as fault:
                return self.ending.lost(fault)

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
                return self.ending.failed(error)
            # What was said last holds; what could not be removed is for the janitor.
            LOG.warning("left_behind", status=status, fault=str(error))
            return ENDED[status]

    def _stages(self, before: Run) -> str:
        # Before anything that may end this attempt: the next one would not know that there is stock to take.
        take_stock(before, self.ledger, self.station)
        sweep(self.station.archive, self.station.archive_id, self.station.sandbox, run=self.run_id)
        if (ended := self.mailbox.take() or self.mailbox.decide()) is not None:
            return self.ending.left(ended)
        try:
            model = None if self.task.model == "none" else self.station.open_model(self.task)
        except InvalidFault as fault:
            return self.ending.fail(Failure(cls="provider", reason="bad_request", detail=str(fault)))
        for tool in self.task.tools:  # told before any model is paid
            handed.values(tool.secrets, f"the tool {tool.name}", self.station.secrets)
        prepared = self._prepare()
        with (
            self.station.sandbox.workspace(self._owner, prepared.image, self.task.limits) as workspace,
            RunHost(self.task, self.station, self.ledger, workspace, prepared, self.cancel, self.mailbox) as host,
        ):
            host.restore()
            return self._loop(host, workspace, prepared, model)

    def _lost(self, before: Run) -> Unrecorded | None:
        """The reply that the attempt before may have been waiting for when it died."""
        return lost_reply(self.task, before, self.ledger.records, self._tools().specs, self.station.prices)

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
                ended = phases.work(host, model, tools)
                if not isinstance(ended, Finished):
                    return self.ending.left(ended)
            self.mailbox.expect()  # measuring takes long: nothing to begin in a pause, or before words are heard
            if (left := host.inbox()) is not None:
                return self.ending.left(left)
            if self.ledger.run.unheard and self._may_go_on(model):
                self.ledger.commit(FedBack(text=""))
                continue
            patch, measured = self._measure(workspace, prepared)
            if not self._goes_on(measured, model):
                return self.ending.seal(patch, measured)

    def _tools(self) -> Toolset:
        return toolset(self.task)

    def _measure(self, workspace: Workspace, prepared: Prepared) -> tuple[Patch, Verdict]:
        """The patch of the workspace as it lies, and what the clean room says of it."""
        station = self.station
        return verdict.of_workspace(
            self.task,
            self.ledger.run,
            workspace,
            prepared,
            archive=station.archive,
            sandbox=station.sandbox,
            owner=self._owner,
            put_blob=self.ledger.put_blob,
            redactor=station.redactor,
            cancel=self.cancel,
        )

    def _goes_on(self, measured: Verdict, model: Model | None) -> bool:
        """Whether the model gets another turn (committed): red checks are shown to it, once what its patch may not
        do, or words that came before the inbox could be closed."""
        if not self._may_go_on(model):
            return False
        told = context.feedback(measured, self.ledger.run)
        if told is not None and self.ledger.run.feedbacks < self.task.limits.feedbacks:
            self.ledger.commit(told)
            return True
        mail = self.ledger.patiently(self.mailbox.close)
        if not mail.words or mail.cancel is not None:
            return False
        self.ledger.commit(*mail.steered(), FedBack(text=""))
        return True

    def _may_go_on(self, model: Model | None) -> bool:
        """Whether a model finished by its own words, and something of its limits is left."""
        run = self.ledger.run
        return (
            model is not None
            and run.finished is not None
            and run.finished.failure is None
            and meter.stop(run, self.task.limits, repeats=0, working_s=self.ledger.working_s()) is None
        )


def _previous(run: Run, station: Station) -> str:
    """How the attempt before ended, as far as the journal and this host know."""
    if run.attempt is None:
        return ""
    ends = {"running": "died or was cut off", "queued": "gave the run back", "waiting": "left the run waiting"}
    known = station.how_ended(run.worker) if run.status == "running" else ""
    return f"{run.worker}: {known or ends[run.status]}"
