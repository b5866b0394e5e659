"""What every Model does: one suite over scripted, commands, replay, Anthropic, OpenAI, and a
deployment's own program and entry point."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from worker.contract.cancel import Cancel
from worker.contract.errors import ProviderFault
from worker.contract.events import Reply, ToolCall, Usage
from worker.contract.script import parse_script
from worker.models.anthropic import AnthropicModel
from worker.models.call import Account
from worker.models.commands import CommandsModel
from worker.models.entry import EntryModel
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
from worker.models.replay import ReplayModel
from worker.models.scripted import ScriptedModel

TOOL = ToolSpec(
    "run_command", "Run a shell command.", {"type": "object", "properties": {"command": {"type": "string"}}}
)

SCRIPT = """
- calls: [{tool: run_command, arguments: {command: "one"}}]
- calls: [{tool: run_command, arguments: {command: "two"}}]
- text: Done.
"""

SAYS = """
for line in sys.stdin:
    command = ("one", "two", None)[json.loads(line)["reply_index"]]
    calls = [{"name": "run_command", "arguments": {"command": command}}] if command else []
    print(json.dumps({"text": "" if command else "Done.", "calls": calls, "cost_usd": 0}), flush=True)
"""


@dataclass
class Subject:
    """A model that says: run `one`, run `two`, and then words without calls. slow() makes its next reply hang."""

    model: Model
    slow: Callable[[], Model] | None


def anthropic_answer(command: str | None) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": "Done."}]
    if command:
        content = [{"type": "tool_use", "id": "c1", "name": "run_command", "input": {"command": command}}]
    return {"content": content, "stop_reason": "tool_use" if command else "end_turn", "usage": {"input_tokens": 1}}


def openai_answer(command: str | None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "Done."}
    if command:
        function = {"name": "run_command", "arguments": json.dumps({"command": command})}
        message = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}


@pytest.fixture(params=["scripted", "commands", "replay", "program", "entry", "anthropic", "openai"])
def subject(request: pytest.FixtureRequest) -> Subject:
    """Each implementation in turn."""
    kind = request.param
    if kind == "scripted":
        slow = ScriptedModel("scripted:slow", parse_script("- {text: late, delay_s: 600}", "slow"))
        return Subject(ScriptedModel("scripted:s", parse_script(SCRIPT, "s")), lambda: slow)
    if kind == "commands":
        return Subject(CommandsModel(("one", "two")), None)
    if kind == "replay":
        calls = [
            ToolCall(id=f"old_{n}", name="run_command", arguments=json.dumps({"command": c}))
            for n, c in enumerate(("one", "two"))
        ]
        replies = [Reply(calls=(call,), stop="calls", cost_microusd=7) for call in calls]
        return Subject(ReplayModel("replay:r", [*replies, Reply(text="Done.")]), None)
    if kind == "program":
        programs = request.getfixturevalue("programs")
        return Subject(programs(SAYS), lambda: programs("for line in sys.stdin: signal.pause()"))
    if kind == "entry":
        late = ScriptedModel("slow", parse_script("- {text: late, delay_s: 600}", "slow"))
        said = ScriptedModel("said", parse_script(SCRIPT, "s"))
        return Subject(EntryModel("python:said", said), lambda: EntryModel("python:late", late))
    server = request.getfixturevalue("model_server")
    account = Account(kind, "key-for-tests", "KEY", server.url)
    model: Model = (AnthropicModel if kind == "anthropic" else OpenAIModel)(f"{kind}/m", "m", account)

    class Fed:
        """Queues the answer for the request's reply_index, as a provider's model would choose it."""

        name = model.name

        def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
            command = ("one", "two", None)[request.reply_index]
            server.will_answer((anthropic_answer if kind == "anthropic" else openai_answer)(command))
            return model.reply(request, timeout_s=timeout_s, cancel=cancel)

    def slow_model() -> Model:
        server.will_trickle()
        return model

    return Subject(Fed(), slow_model)


def ask(model: Model, messages: tuple[Message, ...], index: int, **kwargs: Any) -> Reply:
    request = ModelRequest("Be brief.", messages, (TOOL,), step=index + 1, reply_index=index)
    return model.reply(request, timeout_s=kwargs.get("timeout_s", 30), cancel=kwargs.get("cancel", Cancel()))


def converse(model: Model) -> list[tuple[tuple[Message, ...], Reply]]:
    """The whole conversation: what was asked and what came."""
    messages: tuple[Message, ...] = (UserMessage("Run one, then two."),)
    turns: list[tuple[tuple[Message, ...], Reply]] = []
    for index in range(3):
        reply = ask(model, messages, index)
        turns.append((messages, reply))
        results = tuple(ToolResult(call.id, '{"output": "ok"}', False) for call in reply.calls)
        messages = (*messages, AssistantMessage(reply), ToolResults(results))
    return turns


def test_a_model_says_its_replies_in_order_and_ends_with_words(subject: Subject) -> None:
    """Two calls, then text without calls; stop says which."""
    replies = [reply for _, reply in converse(subject.model)]
    assert [json.loads(reply.calls[0].arguments)["command"] for reply in replies[:2]] == ["one", "two"]
    assert [reply.stop for reply in replies] == ["calls", "calls", "end"]
    assert replies[2].text
    assert not replies[2].calls


@pytest.mark.parametrize("subject", ["scripted", "replay"], indirect=True)
def test_a_summary_is_none_of_the_replies(subject: Subject) -> None:
    """Words without a call, whatever would be said next."""
    request = ModelRequest("Take notes.", (UserMessage("all of it"),), (), step=1, reply_index=0, purpose="summary")
    reply = subject.model.reply(request, timeout_s=30, cancel=Cancel())
    assert reply.text
    assert not reply.calls
    assert reply.stop == "end"


def test_call_ids_are_unique_in_the_run(subject: Subject) -> None:
    """Ours, whatever a provider repeats (T13)."""
    ids = [call.id for _, reply in converse(subject.model) for call in reply.calls]
    assert ids == ["call_1_1", "call_2_1"]


def test_a_reply_depends_on_its_request_alone(subject: Subject) -> None:
    """Asked out of order by another attempt, a model answers the same: takeover needs no memory."""
    turns = converse(subject.model)
    for index in (2, 0, 1):
        messages, reply = turns[index]
        assert ask(subject.model, messages, index) == reply


def test_a_reply_survives_its_journal_line(subject: Subject) -> None:
    """What is stored and read back is the same reply, native content and all."""
    for _, reply in converse(subject.model):
        assert Reply.model_validate_json(json.dumps(reply.model_dump(mode="json"))) == reply


def test_a_reply_names_its_model_and_its_price(subject: Subject) -> None:
    """A reply that cost nothing says so with a source; one at an unknown price has no cost at all, never 0."""
    for _, reply in converse(subject.model):
        assert reply.model
        assert reply.price_source
        assert (reply.cost_microusd is None) == subject.model.name.startswith(("anthropic", "openai"))
        assert reply.usage == Usage() or reply.cost_microusd is None


def test_a_reply_that_does_not_come_in_time_is_a_retryable_connection_fault(subject: Subject) -> None:
    """The deadline is of the whole call: a server that trickles bytes for ever does not hold the worker."""
    if subject.slow is None:
        assert ask(subject.model, (UserMessage("go"),), 0, timeout_s=0.5).calls  # answers at once, has no deadline
        return
    with pytest.raises(ProviderFault, match=r"no whole answer within 0\.5 s") as caught:
        ask(subject.slow(), (UserMessage("go"),), 0, timeout_s=0.5)
    assert caught.value.reason == "connection"
    assert caught.value.retryable


def test_cancel_from_another_thread_ends_a_call_at_once(subject: Subject) -> None:
    """The call ends seconds, not minutes, after the switch is thrown (F29)."""
    cancel = Cancel()
    if subject.slow is None:
        assert ask(subject.model, (UserMessage("go"),), 0, cancel=cancel).calls  # nothing to wait for
        return
    timer = threading.Timer(0.3, cancel.set, ["cancelled by a person"])
    timer.start()
    began = time.monotonic()
    with pytest.raises(ProviderFault, match="cancelled by a person") as caught:
        ask(subject.slow(), (UserMessage("go"),), 0, timeout_s=120, cancel=cancel)
    assert time.monotonic() - began < 30
    assert not caught.value.retryable


def test_a_switch_thrown_before_the_call_is_not_lost(subject: Subject) -> None:
    """A cancel that wins the race against the call ends it too; a model that answers at once may still answer."""
    cancel = Cancel()
    cancel.set("drain")
    if subject.slow is None:
        assert ask(subject.model, (UserMessage("go"),), 0, cancel=cancel).calls
        return
    with pytest.raises(ProviderFault, match="drain"):
        ask(subject.slow(), (UserMessage("go"),), 0, timeout_s=120, cancel=cancel)
