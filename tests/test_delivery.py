"""What a delivery is asked to be, what its records fold to, the letter of a patch, and whose turn it is."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from repositories import first_commit, git

from scheduler.deliveries.due import Drop, Ring, Wait, Wanted, decide
from worker.contract import commit
from worker.contract.delivered import (
    Delivered,
    Delivery,
    Review,
    branch_of,
    delivered,
    readiness,
    review_state,
)
from worker.contract.delivery import Deliver, filled
from worker.contract.events import Prepared, Sealed, digest
from worker.contract.run import Run
from worker.contract.task import ForkPoint, Repo, Task
from worker.store.deliveries import Mark

AT = "2026-11-30T02:00:00.000+00:00"
NOW = datetime(2026, 11, 30, 3, tzinfo=UTC)
PATCH = digest(b"patch")


def task(**fields: Any) -> Task:
    asked: dict[str, Any] = {"run": "lib-1", "batch": "night-1", "target": "acme/lib", "commands": ("true",)}
    return Task(repo=Repo(url="https://github.com/acme/lib.git"), **(asked | fields))


def sealed(outcome: Any = "changed", verdict: Any = "verified", patch: str | None = PATCH) -> Run:
    artifacts = {} if patch is None else {"patch.diff": patch}
    prepared = Prepared(
        environment_key="k", environment=PATCH, commit="c" * 40, image="i", reused=False, duration_ms=1
    )
    return Run(
        id="lib-1",
        status="sealed",
        updated_at=AT,
        prepared=prepared,
        sealed=Sealed(outcome=outcome, verdict=verdict, artifacts=artifacts),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"branch": "dawn/fix"},
        {"branch": "dawn/{name}-{key}"},
        {"branch": "dawn/{key}.lock"},
        {"branch": "-{key}"},
        {"branch": "a..b/{key}"},
        {"title": "{summary}"},
        {"body": "{prompt}"},
        {"base": "a b"},
        {"token": "a-b"},
        {"kind": "branch", "labels": ("x",)},
        {"api_url": "https://user@host/api"},
    ],
)
def test_what_cannot_be_delivered_is_refused(wrong: dict[str, Any]) -> None:
    """A branch that two targets would share, a template that names nothing, and what no forge takes."""
    with pytest.raises(ValidationError):
        Deliver(**({"kind": "pr"} | wrong))


def test_the_default_keeps_the_patch_only() -> None:
    """Nothing leaves the archive unless somebody says so."""
    assert Deliver().kind == "patch"
    assert readiness(task(), sealed(), "approved", asked=True) == "never"


@settings(max_examples=30)
@given(st.lists(st.text(max_size=30), min_size=2, max_size=4, unique=True))
def test_no_two_targets_share_a_branch(targets: list[str]) -> None:
    """A branch is a function of batch and target, and a name that git takes."""
    names = [branch_of(task(target=target)) for target in targets]
    assert len(set(names)) == len(targets)
    for name in names:
        subprocess.run(["git", "check-ref-format", "--branch", name], check=True, capture_output=True)


def test_a_retry_has_the_branch_of_its_target() -> None:
    """One target, one branch: the retry's patch goes where the earlier one went."""
    assert branch_of(task(run="lib-1")) == branch_of(task(run="lib-2", ordinal=1))
    assert branch_of(task()) != branch_of(task(batch="night-2"))


def test_what_a_template_is_filled_with_is_no_template() -> None:
    """Words of a task are put in once."""
    assert filled("{task} of {run}", {"task": "{run}", "run": "r"}) == "{run} of r"


@pytest.mark.parametrize(
    ("when", "run", "review", "asked", "expected"),
    [
        ("verified", sealed(), "pending", False, "ready"),
        ("verified", sealed(verdict="broke"), "pending", False, "never"),
        ("verified", sealed(verdict="broke"), "pending", True, "ready"),
        ("verified", sealed(verdict="broke"), "approved", False, "ready"),
        ("verified", sealed(), "rejected", True, "never"),
        ("verified", sealed("failed", "verified"), "pending", False, "never"),
        ("changed", sealed(verdict="broke"), "pending", False, "ready"),
        ("changed", sealed("no_change", "verified", None), "pending", True, "never"),
        ("approved", sealed(verdict="broke"), "pending", False, "review"),
        ("approved", sealed(), "stale", False, "review"),
        ("approved", sealed(), "approved", False, "ready"),
        ("approved", sealed("failed", None), "pending", False, "never"),
    ],
)
def test_when_a_patch_is_delivered(when: Any, run: Run, review: Any, asked: bool, expected: str) -> None:
    """By verdict, by a person's word, or because somebody asked; a rejected one never."""
    assert readiness(task(deliver=Deliver(kind="pr", when=when)), run, review, asked=asked) == expected


def test_a_fork_is_delivered_when_somebody_asks() -> None:
    """It is a person's try. A candidate that goes on from the commands of another is none."""
    run = sealed().model_copy(update={"parent": "lib-0"})
    tried = task(deliver=Deliver(kind="pr"), fork=ForkPoint(run="lib-0", step=1, seq=1, hash="0" * 64))
    assert [readiness(tried, run, "pending", asked=asked) for asked in (False, True)] == ["never", "ready"]
    assert readiness(task(deliver=Deliver(kind="pr"), prefix_of="lib-0"), run, "pending") == "ready"


def test_a_review_is_of_one_patch() -> None:
    """The last word counts, and only on the patch that it was said of."""
    said = {"by": "ann", "at": AT}
    reviews = [
        Review(n=0, decision="rejected", patch=PATCH, **said),
        Review(n=1, decision="approved", patch=PATCH, **said),
    ]
    assert review_state(sealed(), []) == "pending"
    assert review_state(sealed(), reviews[:1]) == "rejected"
    assert review_state(sealed(), reviews) == "approved"
    assert review_state(sealed(patch=digest(b"other")), reviews) == "stale"


def records(*acts: dict[str, Any]) -> list[Delivery]:
    return [Delivery(n=n, by="w", at=AT, patch=PATCH, **act) for n, act in enumerate(acts)]


INTENT = {"act": "push", "step": "intent", "branch": "b", "commit": "c1"}
PUSHED = {"act": "push", "state": "branch", "branch": "b", "commit": "c1"}
OPENED = {"act": "open", "state": "pr", "url": "u", "number": 7}


def test_a_delivery_is_a_fold() -> None:
    """none, branch, pr, closed, and error until somebody asks again."""
    fold = delivered(records(INTENT))
    assert (fold.state, fold.tips) == ("none", ("c1",))
    fold = delivered(records(INTENT, PUSHED))
    assert (fold.state, fold.ends("branch"), fold.ends("pr")) == ("branch", True, False)
    fold = delivered(records(INTENT, PUSHED, {"act": "open", "step": "intent"}, OPENED))
    assert (fold.state, fold.url, fold.number, fold.ends("pr")) == ("pr", "u", 7, True)
    closed = records(INTENT, PUSHED, OPENED, {"act": "saw", "state": "closed"})
    assert delivered(closed).state == "closed"
    failed = records({"act": "failed", "state": "error", "detail": "no"}, {"act": "asked"})
    assert delivered(failed[:1]).ends("pr")
    assert not delivered(failed).ends("pr")
    assert delivered(failed).asked


def test_a_push_to_an_open_pull_request_keeps_it_open() -> None:
    """Asked once more, the branch is pushed and the pull request is still what it was."""
    fold = delivered(records(PUSHED, OPENED, {"act": "asked"}, INTENT, PUSHED))
    assert (fold.state, fold.asked) == ("pr", True)


@given(st.lists(st.sampled_from([INTENT, PUSHED, OPENED, {"act": "asked"}, {"act": "failed", "state": "error"}])))
def test_folding_in_two_parts_is_folding_at_once(acts: list[dict[str, Any]]) -> None:
    """And what was ever to be a tip of ours stays one."""
    all_ = records(*acts)
    for cut in range(len(all_) + 1):
        fold: Delivered = delivered(all_[:cut])
        for record in all_[cut:]:
            fold = fold.after(record)
        assert fold == delivered(all_)
    assert ("c1" in delivered(all_).tips) == any(act["act"] == "push" for act in acts)


def test_no_text_of_a_task_acts_on_a_forge_as_a_commit() -> None:
    """A merge would close what its messages say, and mention whom: an issue that somebody wrote may be the prompt.
    What the title's own template says is its author's word."""
    asked = task(prompt="Fixes #12 by @ann\n\nCloses evil/x#3, GH-4", deliver=Deliver(title="Resolves #7: {task}"))
    told = commit.message(asked, sealed())
    assert told.startswith("Resolves #7: Fixes")
    for acting in ("#12", "@ann", "x#3", "GH-4"):
        assert acting not in told


def test_the_letter_of_a_patch_is_what_git_am_makes_a_commit_of(tmp_path: Path) -> None:
    """Text, binary, CRLF, long lines and names of every kind: the same tree, and the trailers behind the message."""
    folder = first_commit(tmp_path / "work")
    start = git(folder, "rev-parse", "HEAD")
    for number, (name, data) in enumerate(
        {
            "crlf.txt": b"a\r\nb\r\n",
            "new \xc3\xa9.txt".encode().decode(): b"x" * 5_000,
            "b.bin": b"\0\xff" * 50,
        }.items()
    ):
        for content in ({"f.txt": b"one\nzwei\n"}, {name: data}):
            for path, written in content.items():
                (folder / path).write_bytes(written + b"%d\n" % number)
        git(folder, "add", "--all")
        patch = subprocess.run(
            ["git", "-C", str(folder), "diff", "--cached", "--binary", "--full-index", start],
            check=True,
            capture_output=True,
        ).stdout
        prompt = (
            f"Füge an\n\n---\ndiff --git a/f.txt b/f.txt\nFrom nobody\nSubject: no\nSigned-off-by: x\nround {number}"
        )
        asked = task(prompt=prompt, model="anthropic/x")
        letter = tmp_path / f"{number}.mbox"
        letter.write_bytes(commit.letter(asked, sealed(), patch))
        tree = git(folder, "write-tree")
        git(folder, "reset", "--quiet", "--hard", start)
        git(folder, "am", "--quiet", str(letter))
        assert git(folder, "rev-parse", "HEAD^{tree}") == tree
        assert git(folder, "log", "-1", "--format=%s") == "Füge an"
        found = git(folder, "log", "-1", "--format=%(trailers:only)")
        assert [line.split(": ")[0] for line in found.splitlines()] == [
            *("Dawnfleet-Run", "Dawnfleet-Batch", "Dawnfleet-Task", "Dawnfleet-Patch", "Dawnfleet-Verdict")
        ]
        assert f"round {number}" in git(folder, "log", "-1", "--format=%b")
        git(folder, "reset", "--quiet", "--hard", start)


def wanted(run: str, **fields: Any) -> Wanted:
    usual: dict[str, Any] = {"readiness": "ready", "rate_per_hour": 20, "repo": run, "since": AT}
    return Wanted(run, **(usual | fields))


def test_each_waits_for_what_it_waits_for() -> None:
    """One decision a run, and why."""
    later = NOW + timedelta(minutes=5)
    runs = [
        wanted("a", leased=True),
        wanted("b", ended=True),
        wanted("c", readiness="never"),
        wanted("d", cancelled=True),
        wanted("e", readiness="review", until=later),
        wanted("f", readiness="review", until=NOW),
        wanted("g", rung_age_s=1.0),
        wanted("h", aside=later),
        wanted("i"),
        wanted("j", repo="i"),
        wanted("k"),
    ]
    assert decide(NOW, runs, [], free=1) == [
        Wait("a", "delivering"),
        Drop("b", "delivered"),
        Drop("c", "never"),
        Drop("d", "cancelled"),
        Wait("e", "review", later),
        Drop("f", "unreviewed"),
        Wait("g", "doorbell"),
        Wait("h", "held", later),
        Ring("i"),
        Wait("j", "repository"),
        Wait("k", "workers"),
    ]


def test_an_hour_has_no_more_than_its_rate() -> None:
    """The next goes when the oldest of the hour is an hour old; another token has a rate of its own."""
    first = NOW - timedelta(minutes=50)
    recent = [Mark(first, "T", "x"), Mark(NOW, "T", "y")]
    decisions = decide(
        NOW, [wanted("a", token="T", rate_per_hour=2), wanted("b", token="U", rate_per_hour=2)], recent, free=5
    )
    assert decisions == [Wait("a", "rate", first + timedelta(hours=1)), Ring("b")]


@given(
    st.lists(
        st.builds(
            wanted,
            st.uuids().map(str),
            token=st.sampled_from(["T", "U"]),
            repo=st.sampled_from(["r1", "r2", "r3"]),
            rate_per_hour=st.integers(1, 3),
            leased=st.booleans(),
            ended=st.booleans(),
            readiness=st.sampled_from(["ready", "review", "never"]),
        ),
        max_size=12,
    ),
    st.lists(st.builds(Mark, st.just(NOW), st.sampled_from(["T", "U"]), st.text(max_size=3)), max_size=4),
    st.integers(-1, 4),
)
def test_no_turn_is_given_that_there_is_not(runs: list[Wanted], recent: list[Mark], free: int) -> None:
    """One decision a run; never more rings than places, than the rate has left, or than one a repository."""
    decisions = decide(NOW, runs, recent, free=free)
    assert sorted(decision.run for decision in decisions) == sorted(run.run for run in runs)
    known = {run.run: run for run in runs}
    rung = [known[decision.run] for decision in decisions if isinstance(decision, Ring)]
    assert len(rung) <= max(0, free)
    assert all(run.readiness == "ready" and not run.ended and not run.leased for run in rung)
    busy = [run.repo for run in rung] + [run.repo for run in runs if run.leased]
    assert all(busy.count(run.repo) == 1 for run in rung)
    for run in rung:
        used = sum(mark.token == run.token for mark in recent) + sum(one.token == run.token for one in rung)
        assert used <= max(one.rate_per_hour for one in rung if one.token == run.token)
