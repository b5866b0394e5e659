"""Owns the record of a run as something to be met again: what its harness did, in order, and what came from outside.
Pure; refuses to run anything.

From outside came what people said and decided, replies that were lost, and the words of the model. All else the
harness did by itself, and does again: it is compared, event by event.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

from worker.contract.events import (
    Asked,
    Called,
    CheckResult,
    Compacted,
    Decided,
    Event,
    Failure,
    FedBack,
    Finished,
    Observed,
    Record,
    Replied,
    Reply,
    Steered,
    Unrecorded,
    Verdict,
)
from worker.contract.run import Run

VOLATILE: Final = re.compile(r"0x[0-9a-f]+|[0-9]+|([=\-_. ])\1+")
"""What differs between two equal runs of most programs: times, addresses, and the lines that fill up their width."""

OURS: Final = (Replied, Called, Observed, Asked, Compacted, FedBack, Finished, Verdict)
OUTSIDE: Final = (Steered, Decided, Unrecorded)
SHOWN_CHARS: Final = 300


class Diverged(Exception):
    """The harness did not do again what is on record. step: the reply it happened at. what: which part of which
    event; recorded, now: its two values."""

    def __init__(self, step: int, what: str, recorded: str, now: str) -> None:
        super().__init__(f"step {step}: {what}: recorded {recorded!r}, now {now!r}")
        self.step, self.what, self.recorded, self.now = step, what, recorded, now


@dataclass(frozen=True)
class _Entry:
    """after: the recorded run once the event was there."""

    event: Event
    after: Run


class Recording:
    """What is left of a record; `next` is what the harness must do now.

    alike: outputs that were the same but for VOLATILE.
    """

    def __init__(self, start: Run, lines: Iterable[tuple[Record, str]]) -> None:
        """start: the run after segment 0. lines: what follows."""
        self.alike = 0
        self._step = start.steps
        self._left: deque[_Entry] = deque()
        run = start
        for record, line_hash in lines:
            run = run.after(record, line_hash)
            event = record.event
            again = isinstance(event, Asked) and bool(self._left) and self._left[-1].event == event
            if isinstance(event, OURS + OUTSIDE) and not again:  # a question is asked again by whoever takes over
                self._left.append(_Entry(event, run))

    @property
    def next(self) -> Event | None:
        return self._left[0].event if self._left else None

    def outside(self) -> list[Event]:
        """What came from outside before the next act of the harness, taken from the record."""
        found = []
        while self._left and _from_outside(self._left[0].event):
            found.append(self._left.popleft().event)
        return found

    def reply(self, step: int, purpose: str) -> Reply | None:
        """What the model said now, None where the record ends or a provider failed. Raises Diverged where the harness
        had asked for nothing."""
        self.outside()
        match self.next:
            case Replied() as replied if purpose == "reply":
                return replied.reply
            case Compacted() as compacted if purpose == "summary":
                return summary_reply(compacted)
            case None:
                return None
            case Finished(failure=failure) if not by_itself(failure):
                return None
            case event:
                raise Diverged(step, "next act", _named(event), f"asks the model for a {purpose}")

    def met(self, event: Event) -> Run:
        """The harness did this: it is compared with the next recorded act and taken from the record. Returns the
        recorded run after it. Raises Diverged."""
        self.outside()
        if not self._left:
            raise Diverged(self._step, "next act", "the end of the record", _named(event))
        entry = self._left.popleft()
        if isinstance(event, Replied):
            self._step = event.step
        if type(event) is not type(entry.event):
            raise Diverged(self._step, "next act", _named(entry.event), _named(event))
        then, now = _compared(entry.event), _compared(event)
        for what in then:
            if then[what] == now[what]:
                continue
            if what == "output" and VOLATILE.sub("#", then[what]) == VOLATILE.sub("#", now[what]):
                self.alike += 1
                continue
            raise Diverged(self._step, f"{_named(event)}: {what}", *_first_difference(then[what], now[what]))
        return entry.after


def summary_reply(event: Compacted) -> Reply:
    """What the model said of which a summary was made."""
    made = event.model_dump(include={"usage", "cost_microusd", "price_source"})
    return Reply(text=event.summary, **made)


def _from_outside(event: Event) -> bool:
    return isinstance(event, OUTSIDE) or (isinstance(event, FedBack) and not event.checks and not event.guards)


def by_itself(failure: Failure | None) -> bool:
    """Whether the harness came to this end without a clock, a provider or a shared budget, which are not played
    again."""
    if failure is None:
        return True
    elsewhere = ("wall", "context", "batch_budget", "day_budget")
    return failure.cls != "provider" and not (failure.cls == "limit" and failure.reason in elsewhere)


def _named(event: Event) -> str:
    match event:
        case Observed(observation=seen):
            return f"{seen.tool} ({seen.call_id})"
        case Finished(failure=failure) if failure is not None:
            return f"finished ({failure})"
        case _:
            return event.type


def _compared(event: Event) -> dict[str, Any]:
    """What of an event must be the same."""
    match event:
        case Replied(step=step, phase=phase):
            return {"step": step, "phase": phase}
        case Observed(observation=seen, snapshot=snapshot, plan=plan):
            return {
                "call": seen.call_id,
                "status": seen.status,
                "exit code": seen.exit_code,
                "output": seen.output,
                "work tree": snapshot.tree if snapshot else "",
                "plan": plan,
            }
        case Called(call_id=call):
            return {"call": call}
        case Asked(call_id=call, question=question):
            return {"call": call, "question": question}
        case Compacted(through=through, summary=summary):
            return {"through": through, "summary": summary}
        case FedBack(checks=checks, guards=guards):
            return {"checks": _colours(checks), "guards": guards}
        case Finished(failure=failure):
            return {"failure": str(failure or "none")}
        case Verdict(verdict=verdict, checks=checks, patch=patch, guards=guards):
            return {"patch": patch.digest, "checks": _colours(checks), "verdict": verdict, "guards": guards}
        case _:
            return {}


def _colours(checks: tuple[CheckResult, ...]) -> list[str]:
    return [f"{check.name}: {check.status}" for check in checks]


def _first_difference(then: Any, now: Any) -> tuple[str, str]:
    """Both values as text; of long ones the first line that differs."""
    before, after = str(then).split("\n"), str(now).split("\n")
    same = takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
    at = sum(1 for _ in same)
    return _line(before, at), _line(after, at)


def _line(lines: list[str], at: int) -> str:
    return lines[at][:SHOWN_CHARS] if at < len(lines) else "(its end)"
