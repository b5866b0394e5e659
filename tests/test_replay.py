"""A run's record played once more, on the real engine: all of it comes again, or the first difference is told."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest
from deployments import Deployment
from nights import LIMITS, Night
from repositories import first_commit

from scheduler.approvals import answer
from scheduler.control import tell
from scheduler.runs import Found
from worker import policy
from worker.before_call import no_hook
from worker.contract.errors import ConflictFault
from worker.contract.events import Sealed
from worker.contract.redact import Redactor
from worker.contract.task import Limits, OwnTool, PolicyRule
from worker.replay import Replay, Replayed
from worker.station import utc_now
from worker.store.journal import Journal

pytestmark = pytest.mark.docker

GOLDEN = Path(__file__).with_name("golden") / "replay.tar"

RUN = Found("run", "run-1")
RED_FIRST = """
- calls: [{tool: run_command, arguments: {command: 'echo 43 > answer.txt'}}]
- text: The answer is 42 now.
- calls: [{tool: run_checks, arguments: {}}, {tool: update_plan, arguments: {items: [{text: again, status: doing}]}}]
- calls: [{tool: write_file, arguments: {path: answer.txt, content: "42\\n"}}, {tool: nothing, arguments: {}}]
- text: Now it is.
"""


def one(command: str) -> str:
    """A script of one command."""
    return f"- calls: [{{tool: run_command, arguments: {{command: '{command}'}}}}]\n- text: Done."


def replayed(night: Night, run: str = "run-1", said: list[str] | None = None) -> Replayed:
    station = night.station
    say = [].append if said is None else said.append
    return Replay(night.archive, station.sandbox, station.settings, Redactor({}), no_hook, say).of(run)


def came_again(night: Night, **fields: Any) -> Replayed:
    """A run worked on to its end and replayed without a difference; nothing is written or left behind."""
    night.submit(**fields)
    assert night.work() == "sealed"
    before = {key: night.archive.get(key) for key in night.archive.list("")}
    done = replayed(night)
    assert done.diverged is None
    assert {key: night.archive.get(key) for key in night.archive.list("")} == before
    assert night.leftovers() == []
    return done


def differs(night: Night, **fields: Any) -> dict[str, Any]:
    """The first difference of a run worked on to its end."""
    night.submit(**fields)
    assert night.work() == "sealed"
    told = replayed(night).diverged
    assert told is not None
    assert night.leftovers() == []
    return told


def test_a_run_comes_again_from_its_record(night: Night) -> None:
    """Replies, calls, work tree, patch and verdict; each call is told as it ends."""
    said: list[str] = []
    assert came_again(night) == Replayed("run-1", steps=3, calls=2, alike=0, outside=0, diverged=None)
    replayed(night, said=said)
    assert said == ["step 1: run_checks", "step 2: edit_file"]


@pytest.mark.full
def test_red_checks_that_were_fed_back_are_measured_again(night: Night) -> None:
    """And so is the turn that they gave the model, with its plan and its mistakes."""
    done = came_again(night, script=RED_FIRST)
    assert (done.steps, done.calls) == (5, 4)


@pytest.mark.full
def test_commands_come_again_without_a_model(night: Night) -> None:
    """Codemods are the same harness."""
    commands = ("echo 42 > answer.txt", "git status --short")
    assert came_again(night, model="none", script=None, prompt="", commands=commands).calls == 2


@pytest.mark.full
@pytest.mark.parametrize("limits", [{"steps": 1}, {"failing_calls": 1, "failing_calls_nudge": 1}], ids=str)
def test_a_limit_stops_the_replay_where_it_stopped_the_run(night: Night, limits: dict[str, int]) -> None:
    """The harness stops by itself again, and measures what was left."""
    came_again(night, script=one("echo x > f; false"), limits=Limits.model_validate(LIMITS.model_dump() | limits))


@pytest.mark.full
def test_what_people_said_and_decided_comes_where_it_came(night: Night) -> None:
    """Nobody is asked again."""
    night.submit(script=one("touch approved"), policy=(PolicyRule(pattern="^touch", action="ask", reason="may it?"),))
    assert night.work() == "parked"
    tell(night.archive, night.station.hints, RUN, "message", by="ann", at=utc_now(), text="Be careful.")
    answer(night.archive, night.station.hints, "run-1", "approved", by="boss", at=utc_now())
    assert night.work() == "sealed"
    done = replayed(night)
    assert (done.diverged, done.calls) == (None, 1)


@pytest.mark.full
def test_a_run_that_was_cancelled_is_replayed_up_to_there(night: Night) -> None:
    """What it had committed comes again."""
    night.submit(script=one("touch approved"), policy=(PolicyRule(pattern="^touch", action="ask", reason="may it?"),))
    assert night.work() == "parked"
    journal = Journal(night.archive, "run-1")
    journal.append(journal.load(), [Sealed(outcome="cancelled")], attempt=None, at=utc_now())  # as the scheduler does
    done = replayed(night)
    assert (done.diverged, done.steps, done.calls) == (None, 1, 0)


def test_a_call_that_reached_outside_is_not_repeated(night: Night) -> None:
    """Its result and what it left in the workspace are the recorded ones, and later calls find them."""
    sends = OwnTool(
        name="send", description="Send.", arguments={"type": "object"}, effect="outside",
        command="cat /proc/sys/kernel/random/uuid | tee answer.txt",
    )  # fmt: skip
    script = "- calls: [{tool: send, arguments: {}}]\n- calls: [{tool: read_file, arguments: {path: answer.txt}}]\n"
    done = came_again(night, v=2, tools=(sends,), checks=(), script=script + "- text: Done.")
    assert (done.calls, done.outside) == (1, 1)


@pytest.mark.full
def test_an_output_that_differs_is_told_by_its_first_line(night: Night) -> None:
    """With step and call; the run is not played on from there."""
    told = differs(night, checks=(), script=one("echo same; cat /proc/sys/kernel/random/uuid; echo same"))
    assert (told["step"], told["what"]) == (1, "run_command (call_1_1): output")
    assert told["recorded"] != told["now"]
    assert len(told["now"]) == 36


@pytest.mark.full
def test_outputs_that_differ_in_numbers_only_are_alike(night: Night) -> None:
    """Times and ids are in every test runner's words; how many differ so is told."""
    assert came_again(night, checks=(), script=one("echo took $(date +%N) ms of pid $$")).alike == 1


@pytest.mark.full
def test_a_work_tree_that_differs_is_told(night: Night) -> None:
    """Also where nothing was printed."""
    told = differs(night, checks=(), script=one("cat /proc/sys/kernel/random/uuid > answer.txt"))
    assert told["what"] == "run_command (call_1_1): work tree"


@pytest.mark.full
def test_a_harness_that_rules_otherwise_is_told(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was allowed then and is denied now: a change of ours, found before it is released."""
    night.submit(script=one("make it"))
    assert night.work() == "sealed"
    monkeypatch.setattr(policy, "RULES", (policy.Rule("make", policy.Ruling("deny", "no")),))
    told = replayed(night).diverged
    assert told == {"step": 1, "what": "run_command (call_1_1): status", "recorded": "error", "now": "denied"}


def test_a_run_that_has_not_ended_is_refused(night: Night) -> None:
    """And so is one that never had a repository."""
    night.submit()
    with pytest.raises(ConflictFault, match="has not ended"):
        replayed(night)
    tell(night.archive, night.station.hints, RUN, "cancel", by="ann", at=utc_now())
    night.work()
    with pytest.raises(ConflictFault, match="before its repository was there"):
        replayed(night)


@pytest.fixture
def golden(tmp_path: Path) -> Deployment:
    """A deployment whose archive holds the golden run."""
    with tarfile.open(GOLDEN) as tar:
        tar.extractall(tmp_path / "archive", filter="data")
    return Deployment(tmp_path)


def test_the_golden_run_comes_again(golden: Deployment) -> None:
    """What an earlier harness did this one does too. `tests/golden/record.py` records it anew, where the change is
    meant."""
    [run] = golden.archive.folders("runs/")
    done = golden.dawn("replay", run, "--json")
    assert done.code == 0, done
    assert done.json == {
        "schema": "dawn.replay/1", "run": run, "steps": 6, "calls": 8, "alike": 0, "outside": 0, "diverged": None
    }  # fmt: skip


def test_a_difference_has_an_exit_code_and_a_place(deployment: Deployment, tmp_path: Path) -> None:
    """As a user sees it: 4, the step, both values; 10 where there is nothing to replay."""
    code = first_commit(tmp_path / "code")
    [row] = deployment.ran("run", "--repo", code, "--command", "cat /proc/sys/kernel/random/uuid >f.txt")
    done = deployment.dawn("replay", row["run"])
    assert done.code == 4, done
    assert "step 1: run_command (call_1_1): work tree\n  recorded: " in done.out
    assert deployment.dawn("replay", "no-such-run").code == 10
