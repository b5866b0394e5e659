"""Owns models that are programs of the deployment's own, `command:NAME`: a request is one line of JSON on stdin, its
reply one line on stdout. Refuses a program that the operator did not list: a task can only name one.

A request is `{"v": 1, "model", "system", "messages", "tools", "step", "reply_index", "purpose", "max_output_tokens",
"timeout_s"}`. model: what stands behind the slash of `command:NAME/MODEL`. purpose: "reply", or "summary" where words
are wanted that stand for a part of the conversation. messages, oldest first:

    {"role": "user", "text"}
    {"role": "assistant", "text", "calls": [{"id", "name", "arguments"}], "native"}     native: as the program gave it
    {"role": "tool", "results": [{"id", "content", "is_error"}]}                        one message for all of a reply

A tool is `{"name", "description", "schema"}`. A reply is an `Answer`, or says what is wrong: `{"error": {...}}`.
Requests do not build on each other, so a program keeps nothing but what is dear to load. It lives until its stdin
ends; what it writes to stderr is shown when it fails. Its environment is PATH, LANG and the deployment's
`DAWN_MODEL_SECRET_*`, each without that prefix.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from worker.contract.cancel import Cancel
from worker.contract.errors import ProviderFault
from worker.contract.reply import Reply, ToldUsage, ToldUsd, ToolCall, Usage
from worker.contract.task import Frozen
from worker.models.conversation import Answers, Turn, arguments_object, clean, native, paired
from worker.models.processes import Programs
from worker.models.protocol import ModelRequest, UserMessage, call_id

PROVIDER: Final = "command"
SHOWN_BYTES: Final = 500
"""How much of a line that is no reply a fault shows."""


class CallAnswer(Frozen):
    """arguments: an object, or the text of one. id: the program's own, if it has one."""

    name: str
    arguments: dict[str, Any] | str = {}
    id: str = ""


class ErrorAnswer(Frozen):
    """Why there is no reply. retryable: the same request may succeed later; retry_after_s: not before."""

    message: str
    reason: Literal["auth", "bad_request", "connection", "unavailable", "context"] = "unavailable"
    retryable: bool = False
    retry_after_s: Annotated[float, Field(ge=0)] | None = None


class Answer(Frozen):
    """One line of a program. stop: needed only for length, refusal and content_filter. cost_usd: None when unknown.
    native: comes back with this reply in later requests. error: there is no reply, and the rest is not read."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[CallAnswer, ...] = ()
    stop: Literal["end", "calls", "length", "refusal", "content_filter"] | None = None
    usage: ToldUsage = Usage()
    cost_usd: ToldUsd | None = None
    model: str = ""
    native: Any = None
    error: ErrorAnswer | None = None


@dataclass(frozen=True)
class ProgramModel:
    """program: its name in the list. model: what it is asked for, "" for its only one."""

    name: str
    program: str
    model: str
    programs: Programs

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        """One answer. Raises ProviderFault."""
        line = json.dumps(self._request(request, timeout_s)).encode()
        raw = self.programs.ask(self.program, line, timeout_s=timeout_s, cancel=cancel)
        try:
            answer = Answer.model_validate(clean(json.loads(raw)))
        except (ValueError, RecursionError) as error:
            raise ProviderFault(
                "unavailable", f"{self.name} answered what is no reply: {self._wrong(error, raw)}", unheard=True
            ) from None
        if answer.error is not None:
            told = answer.error
            raise ProviderFault(
                told.reason,
                f"{self.name}: {told.message}",
                retryable=told.retryable,
                retry_after_s=told.retry_after_s,
            )
        return self._reply(answer, request.step)

    def _request(self, request: ModelRequest, timeout_s: float) -> dict[str, Any]:
        return {
            "v": 1,
            "model": self.model,
            "system": clean(request.system),
            "messages": [_message(part) for part in paired(request.messages)],
            "tools": [
                {"name": tool.name, "description": tool.description, "schema": tool.schema} for tool in request.tools
            ],
            "step": request.step,
            "reply_index": request.reply_index,
            "purpose": request.purpose,
            "max_output_tokens": request.max_output_tokens,
            "timeout_s": timeout_s,
        }

    def _reply(self, answer: Answer, step: int) -> Reply:
        calls = tuple(
            ToolCall(
                id=call_id(step, position),
                original_id=call.id,
                name=call.name,
                arguments=call.arguments
                if isinstance(call.arguments, str)
                else json.dumps(call.arguments, ensure_ascii=False),
            )
            for position, call in enumerate(answer.calls, start=1)
        )
        return Reply(
            text=answer.text,
            reasoning=answer.reasoning,
            calls=calls,
            stop=answer.stop or ("calls" if calls else "end"),
            usage=answer.usage,
            cost_microusd=None if answer.cost_usd is None else round(answer.cost_usd * 1_000_000),
            price_source="program",
            model=answer.model or self.name,
            native=native(PROVIDER, "native", answer.native),
        )

    def _wrong(self, error: Exception, raw: bytes) -> str:
        """What does not fit, and how the line begins, masked before it is cut."""
        begins = self.programs.redactor.data(raw)[:SHOWN_BYTES].decode("utf-8", "replace")
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False)[0]
            return f"{'.'.join(map(str, first['loc'])) or 'the line'}: {first['msg']}: {begins}"
        return begins or "an empty line"


def _message(part: UserMessage | Turn | Answers) -> dict[str, Any]:
    match part:
        case UserMessage(text=text):
            return {"role": "user", "text": clean(text)}
        case Answers(results=results):
            told = [
                {"id": sent_id, "content": clean(result.content), "is_error": result.is_error}
                for sent_id, result in results
            ]
            return {"role": "tool", "results": told}
        case Turn(reply=reply, sent=sent):
            calls = [
                {"id": sent[call.id], "name": call.name, "arguments": arguments_object(call.arguments)}
                for call in reply.calls
                if call.id in sent
            ]
            own = isinstance(reply.native, dict) and reply.native.get("provider") == PROVIDER
            native = reply.native["native"] if own else None
            return {"role": "assistant", "text": clean(reply.text), "calls": calls, "native": native}
