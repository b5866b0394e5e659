"""Every request of a conversation, however it went, is what the vendor's SDK says a request must be, and what the
vendor's server would take (T12, T13, T15)."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError
from sdk_types import conforms
from transcripts import Transcript, task

from worker import context
from worker.contract.events import Observation, Observed, Replied, Reply, SnapshotRef, Steered
from worker.meter import RESERVE_TOKENS
from worker.models.anthropic import AnthropicModel
from worker.models.call import Account
from worker.models.openai import OpenAIModel
from worker.models.protocol import ModelRequest
from worker.tools.toolset import Toolset

ODD = [
    "",
    " \n",
    "é\n\u2028x",
    "half \ud83d",
    "\udc80\udc80",
    "\x00\x1b[31m",
    "😀" * 3,
    "{",
    "null",
    "\ufeff",
    "a" * 900,
]
TEXTS = st.sampled_from(ODD) | st.text(st.characters(categories=["L", "Cs", "Cc", "So"]), max_size=20)
IDS = st.sampled_from(["c1", "c1", "", "call_2_1", "functions.run:0", "sp ace", "x" * 65, "\ud83d"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.sampled_from([1e999, -0.0, 1e-9]) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=3)
NAMES = st.sampled_from(
    ["run_command", "no_such_tool", "multi_tool_use.parallel", "run command\u2028", "", "n" * 300]
)
CACHE_MARKS_MAX = 4
TAKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Names of calls that both vendors take back, and ids that Anthropic does."""


class Vendor:
    """One adapter, and the answers of its provider as the SDK's own response types have them."""

    def __init__(self, name: str) -> None:
        self.name = name
        account = Account(name, "a-key", "KEY")
        self.model: AnthropicModel | OpenAIModel = (AnthropicModel if name == "anthropic" else OpenAIModel)(
            f"{name}/m", "m", account
        )

    def sends(self, request: ModelRequest) -> dict[str, Any]:
        """The body, after it was judged."""
        body = self.model.body(request)
        conforms(self.name, body)
        return body

    def turns(self, body: dict[str, Any]) -> Iterator[tuple[list[tuple[str, str]], list[str]]]:
        """Of each message that makes calls their (id, name), and the ids of the results right after it; of another
        one none, and so of results that follow no call."""
        read = _Said.of_anthropic if self.name == "anthropic" else _Said.of_openai
        for before, after in itertools.pairwise([_Said(), *read(body["messages"]), _Said()]):
            yield before.calls, after.results

    def answers(self) -> st.SearchStrategy[dict[str, Any]]:
        return _of_anthropic() if self.name == "anthropic" else _of_openai()


def _of_anthropic() -> st.SearchStrategy[dict[str, Any]]:
    blocks = st.one_of(
        st.builds(lambda text: {"type": "text", "text": text, "citations": None}, TEXTS),
        st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "QUJD+/=="}, TEXTS),
        st.just({"type": "redacted_thinking", "data": "AAA="}),
        st.builds(
            lambda call_id, name, given: {"type": "tool_use", "id": call_id, "name": name, "input": given},
            IDS,
            NAMES,
            OBJECTS,
        ),
    )
    stops = st.sampled_from(["end_turn", "tool_use", "max_tokens"])
    return st.builds(
        lambda content, stop: {"content": content, "stop_reason": stop, "usage": {"input_tokens": 1}},
        st.lists(blocks, max_size=5),
        stops,
    )


def _of_openai() -> st.SearchStrategy[dict[str, Any]]:
    arguments = OBJECTS.map(json.dumps) | st.sampled_from(['{"command": "echo a', "", "[]", '"text"', '{"a": 1e999}'])
    calls = st.builds(
        lambda call_id, name, given: {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": given},
        },
        IDS,
        NAMES,
        arguments | TEXTS,
    )
    messages = st.builds(
        lambda text, called: {
            "role": "assistant",
            "content": text,
            "tool_calls": called or None,
            "refusal": None,
            "annotations": [],
            "audio": None,
            "function_call": None,
        },
        st.none() | TEXTS,
        st.lists(calls, max_size=3),
    )
    return st.builds(
        lambda message, finish: {"choices": [{"message": message, "finish_reason": finish}]},
        messages,
        st.sampled_from(["stop", "tool_calls", "length"]),
    )


@dataclass(frozen=True)
class _Said:
    """What one side said in its turn. calls: (id, name)."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    @classmethod
    def of_anthropic(cls, messages: list[dict[str, Any]]) -> Iterator[_Said]:
        """Results stand before words, and no words are blank: the API refuses anything else."""
        for message in messages:
            kinds = [block["type"] for block in message["content"]]
            assert kinds == sorted(kinds, key=lambda kind: kind != "tool_result")
            assert all(block["text"].strip() for block in message["content"] if block["type"] == "text")
            yield cls(
                [(block["id"], block["name"]) for block in message["content"] if block["type"] == "tool_use"],
                [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"],
            )

    @classmethod
    def of_openai(cls, messages: list[dict[str, Any]]) -> Iterator[_Said]:
        """The results after a message are one turn."""
        for is_result, group in itertools.groupby(messages, key=lambda message: message["role"] == "tool"):
            if is_result:
                yield cls(results=[message["tool_call_id"] for message in group])
                continue
            for message in group:
                assert message["role"] != "assistant" or message.get("content") or message.get("tool_calls")
                calls = message.get("tool_calls", ())
                yield cls([(call["id"], call["function"]["name"]) for call in calls])


class Conversation(Transcript):
    """A run that a provider's raw answers make. Each of its requests is judged before it is answered."""

    def __init__(self, vendor: Vendor) -> None:
        tools = Toolset().specs
        empty = context.Transcript(task(), tools)
        super().__init__(task(context_tokens=RESERVE_TOKENS + empty.tokens + 4_000))
        self.vendor, self.shown = vendor, context.Transcript(self.task, tools)

    def request(self) -> ModelRequest:
        self.shown.follow(self.records())
        return self.shown.request("model")

    def judge(self) -> None:
        """The next request is of the SDK's type, its calls have ids of their own, names that the provider takes and
        their results right after them, and no more is marked for the cache than the provider takes."""
        body = self.vendor.sends(self.request())
        ids: list[str] = []
        for calls, results in self.vendor.turns(body):
            assert [call_id for call_id, _ in calls] == results
            assert all(TAKEN.fullmatch(name) for _, name in calls)
            ids += results
        assert len(set(ids)) == len(ids)
        assert self.vendor.name == "openai" or all(map(TAKEN.fullmatch, ids))
        assert json.dumps(body).count('"cache_control"') <= CACHE_MARKS_MAX

    def answered(self, answer: dict[str, Any], output: str) -> None:
        """The provider's answer is committed, and each of its calls but those of a cut reply gets this output."""
        reply = self.vendor.model._reply(json.loads(json.dumps(answer)), self.request().step)
        self.commit(Replied(step=self.run.steps + 1, phase="model", reply=reply))
        for call in () if reply.stop == "length" else reply.calls:
            seen = Observation(call_id=call.id, tool=call.name, status="ok", exit_code=0, output=output)
            tree = SnapshotRef(listing="a" * 64, tree="a" * 64, object="a" * 64)
            self.commit(Observed(observation=seen, snapshot=tree))

    def summarized(self, words: str) -> None:
        """Room is made by a summary, whose request is judged too."""
        self.request()
        if (wanted := self.shown.summary(0)) is None:
            return
        self.vendor.sends(wanted.request)
        self.commit(self.shown.compacted(wanted, Reply(text=words)))


@pytest.mark.parametrize("name", ["anthropic", "openai"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_request_of_any_conversation_is_what_the_sdk_says(name: str, data: st.DataObject) -> None:
    """Thinking, calls, cut and empty replies, repeated and malformed ids, broken arguments and broken Unicode, what
    people said, pruned results and summaries."""
    vendor = Vendor(name)
    talk = Conversation(vendor)
    talk.judge()
    for act in data.draw(st.lists(st.sampled_from(["answer", "answer", "answer", "say", "sum up"]), max_size=10)):
        match act:
            case "answer":
                talk.answered(data.draw(vendor.answers()), data.draw(TEXTS) * data.draw(st.sampled_from([1, 9])))
            case "say":
                talk.commit(Steered(n=0, kind="message", by="ada", text=data.draw(TEXTS)))
            case _:
                talk.summarized(data.draw(TEXTS))
        talk.judge()


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("anthropic", lambda body: body["messages"][0]["content"][0].update(unknown=1)),
        ("anthropic", lambda body: body["messages"][0]["content"][0]["cache_control"].update(type="long")),
        ("anthropic", lambda body: body["tools"][0].pop("input_schema")),
        ("anthropic", lambda body: body.update(unknown=1)),
        ("openai", lambda body: body["messages"][1].update(unknown=1)),
        ("openai", lambda body: body["messages"][1].update(content=[{"type": "image"}])),
        ("openai", lambda body: body["tools"][0]["function"].update(input_schema={})),
        ("openai", lambda body: body.update(max_output_tokens=1)),
    ],
)
def test_a_key_or_value_that_the_sdk_does_not_name_is_found(
    name: str, spoil: Callable[[dict[str, Any]], None]
) -> None:
    """At any depth: the judge of the test above is not blind."""
    body = json.loads(json.dumps(Vendor(name).sends(Conversation(Vendor(name)).request())))
    spoil(body)
    with pytest.raises((ValidationError, PydanticSerializationError)):
        conforms(name, body)
