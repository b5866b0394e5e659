"""When a run must stop, and what it then reports. How the loop acts on it is in test_loop.py."""

from __future__ import annotations

import pytest
from transcripts import Transcript, shell, task

from worker import meter
from worker.contract.events import FedBack, Observation, ObservationStatus, Observed, PlanItem, Steered
from worker.contract.run import Run
from worker.contract.task import Limits


def stop(transcript: Transcript, working_s: float = 0) -> str:
    counted = repeats(transcript)
    return str(meter.stop(transcript.run, transcript.task.limits, counted.last, working_s, counted.turns))


def repeats(transcript: Transcript) -> meter.Repeats:
    counted = meter.Repeats()
    for record in transcript.records():
        counted.see(record)
    return counted


def test_a_fresh_run_goes_on() -> None:
    """Nothing is used up at the start."""
    assert stop(Transcript(task())) == "None"


@pytest.mark.parametrize(("working_s", "said"), [(2699.9, "None"), (2700, "limit/wall")])
def test_working_time_stops_at_its_limit(working_s: float, said: str) -> None:
    """45 minutes by default."""
    assert stop(Transcript(task()), working_s) == said


def test_an_unknown_price_does_not_count_as_money() -> None:
    """T70: cost None is not 0 and not a stop; tokens still bound the run."""
    transcript = Transcript(task(cost_usd=0.01))
    transcript.step("ls")
    assert (stop(transcript), transcript.run.cost_known) == ("None", False)


def test_money_is_compared_in_millionths() -> None:
    """A limit of $0.10 is reached by exactly 100,000."""
    transcript = Transcript(task(cost_usd=0.1))
    transcript.reply(shell("ls", 1), cost_microusd=99_999)
    transcript.observe(shell("ls", 1))
    assert stop(transcript) == "None"
    transcript.reply(shell("ls", 2), cost_microusd=1)
    assert stop(transcript) == "None", "the calls that were paid for still run"
    transcript.observe(shell("ls", 2))
    assert stop(transcript) == "limit/cost"


def test_two_calls_taking_turns_are_a_loop() -> None:
    """Counting over the whole run sees A, B, A, B."""
    transcript = Transcript(task())
    transcript.step("start", tree="a")
    for _ in range(9):
        transcript.step("one", "1", tree="a")
        transcript.step("two", "2", tree="a")
    assert stop(transcript) == "None"
    transcript.step("one", "1", tree="a")
    assert stop(transcript) == "agent/loop"


@pytest.mark.parametrize(
    ("trees", "turns"),
    [("abab", 3), ("aabbaa", 2), ("abcabc", 1), ("abacabad", 1), ("ababc", 1), ("abababababa", 10)],
)
def test_changes_between_two_states_of_the_files_are_counted(trees: str, turns: int) -> None:
    """A, B, A, B: whatever the calls were and said. A new state is progress, and so is another way to an old one."""
    transcript = Transcript(task())
    for n, tree in enumerate(trees):
        transcript.step(f"edit {n}", str(n), tree=tree)
        transcript.step("test", str(n))
    assert repeats(transcript).turns == turns
    assert stop(transcript) == ("agent/loop" if turns == 10 else "None")


def test_a_person_s_words_let_two_states_begin_anew() -> None:
    """Also in a fork of a run that was stopped for it."""
    transcript = Transcript(task())
    for n, tree in enumerate("abababababa"):
        transcript.step(f"edit {n}", tree=tree)
    transcript.commit(Steered(n=0, kind="message", by="ada", text="Take the first."))
    assert stop(transcript) == "None"


def test_arguments_that_differ_in_spacing_are_the_same() -> None:
    """Reformatted JSON is no new idea."""
    transcript = Transcript(task())
    for n, raw in enumerate(['{"command":"ls"}', '{ "command": "ls" }'], 1):
        call = shell("", n).model_copy(update={"arguments": raw})
        transcript.reply(call)
        transcript.observe(call, "a")
    assert repeats(transcript).last == 2


def test_failing_calls_are_forgotten_by_a_good_one() -> None:
    """Only a row of failures counts."""
    transcript = Transcript(task())
    for n in range(7):
        transcript.step("make", str(n), exit_code=1)
    transcript.step("ls")
    transcript.step("make", "again", exit_code=1)
    assert stop(transcript) == "None"


@pytest.mark.parametrize(("tokens", "fits"), [(200_000 - 16_384, True), (200_000 - 16_383, False)])
def test_a_reserve_of_the_context_stays_free(tokens: int, fits: bool) -> None:
    """16,384 tokens for the reply."""
    assert (meter.oversize(tokens, Limits()) is None) is fits


def test_the_report_tells_plan_files_checks_and_error() -> None:
    """What a stopped run leaves is taken from the record, word for word."""
    transcript = Transcript(task())
    plan = (PlanItem(text="fix price.js", status="doing"), PlanItem(text="run tests"))
    seen = Observation(call_id="call_1_1", tool="update_plan", status="ok", exit_code=0)
    transcript.reply(shell("x", 1))
    transcript.commit(Observed(observation=seen, plan=plan, files=("price.js",)))
    transcript.step("cat nothing", "No such file", exit_code=1)
    transcript.commit(FedBack(text="tests: red\n15 != 40"))
    report = meter.report(transcript.run, transcript.records())
    for words in ("[doing] fix price.js", "[todo] run tests", "- price.js", "15 != 40", "No such file"):
        assert words in report


def test_the_report_of_a_run_that_did_nothing_says_so() -> None:
    """No empty headings."""
    report = meter.report(Transcript(task()).run, [])
    assert report.count("none") == 3
    assert "never run by the agent" in report


@pytest.mark.parametrize(
    ("output", "tree", "exit_code", "said"),
    [
        ("3 findings", "a", 1, "None"),
        ("x\n[one call changed too much. Undone.]", None, 1, "a command was undone: one call changed too much"),
        ("", "a", None, "a command ended with error"),
    ],
)
def test_a_command_that_was_undone_or_killed_did_not_do_its_work(
    output: str, tree: str | None, exit_code: int | None, said: str
) -> None:
    """T39: a linter's exit code is its own, but work that was rolled back is never a run without changes."""
    transcript = Transcript(task())
    transcript.step("codemod", output, tree=tree, status="error", exit_code=exit_code)
    broken = meter.broken_command(transcript.records(), Limits())
    assert (broken.detail if broken else "None").startswith(said)


@pytest.mark.parametrize(
    ("status", "limit"), [("timeout", "limit call_timeout_s is 120"), ("oom", "limit memory_bytes is 2147483648")]
)
def test_a_command_that_met_a_limit_names_it(status: ObservationStatus, limit: str) -> None:
    """Who reads it knows what to raise, and from where."""
    transcript = Transcript(task())
    transcript.step("codemod", "", status=status, exit_code=137)
    broken = meter.broken_command(transcript.records(), Limits())
    assert broken is not None
    assert broken.detail == f"a command ended with {status}, exit code 137; {limit}"


@pytest.mark.parametrize(
    ("run", "repeats", "turns", "limit"),
    [
        ({"failing_calls": 8}, 0, 0, "limit failing_calls is 8"),
        ({"empty_replies": 3}, 0, 0, "limit empty_replies is 3"),
        ({"malformed_replies": 3}, 0, 0, "limit malformed_replies is 3"),
        ({}, 10, 0, "limit repeats is 10"),
        ({}, 0, 10, "limit repeats is 10"),
    ],
)
def test_an_agent_that_is_stopped_names_the_limit(run: dict[str, int], repeats: int, turns: int, limit: str) -> None:
    """With its number, as the limits of money, steps and time do."""
    stopped = meter.stop(Run(**run), Limits(), repeats, 0, turns)
    assert stopped is not None
    assert stopped.detail.endswith(limit)
