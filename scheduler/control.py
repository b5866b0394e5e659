"""Owns what people tell a deployment: there is something new, stop, wait, go on, mind this. Refuses to act: the
attempt or the scheduler reads it and does.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from scheduler.runs import Found, marked_runs, runs_in
from worker.contract.errors import ConflictFault, HintsFault, InvalidFault
from worker.contract.events import MessageKind
from worker.store.archive import Archive
from worker.store.hints import Hints
from worker.store.inbox import Control, Inbox, Message
from worker.store.journal import Journal

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
    archive: Archive,
    hints: Hints | None,
    to: Found,
    kind: MessageKind,
    *,
    by: str,
    at: str,
    text: str = "",
    unseen: int | None = None,
) -> Message:
    """Put a message into the inbox of a run or the control of a batch. at: UTC, ISO 8601. unseen: see Inbox.put.

    Raises ConflictFault when the run has ended, InvalidFault when the text is too long, StoreFault.
    """
    folder = Inbox(archive, to.id) if to.kind == "run" else Control(archive, to.id)
    message = folder.put(kind, by=by, at=at, text=bounded(text), unseen=unseen)
    poke(hints, f"{to.kind}:{to.id}")
    return message


def steer(
    archive: Archive, hints: Hints | None, run: str, text: str, *, by: str, at: str, unseen: int | None = None
) -> Message:
    """Tell the model of a run something. Raises as tell, ConflictFault also where no model could read it."""
    if Journal(archive, run).task().model == "none":
        raise ConflictFault(f"run {run} has no model that could read it")
    return tell(archive, hints, Found("run", run), "message", by=by, at=at, text=text, unseen=unseen)


def switch(
    archive: Archive, hints: Hints | None, to: Iterable[Found], kind: MessageKind, *, by: str, at: str
) -> list[str]:
    """Tell each of these that has a run left; returns the runs that it concerns. A whole batch is told as such, so
    that it counts for what is added to it too. at: UTC, ISO 8601. Raises StoreFault, IntegrityFault."""
    marked = set(marked_runs(archive))
    left: dict[str, None] = {}
    for found in dict.fromkeys(to):
        if runs := [run for run in runs_in(archive, found) if run in marked]:
            with suppress(ConflictFault):  # it ended at this moment
                tell(archive, hints, found, kind, by=by, at=at)
                left |= dict.fromkeys(runs)
    return list(left)


def open_runs(archive: Archive, found: Found) -> list[str]:
    """Its runs that have not ended. Raises ConflictFault when all have; as runs_in."""
    marked = set(marked_runs(archive))
    left = [run for run in runs_in(archive, found) if run in marked]
    if not left:
        raise ConflictFault(f"{found.kind} {found.id} has ended", hint=f"see it: dawn status {found.id}")
    return left


def bounded(text: str) -> str:
    """The text itself. Raises InvalidFault when it is longer than WORDS_CHARS."""
    if len(text) > WORDS_CHARS:
        raise InvalidFault(f"the text has {len(text)} characters, more than {WORDS_CHARS}")
    return text


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
