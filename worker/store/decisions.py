"""Owns decisions: one create-only answer to each call that asked. Refuses to ask, and to judge who may answer."""

from __future__ import annotations

from typing import Literal

from worker.contract.errors import IntegrityFault, NotFoundFault
from worker.contract.events import Asked, DecisionName, Digest
from worker.store import keys
from worker.store.archive import Archive
from worker.store.content import Summed, parsed


class Decision(Summed):
    """binding: digest of tool, arguments and snapshot that it was made for. at: UTC, ISO 8601. reason: of a denial,
    or the answer to a question. Version 1 had no sum."""

    v: Literal[1, 2] = 2
    call: str
    binding: Digest
    decision: DecisionName
    by: str
    at: str
    reason: str = ""


def decide(
    archive: Archive, run: str, asked: Asked, decision: DecisionName, *, by: str, at: str, reason: str = ""
) -> Decision:
    """The decision on what was asked: this one, or the one that was there first. Raises StoreFault."""
    made = Decision(call=asked.call_id, binding=asked.binding, decision=decision, by=by, at=at, reason=reason)
    if archive.create(keys.decision(run, asked.call_id), made.data()):
        return made
    found = read_decision(archive, run, asked.call_id)
    assert found is not None, "created by somebody else, and never deleted"
    return found


def read_decision(archive: Archive, run: str, call: str) -> Decision | None:
    """The decision on a call, None when there is none yet. Raises StoreFault, IntegrityFault."""
    key = keys.decision(run, call)
    try:
        made = parsed(Decision, archive.get(key, max_bytes=2**20), key)
    except NotFoundFault:
        return None
    if made.call != call:
        raise IntegrityFault(f"{key} decides on {made.call!r}")
    return made
