"""A `dawn` command that is killed or interrupted takes its stack along: what is left then, and who goes on. Each test
has a stack of its own, as a user without `dawn up` has.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import wait_for
from deployments import Deployment
from test_demo import FORETOLD

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]


def batch(deployment: Deployment, works: list[str]) -> Path:
    """A manifest of a folder for each of these commands, which come after one that leaves `first`."""
    place = deployment.state.parent
    for number, work in enumerate(works):
        (place / f"r{number}").mkdir()
        (place / f"r{number}" / "work.sh").write_text(f"{work}\n")
    targets = [{"repo": f"r{number}"} for number in range(len(works))]
    task = {"commands": ["echo first > first", "sh work.sh"]}
    manifest = place / "batch.json"
    manifest.write_text(json.dumps({"version": 1, "name": "night", "targets": targets, "task": task}))
    return manifest


def kinds(deployment: Deployment) -> dict[str, list[str]]:
    """The types of all events, by run; without runs that a killed submit had not begun to write, which nobody is to
    look for."""
    found = {run: [event.type for event in deployment.events(run)] for run in deployment.runs()}
    return {run: types for run, types in found.items() if types}


def nothing_left(deployment: Deployment) -> None:
    """Neither on the engine, nor a process."""
    assert deployment.left() == []
    wait_for(lambda: not deployment.processes(), 20)


@pytest.mark.full
def test_a_batch_that_was_killed_twice_is_completed(deployment: Deployment) -> None:
    """T47: kill -9 when 5 of 10 are done, and of the second command as soon as it has begun. The third does what is
    missing, and what was done stays as it was."""
    manifest = batch(deployment, ["echo done > done; sleep 0.5"] * 10)
    deployment.env["DAWN_WORKER_SLOTS"] = "2"
    with deployment.begun("submit", manifest) as first:
        wait_for(lambda: sum("sealed" in types for types in kinds(deployment).values()) >= 5, 240)
        first.kill()
    wait_for(lambda: not deployment.processes(), 20)
    done = {run: deployment.events(run) for run, types in kinds(deployment).items() if "sealed" in types}
    assert 5 <= len(done) < 10
    with deployment.begun("submit", manifest) as second:
        wait_for(lambda: "10 were there already" in deployment.background())
        second.kill()
    wait_for(lambda: not deployment.processes(), 20)
    rows = deployment.ran("submit", manifest)
    assert [row["outcome"] for row in rows] == ["changed"] * 10
    assert {run: deployment.events(run) for run in done} == done
    for types in kinds(deployment).values():
        assert (types.count("sealed"), types.count("observed"), types[-1]) == (1, 2, "sealed")
    nothing_left(deployment)


@pytest.mark.full
def test_ctrl_c_twice_keeps_what_is_done_and_cancels_the_rest(deployment: Deployment) -> None:
    """T50: SIGINT while 2 of 10 are done and 2 run, and again a second later. Exit code 130; what is done is kept,
    what runs is cancelled and its partial work shown by `dawn diff`, the others never begin; nothing is left."""
    manifest = batch(deployment, ["echo done > done"] * 2 + ["echo part > done; sleep 500"] * 8)
    deployment.env["DAWN_WORKER_SLOTS"] = "2"

    def found() -> tuple[list[str], list[str], list[str]]:
        """Runs that are done, that are in their second call, that nobody claimed."""
        events = kinds(deployment)
        done = [run for run, types in events.items() if "sealed" in types]
        busy = [run for run, types in events.items() if types.count("replied") == 2 and run not in done]
        return done, busy, [run for run, types in events.items() if "claimed" not in types]

    with deployment.begun("submit", manifest) as command:
        wait_for(lambda: [len(runs) for runs in found()] == [2, 2, 6], 240)
        done, busy, unclaimed = found()
        before = {run: deployment.events(run) for run in done}
        command.send_signal(signal.SIGINT)
        time.sleep(1)  # that is how impatient this person is, whatever has happened by then
        command.send_signal(signal.SIGINT)
        command.communicate(timeout=60)
    assert command.returncode == 130
    nothing_left(deployment)
    assert {run: deployment.events(run) for run in done} == before
    for run in busy:
        sealed = deployment.run(run).sealed
        assert sealed is not None
        assert sealed.outcome == "cancelled"
        assert "\n+first\n" in deployment.dawn("diff", run).out
    assert deployment.dawn("submit", manifest).code == 8
    events = kinds(deployment)
    assert [events[run][-1] for run in unclaimed] == ["sealed"] * 6
    assert not any("claimed" in events[run] for run in unclaimed)


STAGES = {
    "preparing": ("claimed", "--setup", "sleep 500", "--command", "true"),
    "model": ("prepared", "--model", "scripted:{folder}/thinks.yaml", "Think."),
    "call": ("replied", "--command", "echo done > done; sleep 500"),
    "verdict": ("finished", "--command", "echo done > done", "--check", "test ! -e done || sleep 500"),
}
"""The event after which `dawn run` is in that stage and stays there, and what it is asked."""


@pytest.mark.parametrize(
    "stage", ["verdict", *(pytest.param(name, marks=pytest.mark.full) for name in ("preparing", "model", "call"))]
)
def test_ctrl_c_in_any_stage_ends_the_run_and_leaves_nothing(deployment: Deployment, stage: str) -> None:
    """Exit code 130, the run is cancelled, and neither a container nor a process is left."""
    folder = deployment.state.parent
    (folder / "thinks.yaml").write_text("- delay_s: 500\n  text: Done.\n")
    (folder / "code").mkdir()
    (folder / "code" / "answer").write_text("41\n")
    event, *words = STAGES[stage]
    with deployment.begun(
        "run", "--repo", folder / "code", *(word.format(folder=folder) for word in words)
    ) as command:
        [run] = wait_for(deployment.runs, 120)
        deployment.awaited(run, event)
        wait_for(lambda: [one for one in deployment.left() if one.startswith("ps")])
        command.send_signal(signal.SIGINT)
        command.communicate(timeout=60)
    assert command.returncode == 130, deployment.background()
    sealed = deployment.run(run).sealed
    assert sealed is not None
    assert sealed.outcome == "cancelled"
    nothing_left(deployment)


def test_ctrl_c_before_anything_is_submitted_leaves_nothing(deployment: Deployment, tmp_path: Path) -> None:
    """While the stack comes up there is no run yet, and there will be none."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "answer").write_text("41\n")
    with deployment.begun("run", "--repo", tmp_path / "code", "--command", "true") as command:
        wait_for((deployment.state / "stack.lock").exists)
        command.send_signal(signal.SIGINT)
        command.communicate(timeout=120)
    assert command.returncode == 130, deployment.background()
    assert deployment.runs() == []
    nothing_left(deployment)


@pytest.mark.full
def test_demonstrations_that_were_killed_end_as_foretold(deployment: Deployment) -> None:
    """kill -9 of the owner of a whole stack, five times, each later in its work: no process is left of it, and the
    next stack brings every run to the end that was foretold."""

    def events() -> int:
        return sum(map(len, kinds(deployment).values()))

    for more in (2, 12, 20, 30, 40):
        reached = events() + more
        with deployment.begun("demo") as owner:
            wait_for(lambda reached=reached: events() >= reached, 240)
            owner.kill()
        wait_for(lambda: not deployment.processes(), 30)
    with deployment.up():
        wait_for(lambda: all("sealed" in types for types in kinds(deployment).values()), 600)
        wait_for(lambda: not deployment.left(), 60)
    entries: list[dict[str, Any]] = deployment.dawn("status", "--all", "--json").json["batches"]
    rows = [
        (entry["batch"].removeprefix("demo-").rpartition("-")[0], row) for entry in entries for row in entry["runs"]
    ]
    for scenario, row in rows:
        assert (row["outcome"], row["verdict"], row["failure"], row["steps"]) == FORETOLD[scenario]
    assert len(rows) >= len(FORETOLD)
    for types in kinds(deployment).values():
        assert types.count("sealed") == 1
    nothing_left(deployment)
