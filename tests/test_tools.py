"""The tools on the host's side: what they take, what they run, and what is shown of an output."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.contract.events import PlanItem, ToolCall
from worker.contract.task import Check, Limits
from worker.sandbox.protocol import Command, Output, Result
from worker.tools import observe
from worker.tools.output import lines, shown
from worker.tools.tool import Answer, ToolContext
from worker.tools.toolset import Toolset

CALL = ToolCall(id="call_1_1", name="run_command", arguments="{}")


def ask(name: str, outputs: dict[str, bytes] | None = None, /, **arguments: Any) -> list[Command] | Answer:
    """What a tool makes of arguments that fit."""
    parsed = Toolset().parse(ToolCall(id="c", name=name, arguments=json.dumps(arguments)))
    assert not isinstance(parsed, str), parsed
    context = ToolContext(
        limits=Limits(),
        checks=(Check(name="tests", command="pytest -q"), Check(name="lint", command="ruff check .")),
        path="pkg",
        plan=(),
        read_output=(outputs or {}).get,
    )
    return parsed[0].command(parsed[1], context)


def show(data: bytes, **limits: Any) -> str:
    return shown(io.BytesIO(data), "call_1_1", **({"max_bytes": 50_000, "max_lines": 2_000} | limits))


# What the model reads of the tools


def test_every_tool_has_one_line_and_a_closed_schema() -> None:
    """Eleven tools; unknown arguments are refused by schema."""
    specs = Toolset().specs
    assert [spec.name for spec in specs] == [
        *("list_files", "read_file", "search", "write_file", "edit_file"),
        *("run_command", "run_checks", "read_output", "update_plan", "ask_person", "delegate"),
    ]
    assert all("\n" not in spec.description and spec.schema["additionalProperties"] is False for spec in specs)


@pytest.mark.parametrize("arguments", ["[]", '"ls"', "null", "{", '{"a":1}{', "nan", '{"command": "\\ud83d"}'])
def test_what_is_no_object_is_explained(arguments: str) -> None:
    """Any text at all comes back as words, never as an exception."""
    told = Toolset().parse(ToolCall(id="c", name="run_command", arguments=arguments))
    assert isinstance(told, str)
    assert told.startswith("run_command: ")


@given(st.text(st.characters()), st.sampled_from([spec.name for spec in Toolset().specs]))
def test_no_text_breaks_the_parser(arguments: str, name: str) -> None:
    """Whatever a model sends, lone surrogates included, is parsed or explained."""
    parsed = Toolset().parse(ToolCall(id="c", name=name, arguments=arguments))
    assert isinstance(parsed, (str, tuple))


def test_several_faults_are_all_named_with_their_paths() -> None:
    """One round trip is enough to put all of them right."""
    raw = json.dumps({"items": [{"text": "a"}, {"text": "", "status": "later"}, {"txt": "b"}]})
    told = Toolset().parse(ToolCall(id="c", name="update_plan", arguments=raw))
    assert isinstance(told, str)
    assert all(path in told for path in ("items.1.text", "items.1.status", "items.2.text", "items.2.txt"))


def test_a_nul_in_a_command_is_refused_with_a_way_out() -> None:
    """bash would refuse the file with a riddle."""
    told = Toolset().parse(ToolCall(id="c", name="run_command", arguments=json.dumps({"command": "a\0b"})))
    assert "NUL" in told


# What they run


@pytest.mark.parametrize("text", ["; touch /x", "$(touch /x)", "a\nb", "-rf", "'\"\\"])
def test_arguments_of_file_tools_travel_as_data(text: str) -> None:
    """H43: no shell sees them."""
    commands = ask("search", pattern=text, path=text)
    assert isinstance(commands, list)
    [command] = commands
    assert (command.kind, command.program, command.writes) == ("toolbox", "files", False)
    request = json.loads(command.payload)
    assert (request["folder"], request["arguments"]["pattern"], request["arguments"]["path"]) == ("pkg", text, text)


def test_a_command_runs_in_the_folder_of_the_task_with_its_own_limit() -> None:
    """Large scripts travel whole (T32); the environment of a call is the sandbox's alone."""
    script = "cat <<'EOF'\n" + "x" * 200_000 + "\nEOF"
    commands = ask("run_command", command=script, timeout_s=7)
    assert isinstance(commands, list)
    [command] = commands
    assert (command.payload, command.cwd, command.timeout_s) == (script.encode(), "/workspace/repo/pkg", 7)
    assert command.env == {}


def test_every_check_is_a_command_of_its_own() -> None:
    """All by default, or those named, with the limit of a check."""
    both, one = ask("run_checks"), ask("run_checks", names=["lint"])
    assert isinstance(both, list)
    assert isinstance(one, list)
    assert [command.payload for command in both] == [b"pytest -q", b"ruff check ."]
    assert [(command.payload, command.timeout_s) for command in one] == [(b"ruff check .", 600)]


def test_an_unknown_check_is_answered_with_the_names() -> None:
    """No container is started for it."""
    assert ask("run_checks", names=["tests", "types"]) == Answer(
        "no check is named types; there are: tests, lint", ok=False
    )


def test_a_plan_is_an_answer_that_replaces_the_old_one() -> None:
    """It needs no container."""
    answer = ask("update_plan", items=[{"text": "look", "status": "done"}, {"text": "fix"}])
    assert isinstance(answer, Answer)
    assert answer.plan == (PlanItem(text="look", status="done"), PlanItem(text="fix"))


# What is shown of an output


def test_colours_go_and_progress_ends_in_its_last_state() -> None:
    """T29: `red` and one final 100%, no escape character."""
    progress = b"".join(b"\r%d%%" % n for n in range(101))
    assert show(b"\x1b[31mred\x1b[0m\n" + progress + b"\n") == "red\n100%"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x1b]0;title\x07a", "a"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"a\x1bPq#0\x1b\\b", "ab"),
        (b"a\x1bc\x1b(Bb", "ab"),
        (b"a\x1b]52;c;unterminated", "a"),
        (b"a\r\nb\r\n", "a\nb"),
        (b"\xc2\x9b31m\x9b", "\\x9b31m\\x9b"),
        (b"tab\tstays", "tab\tstays"),
        (b"", ""),
        (b"\n\na\n\n", "\n\na\n"),
    ],
)
def test_escape_sequences_and_line_endings(data: bytes, text: str) -> None:
    """H47: nothing that a terminal would act on is left."""
    assert show(data) == text


def test_bytes_that_are_no_text_become_visible() -> None:
    """T28: NUL and invalid UTF-8 are shown, what is readable stays readable."""
    assert show(b"\377\376 ok\na\000b\n") == "\\xff\\xfe ok\na\\x00b"


def test_a_long_output_shows_head_and_tail_and_how_to_read_the_rest() -> None:
    """T30: within the cap, with the last line, the true count, and a call that fits."""
    data = "".join(f"{n}\n" for n in range(1, 500_001)).encode() + b"END\n"
    text = show(data)
    assert len(text.encode()) <= 50_000
    assert text.startswith("1\n2\n")
    assert text.endswith("500000\nEND")
    assert "of 500001 lines in all" in text
    assert 'read_output(call_id="call_1_1", start_line=' in text


def test_many_short_lines_are_cut_by_their_number() -> None:
    """At most 2,000 lines, whatever their size."""
    assert show(b"\n" * 100_000).count("\n") < 2_000


def test_one_line_without_end_is_cut_in_its_middle() -> None:
    """Memory stays bounded by the line cap, both ends are shown."""
    text = show(b"start" + b"y" * 5_000_000 + b"end")
    assert len(text.encode()) <= 50_000
    assert text.startswith("start")
    assert text.endswith("end")


@given(st.text(st.sampled_from("aé€😀\n\r\t"), max_size=400), st.integers(500, 900), st.integers(3, 40))
def test_a_cut_never_goes_through_a_character(text: str, max_bytes: int, max_lines: int) -> None:
    """T15: both caps hold, and what is shown was all there: no replacement, no half emoji."""
    seen = show(text.encode(), max_bytes=max_bytes, max_lines=max_lines)
    assert len(seen.encode()) <= max_bytes
    assert seen.count("\n") < max_lines
    assert "\\x" not in seen
    assert "\ufffd" not in seen


@given(st.binary(max_size=300))
def test_what_fits_is_shown_whole(data: bytes) -> None:
    """Nothing is lost but what cleaning takes."""
    assert show(data) == "\n".join(lines(io.BytesIO(data)))


def test_bytes_that_were_not_kept_are_counted() -> None:
    """The spool dropped the middle: it is said, with the number."""
    assert "123 bytes from the middle" in show(b"a\n" * 50_000, unkept_bytes=123)


def test_read_output_shows_the_lines_that_were_cut() -> None:
    """The same numbering as in the marker, and the same cleaning."""
    kept = {"call_1_1": "".join(f"\x1b[1m{n}\n" for n in range(1, 10_001)).encode()}
    answer = ask("read_output", kept, call_id="call_1_1", start_line=5_000, end_line=5_002)
    assert answer == Answer("5000\n5001\n5002")


def test_read_output_goes_on_within_a_long_line() -> None:
    """T22: every part of one long line is in reach."""
    kept = {"c": b"x" * 120_000}
    first = ask("read_output", kept, call_id="c")
    assert isinstance(first, Answer)
    assert first.text.endswith("start_line=1, start_column=49801]")
    rest = ask("read_output", kept, call_id="c", start_column=100_001)
    assert rest == Answer("x" * 20_000)


@pytest.mark.parametrize(("call_id", "said"), [("nope", "no output is kept"), ("c", "has 1 lines")])
def test_read_output_of_nothing_is_explained(call_id: str, said: str) -> None:
    """An unknown call, or a line that is not there."""
    answer = ask("read_output", {"c": b"one\n"}, call_id=call_id, start_line=2)
    assert isinstance(answer, Answer)
    assert (answer.ok, said in answer.text) == (False, True)


# What becomes of results


@pytest.fixture
def ended(tmp_path: Path) -> Any:
    """Results with an output each."""

    def make(text: bytes = b"out\n", status: Any = "ok", exit_code: int | None = 0) -> Result:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.out"
        path.write_bytes(text)
        size = len(text)
        return Result(status, exit_code, Output(path, size, size, size), duration_ms=2_000)

    return make


@pytest.mark.parametrize(
    ("status", "code", "shown_status", "said"),
    [
        ("ok", 0, "ok", "out"),
        ("ok", 7, "error", "out"),
        ("error", 127, "error", "command not found"),
        ("timeout", None, "timeout", "time limit"),
        ("oom", None, "oom", "2048 MiB"),
        ("oom", 137, "oom", "out of memory"),
        ("interrupted", None, "interrupted", "look"),
    ],
)
def test_an_ending_is_told_as_what_it_is(ended: Any, status: Any, code: Any, shown_status: str, said: str) -> None:
    """Status, exit code, the output up to then, and what to try."""
    result = ended(status=status, exit_code=code)
    seen = observe.observed(CALL, [result], result.output, Limits())
    assert (seen.status, seen.exit_code) == (shown_status, code)
    assert seen.output.startswith("out")
    assert said in seen.output


@pytest.mark.parametrize("own_limit", [True, False])
def test_a_longer_limit_is_offered_only_where_one_can_be_given(ended: Any, own_limit: bool) -> None:
    """A model that reads of `timeout_s` tries it, and only run_command takes it."""
    result = ended(status="timeout", exit_code=None)
    seen = observe.observed(CALL, [result], result.output, Limits(), own_limit=own_limit)
    assert ("timeout_s" in seen.output) == own_limit


def test_several_results_are_one_observation(ended: Any, tmp_path: Path) -> None:
    """Each under its command; the first exit code that is not 0 counts."""
    commands = ask("run_checks")
    assert isinstance(commands, list)
    results = [ended(b"2 passed\n"), ended(b"E501\n", "error", 1)]
    joint = observe.joined(commands, results, tmp_path / "joint")
    seen = observe.observed(CALL, results, joint, Limits())
    assert (seen.status, seen.exit_code, seen.duration_ms) == ("error", 1, 4_000)
    assert seen.output == (
        "$ pytest -q\n2 passed\n\n[ok, exit code 0]\n\n$ ruff check .\nE501\n\n[error, exit code 1]\n"
    )


def test_a_call_over_a_cap_is_an_error_that_ran(ended: Any) -> None:
    """It has an exit code, so that it does not count as a malformed call."""
    result = ended()
    seen = observe.with_error(observe.observed(CALL, [result], result.output, Limits()), "over 5 GiB")
    assert (seen.status, seen.exit_code) == ("error", 1)
    assert "over 5 GiB" in seen.output
