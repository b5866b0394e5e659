"""Owns the door to OpenAI's SDK: requests, replies and errors of chat completions, of OpenAI or any compatible
server. Refuses to retry: whoever asks decides that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from worker.contract.cancel import Cancel
from worker.contract.events import Reply, ToolCall, Usage
from worker.models.call import Account, connection_fault, shape_fault, status_fault, trusted, whole_call
from worker.models.conversation import Answers, Turn, clean, native, paired, sendable_arguments, sendable_name
from worker.models.prices import TABLE_ALONE, Prices
from worker.models.protocol import ModelRequest, UserMessage, call_id

if TYPE_CHECKING:
    from openai import AsyncOpenAI

BASE_URL: Final = "https://api.openai.com/v1"
PROVIDER: Final = "openai"

_STOPS: Final[dict[str, Literal["length", "content_filter"]]] = {
    "length": "length",
    "content_filter": "content_filter",
}
_REASONING: Final = ("reasoning_content", "reasoning")
"""Where compatible servers put their reasoning; OpenAI's own chat completions keep theirs."""


@dataclass(frozen=True)
class OpenAIModel:
    """A model of OpenAI, or of a compatible server at account.base_url (which may need no key)."""

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
            return self._reply(clean(json.loads(raw)), request.step)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise shape_fault(self.account, raw) from None

    def body(self, request: ModelRequest) -> dict[str, Any]:
        """The request's JSON, `CompletionCreateParams` of the SDK."""
        messages = [message for part in paired(request.messages) for message in _messages(part)]
        if request.system:
            messages.insert(0, {"role": "system", "content": clean(request.system)})
        # OpenAI's newer models refuse the older name, and most compatible servers know only that.
        limit = "max_completion_tokens" if self.account.base_url is None else "max_tokens"
        body: dict[str, Any] = {"model": self.model, "messages": messages, limit: request.max_output_tokens}
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
                }
                for tool in request.tools
            ]
        return body

    def _client(self, timeout_s: float) -> AsyncOpenAI:
        """Made before the deadline starts: the SDK's first import takes seconds."""
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        # A conversation goes where it was sent and nowhere else: no redirect is followed.
        http = DefaultAsyncHttpxClient(follow_redirects=False, verify=trusted(self.account.ca_bundle))
        return AsyncOpenAI(
            api_key=self.account.key or "none",  # the SDK insists on one; a server without keys ignores it
            base_url=self.account.base_url or BASE_URL,
            max_retries=0,
            timeout=timeout_s,
            http_client=http,
        )

    async def _ask(self, client: AsyncOpenAI, body: dict[str, Any]) -> bytes:
        from openai import APIConnectionError, APIStatusError

        async with client:
            try:
                raw = await client.chat.completions.with_raw_response.create(**body)
            except APIStatusError as error:
                response = error.response
                # Without its cause: the SDK's exception holds the request and with it the key.
                raise status_fault(self.account, response.status_code, response.headers, response.text) from None
            except APIConnectionError as error:
                raise connection_fault(self.account, error) from None
        return bytes(raw.http_response.content)

    def _reply(self, completion: dict[str, Any], step: int) -> Reply:
        choice = completion["choices"][0]
        message = choice["message"]
        calls = tuple(
            ToolCall(
                id=call_id(step, position),
                original_id=call.get("id") or "",
                name=call["function"]["name"],
                arguments=_text_of(call["function"].get("arguments")),
            )
            for position, call in enumerate(message.get("tool_calls") or (), start=1)
        )
        usage = completion.get("usage")
        tokens = _tokens(usage or {})
        priced = self.prices.price(f"{PROVIDER}/{self.model}", tokens, self.account.base_url)
        cost, source = priced if usage else (None, "")
        refusal = message.get("refusal")
        return Reply(
            text=message.get("content") or refusal or "",
            reasoning=next((message[key] for key in _REASONING if message.get(key)), ""),
            calls=calls,
            stop="refusal" if refusal else _STOPS.get(choice.get("finish_reason"), "calls" if calls else "end"),
            usage=tokens,
            cost_microusd=cost,
            price_source=source,
            model=completion.get("model") or self.model,
            native=native(PROVIDER, "message", message),
        )


def _tokens(usage: dict[str, Any]) -> Usage:
    """Theirs counts cached tokens as part of the prompt, ours beside it."""
    details = usage.get("prompt_tokens_details") or {}
    read, written = details.get("cached_tokens") or 0, details.get("cache_write_tokens") or 0
    return Usage(
        input_tokens=max(0, (usage.get("prompt_tokens") or 0) - read - written),
        cache_read_tokens=read,
        cache_write_tokens=written,
        output_tokens=usage.get("completion_tokens") or 0,
    ).bounded


def _text_of(arguments: object) -> str:
    """Arguments are a string of JSON; some servers send the object itself, some nothing when there are none."""
    if isinstance(arguments, str):
        return arguments if arguments.strip() else "{}"
    return json.dumps(arguments or {}, ensure_ascii=False)


def _messages(part: UserMessage | Turn | Answers) -> Iterator[dict[str, Any]]:
    match part:
        case UserMessage(text=text):
            yield {"role": "user", "content": clean(text)}
        case Answers(results=results):
            for sent_id, result in results:
                yield {"role": "tool", "tool_call_id": sent_id, "content": clean(result.content)}
        case Turn():
            yield from _turn(part)


def _turn(turn: Turn) -> Iterator[dict[str, Any]]:
    """An earlier reply as it came, but for calls that are sent under another id or name or not at all, and arguments
    that are no JSON object: servers that render them for the model fail on those."""
    message = _native(turn.reply)
    calls = []
    for call, came in zip(turn.reply.calls, message.pop("tool_calls", None) or (), strict=True):
        if call.id in turn.sent:
            named = {"name": sendable_name(call.name), "arguments": sendable_arguments(call.arguments)}
            function = came["function"] | named
            calls.append(came | {"id": turn.sent[call.id], "function": function})
    if calls:
        message["tool_calls"] = calls
    if calls or (message.get("content") or "").strip():
        yield message


def _native(reply: Reply) -> dict[str, Any]:
    """The message of a reply, a shallow copy; null and empty fields (`annotations`) are left out, because not every
    server takes them back."""
    if isinstance(reply.native, dict) and reply.native.get("provider") == PROVIDER:
        return {key: value for key, value in reply.native["message"].items() if value not in (None, [])}
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in reply.calls
    ]
    return {"role": "assistant", "content": clean(reply.text), "tool_calls": calls}
