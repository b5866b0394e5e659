"""Chat completions: what is sent, what is kept, what comes back (T01, T07, T13, T15)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from model_server import ModelServer
from sdk_types import conforms

from worker.contract.cancel import Cancel
from worker.contract.events import Reply, ToolCall, Usage
from worker.models.call import Account
from worker.models.openai import OpenAIModel
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


def model_at(url: str | None, key: str = "a-key") -> OpenAIModel:
    return OpenAIModel("openai/gpt-test", "gpt-test", Account("openai", key, "KEY", url))


def request_of(*messages: Message, step: int = 1) -> ModelRequest:
    return ModelRequest("Be brief.", messages, (TOOL,), step=step, reply_index=step - 1)


def body_of(*messages: Message, known: bool = True) -> dict[str, Any]:
    """The request's JSON, which is of the SDK's type, unless it holds what the SDK does not know."""
    body = model_at("http://unused").body(request_of(*messages))
    if known:
        conforms("openai", body)
    return body


def call_of(id_: str = "c1", arguments: Any = '{"command": "ls"}') -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": "run_command", "arguments": arguments}}


def answer(server: ModelServer, message: dict[str, Any], finish: Any = "stop", step: int = 1, **more: Any) -> Reply:
    """The reply to one answer of a server."""
    server.will_answer({"choices": [{"message": {"role": "assistant"} | message, "finish_reason": finish}]} | more)
    return model_at(server.url).reply(request_of(UserMessage("go"), step=step), timeout_s=30, cancel=Cancel())


def sent_back(*replies: Reply, known: bool = True) -> list[dict[str, Any]]:
    """The messages after the system's of a request that follows these replies, each call answered."""
    messages: list[Message] = [UserMessage("go")]
    for reply in replies:
        results = tuple(ToolResult(call.id, '{"output": "ok"}', False) for call in reply.calls)
        messages += [AssistantMessage(reply), ToolResults(results) if results else UserMessage("go on")]
    sent: list[dict[str, Any]] = body_of(*messages, known=known)["messages"][1:]
    return sent


def stored(reply: Reply) -> Reply:
    """The reply after a journal."""
    return Reply.model_validate_json(json.dumps(reply.model_dump(mode="json")))


def test_a_request_is_what_the_sdk_says_it_must_be(model_server: ModelServer) -> None:
    """The bytes on the wire hold system, messages, tools, the limit and the key."""
    answer(model_server, {"content": "Hello."})
    body = json.loads(model_server.bodies[0])
    conforms("openai", body)
    assert body["model"] == "gpt-test"
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "go"}]
    assert body["tools"][0]["function"] == {
        "name": TOOL.name,
        "description": TOOL.description,
        "parameters": SCHEMA,
    }
    assert model_server.headers[0]["authorization"] == "Bearer a-key"


def test_the_output_limit_has_the_name_the_server_knows() -> None:
    """OpenAI's newer models refuse max_tokens; compatible servers often know nothing else."""
    request = request_of(UserMessage("go"))
    assert model_at(None).body(request)["max_completion_tokens"] == 16_384
    assert model_at("http://localhost/v1").body(request)["max_tokens"] == 16_384


def test_a_server_without_keys_can_be_asked_without_one(model_server: ModelServer) -> None:
    """A local server ignores the stand-in that the SDK insists on."""
    model_server.will_answer({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]})
    model = model_at(model_server.url, key="")
    assert model.reply(request_of(UserMessage("go")), timeout_s=30, cancel=Cancel()).text == "hi"


def test_a_message_comes_back_value_identical_after_a_journal(model_server: ModelServer) -> None:
    """Also the fields of a compatible server's own, such as its reasoning; but for those that are empty."""
    message = {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "é\n\u2028x",
        "reasoning_details": [{"type": "encrypted", "data": "QUJD+/==", "n": 1.5}],
        "tool_calls": [call_of() | {"index": 0}],
    }
    reply = answer(model_server, message | {"refusal": None, "audio": None, "annotations": []}, "tool_calls")
    assert (reply.text, reply.reasoning, reply.stop) == ("I look.", "é\n\u2028x", "calls")
    assert sent_back(stored(reply), known=False)[1] == message


def test_repeated_and_empty_ids_are_sent_unique_and_paired(model_server: ModelServer) -> None:
    """Two calls c1, then c1 again, then none: four pairs, the server's own id where it can be kept (T13)."""
    twice = answer(model_server, {"tool_calls": [call_of(), call_of()]}, step=1)
    again = answer(model_server, {"tool_calls": [call_of()]}, step=2)
    empty = answer(model_server, {"tool_calls": [call_of("")]}, step=3)
    sent = sent_back(stored(twice), stored(again), stored(empty))
    used = [call["id"] for message in sent for call in message.get("tool_calls", ())]
    answered = [message["tool_call_id"] for message in sent if message["role"] == "tool"]
    assert used == answered == ["c1", "call_1_2", "call_2_1", "call_3_1"]
    assert [call.original_id for reply in (twice, again, empty) for call in reply.calls] == ["c1", "c1", "c1", ""]


def test_malformed_arguments_are_kept_raw_and_sent_in_an_object(model_server: ModelServer) -> None:
    """The record keeps what was said (T01); servers that render arguments for the model fail on broken JSON."""
    reply = answer(model_server, {"tool_calls": [call_of(arguments='{"command": "echo a')]}, "tool_calls")
    assert reply.calls[0].arguments == '{"command": "echo a'
    assert reply.native["message"]["tool_calls"][0]["function"]["arguments"] == '{"command": "echo a'
    sent = sent_back(stored(reply))[1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"malformed_arguments": '{"command": "echo a'}


@pytest.mark.parametrize(
    ("came", "read"), [({"command": "ls"}, '{"command": "ls"}'), ("", "{}"), (" ", "{}"), (None, "{}")]
)
def test_arguments_are_read_as_servers_write_them(model_server: ModelServer, came: Any, read: str) -> None:
    """Some send the object itself, some nothing when there are none."""
    reply = answer(model_server, {"tool_calls": [call_of(arguments=came)]})
    assert reply.calls[0].arguments == read
    assert sent_back(stored(reply))[1]["tool_calls"][0]["function"]["arguments"] == read


def test_arguments_sent_as_a_deep_object_are_text(model_server: ModelServer) -> None:
    """Deeper than a journal could keep, the message goes back as its text and calls say (T01)."""
    nested: Any = {}
    for _ in range(300):
        nested = {"n": nested}
    reply = stored(answer(model_server, {"tool_calls": [call_of(arguments=nested)]}, "tool_calls"))
    assert reply.native is None
    sent = sent_back(reply)[1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"malformed_arguments": reply.calls[0].arguments}


def test_arguments_nested_without_end_are_carried_as_text(model_server: ModelServer) -> None:
    """They run nothing, and do not stop the run (H44)."""
    deep = '{"a":' * 100_000
    reply = answer(model_server, {"tool_calls": [call_of(arguments=deep)]})
    sent = sent_back(stored(reply))[1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"malformed_arguments": deep}


def test_half_a_surrogate_pair_never_reaches_a_request(model_server: ModelServer) -> None:
    """In a reply, in its arguments as JSON text, in a prompt, in a result (T15)."""
    bad = "\ud83d"
    reply = answer(model_server, {"content": bad, "tool_calls": [call_of(arguments='{"command": "\\ud83d"}')]})
    result = ToolResults((ToolResult(reply.calls[0].id, bad, True),))
    body = body_of(UserMessage(bad), AssistantMessage(stored(reply)), result)
    sent = body["messages"][2]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"command": "\ufffd"}
    assert reply.text == "\ufffd"
    assert bad not in json.dumps(body, ensure_ascii=False)


def test_a_name_that_no_server_takes_back_is_sent_as_one_that_they_do(model_server: ModelServer) -> None:
    """T04: a tool that the model made up must not have every later request refused."""
    call = call_of()
    call["function"]["name"] = "multi_tool_use.parallel"
    reply = answer(model_server, {"tool_calls": [call]}, "tool_calls")
    assert reply.calls[0].name == "multi_tool_use.parallel"
    assert sent_back(stored(reply))[1]["tool_calls"][0]["function"]["name"] == "multi_tool_use_parallel"


def test_an_id_that_this_server_made_goes_back_to_it(model_server: ModelServer) -> None:
    """Some servers have dots and colons in theirs, and read them again."""
    reply = answer(model_server, {"tool_calls": [call_of("functions.run:0")]}, "tool_calls")
    assert sent_back(stored(reply))[1]["tool_calls"][0]["id"] == "functions.run:0"


def test_a_call_that_was_never_answered_is_not_sent_back(model_server: ModelServer) -> None:
    """Those of a cut reply never ran; what it said is sent."""
    cut = answer(model_server, {"content": "So", "tool_calls": [call_of()]}, "length")
    assert cut.stop == "length"
    body = body_of(UserMessage("go"), AssistantMessage(cut), UserMessage("You were cut."))
    assert body["messages"][2] == {"role": "assistant", "content": "So"}


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_an_empty_reply_is_not_sent_back(model_server: ModelServer, content: str | None) -> None:
    """A turn that says nothing would be refused, or teach the model to say nothing."""
    assert [message["role"] for message in sent_back(answer(model_server, {"content": content}))] == ["user", "user"]


@pytest.mark.parametrize(
    ("message", "finish", "stop"),
    [
        ({"content": "words"}, "stop", "end"),
        ({"content": "words"}, "length", "length"),
        ({"content": "words"}, "content_filter", "content_filter"),
        ({"refusal": "words"}, "stop", "refusal"),
        ({"content": "words", "tool_calls": [call_of()]}, "stop", "calls"),
        ({"content": "words"}, None, "end"),
    ],
)
def test_finish_reasons_are_mapped(
    model_server: ModelServer, message: dict[str, Any], finish: Any, stop: str
) -> None:
    """Cut, refused and filtered replies are told apart from finished ones; their text is kept (T06, T07)."""
    reply = answer(model_server, message, finish)
    assert (reply.stop, reply.text) == (stop, "words")


def test_usage_takes_the_cached_tokens_out_of_the_prompt(model_server: ModelServer) -> None:
    """Their prompt includes what was cached; ours counts it beside."""
    details = {"cached_tokens": 3, "cache_write_tokens": 2}
    usage = {"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": details}
    reply = answer(model_server, {"content": "hi"}, usage=usage)
    assert reply.usage == Usage(input_tokens=5, cache_read_tokens=3, cache_write_tokens=2, output_tokens=4)


def test_a_reply_without_usage_has_no_known_cost(model_server: ModelServer) -> None:
    """Unknown is unknown, never zero."""
    assert answer(model_server, {"content": "hi"}).cost_microusd is None


def test_a_reply_of_another_model_is_told_in_this_ones_words() -> None:
    """After a change of model its text and calls are sent."""
    call = ToolCall(id="call_1_1", original_id="x", name="run_command", arguments='{"command": "ls"}')
    reply = Reply(text="I try.", calls=(call,), stop="calls", native={"provider": "anthropic", "content": []})
    assert sent_back(reply)[1] == {"role": "assistant", "content": "I try.", "tool_calls": [call_of("x")]}
