"""Owns the Celery tasks, a few lines around attempt.run and deliver.run. Refuses to hold work: a doorbell carries a
run id, is acknowledged at once, and may be lost or doubled.
"""

from __future__ import annotations

import re
from typing import Any

import structlog

from worker import attempt, deliver
from worker.contract.delivered import delivery_of
from worker.contract.errors import Fault
from worker.slots import Slots
from worker.station import Station
from worker.store import doorbell

LOG = structlog.get_logger(__name__)
RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


def register(app: Any, station: Station, slots: Slots) -> None:
    """Give the app the tasks that it knows."""

    @app.task(name=doorbell.TASK, ignore_result=True)  # type: ignore[untyped-decorator, unused-ignore]
    def run(run_id: str) -> None:
        if not _is_run(run_id):
            return
        with slots.taken(), structlog.contextvars.bound_contextvars(run=run_id):
            station.hints.answered(run_id)
            LOG.info("attempt_ended", how=attempt.run(run_id, station))

    @app.task(name=doorbell.DELIVER, ignore_result=True)  # type: ignore[untyped-decorator, unused-ignore]
    def deliver_run(run_id: str) -> None:
        if not _is_run(run_id):
            return
        with slots.taken(), structlog.contextvars.bound_contextvars(run=run_id):
            station.hints.answered(delivery_of(run_id))
            try:
                LOG.info("delivery_ended", how=deliver.run(run_id, station))
            except Fault as fault:  # Redis or a journal; the scheduler rings again
                LOG.error("delivery_broke_off", fault=station.redactor.text(str(fault)))


def _is_run(name: object) -> bool:
    if isinstance(name, str) and RUN_ID.fullmatch(name):
        return True
    LOG.error("doorbell_refused", run=str(name)[:80])
    return False
