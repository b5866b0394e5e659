"""The loop with a host in memory and models written out: what it commits, in which order, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from transcripts import MemoryHost, body, in_s, shell, task

from worker import meter
from worker.contract.cancel import Cancel
from worker.contract.errors import EngineFault, FencedFault, InvalidFault, PacedFault, ProviderFault, StoreFault
from worker.contract.events import (
    Asked,
    Compacted,
    Decided,
    Event,
    FedBack,
    Finished,
    Observation,
    Observed,
    Parked,
    Replied,
    Reply,
    Steered,
    ToolCall,
    Unrecorded,
    Usage,
    canonical,
    digest,
)
from worker.loop import Stopped, work
from worker.meter import RESERVE_TOKENS
from worker.models.protocol import ModelRequest, ToolResults, UserMessage
from worker.tools.toolset import Toolset


class Told(MemoryHost):
    """A host that says what it was told."""

    def events(self, kind: type[Event]) -> list[Any]:
        return [record.event for record in self.records() if isinstance(record.event, kind)]

    def told(self) -> list[tuple[str, int | None, str]]:
        seen = [event.observation for event in self.events(Observed)]
        return [(observation.status, observation.exit_code, observation.output) for observation in seen]


class Says:
    """A model that answers from a list; the last answer again when the list is used up."""

    name = "test"

    def __init__(self, *answers: Reply | Exception | Callable[[ModelRequest], Reply]) -> None:
        self._answers = list(answers)
        self.asked: list[ModelRequest] = []
        self.timeouts_s: list[float] = []

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        self.asked.append(request)
        self.timeouts_s.append(timeout_s)
        answer = self._answers[min(len(self.asked), len(self._answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Reply) else answer(request)


def runs(*commands: str, **fields: Any) -> Callable[[ModelRequest], Reply]:
    """A reply with a run_command call for each command."""
    return lambda request: Reply(
        calls=tuple(shell(command, request.step, n) for n, command in enumerate(commands, 1)), stop="calls", **fields
    )


def calls(name: str, arguments: str, **fields: Any) -> Callable[[ModelRequest], Reply]:
    """A reply with one call as given."""
    return lambda request: Reply(
        calls=(ToolCall(id=f"call_{request.step}_1", name=name, arguments=arguments),), **({"stop": "calls"} | fields)
    )


DONE = Reply(text="It is done.")


def last_results(request: ModelRequest) -> list[dict[str, Any]]:
    results = [message for message in request.messages if isinstance(message, ToolResults)][-1]
    return [json.loads(result.content) for result in results.results]


def failure(outcome: object) -> str:
    assert isinstance(outcome, Finished)
    return str(outcome.failure)


# How a run goes


def test_a_run_ends_with_the_words_of_a_reply_without_calls() -> None:
    """Reply and end are one append: no crash can fall between them."""
    host = Told(task())
    assert work(host, Says(runs("ls"), DONE), Toolset()) == Finished(text="It is done.")
    assert [type(record.event) for record in host.segments[-1]] == [Replied, Finished]
    assert (host.run.steps, host.run.turn) == (2, "verdict")


def test_several_calls_run_in_order_and_answer_in_one_message() -> None:
    """T03: three results with the right ids and exit codes, all in the one following message."""
    host = Told(task(), lambda command: (int(command.split()[-1]), command, "a"))
    model = Says(runs("echo 0", "exit 7", "again 0"), DONE)
    work(host, model, Toolset())
    results = last_results(model.asked[1])
    assert [result["tool_call_id"] for result in results] == ["call_1_1", "call_1_2", "call_1_3"]
    assert [result["exit_code"] for result in results] == [0, 7, 0]
    assert host.ran == ["echo 0", "exit 7", "again 0"]


def test_a_reply_is_committed_before_its_calls_run() -> None:
    """Money spent is on record before anything happens because of it."""
    host = Told(task())
    seen: list[int] = []
    host.shell = lambda _: (seen.append(host.run.steps) or 0, "", "a")
    work(host, Says(runs("ls"), DONE), Toolset())
    assert seen == [1]


@pytest.mark.parametrize("kept", range(3, 8))
def test_a_takeover_at_any_commit_ends_the_same(kept: int) -> None:
    """After every commit another attempt goes on: no call runs twice, the transcript is the same."""

    def answer(request: ModelRequest) -> Reply:
        return (runs("a", "b")(request), runs("c")(request), DONE)[request.reply_index]

    whole = Told(task())
    work(whole, Says(answer), Toolset())
    host = Told(task())
    for segment in whole.segments[3:kept]:
        host.commit(*(record.event for record in segment))
    before = [event.observation.call_id for event in host.events(Observed)]
    work(host, Says(answer), Toolset())
    assert [record.event for record in host.records()] == [record.event for record in whole.records()]
    assert len(before) + len(host.ran) == 3


def test_after_feedback_the_model_has_the_turn_again() -> None:
    """Red checks are read by the model and answered."""
    host = Told(task())
    model = Says(DONE, Reply(text="Now it is."))
    work(host, model, Toolset())
    host.commit(FedBack(text="tests: red"))
    assert work(host, model, Toolset()) == Finished(text="Now it is.")
    assert model.asked[1].messages[-1] == UserMessage("tests: red")


def test_commands_run_as_steps_of_their_own_and_decide_nothing() -> None:
    """A failing command is an observation; the next one runs; afterwards nothing is decided."""
    host = Told(task(("fix", "format")), lambda command: (int(command == "fix"), "", "a"))
    model = Says(runs("fix"), runs("format"))
    assert work(host, model, Toolset(), phase="commands") is None
    assert (host.ran, host.run.command_steps, host.run.finished) == (["fix", "format"], 2, None)
    after = Says(DONE)
    assert work(host, after, Toolset()) == Finished(text="It is done.")
    assert (after.asked[0].step, after.asked[0].reply_index) == (3, 0)


def test_commands_are_not_bound_by_a_models_context() -> None:
    """Large outputs of many commands neither end the commands nor flood the model that comes after them."""
    numbers = iter(range(30))
    host = Told(task(("fix",) * 30, context_tokens=100_000), lambda _: (0, "x" * 50_000 + str(next(numbers)), "a"))
    assert work(host, Says(runs("fix")), Toolset(), phase="commands") is None
    assert work(host, Says(DONE), Toolset()) == Finished(text="It is done.")


# What a model does wrong


def test_broken_json_runs_nothing_and_names_the_fault() -> None:
    """T01: the tool and the JSON fault are named, raw arguments are kept, the run ends normally in three steps."""
    raw = '{"command": "echo a'
    host = Told(task())
    outcome = work(host, Says(calls("run_command", raw), runs("echo ok"), DONE), Toolset())
    assert outcome == Finished(text="It is done.")
    assert host.ran == ["echo ok"]
    assert host.told()[0][2].startswith("run_command: the arguments are not valid JSON")
    assert host.events(Replied)[0].reply.calls[0].arguments == raw
    assert host.run.steps == 3


@pytest.mark.parametrize("empty", [Reply(), Reply(text=" \n"), Reply(reasoning="hm"), Reply(stop="calls")])
def test_empty_replies_are_nudged_and_end_the_run(empty: Reply) -> None:
    """T02: at most three nudges, then a failure that says so; every paid reply is counted."""
    model = Says(runs("echo x"), empty)
    host = Told(task())
    assert failure(work(host, model, Toolset())) == "agent/empty_replies"
    assert len(model.asked) == host.run.steps == 4
    assert "Your last reply was empty" in model.asked[-1].messages[-1].text


def test_an_unknown_tool_is_answered_with_the_list_of_tools() -> None:
    """T04, H44: the valid names come back, and the run goes on to its end."""
    host = Told(task())
    assert work(host, Says(calls("generic_command", "{}"), runs("ls"), DONE), Toolset()) == Finished(
        text="It is done."
    )
    assert all(spec.name in host.told()[0][2] for spec in Toolset().specs)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ('{"cmd":"ls"}', ["command", "cmd", '"type": "object"']),
        ('{"command":"ls","timeout":"30"}', ["timeout"]),
        ('{"command":"ls","timeout_s":"30"}', ["timeout_s", "integer"]),
        ('{"command":["ls"]}', ["command", "string"]),
    ],
)
def test_wrong_arguments_are_explained_and_never_run(arguments: str, named: Sequence[str]) -> None:
    """T05: every fault with its path and the schema; nothing runs with a substituted default."""
    host = Told(task())
    work(host, Says(calls("run_command", arguments), DONE), Toolset())
    assert host.ran == []
    assert all(word in host.told()[0][2] for word in named)


def test_a_cut_reply_is_not_executed_even_if_it_parses() -> None:
    """T06: the model is told to send smaller parts; after three in a row the run ends with that reason."""
    cut = calls("write_file", '{"path": "f", "content": "half a li"}', stop="length")
    model = Says(cut)
    host = Told(task())
    assert failure(work(host, model, Toolset())) == "agent/malformed_calls"
    assert (host.ran, host.run.steps) == ([], 3)
    assert "Send smaller parts" in last_results(model.asked[1])[0]["output"]


def test_cut_replies_in_between_do_not_add_up() -> None:
    """Only replies in a row count: good ones start the count again."""
    cut = Reply(text="so lo", stop="length")
    assert work(Told(task()), Says(cut, cut, runs("ls"), cut, cut, DONE), Toolset()) == Finished(text=DONE.text)


@pytest.mark.parametrize("kinds", ["em", "ec", "ecm"])
def test_bad_replies_of_different_kinds_in_turns_end_the_run(kinds: str) -> None:
    """T02, T06: empty, cut and malformed ones between each other: no good one came, so each kind counts on."""
    bad = {"e": Reply(), "c": Reply(text="so lo", stop="length"), "m": calls("nope", "{}")}
    model = Says(*[bad[kind] for kind in kinds] * 10)
    assert failure(work(Told(task()), model, Toolset())).startswith("agent/")
    assert len(model.asked) <= 7


def test_a_good_call_begins_the_count_of_bad_replies_anew() -> None:
    """Two empty ones, a call, two more: no three in a row."""
    model = Says(Reply(), Reply(), runs("ls"), Reply(), Reply(), DONE)
    assert work(Told(task()), model, Toolset()) == Finished(text=DONE.text)


def test_calls_that_never_parse_end_the_run() -> None:
    """Three replies in a row without one valid call."""
    assert failure(work(Told(task()), Says(calls("nope", "{}")), Toolset())) == "agent/malformed_calls"


@pytest.mark.parametrize("stop", ["refusal", "content_filter"])
def test_a_refusal_ends_the_run_with_its_text(stop: Any) -> None:
    """T07: refused, with the words kept."""
    outcome = work(Told(task()), Says(Reply(text="I cannot.", stop=stop)), Toolset())
    assert failure(outcome) == f"refused/{stop}"
    assert isinstance(outcome, Finished)
    assert outcome.text == "I cannot."


def test_half_a_surrogate_pair_never_reaches_a_request() -> None:
    """T15: a reply with a lone surrogate is told so, every later request encodes, the journal reads back."""
    host = Told(task())
    bad = calls("write_file", '{"path": "f", "content": "\ud83d"}', text="\ud83d", native={"x": ["\ud83d"]})
    model = Says(bad, calls("write_file", r'{"path": "f", "content": "\ud83d"}'), DONE)
    assert work(host, model, Toolset()) == Finished(text="It is done.")
    assert host.ran == []
    for request in model.asked:
        assert body(request.messages).encode()


def test_huge_arguments_are_refused_and_not_sent_again() -> None:
    """H44: 50 MB of arguments are an error text, and the next request stays small."""
    host = Told(task())
    huge = '{"path": "f", "content": "' + "x" * 50_000_000 + '"}'
    model = Says(calls("write_file", huge), DONE)
    assert work(host, model, Toolset()) == Finished(text="It is done.")
    assert "47.7 MiB, more than 4 MiB" in host.told()[0][2]
    assert len(body(model.asked[1].messages)) < 10_000


def test_a_hundred_calls_in_one_reply_all_run() -> None:
    """H44: they run one after the other, each committed."""
    host = Told(task())
    work(host, Says(runs(*(f"echo {n}" for n in range(100))), DONE), Toolset())
    assert len(host.ran) == len(host.told()) == 100


# Shown ahead of its commit


def not_kept(observed: Observed) -> Observed:
    """What is committed when the workspace could not keep a call."""
    seen = observed.observation.model_copy(update={"status": "error", "exit_code": 1, "output": "rolled back"})
    return Observed(observation=seen)


PAID = {"usage": Usage(input_tokens=30, output_tokens=4), "cost_microusd": 9}


def test_the_model_is_shown_a_call_before_its_commit() -> None:
    """While it thinks, the journal ends with its own reply; its next one comes after the observation."""
    host = Told(task())
    journal: list[int] = []

    def looks(request: ModelRequest) -> Reply:
        journal.append(len(host.segments))
        assert last_results(request)[0]["output"] == "made"
        return DONE

    host.shell = lambda _: (0, "made", "a")
    work(host, Says(runs("make"), looks), Toolset())
    assert journal == [4]
    assert [segment[0].event.type for segment in host.segments[3:]] == ["replied", "observed", "replied"]


def test_each_call_of_a_reply_waits_for_the_commit_before_it() -> None:
    """Of several calls only the last is shown ahead."""
    host = Told(task())
    committed: list[int] = []
    host.shell = lambda _: (committed.append(len(host.segments)) or 0, "", "a")
    work(host, Says(runs("one", "two", "three"), DONE), Toolset())
    assert committed == [4, 5, 6]


def test_a_reply_to_what_was_not_committed_is_dropped() -> None:
    """Its cost is on record, and the model is asked again about what was committed; no other reply is lost."""
    host = Told(task(), lambda _: (0, "made", "a"))
    host.keep = not_kept
    model = Says(runs("make"), Reply(text="It is made.", **PAID), Reply(text="It is not."))
    assert work(host, model, Toolset()) == Finished(text="It is not.")
    committed = [segment[0].event.type for segment in host.segments[3:]]
    assert committed == ["replied", "observed", "unrecorded", "replied"]
    assert host.events(Unrecorded)[0].cost_microusd == 9
    assert host.events(Unrecorded)[0].tokens == 34
    outputs = [last_results(request)[0]["output"] for request in model.asked[1:]]
    assert outputs == ["made", "rolled back"]
    assert (model.asked[1].step, model.asked[1].reply_index) == (model.asked[2].step, model.asked[2].reply_index)


def test_a_providers_refusal_of_what_was_not_committed_decides_nothing() -> None:
    """The request is gone with what it showed, so is the failure."""
    host = Told(task())
    host.keep = not_kept
    model = Says(runs("make"), ProviderFault("bad_request", "too strange"), DONE)
    assert work(host, model, Toolset()) == Finished(text=DONE.text)


def test_a_stop_is_judged_on_what_was_committed() -> None:
    """Eight failures in a row were shown; what the last one became is counted, not what it seemed to be."""
    numbers = iter(range(100))
    host = Told(task(), lambda _: (1, f"error {next(numbers)}", "a"))

    def kept(observed: Observed) -> Observed:
        ok = observed.observation.model_copy(update={"status": "ok", "exit_code": 0})
        return observed if len(host.ran) < 8 else observed.model_copy(update={"observation": ok})

    host.keep = kept
    assert work(host, Says(*[runs("make")] * 8, DONE), Toolset()) == Finished(text=DONE.text)


def test_a_report_names_the_files_of_a_call_that_was_just_shown() -> None:
    """The files come with the snapshot: the report waits for it."""
    host = Told(task(steps=1))
    host.keep = lambda observed: observed.model_copy(update={"files": ("made.py",)})
    outcome = work(host, Says(runs("make")), Toolset())
    assert isinstance(outcome, Finished)
    assert "- made.py" in outcome.text


def test_commands_end_with_all_committed() -> None:
    """What comes after them starts from the journal."""
    host = Told(task(("fix",)))
    assert work(host, Says(runs("fix")), Toolset(), phase="commands") is None
    assert isinstance(host.segments[-1][0].event, Observed)


@pytest.mark.parametrize(("fault", "paid"), [(EngineFault, 9), (RuntimeError, 9), (FencedFault, 0), (StoreFault, 0)])
def test_a_fault_behind_the_models_back_comes_out_after_its_reply(fault: type[Exception], paid: int) -> None:
    """The paid reply is on record where the journal is still ours, and the call is pending again."""
    host = Told(task())

    def breaks(observed: Observed) -> Observed:
        raise fault("broken")

    host.keep = breaks
    with pytest.raises(fault):
        work(host, Says(runs("make", cost_microusd=0), Reply(text="It is made.", **PAID)), Toolset())
    assert (host.run.cost_microusd, len(host.run.pending), host.told()) == (paid, 1, [])


def test_a_question_is_bound_to_the_committed_workspace() -> None:
    """A person approves an act on the workspace as it was kept, not as it was a call before."""
    trees = iter("ab")
    host = Told(task(), lambda _: (0, "", next(trees)))
    work(host, Says(runs("one"), runs("two", "terraform destroy")), Toolset())
    asked = host.events(Asked)[0]
    call = ToolCall(id="call_2_2", name="run_command", arguments='{"command": "terraform destroy"}')
    assert asked.binding == digest(canonical([call.name, call.arguments, "b" * 64]))


# Limits


def test_the_same_call_with_the_same_result_is_warned_of_and_stopped() -> None:
    """T14, part a: told at 3, 5 and 8, stopped at 10 as a loop."""
    host = Told(task(), lambda _: (0, "a.py", "a"))
    model = Says(runs("ls"))
    assert failure(work(host, model, Toolset())) == "agent/loop"
    told = [n for n, request in enumerate(model.asked) if "same call" in getattr(request.messages[-1], "text", "")]
    # The first call ran before there was any snapshot, on a tree that nobody had looked at yet.
    assert told == [4, 6, 9]
    assert len(host.ran) == 11


def test_polling_with_new_output_is_progress() -> None:
    """T14, part b: twelve times the same call with something new each time."""
    lines = iter(range(12))
    host = Told(task(), lambda _: (0, f"line {next(lines)}", "a"))
    assert work(host, Says(*[runs("tail -1 build.log")] * 12, DONE), Toolset()) == Finished(text="It is done.")


def test_the_same_call_after_an_edit_is_legitimate() -> None:
    """The same failing test on twelve different trees is no loop."""
    trees = iter("abcdef0123456789abcdef0123456789")
    host = Told(task(), lambda command: (0, "1 failed", next(trees)))
    assert work(host, Says(*[runs("pytest")] * 12, DONE), Toolset()) == Finished(text="It is done.")


def test_two_fixes_that_take_turns_are_warned_of_and_stopped() -> None:
    """Trees A, B, A, B, with a test between them that says something new each time: told at 3, 5 and 8 changes, one
    reply after the change, stopped at 10 as a loop."""
    numbers = iter(range(100))
    tree = ["start"]

    def shell(command: str) -> tuple[int, str, str]:
        if command != "test":
            tree[0] = command[-1]
        return 0, f"failed in 0.{next(numbers)} s", tree[0]

    host = Told(task(), shell)
    commands = [command for n in range(20) for command in (f"fix {n} {'ab'[n % 2]}", "test")]
    model = Says(*(runs(command) for command in commands))
    assert failure(work(host, model, Toolset())) == "agent/loop"
    assert "back and forth" in str(host.run.finished)
    told = [
        n for n, request in enumerate(model.asked) if "back and forth" in getattr(request.messages[-1], "text", "")
    ]
    # fix 3 is the third change between a and b (fix 0 came from the start): request 6 made it, 7 tested, 8 is told.
    assert told == [8, 12, 18]
    assert [command for command in host.ran if command != "test"][-1] == "fix 10 a"


def test_failing_calls_in_a_row_are_warned_of_and_stopped() -> None:
    """Told at five, stopped at eight."""
    numbers = iter(range(100))
    host = Told(task(), lambda _: (1, f"error {next(numbers)}", "a"))
    model = Says(runs("make"))
    assert failure(work(host, model, Toolset())) == "agent/failing_calls"
    assert len(host.ran) == 8
    assert "last 5 calls in a row failed" in model.asked[5].messages[-1].text


def test_calls_of_the_last_step_still_run() -> None:
    """The limit of steps is the model's: what it asked for in its last step happens, then there is a report."""
    host = Told(task(steps=2), lambda command: (1, "AssertionError: 15 != 40", "a"))
    outcome = work(host, Says(runs("one"), runs("two"), DONE), Toolset())
    assert failure(outcome) == "limit/steps"
    assert host.ran == ["one", "two"]
    assert isinstance(outcome, Finished)
    assert "15 != 40" in outcome.text


@pytest.mark.parametrize(
    ("limits", "reply", "reason"),
    [
        ({"tokens": 100}, {"usage": Usage(input_tokens=90, output_tokens=20)}, "tokens"),
        ({"cost_usd": 0.5}, {"cost_microusd": 600_000}, "cost"),
        ({"context_tokens": 22_000}, {"text": "x" * 20_000}, "context"),
    ],
)
def test_a_used_up_limit_ends_the_run(limits: dict[str, Any], reply: dict[str, Any], reason: str) -> None:
    """Tokens, money and context, after the calls that were paid for have run."""
    host = Told(task(**limits))
    assert failure(work(host, Says(runs("ls", **reply)), Toolset())) == f"limit/{reason}"
    assert host.ran == ["ls"]


def test_working_time_ends_the_run_between_calls() -> None:
    """A call that used up the time is committed, the next one does not start."""
    host = Told(task())

    def slow(command: str) -> tuple[int, str, str]:
        host.now_s += 2_000
        return 0, "", "a"

    host.shell = slow
    model = Says(runs("one", "two", "three"))
    assert failure(work(host, model, Toolset())) == "limit/wall"
    assert host.ran == ["one", "two"]
    assert model.timeouts_s == [300]


def test_a_model_call_gets_no_more_than_the_time_left() -> None:
    """A hanging provider cannot outlive the run's working time."""
    host = Told(task())
    host.now_s = 2_690
    model = Says(DONE)
    work(host, model, Toolset())
    assert model.timeouts_s == [10]


# Room


NOTES = Reply(text="Notes.", usage=Usage(input_tokens=1_000, output_tokens=10), cost_microusd=500)
SAID = "word " * 2_000
"""About 2,900 tokens."""


def full(steps: int, output: str = "", **limits: Any) -> Told:
    """A host whose run has said SAID at each of so many steps; with more than twelve there is no room left. output:
    of the first step."""
    host = Told(task(**{"context_tokens": RESERVE_TOKENS + 40_000} | limits))
    for n in range(1, steps + 1):
        call = shell(f"look {n}", n)
        host.reply(call, text=SAID, cost_microusd=0)
        seen = Observation(call_id=call.id, tool="run_command", status="ok", exit_code=0, output=output)
        host.commit(Observed(observation=seen))
        output = ""
    return host


def kinds(host: Told) -> list[str]:
    return [record.event.type for record in host.records()[3:]]


def test_a_full_context_is_summarized_before_the_next_reply() -> None:
    """Asked for once, committed with its cost, no step of its own; the reply after it sees the notes."""
    host = full(14)
    model = Says(NOTES, runs("ls"), DONE)
    assert work(host, model, Toolset()) == Finished(text=DONE.text)
    assert [request.purpose for request in model.asked] == ["summary", "reply", "reply"]
    assert kinds(host)[28:30] == ["compacted", "replied"]
    assert "Notes." in body(model.asked[1].messages)
    assert len(body(model.asked[1].messages)) < len(SAID) * 8
    assert (model.asked[1].step, model.asked[1].reply_index) == (15, 14)
    assert (host.run.steps, host.run.cost_microusd, host.run.tokens) == (16, 500, 1_010)


def test_a_takeover_after_a_summary_asks_the_same() -> None:
    """What the next request shows is in the journal; nobody pays for the summary twice."""
    host = full(14)
    model = Says(NOTES, runs("ls"), DONE)
    work(host, model, Toolset())
    other = full(14)
    other.commit(next(event for event in host.events(Compacted)))
    again = Says(runs("ls"), DONE)
    work(other, again, Toolset())
    assert again.asked == model.asked[1:]


def test_a_summary_that_shrinks_nothing_is_tried_once_more() -> None:
    """Both are paid for and on record; then the run ends for want of room."""
    host = full(16)
    model = Says(Reply(text="", cost_microusd=300))
    assert failure(work(host, model, Toolset())) == "limit/context"
    assert [request.purpose for request in model.asked] == ["summary", "summary"]
    assert [event.summary for event in host.events(Compacted)] == ["", ""]
    assert host.run.cost_microusd == 600


def test_where_there_is_still_room_a_useless_summary_stops_nobody() -> None:
    """It is asked for ahead of the end of the room, so the run goes on without."""
    host = full(10, output="x" * 40_000)  # which is pruned, and leaves little
    model = Says(Reply(text=""), DONE)
    assert work(host, model, Toolset()) == Finished(text=DONE.text)
    assert [request.purpose for request in model.asked] == ["summary", "reply"]


def test_where_nothing_can_give_way_the_run_goes_on_while_there_is_room() -> None:
    """One step said nearly all that the context holds, and its output is pruned: there is no older part."""
    host = Told(task(context_tokens=RESERVE_TOKENS + 40_000))
    call = shell("look", 1)
    host.reply(call, text=SAID * 12)
    seen = Observation(call_id=call.id, tool="run_command", status="ok", exit_code=0, output="x" * 50_000)
    host.commit(Observed(observation=seen))
    model = Says(DONE)
    assert work(host, model, Toolset()) == Finished(text=DONE.text)
    assert "left out" in body(model.asked[0].messages)
    assert [request.purpose for request in model.asked] == ["reply"]


def test_the_price_of_a_summary_counts_against_the_budget() -> None:
    """The meter looks before the next reply."""
    host = full(14, cost_usd=0.0005)
    model = Says(NOTES, DONE)
    assert failure(work(host, model, Toolset())) == "limit/cost"
    assert len(model.asked) == 1


def test_a_provider_that_finds_everything_too_long_is_left_after_two_summaries() -> None:
    """T08: every request after step 4 is refused, whatever its size; the edit of step 2 is in the workspace still."""
    host = Told(task(), lambda command: (0, "", "b" if command == "edit" else "a"))
    too_long = ProviderFault("context", "prompt is too long")
    model = Says(runs("one", text=SAID), runs("edit", text=SAID), runs("three", text=SAID), runs("four"), too_long)
    outcome = work(host, model, Toolset())
    assert failure(outcome) == "limit/context"
    assert [request.purpose for request in model.asked[4:]] == ["reply", "summary", "summary"]
    first, second = (len(body(request.messages)) for request in model.asked[5:])
    assert second < first
    assert "edit" in host.ran


def test_a_provider_with_a_smaller_context_than_thought_is_met_by_a_summary() -> None:
    """The next request is short enough, and the run goes on."""

    def small(request: ModelRequest) -> Reply:
        if request.purpose == "summary":
            return NOTES
        if len(body(request.messages)) > len(SAID) * 5:
            raise ProviderFault("context", "maximum context length is 8192 tokens")
        return runs(f"look {request.step}", text=SAID)(request) if request.step < 12 else DONE

    host = Told(task())
    assert work(host, Says(small), Toolset()) == Finished(text=DONE.text)
    assert host.run.compactions >= 2


def test_a_fault_of_the_provider_while_it_summarizes_is_its_fault() -> None:
    """A summary is asked for like a reply: tried again, then the class of the run's end."""
    host = full(14)
    assert failure(work(host, Says(ProviderFault("auth", "no key")), Toolset())) == "provider/auth"
    busy = ProviderFault("unavailable", "busy", retryable=True)
    host = full(14)
    assert work(host, Says(busy, NOTES, DONE), Toolset()) == Finished(text=DONE.text)


def test_a_cancel_while_a_summary_is_made_commits_nothing() -> None:
    """As with a reply."""
    host = full(14)

    def cancelled(request: ModelRequest) -> Reply:
        host.cancel.set("cancel")
        raise ProviderFault("connection", "stopped")

    assert work(host, Says(cancelled), Toolset()) == Stopped("cancel")
    assert host.events(Compacted) == []


def test_no_summary_is_paid_for_what_was_not_committed() -> None:
    """The output that filled the context was rolled back with its call: there is room again."""
    host = full(12)
    host.shell = lambda _: (0, "x" * 40_000, "a")
    host.keep = not_kept
    model = Says(runs("make", text=SAID), DONE)
    assert work(host, model, Toolset()) == Finished(text=DONE.text)
    assert [request.purpose for request in model.asked] == ["reply", "reply"]


# Providers


def test_a_short_trouble_of_the_provider_is_waited_out() -> None:
    """Retryable faults are tried again, no earlier than the provider asked for."""
    busy = ProviderFault("unavailable", "busy", retryable=True, retry_after_s=3)
    host = Told(task())
    assert work(host, Says(busy, busy, DONE), Toolset()) == Finished(text="It is done.")
    assert host.cancel.waits_s == [3, 4]
    assert host.run.steps == 1


def test_a_reply_that_was_cut_runs_once_when_it_comes_whole() -> None:
    """T11: one turn in the record, one effect."""
    cut = ProviderFault("connection", "ended", retryable=True, cut=True)
    host = Told(task())
    assert work(host, Says(cut, cut, runs("write"), cut, DONE), Toolset()) == Finished(text=DONE.text)
    assert (host.ran, host.run.steps, len(host.events(Replied))) == (["write"], 2, 2)


def test_words_that_come_while_the_provider_is_waited_for_are_in_the_next_request() -> None:
    """And so is a pause, a lost lease, or the end of the working time: each try begins like a step."""
    host = Told(task())

    def busy(request: ModelRequest) -> Reply:
        host.mail.append(Steered(n=0, kind="message", by="ada", text="Use pathlib."))
        raise ProviderFault("unavailable", "busy", retryable=True)

    model = Says(busy, DONE)
    assert work(host, model, Toolset()) == Finished(text=DONE.text)
    assert "Use pathlib." in body(model.asked[1].messages)


@pytest.mark.parametrize(
    ("fault", "tries", "said"),
    [
        (ProviderFault("auth", "no key"), 1, "provider/auth"),
        (ProviderFault("bad_request", "no such model"), 1, "provider/bad_request"),
        (ProviderFault("connection", "reset", retryable=True, cut=True), 3, "provider/connection"),
        (ProviderFault("context", "too long"), 1, "limit/context"),
        (InvalidFault("script x, reply 2: expect 'green' is not in 'red'"), 1, "provider/bad_request"),
    ],
)
def test_what_a_provider_means_for_the_run(fault: Exception, tries: int, said: str) -> None:
    """Each fault has one outcome of the closed set, after a bounded number of tries (T11: three cuts)."""
    model = Says(fault)
    assert failure(work(Told(task()), model, Toolset())) == said
    assert len(model.asked) == tries


@pytest.mark.parametrize(
    ("fault", "tries", "pause_s"),
    [
        (ProviderFault("connection", "refused", retryable=True), 4, 60),
        (ProviderFault("unavailable", "overloaded", retryable=True), 4, 60),
        (ProviderFault("unavailable", "quota", retryable=True, retry_after_s=7200), 1, 7200),
    ],
)
def test_a_longer_trouble_of_the_provider_parks_the_run(fault: Exception, tries: int, pause_s: float) -> None:
    """T09, T10: no worker waits for it, and nothing that was paid for is lost."""
    host = Told(task())
    model = Says(runs("ls"), fault)
    parked = work(host, model, Toolset())
    assert parked == Parked(waiting="provider", until=in_s(pause_s), detail=str(fault))
    assert host.records()[-1].event == parked
    assert (host.run.status, host.run.steps, host.ran) == ("waiting", 1, ["ls"])
    assert len(model.asked) == 1 + tries
    assert work(host, Says(DONE), Toolset()) == Finished(text="It is done.")
    assert host.run.provider_parks == 0


def test_a_provider_that_is_away_all_night_ends_the_run() -> None:
    """Pauses grow to half an hour, and there are 24 of them."""
    host = Told(task())
    model = Says(ProviderFault("unavailable", "down", retryable=True))
    ends = [work(host, model, Toolset()) for _ in range(meter.PROVIDER_PARKS_MAX + 1)]
    assert [end.until for end in ends[:5] if isinstance(end, Parked)] == [
        in_s(pause_s) for pause_s in (60, 300, 900, 1800, 1800)
    ]
    assert failure(ends[-1]) == "provider/unavailable"


def test_an_account_s_turn_is_waited_for_without_losing_patience() -> None:
    """In parts of a second; the tries for real trouble are all still there, and begin anew after it."""
    busy = ProviderFault("unavailable", "busy", retryable=True)
    host = Told(task())
    model = Says(PacedFault("rate", 0.25), PacedFault("rate", 20), busy, busy, PacedFault("rate", 0.5), busy, DONE)
    assert work(host, model, Toolset()) == Finished(text="It is done.")
    assert host.cancel.waits_s == [0.25, 1, 1, 4, 0.5, 15]


@pytest.mark.parametrize(("asked_s", "pause_s"), [(0.5, 60), (900, 900)])
def test_a_turn_that_does_not_come_parks_the_run(asked_s: float, pause_s: float) -> None:
    """After a minute it waits without a worker, and says for what; however often, the provider is in no trouble."""
    host = Told(task())
    model = Says(PacedFault("account is asked as fast as it may be", asked_s))
    for _ in range(meter.PROVIDER_PARKS_MAX + 1):
        parked = work(host, model, Toolset())
        assert parked == Parked(
            waiting="provider", until=in_s(pause_s), detail="account is asked as fast as it may be", paced=True
        )
    assert sum(host.cancel.waits_s) == 60 * (meter.PROVIDER_PARKS_MAX + 1)
    assert host.run.provider_parks == 0
    assert work(host, Says(DONE), Toolset()) == Finished(text="It is done.")


def test_words_and_a_cancel_are_heard_while_a_turn_is_waited_for() -> None:
    """Each part of the wait begins like a step."""
    host = Told(task())

    def waits(request: ModelRequest) -> Reply:
        host.mail.append(Steered(n=0, kind="message", by="ada", text="Use pathlib."))
        raise PacedFault("rate", 0.5)

    def cancelled(request: ModelRequest) -> Reply:
        host.cancel.set("cancel")
        raise PacedFault("rate", 0.5)

    model = Says(waits, cancelled)
    assert work(host, model, Toolset()) == Stopped("cancel")
    assert "Use pathlib." in body(model.asked[1].messages)


def test_a_provider_that_is_away_while_it_summarizes_parks_the_run() -> None:
    """As with a reply."""
    busy = ProviderFault("unavailable", "busy", retryable=True)
    assert isinstance(work(full(14), Says(busy), Toolset()), Parked)


# People


def test_a_cancel_ends_the_call_in_flight_and_commits_nothing() -> None:
    """The call is undone, not observed."""
    host = Told(task())

    def cancelled(command: str) -> tuple[int, str, str]:
        host.cancel.set("cancel")
        return 137, "", "a"

    host.shell = cancelled
    assert work(host, Says(runs("sleep 600", "ls")), Toolset()) == Stopped("cancel")
    assert (host.told(), len(host.run.pending)) == ([], 2)


def test_a_cancel_ends_a_model_call() -> None:
    """What the model raised because of it is no failure of the provider."""
    host = Told(task())

    def cancelled(request: ModelRequest) -> Reply:
        host.cancel.set("drain")
        raise ProviderFault("connection", "stopped")

    assert work(host, Says(cancelled), Toolset()) == Stopped("drain")
    assert host.run.finished is None


def test_a_message_is_committed_before_the_request_that_shows_it() -> None:
    """Steering reaches the next render, in the words of the one who wrote it."""
    host = Told(task())
    host.mail.append(Steered(n=0, kind="message", by="ada", text="Use pathlib."))
    model = Says(DONE)
    work(host, model, Toolset())
    assert "ada" in model.asked[0].messages[-1].text
    assert "Use pathlib." in model.asked[0].messages[-1].text


def test_a_pause_parks_between_calls() -> None:
    """What the inbox asks for ends the attempt, with the rest of the calls pending."""
    host = Told(task())

    def paused(command: str) -> tuple[int, str, str]:
        host.mail.append(Parked(waiting="paused"))
        return 0, "", "a"

    host.shell = paused
    assert work(host, Says(runs("one", "two")), Toolset()) == Parked(waiting="paused")
    assert host.ran == ["one"]


@pytest.mark.parametrize(("decision", "ran"), [("approved", True), ("denied", False), ("expired", False)])
def test_an_act_that_cannot_be_undone_waits_for_a_person(decision: Any, ran: bool) -> None:
    """The question and the parking are one append; the answer decides whether it runs."""
    host = Told(task())
    model = Says(runs("terraform destroy"), DONE)
    assert isinstance(work(host, model, Toolset()), Parked)
    assert [type(record.event) for record in host.segments[-1]] == [Asked, Parked]
    host.commit(Decided(call_id="call_1_1", decision=decision, by="ada", reason="not tonight"))
    assert work(host, model, Toolset()) == Finished(text="It is done.")
    assert host.ran == (["terraform destroy"] if ran else [])
    assert host.told()[0][0] == ("ok" if ran else "denied")


@pytest.mark.parametrize("decision", [None, "denied", "expired"])
def test_a_denied_command_of_the_task_ends_the_run(decision: Any) -> None:
    """Nobody reads the denial and thinks of another way: neither the commands after it nor a green end."""
    command = "dropdb shop" if decision else "git push"
    host = Told(task((command, "fix")))
    if decision:
        work(host, Says(runs(command)), Toolset(), phase="commands")
        host.commit(Decided(call_id="call_1_1", decision=decision, by="ann"))
    assert failure(work(host, Says(runs(command)), Toolset(), phase="commands")) == "refused/guard"
    assert host.told()[0][0] == "denied"
    assert host.ran == []


def test_a_denied_act_is_told_and_the_run_goes_on() -> None:
    """Publishing is refused with a reason; the next call runs."""
    host = Told(task())
    work(host, Says(runs("git push origin main", "ls"), DONE), Toolset())
    assert host.ran == ["ls"]
    assert host.told()[0][0] == "denied"


def test_a_fence_goes_up_through_the_loop() -> None:
    """An attempt that is no longer the run's current one stops writing at once."""
    host = Told(task())

    def fenced(*events: Event) -> None:
        raise FencedFault("another claim")

    host.commit = fenced  # type: ignore[method-assign]
    with pytest.raises(FencedFault):
        work(host, Says(runs("ls")), Toolset())
    assert host.ran == []
