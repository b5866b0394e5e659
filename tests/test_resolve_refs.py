"""Asking many repositories what their refs are, in containers, and planning with what they say."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deployments import Deployment
from forge_servers import listed, listing
from git_server import GitServer
from repositories import commit_all, git
from sandboxes import ARCHIVE

from worker.resolve import LIMITS, Asked, resolve
from worker.sandbox.protocol import Owner, Sandbox

pytestmark = pytest.mark.docker
TOKEN = "t0ken-of-a-forge"


@pytest.fixture
def server(tmp_path: Path, git_server: Callable[[str, str], GitServer]) -> GitServer:
    """A forge with the repository /one.git, private behind a token, whose branches are main and dev."""
    code = tmp_path / "code"
    code.mkdir()
    git(code, "init", "--quiet", "--initial-branch=main")
    (code / "f").write_text("1\n")
    commit_all(code, "first")
    git(code, "branch", "dev")
    (code / "f").write_text("2\n")
    commit_all(code, "second")
    (tmp_path / "served").mkdir()
    git(tmp_path, "clone", "--quiet", "--bare", str(code), "served/one.git")
    return git_server("served", TOKEN)


@pytest.fixture
def silent(server: GitServer) -> Iterator[str]:
    """The address of a server that takes connections and never says a word."""
    with socket.socket() as listener:
        listener.bind((server.url.split("//")[1].split(":")[0], 0))
        listener.listen()
        yield f"http://{listener.getsockname()[0]}:{listener.getsockname()[1]}/x.git"


def test_each_repository_gets_its_answer(server: GitServer, silent: str, sandbox: Sandbox, tmp_path: Path) -> None:
    """Branch, HEAD and abbreviated commit are commits; what is closed, gone, silent or has no such ref is told as
    that, and ends nothing. Nothing is left on the engine."""
    one, code = f"{server.url}/one.git", tmp_path / "code"
    main, dev = git(code, "rev-parse", "main"), git(code, "rev-parse", "dev")
    asked = [
        Asked(url=silent),
        Asked(url=one, ref="dev", secret="FORGE"),
        Asked(url=one, secret="FORGE"),
        Asked(url=one, ref=dev[:9], secret="FORGE"),
        Asked(url=one, ref="gone", secret="FORGE"),
        Asked(url=one),
        Asked(url=one, secret="OTHER"),
        Asked(url=f"{server.url}/two.git", secret="FORGE"),
    ]
    found = resolve(asked, sandbox, ARCHIVE, {"FORGE": TOKEN}, timeout_s=5)
    assert found[1:4] == [
        {"commit": dev, "branch": "dev"},
        {"commit": main, "branch": "main"},
        {"commit": dev, "branch": ""},
    ]
    assert [answer["reason"] for answer in (found[0], *found[4:])] == [
        *("repository", "ref", "repository", "repository", "repository")
    ]
    assert "5 s" in found[0]["message"]
    assert "branches: dev, main" in found[4]["hint"]
    assert "DAWN_SECRET_OTHER" in found[6]["hint"]
    assert TOKEN not in json.dumps(found)
    assert not [owner for owner, _ in sandbox.owned(ARCHIVE) if owner.run.startswith("resolve")]


@pytest.mark.full
def test_what_a_killed_one_left_is_removed_by_the_next(sandbox: Sandbox) -> None:
    """No janitor knows whose it is. What a living one uses stays."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    dead, alive = (Owner(ARCHIVE, f"resolve-{pid}", 0, "prepare") for pid in (gone.pid, os.getpid()))
    with (
        sandbox.workspace(dead, sandbox.image_id("toolbox"), LIMITS),
        sandbox.workspace(alive, sandbox.image_id("toolbox"), LIMITS),
    ):
        assert resolve([], sandbox, ARCHIVE, {}) == []
        left = {owner for owner, _ in sandbox.owned(ARCHIVE)}
    assert dead not in left
    assert alive in left


def test_a_plan_locks_the_commits_that_a_run_checks_out(
    server: GitServer, deployment: Deployment, tmp_path: Path
) -> None:
    """By the commands: a repository that cannot be read is one line of the plan, and exit code 4. A branch that moves
    after the plan does not move the run."""
    code = tmp_path / "code"
    manifest = tmp_path / "fleet.yaml"
    manifest.write_text(
        f"version: 1\nname: n\ntargets: [{{repo: {server.url}/one.git, ref: main}}]\n"
        "task: {commands: ['echo more >> f']}\nlimits: {memory_bytes: 268435456}\n"
    )
    closed = deployment.dawn("plan", manifest, "--json")
    assert closed.code == 4, closed
    [line] = closed.json["targets"]
    assert (line["state"], line["commit"]) == ("unreachable", None)
    server.token = ""
    planned = deployment.dawn("plan", manifest, "--json")
    assert planned.code == 0, planned
    [line] = planned.json["targets"]
    assert (line["state"], line["commit"], line["ref"]) == ("new", git(code, "rev-parse", "main"), "main")
    (code / "f").write_text("3\n")
    commit_all(code, "third")
    git(code, "push", "--quiet", str(tmp_path / "served/one.git"), "main")
    [row] = deployment.ran("submit", manifest)
    prepared = deployment.run(row["run"]).prepared
    assert prepared is not None
    assert prepared.commit == line["commit"]
    assert b" 2\n+more" in deployment.patch(row["run"])
    assert deployment.left() == []


@pytest.mark.full
def test_a_plan_locks_what_a_forge_names(server: GitServer, deployment: Deployment, tmp_path: Path) -> None:
    """By the commands: a submit takes those repositories at those commits, and needs the forge no more."""
    server.token = ""
    manifest = tmp_path / "fleet.yaml"
    found = listed("one") | {"clone_url": f"{server.url}/one.git"}
    with listing(found) as forge:
        manifest.write_text(
            f"version: 1\nname: n\ntargets: [{{github: {{org: acme, api_url: '{forge.api_url}'}}}}]\n"
            "task: {commands: ['echo more >> f']}\nlimits: {memory_bytes: 268435456}\n"
        )
        planned = deployment.dawn("plan", manifest, "--json")
    assert planned.code == 0, planned
    [line] = planned.json["targets"]
    assert (line["target"], line["commit"]) == ("acme/one", git(tmp_path / "code", "rev-parse", "main"))
    [ran] = deployment.ran("submit", manifest)
    prepared = deployment.run(ran["run"]).prepared
    assert prepared is not None
    assert prepared.commit == line["commit"]
    assert deployment.left() == []


def test_a_request_that_is_none_is_refused(deployment: Deployment) -> None:
    """With the exit code for it, before any container."""
    command: list[Any] = [sys.executable, "-m", "worker.resolve"]
    done = subprocess.run(command, input=b"{}", env=deployment.env, capture_output=True, check=False)
    assert done.returncode == 3
    assert done.stdout == b""
