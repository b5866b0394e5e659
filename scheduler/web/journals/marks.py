"""Owns what stands out between two steps of a run: takeovers, waits, people's words, summaries, what the model was
told of its own doing. Pure. Refuses to judge a step: whether its calls failed is the row's (steps.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from worker.contract.events import (
    Asked,
    Claimed,
    Compacted,
    Decided,
    Delegated,
    Event,
    FedBack,
    Finished,
    Observed,
    Parked,
    Prepared,
    Record,
    Replied,
    Sealed,
    Steered,
    Unrecorded,
    Verdict,
    Yielded,
)
from worker.contract.nudges import REPEAT_NUDGES, WRAP_UP_SHARE, Repeats, used
from worker.contract.run import FAILED_VERDICTS, Run
from worker.contract.task import Task

TEXT_CHARS: Final = 200
KINDS: Final = (
    *("failure", "crash", "takeover", "unrecorded", "nudge", "approval", "question", "feedback", "guard"),
    *("message", "pause", "cancel", "wait", "compaction", "delegate", "prepared", "claim", "verdict", "end"),
)
"""All there are, the most telling first."""
PLAIN: Final = frozenset({"prepared", "claim", "verdict", "end"})
"""Those that every run has: the filter for marks does not stop at them."""


@dataclass(frozen=True, slots=True)
class Mark:
    """kind: of KINDS. text: what happened, one line, which may hold what strangers wrote. seq: its segment. problem:
    a person should see it."""

    kind: str
    text: str
    seq: int
    problem: bool = False


def of(record: Record, before: Run, after: Run, task: Task) -> list[Mark]:
    """What a record marks. before, after: the run around it."""
    return [
        Mark(kind, text if len(text) <= TEXT_CHARS else f"{text[: TEXT_CHARS - 1]}…", record.seq, problem)
        for kind, text, problem in _told(record.event, before, after)
    ]


def _told(event: Event, before: Run, after: Run) -> Iterator[tuple[str, str, bool]]:
    match event:
        case Claimed(worker=worker, previous=previous):
            yield _claimed(before, worker, previous)
        case Prepared(commit=commit, reused=reused):
            yield "prepared", f"prepared from commit {commit[:12]}{', reused' if reused else ''}", False
        case Replied(reply=reply) if reply.stop in ("length", "refusal", "content_filter"):
            yield "failure", f"the reply ended with {reply.stop}", True
        case Compacted(through=through, summary=summary):
            told = f"a summary stands for what was before step {through}" if summary else "a summary was of no use"
            yield "compaction", told, False
        case Delegated(call_id=call) if call not in before.delegates:
            yield "delegate", f"a delegate answers {call}", False
        case Asked(kind=kind, question=question, call_id=call):
            yield kind, f"asks about {call}: {_line(question)}", False
        case Decided(call_id=call, decision=decision, by=by, reason=reason):
            yield "approval", f"{call} {decision} by {by} {_line(reason)}".rstrip(), decision == "expired"
        case Steered(kind=kind, by=by, text=text, scope=scope):
            shown = {"message": "message", "cancel": "cancel"}.get(kind, "pause")
            to = "" if scope == "run" else " to the batch"
            yield shown, f"{kind}{to} by {by} {_line(text)}".rstrip(), kind == "cancel"
        case Parked(waiting=waiting, detail=detail, until=until):
            until_text = f" until {until[:19]}" if until else ""
            yield "wait", f"waits: {waiting}{until_text} {_line(detail)}".rstrip(), False
        case Yielded(why=why, failure=failure):
            detail = f": {failure} {_line(failure.detail)}".rstrip() if failure else ""
            yield ("crash" if why == "infra" else "wait"), f"given back, {why}{detail}", why == "infra"
        case Unrecorded(detail=detail, tokens=tokens):
            yield "unrecorded", f"a reply nobody kept, at most {tokens:,} tokens: {_line(detail)}", True
        case FedBack(checks=checks, guards=guards):
            if checks:
                yield "feedback", f"red checks are shown to the model: {', '.join(one.name for one in checks)}", True
            if guards:
                yield "guard", f"the model is told what its patch may not do: {_line(guards[0])}", True
            if not checks and not guards:
                yield "message", "the model reads what came as it finished", False
        case Finished(failure=failure):
            if failure is not None:
                yield "failure", f"stopped: {failure} {_line(failure.detail)}".rstrip(), True
        case Verdict(verdict=verdict, guards=guards):
            yield "verdict", f"measured: {verdict or 'nothing'}", verdict in FAILED_VERDICTS
            if guards:
                yield "guard", f"the patch does what the task forbids: {_line(guards[0])}", True
        case Sealed(outcome=outcome, failure=failure, damaged=damaged):
            yield "end", f"ended: {outcome}", False
            if failure is not None and after.finished is None:
                yield "failure", f"{failure} {_line(failure.detail)}".rstrip(), True
            if damaged is not None:
                yield "failure", f"segment {damaged} of the journal cannot be read", True
        case _:
            pass


def _claimed(before: Run, worker: str, previous: str) -> tuple[str, str, bool]:
    """A first claim, the next one after a wait, or one over an attempt that died."""
    if not before.claims:
        return "claim", f"claimed by {worker}", False
    told = f"claimed by {worker}, before it: {_line(previous) or 'the attempt before ended'}"
    if before.status == "running":
        return "crash", f"the attempt before was lost; {told}", True
    return ("takeover" if worker != before.worker else "claim"), told, False


class Nudges:
    """What the model was told of its own doing, which no event says: it follows from the records, as for the model
    itself (worker/context.py)."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._repeats = Repeats()
        self._turned = 0
        self._worked_s = 0.0
        self._warned: set[str] = set()
        self._commands = True

    def see(self, record: Record, run: Run) -> list[Mark]:
        """The marks of one more record. run: after it."""
        if self._task.model == "none":
            return []
        self._repeats.see(record)
        told: list[str] = []
        match record.event:
            case Replied(phase=phase):
                self._worked_s, self._commands = run.working_s, phase == "commands"
                if not self._commands:
                    turns = self._repeats.turns
                    if any(self._turned < nudge <= turns for nudge in REPEAT_NUDGES):
                        told.append(f"told that its files went back and forth {turns} times")
                    self._turned = turns
            case Observed(observation=seen):
                self._worked_s += seen.duration_ms / 1000
                if not self._commands:
                    if self._repeats.last in REPEAT_NUDGES:
                        told.append(f"told that {seen.tool} gave the same {self._repeats.last} times")
                    if run.failing_calls == self._task.limits.failing_calls_nudge:
                        told.append(f"told that {run.failing_calls} calls in a row failed")
        if not run.pending and run.sealed is None:
            shares = used(run, self._task.limits, self._worked_s)
            near = [
                name for name, (share, _) in shares.items() if share >= WRAP_UP_SHARE and name not in self._warned
            ]
            self._warned.update(near)
            if near:
                told.append(f"told to wrap up: {', '.join(shares[name][1] for name in near)} are used")
        return [Mark("nudge", text, record.seq, problem=True) for text in told]


def _line(text: str) -> str:
    return " ".join(text[: 2 * TEXT_CHARS].split())
