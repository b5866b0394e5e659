"""Owns what a model is asked and the Model protocol. Refuses to import a provider's SDK."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from worker.contract.cancel import Cancel
from worker.contract.errors import ProviderFault
from worker.contract.events import Reply


@dataclass(frozen=True)
class ToolSpec:
    """name, one-line description and JSON Schema (draft 2020-12) of the arguments object."""

    name: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True)
class UserMessage:
    text: str


@dataclass(frozen=True)
class AssistantMessage:
    """An earlier reply, sent back value-identical (its `native` content where the provider made it)."""

    reply: Reply


@dataclass(frozen=True)
class ToolResult:
    """content: the observation as JSON text. call_id: ToolCall.id."""

    call_id: str
    content: str
    is_error: bool


@dataclass(frozen=True)
class ToolResults:
    """All results of one reply, in call order."""

    results: tuple[ToolResult, ...]


Message = UserMessage | AssistantMessage | ToolResults


@dataclass(frozen=True)
class ModelRequest:
    """system: the standing instructions. messages: oldest first, starts with a UserMessage.

    step: number the reply will have, from 1. reply_index: how many replies of this model were committed before.
    tokens: about how many the request has, 0 where nobody reckoned. purpose: summary asks for words that stand for a
    part of the conversation; it is no step, and reply_index counts the summaries before it.
    """

    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    step: int
    reply_index: int
    max_output_tokens: int = 16_384
    tokens: int = 0
    purpose: Literal["reply", "summary"] = "reply"


class Model(Protocol):
    """Answers one request. Stateless between calls: all it needs stands in the request (takeover, replay)."""

    @property
    def name(self) -> str:
        """As the task names it."""
        ...

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        """One whole answer within timeout_s. Raises ProviderFault (retryable as the provider says), InvalidFault
        when a script does not fit, and returns refusals and cut replies as Reply.stop. When cancel is thrown the
        call ends at once in a ProviderFault that is not retryable: look at the switch before the fault."""
        ...


def call_id(step: int, position: int) -> str:
    """Our id of a reply's call, unique in its run. step: the reply's number; position: counts from 1."""
    return f"call_{step}_{position}"


def under_our_ids(reply: Reply, step: int) -> Reply:
    """The reply with its calls under ids of this run; what they were called before is their original id."""
    calls = tuple(
        call.model_copy(update={"id": call_id(step, position), "original_id": call.original_id or call.id})
        for position, call in enumerate(reply.calls, start=1)
    )
    return reply.model_copy(update={"calls": calls})


def cancelled_fault(cancel: Cancel) -> ProviderFault:
    """What a model raises when the switch was thrown."""
    return ProviderFault("connection", f"the model call was stopped: {cancel.reason}", unheard=True)


def late_fault(timeout_s: float) -> ProviderFault:
    """What a model raises when there was no whole answer in time."""
    return ProviderFault(
        "connection", f"the model gave no whole answer within {timeout_s:g} s", retryable=True, unheard=True
    )
