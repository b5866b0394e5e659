"""Owns THE loop: ask the model, commit its reply, run its calls, commit each result, until there is an outcome.

The result of a reply's last call is shown to the model while its commit goes on in the background; the next reply is
committed after it, or dropped when it answers what was not committed.

Refuses to know where it runs: no Celery, Redis, S3 or Docker. All it needs of its attempt is a Host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import structlog

from worker import context, meter, policy
from worker.contract.errors import BudgetFault, FencedFault, InvalidFault, PacedFault, ProviderFault, StoreFault
from worker.contract.events import (
    Event,
    Failure,
    Finished,
    Observation,
    ObservationStatus,
    Observed,
    Parked,
    Replied,
    Reply,
    ToolCall,
    Unrecorded,
)
from worker.host import Host, Stopped, Tools
from worker.models.protocol import Model, ModelRequest

LOG = structlog.get_logger(__name__)

__all__ = ["Host", "Stopped", "Tools", "work"]

RETRY_DELAYS_S = (1.0, 4.0, 15.0)
RETRY_AFTER_MAX_S = 60.0

TURN_POLL_S = 1.0
"""Whoever waits for an account's rate asks at least so often: a turn that nobody takes is lost."""
TURN_MAX_S = 60.0
TURN_PAUSE_S = 60.0
"""Waited with a worker, then without: a new attempt takes seconds to begin."""


def work(
    host: Host, model: Model, tools: Tools, *, phase: Literal["commands", "model"] = "model"
) -> Finished | Parked | Stopped | None:
    """Go on from wherever the journal stands until an outcome. What is returned is committed, but for Stopped.

    None: the commands phase ran all of the task's commands (their failures are observations); nothing is decided.
    """
    transcript, patience = context.Transcript(host.task, tools.specs), _Patience()
    while True:
        for call in host.run.pending:
            if (end := _between(host, transcript) or _act(host, tools, call, phase)) is not None:
                return end
        if phase == "commands" and host.run.command_steps >= len(host.task.commands):
            host.settle()
            return None
        if (end := _between(host, transcript)) is not None:
            return end
        if phase == "model" and transcript.full:
            oversize = meter.oversize(transcript.tokens, host.task.limits)
            if (end := _make_room(host, model, transcript, patience, oversize)) is not None:
                return end
            continue
        request, size, began_s = transcript.request(phase), transcript.tokens, host.working_s()
        reply = _ask(host, model, request, patience)
        duration_ms = round((host.working_s() - began_s) * 1000)
        if reply is None:
            continue
        if isinstance(reply, Stopped | Parked):
            return reply
        if not _settled(host, reply):
            continue
        if isinstance(reply, Failure):
            # A provider may count otherwise than we do.
            end = (
                _make_room(host, model, transcript, patience, reply)
                if reply.reason == "context"
                else _finish(host, reply)
            )
            if end is not None:
                return end
            continue
        replied = Replied(
            step=request.step,
            phase=phase,
            reply=reply,
            context_tokens=reply.usage.total - reply.usage.output_tokens or size,
            duration_ms=duration_ms,
        )
        if reply.stop == "refusal" or reply.stop == "content_filter":
            refused = Failure(cls="refused", reason=reply.stop, detail=f"the model answered {reply.stop}")
            return _finish(host, refused, replied, text=reply.text)
        if reply.stop == "length" or reply.calls or not reply.text.strip():
            host.commit(replied)  # before acting on it; the next render answers a cut or empty reply
            continue
        return _finish(host, None, replied, text=reply.text)


def _between(host: Host, transcript: context.Transcript) -> Finished | Parked | Stopped | None:
    """What stands before every act: cancel, inbox, meter. The transcript is up to date after it."""
    if host.cancel.is_set():
        return Stopped(host.cancel.reason)
    if (asked := host.inbox()) is not None:
        return asked
    transcript.follow(host.records())
    repeats = transcript.repeats
    failure = meter.stop(host.run, host.task.limits, repeats.last, host.working_s(), repeats.turns)
    if failure is None:
        return None
    return _finish(host, failure) if host.settle() else _between(host, transcript)


def _act(host: Host, tools: Tools, call: ToolCall, phase: str) -> Finished | Parked | Stopped | None:
    """One call: parse, policy, run and show. The model's mistakes become observations."""
    if host.run.called == call.id:  # and its attempt ended: what it did outside is done
        host.commit(_told(call, "interrupted", context.interrupted()))
        return None
    parsed = tools.parse(call)
    if isinstance(parsed, str):
        host.commit(_told(call, "error", parsed))
        return None
    arguments = parsed[1]
    ruling = policy.judge(host.task, call, arguments, host.records(), lambda: host.before_call(call, arguments))
    told = _told(call, "ok" if ruling.action == "answer" else "denied", ruling.reason)
    match ruling.action:
        case "allow":
            return host.observe(call, *parsed)
        case "ask":
            host.settle()  # the question is bound to the workspace as it was committed
            return host.ask(policy.question(call, ruling, host.run))
        case "fail":
            return _finish(host, Failure(cls="refused", reason="guard", detail=ruling.reason), told)
        case "deny" if phase == "commands":  # nobody reads it and thinks of another way; what follows may need it
            refused = Failure(cls="refused", reason="guard", detail=f"a command may not run: {ruling.reason}")
            return _finish(host, refused, told)
        case _:
            host.commit(told)
            return None


def _settled(host: Host, reply: Reply | Failure) -> bool:
    """Whether the reply answers what was committed. One that does not is dropped, and what it cost is recorded."""
    try:
        if host.settle():
            return True
    except (FencedFault, StoreFault):
        raise  # the journal is not ours, or cannot be written
    except Exception:
        _drop(host, reply, "the call before it could not be committed")
        raise
    _drop(host, reply, "the call before it was committed with another result")
    return False


def _drop(host: Host, reply: Reply | Failure, why: str) -> None:
    if isinstance(reply, Reply):
        host.commit(Unrecorded(cost_microusd=reply.cost_microusd, tokens=reply.usage.total, detail=why))


def _make_room(
    host: Host, model: Model, transcript: context.Transcript, patience: _Patience, lacking: Failure | None
) -> Finished | Stopped | Parked | None:
    """Let the model make a summary of the older part. It is committed with its cost, also when it is of no use.

    When nothing can give way, or it did not help twice in a row, the run goes on for as long as it can. lacking: why
    it cannot, None while there is room still.
    """
    if not host.settle():
        return None  # the last call was committed as something else than was shown
    for tries in range(host.run.compactions_in_row, meter.SUMMARIES_MAX):
        asked = transcript.summary(tries)
        if asked is None:
            break
        reply = _ask(host, model, asked.request, patience)
        if isinstance(reply, Reply):
            host.commit(transcript.compacted(asked, reply))
        if isinstance(reply, Reply | None):
            return None
        if isinstance(reply, Stopped | Parked):
            return reply
        if reply.reason != "context":
            return _finish(host, reply)
    transcript.full = False
    return None if lacking is None else _finish(host, lacking)


def _told(call: ToolCall, status: ObservationStatus, text: str) -> Observed:
    return Observed(observation=Observation(call_id=call.id, tool=call.name, status=status, output=text))


def _finish(host: Host, failure: Failure | None, *before: Event, text: str | None = None) -> Finished:
    """Commit the end together with the reply that caused it, so that no crash falls between the two."""
    finished = Finished(text=meter.report(host.run, host.records()) if text is None else text, failure=failure)
    host.commit(*before, finished)
    return finished


@dataclass
class _Patience:
    """How often the reply that is due was asked for in vain; cuts: connections that ended meanwhile; turn_s: how long
    it waited for its account's rate."""

    tries: int = 0
    cuts: int = 0
    turn_s: float = 0.0


def _ask(
    host: Host, model: Model, request: ModelRequest, patience: _Patience
) -> Reply | Failure | Stopped | Parked | None:
    """One try at a reply within the working time. None: it did not come, and the short wait for the next is over."""
    limits = host.task.limits
    left_s = max(1.0, limits.working_time_s - host.working_s())
    try:
        reply = model.reply(request, timeout_s=min(limits.model_timeout_s, left_s), cancel=host.cancel)
    except InvalidFault as fault:
        return Failure(cls="provider", reason="bad_request", detail=str(fault))
    except BudgetFault as fault:
        return _out_of_money(host, fault)
    except PacedFault as fault:
        return _out_of_turn(host, fault, patience)
    except ProviderFault as fault:
        if fault.unheard_microusd is not None:
            host.commit(Unrecorded(cost_microusd=fault.unheard_microusd, detail=f"perhaps paid for: {fault}"))
        return _in_trouble(host, fault, patience)
    patience.tries = patience.cuts = 0
    patience.turn_s = 0.0
    return reply


def _out_of_money(host: Host, fault: BudgetFault) -> Failure | Parked:
    """A shared budget is used up: the run waits, or ends with what it has, as its task says."""
    budget = host.task.budget
    if budget is not None and budget.on_limit == "stop":
        return Failure(cls="limit", reason=fault.reason, detail=str(fault))
    return host.wait_for_budget(fault.until, str(fault))


def _out_of_turn(host: Host, fault: PacedFault, patience: _Patience) -> Stopped | Parked | None:
    """Others come first: the run waits in short parts, between which it hears what people say, and then for longer
    without a worker. It is no trouble, and no try is counted."""
    asked_s = fault.retry_after_s or 0.0
    if patience.turn_s >= TURN_MAX_S:
        return host.wait_for_provider(max(asked_s, TURN_PAUSE_S), str(fault), paced=True)
    if patience.turn_s == 0:
        LOG.info("waits_for_rate", fault=str(fault), at_most_s=TURN_MAX_S)
    wait_s = min(asked_s, TURN_POLL_S)
    patience.turn_s += wait_s
    return Stopped(host.cancel.reason) if host.wait_turn(wait_s) else None


def _in_trouble(host: Host, fault: ProviderFault, patience: _Patience) -> Failure | Stopped | Parked | None:
    """What the provider's no means: a short wait, a long one without a worker, or the end."""
    if host.cancel.is_set():
        return Stopped(host.cancel.reason)
    patience.cuts += fault.cut
    pause_s = None if patience.cuts >= meter.CUTS_MAX else meter.provider_pause_s(host.run, fault)
    if pause_s is None:
        return meter.provider_failure(fault)
    asked_s = fault.retry_after_s or 0.0
    if patience.tries >= len(RETRY_DELAYS_S) or asked_s > RETRY_AFTER_MAX_S:
        return host.wait_for_provider(pause_s, str(fault))
    wait_s = max(RETRY_DELAYS_S[patience.tries], asked_s)
    patience.tries += 1
    LOG.warning("model_tried_again", fault=str(fault), next_try_s=wait_s)
    return Stopped(host.cancel.reason) if host.cancel.wait(wait_s) else None
