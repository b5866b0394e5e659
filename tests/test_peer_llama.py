"""Both adapters against a llama.cpp server with a tiny model, which speaks both protocols: what a real tokenizer, a
real context and a real parser of tool calls answer."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from conftest import wait_for
from tiny_llama import CONTEXT_TOKENS, NOTES, Llama
from transcripts import MemoryHost, task

from worker.contract.cancel import Cancel
from worker.contract.errors import ProviderFault
from worker.contract.events import Finished, Reply, ToolCall
from worker.loop import work
from worker.models.anthropic import AnthropicModel
from worker.models.call import Account
from worker.models.openai import OpenAIModel
from worker.models.protocol import (
    AssistantMessage,
    Message,
    Model,
    ModelRequest,
    ToolResult,
    ToolResults,
    ToolSpec,
    UserMessage,
)
from worker.tools.toolset import Toolset

RUN_COMMAND = next(spec for spec in Toolset().specs if spec.name == "run_command")
ENDLESS_TOKENS = CONTEXT_TOKENS - 1_000


@dataclass(frozen=True)
class OneTool:
    """The tools that are offered: one, so that there is room in a small context."""

    specs: tuple[ToolSpec, ...] = (RUN_COMMAND,)

    def parse(self, call: ToolCall) -> Any:
        return Toolset().parse(call)


@pytest.fixture(params=["anthropic", "openai"])
def model(request: pytest.FixtureRequest, llama: Llama) -> Model:
    """The server's model through each of its doors."""
    if request.param == "anthropic":
        return AnthropicModel("anthropic/tiny", "tiny", Account("anthropic", "a-key", "ANTHROPIC_API_KEY", llama.url))
    return OpenAIModel("openai/tiny", "tiny", Account("openai", "", "OPENAI_API_KEY", f"{llama.url}/v1"))


def ask(
    model: Model,
    *messages: Message,
    tools: tuple[ToolSpec, ...] = (),
    tokens: int = 16,
    timeout_s: float = 120,
    cancel: Cancel | None = None,
) -> Reply:
    request = ModelRequest("", messages, tools, step=1, reply_index=0, max_output_tokens=tokens)
    return model.reply(request, timeout_s=timeout_s, cancel=cancel or Cancel())


def test_what_was_read_and_written_is_counted(model: Model) -> None:
    """A byte is a token here: a hundred letters more are a hundred tokens more. What the server still has of the same
    question is told as read from its cache, and no token is counted twice."""
    short, long = ask(model, UserMessage("Hello.")), ask(model, UserMessage("Hello." + "x" * 100))
    again = ask(model, UserMessage("Hello." + "x" * 100))
    read = [reply.usage.input_tokens + reply.usage.cache_read_tokens for reply in (short, long, again)]
    assert read[1:] == [read[0] + 100] * 2
    assert again.usage.cache_read_tokens > 100
    assert short.usage.output_tokens == 16
    assert short.cost_microusd is None


def test_a_reply_that_reaches_its_limit_is_cut(model: Model) -> None:
    """Its words are kept."""
    reply = ask(model, UserMessage("Go on."), tokens=8)
    assert (reply.stop, reply.usage.output_tokens) == ("length", 8)
    assert reply.text


def test_an_offered_tool_is_called_and_its_result_read(model: Model) -> None:
    """The server's own parser made a call of the model's words; call and result go back and are read as such."""
    first = ask(model, UserMessage("Look."), tools=(RUN_COMMAND,))
    (call,) = first.calls
    assert (first.stop, call.name, json.loads(call.arguments)) == ("calls", "run_command", {"command": "ls"})
    told = ToolResults((ToolResult(call.id, "x" * 500, False),))
    second = ask(model, UserMessage("Look."), AssistantMessage(first), told, tools=(RUN_COMMAND,))
    assert second.calls[0].original_id not in ("", call.original_id)
    assert second.usage.input_tokens > 500
    assert second.usage.cache_read_tokens > 500, "the beginning was sent again as it was"


@pytest.mark.parametrize("wrong", ["a limit", "a schema"])
def test_what_the_server_finds_wrong_is_a_bad_request(model: Model, wrong: str) -> None:
    """Its words are in the fault; trying again would not help."""
    tools = (ToolSpec("odd", "Odd.", {"type": "nonsense"}),) if wrong == "a schema" else ()
    with pytest.raises(ProviderFault) as caught:
        ask(model, UserMessage("Go."), tools=tools, tokens=-5 if wrong == "a limit" else 16)
    assert (caught.value.reason, caught.value.retryable) == ("bad_request", False)
    assert ("nonsense" if tools else "max_tokens") in caught.value.message


def test_more_than_the_context_holds_is_told_as_that(model: Model) -> None:
    """Not as a bad request: a summary helps."""
    with pytest.raises(ProviderFault, match="exceeds the available context") as caught:
        ask(model, UserMessage("x" * (CONTEXT_TOKENS + 1)))
    assert caught.value.reason == "context"


def test_a_run_that_outgrows_the_server_is_summarized_and_goes_on(model: Model) -> None:
    """The task thinks the context is larger than it is; the server's refusal leads to a summary by the same model,
    and every step is made."""
    numbers = iter(range(99))
    host = MemoryHost(
        task(steps=9, context_tokens=200_000), lambda command: (0, f"{next(numbers)} " + "x" * 2_000, "a")
    )
    outcome = work(host, model, OneTool())
    assert isinstance(outcome, Finished)
    assert str(outcome.failure) == "limit/steps"
    assert host.run.compactions >= 1
    assert (host.run.steps, host.ran) == (9, ["ls"] * 9)
    assert NOTES in [getattr(record.event, "summary", "") for record in host.records()]


def test_a_deadline_ends_a_reply_and_the_server_stops_too(model: Model, llama: Llama) -> None:
    """Nobody pays for the rest of it, and the next question is answered."""
    before = llama.given_up()
    with pytest.raises(ProviderFault, match="no whole answer within") as caught:
        ask(model, UserMessage("Go on for ever."), tokens=ENDLESS_TOKENS, timeout_s=0.5)
    assert (caught.value.reason, caught.value.retryable) == ("connection", True)
    wait_for(lambda: llama.given_up() > before)
    assert ask(model, UserMessage("Hello.")).text


def test_a_cancel_ends_a_reply_and_the_server_stops_too(model: Model, llama: Llama) -> None:
    """In the middle of what it is writing."""
    before, begun, cancel = llama.given_up(), llama.begun(), Cancel()

    def stop() -> None:
        wait_for(lambda: llama.begun() > begun)
        cancel.set("cancelled by a person")

    threading.Thread(target=stop).start()
    with pytest.raises(ProviderFault, match="cancelled by a person") as caught:
        ask(model, UserMessage("Go on for ever."), tokens=ENDLESS_TOKENS, cancel=cancel)
    assert not caught.value.retryable
    wait_for(lambda: llama.given_up() > before)
