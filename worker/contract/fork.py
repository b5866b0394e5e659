"""Owns what a fork takes along from its parent: where a step ends in a journal, which events are the conversation.
Refuses to read or write a journal.

A fork's segment 0 is `submitted`, then a copy of the conversation up to the fork point, then the person's message:
its journal is readable alone, and the parent is never written. Outputs and snapshots are not copied: they stay the
parent's objects, named by digest, until the fork's first attempt stores a level 0 of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from worker.contract.errors import IntegrityFault, NotFoundFault
from worker.contract.events import (
    Asked,
    Called,
    Compacted,
    Decided,
    Event,
    FedBack,
    Finished,
    Observed,
    Prepared,
    Record,
    Replied,
    Steered,
    Submitted,
)
from worker.contract.run import Run
from worker.contract.task import ForkPoint, Task

Line = tuple[Record, str]
"""A record and the SHA-256 of its line."""

LAST = -1
"""The step to fork at when none is named: the last one."""


def step_end(lines: Sequence[Line], step: int) -> tuple[int, Line]:
    """(step, line) with the last line that belongs to a step: its reply, what was observed of its calls, the checks
    it was shown. Step 0 ends with the prepared environment. step: LAST for the last one.

    Raises NotFoundFault when the journal has no such step.
    """
    ends: dict[int, Line] = {}
    current = 0
    for line in lines:
        event = line[0].event
        if isinstance(event, Replied):
            current = event.step
        if isinstance(event, Replied | Called | Observed | FedBack) or (isinstance(event, Prepared) and current == 0):
            ends[current] = line
    if not ends:
        raise NotFoundFault("the run has no prepared environment yet", hint="submit its task again instead")
    last = max(ends)
    if step != LAST and step not in ends:
        raise NotFoundFault(f"there is no step {step}", hint=f"the last one is {last}")
    chosen = last if step == LAST else step
    return chosen, ends[chosen]


def commands_end(lines: Iterable[Line], task: Task) -> ForkPoint | None:
    """Where a run has done all of its task's commands and its model begins; None where it has not come so far, or
    ended there. lines: of its whole journal, which is read as far as needed."""
    run, end = Run(), None
    for record, line_hash in lines:
        if end is not None and record.seq > end.seq:
            return end
        if isinstance(record.event, Finished):
            return None  # in the segment of the last command: it may not run, and what follows it neither
        run = run.after(record, line_hash)
        done = run.steps == run.command_steps == len(task.commands) and not run.pending
        if done and isinstance(record.event, Observed | Prepared):
            end = ForkPoint(run=run.id, step=run.steps, seq=record.seq, hash=line_hash)
    return end


def inherited(lines: Iterable[Line], point: ForkPoint, by: str, *, words: bool = True) -> list[Event]:
    """Segment 0 of a fork. lines: the parent's, from its start; nothing past the fork point is taken from it. words:
    what people said to the parent is taken along.

    Raises IntegrityFault when the parent has no line with that number and hash.
    """
    events: list[Event] = [Submitted(by=by, parent=point.run, parent_seq=point.seq, parent_hash=point.hash)]
    for record, line_hash in lines:
        if _is_conversation(record.event) and (words or not isinstance(record.event, Steered)):
            events.append(record.event)
        if record.seq == point.seq and line_hash == point.hash:
            if point.message:
                events.append(Steered(n=0, kind="message", by=by, text=point.message))
            return events
        if record.seq > point.seq:
            break
    raise IntegrityFault(f"segment {point.seq} of run {point.run} does not hold the line that the fork names")


def _is_conversation(event: Event) -> bool:
    """What the model saw, and what lies under it; not who worked on it, nor what was spent besides."""
    if isinstance(event, Steered):
        return event.kind == "message"
    return isinstance(event, Prepared | Replied | Called | Observed | Asked | Decided | Compacted | FedBack)
