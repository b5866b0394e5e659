"""Owns a person's answer to a run that asked: what is asked, and the one decision on it. Refuses a second decision,
one that comes too late, and one about something else than what was shown.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

from scheduler.control import bounded, poke
from worker.contract.errors import ConflictFault
from worker.contract.events import Asked
from worker.contract.run import Run
from worker.store.archive import Archive
from worker.store.decisions import Decision, decide, read_decision
from worker.store.hints import Hints
from worker.store.journal import Journal
from worker.store.mail import read_mail

Answer = Literal["approved", "denied", "answered"]
FITS: Final[dict[str, tuple[Answer, ...]]] = {"approval": ("approved", "denied"), "question": ("answered", "denied")}


def answer(
    archive: Archive,
    hints: Hints | None,
    run_id: str,
    given: Answer,
    *,
    by: str,
    at: str,
    call: str | None = None,
    binding: str = "",
    reason: str = "",
) -> Decision:
    """Decide what the run asks. call: the one that is meant, None for whatever it asks; binding: first digits of the
    digest that the person was shown. at: UTC, ISO 8601; reason: of a denial, or the answer.

    Raises ConflictFault, which says why, when it does not count; InvalidFault for a text too long; StoreFault.
    """
    bounded(reason)
    journal = Journal(archive, run_id)
    run = journal.load()
    asked = _asked(archive, run, call)
    if given not in FITS[asked.kind]:
        raise ConflictFault(f"run {run_id} asks for {_NOUNS[asked.kind]}", hint=" | ".join(commands(run_id, asked)))
    if not asked.binding.startswith(binding):
        raise ConflictFault(f"{asked.call_id} is not the call you were shown", hint=f"look again: dawn show {run_id}")
    until = run.waiting.until if run.waiting else None
    if until is not None and datetime.fromisoformat(at) >= datetime.fromisoformat(until):
        raise ConflictFault(f"{asked.call_id} expired at {until}: nobody answered in time")
    cancel = read_mail(archive, run, journal.task().batch).cancel
    if cancel is not None:
        raise ConflictFault(f"run {run_id} was cancelled by {cancel.by} at {cancel.at}")
    made = decide(archive, run_id, asked, given, by=by, at=at, reason=reason)
    if (made.decision, made.by, made.at, made.reason) != (given, by, at, reason):
        raise _decided(made)
    poke(hints, f"run:{run_id}")
    return made


def commands(run: str, asked: Asked) -> list[str]:
    """What a person types to decide."""
    denial = f'dawn deny {run} {asked.call_id} --reason "..."'
    if asked.kind == "question":
        return [f'dawn answer {run} "..."', denial]
    return [f"dawn approve {run} {asked.call_id}", denial]


_NOUNS: Final = {"approval": "an approval", "question": "an answer"}


def _asked(archive: Archive, run: Run, call: str | None) -> Asked:
    """What the run asks now, if that is the call that is meant."""
    asked = run.asked
    if call is not None and (asked is None or asked.call_id != call):
        made = read_decision(archive, run.id, call)
        raise _decided(made) if made is not None else ConflictFault(f"run {run.id} does not ask about {call}")
    if asked is None or run.sealed is not None:
        state = "has ended" if run.sealed is not None else "asks nothing"
        raise ConflictFault(f"run {run.id} {state}", hint=f"see it: dawn show {run.id}")
    return asked


def _decided(made: Decision) -> ConflictFault:
    return ConflictFault(f"{made.call} was {made.decision} by {made.by} at {made.at}: one decision counts")
