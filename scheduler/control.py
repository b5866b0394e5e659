"""Owns what people tell a deployment: there is something new, stop this. Refuses to act: the attempt or the scheduler
reads it and does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from worker.contract.errors import ConflictFault, HintsFault
from worker.store.archive import Archive
from worker.store.hints import Hints
from worker.store.inbox import Inbox

SUBMITTED: Final = "submitted"
"""Name of the control hint that says: there are new runs, list `open/` now."""


def announce(hints: Hints) -> None:
    """Wake the scheduler after a submit; without it the runs are found when it lists again."""
    with suppress(HintsFault):
        hints.poke(SUBMITTED, time.time_ns() // 1_000_000)


def cancel(archive: Archive, hints: Hints | None, runs: Sequence[str], *, by: str, at: str) -> list[str]:
    """Ask each run to stop; returns those that took the message, the others had ended. at: UTC, ISO 8601.

    hints: None or gone only makes it slower, by the time between two looks at an inbox. Raises StoreFault.
    """
    told = []
    for run in runs:
        with suppress(ConflictFault):
            message = Inbox(archive, run).put("cancel", by=by, at=at)
            told.append(run)
            if hints is not None:
                with suppress(HintsFault):
                    hints.poke(f"run:{run}", message.n)
    return told
