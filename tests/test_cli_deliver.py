"""The commands review and deliver, and what status, show, diff and audit tell of a patch. No engine is needed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from repositories import first_commit, git
from runs_made import AT, Make, claimed, ended, name_runs

from scheduler.cli.main import run as dawn
from worker.contract.delivered import Delivery
from worker.contract.delivery import Deliver
from worker.contract.errors import ExitCode
from worker.contract.task import Repo
from worker.store import keys
from worker.store.archive import Archive
from worker.store.deliveries import read_deliveries, read_reviews, write_delivery
from worker.store.journal import Journal

pytestmark = pytest.mark.usefixtures("without_stack")
RUN = "cart-0123456789ab"


@pytest.fixture
def made(make_run: Make, archive: Archive) -> Any:
    """Makes a sealed run of a batch that asks for pull requests of what is approved. waits: its marker is there."""

    def make(run: str = RUN, patch: bytes = b"--- a/x\n+++ b/x\n", waits: bool = True, **words: Any) -> str:
        asked = Deliver(**({"kind": "pr", "when": "approved", "token": "FORGE"} | words))
        repo = Repo(url="https://github.com/acme/cart.git", label="cart")
        make_run(run, v=3, deliver=asked, repo=repo)
        digest = Journal(archive, run).put_blob(patch)
        make_run(
            run,
            claimed(),
            *ended(verdict="verified", artifacts={"patch.diff": digest}),
            v=3,
            deliver=asked,
            repo=repo,
        )
        name_runs(archive, {run: "cart"})
        if not waits:
            archive.delete([keys.open_marker(run)])
        return digest

    return make


def came(archive: Archive, **words: Any) -> None:
    """A worker's record of the run."""
    n = len(read_deliveries(archive, RUN))
    write_delivery(archive, RUN, Delivery(n=n, by="w", at=AT, patch="0" * 64, **words))


def test_a_review_is_told_and_counts_for_its_patch(
    made: Any, archive: Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    """Approved by its first letters; status, show and audit say so; a word on another patch gets exit code 10."""
    digest = made()
    assert dawn(["show", RUN]) == 0
    assert f"dawn review {RUN} --approve|--reject" in capsys.readouterr().out
    assert dawn(["status", RUN]) == 0
    assert "waits for a review" in capsys.readouterr().out
    assert dawn(["review", RUN, "--approve", "--patch", "00ff00ff"]) == ExitCode.CONFLICT
    assert dawn(["review", RUN[:8], "--approve", "--patch", digest[:8], "--comment", "fine"]) == 0
    assert capsys.readouterr().out == f"{RUN} approved patch {digest[:12]}\n"
    (review,) = read_reviews(archive, RUN)
    assert (review.decision, review.patch, review.comment) == ("approved", digest, "fine")
    assert dawn(["status", RUN, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert (row["review"], row["delivery"]["state"]) == ("approved", "none")
    assert dawn(["show", RUN, "--audit"]) == 0
    assert "approved the patch" in capsys.readouterr().out
    assert dawn(["review", RUN, "--reject", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["review"]["decision"] == "rejected"
    assert dawn(["deliver", RUN]) == ExitCode.CONFLICT
    assert "was rejected" in capsys.readouterr().err


def test_a_review_says_what_it_is(made: Any) -> None:
    """One way or the other."""
    made()
    assert dawn(["review", RUN]) == ExitCode.USAGE


def test_a_run_that_has_not_ended_is_not_reviewed(make_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor is it delivered; and what keeps its patch only is not either."""
    make_run(RUN, claimed())
    assert dawn(["review", RUN, "--approve"]) == ExitCode.CONFLICT
    assert dawn(["deliver", RUN]) == ExitCode.CONFLICT
    assert "has not ended" in capsys.readouterr().err


def test_what_is_delivered_is_told(made: Any, archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    """Its pull request in status and show; an error with the way on."""
    made()
    came(archive, act="open", state="pr", url="https://github.com/acme/cart/pull/7", number=7, branch="dawn/x")
    assert dawn(["status", RUN]) == 0
    assert "pr https://github.com/acme/cart/pull/7" in capsys.readouterr().out
    came(archive, act="failed", state="error", detail="no \x1b[31mtoken")
    assert dawn(["show", RUN]) == 0
    shown = capsys.readouterr().out
    assert "no \\x1b[31mtoken" in shown
    assert dawn(["show", RUN, "--audit", "--json"]) == 0
    acts = json.loads(capsys.readouterr().out)["acts"]
    assert [act["did"] for act in acts if act["beside"]] == ["delivery: pr", "delivery: error"]


def test_a_batch_is_delivered_but_for_what_is(
    made: Any, archive: Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asking puts the marker back, says it once, and names the runs; what has its pull request is left."""
    made(waits=False)
    assert dawn(["status", RUN]) == 0
    assert "waits" not in capsys.readouterr().out
    assert dawn(["deliver", "night-0123456789ab"]) == 0
    told = capsys.readouterr()
    assert (told.out, "no stack is running" in told.err) == (f"{RUN}\n", True)
    assert dawn(["deliver", RUN, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == [RUN]
    assert [one.act for one in read_deliveries(archive, RUN)] == ["asked"]
    assert archive.size(keys.open_marker(RUN)) == 0
    came(archive, act="open", state="pr", url="u", number=7, branch="dawn/x")
    assert dawn(["deliver", "night-0123456789ab"]) == ExitCode.CONFLICT
    assert "nothing left to deliver" in capsys.readouterr().err


def test_a_batch_without_delivery_says_so(
    make_run: Make, archive: Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what to write in its manifest."""
    make_run(RUN)
    digest = Journal(archive, RUN).put_blob(b"patch")
    make_run(RUN, claimed(), *ended(artifacts={"patch.diff": digest}))
    assert dawn(["deliver", RUN]) == ExitCode.CONFLICT
    assert "deliver: {kind: pr}" in capsys.readouterr().err


def test_a_mailbox_is_what_git_am_takes(made: Any, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """From the archive alone."""
    folder = first_commit(tmp_path / "work")
    (folder / "f.txt").write_text("one\nzwei\n")
    patch = git(folder, "diff", "--full-index").encode() + b"\n"
    git(folder, "checkout", "--quiet", "f.txt")
    made(patch=patch)
    assert dawn(["diff", RUN, "--mailbox"]) == 0
    letter = capfdbinary.readouterr().out
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", "am", "--quiet"]
    subprocess.run(command, input=letter, check=True, capture_output=True)
    assert git(folder, "log", "-1", "--format=%(trailers:key=Dawnfleet-Run,valueonly)") == RUN
    assert (folder / "f.txt").read_text() == "one\nzwei\n"


def test_a_manifest_says_how_far_a_patch_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A word that no delivery knows, and a repository that cannot be pushed to, are told with their places."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "x").write_text("x\n")
    manifest = tmp_path / "night.yaml"
    manifest.write_text(
        "version: 1\nname: night\ntargets: [{repo: code}]\ntask: {commands: [x]}\ndeliver: {kind: pr, branch: fix}\n"
    )
    assert dawn(["validate", str(manifest)]) == ExitCode.INVALID
    assert ":5:" in (told := capsys.readouterr().err + capsys.readouterr().out)
    assert "must hold {key} or {run}" in told
    manifest.write_text(manifest.read_text().replace("branch: fix", "token: FORGE"))
    assert dawn(["validate", str(manifest)]) == ExitCode.INVALID
    assert "is a local repository" in capsys.readouterr().err
