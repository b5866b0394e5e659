"""From the command line to the patch and back: `dawn` processes, a real queue, real containers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import wait_for
from deployments import Deployment, s3_environment, worker_process
from model_server import ModelServer
from repositories import commit_all, git, tar_of

from worker.contract.events import Claimed, Replied, Yielded
from worker.contract.settings import Settings

pytestmark = pytest.mark.docker

FILE = "sp ace é.txt"
CHECK = f"answer=grep -q 42 '{FILE}'"
FIX = "sed -i s/41/42/ *.txt"
SCRIPT = f"""
- calls: [{{tool: run_checks}}]
- expect: '"exit_code": ?1'
  text: It says 41.
  calls: [{{tool: edit_file, arguments: {{path: '{FILE}', old_text: '41', new_text: '42'}}}}]
- text: It says 42 now.
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A deployment with `dawn up` in the background, for all tests of this module."""
    deployment = Deployment(tmp_path_factory.mktemp("stack"))
    with deployment.up():
        yield deployment


@pytest.fixture(scope="module")
def repaired(stack: Deployment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The row of a run with three scripted steps that is over."""
    place = tmp_path_factory.mktemp("repaired")
    (place / "fix.yaml").write_text(SCRIPT)
    asked = ("--check", CHECK, "--model", f"scripted:{place / 'fix.yaml'}", "Make it 42.")
    [row] = stack.ran("run", "--repo", repository(place / "code"), *asked)
    return row


def folder(place: Path) -> Path:
    """A plain folder with one file that says 41."""
    place.mkdir(parents=True)
    (place / FILE).write_text("41\n")
    return place


def repository(place: Path) -> Path:
    folder(place)
    git(place, "init", "--quiet", "--initial-branch=main")
    commit_all(place, "first")
    return place


def sdist(place: Path) -> Path:
    place.mkdir(parents=True)
    (place / "pkg-1.0.tar.gz").write_bytes(tar_of((FILE, b"41\n")))
    return place / "pkg-1.0.tar.gz"


SOURCES: dict[str, Callable[[Path], str | Path]] = {
    "folder": lambda place: folder(place / "plain"),
    "sdist": lambda place: sdist(place / "plain"),
    "file URL": lambda place: repository(place / "söurce with blanks").as_uri(),
    "difficult path": lambda place: repository(place / "söurce with blanks"),
}


def applied(patch: bytes, place: Path) -> str:
    """What the file says after `git apply` on the untouched start."""
    repository(place)
    subprocess.run(["git", "apply", "--index"], input=patch, cwd=place, check=True)
    return (place / FILE).read_text()


@pytest.mark.parametrize("kind", SOURCES)
def test_a_command_repairs_any_kind_of_source(stack: Deployment, tmp_path: Path, kind: str) -> None:
    """changed/verified without any model, and git applies the patch to the start."""
    source = SOURCES[kind](tmp_path)
    [row] = stack.ran("run", "--repo", source, "--command", FIX, "--check", CHECK)
    assert (row["outcome"], row["verdict"], row["cost_usd"]) == ("changed", "verified", 0)
    assert applied(stack.patch(row["run"]), tmp_path / "start") == "42\n"


def test_a_script_goes_on_by_what_it_sees(stack: Deployment, repaired: dict[str, Any]) -> None:
    """It expects the red check, edits, and ends; the verdict is the checks' and not the script's."""
    assert (repaired["outcome"], repaired["verdict"], repaired["steps"]) == ("changed", "verified", 3)
    seen = [event.observation for event in stack.events(repaired["run"]) if event.type == "observed"]
    assert [(one.tool, one.exit_code) for one in seen] == [("run_checks", 1), ("edit_file", 0)]


def test_a_replay_repeats_a_run(stack: Deployment, repaired: dict[str, Any], tmp_path: Path) -> None:
    """Named by the first letters of its id; the same replies on the same files give the same patch, at no cost."""
    asked = ("--check", CHECK, "--model", f"replay:{repaired['run'][:-4]}", "Make it 42.")
    [again] = stack.ran("run", "--repo", repository(tmp_path / "other"), *asked)
    assert (again["outcome"], again["verdict"], again["steps"]) == ("changed", "verified", 3)
    assert stack.patch(again["run"]) == stack.patch(repaired["run"]) != b""
    assert (again["cost_known"], again["cost_usd"]) == (True, 0)


def manifest(place: Path, *repos: str, command: str = FIX) -> Path:
    targets = [{"repo": repo} for repo in repos]
    task = {"commands": [command]}
    path = place / "batch.yaml"
    path.write_text(json.dumps({"version": 1, "name": "night", "targets": targets, "task": task, "checks": [CHECK]}))
    return path


def test_a_broken_target_stops_no_other_and_a_second_submit_does_nothing(stack: Deployment, tmp_path: Path) -> None:
    """Two of three targets succeed, the exit code says that one failed; the same manifest again is a no-op."""
    repository(tmp_path / "a")
    (folder(tmp_path / "b") / "b").write_text("Another test's folder would be the same work, and reused.\n")
    batch = manifest(tmp_path, "a", "http://127.0.0.1:9/unreachable.git", "b")
    rows = stack.ran("submit", batch, code=4)
    assert [(row["outcome"], row["verdict"]) for row in rows] == [
        ("changed", "verified"),
        ("failed", None),
        ("changed", "verified"),
    ]
    assert rows[1]["failure"] == "env/repository"
    before = [stack.run(row["run"]) for row in rows]
    again = stack.dawn("submit", batch, "--json")
    assert "0 new runs, 3 were there already" in again.err
    assert (again.code, again.json["runs"]) == (4, rows)
    assert [stack.run(row["run"]) for row in rows] == before


def test_a_refusal_ends_its_own_run_only(stack: Deployment, tmp_path: Path) -> None:
    """T07: the model refuses the second of three; its words are kept, the others are verified, and all is counted."""
    for name in "abc":
        repository(tmp_path / name)
    (tmp_path / "b" / "AGENTS.md").write_text("Say no.\n")
    commit_all(tmp_path / "b", "instructions")
    refusal = "- cases:\n    - {expect: 'Say no', text: I cannot do that., stop: content_filter}\n    - "
    (tmp_path / "script.yaml").write_text(SCRIPT.lstrip().replace("- ", refusal, 1))
    batch = {
        "version": 1,
        "name": "refused",
        "targets": [{"repo": name} for name in "abc"],
        "task": {"model": "scripted:script.yaml", "prompt": "Make it 42."},
        "checks": [CHECK],
    }
    (tmp_path / "batch.yaml").write_text(json.dumps(batch))
    rows = stack.ran("submit", tmp_path / "batch.yaml", code=4)
    verified = ("changed", "verified", None)
    refused = ("failed", None, "refused/content_filter")
    assert [(row["outcome"], row["verdict"], row["failure"]) for row in rows] == [verified, refused, verified]
    finished = stack.run(rows[1]["run"]).finished
    assert finished is not None
    assert finished.text == "I cannot do that."
    assert "2 changed/verified, 1 refused" in stack.dawn("status").out


def test_a_batch_that_failed_altogether_exits_with_five(stack: Deployment, tmp_path: Path) -> None:
    """Two runs, neither of which could be prepared."""
    stack.ran("submit", manifest(tmp_path, "http://127.0.0.1:9/a.git", "http://127.0.0.1:9/b.git"), code=5)


def test_a_command_that_leaves_the_check_red_exits_with_four(stack: Deployment, tmp_path: Path) -> None:
    """What it changed is kept, and the verdict says that the check is as red as before."""
    source = repository(tmp_path / "code")
    [row] = stack.ran("run", "--repo", source, "--command", "sed -i s/41/43/ *.txt", "--check", CHECK, code=4)
    assert (row["outcome"], row["verdict"]) == ("changed", "still_failing")
    assert b"+43" in stack.patch(row["run"])


def test_a_run_is_read_by_the_first_letters_of_its_id(stack: Deployment, repaired: dict[str, Any]) -> None:
    """status, show, logs and diff agree on one run."""
    prefix = repaired["run"][:-4]
    assert stack.dawn("status", prefix, "--json").json["runs"] == [repaired]
    assert stack.dawn("show", prefix, "--json").json["run"] == repaired
    assert stack.dawn("diff", prefix).out.encode() == stack.patch(repaired["run"])
    lines = [json.loads(line) for line in stack.dawn("logs", prefix, "--json").out.splitlines()]
    kinds = [event.type for event in stack.events(repaired["run"])]
    assert [line["record"]["event"]["type"] for line in lines] == kinds


def detached(stack: Deployment, *words: str | Path) -> str:
    """The id of a run that was left to the stack."""
    done = stack.dawn("run", *words, "--detach", "--json")
    assert done.code == 0, done
    [run] = done.json["batches"][0]["runs"]
    return str(run)


def test_logs_follow_a_run_to_its_end(stack: Deployment, tmp_path: Path) -> None:
    """`dawn logs -f` prints every event as it comes and ends with the run."""
    run = detached(stack, "--repo", repository(tmp_path / "code"), "--command", FIX)
    done = stack.dawn("logs", run, "-f", "--json")
    assert done.code == 0
    kinds = [json.loads(line)["record"]["event"]["type"] for line in done.out.splitlines()]
    assert kinds == [event.type for event in stack.events(run)]
    assert kinds[-1] == "sealed"


def of_run(stack: Deployment, run: str) -> list[str]:
    """Containers of a run that live now."""
    words = ["docker", "ps", "--quiet", "--filter", f"label=dawnfleet.run={run}"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


def test_cancel_ends_a_call_in_flight_within_five_seconds(stack: Deployment, tmp_path: Path) -> None:
    """By the first letters of its id; nothing of the run is alive then, and who waits for it gets exit code 8."""
    source = repository(tmp_path / "long")
    with stack.begun("run", "--repo", source, "--command", f"{FIX}; sleep 500", "--key", "c") as waiting:
        [run] = wait_for(lambda: [name for name in stack.runs() if name.startswith("long-")])
        stack.awaited(run, "replied")
        done = stack.dawn("cancel", run[:-3])
        assert (done.code, done.out.strip()) == (0, run)
        wait_for(lambda: not of_run(stack, run), 5)
        waiting.communicate(timeout=60)
    assert waiting.returncode == 8
    sealed = stack.run(run).sealed
    assert sealed is not None
    assert sealed.outcome == "cancelled"
    assert stack.dawn("cancel", run).code == 10


def test_ctrl_c_cancels_and_exits_with_130(stack: Deployment, tmp_path: Path) -> None:
    """The run ends as cancelled, by whoever pressed it; the stack goes on."""
    source = repository(tmp_path / "pressed")
    with stack.begun("run", "--repo", source, "--command", "sleep 500") as waiting:
        [run] = wait_for(lambda: [name for name in stack.runs() if name.startswith("pressed-")])
        stack.awaited(run, "replied")
        waiting.send_signal(signal.SIGINT)
        waiting.communicate(timeout=60)
    assert waiting.returncode == 130
    sealed = stack.run(run).sealed
    assert sealed is not None
    assert sealed.outcome == "cancelled"


@pytest.mark.full
def test_a_terminated_worker_gives_its_run_to_another(stack: Deployment, tmp_path: Path) -> None:
    """SIGTERM in a call: after the soft limit it is rolled back, and the next worker's call is the only one kept."""
    command = "echo once >> *.txt; sleep 6"
    run = detached(stack, "--repo", repository(tmp_path / "code"), "--command", command)
    stack.awaited(run, "replied")
    os.kill(worker_process(stack.run(run).worker), signal.SIGTERM)
    stack.awaited(run, "sealed")
    events = stack.events(run)
    claims = [event.worker for event in events if isinstance(event, Claimed)]
    assert len(claims) == len(set(claims)) == 2
    assert [event.why for event in events if isinstance(event, Yielded)] == ["drain"]
    assert [event.type for event in events].count("observed") == 1
    assert stack.patch(run).count(b"\n+once") == 1


def test_a_damaged_journal_exits_with_eleven(stack: Deployment, repaired: dict[str, Any], tmp_path: Path) -> None:
    """Evidence that does not have its hash is never shown as if it had; verify names it also where a roll-up, which
    by the chain is the same, still tells readers what it said."""
    shutil.copytree(stack.archive_url.removeprefix("file://"), tmp_path / "archive")
    folder, copy = tmp_path / "archive/runs" / repaired["run"], Deployment(tmp_path)
    segment = folder / "journal/000000001.jsonl"
    segment.write_bytes(segment.read_bytes().replace(b"claimed", b"cleared"))
    assert copy.dawn("verify", repaired["run"]).code == 11
    shutil.rmtree(folder / "rollup")
    assert copy.dawn("show", repaired["run"]).code == 11


def test_a_stack_that_runs_already_is_not_started_twice(stack: Deployment) -> None:
    """Exit code 10, with what to do instead."""
    done = stack.dawn("up")
    assert done.code == 10
    assert "a stack runs here already" in done.err
    assert "DAWN_STATE_DIR" in done.err


def test_nothing_is_left_while_the_stack_goes_on(stack: Deployment, repaired: dict[str, Any]) -> None:
    """When its runs have ended, no container, volume or network of an archive is there."""
    assert repaired["outcome"]
    assert wait_for(lambda: stack.left() == [], 30)


@pytest.mark.full
def test_a_killed_command_is_finished_by_the_next(deployment: Deployment, tmp_path: Path) -> None:
    """kill -9 of `dawn run` takes its whole stack along; the same command with the same key goes on where it was."""
    (tmp_path / "fix.yaml").write_text(SCRIPT.replace("- text: It", "- delay_s: 3\n  text: It"))
    asked = ("--check", CHECK, "--model", f"scripted:{tmp_path / 'fix.yaml'}", "--key", "k", "Make it 42.")
    words = ("run", "--repo", repository(tmp_path / "code"), *asked)
    with deployment.begun(*words) as first:
        [run] = wait_for(deployment.runs)
        deployment.awaited(run, "observed", 2)
        first.kill()
    before = deployment.events(run)
    assert before[-1].type != "sealed"
    [row] = deployment.ran(*words)
    assert (row["run"], row["outcome"], row["verdict"]) == (run, "changed", "verified")
    after = deployment.events(run)
    assert after[: len(before)] == before
    assert [event.type for event in after].count("observed") == 2
    assert deployment.left() == []


def test_a_whole_run_on_an_archive_in_a_bucket(seaweed: Settings, tmp_path: Path) -> None:
    """`dawn run` with a stack of its own; everything it leaves is in the bucket, nothing on the engine."""
    deployment = Deployment(tmp_path, "s3://dawn/end-to-end", **s3_environment(seaweed))
    [row] = deployment.ran("run", "--repo", repository(tmp_path / "code"), "--command", FIX, "--check", CHECK)
    assert (row["outcome"], row["verdict"]) == ("changed", "verified")
    assert applied(deployment.patch(row["run"]), tmp_path / "start") == "42\n"
    assert list(deployment.archive.list("open/")) == []
    assert deployment.left() == []


EDIT = {"path": FILE, "old_text": "41", "new_text": "42"}


def openai_answers(name: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "It says 42 now."}
    if name:
        function = {"name": name, "arguments": json.dumps(arguments)}
        message = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    usage = {"prompt_tokens": 1000, "completion_tokens": 50}
    return {"choices": [{"message": message, "finish_reason": "tool_calls" if name else "stop"}], "usage": usage}


def anthropic_answers(name: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {"type": "text", "text": "It says 42 now."}
    if name:
        content = {"type": "tool_use", "id": "c1", "name": name, "input": arguments}
    usage = {"input_tokens": 1000, "output_tokens": 50}
    return {"content": [content], "stop_reason": "tool_use" if name else "end_turn", "usage": usage}


@pytest.mark.parametrize("provider", [pytest.param("openai", marks=pytest.mark.full), "anthropic"])
def test_a_whole_run_with_a_provider(
    deployment: Deployment, model_server: ModelServer, tmp_path: Path, provider: str
) -> None:
    """The model sees the red check, edits, and is done; tokens are counted, the price of a local model is unknown."""
    answers = openai_answers if provider == "openai" else anthropic_answers
    for name, arguments in (("run_checks", {}), ("edit_file", EDIT), (None, {})):
        model_server.will_answer(answers(name, arguments))
    env = {f"DAWN_{provider.upper()}_BASE_URL": model_server.url, f"DAWN_{provider.upper()}_API_KEY": "a-key-0815"}
    asked = ("--model", f"{provider}/tiny", "--check", CHECK, "Make it 42.")
    [row] = deployment.ran("run", "--repo", repository(tmp_path / "code"), *asked, **env)
    assert (row["outcome"], row["verdict"], row["steps"]) == ("changed", "verified", 3)
    assert (row["tokens"], row["cost_known"], row["cost_usd"]) == (3150, False, None)
    bodies = [body.decode() for body in model_server.bodies]
    assert "Make it 42." in bodies[0]
    assert ['"c1"' in body for body in bodies] == [False, True, True]
    finished = [event for event in deployment.events(row["run"]) if event.type == "finished"]
    assert finished[0].text == "It says 42 now."
    assert len([event for event in deployment.events(row["run"]) if isinstance(event, Replied)]) == 3
