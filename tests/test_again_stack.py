"""Candidates, reuse and retries as a user meets them: a batch on a deployment with real workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployments import Deployment
from repositories import commit_all, git

pytestmark = [pytest.mark.docker, pytest.mark.full]

MANIFEST = """\
version: 1
name: night
targets: [{repo: good}, {repo: bad}]
task: {commands: [echo 42 > answer]}
checks: ["answer=grep -q 42 answer; test ! -e bad"]
limits: {memory_bytes: 268435456}
candidates: 2
"""


def test_a_batch_is_completed_by_retries_and_reused_by_the_next(deployment: Deployment, tmp_path: Path) -> None:
    """Both candidates of a target are worked on; of the failed target there is one more run; the same manifest again
    counts what stands; another batch that asks the same does not do verified work again."""
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "answer").write_text("41\n")
        (tmp_path / name / name).write_text("")
        git(tmp_path / name, "init", "--quiet", "--initial-branch=main")
        commit_all(tmp_path / name, "first")
    manifest = tmp_path / "fleet.yaml"
    manifest.write_text(MANIFEST)
    with deployment.up():
        rows = deployment.ran("submit", manifest, code=4)
        batch = rows[0]["batch"]
        ended = [(row["target"], row["ordinal"], row["verdict"]) for row in rows]
        assert ended == [
            *(("good", number, "verified") for number in range(2)),
            *(("bad", number, "still_failing") for number in range(2)),
        ]
        done = deployment.dawn("retry", batch, "--json")
        assert done.code == 0, done
        [retried] = done.json["runs"]
        assert (retried["target"], retried["ordinal"]) == ("bad", 2)
        again = deployment.ran("submit", manifest, code=4)
        assert [(row["target"], row["ordinal"]) for row in again] == [*((t, n) for t, n, _ in ended), ("bad", 2)]
        assert {row["outcome"] for row in again} == {"changed"}
        listed = deployment.dawn("ls", "--batch", batch, "--json").json["runs"]
        assert [(row["target"], row["ordinal"]) for row in listed] == [("good", 0), ("bad", 2)]
        assert deployment.dawn("verify", batch).code == 0
        manifest.write_text(MANIFEST.replace("candidates: 2", "labels: [team=web]"))
        good, bad = deployment.ran("submit", manifest, "--fail-on", "infra")
        assert (good["outcome"], good["verdict"]) == ("reused", "verified")
        assert rows[0]["run"] in good["detail"] or rows[1]["run"] in good["detail"]
        assert bad["verdict"] == "still_failing"
        assert b"+42" in deployment.dawn("diff", good["run"]).out.encode()
