"""Owns the audit of a run: who submitted, approved, steered, paused and cancelled it, and when. Refuses to trust
anything but the journal, and what lies unread beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scheduler.runs import View
from worker.contract.events import Asked, Decided, Record, Sealed, Steered, Submitted
from worker.store.archive import Archive
from worker.store.deliveries import read_after
from worker.store.journal import Journal
from worker.store.mail import read_mail
from worker.store.skim import skimmed


@dataclass(frozen=True)
class Act:
    """One row. at: when it was done, UTC. seq: of the segment that recorded it, None while nobody has read it.
    beside: it is no word to the run, but lies beside its journal."""

    at: str
    who: str
    did: str
    what: str
    seq: int | None
    beside: bool = False

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def cells(self) -> tuple[str, ...]:
        """As a line of a table."""
        seq = "-" if self.beside else "not read yet" if self.seq is None else str(self.seq)
        return self.at[:19].replace("T", " "), self.who, self.did, self.what, seq


def audit_of(archive: Archive, view: View, told: Sequence[Act] | None = None) -> list[Act]:
    """Every act of a person on the run, and every question to one, oldest first. told: what its journal says, where
    that was read before. Raises as Journal.read does."""
    if told is None:
        acts = [act for record, _ in Journal(archive, view.task.run).read(parse=skimmed) for act in acts_of(record)]
    else:
        acts = list(told)
    if view.run.sealed is None:
        mail = read_mail(archive, view.run, view.task.batch)
        acts += [_steered(steered, None) for steered in mail.steered()]
        if (made := mail.decision) is not None:
            acts.append(Act(made.at, made.by, made.decision, _said(made.call, made.reason), None))
    elif (after := read_after(archive, view.run)) is not None:
        acts += [_beside(one.at, one.by, f"{one.decision} the patch", one.comment) for one in after.reviews]
        asked = [one for one in after.deliveries if one.act == "asked"]
        acts += [_beside(one.at, one.by, "asked for its delivery", one.detail) for one in asked]
        done = [one for one in after.deliveries if one.act != "asked" and one.step == "done"]
        acts += [_beside(one.at, one.by, f"delivery: {one.state}", one.url or one.detail) for one in done]
    return sorted(acts, key=lambda act: act.at)


def _beside(at: str, who: str, did: str, what: str) -> Act:
    return Act(at, who, did, what, None, beside=True)


def acts_of(record: Record) -> Iterator[Act]:
    """What of it a person did, or the run asked of one, or how it ended."""
    match record.event:
        case Submitted() as event:
            yield Act(record.at, event.by, "submitted", f"fork of {event.parent}" if event.parent else "", record.seq)
        case Asked() as event:
            yield Act(record.at, "the run", f"asked: {event.kind}", _said(event.call_id, event.question), record.seq)
        case Decided() as event:
            at = event.decided_at or record.at
            yield Act(at, event.by, event.decision, _said(event.call_id, event.reason), record.seq)
        case Steered() as event:
            yield _steered(event, record.seq, record.at)
        case Sealed() as event:
            yield Act(record.at, "the run", f"ended: {event.outcome}", event.detail, record.seq)


def _steered(event: Steered, seq: int | None, read_at: str = "") -> Act:
    scope = "" if event.scope == "run" else "the whole batch"
    return Act(event.sent_at or read_at, event.by, event.kind, event.text or scope, seq)


def _said(call: str, words: str) -> str:
    return f"{call}: {words}" if words else call
