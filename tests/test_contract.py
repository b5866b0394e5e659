"""Owns the nouns' promises: frozen, closed, versioned, readable for ever, and folded the same way everywhere."""

from __future__ import annotations

import importlib
import json
import pkgutil
import typing
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import worker.contract
from worker.contract.canonical import read_json
from worker.contract.environment import Baseline, PreparedEnvironment
from worker.contract.errors import ExitCode
from worker.contract.events import (
    REASONS,
    Claimed,
    Compacted,
    Event,
    Failure,
    FedBack,
    Finished,
    Observation,
    Observed,
    Parked,
    Record,
    Replied,
    Reply,
    Sealed,
    Steered,
    Submitted,
    ToolCall,
    Usage,
    Verdict,
    Yielded,
    canonical,
    digest,
)
from worker.contract.run import Run, exit_code, fold
from worker.contract.task import Budget, Frozen, Limits, Repo, Task, budget_microusd
from worker.store.decisions import Decision
from worker.store.inbox import Message

GOLDEN = sorted((Path(__file__).parent / "golden").glob("v*"))
STORED: dict[str, type[Frozen]] = {
    "task.json": Task,
    "env.json": PreparedEnvironment,
    "baseline.json": Baseline,
    "inbox.json": Message,
    "decision.json": Decision,
}


def nouns() -> list[type[Frozen]]:
    """Every class of the contract that is stored."""
    for module in pkgutil.iter_modules(worker.contract.__path__):
        importlib.import_module(f"worker.contract.{module.name}")
    found, todo = [], [Frozen]
    while todo:
        todo += (subs := todo.pop().__subclasses__())
        found += [noun for noun in subs if noun.__module__.startswith("worker.contract")]
    return found


@pytest.mark.parametrize("noun", nouns(), ids=lambda noun: noun.__name__)
def test_nouns_are_frozen_and_closed(noun: type[Frozen]) -> None:
    """No stored noun can be changed or take a field that it does not know."""
    assert noun.model_config.get("frozen") is True
    assert noun.model_config.get("extra") == "forbid"


def test_unknown_fields_and_assignments_are_refused() -> None:
    """What the configuration says is also what happens."""
    with pytest.raises(ValidationError):
        Usage.model_validate({"input_tokens": 1, "surprise": 2})
    with pytest.raises(ValidationError):
        Usage().input_tokens = 5  # type: ignore[misc]


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda folder: folder.name)
def test_old_journals_are_read_and_written_alike(folder: Path) -> None:
    """Every line of every version ever released loads and gives the same bytes again (F47)."""
    lines = (folder / "journal.jsonl").read_bytes().splitlines()
    assert [Record.parse(line).line() for line in lines] == lines


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda folder: folder.name)
@pytest.mark.parametrize("name", STORED)
def test_old_objects_are_read_and_written_alike(folder: Path, name: str) -> None:
    """The same for what is stored beside journals."""
    data = (folder / name).read_bytes()
    assert canonical(STORED[name].model_validate_json(data).model_dump(mode="json")) == data


def test_the_golden_journal_has_every_event() -> None:
    """No event type, and no field of one, escapes the golden file of the current version."""
    records = [Record.parse(line) for line in (GOLDEN[-1] / "journal.jsonl").read_bytes().splitlines()]
    union = typing.get_args(typing.get_args(Event)[0])
    assert {type(record.event) for record in records} == set(union)
    empty = [
        f"{type(record.event).__name__}.{name}"
        for record in records
        for name in type(record.event).model_fields
        if getattr(record.event, name) == type(record.event).model_fields[name].default and name != "type"
    ]
    assert empty == ["Compacted.cost_microusd"]  # its None, an unknown price, is on purpose


def test_the_golden_journal_folds() -> None:
    """The oldest journal still leads to the same end."""
    lines = (GOLDEN[0] / "journal.jsonl").read_bytes().splitlines()
    run = fold((Record.parse(line), digest(line)) for line in lines)
    assert (run.status, run.claims, run.steps, run.cost_microusd, run.tokens) == ("sealed", 1, 1, 15_912, 54)


@pytest.mark.parametrize("change", [b" ", b"x"])
def test_a_line_that_was_not_written_so_is_refused(change: bytes) -> None:
    """A line is taken only byte for byte, so equal JSON with other bytes does not pass."""
    line = (GOLDEN[-1] / "journal.jsonl").read_bytes().splitlines()[0]
    with pytest.raises(ValueError, match="bytes"):
        Record.parse(line.replace(b'{"at":', b'{"at":' + change if change == b" " else b'{"ax":', 1))


@pytest.mark.parametrize("moment", ["2026-11-30T02:00:00.000", "tomorrow", ""])
def test_a_moment_without_a_zone_is_no_moment(moment: str) -> None:
    """What is reckoned with names its zone, so that a journal somebody made by hand is damaged, not a crash later."""
    for stored in (lambda: Parked(waiting="provider", until=moment), lambda: Yielded(why="infra", not_before=moment)):
        with pytest.raises(ValidationError):
            stored()


@pytest.mark.parametrize(("cls", "reason"), [("limit", "loop"), ("agent", "steps"), ("infra", "")])
def test_the_reasons_are_a_closed_set(cls: str, reason: str) -> None:
    """A reason belongs to its class."""
    with pytest.raises(ValidationError):
        Failure.model_validate({"cls": cls, "reason": reason})


def test_every_reason_is_a_failure() -> None:
    """Class and reason print as in the plan."""
    assert "infra/worker_lost" in {
        str(Failure.model_validate({"cls": cls, "reason": reason}))
        for cls, all_ in REASONS.items()
        for reason in all_
    }


@pytest.mark.parametrize(
    "limits",
    [
        {"call_timeout_s": 601},
        {"call_timeout_s": 120, "working_time_s": 60},
        {"failing_calls_nudge": 9, "failing_calls": 8},
        {"patch_file_bytes": 2, "patch_bytes": 1},
        {"steps": 0},
        {"cost_usd": 0},
    ],
)
def test_limits_that_contradict_are_refused(limits: dict[str, float]) -> None:
    """Limits are checked before anything runs."""
    with pytest.raises(ValidationError):
        Limits.model_validate(limits)


@pytest.mark.parametrize("path", ["/abs", "../up", "a//b", "a/./b", "a/"])
def test_a_repository_path_stays_inside(path: str) -> None:
    """The folder to work in is a plain relative one."""
    with pytest.raises(ValidationError):
        Repo(url="x", path=path)


# --- the fold ---

TEXT = st.sampled_from(["", "done", "é\ud83d"])
CALLS = st.lists(st.sampled_from("abc"), unique=True, max_size=3).map(
    lambda ids: tuple(ToolCall(id=one, name="x", arguments="{}") for one in ids)
)
REPLIES = st.builds(
    Reply,
    text=TEXT,
    calls=CALLS,
    stop=st.sampled_from(["end", "calls", "length"]),
    usage=st.builds(Usage, input_tokens=st.integers(0, 99), output_tokens=st.integers(0, 99)),
    cost_microusd=st.none() | st.integers(0, 99),
)
ANY_EVENT: st.SearchStrategy[Event] = st.one_of(
    st.builds(Submitted, by=TEXT),
    st.builds(Claimed, worker=TEXT, engine=TEXT, lane=st.just("batch")),
    st.builds(Replied, step=st.integers(1, 9), phase=st.sampled_from(["commands", "model"]), reply=REPLIES),
    st.builds(
        Observed,
        observation=st.builds(
            Observation,
            call_id=st.sampled_from("abc"),
            tool=st.just("x"),
            status=st.sampled_from(["ok", "error"]),
            exit_code=st.none() | st.integers(0, 2),
        ),
        files=st.lists(st.sampled_from("pq"), max_size=2).map(tuple),
    ),
    st.builds(Parked, waiting=st.sampled_from(["approval", "window"])),
    st.builds(Yielded, why=st.sampled_from(["drain", "infra"])),
    st.builds(Compacted, through=st.just(1), summary=TEXT, cost_microusd=st.none() | st.integers(0, 9)),
    st.builds(FedBack, text=TEXT),
    st.builds(Finished, text=TEXT),
    st.builds(Verdict, verdict=st.sampled_from(["verified", "broke"])),
)
HISTORIES = st.lists(ANY_EVENT, max_size=25)


def chained(events: list[Event]) -> list[tuple[Record, str]]:
    """Events as a journal's lines, a second apart."""
    prev, lines = digest(b"task"), []
    for seq, event in enumerate(events):
        at = f"2026-12-01T00:00:{seq:02d}.000+00:00"
        record = Record(run="r", seq=seq, at=at, attempt=None, nonce=str(seq), prev=prev, event=event)
        prev = digest(record.line())
        lines.append((Record.parse(record.line()), prev))
    return lines


@given(HISTORIES, st.integers(0, 25))
def test_folding_in_two_parts_is_folding_at_once(events: list[Event], cut: int) -> None:
    """A cached run plus newer records is the run, so `load(since)` may be trusted."""
    lines = chained(events)
    assert fold(lines[cut:], fold(lines[:cut])) == fold(lines)


@given(HISTORIES)
def test_what_was_spent_is_never_unspent(events: list[Event]) -> None:
    """Tokens, cost, claims and working time only grow."""
    run = Run()
    for record, line_hash in chained(events):
        after = run.after(record, line_hash)
        assert after.tokens >= run.tokens
        assert after.cost_microusd >= run.cost_microusd
        assert after.claims >= run.claims
        assert after.working_s >= run.working_s
        run = after


@pytest.mark.parametrize("left", [None, Yielded(why="drain"), Parked(waiting="approval")])
def test_working_time_leaves_out_the_time_before_a_claim(left: Event | None) -> None:
    """A second passes between any two events here. An attempt that died or gave the run back worked until its last
    event; hours in which every worker was away count for nothing."""
    died = [Submitted(by="ann"), Claimed(worker="w", engine="e", lane="batch"), *([left] if left else [])]
    lines = chained([*died, Claimed(worker="w", engine="e", lane="batch"), Finished(text="done")])
    assert fold(lines).working_s == (2 if left else 1)


@given(HISTORIES)
def test_pending_calls_are_the_last_reply_less_what_was_observed(events: list[Event]) -> None:
    """Takeover runs exactly the calls of the last complete reply that have no committed result."""
    run = fold(chained(events))
    last = max((n for n, event in enumerate(events) if isinstance(event, Replied)), default=-1)
    wanted: list[str] = []
    for event in events[max(last, 0) :]:
        if isinstance(event, Replied):
            wanted = [call.id for call in event.reply.calls] if event.reply.stop != "length" else []
        elif isinstance(event, Observed):
            wanted = [one for one in wanted if one != event.observation.call_id]
        elif isinstance(event, Finished):
            wanted = []
    assert [call.id for call in run.pending] == wanted


@given(HISTORIES)
def test_a_sealed_run_has_nothing_left_to_do(events: list[Event]) -> None:
    """Whatever came before, after `sealed` nobody has the turn."""
    run = fold(chained([*events, Sealed(outcome="cancelled")]))
    assert (run.status, run.turn, run.pending, run.waiting) == ("sealed", "none", (), None)


def allowed(scope: Literal["run", "batch"], *texts: str) -> Run:
    """A run that read these budgets."""
    read = [Steered(scope=scope, n=n, kind="budget", by="me", text=text) for n, text in enumerate(texts)]
    return fold(chained([Submitted(by="me"), *read]))


@pytest.mark.parametrize("no_bound", [1e9, 1e300, float("inf")])
def test_a_stored_task_may_have_a_limit_that_nobody_may_ask_for_now(no_bound: float) -> None:
    """It was written as "no bound" when that could be said, and its archive is still read."""
    limits = Limits(working_time_s=no_bound, model_timeout_s=no_bound, cost_usd=no_bound, tokens=10**30)
    task = Task(run="r", batch="b", target="t", repo=Repo(url="x"), commands=("ls",), limits=limits)
    assert Task.model_validate(read_json(canonical(task.model_dump(mode="json")))) == task


def test_what_a_person_last_allowed_a_batch_goes_before_its_task() -> None:
    """The budget is a fold, so every machine holds the same one; other words of a message change nothing."""
    task = Task(run="r", batch="b", target="t", repo=Repo(url="-"), commands=("true",), budget=Budget(usd=1))
    assert Run().budget_microusd(task) == 1_000_000
    assert allowed("batch", "20", "$2.50", "much", "nan", "-1").budget_microusd(task) == 2_500_000
    assert allowed("run", "20").budget_microusd(task) == 1_000_000
    assert Run().budget_microusd(task.model_copy(update={"budget": None})) is None


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "1e30", "much", "1 000", "0x10"])
def test_what_is_no_budget_is_refused(text: str) -> None:
    """A bound that bounds nothing would be worse than none."""
    assert budget_microusd(text) is None


def ended_command(step: int, phase: Literal["commands", "model"], status: str, code: int | None) -> list[Event]:
    call = ToolCall(id=f"c{step}", name="run_command", arguments="{}")
    seen = {"call_id": call.id, "tool": call.name, "status": status, "exit_code": code}
    return [
        Replied(step=step, phase=phase, reply=Reply(calls=(call,), stop="calls")),
        Observed(observation=Observation.model_validate(seen)),
    ]


def test_commands_that_failed_are_counted_apart_from_the_models() -> None:
    """Only the checks judge what a command left, so somebody must be told that it failed."""
    ends: list[tuple[str, int | None]] = [("ok", 0), ("error", 3), ("timeout", 137), ("denied", None)]
    events = [one for step, end in enumerate(ends, start=1) for one in ended_command(step, "commands", *end)]
    run = fold(chained([*events, *ended_command(5, "model", "error", 1)]))
    assert run.failed_commands == ((2, "exit code 3"), (3, "timeout"), (4, "denied"))


# --- exit codes ---


def sealed(outcome: str, verdict: str | None = None, detail: str = "") -> Run:
    return fold(chained([Sealed.model_validate({"outcome": outcome, "verdict": verdict, "detail": detail})]))


def waiting(what: str) -> Run:
    return fold(chained([Parked.model_validate({"waiting": what})]))


OK = [
    sealed("changed", "verified"),
    sealed("changed", "unverified"),
    sealed("changed", "flaky"),
    sealed("no_change", "verified"),
    sealed("reused", "verified"),
    waiting("window"),
]
FAILED = [sealed("failed"), sealed("changed", "still_failing"), sealed("changed", "broke")]
BUDGET, BREAKER = sealed("skipped", detail="budget"), sealed("skipped", detail="breaker")
CANCELLED, ASKING = sealed("cancelled"), waiting("approval")


@pytest.mark.parametrize("failed", FAILED, ids=lambda run: str(run.sealed.verdict or run.sealed.outcome))
def test_one_failed_run_is_4_and_all_of_several_is_5(failed: Run) -> None:
    """Failed, still failing and broke count; 5 needs two or more runs, all of them failed."""
    assert exit_code([failed]) == ExitCode.SOME_FAILED
    assert exit_code([failed, OK[0]]) == ExitCode.SOME_FAILED
    assert exit_code([failed, failed]) == ExitCode.ALL_FAILED


@pytest.mark.parametrize("reason", ["batch_budget", "day_budget"])
def test_what_a_budget_stopped_or_holds_up_is_6(reason: str) -> None:
    """A script that reads 6 raises a budget; one that reads 4 looks for what went wrong."""
    stopped = Sealed(outcome="failed", failure=Failure(cls="limit", reason=reason))
    assert exit_code([fold(chained([stopped])), FAILED[0]]) == ExitCode.BUDGET
    assert exit_code([waiting("budget"), ASKING]) == ExitCode.BUDGET
    assert exit_code([Run(), FAILED[0]], held=True) == ExitCode.BUDGET


@pytest.mark.parametrize("run", OK, ids=lambda run: run.sealed.outcome if run.sealed else "waiting")
def test_these_are_fine(run: Run) -> None:
    """No change, reused and unverified count as ok, and so does a run that waits for no person."""
    assert exit_code([run]) == ExitCode.OK
    assert exit_code([]) == ExitCode.OK


PRECEDENCE: list[tuple[Run, ExitCode]] = [
    (CANCELLED, ExitCode.CANCELLED),
    (BREAKER, ExitCode.BREAKER),
    (BUDGET, ExitCode.BUDGET),
    (ASKING, ExitCode.PERSON_NEEDED),
    (FAILED[0], ExitCode.SOME_FAILED),
    (OK[0], ExitCode.OK),
]


@pytest.mark.parametrize("first", range(len(PRECEDENCE)))
def test_of_several_the_first_of_the_plan_applies(first: int) -> None:
    """8, 7, 6, 9, then failures, whatever comes with them and in whatever order."""
    runs = [run for run, _ in PRECEDENCE[first:]]
    assert exit_code(runs) == exit_code(reversed(runs)) == PRECEDENCE[first][1]


def test_exit_codes_are_the_plans() -> None:
    """The numbers are a promise to scripts."""
    assert [int(code) for code in ExitCode] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 75, 124, 130]


def test_canonical_json_is_ascii_and_sorted() -> None:
    """Two equal values have the same bytes, whatever their order and characters."""
    value = {"b": "é\ud83d\u2028", "a": [1, None]}
    assert canonical(value) == b'{"a":[1,null],"b":"\\u00e9\\ud83d\\u2028"}'
    assert json.loads(canonical(value)) == value
