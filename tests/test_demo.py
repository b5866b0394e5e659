"""`dawn demo` as a user starts it, once in peace and once with its worker killed in the middle."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any

import pytest
from conftest import wait_for
from deployments import Deployment, Done, worker_process

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

FORETOLD = {
    "cart": ("changed", "verified", None, 6),
    "calc": ("changed", "verified", None, 3),
    "clock": ("changed", "verified", None, 4),
    "gives-up": ("changed", "still_failing", None, 4),
    "limit": ("failed", None, "limit/steps", 2),
}
"""Scenario -> outcome, verdict, failure, steps: written down here again, not read from the code under test."""

CHANGED = {
    "cart": "+  return items.reduce((sum, item) => sum + item.price * item.quantity, 0);",
    "calc": "+    return sum(values) / len(values) if values else 0.0",
    "clock": '+    return 60 * int(hours) + int(rest.rstrip("m"))',
    "gives-up": '+"""Averages. Known problem: the mean of no values."""',
}


@dataclass(frozen=True)
class Demo:
    """What a demonstration left. rows: of `dawn status --json`, by scenario."""

    deployment: Deployment
    done: Done
    rows: dict[str, dict[str, Any]]

    def patches(self) -> dict[str, bytes]:
        return {name: self.deployment.patch(row["run"]) for name, row in self.rows.items()}


def demo_of(deployment: Deployment, done: Done) -> Demo:
    batches = deployment.dawn("status", "--all", "--json").json["batches"]
    rows = {entry["batch"].removeprefix("demo-").rpartition("-")[0]: entry["runs"][0] for entry in batches}
    return Demo(deployment, done, rows)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """One whole `dawn demo`."""
    deployment = Deployment(tmp_path_factory.mktemp("demo"))
    return demo_of(deployment, deployment.dawn("demo", timeout_s=300))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The demonstration again; the worker is killed once one of its runs has the result of a call."""
    deployment = Deployment(tmp_path_factory.mktemp("killed"))
    with deployment.begun("demo") as process:
        worker = wait_for(lambda: _worker_with_a_result(deployment), 150)
        os.kill(worker_process(worker), signal.SIGKILL)
        out, _ = process.communicate(timeout=300)
    return demo_of(deployment, Done(process.returncode, out, deployment.background()))


def _worker_with_a_result(deployment: Deployment) -> str | None:
    """The worker of a run that has the result of a call and has not ended."""
    for run in deployment.runs():
        kinds = [event.type for event in deployment.events(run)]
        if "observed" in kinds and "sealed" not in kinds:
            return deployment.run(run).worker
    return None


def test_the_demonstration_ends_as_foretold(demo: Demo) -> None:
    """Exit code 0, and each of the five runs has its outcome, verdict, failure and steps."""
    assert demo.done.code == 0, demo.done
    assert _ends(demo) == FORETOLD


def test_the_demonstration_shows_a_table_the_diffs_and_the_archive(demo: Demo) -> None:
    """What a user reads on stdout: one row a run, what each changed, and where the evidence lies."""
    out = demo.done.out
    for name, row in demo.rows.items():
        [line] = [line for line in out.splitlines() if line.strip().startswith(f"{row['run']} ") and "$" in line]
        assert FORETOLD[name][0] in line
    assert {name for name, line in CHANGED.items() if line in out.splitlines()} == set(CHANGED)
    assert "limit/steps" in out
    assert "Stopped after 2 steps." in out
    assert demo.deployment.archive_url in out


def test_progress_of_the_demonstration_goes_to_stderr(demo: Demo) -> None:
    """Claims, steps and ends are told as they happen, apart from the data."""
    for word in ("claimed by", "prepared from commit", "step 1:", "changed, verified"):
        assert word in demo.done.err
    assert "claimed by" not in demo.done.out


def test_the_bug_that_a_limit_left_is_still_there(demo: Demo) -> None:
    """The run that was stopped by its limit has no patch."""
    assert demo.patches()["limit"] == b""


def test_the_demonstration_leaves_nothing_on_the_engine(demo: Demo) -> None:
    """No container, volume or network of its archive is there when the command ends."""
    assert demo.deployment.left() == []


@pytest.mark.full
def test_a_killed_worker_changes_no_outcome(demo: Demo, killed: Demo) -> None:
    """kill -9 in the middle: the command succeeds, with the same outcomes, steps and patches as in peace."""
    assert killed.done.code == 0, killed.done
    assert _ends(killed) == _ends(demo)
    assert killed.patches() == demo.patches()


@pytest.mark.full
def test_every_run_of_a_killed_worker_ends_once(killed: Demo) -> None:
    """Exactly one seal, as the last event; somebody was taken over, and no step was committed twice."""
    claims = 0
    for row in killed.rows.values():
        events = killed.deployment.events(row["run"])
        assert [event.type for event in events].index("sealed") == len(events) - 1
        steps = [event.step for event in events if event.type == "replied"]
        assert steps == sorted(set(steps))
        observed = [event.observation.call_id for event in events if event.type == "observed"]
        assert len(observed) == len(set(observed))
        claims += sum(event.type == "claimed" for event in events)
    assert claims > len(killed.rows)


@pytest.mark.full
def test_a_killed_worker_leaves_nothing_on_the_engine(killed: Demo) -> None:
    """What the dead worker's attempts had is removed by those who took over."""
    assert killed.deployment.left() == []


def _ends(demo: Demo) -> dict[str, tuple[Any, ...]]:
    return {name: (row["outcome"], row["verdict"], row["failure"], row["steps"]) for name, row in demo.rows.items()}
