"""Owns the scheduler's process: opens what it needs, proves it, ticks until told to end. Refuses to plan."""

from __future__ import annotations

import os
import signal
import threading

from scheduler.reports.reporting import Reporter
from scheduler.tick import Scheduler
from worker.contract.redact import SECRET_PREFIX, redactor_from_env
from worker.contract.settings import Settings
from worker.store.archive import open_archive
from worker.store.doorbell import celery_app, ring
from worker.store.hints import Hints


def serve(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. settings.redis_url is set. Raises StoreFault for an archive that is not
    create-only, HintsFault for a Redis that may throw keys away, UsageFault for a secret that cannot be masked."""
    from worker.store.logs import configure_logs

    configure_logs(mask=redactor_from_env(os.environ).text)
    archive = open_archive(settings.archive_url, settings)
    archive.probe()
    hints = Hints(str(settings.redis_url))
    hints.check()
    app = celery_app(str(settings.redis_url))
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    reporter = Reporter(archive, hints, settings, lambda name: os.environ.get(f"{SECRET_PREFIX}{name}"))
    Scheduler(archive, hints, lambda run, lane: ring(app, run, lane), settings, reporter=reporter).run(stop)
