"""One morning on a real stack, in a real browser: submit, watch, approve on a phone, review, fork, prove."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsers import Open, Window, served, wider
from conftest import wait_for
from deployments import Deployment
from playwright.sync_api import expect

from scheduler.web.door.deployment import of_archive
from scheduler.web.door.server import fresh_keys
from scheduler.web.page import address
from worker.contract.settings import Settings
from worker.store.archive import open_archive

pytestmark = [pytest.mark.full, pytest.mark.docker, pytest.mark.timeout(1500)]

MANIFEST = """
version: 1
name: morning
targets: [{targets}]
task:
  prompt: The answer is wrong. Run fix.sh and check.
  model: scripted:fix.yaml
checks: [{{name: answer, command: grep -q 42 answer.txt}}]
policy: [{{pattern: tell-everybody, action: ask, reason: it leaves the sandbox}}]
"""
SCRIPT = """
- text: First what is red.
  calls: [{tool: run_checks, arguments: {}}]
- text: Now the repair.
  calls: [{tool: run_command, arguments: {command: sh fix.sh}}]
- text: Once more.
  calls: [{tool: run_checks, arguments: {}}]
- text: The answer is 42 now.
"""
ASKS = """
- text: The repair, and a word to the others.
  calls: [{tool: run_command, arguments: {command: "sh fix.sh; echo tell-everybody > told.txt"}}]
- text: The answer is 42 now, and everybody knows.
"""
FIXES = {
    "one": "sed -i s/41/42/ answer.txt",
    "two": "sed -i s/41/42/ answer.txt",
    "three": "sed -i s/41/42/ answer.txt",
    "odd": "sed -i s/41/42/ answer.txt; echo 'asked twice' >> answer.txt",
}


def targets(folder: Path, names: dict[str, str], script: str, name: str) -> Path:
    """A manifest over small repositories; each holds its own repair."""
    (folder / "fix.yaml").write_text(script)
    for target, fix in names.items():
        (folder / target).mkdir()
        (folder / target / "answer.txt").write_text("41\n")
        (folder / target / "fix.sh").write_text(fix + "\n")
    manifest = folder / f"{name}.yaml"
    listed = ", ".join(f"{{repo: ./{target}}}" for target in names)
    manifest.write_text(MANIFEST.format(targets=listed).replace("name: morning", f"name: {name}"))
    return manifest


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path / "deployment", DAWN_WEB_PORT="0")
    (tmp_path / "deployment").mkdir()
    with deployment.up():
        yield deployment


def signed_in(stack: Deployment, open_window: Open, *, phone: bool = False) -> Window:
    """A window on the pages of `dawn up`, with the token that also decides."""
    found = wait_for(lambda: re.search(r"http://127\.0\.0\.1:\d+", stack.background()))
    token = json.loads((stack.state / "web.json").read_text())["reviewer"]
    return open_window(found[0], phone=phone).sign_in(token)


def submitted(stack: Deployment, manifest: Path) -> tuple[str, list[str]]:
    """A batch's id and its runs."""
    told = stack.dawn("submit", manifest, "--detach", "--json")
    assert told.code == 0, told
    [batch] = told.json["batches"]
    return batch["id"], batch["runs"]


def test_a_morning_in_the_browser(stack: Deployment, tmp_path: Path, open_window: Open) -> None:
    """From the submit to a folder that opens from disk, every act on the pages themselves."""
    (tmp_path / "fix").mkdir()
    (tmp_path / "ask").mkdir()
    batch, runs = submitted(stack, targets(tmp_path / "fix", FIXES, SCRIPT, "fixes"))
    window = signed_in(stack, open_window)

    # Watched live: nobody loads the page again.
    page = window.go(address("/batches/{batch}", batch=batch))
    expect(page.locator("tbody .s-verified")).to_have_count(len(FIXES), timeout=300_000)
    window.check()

    # A call that waits for a person, approved on a phone.
    _, [asking] = submitted(stack, targets(tmp_path / "ask", {"loud": FIXES["one"]}, ASKS, "asks"))
    stack.awaited(asking, "parked")
    phone = signed_in(stack, open_window, phone=True)
    small = phone.go("/approvals")
    assert "tell-everybody" in small.locator(".exact").first.inner_text()
    assert wider(small) == []
    phone.click(small.get_by_role("button", name="Approve"))
    decided = stack.awaited(asking, "decided")
    assert decided.decision == "approved"  # type: ignore[union-attr]
    stack.awaited(asking, "sealed")

    # Reviewed by keys.
    page = window.go("/review")
    page.keyboard.press("j")
    reviewed = window.press("Enter").url.rpartition("/")[2]
    page.keyboard.press("a")  # says what the second one does
    window.press("a")
    wait_for(lambda: stack.archive.size(f"runs/{reviewed}/reviews/000000.json"))

    # A group at once, after each of its forms was opened.
    groups = address("/batches/{batch}/groups", batch=batch)
    page = window.go(groups)
    while not (approve := page.get_by_role("button", name=re.compile("Approve all"))).count():
        window.click(page.locator("section.group p", has_text="Before all").locator("a").last)
        page = window.go(groups)
    window.click(approve.first)
    wait_for(lambda: all(stack.archive.size(f"runs/{run}/reviews/000000.json") for run in runs[:3]))

    # A fork from a step.
    page = window.go(address("/runs/{run}/fork", run=runs[0], query={"step": "1"}))
    window.click(page.get_by_role("button", name="Begin a new run"))
    forked = wait_for(lambda: [run for run in stack.runs() if run not in runs and stack.events(run)[:1]])
    assert forked

    # Proven on the page.
    page = window.go(address("/runs/{run}/audit", run=runs[0], query={"verify": "now"}))
    expect(page.get_by_text("Everything is what was written")).to_be_visible()

    _taken_along(stack, batch, runs, tmp_path, open_window)


def _taken_along(stack: Deployment, batch: str, runs: list[str], tmp_path: Path, open_window: Open) -> None:
    """The bundle opens without a deployment, and the folder without a server."""
    bundle, folder = tmp_path / "batch.tar", tmp_path / "folder"
    assert stack.dawn("export", batch, "--format", "bundle", "--out", bundle).code == 0
    assert tarfile.is_tarfile(bundle)
    keys = fresh_keys()
    sealed = open_archive(f"bundle:{bundle}", Settings())
    with served(of_archive(sealed, keys, "rosa@here")) as origin:
        window = open_window(origin).sign_in(keys.viewer)
        page = window.go(address("/runs/{run}/diff", run=runs[0]))
        assert "42" in page.inner_text("main")
        assert page.locator("form[method=post]").count() == 0
        window.check()
    assert stack.dawn("report", batch, "--static", folder).code == 0
    window = open_window("file://")
    page = window.go((folder / "index.html").as_uri())
    window.click(page.get_by_role("link", name="one").first)
    window.click(page.get_by_role("link", name="Diff", exact=True))
    assert "42" in page.inner_text("main")
    assert page.locator("script, form, button").count() == 0
    assert page.evaluate("getComputedStyle(document.querySelector('.top')).display") == "flex"
    window.check()
