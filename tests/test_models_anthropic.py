"""The Messages API: what is sent, what is kept, what comes back (T06, T07, T12, T13, T15)."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from model_server import ModelServer
from sdk_types import conforms

from worker.contract.cancel import Cancel
from worker.contract.errors import InvalidFault
from worker.contract.events import Reply, ToolCall, Usage
from worker.models.anthropic import AnthropicModel
from worker.models.call import Account
from worker.models.protocol import (
    AssistantMessage,
    Message,
    ModelRequest,
    ToolResult,
    ToolResults,
    ToolSpec,
    UserMessage,
)

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TOOL = ToolSpec("run_command", "Run a shell command.", SCHEMA)
THINKING = {"type": "thinking", "thinking": "é\n\u2028x", "signature": "QUJD+/=="}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "run_command", "input": {"command": "ls"}}


def model_at(url: str) -> AnthropicModel:
    return AnthropicModel("anthropic/claude-test", "claude-test", Account("anthropic", "a-key", "KEY", url))


def request_of(*messages: Message, step: int = 1) -> ModelRequest:
    return ModelRequest("Be brief.", messages, (TOOL,), step=step, reply_index=step - 1)


def body_of(*messages: Message, known: bool = True) -> dict[str, Any]:
    """The request's JSON, which is of the SDK's type, unless it holds what the SDK does not know."""
    body = model_at("http://unused").body(request_of(*messages))
    if known:
        conforms("anthropic", body)
    return body


def answer(
    server: ModelServer, *content: dict[str, Any], stop: str = "end_turn", step: int = 1, **more: Any
) -> Reply:
    """The reply to one answer of a server."""
    server.will_answer({"content": content, "stop_reason": stop, "model": "claude-test-1"} | more)
    return model_at(server.url).reply(request_of(UserMessage("go"), step=step), timeout_s=30, cancel=Cancel())


def sent_back(*replies: Reply, known: bool = True) -> list[dict[str, Any]]:
    """The messages of a request that follows these replies, each call answered, without cache marks."""
    messages: list[Message] = [UserMessage("go")]
    for reply in replies:
        results = tuple(ToolResult(call.id, '{"output": "ok"}', False) for call in reply.calls)
        messages += [AssistantMessage(reply), ToolResults(results) if results else UserMessage("go on")]
    return unmarked(body_of(*messages, known=known)["messages"])


def unmarked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same without cache marks."""
    return [
        message
        | {"content": [{key: block[key] for key in block if key != "cache_control"} for block in message["content"]]}
        for message in messages
    ]


def stored(reply: Reply) -> Reply:
    """The reply after a journal."""
    return Reply.model_validate_json(json.dumps(reply.model_dump(mode="json")))


def test_a_request_is_what_the_sdk_says_it_must_be(model_server: ModelServer) -> None:
    """The bytes on the wire hold system, tools, messages, the limit and the key, and nothing of the environment."""
    answer(model_server, {"type": "text", "text": "Hello."})
    body = json.loads(model_server.bodies[0])
    conforms("anthropic", body)
    assert body["model"] == "claude-test"
    assert body["max_tokens"] == 16_384
    assert body["tools"] == [{"name": TOOL.name, "description": TOOL.description, "input_schema": SCHEMA}]
    assert body["system"][0]["text"] == "Be brief."
    assert model_server.headers[0]["authorization"] == "Bearer a-key"


def test_thinking_comes_back_value_identical_after_a_journal(model_server: ModelServer) -> None:
    """Text, signature and order as they came (T12)."""
    content = [THINKING, {"type": "text", "text": "I look."}, CALL]
    reply = answer(model_server, *content, stop="tool_use")
    assert (reply.reasoning, reply.text, reply.stop) == ("é\n\u2028x", "I look.", "calls")
    assert sent_back(stored(reply))[1] == {"role": "assistant", "content": content}


def test_a_block_of_a_kind_unknown_today_is_sent_back_as_it_came(model_server: ModelServer) -> None:
    """Only what must change is touched."""
    odd = {"type": "redacted_thinking", "data": "AAA=", "new_field": {"x": [1.5, None]}}
    assert sent_back(stored(answer(model_server, odd, CALL)), known=False)[1]["content"] == [odd, CALL]


def test_thinking_that_is_no_valid_text_is_dropped_whole(model_server: ModelServer) -> None:
    """A signature covers the exact text: neither goes without the other (T12, T15)."""
    reply = answer(model_server, THINKING | {"thinking": "half \ud83d"}, CALL, stop="tool_use")
    assert sent_back(stored(reply))[1]["content"] == [CALL]


def test_half_a_surrogate_pair_never_reaches_a_request(model_server: ModelServer) -> None:
    """In a reply's text or arguments, in a prompt, in a result: replaced, and the run goes on (T15)."""
    bad = "\ud83d"
    call = CALL | {"input": {"command": f"echo {bad}", "n": [bad]}}
    reply = answer(model_server, {"type": "text", "text": bad}, call, stop="tool_use")
    assert reply.text == "\ufffd"
    assert json.loads(reply.calls[0].arguments) == {"command": "echo \ufffd", "n": ["\ufffd"]}
    result = ToolResults((ToolResult(reply.calls[0].id, bad, True),))
    body = body_of(UserMessage(bad), AssistantMessage(stored(reply)), result)
    assert bad not in json.dumps(body, ensure_ascii=False)


@pytest.mark.parametrize(("levels", "kept"), [(150, True), (300, False)])
def test_arguments_nested_deeper_than_a_journal_goes_are_text(
    model_server: ModelServer, levels: int, kept: bool
) -> None:
    """The reply is kept with its price, and the call is answered as any that cannot be read (T01)."""
    nested: Any = "x"
    for _ in range(levels):
        nested = {"n": nested}
    reply = stored(answer(model_server, CALL | {"input": nested}, stop="tool_use"))
    assert json.loads(reply.calls[0].arguments) == nested
    assert (reply.native is not None) is kept
    said = nested if kept else {"malformed_arguments": reply.calls[0].arguments}
    assert sent_back(reply)[1]["content"][-1]["input"] == said


def test_a_number_without_a_json_form_does_not_stop_the_run(model_server: ModelServer) -> None:
    """1e999 is JSON to read and not to write."""
    raw = json.dumps({"content": [CALL], "stop_reason": "tool_use"}).replace('"ls"', "1e999").encode()
    model_server.will_answer(raw)
    model = model_at(model_server.url)
    reply = model.reply(request_of(UserMessage("go")), timeout_s=30, cancel=Cancel())
    assert sent_back(stored(reply))[1]["content"][0]["input"] == {"command": "inf"}


def test_repeated_and_empty_ids_are_sent_unique_and_paired(model_server: ModelServer) -> None:
    """Two calls c1, then c1 again, then none: four pairs, the provider's own id where it can be kept (T13)."""
    twice = answer(model_server, CALL | {"id": "c1"}, CALL | {"id": "c1"}, stop="tool_use", step=1)
    again = answer(model_server, CALL | {"id": "c1"}, stop="tool_use", step=2)
    empty = answer(model_server, CALL | {"id": ""}, stop="tool_use", step=3)
    sent = sent_back(stored(twice), stored(again), stored(empty))
    used = [block["id"] for message in sent for block in message["content"] if block["type"] == "tool_use"]
    answered = [b["tool_use_id"] for message in sent for b in message["content"] if b["type"] == "tool_result"]
    assert used == answered == ["c1", "call_1_2", "call_2_1", "call_3_1"]
    assert [call.original_id for reply in (twice, again, empty) for call in reply.calls] == ["c1", "c1", "c1", ""]


def test_a_made_up_id_that_looks_like_ours_stays_unique(model_server: ModelServer) -> None:
    """A provider may have read ours in the conversation."""
    first = answer(model_server, CALL | {"id": "call_2_1"}, stop="tool_use", step=1)
    second = answer(model_server, CALL | {"id": ""}, stop="tool_use", step=2)
    sent = sent_back(first, second)
    used = [block["id"] for message in sent for block in message["content"] if block["type"] == "tool_use"]
    assert used == ["call_2_1", "call_2_1x"]


def test_a_name_that_no_server_takes_back_is_sent_as_one_that_they_do(model_server: ModelServer) -> None:
    """T04: a tool that the model made up must not have every later request refused."""
    reply = answer(model_server, CALL | {"name": "multi_tool_use.parallel"}, stop="tool_use")
    assert reply.calls[0].name == "multi_tool_use.parallel"
    assert sent_back(stored(reply))[1]["content"] == [CALL | {"name": "multi_tool_use_parallel"}]


def test_an_id_of_another_provider_is_sent_where_it_is_taken() -> None:
    """T13: after a change of model; here letters, digits, - and _ are."""
    calls = [
        ToolCall(id=f"call_1_{n}", original_id=original, name="run_command", arguments="{}")
        for n, original in enumerate(("functions.run:0", "call-9"), start=1)
    ]
    sent = sent_back(Reply(calls=tuple(calls), stop="calls"))[1]["content"]
    assert [block["id"] for block in sent if block["type"] == "tool_use"] == ["call_1_1", "call-9"]


def test_a_call_that_was_never_answered_is_not_sent_back(model_server: ModelServer) -> None:
    """Those of a cut reply never ran; a turn of which only thinking is left goes with them."""
    cut = answer(model_server, THINKING, CALL, stop="max_tokens")
    assert cut.stop == "length"
    body = body_of(UserMessage("go"), AssistantMessage(cut), UserMessage("You were cut."))
    assert [message["role"] for message in body["messages"]] == ["user"]
    assert [block["text"] for block in body["messages"][0]["content"]] == ["go", "You were cut."]


def test_thinking_at_the_end_is_left_out_and_the_calls_before_it_stay(model_server: ModelServer) -> None:
    """The API refuses a turn that ends with it, and a result without its call."""
    reply = answer(model_server, CALL, THINKING, stop="tool_use")
    assert sent_back(stored(reply))[1]["content"] == [CALL]


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_reply_is_not_sent_back(model_server: ModelServer, text: str) -> None:
    """The API refuses text without a visible character, also its own."""
    reply = answer(model_server, {"type": "text", "text": text})
    assert [message["role"] for message in sent_back(reply)] == ["user"]


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("end_turn", "end"),
        ("stop_sequence", "end"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refusal"),
        ("of_tomorrow", "end"),
        (None, "end"),
    ],
)
def test_stop_reasons_are_mapped(model_server: ModelServer, reason: Any, stop: str) -> None:
    """Cut and refused replies are told apart from finished ones; their text is kept (T06, T07)."""
    reply = answer(model_server, {"type": "text", "text": "words"}, stop=reason)
    assert (reply.stop, reply.text) == (stop, "words")


def test_usage_keeps_what_was_cached_apart(model_server: ModelServer) -> None:
    """Input, read from the cache, written to it, output."""
    usage = {"input_tokens": 1, "cache_read_input_tokens": 2, "cache_creation_input_tokens": 3, "output_tokens": 4}
    reply = answer(model_server, usage=usage)
    assert reply.usage == Usage(input_tokens=1, cache_read_tokens=2, cache_write_tokens=3, output_tokens=4)


def test_a_reply_without_usage_has_no_known_cost(model_server: ModelServer) -> None:
    """Unknown is unknown, never zero."""
    assert answer(model_server, {"type": "text", "text": "hi"}).cost_microusd is None


def test_results_of_one_reply_are_one_message_and_cached_up_to_there() -> None:
    """All results in call order, then people's words; the last two user turns are marked."""
    calls = tuple(ToolCall(id=f"call_1_{n}", name="run_command", arguments='{"command": "x"}') for n in (1, 2, 3))
    results = ToolResults(tuple(ToolResult(call.id, "{}", call.id == "call_1_2") for call in calls))
    body = body_of(
        UserMessage("go"), AssistantMessage(Reply(calls=calls, stop="calls")), results, UserMessage("stop")
    )
    first, _, last = body["messages"]
    assert [block["type"] for block in last["content"]] == ["tool_result"] * 3 + ["text"]
    assert [block.get("is_error") for block in last["content"][:3]] == [False, True, False]
    marked = [block for message in (first, last) for block in message["content"] if "cache_control" in block]
    assert marked == [first["content"][-1], last["content"][-1]]


def test_each_request_finds_the_cache_that_the_one_before_wrote() -> None:
    """Its older mark stands where the newest of the request before stood, and all before that is the same."""
    messages: list[Message] = [UserMessage("go")]
    bodies = []
    for step in range(1, 5):
        bodies.append(body_of(*messages)["messages"])
        call = ToolCall(id=f"call_{step}_1", name="run_command", arguments='{"command": "x"}')
        messages += [AssistantMessage(Reply(calls=(call,))), ToolResults((ToolResult(call.id, "{}", False),))]
    for before, after in itertools.pairwise(bodies):
        marked = [message for message in after if "cache_control" in message["content"][-1]]
        assert marked[-2] == before[-1]
        assert unmarked(after[: len(before)]) == unmarked(before)


def test_a_request_for_a_summary_writes_no_cache() -> None:
    """Nobody comes back to it."""
    request = request_of(UserMessage("go"))
    assert "cache_control" in str(model_at("http://unused").body(request))
    assert "cache_control" not in str(model_at("http://unused").body(replace(request, purpose="summary")))


def test_a_reply_of_another_model_is_told_in_this_ones_words() -> None:
    """After a change of model text and calls are sent, malformed arguments inside an object."""
    call = ToolCall(id="call_1_1", original_id="x", name="run_command", arguments='{"command": "ls')
    reply = Reply(text="I try.", calls=(call,), stop="calls", native={"provider": "openai", "message": {}})
    assert sent_back(reply)[1]["content"] == [
        {"type": "text", "text": "I try."},
        {"type": "tool_use", "id": "x", "name": "run_command", "input": {"malformed_arguments": '{"command": "ls'}},
    ]


def test_a_result_without_its_call_is_refused() -> None:
    """A split pair is a fault of ours, better found here than by the provider."""
    with pytest.raises(InvalidFault, match="call_9_9"):
        body_of(UserMessage("go"), ToolResults((ToolResult("call_9_9", "{}", False),)))
