"""A night's end as a person meets it: a real queue and containers, the scheduler's own report, file and webhook."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path

import pytest
from deployments import Deployment
from repositories import commit_all, git
from webhooks import Listener

from worker.store import keys

pytestmark = [pytest.mark.docker, pytest.mark.full]

SECRET = "a secret of some length"
MANIFEST = """
version: 1
name: night
targets: [{{repo: ./good}}, {{repo: ./empty}}, {{repo: ./good, path: sub}}, {{repo: ./red}}]
task: {{commands: ["sed -i s/41/42/ answer.txt"]}}
checks: ["answer=grep -q 42 answer.txt"]
notify: {{file: night.md, webhook: '{url}', secret: HOOK}}
"""


def test_a_night_with_failures_is_told_by_itself(deployment: Deployment, listener: Listener, tmp_path: Path) -> None:
    """T41, T49: an empty repository fails by itself and by name, so does one that the command cannot repair; the
    others are verified. The report is there when the submit returns, and its message is signed."""
    for name, text in (("good", "41"), ("red", "7")):
        (tmp_path / name / "sub").mkdir(parents=True)
        for folder in (tmp_path / name, tmp_path / name / "sub"):
            (folder / "answer.txt").write_text(f"{text}\n")
        git(tmp_path / name, "init", "--quiet", "--initial-branch=main")
        commit_all(tmp_path / name, "first")
    git(tmp_path, "init", "--quiet", "--initial-branch=main", "empty")
    (tmp_path / "night.yaml").write_text(MANIFEST.format(url=listener.url))
    deployment.ran("submit", tmp_path / "night.yaml", code=4, DAWN_SECRET_HOOK=SECRET)
    archive = deployment.archive
    (batch,) = archive.folders("batches/")
    report = json.loads(archive.get(keys.batch_report(batch, 0, "report.json")))
    assert report["headline"] == "2 of 4 verified, 2 failed, $0"
    assert sorted(group["kind"].partition("/")[0] for group in report["failures"]) == ["env", "still_failing"]
    assert archive.get(keys.batch_report(batch, 0, "report.html")).startswith(b"<!doctype html>")
    assert list(archive.list("due/")) == []
    said = (deployment.state / "reports" / "night.md").read_text()
    assert said == archive.get(keys.batch_report(batch, 0, "report.md")).decode()
    assert f"dawn retry {batch} --state still_failing" in said
    (got,) = listener.got
    signed = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode() + got.body
    mac = base64.b64encode(hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()).decode()
    assert got.headers["webhook-signature"] == f"v1,{mac}"
    assert json.loads(got.body)["headline"] == report["headline"]
    again = deployment.dawn("report", batch, "--store")
    assert (again.code, "which was there already" in again.err) == (0, True)
    assert deployment.dawn("watch", batch).code == 4
