"""What a user does wrong, and what a machine lacks: told early, with exit code and hint, and nothing is lost."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer
from typing import Any

import pytest
from conftest import free_port, wait_for
from deployments import Deployment
from repositories import commit_all, git

from worker.contract.settings import Settings

WORK = ("--command", "true")
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A repository with the branches main and dev."""
    place = tmp_path / "code"
    place.mkdir()
    git(place, "init", "--quiet", "--initial-branch=main")
    (place / "x.py").write_text("x = 1\n")
    commit_all(place)
    git(place, "branch", "dev")
    return place


def refused(deployment: Deployment, code: int, *words: str | Path, **env: str) -> str:
    """What `dawn` says on stderr when it ends with that code and leaves no run behind."""
    done = deployment.dawn(*words, **env)
    assert done.code == code, done
    assert done.out == ""
    assert "Traceback" not in done.err
    assert deployment.runs() == []
    return done.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--repo", "gone", *WORK), "gone does not exist (name a URL, a folder, a git repository"),
        (("--repo", "empty", *WORK), "empty is empty (name a folder with files"),
        (("--repo", "note.txt", *WORK), "note.txt is a file, but no archive"),
        (("--repo", "https://me:key@host/x", *WORK), "holds credentials, which would be archived"),
        (
            ("--repo", "code", *WORK, "--limit", "call_timeout_s=100", "--limit", "working_time_s=50"),
            "is longer than",
        ),
        (("--repo", "code", "--model", "gpt-5", "Do it."), "unknown model 'gpt-5' (known are none, scripted:FILE"),
        (("--repo", "code", "--model", "scripted:bad.yaml", "Do it."), "bad.yaml:2:3: [1].txt"),
        (("--repo", "code", "--model", "scripted:torn.yaml", "Do it."), "torn.yaml:2:1: expected"),
        (("--repo", "code", "--model", "scripted:gone.yaml", "Do it."), "cannot read the script gone.yaml"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(
    deployment: Deployment, code: Path, words: tuple[str, ...], told: str
) -> None:
    """Exit code 3, with the place or what is known instead; no stack is started for it."""
    place = code.parent
    (place / "empty").mkdir()
    (place / "note.txt").write_text("note")
    (place / "bad.yaml").write_text("- text: a\n- txt: b\n")
    (place / "torn.yaml").write_text("- text: [a\n")
    done = deployment.dawn("run", *words, cwd=place)
    assert (done.code, done.out) == (3, "")
    assert told in done.err
    assert not (deployment.state / "stack.lock").exists()


def test_a_run_that_is_to_be_replayed_must_be_there(deployment: Deployment, code: Path) -> None:
    """Exit code 10 at once, not a failed run later."""
    said = refused(deployment, 10, "run", "--repo", code, "--model", "replay:gone", "Do it.")
    assert "there is no run 'gone'" in said
    assert "hint: list them: dawn status --all" in said


def test_a_redis_that_is_gone_is_try_later(deployment: Deployment, code: Path) -> None:
    """Exit code 75, and the variable is named."""
    url = f"redis://127.0.0.1:{free_port()}"
    said = refused(deployment, 75, "run", "--repo", code, *WORK, DAWN_REDIS_URL=url)
    assert "error: Redis failed" in said
    assert "DAWN_REDIS_URL" in said


def test_the_setup_looks_for_the_engine_that_was_named(tmp_path: Path) -> None:
    """Another engine that answers does not stand in for it, and none is installed or started in its place."""
    named = os.environ | {"DAWN_DOCKER_URL": f"unix://{tmp_path}/nowhere.sock"}
    script = f"source {shlex.quote(str(ROOT / 'deploy' / 'setup.sh'))}; ensure_engine"
    done = subprocess.run(["bash", "-c", script], env=named, capture_output=True, text=True, check=False)
    assert done.returncode == 75
    assert "nowhere.sock" in done.stderr


@pytest.mark.parametrize("variable", ["DAWN_DOCKER_URL", "DOCKER_HOST"])
def test_without_an_engine_nothing_is_submitted(deployment: Deployment, code: Path, variable: str) -> None:
    """Exit code 75 with the worker's own words and hint; our variable and Docker's are both obeyed."""
    said = refused(deployment, 75, "run", "--repo", code, *WORK, **{variable: f"unix://{code.parent / 'dead.sock'}"})
    assert "container engine" in said
    assert "hint: is dockerd running, and may this user open its socket?" in said


@contextmanager
def old_engine(path: Path) -> Iterator[str]:
    """Something that answers as an engine of years ago."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            version = {"ApiVersion": "1.40", "MinAPIVersion": "1.12", "Version": "19.03", "ServerVersion": "19.03"}
            body = json.dumps(version | {"ID": "old", "NCPU": 1}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with UnixStreamServer(str(path), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield f"unix://{path}"
        server.shutdown()


def test_an_engine_that_is_too_old_is_named(deployment: Deployment, code: Path) -> None:
    """Exit code 75 with the version found and the one needed."""
    with old_engine(code.parent / "old.sock") as url:
        said = refused(deployment, 75, "run", "--repo", code, *WORK, DAWN_DOCKER_URL=url)
    assert "container engine 19.03 is too old" in said
    assert "hint: version 20.10 or newer is needed" in said


def test_a_doctor_looks_at_everything_though_all_is_gone(deployment: Deployment, code: Path) -> None:
    """Exit code 75; engine, Redis, archive and prices each have their finding and a hint."""
    env = {
        "DAWN_PRICES": str(code.parent / "none.yaml"),
        "DAWN_DOCKER_URL": f"unix://{code.parent / 'dead.sock'}",
        "DAWN_REDIS_URL": f"redis://127.0.0.1:{free_port()}",
        "DAWN_ARCHIVE": "s3://dawn/x",
        "DAWN_S3_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}",
        "DAWN_S3_ACCESS_KEY_ID": "a-key-4711",
        "DAWN_S3_SECRET_ACCESS_KEY": "a-secret-4711",
    }
    done = deployment.dawn("doctor", "--json", **env)
    assert done.code == 75
    bad = {check["name"]: check["hint"] for check in done.json["checks"] if not check["ok"]}
    assert {"archive", "redis", "engine", "prices"} <= set(bad)
    assert all(bad.values())


def test_an_archive_without_conditional_writes_is_refused_at_start(
    rclone: Settings, deployment: Deployment, code: Path
) -> None:
    """Two writers could both write segment 42 there: no command and no stack begins on it."""
    env = {
        "DAWN_ARCHIVE": "s3://dawn/bad-input",
        "DAWN_S3_ENDPOINT_URL": str(rclone.s3_endpoint_url),
        "DAWN_S3_ACCESS_KEY_ID": "dawn-key",
        "DAWN_S3_SECRET_ACCESS_KEY": "dawn-secret",
    }
    for words in (("run", "--repo", code, *WORK), ("up",)):
        done = deployment.dawn(*words, **env)
        assert (done.code, done.out) == (75, "")
        assert "conditional" in done.err
        assert "hint:" in done.err


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A file system of its own; skips where this user may not mount one."""
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], check=False)
    if mounted.returncode:
        pytest.skip("this user may not mount a tmpfs")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def test_a_full_disk_under_the_archive_refuses_a_submit(tmp_path: Path, code: Path) -> None:
    """Exit code 75 with a hint, before a run is begun."""
    (code / "large.bin").write_bytes(os.urandom(300_000))
    commit_all(code)
    with small_disk(tmp_path / "disk", "256k") as disk:
        said = refused(Deployment(disk.parent, f"file://{disk}/archive"), 75, "run", "--repo", code, *WORK)
    assert "No space left on device" in said
    assert "hint:" in said


@pytest.mark.docker
def test_a_disk_that_fills_up_in_the_middle_is_waited_for(tmp_path: Path, code: Path) -> None:
    """The source fits and the prepared environment does not: the run is given back until there is room again,
    more often than a run may fail, and ends as if nothing had been."""
    (code / "large.bin").write_bytes(os.urandom(600_000))
    commit_all(code)
    with small_disk(tmp_path / "disk", "1m") as disk:
        deployment = Deployment(tmp_path, f"file://{disk}/archive", DAWN_INFRA_BACKOFF_S="[0.1]")
        command = ("--command", "echo 2 > y.py")
        with deployment.begun("run", "--repo", code, *command) as process:
            [run] = wait_for(lambda: deployment.runs() if (disk / "archive").exists() else [])
            deployment.awaited(run, "yielded", 4)
            subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
            process.communicate(timeout=100)
        assert process.returncode == 0, deployment.background()
        sealed = deployment.run(run).sealed
        assert sealed is not None
        assert (sealed.outcome, sealed.verdict) == ("changed", "unverified")


BATCH = """
version: 1
name: night
task: {commands: [echo 2 > y.py]}
targets:
  - repo: unborn
  - repo: http://127.0.0.1:9/gone.git
  - {repo: code, ref: nope}
  - {repo: code, image: "nobody/nothing:1"}
  - {repo: code, path: nowhere}
  - {repo: code, ref: dev}
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What only a worker can know, all asked of one stack: name -> the row of the run it became."""
    place = tmp_path_factory.mktemp("asked")
    deployment = Deployment(place)
    for name in ("code", "unborn"):
        (place / name).mkdir()
        git(place / name, "init", "--quiet", "--initial-branch=main")
    (place / "code" / "x.py").write_text("x = 1\n")
    commit_all(place / "code")
    git(place / "code", "branch", "dev")
    (place / "batch.yaml").write_text(BATCH)
    asked = {
        "check": ("--repo", place / "code", "--check", "no-such-tool -q", *WORK),
        "key": ("--repo", place / "code", "--model", "anthropic/claude", "Do it."),
        "secret": ("--repo", "https://git.example.org/x.git", "--secret", "MISSING", *WORK),
    }
    names = ("no commits", "unreachable", "ref", "image", "path", "good")
    with deployment.up():
        batch = deployment.ran("submit", place / "batch.yaml", code=4)
        alone = {name: deployment.ran("run", *words, code=4)[0] for name, words in asked.items()}
    return dict(zip(names, batch, strict=True)) | alone


@pytest.mark.docker
@pytest.mark.parametrize(
    ("name", "failure", "told"),
    [
        ("no commits", "env/repository", ["has no commits"]),
        ("unreachable", "env/repository", ["cannot read http://127.0.0.1:9/gone.git"]),
        ("ref", "env/ref", ["'nope'", "branches: dev, main"]),
        ("image", "env/image", ["no image nobody/nothing:1", "docker pull"]),
        ("check", "env/check", ["no-such-tool: command not found", "install it in setup"]),
        ("path", "env/repository", ["nowhere"]),
        ("key", "provider/auth", ["set DAWN_ANTHROPIC_API_KEY or ANTHROPIC_API_KEY"]),
        ("secret", "env/repository", ["set DAWN_SECRET_MISSING in the worker's environment"]),
    ],
)
def test_what_only_a_worker_can_know_fails_the_run_with_its_reason(
    rows: dict[str, dict[str, Any]], name: str, failure: str, told: list[str]
) -> None:
    """Exit code 4, before a step; class, reason, what was found and what to do stand in the row."""
    row = rows[name]
    assert (row["outcome"], row["failure"], row["steps"]) == ("failed", failure, 0)
    assert [words for words in told if words not in row["detail"]] == []


@pytest.mark.docker
def test_bad_targets_stop_no_good_one(rows: dict[str, dict[str, Any]]) -> None:
    """Five of six targets of one batch failed, and the sixth is done (T41, T49)."""
    assert (rows["good"]["outcome"], rows["good"]["failure"]) == ("changed", None)
    assert rows["good"]["batch"] == rows["ref"]["batch"]


def test_an_invalid_field_is_told_with_its_line_before_anything_starts(deployment: Deployment, code: Path) -> None:
    """One bad target of three refuses the manifest, because it was never what the user meant (T49)."""
    batch = code.parent / "batch.yaml"
    targets = "targets:\n  - repo: code\n  - {repo: code, reff: dev}\n  - repo: code\n"
    batch.write_text("version: 1\nname: night\ntask: {commands: [x]}\n" + targets)
    said = refused(deployment, 3, "submit", batch)
    assert f"{batch}:6:18 unknown-key targets[1].reff is not known here (did you mean 'ref'?)" in said
