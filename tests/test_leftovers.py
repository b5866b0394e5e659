"""After a batch in which everything goes wrong nothing of ours is left on the engine (T51)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from deployments import Deployment
from repositories import commit_all, git

pytestmark = pytest.mark.docker

WORK = {
    "good": "echo done > done.txt",
    "failing": "exit 0",
    "slow": "(setsid sleep 500 &) ; sleep 500",
}
"""What work.sh of a repository does; the check wants done.txt, a call may take two seconds."""

SETUP = "if [ -e wants-root ]; then mkdir -m 700 made && echo x > made/by-root && chmod 000 made/by-root; fi"


def manifest(place: Path, counts: dict[str, int]) -> Path:
    """A batch over that many repositories of each kind; setup leaves root's files in the first good one."""
    targets = []
    for kind, count in counts.items():
        for number in range(count):
            folder = place / f"{kind}-{number}"
            folder.mkdir()
            git(folder, "init", "--quiet", "--initial-branch=main")
            (folder / "work.sh").write_text(f"{WORK[kind]}\n")
            if folder.name == "good-0":
                (folder / "wants-root").touch()
            commit_all(folder)
            targets.append({"repo": str(folder)})
    batch = place / "batch.json"
    document = {"version": 1, "name": "night", "targets": targets, "task": {"commands": ["sh work.sh"]}}
    document |= {"checks": ["done=test -s done.txt"], "environment": {"setup": SETUP}}
    batch.write_text(json.dumps(document | {"limits": {"call_timeout_s": 2}}))
    return batch


def ends(deployment: Deployment, batch: Path) -> Counter[tuple[str, str | None, str | None]]:
    rows = deployment.ran("submit", batch, code=4)
    return Counter((row["outcome"], row["verdict"], row["failure"]) for row in rows)


GOOD = ("changed", "verified", None)
FAILING = ("no_change", "still_failing", None)
SLOW = ("failed", None, "agent/failing_calls")


def test_a_bad_night_leaves_nothing_on_the_engine(deployment: Deployment, tmp_path: Path) -> None:
    """A good run with root's files, one that fails and one that is killed with its children: each has its end, and
    no container, volume or network is there."""
    batch = manifest(tmp_path, {"good": 1, "failing": 1, "slow": 1})
    assert ends(deployment, batch) == {GOOD: 1, FAILING: 1, SLOW: 1}
    assert deployment.left() == []


@pytest.mark.full
@pytest.mark.timeout(900)
def test_twenty_tasks_leave_nothing_on_the_engine(deployment: Deployment, tmp_path: Path) -> None:
    """Twenty tasks of which five fail and five time out."""
    batch = manifest(tmp_path, {"good": 10, "failing": 5, "slow": 5})
    deployment.env["DAWN_WORKER_SLOTS"] = "4"
    assert ends(deployment, batch) == {GOOD: 10, FAILING: 5, SLOW: 5}
    assert deployment.left() == []
