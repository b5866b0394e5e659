"""How runs are told to people, on a real archive and without an engine."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from runs_made import AT, claimed, ended, name_runs, replied

from scheduler.cli.main import run as dawn
from scheduler.control import tell
from scheduler.follow import Follower
from scheduler.reports import rows
from scheduler.runs import Found, view, views
from worker.contract.events import (
    Asked,
    CheckResult,
    Compared,
    Contradiction,
    Event,
    Failure,
    FedBack,
    Finished,
    MessageKind,
    Observation,
    Observed,
    Parked,
    Reported,
    Sealed,
    Verdict,
)
from worker.contract.run import Run
from worker.store import keys
from worker.store.archive import Archive
from worker.store.decisions import decide
from worker.store.journal import Journal

Make = Callable[..., Run]

ASKED = Asked(call_id="c1", kind="approval", binding="0" * 64, question="push?")
WAITS = (claimed(), replied(), ASKED, Parked(waiting="approval", detail="push?"))
MANIFEST = "version: 1\nname: night\ntargets: [{repo: ./sample}]\ntask: {commands: [%s]}\n"

pytestmark = pytest.mark.usefixtures("without_stack")


@pytest.fixture(autouse=True)
def _sample(tmp_path: Path) -> None:
    """A folder to submit."""
    (tmp_path / "sample").mkdir()
    (tmp_path / "sample" / "answer.txt").write_text("41\n")


def test_a_run_that_asks_says_how_to_answer(archive: Archive, make_run: Make) -> None:
    """Both commands, whole."""
    make_run("a", *WAITS)
    assert rows.ways_on(view(archive, "a")) == ["dawn approve a c1", 'dawn deny a c1 --reason "..."']


def test_an_answer_that_no_worker_has_read_is_told(archive: Archive, make_run: Make) -> None:
    """Nobody is asked a second time for what lies in the archive."""
    make_run("a", *WAITS)
    decide(archive, "a", ASKED, "approved", by="ann@desk", at=AT)
    found = view(archive, "a")
    assert rows.ways_on(found) == []
    assert rows.row(found)["detail"] == "approved by ann@desk, waits for a worker"


def test_a_table_shows_the_first_line_of_a_long_failure(archive: Archive, make_run: Make) -> None:
    """A failing setup prints much; the row stays a row."""
    detail = "setup ended with exit code 1\n" + "pip complains\n" * 40
    make_run("a", Sealed(outcome="failed", failure=Failure(cls="env", reason="setup", detail=detail)))
    assert rows.cells(view(archive, "a"))[-1] == "env/setup setup ended with exit code 1 …"


def test_show_tells_all_of_a_long_failure(make_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """What the table cuts stands here."""
    detail = "setup ended with exit code 1\n" + "pip complains\n" * 40
    make_run("a", Sealed(outcome="failed", failure=Failure(cls="env", reason="setup", detail=detail)))
    assert dawn(["show", "a"]) == 0
    assert capsys.readouterr().out.count("pip complains") == 40


def test_a_batch_counts_refusals_apart(archive: Archive, make_run: Make) -> None:
    """T07: two that ended well and one that was refused, whose words are kept."""
    for run in ("a", "c"):
        make_run(run, claimed(), *ended("changed", verdict="verified"), target=run)
    refused = Failure(cls="refused", reason="content_filter", detail="the model answered content_filter")
    said = Finished(text="I cannot.", failure=refused)
    make_run("b", claimed(), said, Sealed(outcome="failed", failure=refused), target="b")
    assert rows.counts(views(archive, "abc")) == "2 changed/verified, 1 refused"
    assert rows.row(view(archive, "b"))["failure"] == "refused/content_filter"
    assert ("last words", "I cannot.") in rows.summary(view(archive, "b"), datetime.fromisoformat(AT))


@pytest.mark.parametrize(
    ("costs", "told"),
    [
        ((None,), ("unknown", None, False)),
        ((0,), ("$0.00", 0.0, True)),
        ((100_000, None), ("at least $0.10", 0.1, False)),
        ((100_000, 20_000), ("$0.12", 0.12, True)),
    ],
)
def test_what_nobody_knows_the_price_of_is_told_as_that(
    archive: Archive, make_run: Make, costs: tuple[int | None, ...], told: tuple[str, float | None, bool]
) -> None:
    """T70: unknown, never 0; a price of 0 is 0; a total with an unknown part says so; the tokens are kept."""
    make_run("a", claimed(), *(replied(step, cost_microusd=cost) for step, cost in enumerate(costs, start=1)))
    row = rows.row(view(archive, "a"))
    assert (rows.cells(view(archive, "a"))[-2], row["cost_usd"], row["cost_known"]) == told
    assert row["tokens"] == 110 * len(costs)


def test_a_dry_run_without_garbage_says_so(archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    """Silence could mean anything."""
    assert dawn(["gc", "--dry-run"]) == 0
    assert "nothing would go" in capsys.readouterr().err


def test_an_edited_manifest_is_told_to_be_another_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The name is the same, what is asked is not."""
    for command in ("one", "two"):
        (tmp_path / "night.yaml").write_text(MANIFEST % command)
        assert dawn(["submit", "night.yaml", "--detach"]) == 0
    assert "which has the same name; it is a batch of its own" in capsys.readouterr().err


def test_the_same_manifest_again_is_no_other_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A repeated submit completes what is missing."""
    (tmp_path / "night.yaml").write_text(MANIFEST % "one")
    for _ in range(2):
        assert dawn(["submit", "night.yaml", "--detach"]) == 0
    assert "batch of its own" not in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["night"]])
def test_a_damaged_run_hides_no_other(
    words: list[str], tmp_path: Path, archive: Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    """All that can be read is listed, then the damage is named, exit code 11."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "answer.txt").write_text("42\n")
    (tmp_path / "night.yaml").write_text(MANIFEST.replace("}]", "}, {repo: ./other}]") % "one")
    assert dawn(["submit", "night.yaml", "--detach"]) == 0
    damaged, sound = sorted(archive.folders("runs/"), reverse=True)
    first = keys.segment(damaged, 0)
    whole = archive.get(first)
    archive.delete([first])
    archive.create(first, whole[:-9])
    assert dawn(["status", *words]) == 11
    said = capsys.readouterr()
    assert f"dawn verify {damaged}" in said.err
    assert ("1 queued, 1 damaged" if not words else sound) in said.out


BATCH = Found("batch", "night-0123456789ab")
RUNS: dict[str, tuple[Event, ...]] = {
    "queued": (),
    "running": (claimed(),),
    "waiting": (claimed(), Parked(waiting="paused", detail="paused by ann")),
}


@pytest.mark.parametrize(
    ("kind", "states"),
    [("pause", ["paused", "pausing", "waiting"]), ("cancel", ["cancelling"] * 3), ("message", list(RUNS))],
)
def test_what_was_asked_for_shows_before_a_run_has_read_it(
    kind: MessageKind, states: list[str], archive: Archive, make_run: Make
) -> None:
    """Else a person would think that nothing happened, and type it again."""
    for name, events in RUNS.items():
        make_run(name, *events)
        tell(archive, None, Found("run", name), kind, by="ann", at=AT)
    found = views(archive, RUNS).found
    assert [rows.cells(one)[2] for one in found] == [one.state for one in found] == states
    assert [rows.row(one)["status"] for one in found] == list(RUNS)
    assert [rows.row(one)["unread"] for one in found] == [[kind]] * 3


def test_what_was_asked_of_a_batch_shows_in_each_of_its_runs(archive: Archive, make_run: Make) -> None:
    """Also taken back again."""
    for name, events in RUNS.items():
        make_run(name, *events, target=name)
    tell(archive, None, BATCH, "pause", by="ann", at=AT)
    assert rows.counts(views(archive, RUNS)) == "1 paused, 1 pausing, 1 waiting"
    tell(archive, None, BATCH, "unpause", by="ann", at=AT)
    assert rows.counts(views(archive, RUNS)) == "1 queued, 1 running, 1 waiting"


@pytest.mark.parametrize(
    ("words", "then"),
    [
        (["pause", "a"], "waits from its next call on"),
        (["unpause", "a"], "goes on as soon as a worker is free"),
        (["cancel", "a"], "is stopped within seconds"),
        (["steer", "a", "mind the tests"], "reads it before its next step"),
    ],
)
def test_a_word_to_a_run_says_what_comes_of_it(
    words: list[str], then: str, make_run: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """The id is the data, the sentence is for the person."""
    make_run("a", claimed(), model="openai/gpt-5", prompt="fix it")
    assert dawn(words) == 0
    said = capsys.readouterr()
    assert (said.out, then in said.err) == ("a\n", True)


@pytest.mark.parametrize("words", [["status"], ["status", "night"], ["show", "a"]])
def test_a_batch_that_starts_later_says_when(
    words: list[str], archive: Archive, make_run: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever it is told that its runs are queued."""
    make_run("a", start_at="2036-12-01T01:00:00.000+00:00")
    name_runs(archive, {"a": "cart"})
    assert dawn(words) == 0
    assert "not before 2036-12-01T01:00:00Z" in capsys.readouterr().out


def test_a_run_that_is_cancelled_has_no_start_to_wait_for(
    archive: Archive, make_run: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is ended at once."""
    make_run("a", start_at="2036-12-01T01:00:00.000+00:00")
    tell(archive, None, Found("run", "a"), "cancel", by="ann", at=AT)
    assert dawn(["status", "a"]) == 0
    assert "not before" not in capsys.readouterr().out


def test_a_run_that_never_began_its_work_has_no_last_words(
    make_run: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """The failure says it all: there was no step, no plan and no file."""
    failure = Failure(cls="env", reason="setup", detail="pip complains")
    make_run(
        "a",
        claimed(),
        Finished(text="Stopped after 0 steps.", failure=failure),
        Sealed(outcome="failed", failure=failure),
    )
    assert dawn(["show", "a"]) == 0
    assert "last words" not in capsys.readouterr().out


def test_a_word_without_a_stack_is_one_sentence(make_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """It claims nothing for now that only happens later."""
    make_run("a", claimed())
    assert dawn(["cancel", "a"]) == 0
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("no stack is running; when one starts, what runs is stopped")


def test_a_follower_that_catches_up_tells_where_open_runs_stand(archive: Archive, make_run: Make) -> None:
    """A submit of the same thing again replays nothing that was printed before, but what a run asks still counts."""
    make_run("asks", claimed(), replied())
    asked = Journal(archive, "asks")
    asked.append(asked.load(), [ASKED, Parked(waiting="approval", detail="push?")], attempt=1, at=AT)
    make_run("ended", claimed(), replied(), *ended())
    make_run("new")
    follower = Follower(archive, ["asks", "ended", "new"])
    stands = [(record.run, record.event.type) for record in follower.catch_up()]
    assert stands == [("asks", "asked"), ("asks", "parked"), ("new", "submitted")]
    assert list(follower.poll()) == []
    new = Journal(archive, "new")
    new.append(new.load(), [claimed()], attempt=None, at=AT)
    assert [record.event.type for record in follower.poll()] == ["claimed"]


def test_a_command_that_failed_is_named(archive: Archive, make_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """The checks judge what it left, but a person must see that a codemod did not do its work."""
    failed = Observation(call_id="c1", tool="run_command", status="error", exit_code=3)
    step = replied().model_copy(update={"phase": "commands"})
    make_run("a", claimed(), step, Observed(observation=failed), *ended(), commands=("fix --all", "format"))
    assert rows.cells(view(archive, "a"))[-1] == "exit code 3: fix --all"
    assert dawn(["show", "a"]) == 0
    assert "commands    fix --all  (exit code 3)\n            format\n" in capsys.readouterr().out


def test_show_tells_tests_guards_and_contradicted_words(make_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """One line a check with its tests, those that need a look by name, what is forbidden, and the words apart."""
    red = CheckResult(name="unit", status="red", exit_code=1, reported=Reported(passed=3, failed=2))
    other = CheckResult(name="lint", status="green", reported=Reported(passed=1, notes=("a.xml: no element found",)))
    tests = Compared(check="unit", counts={"fixed": 3, "still_failing": 2}, named={"still_failing": ("k::a", "k::b")})
    measured = Verdict(
        verdict="still_failing",
        checks=(red, other),
        baseline=(red,),
        tests=(tests,),
        guards=("ci.yml is protected (ci.yml)",),
    )
    against = Contradiction(claim="All tests pass.", evidence="the check unit is not green with the patch")
    make_run("a", measured, Sealed(outcome="failed", contradictions=(against,)))
    assert dawn(["show", "a"]) == 0
    told = capsys.readouterr().out
    unit = "unit: red (exit code 1) before, red (exit code 1) now; 3 fixed, 0 broke, 2 still failing"
    for line in (
        unit,
        "lint: no baseline before, green now; 1 passed, 0 failed, 0 skipped",
        "lint: a.xml: no element found",
        "unit: still failing: k::b",
        "ci.yml is protected (ci.yml)",
        "All tests pass.",
        "but the check unit is not green with the patch",
    ):
        assert line in told


def test_logs_tell_tests_guards_and_contradicted_words(make_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """What the model was told of its patch, what came of the tests, and the words that the evidence contradicts."""
    tests = Compared(check="unit", counts={"broke": 1})
    measured = Verdict(verdict="broke", tests=(tests,), guards=("ci.yml is protected",))
    against = Contradiction(claim="All tests pass.", evidence="the check unit is not green with the patch")
    told = FedBack(text="Your patch may not.", guards=("ci.yml is protected",))
    make_run("a", told, measured, Sealed(outcome="failed", contradictions=(against,)))
    assert dawn(["logs", "a"]) == 0
    shown = capsys.readouterr().out
    for line in (
        "Your patch may not.",
        "unit: 0 fixed, 1 broke, 0 still failing",
        "guard: ci.yml is protected",
        "it says: All tests pass.",
        "but the check unit is not green with the patch",
    ):
        assert line in shown
