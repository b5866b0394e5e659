"""Owns what people tell a deployment: there is something new, stop, wait, go on, mind this. Refuses to act: the
attempt or the scheduler reads it and does.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

from scheduler.runs import Found
from worker.contract.errors import HintsFault, InvalidFault
from worker.contract.events import MessageKind
from worker.store.archive import Archive
from worker.store.hints import Hints
from worker.store.inbox import Control, Inbox, Message

SUBMITTED: Final = "submitted"
"""Name of the control hint that says: there are new runs, list `open/` now."""

SCHEDULES: Final = "schedules"
"""And of the one that says: somebody said something of a schedule, read them now."""

WORDS_CHARS: Final = 20_000
"""Of one message, answer or reason: what fits into a model's context with room to spare."""


def admit(hints: Hints) -> None:
    """Make sure, before a submit writes anything, that Redis takes new work: for a run that no doorbell can be rung
    for, nothing would happen and nothing be said. Raises HintsFault when it is away or full."""
    hints.poke(SUBMITTED, _now_ms())


def announce(hints: Hints) -> None:
    """Wake the scheduler after a submit; without it the runs are found when it lists again."""
    poke(hints, SUBMITTED)


def poke(hints: Hints | None, name: str) -> None:
    """Leave a hint that there is something new for `submitted`, `run:<id>` or `batch:<id>`. Without Redis it is found
    later: that is all a hint is for."""
    if hints is not None:
        with suppress(HintsFault):
            hints.poke(name, _now_ms())


def tell(
    archive: Archive, hints: Hints | None, to: Found, kind: MessageKind, *, by: str, at: str, text: str = ""
) -> Message:
    """Put a message into the inbox of a run or the control of a batch. at: UTC, ISO 8601.

    Raises ConflictFault when the run has ended, InvalidFault when the text is too long, StoreFault.
    """
    folder = Inbox(archive, to.id) if to.kind == "run" else Control(archive, to.id)
    message = folder.put(kind, by=by, at=at, text=bounded(text))
    poke(hints, f"{to.kind}:{to.id}")
    return message


def bounded(text: str) -> str:
    """The text itself. Raises InvalidFault when it is longer than WORDS_CHARS."""
    if len(text) > WORDS_CHARS:
        raise InvalidFault(f"the text has {len(text)} characters, more than {WORDS_CHARS}")
    return text


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
