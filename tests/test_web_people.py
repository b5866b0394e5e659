"""A person and a run by the pages of a running deployment: approved there, it goes on, and its journal says who."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deployments import Deployment
from repositories import commit_all, git
from starlette.testclient import TestClient
from web_forms import form_with, press
from webs import HOST, ORIGIN

from scheduler.web.door.app import create
from scheduler.web.door.deployment import of_deployment
from scheduler.web.door.server import fresh_keys
from worker.contract.settings import Settings

pytestmark = [pytest.mark.full, pytest.mark.docker]

ASKING = "sed -i s/41/42/ answer; true || dropdb production"


def repository(place: Path) -> Path:
    place.mkdir(parents=True)
    (place / "answer").write_text("41\n")
    git(place, "init", "--quiet", "--initial-branch=main")
    commit_all(place, "first")
    return place


def test_an_approval_on_the_page_lets_a_run_go_on_to_its_end(deployment: Deployment, tmp_path: Path) -> None:
    """H52: the decision wakes the run without a poll, the call runs once, and the journal shows who allowed it."""
    with deployment.up():
        words = ("--repo", repository(tmp_path / "repo"), "--command", ASKING, "--check", "answer=grep -q 42 answer")
        begun = deployment.dawn("run", *words, "--no-wait", "--json")
        [run] = [row["run"] for row in begun.json["runs"]]
        deployment.awaited(run, "parked")

        keys = fresh_keys()
        settings = Settings(state_dir=deployment.state, archive=deployment.archive_url)
        site = of_deployment(deployment.archive, settings, keys, "rosa@here")
        with TestClient(create(site, {HOST}), base_url=ORIGIN) as client:
            client.get("/enter", params={"token": keys.reviewer}, follow_redirects=False)
            page = client.get("/approvals").text
            assert "dropdb production</pre>" in page
            answered = press(client, form_with(page, "Approve"), "Approve")
            assert answered.status_code == 303
            decided: Any = deployment.awaited(run, "decided")
            assert (decided.decision, decided.by) == ("approved", "rosa@here")
            sealed: Any = deployment.awaited(run, "sealed")
            assert (sealed.outcome, sealed.verdict) == ("changed", "verified")
            site.seen.expire()
            page = client.get(f"/review/{run}").text
            assert press(client, form_with(page, "Approve"), "Approve").status_code == 303
            assert "rosa@here" in client.get(f"/runs/{run}/audit").text
