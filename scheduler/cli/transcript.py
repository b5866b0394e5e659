"""Owns how a record reads to a person, in one progress line or in full. Refuses to hide anything in full."""

from __future__ import annotations

from scheduler.approvals import commands
from worker.contract.events import (
    Asked,
    Claimed,
    Compacted,
    Decided,
    Delegated,
    FedBack,
    Finished,
    Observation,
    Observed,
    Parked,
    Prepared,
    Record,
    Replied,
    Sealed,
    Steered,
    Submitted,
    Unrecorded,
    Verdict,
    Yielded,
)
from worker.contract.matrix import told
from worker.contract.task import usd_text
from worker.store import keys

LINE_CHARS = 110


def short(record: Record) -> str:
    """What happened, in a few words; "" for what is not worth a progress line."""
    match record.event:
        case Claimed() as event:
            return f"claimed by {event.worker}" + (f" (before: {event.previous})" if event.previous else "")
        case Prepared() as event:
            chosen = f" in image {event.image_name}" if event.image_name else ""
            return f"prepared from commit {event.commit[:12]}{chosen}" + (" (reused)" if event.reused else "")
        case Replied() as event:
            calls = ", ".join(f"{call.name} {call.arguments}" for call in event.reply.calls)
            return _cut(f"step {event.step}: {calls or event.reply.text}")
        case Observed() as event:
            seen = event.observation
            failed = seen.status != "ok" or seen.exit_code not in (0, None)
            return _cut(f"  {seen.tool}: {seen.status}{_code(seen)}") if failed else ""
        case Delegated() as event:
            return f"  its delegate goes on: {event.usage.total:,} tokens, {_usd(event.cost_microusd)}"
        case FedBack() as event:
            if event.guards and not event.checks:
                return "the model is told what its patch may not do"
            return "red checks are shown to the model" if event.checks else "the model reads what came meanwhile"
        case Asked() as event:
            return f"asks: {_cut(event.question)}; type: {' | '.join(commands(record.run, event))}"
        case Decided() as event:
            return _cut(f"{event.call_id} {event.decision} by {event.by} {event.reason}".rstrip())
        case Steered() as event:
            return _cut(f"{event.kind} by {event.by} {event.text}".rstrip())
        case Parked() as event:
            return f"waits: {_waits(event, record.run)}"
        case Yielded() as event:
            return f"given back: {event.why} {event.failure or ''}".rstrip()
        case Compacted() as event:
            stands = f"a summary stands for what was before step {event.through}"
            return stands if event.summary else "a summary was of no use"
        case Finished() as event:
            return f"stopped: {event.failure}" if event.failure else "the agent is done; checking"
        case Sealed() as event:
            return f"{event.outcome}, {event.failure or event.verdict or 'no verdict'}"
        case _:
            return ""


def full(record: Record) -> str:
    """Everything a person may want to read of a record, in several lines."""
    match record.event:
        case Submitted() as event:
            return f"submitted by {event.by}"
        case Prepared() as event:
            return "\n".join([short(record), *(f"{file.path} says\n{file.text}" for file in event.instructions)])
        case Replied() as event:
            reply = event.reply
            turn = f", its turn came after {record.waited_ms / 1000:.1f} s" if record.waited_ms else ""
            said = [f"step {event.step} ({event.phase}, {reply.stop}, {reply.usage.output_tokens} tokens out{turn})"]
            said += [f"(thinks) {reply.reasoning}"] if reply.reasoning else []
            said += [reply.text] if reply.text else []
            said += [f"> {call.name} {call.arguments}" for call in reply.calls]
            return "\n".join(said)
        case Observed() as event:
            seen = event.observation
            return f"{seen.tool} {seen.status}{_code(seen)}, {seen.duration_ms} ms\n{seen.output}".rstrip()
        case Asked() as event:
            typed = "\n".join(commands(record.run, event))
            return f"{event.kind} of {event.call_id}: {event.question}\nbinding {event.binding}\n{typed}"
        case Decided() as event:
            return f"{event.call_id} {event.decision} by {event.by} at {event.decided_at}: {event.reason}"
        case Steered() as event:
            return f"{event.kind} to the {event.scope} by {event.by} at {event.sent_at}: {event.text}"
        case Delegated() as event:
            journal = keys.delegate(record.run, event.call_id)
            return f"{short(record).lstrip()}; segment {event.seq} of {journal} ends in {event.hash[:12]}"
        case FedBack() as event:
            return f"told by the checks\n{event.text}" if event.checks or event.guards else short(record)
        case Compacted() as event:
            return f"{short(record)}\n{event.summary}".rstrip()
        case Finished() as event:
            ended = f"stopped: {event.failure}: {event.failure.detail}" if event.failure else "done"
            return f"{ended}\n{event.text}".rstrip()
        case Verdict() as event:
            checks = [f"{check.name}: {check.status}\n{check.tail}".rstrip() for check in event.checks]
            tests = [f"{one.check}: {told(one)}" for one in event.tests]
            ended = f"verdict {event.verdict or '-'}, {len(event.patch.files)} files changed"
            return "\n".join([ended, *checks, *tests, *(f"guard: {hit}" for hit in event.guards)])
        case Unrecorded() as event:
            return f"unrecorded reply, at most {event.tokens} tokens: {event.detail}"
        case Sealed() as event:
            why = f": {event.failure.detail}" if event.failure else f" {event.detail}".rstrip()
            against = [f"it says: {one.claim}\n  but {one.evidence}" for one in event.contradictions]
            return "\n".join([f"{event.outcome}, {event.failure or event.verdict or 'no verdict'}{why}", *against])
        case event:
            return short(record) or event.type


def _waits(parked: Parked, run: str) -> str:
    if parked.waiting == "paused":
        return parked.detail
    if parked.waiting == "budget" and parked.until is None:
        return f"budget: {_cut(parked.detail)}; type: dawn budget {run} USD"
    until = f" until {parked.until}" if parked.until else ""
    return _cut(f"{parked.waiting}{until}: {parked.detail}".rstrip(": "))


def _usd(microusd: int | None) -> str:
    return "price unknown" if microusd is None else usd_text(microusd)


def _code(seen: Observation) -> str:
    return "" if seen.exit_code is None else f", exit code {seen.exit_code}"


def _cut(text: str) -> str:
    line = " ".join(text.split()) if not text.startswith("  ") else text
    return line if len(line) <= LINE_CHARS else line[: LINE_CHARS - 3] + "..."
