"""Owns the door to Anthropic's SDK: requests, replies and errors of the Messages API.
Refuses to retry: whoever asks decides that."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from worker.contract.cancel import Cancel
from worker.contract.events import Reply, ToolCall, Usage
from worker.models.call import Account, connection_fault, shape_fault, status_fault, trusted, whole_call
from worker.models.conversation import Answers, Turn, arguments_object, clean, native, paired, sendable_name
from worker.models.prices import TABLE_ALONE, Prices
from worker.models.protocol import ModelRequest, UserMessage, call_id

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

BASE_URL: Final = "https://api.anthropic.com"

PROVIDER: Final = "anthropic"
_STOPS: Final[dict[str, Literal["length", "refusal"]]] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
_THINKING: Final = ("thinking", "redacted_thinking")
_IDS: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Of calls that it takes; those of other providers may hold more."""
_CACHED: Final = {"cache_control": {"type": "ephemeral"}}
CACHED_TURNS: Final = 2
"""The standing instructions and this many of the last user turns are cache breakpoints (four are allowed): the
older one is found again by the next request, the newer one is written for the request after."""


@dataclass(frozen=True)
class AnthropicModel:
    """A model of Anthropic, or of a server that speaks its protocol at account.base_url."""

    name: str
    model: str
    account: Account
    prices: Prices = TABLE_ALONE

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        """One answer. Raises ProviderFault."""
        body = self.body(request)
        client = self._client(timeout_s)
        raw = whole_call(lambda: self._ask(client, body), timeout_s=timeout_s, cancel=cancel)
        try:
            return self._reply(json.loads(raw), request.step)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise shape_fault(self.account, raw) from None

    def body(self, request: ModelRequest) -> dict[str, Any]:
        """The request's JSON, `MessageCreateParams` of the SDK."""
        messages: list[dict[str, Any]] = []
        for part in paired(request.messages, _IDS):
            role, content = _content(part)
            if messages and messages[-1]["role"] == role:
                messages[-1]["content"] += content
            elif content:
                messages.append({"role": role, "content": content})
        # Nobody comes back to a request for a summary, and what is written to a cache costs more than what is read.
        cached = _CACHED if request.purpose == "reply" else {}
        for message in [message for message in messages if message["role"] == "user"][-CACHED_TURNS:]:
            message["content"][-1] |= cached
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_output_tokens,
            "messages": messages,
        }
        if request.system:
            body["system"] = [{"type": "text", "text": clean(request.system)} | cached]
        if request.tools:
            body["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
                for tool in request.tools
            ]
        return body

    def _client(self, timeout_s: float) -> AsyncAnthropic:
        """Made before the deadline starts: the SDK's first import takes seconds."""
        from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

        # A conversation goes where it was sent and nowhere else: no redirect is followed.
        http = DefaultAsyncHttpxClient(follow_redirects=False, verify=trusted(self.account.ca_bundle))
        return AsyncAnthropic(
            api_key=self.account.key,
            base_url=self.account.base_url or BASE_URL,
            max_retries=0,
            timeout=timeout_s,
            http_client=http,
        )

    async def _ask(self, client: AsyncAnthropic, body: dict[str, Any]) -> bytes:
        from anthropic import APIConnectionError, APIStatusError

        async with client:
            try:
                raw = await client.messages.with_raw_response.create(**body)
            except APIStatusError as error:
                response = error.response
                # Without its cause: the SDK's exception holds the request and with it the key.
                raise status_fault(self.account, response.status_code, response.headers, response.text) from None
            except APIConnectionError as error:
                raise connection_fault(self.account, error) from None
        return bytes(raw.http_response.content)

    def _reply(self, message: dict[str, Any], step: int) -> Reply:
        came = message["content"]
        blocks = [clean(block) for block in came]
        calls = tuple(
            ToolCall(
                id=call_id(step, position),
                original_id=block.get("id") or "",
                name=block["name"],
                arguments=json.dumps(block["input"], ensure_ascii=False),
            )
            for position, block in enumerate((b for b in blocks if b["type"] == "tool_use"), start=1)
        )
        # A signature covers its block's exact text: a block that had to be cleaned is dropped whole.
        content = [new for old, new in zip(came, blocks, strict=True) if new["type"] not in _THINKING or new == old]
        usage = message.get("usage")
        tokens = _tokens(usage or {})
        priced = self.prices.price(f"{PROVIDER}/{self.model}", tokens, self.account.base_url)
        cost, source = priced if usage else (None, "")
        return Reply(
            text="".join(block["text"] for block in blocks if block["type"] == "text"),
            reasoning="\n".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
            calls=calls,
            stop=_STOPS.get(message.get("stop_reason") or "", "calls" if calls else "end"),
            usage=tokens,
            cost_microusd=cost,
            price_source=source,
            model=clean(message.get("model")) or self.model,
            native=native(PROVIDER, "content", content),
        )


def _tokens(usage: dict[str, Any]) -> Usage:
    return Usage(
        input_tokens=usage.get("input_tokens") or 0,
        cache_read_tokens=usage.get("cache_read_input_tokens") or 0,
        cache_write_tokens=usage.get("cache_creation_input_tokens") or 0,
        output_tokens=usage.get("output_tokens") or 0,
    ).bounded


def _content(part: UserMessage | Turn | Answers) -> tuple[Literal["user", "assistant"], list[dict[str, Any]]]:
    match part:
        case UserMessage(text=text):
            return "user", [{"type": "text", "text": clean(text)}]
        case Answers(results=results):
            return "user", [
                {
                    "type": "tool_result",
                    "tool_use_id": sent_id,
                    "content": clean(result.content),
                    "is_error": result.is_error,
                }
                for sent_id, result in results
            ]
        case Turn():
            return "assistant", _turn(part)


def _turn(turn: Turn) -> list[dict[str, Any]]:
    """The content of an earlier reply as it came, but for calls that are sent under another id or name or not at
    all."""
    content: list[dict[str, Any]] = []
    calls = iter(turn.reply.calls)
    for block in _native(turn.reply):
        if block["type"] == "tool_use":
            sent_id = turn.sent.get(next(calls).id)
            if sent_id is None:
                continue
            block = block | {"id": sent_id, "name": sendable_name(block["name"])}
        elif block["type"] == "text" and not block["text"].strip():
            continue  # the API refuses back what it gave: text without a visible character
        content.append(block)
    # Thinking must be followed by something; a turn of which nothing else is left is not sent.
    while content and content[-1]["type"] in _THINKING:
        content.pop()
    return content


def _native(reply: Reply) -> list[dict[str, Any]]:
    if isinstance(reply.native, dict) and reply.native.get("provider") == PROVIDER:
        content: list[dict[str, Any]] = reply.native["content"]
        return content
    return [
        {"type": "text", "text": clean(reply.text)},
        *(
            {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_object(call.arguments)}
            for call in reply.calls
        ),
    ]
