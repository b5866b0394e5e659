"""Owns the Celery task, a few lines around attempt.run. Refuses to hold work: a doorbell carries a run id, is
acknowledged at once, and may be lost or doubled.
"""

from __future__ import annotations

import re
from typing import Any

import structlog

from worker import attempt
from worker.slots import Slots
from worker.station import Station
from worker.store import doorbell

LOG = structlog.get_logger(__name__)
RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


def register(app: Any, station: Station, slots: Slots) -> None:
    """Give the app the one task it knows."""

    @app.task(name=doorbell.TASK, ignore_result=True)  # type: ignore[untyped-decorator, unused-ignore]
    def run(run_id: str) -> None:
        if not isinstance(run_id, str) or not RUN_ID.fullmatch(run_id):
            LOG.error("doorbell_refused", run=str(run_id)[:80])
            return
        with slots.taken(), structlog.contextvars.bound_contextvars(run=run_id):
            station.hints.answered(run_id)
            LOG.info("attempt_ended", how=attempt.run(run_id, station))
