"""Owns the limits of a run: when it must stop, and what is then reported. Pure; refuses clocks and I/O.

Everything is judged from the fold and what was counted over the records, so a takeover judges exactly as the attempt
before it did.
"""

from __future__ import annotations

from collections.abc import Sequence

from worker.contract.errors import ProviderFault
from worker.contract.events import (
    Failure,
    FedBack,
    Observation,
    Observed,
    Record,
)
from worker.contract.nudges import WRAP_UP_SHARE as WRAP_UP_SHARE
from worker.contract.nudges import Repeats as Repeats
from worker.contract.nudges import used as used
from worker.contract.run import Run
from worker.contract.task import Limits

RESERVE_TOKENS = 16_384
"""Kept free for the reply and what it leads to (plan, section 6)."""

SUMMARIES_MAX = 2
"""In a row, without a reply between them: a third would make no room either."""

PROVIDER_PAUSES_S = (60.0, 300.0, 900.0, 1800.0)
"""Between tries of a run whose provider is away; the last one again and again."""
PROVIDER_PARKS_MAX = 24
"""Eleven hours of pauses: an outage of a whole night is survived."""
CUTS_MAX = 3
"""Connections that ended while the same reply was due: then the request itself is what breaks them (T11)."""

REPORT_TAIL_LINES = 15
REPORT_TAIL_CHARS = 2_000


def stop(run: Run, limits: Limits, repeats: int, working_s: float, turns: int = 0) -> Failure | None:
    """Why the run must stop now, None to go on. repeats, turns: `Repeats.last` and `turns`; working_s: working time
    so far, seconds.

    Steps, tokens and cost stop a run only when it is the model's turn: calls of a reply that is paid for still run.
    """
    if working_s >= limits.working_time_s:
        return out_of_time(limits)
    if run.failing_calls >= limits.failing_calls:
        detail = f"{run.failing_calls} calls in a row failed; limit failing_calls is {limits.failing_calls}"
        return Failure(cls="agent", reason="failing_calls", detail=detail)
    if repeats >= limits.repeats:
        detail = f"the same call gave the same result {repeats} times; limit repeats is {limits.repeats}"
        return Failure(cls="agent", reason="loop", detail=detail)
    if turns >= limits.repeats:
        back = "led back and forth between the same two states of the files"
        detail = f"{turns} changes in a row {back}; limit repeats is {limits.repeats}"
        return Failure(cls="agent", reason="loop", detail=detail)
    return None if run.pending else _stop_before_reply(run, limits)


def _stop_before_reply(run: Run, limits: Limits) -> Failure | None:
    if run.empty_replies >= limits.empty_replies:
        detail = f"{run.empty_replies} empty replies in a row; limit empty_replies is {limits.empty_replies}"
        return Failure(cls="agent", reason="empty_replies", detail=detail)
    if run.malformed_replies >= limits.malformed_replies:
        bad = f"{run.malformed_replies} replies in a row were cut or held no valid call"
        detail = f"{bad}; limit malformed_replies is {limits.malformed_replies}"
        return Failure(cls="agent", reason="malformed_calls", detail=detail)
    if run.steps >= limits.steps:
        return Failure(cls="limit", reason="steps", detail=f"the limit of {limits.steps} steps is used up")
    if run.tokens >= limits.tokens:
        return Failure(cls="limit", reason="tokens", detail=f"{run.tokens} of {limits.tokens} tokens are used")
    if limits.cost_usd is not None and run.cost_microusd >= limits.cost_usd * 1_000_000:
        detail = f"${run.cost_microusd / 1_000_000:.2f} of ${limits.cost_usd:.2f} is spent"
        return Failure(cls="limit", reason="cost", detail=detail)
    return None


def oversize(context_tokens: int, limits: Limits) -> Failure | None:
    """Whether a request of that estimated size leaves too little of the context for a reply."""
    if context_tokens + RESERVE_TOKENS <= limits.context_tokens:
        return None
    detail = f"about {context_tokens} tokens and {RESERVE_TOKENS} for the reply exceed {limits.context_tokens}"
    return Failure(cls="limit", reason="context", detail=detail)


def out_of_time(limits: Limits) -> Failure:
    """The working time is used up."""
    return Failure(cls="limit", reason="wall", detail=f"the working time of {limits.working_time_s:g} s is used up")


def broken_command(records: Sequence[Record], limits: Limits) -> Failure | None:
    """A command that could not do its work: not found, not executable, ended by a limit, or undone because it left
    too much. Any other exit code is its own way to talk (a linter that found something), and the checks judge what
    it left."""
    for record in records:
        event = record.event
        if isinstance(event, Observed):
            seen = event.observation
            if seen.status == "error" and event.snapshot is None:
                said = seen.output.rpartition("\n")[2].strip("[]")
                return Failure(cls="agent", reason="failing_calls", detail=f"a command was undone: {said}")
            if seen.status in ("timeout", "oom") or seen.exit_code in (126, 127, None):
                code = "" if seen.exit_code is None else f", exit code {seen.exit_code}"
                if seen.exit_code == 127:
                    code += " (command not found: install it in setup, or use another image)"
                if seen.status == "timeout":
                    code += f"; limit call_timeout_s is {limits.call_timeout_s:g}"
                if seen.status == "oom":
                    code += f"; limit memory_bytes is {limits.memory_bytes}"
                return Failure(
                    cls="agent", reason="failing_calls", detail=f"a command ended with {seen.status}{code}"
                )
    return None


def provider_pause_s(run: Run, fault: ProviderFault) -> float | None:
    """How long the run waits for its provider without a worker, seconds; None when waiting would not help, or was
    tried for a night."""
    if not fault.retryable or run.provider_parks >= PROVIDER_PARKS_MAX:
        return None
    return max(fault.retry_after_s or 0.0, PROVIDER_PAUSES_S[min(run.provider_parks, len(PROVIDER_PAUSES_S) - 1)])


def provider_failure(fault: ProviderFault) -> Failure:
    """What a provider's last word means for the run: a context overflow is a limit, the rest is the provider's."""
    if fault.reason == "context":
        return Failure(cls="limit", reason="context", detail=str(fault))
    return Failure(cls="provider", reason=fault.reason, detail=str(fault))


def report(run: Run, records: Sequence[Record]) -> str:
    """What a run that was stopped leaves for its reader: plan, files touched, last checks, last error."""
    files = [f"- {path}" for path in run.files] or ["- none"]
    checks = error = None
    for record in records:
        event = record.event
        if isinstance(event, FedBack):
            checks = event.text
        elif isinstance(event, Observed):
            observation = event.observation
            if observation.tool == "run_checks":
                checks = observation.output
            elif failed(observation):
                error = (
                    f"{observation.tool} ({observation.status}, exit {observation.exit_code})\n{observation.output}"
                )
    parts = (
        f"Stopped after {run.steps} steps.",
        "\n".join(["Plan:", *plan_lines(run)]),
        "\n".join(["Files touched:", *files]),
        f"Last checks:\n{_tail(checks) if checks else '- never run by the agent'}",
        f"Last error:\n{_tail(error) if error else '- none'}",
    )
    return "\n\n".join(parts)


def plan_lines(run: Run) -> list[str]:
    """The plan as a list, one line an item."""
    return [f"- [{item.status}] {item.text}" for item in run.plan] or ["- none was written"]


def failed(observation: Observation) -> bool:
    """Whether the model was told of a failure."""
    return observation.status != "ok" or observation.exit_code not in (0, None)


def _tail(text: str) -> str:
    lines = text.strip().split("\n")[-REPORT_TAIL_LINES:]
    return "\n".join(lines)[-REPORT_TAIL_CHARS:]
