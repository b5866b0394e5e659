"""Owns playing a script (worker/contract/script.py) as a model. Refuses to remember anything between replies:
the position is the request's reply_index, captured variables stand in the native content of the reply before."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from worker.contract.cancel import Cancel
from worker.contract.errors import InvalidFault
from worker.contract.events import Reply, ToolCall
from worker.contract.script import Script, ScriptReply
from worker.models.protocol import (
    AssistantMessage,
    Message,
    ModelRequest,
    ToolResults,
    call_id,
    cancelled_fault,
    late_fault,
)

SHOWN_CHARS: Final = 400
"""How much of what was seen a mismatch shows."""

SUMMARY: Final = "A script keeps no notes."


@dataclass(frozen=True)
class ScriptedModel:
    """Says the script's replies in order; a summary is none of them. A script that has ended with words, a reply
    without calls, says them again when asked again; one that ended with calls fails."""

    name: str
    script: Script

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        """The script's next reply. Raises InvalidFault when `expect` is not found or the script is at its end."""
        if request.purpose == "summary":
            return Reply(text=SUMMARY, cost_microusd=0, price_source="script", model=self.name)
        values = _variables(request.messages)
        chosen = self._choose(request, values)
        if chosen.delay_s and cancel.wait(min(chosen.delay_s, timeout_s)):
            raise cancelled_fault(cancel)
        if chosen.delay_s > timeout_s:
            raise late_fault(timeout_s)
        calls = tuple(
            ToolCall(
                id=call_id(request.step, position),
                original_id=call.id,
                name=call.tool,
                arguments=self._arguments(call.arguments, values),
            )
            for position, call in enumerate(chosen.calls, start=1)
        )
        return Reply(
            text=self.script.fill(chosen.text, values),
            reasoning=self.script.fill(chosen.reasoning, values),
            calls=calls,
            stop=chosen.stop or ("calls" if calls else "end"),
            usage=chosen.usage,
            cost_microusd=None if chosen.cost_usd is None else round(chosen.cost_usd * 1_000_000),
            price_source="script",
            model=self.name,
            native={"provider": "scripted", "vars": values},
        )

    def _choose(self, request: ModelRequest, values: dict[str, str]) -> ScriptReply:
        """The alternative that fits; what its `expect` captures goes into values."""
        turns = self.script.turns
        if request.reply_index >= len(turns):
            for last in turns[-1]:
                if not last.calls:
                    return last
            raise self._fault(request, f"the script has only {len(turns)} replies, and the last one has calls")
        seen = _seen(request.messages)
        for chosen in turns[request.reply_index]:
            if chosen.expect is None:
                return chosen
            for text in seen:
                if match := re.search(chosen.expect, text):
                    values.update({str(n): group or "" for n, group in enumerate(match.groups(), start=1)})
                    values.update({name: group or "" for name, group in match.groupdict().items()})
                    return chosen
        wanted = " or ".join(repr(chosen.expect) for chosen in turns[request.reply_index])
        shown = "\n".join(filter(None, seen))
        more = f" (of {len(shown)} characters)" if len(shown) > SHOWN_CHARS else ""
        raise self._fault(request, f"expect {wanted} is not in {shown[:SHOWN_CHARS]!r}{more}")

    def _arguments(self, arguments: dict[str, Any] | str, values: dict[str, str]) -> str:
        if isinstance(arguments, str):
            return self.script.fill(arguments, values)
        return json.dumps(self._filled(arguments, values), ensure_ascii=False)

    def _filled(self, value: Any, values: dict[str, str]) -> Any:
        match value:
            case str():
                return self.script.fill(value, values)
            case dict():
                return {key: self._filled(item, values) for key, item in value.items()}
            case list():
                return [self._filled(item, values) for item in value]
            case _:
                return value

    def _fault(self, request: ModelRequest, message: str) -> InvalidFault:
        return InvalidFault(f"script {self.script.source}, reply {request.reply_index + 1}: {message}")


def _variables(messages: tuple[Message, ...]) -> dict[str, str]:
    for message in reversed(messages):
        if isinstance(message, AssistantMessage):
            native = message.reply.native
            return dict(native["vars"]) if isinstance(native, dict) and "vars" in native else {}
    return {}


def _seen(messages: tuple[Message, ...]) -> list[str]:
    """What came since the last reply: of each result its `output` text and the JSON it came in, and words."""
    seen: list[str] = []
    for message in reversed(messages):
        if isinstance(message, AssistantMessage):
            break
        if not isinstance(message, ToolResults):
            seen.insert(0, message.text)
            continue
        texts: list[str] = []
        for result in message.results:
            texts += [_output(result.content), result.content]
        seen[:0] = texts
    return seen


def _output(content: str) -> str:
    try:
        output = json.loads(content)["output"]
    except (ValueError, KeyError, TypeError):
        return ""
    return output if isinstance(output, str) else ""
