"""Both adapters against aimock, a server that somebody else wrote: replies and faults on the wire, and what the loop
makes of them (T01 to T13, T15, T70)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from model_server import Aimock
from proxies import HttpProxy, once
from sdk_types import conforms
from structlog.testing import capture_logs
from transcripts import MemoryHost, in_s, task

from worker.contract.cancel import Cancel
from worker.contract.errors import ProviderFault
from worker.contract.events import Event, Finished, Parked, Replied, Reply
from worker.loop import work
from worker.models.anthropic import AnthropicModel
from worker.models.call import Account
from worker.models.openai import OpenAIModel
from worker.models.protocol import ModelRequest, UserMessage
from worker.tools.toolset import Toolset

PATHS = {"anthropic": "", "openai": "/v1"}
DONE = {"response": {"content": "It is done."}}
CUT = {"chaos": {"disconnectRate": 1}, **DONE}
"""The connection ends before the first byte of the answer."""

pytestmark = pytest.mark.parametrize("provider", ["anthropic", "openai"])


def plain(body: dict[str, Any]) -> dict[str, Any]:
    """Without what compatible servers have of their own and get back as it came."""
    told = [{key: message[key] for key in message if key != "reasoning_content"} for message in body["messages"]]
    return body | {"messages": told}


@dataclass
class Watched:
    """An adapter each of whose requests is of the SDK's type. bodies: what was sent."""

    provider: str
    model: str
    url: str
    bodies: list[dict[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.provider}/{self.model}"

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        kind = AnthropicModel if self.provider == "anthropic" else OpenAIModel
        account = Account(self.provider, "a-key", "KEY", self.url + PATHS[self.provider])
        model = kind(self.name, self.model, account)
        self.bodies.append(model.body(request))
        conforms(self.provider, plain(self.bodies[-1]))
        return model.reply(request, timeout_s=timeout_s, cancel=cancel)


class Told(MemoryHost):
    """A host that says what came of its run."""

    def replies(self) -> list[Reply]:
        return [event.reply for event in self.events() if isinstance(event, Replied)]

    def events(self) -> list[Event]:
        return [record.event for record in self.records()]


def calls(*commands: str, ids: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """An answer that runs these commands."""
    told = [{"name": "run_command", "arguments": {"command": command}} for command in commands]
    for call, call_id in zip(told, ids, strict=False):
        call["id"] = call_id
    return {"response": {"toolCalls": told, **more}}


def says(words: str = "", **more: Any) -> dict[str, Any]:
    return {"response": {"content": words, **more}}


def refuses(status: int, message: str = "no", **more: Any) -> dict[str, Any]:
    return {"response": {"error": {"message": message, "type": "api_error"}, "status": status, **more}}


def played(aimock: Aimock, provider: str, *answers: dict[str, Any], **more: Any) -> tuple[Told, Watched, Any]:
    """A run whose model gives these answers in turn: its host, its model and its outcome."""
    return run(Watched(provider, aimock.plays(*answers, **more), aimock.url))


def run(model: Watched, host: Told | None = None) -> tuple[Told, Watched, Any]:
    host = host or Told(task())
    return host, model, work(host, model, Toolset())


def failure(outcome: object) -> str:
    assert isinstance(outcome, Finished)
    return str(outcome.failure)


def results(heard: dict[str, Any]) -> list[dict[str, Any]]:
    """What a request, as aimock read it, says of calls."""
    return [
        {"id": message["tool_call_id"], **json.loads(message["content"])}
        for message in heard["messages"]
        if message["role"] == "tool"
    ]


def in_90_s() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)


# Faults


@pytest.mark.parametrize(
    ("answer", "reason", "retryable", "retry_after_s"),
    [
        (lambda: refuses(429, retryAfter=3), "unavailable", True, 3.0),
        (lambda: refuses(429, retryAfter=in_90_s()), "unavailable", True, pytest.approx(90, abs=30)),
        (lambda: refuses(500), "unavailable", True, None),
        (lambda: refuses(503), "unavailable", True, None),
        (lambda: refuses(529, "overloaded"), "unavailable", True, None),
        (lambda: refuses(400, "prompt is too long: 201234 tokens > 200000 maximum"), "context", False, None),
        (lambda: refuses(400), "bad_request", False, None),
        (lambda: refuses(401), "auth", False, None),
        (lambda: refuses(404, "no such model"), "bad_request", False, None),
        (lambda: {"chaos": {"malformedRate": 1}, **DONE}, "unavailable", True, None),
        (lambda: {"chaos": {"dropRate": 1}, **DONE}, "unavailable", True, None),
        (lambda: CUT, "connection", True, None),
    ],
    ids=["seconds", "date", "500", "503", "529", "too long", "400", "401", "404", "malformed", "dropped", "cut"],
)
def test_each_fault_of_the_server_is_typed(
    aimock: Aimock, provider: str, answer: Callable[[], Any], reason: str, retryable: bool, retry_after_s: Any
) -> None:
    """Whether trying again helps, and after how long (T09)."""
    model = Watched(provider, aimock.plays(answer()), aimock.url)
    with pytest.raises(ProviderFault) as caught:
        model.reply(ModelRequest("", (UserMessage("hello"),), (), 1, 0), timeout_s=30, cancel=Cancel())
    fault = caught.value
    assert (fault.reason, fault.retryable, fault.retry_after_s) == (reason, retryable, retry_after_s)
    assert fault.cut == (reason == "connection")


# Replies


def test_a_run_goes_through_to_its_end(aimock: Aimock, provider: str) -> None:
    """Words, thinking, a call and its result there and back; the tokens are theirs."""
    usage = {"prompt_tokens": 11, "completion_tokens": 7}
    host, model, outcome = played(
        aimock, provider, calls("ls", content="I look.", reasoning="hm"), says("Done.", usage=usage)
    )
    assert outcome == Finished(text="Done.")
    first, last = host.replies()
    assert (first.text, first.reasoning, first.stop) == ("I look.", "hm", "calls")
    assert (last.usage.input_tokens, last.usage.output_tokens, last.stop) == (11, 7, "end")
    said = aimock.heard(model.model)[1]["messages"][-2]
    assert (said["content"], said["tool_calls"][0]["function"]["name"]) == ("I look.", "run_command")


def test_three_calls_of_one_reply_are_answered_together(aimock: Aimock, provider: str) -> None:
    """T03: three results with the right ids and exit codes, in call order, before anything else is said."""
    host = Told(task(), lambda command: (int(command.split()[-1]), command, "a"))
    name = aimock.plays(calls("echo 0", "exit 7", "again 0", ids=("a", "b", "c")), DONE)
    run(Watched(provider, name, aimock.url), host)
    heard = aimock.heard(name)[1]
    assert [(result["id"], result["exit_code"]) for result in results(heard)] == [("a", 0), ("b", 7), ("c", 0)]
    assert [message["role"] for message in heard["messages"][-4:]] == ["assistant", "tool", "tool", "tool"]


def test_a_tool_that_is_not_offered_is_answered_with_those_that_are(aimock: Aimock, provider: str) -> None:
    """T04: and the run goes on to its end."""
    unknown = {"response": {"toolCalls": [{"name": "generic_command", "arguments": {}}]}}
    host, model, outcome = played(aimock, provider, unknown, calls("ls"), DONE)
    assert outcome == Finished(text="It is done.")
    told = results(aimock.heard(model.model)[1])[0]
    assert told["status"] == "error"
    assert all(spec.name in told["output"] for spec in Toolset().specs)
    assert host.ran == ["ls"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"cmd": "ls"}, ("command", "cmd")),
        ({"command": "ls", "timeout": "30"}, ("timeout",)),
        ({"command": ["ls"]}, ("command", "string")),
    ],
)
def test_wrong_arguments_run_nothing(
    aimock: Aimock, provider: str, arguments: dict[str, Any], named: tuple[str, ...]
) -> None:
    """T05: what is wrong is named, with the schema."""
    wrong = {"response": {"toolCalls": [{"name": "run_command", "arguments": arguments}]}}
    host, model, _ = played(aimock, provider, wrong, DONE)
    told = results(aimock.heard(model.model)[1])[0]["output"]
    assert host.ran == []
    assert all(word in told for word in (*named, '"type": "object"'))


def test_a_cut_reply_runs_nothing_even_if_it_parses(aimock: Aimock, provider: str) -> None:
    """T06: told to send smaller parts; after three in a row the run ends so."""
    write = {"name": "write_file", "arguments": {"path": "f", "content": "half a li"}}
    cut = {"response": {"toolCalls": [write], "finishReason": "length"}}
    host, model, outcome = played(aimock, provider, then=cut)
    assert failure(outcome) == "agent/malformed_calls"
    assert (host.ran, host.run.steps, len(model.bodies)) == ([], 3, 3)
    assert "Send smaller parts" in json.dumps(model.bodies[1])


def test_a_refusal_is_an_outcome_of_its_own(aimock: Aimock, provider: str) -> None:
    """T07: as each vendor says it; its words are kept."""
    stop = {"anthropic": "refusal", "openai": "content_filter"}[provider]
    _, _, outcome = played(aimock, provider, says("I cannot.", finishReason=stop))
    assert (failure(outcome), outcome.text) == (f"refused/{stop}", "I cannot.")


@pytest.mark.parametrize("model", ["blank", "nothing", "thinks-only"])
def test_empty_replies_end_the_run(aimock: Aimock, provider: str, model: str) -> None:
    """T02: whitespace, no words, or thinking alone; nudged at most three times, each paid reply counted."""
    host, watched, outcome = run(Watched(provider, model, aimock.url))
    assert failure(outcome) == "agent/empty_replies"
    assert (len(watched.bodies), host.run.steps, host.run.tokens) == (3, 3, 54)


def test_arguments_that_end_in_the_middle_run_nothing(aimock: Aimock, provider: str) -> None:
    """T01: the tool and the fault are named, the raw text is kept. (In the Messages API arguments are an object, of
    which this server makes an empty one.)"""
    host, _, outcome = run(Watched(provider, "truncated", aimock.url))
    assert outcome == Finished(text="It is done.")
    assert (host.ran, host.run.steps) == (["echo ok"], 3)
    told = results(aimock.heard("truncated")[-1])[0]["output"]
    raw, said = ('{"command": "echo a', "not valid JSON") if provider == "openai" else ("{}", "command")
    assert host.replies()[0].calls[0].arguments == raw
    assert told.startswith("run_command: ")
    assert said in told


def test_a_context_that_is_too_long_ends_after_two_summaries(aimock: Aimock, provider: str) -> None:
    """T08: whatever the size of the request; what was done in step 2 stands in the workspace still."""
    long = "word " * 2_000
    too_long = refuses(400, "prompt is too long: 201234 tokens > 200000 maximum")
    steps = [calls(command, content=long) for command in ("look", "edit", "test", "look again")]
    host, model, outcome = played(aimock, provider, *steps, then=too_long)
    assert failure(outcome) == "limit/context"
    assert host.ran == ["look", "edit", "test", "look again"]
    assert len(model.bodies) == 4 + 1 + 2
    assert host.run.compactions == 0


def test_the_wait_that_was_asked_for_is_kept(aimock: Aimock, provider: str) -> None:
    """T09: two 429 that ask for three seconds, then a reply: three requests and success."""
    host, model, outcome = played(aimock, provider, *[refuses(429, retryAfter=3)] * 2, DONE)
    assert outcome == Finished(text="It is done.")
    assert min(host.cancel.waits_s) >= 3.0
    assert len(model.bodies) == 3


@pytest.mark.parametrize(("after", "wait_s"), [(lambda: 7200, 7200), (in_90_s, 90)], ids=["seconds", "date"])
def test_a_long_quota_frees_the_worker(
    aimock: Aimock, provider: str, after: Callable[[], Any], wait_s: float
) -> None:
    """T09: more than a minute parks the run until then, after one request."""
    host, model, outcome = played(aimock, provider, refuses(429, retryAfter=after()), DONE)
    assert isinstance(outcome, Parked)
    assert outcome.waiting == "provider"
    assert in_s(wait_s - 30) < str(outcome.until) <= in_s(wait_s)
    assert (len(model.bodies), host.cancel.waits_s) == (1, [])


def test_an_overload_is_waited_out_and_nothing_is_paid_twice(aimock: Aimock, provider: str) -> None:
    """T10: 529 from step 6 on for longer than the short patience; the run parks, and goes on at step 6."""
    steps = [calls(f"step {n}") for n in range(1, 6)]
    host, model, outcome = played(aimock, provider, *steps, *[refuses(529, "overloaded")] * 4, DONE)
    assert isinstance(outcome, Parked)
    assert (host.run.status, host.run.steps, len(model.bodies)) == ("waiting", 5, 9)
    assert run(model, host)[2] == Finished(text="It is done.")
    assert host.ran == [f"step {n}" for n in range(1, 6)]
    assert (host.run.steps, len(model.bodies)) == (6, 10)


def test_a_reply_that_is_cut_runs_once_when_it_comes_whole(aimock: Aimock, provider: str) -> None:
    """T11: without one byte, and in the middle of a call's arguments; one turn in the record, one effect."""
    write = calls("write " + "x" * 4_000)
    with capture_logs() as logged:
        host, model, outcome = played(aimock, provider, CUT, write, CUT, DONE)
    assert outcome == Finished(text="It is done.")
    assert (len(host.ran), host.run.steps, len(model.bodies)) == (1, 2, 4)
    assert [line["event"] for line in logged] == ["model_tried_again"] * 2
    with HttpProxy(aimock.url) as proxy:
        proxy.cut = once(2_000, lambda method, path: True)
        host, model, outcome = run(Watched(provider, aimock.plays(write, write, DONE), proxy.url))
    assert outcome == Finished(text="It is done.")
    assert (len(host.ran), len(host.ran[0]), host.run.steps, len(model.bodies)) == (1, 4_006, 2, 3)


def test_three_cuts_of_one_reply_end_the_run(aimock: Aimock, provider: str) -> None:
    """T11: then it is the request that breaks them."""
    host, model, outcome = played(aimock, provider, calls("ls"), then=CUT)
    assert failure(outcome) == "provider/connection"
    assert (len(model.bodies), host.ran) == (4, ["ls"])


def test_thinking_is_sent_back_as_it_came(aimock: Aimock, provider: str) -> None:
    """T12: through the journal and another attempt, text, signature and order are the same."""
    thinks = calls("ls", reasoning="é\n\u2028x", reasoningSignature="QUJD+/==")
    host, model, _ = played(aimock, provider, thinks, *[refuses(529)] * 4, DONE)
    assert host.run.status == "waiting"
    run(model, host)
    turn = next(message for message in model.bodies[-1]["messages"] if message["role"] == "assistant")
    if provider == "anthropic":
        first, second = turn["content"]
        assert first == {"type": "thinking", "thinking": "é\n\u2028x", "signature": "QUJD+/=="}
        assert second["type"] == "tool_use"
    else:
        assert turn["reasoning_content"] == "é\n\u2028x"


def test_repeated_and_missing_ids_are_sent_unique(aimock: Aimock, provider: str) -> None:
    """T13: c1 twice in one reply, c1 again; each call ran once, and each result has its own call."""
    host, model, outcome = played(aimock, provider, calls("a", "b", ids=("c1", "c1")), calls("c", ids=("c1",)), DONE)
    assert outcome == Finished(text="It is done.")
    assert host.ran == ["a", "b", "c"]
    heard = aimock.heard(model.model)[-1]["messages"]
    sent = [call["id"] for message in heard for call in message.get("tool_calls") or ()]
    assert sent == [message["tool_call_id"] for message in heard if message["role"] == "tool"]
    assert len(set(sent)) == 3
    assert [call.original_id for reply in host.replies() for call in reply.calls] == ["c1", "c1", "c1"]


def test_half_an_emoji_stops_nothing(aimock: Aimock, provider: str) -> None:
    """T15: alone in the words and in the arguments of a reply; every request after it is valid UTF-8. (In a chat
    completion the arguments are text, which no JSON parser takes: that is told.)"""
    half = "\ud83d"
    host, model, outcome = played(aimock, provider, calls(f"echo {half}", content=half), DONE)
    assert outcome == Finished(text="It is done.")
    assert host.ran == (["echo \ufffd"] if provider == "anthropic" else [])
    assert host.replies()[0].text == "\ufffd"
    assert len(aimock.heard(model.model)) == 2


def test_a_model_without_a_price_is_asked_once_and_costs_nobody_knows_what(aimock: Aimock, provider: str) -> None:
    """T70: the tokens are kept, the cost is unknown and not 0."""
    usage = {"prompt_tokens": 11, "completion_tokens": 7}
    host, model, outcome = played(aimock, provider, says("It is done.", usage=usage))
    assert outcome == Finished(text="It is done.")
    assert (len(model.bodies), host.run.tokens, host.run.cost_known) == (1, 18, False)
