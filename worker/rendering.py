"""Owns how one thing reads to a model: a task, an observation, a reply that goes back. Pure; refuses to let out text
that is not valid UTF-8, which no provider takes.
"""

from __future__ import annotations

import json
from typing import Any

from worker import meter
from worker.contract.events import Observation, Reply, ToolCall
from worker.contract.task import Task
from worker.models.protocol import ToolResult
from worker.prompts import text
from worker.tools.tool import ARGUMENTS_BYTES_MAX


def opening(task: Task) -> str:
    """The first message: what is asked, where, how it is measured, and the limits."""
    limits = task.limits
    checks = "\n".join(f"- {check.name}: {check.command}" for check in task.checks)
    return text(
        "task",
        prompt=task.prompt,
        folder="/workspace/repo" + (f"/{task.repo.path}" if task.repo.path else ""),
        checks=checks or "- none was given; verify your work yourself",
        steps=limits.steps,
        minutes=round(limits.working_time_s / 60, 1),
        call_timeout_s=round(limits.call_timeout_s, 1),
        memory_mib=limits.memory_bytes // 2**20,
        tokens=limits.tokens,
    )


def result(observation: Observation) -> ToolResult:
    """What came of a call."""
    return ToolResult(call_id=observation.call_id, content=as_json(observation), is_error=meter.failed(observation))


def not_run(call: ToolCall) -> ToolResult:
    """What came of a call that a reply made and nobody ran."""
    return result(Observation(call_id=call.id, tool=call.name, status="interrupted", output="this call was not run"))


def as_json(observation: Observation) -> str:
    """The observation as the model reads it."""
    shown = {
        "tool_call_id": observation.call_id,
        "status": observation.status,
        "exit_code": observation.exit_code,
        "output": observation.output,
    }
    return valid(json.dumps(shown, ensure_ascii=False))


def sendable(reply: Reply) -> Reply:
    """The reply as it may be sent back: value-identical, but for text no provider could take.

    Half surrogate pairs become U+FFFD. Arguments too large to have been executed are left out.
    """
    if any(len(call.arguments) > ARGUMENTS_BYTES_MAX for call in reply.calls):
        calls = [
            call.model_copy(update={"arguments": "{}"}) if len(call.arguments) > ARGUMENTS_BYTES_MAX else call
            for call in reply.calls
        ]
        reply = reply.model_copy(update={"calls": tuple(calls), "native": None})
    plain = reply.model_dump()
    cleaned = _cleaned(plain)
    return reply if cleaned == plain else Reply.model_validate(cleaned)


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return valid(value)
    if isinstance(value, dict):
        return {valid(key): _cleaned(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_cleaned(item) for item in value)
    return value


def valid(words: str) -> str:
    """The text with every half surrogate pair replaced, so that it encodes as UTF-8."""
    try:
        words.encode()
    except UnicodeEncodeError:
        return words.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return words
