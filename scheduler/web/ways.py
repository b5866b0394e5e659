"""Owns the table of all pages. Refuses to hold one: each module of pages/ brings its own ways."""

from __future__ import annotations

from typing import Final

from scheduler.web.page import Way
from scheduler.web.pages import (
    accounts,
    approvals,
    batch_papers,
    batch_time,
    batches,
    changes,
    compare,
    deciding,
    diff,
    forking,
    groups,
    home,
    queue,
    review,
    runs,
    schedules,
    search,
    steps,
)

WAYS: Final[tuple[Way, ...]] = (
    *home.WAYS,
    *batches.WAYS,
    *batch_time.WAYS,
    *batch_papers.WAYS,
    *runs.WAYS,
    *steps.WAYS,
    *diff.WAYS,
    *groups.WAYS,
    *accounts.WAYS,
    *approvals.WAYS,
    *changes.WAYS,
    *deciding.WAYS,
    *forking.WAYS,
    *review.WAYS,
    *search.WAYS,
    *compare.WAYS,
    *queue.WAYS,
    *schedules.WAYS,
)
