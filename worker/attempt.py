"""Owns one attempt, a straight pipeline: lease > claim > restore > prepare > loop > verdict > seal > release.
Composes; refuses to hold rules of its own beyond what happens when a stage fails.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from worker import context, loop, publish, verdict
from worker.contract.cancel import Cancel
from worker.contract.errors import (
    ConflictFault,
    EngineFault,
    EnvironmentFault,
    FencedFault,
    HintsFault,
    InvalidFault,
    KeeperFault,
    NotFoundFault,
    ProviderFault,
    StoreFault,
)
from worker.contract.events import (
    Claimed,
    Failure,
    FedBack,
    Finished,
    Sealed,
    Steered,
    Unrecorded,
    Usage,
    Verdict,
    Yielded,
)
from worker.contract.task import Task
from worker.host import Stopped
from worker.hosting import AttemptHost
from worker.janitor import sweep
from worker.lease import Lease
from worker.ledger import Ledger, due
from worker.models.commands import CommandsModel
from worker.prepare import Prepared, prepare, restore_chain
from worker.sandbox.protocol import Owner, Workspace
from worker.seal import outcome_of
from worker.station import Station
from worker.store import keys
from worker.store.inbox import Inbox
from worker.store.journal import Journal
from worker.tools.toolset import Toolset

LOG = structlog.get_logger(__name__)

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
        self.ledger = Ledger(self.journal, self.lease, self.cancel, station.now)
        self.mail = threading.Event()
        before = self.ledger.run
        if not due(before, station.now()):
            return "not_due"
        self.task = self.journal.task()
        engine, previous = station.sandbox.engine_id, _previous(before)
        self.ledger.claim(Claimed(worker=station.name, engine=engine, lane=station.lane, previous=previous))
        with ExitStack() as stack:
            stack.callback(station.drain_now.on_set(lambda: self.cancel.set("drain")))
            stack.enter_context(
                structlog.contextvars.bound_contextvars(batch=self.task.batch, attempt=self.ledger.run.attempt)
            )
            self.lease.keep(self._beat)
            try:
                return self._stages(unsettled=before.status == "running" and before.turn == "model")
            except KeeperFault as fault:
                return self._infra(Failure(cls="infra", reason="keeper", detail=str(fault)))
            except EngineFault as fault:
                return self._infra(Failure(cls="infra", reason="engine", detail=str(fault)))

    def _stages(self, *, unsettled: bool) -> str:
        sweep(self.station.archive, self.station.archive_id, self.station.sandbox, run=self.run_id)
        try:
            model = None if self.task.model == "none" else self.station.open_model(self.task)
            if unsettled and model is not None:
                self._settle_lost_reply()
            if self.ledger.run.turn == "seal":
                return self._seal()
            prepared = self._prepare()
        except InvalidFault as fault:
            return self._fail(Failure(cls="provider", reason="bad_request", detail=str(fault)))
        except ProviderFault as fault:
            return self._fail(Failure(cls="provider", reason=fault.reason, detail=str(fault)))
        except EnvironmentFault as fault:
            return self._stopped() if self.cancel.is_set() else self._fail(_env_failure(fault))
        owner = Owner(self.station.archive_id, self.run_id, self._claim, "agent")
        with self.station.sandbox.workspace(owner, prepared.image, self.task.limits) as workspace:
            host = AttemptHost(self.task, self.station, self.ledger, workspace, prepared, self.cancel, self.mail)
            host.restore()
            return self._loop(host, workspace, prepared, model)
