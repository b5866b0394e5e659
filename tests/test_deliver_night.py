"""A night with a forge: `dawn up` with the lane `deliver`, real containers, pushes to git's http-backend, and pull
requests on GitHub as npm's emulate has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import wait_for
from delivering import PATH, TOKEN
from deployments import Deployment
from forge_servers import Emulate
from git_server import bridge_address, serving
from repositories import first_commit, git

from worker.contract.delivered import Delivered, delivered
from worker.store.deliveries import read_deliveries

pytestmark = [pytest.mark.docker, pytest.mark.full]


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A bare repository whose pushes need the token, and its address."""
    work, bare = first_commit(tmp_path / "work"), tmp_path / "served" / f"{PATH}.git"
    bare.parent.mkdir(parents=True)
    git(tmp_path, "clone", "--quiet", "--bare", str(work), str(bare))
    git(bare, "config", "http.receivepack", "true")
    with serving(tmp_path / "served", TOKEN, bridge_address(), public=True) as server:
        yield bare, f"{server.url}/{PATH}.git"


def manifest(folder: Path, url: str, forge: Emulate, **deliver: str) -> Path:
    asked = {"kind": "draft_pr", "forge": "github", "api_url": forge.api_url, "token": "FORGE", "labels": ["bot"]}
    path = folder / "night.yaml"
    path.write_text(
        json.dumps(
            {
                "version": 1,
                "name": "night",
                "targets": [{"repo": url}],
                "task": {"commands": ["sed -i s/two/zwei/ f.txt"]},
                "checks": ["grep -q zwei f.txt"],
                "deliver": asked | deliver,
            }
        )
    )
    return path


def fold(deployment: Deployment, run: str) -> Delivered:
    return delivered(read_deliveries(deployment.archive, run))


def test_a_verified_patch_is_a_pull_request_in_the_morning(
    deployment: Deployment, remote: tuple[Path, str], emulated_github: Emulate, tmp_path: Path
) -> None:
    """One commit on a branch, one draft with label and marks, told by status, show and audit; the marker is gone; the
    token is in no object, log or container. A review comes first where it is asked for."""
    bare, url = remote
    for left in emulated_github.pulls():  # by other tests: with so many open ones a repository gets no more
        if left["open"]:
            emulated_github.close(left["number"])
    deployment.env |= {"DAWN_DELIVER": "true", "DAWN_SECRET_FORGE": TOKEN}
    with deployment.up():
        rows = deployment.ran("submit", manifest(tmp_path, url, emulated_github, when="approved"))
        run = rows[0]["run"]
        assert (rows[0]["outcome"], rows[0]["verdict"]) == ("changed", "verified")
        shown = deployment.dawn("show", run).out
        assert "waits for a review" in shown
        assert f"dawn review {run} --approve" in shown
        assert deployment.dawn("review", run, "--approve", "--comment", "good").code == 0
        wait_for(lambda: fold(deployment, run).ends("draft_pr"), 120)
        came = fold(deployment, run)
        assert came.state == "draft", came
        wait_for(lambda: list(deployment.archive.list("open/")) == [])
        (row,) = deployment.dawn("status", rows[0]["batch"], "--json").json["runs"]
        assert (row["review"], row["delivery"]["url"]) == ("approved", came.url)
        audit = deployment.dawn("show", run, "--audit").out
        assert "approved the patch" in audit
        assert "delivery: draft" in audit
    tip = git(bare, "rev-parse", came.branch)
    assert tip == came.commit
    assert git(bare, "show", f"{tip}:f.txt") == "one\nzwei\nthree"
    (pull,) = [one for one in emulated_github.pulls() if one["branch"] == came.branch]
    assert (pull["draft"], pull["labels"], pull["base"]) == (True, ["bot"], "main")
    assert run in pull["body"]
    assert deployment.left() == []
    stored = b"".join(deployment.archive.get(key) for key in deployment.archive.list(""))
    logged = b"".join(log.read_bytes() for log in (deployment.state / "logs").iterdir())
    assert TOKEN.encode() not in stored + logged
    letter = deployment.dawn("diff", run, "--mailbox").out
    assert f"Dawnfleet-Run: {run}" in letter
