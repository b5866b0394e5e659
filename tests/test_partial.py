"""The patch of a cancelled run, made when somebody asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import wait_for
from deployments import Deployment
from repositories import first_commit

pytestmark = pytest.mark.docker


def test_diff_of_a_cancelled_run_is_what_it_had_committed(deployment: Deployment, tmp_path: Path) -> None:
    """Nobody made a patch at the cancel, so it is made from the last snapshot; nothing is stored or left behind."""
    code = first_commit(tmp_path / "code")
    with deployment.begun("run", "--repo", code, "--command", "echo new >made.txt", "--command", "sleep 600"):
        [marker] = wait_for(lambda: list(deployment.archive.list("open/")))
        run = marker.removeprefix("open/")
        deployment.awaited(run, "replied", 2)
        deployment.dawn("cancel", run)
        deployment.awaited(run, "sealed")
    before = sorted(deployment.archive.list(""))
    done = deployment.dawn("diff", run)
    assert done.code == 0, done
    assert "+++ b/made.txt\n" in done.out
    assert "+new\n" in done.out
    assert sorted(deployment.archive.list("")) == before
    assert deployment.left() == []
