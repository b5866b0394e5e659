"""A person and a run, by the command line: asked, answered, cancelled, audited."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from deployments import Deployment
from repositories import commit_all, git

pytestmark = pytest.mark.docker

ASKING = "sed -i s/41/42/ answer; true || dropdb production"
CHECK = "answer=grep -q 42 answer"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A deployment with `dawn up` in the background, for all tests of this module."""
    deployment = Deployment(tmp_path_factory.mktemp("stack"), DAWN_DECISION_POLL_S="1")
    with deployment.up():
        yield deployment


def repository(place: Path) -> Path:
    place.mkdir(parents=True)
    (place / "answer").write_text("41\n")
    git(place, "init", "--quiet", "--initial-branch=main")
    commit_all(place, "first")
    return place


def asking(stack: Deployment, place: Path) -> str:
    """A run that waits for an approval."""
    done = stack.dawn(
        "run", "--repo", repository(place), "--command", ASKING, "--check", CHECK, "--no-wait", "--json"
    )
    assert done.code == 9, done
    [row] = done.json["runs"]
    assert (row["status"], row["waiting"]) == ("waiting", "approval")
    return str(row["run"])


def test_a_run_is_approved_from_the_command_line(stack: Deployment, tmp_path: Path) -> None:
    """Everywhere it is said what to type; the second decision gets exit code 10; the audit says who did what."""
    run = asking(stack, tmp_path / "code")
    typed = f"dawn approve {run} call_1_1"
    assert typed in stack.dawn("show", run).out
    assert typed in stack.dawn("status", run).err
    assert stack.left() == []
    binding = stack.dawn("show", run, "--json").json["run"]["asked"]["binding"]
    assert stack.dawn("approve", run[:-2], "--binding", "00ff00ff").code == 10
    assert stack.dawn("approve", run[:-2], "--binding", binding[:12]).code == 0
    second = stack.dawn("deny", run, "call_1_1", "--reason", "no")
    assert (second.code, "approved by" in second.err) == (10, True)
    stack.awaited(run, "sealed")
    assert b"+42" in stack.patch(run)
    acts = stack.dawn("show", run, "--audit", "--json").json["acts"]
    assert [act["did"] for act in acts] == ["submitted", "asked: approval", "approved", "ended: changed"]
    assert acts[2]["who"] == acts[0]["who"] != ""


def test_a_wiped_redis_forgets_no_decision(stack: Deployment, tmp_path: Path) -> None:
    """Everything a run waits for is in the archive."""
    run = asking(stack, tmp_path / "code")
    with redis.Redis.from_url(json.loads((stack.state / "stack.json").read_text())["redis_url"]) as client:
        client.flushall()
    assert stack.dawn("approve", run).code == 0
    stack.awaited(run, "sealed")
    assert b"+42" in stack.patch(run)


def test_a_waiting_run_is_cancelled(stack: Deployment, tmp_path: Path) -> None:
    """F29, F49: within seconds, and a late approval is told so."""
    run = asking(stack, tmp_path / "code")
    assert stack.dawn("cancel", run).code == 0
    stack.awaited(run, "sealed")
    assert stack.dawn("approve", run).code == 10
    assert stack.run(run).sealed is not None


def test_a_run_without_a_model_cannot_be_steered(stack: Deployment, tmp_path: Path) -> None:
    """Nobody would read it."""
    run = asking(stack, tmp_path / "code")
    done = stack.dawn("steer", run, "hurry")
    assert (done.code, "no model" in done.err) == (10, True)
    assert stack.dawn("deny", run, "--reason", "never").code == 0
    stack.awaited(run, "sealed")
