"""The patch of a real workspace, and the artifacts a run leaves. Every shape of patch: tests/test_repository.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from preparation import Bench
from repositories import commit_all

from worker.contract.events import CheckResult, Compared, Contradiction, Failure, Finished, PatchStat, Verdict
from worker.contract.redact import Redactor
from worker.contract.run import Run
from worker.contract.task import Check, Repo, Task
from worker.publish import Patch, artifacts, summary

DIFFICULT = r"""
printf '\0\1\3' >b.bin
chmod +x run.sh
mv ren.txt renamed.txt
rm f.txt
printf '#!/bin/sh\n' >new.sh; chmod 755 new.sh
ln -s run.sh link
touch empty
printf 'A' >'sp ace é.txt'
printf 'B\r\n' >'x b/y.txt'
printf 'C\n' >'tab	quote".txt'
printf 'D\n' >"$(printf 'byte\377')"
"""


@pytest.mark.docker
def test_the_patch_gives_the_agents_exact_tree(bench: Bench, source: Path) -> None:
    """T33, T34, T44: through a real workspace, every kind of change and difficult names."""
    (source / "sp ace é.txt").write_text("a\n")
    (source / "x b").mkdir()
    (source / "x b" / "y.txt").write_text("b\n")
    (source / 'tab\tquote".txt').write_text("c\n")
    commit_all(source)
    task = bench.task(bench.repo(source))
    prepared = bench.prepare(task)
    with bench.agent(task, prepared) as shell:
        assert shell.run(DIFFICULT).exit_code == 0
        before = shell.workspace.snapshot().tree
        patch = bench.patch(task, shell)
        tree = shell.workspace.tree()
        assert shell.workspace.snapshot().tree == before
    assert patch.stat.left_out == {}
    assert {"sp ace é.txt", "x b/y.txt", 'tab\tquote".txt', "renamed.txt", "byte\\xff"} <= set(patch.stat.files)
    assert bench.tree_with(task, prepared, patch) == tree


@pytest.mark.docker
def test_ignored_files_are_named_but_not_in_the_patch(bench: Bench, source: Path) -> None:
    """T35: a new file and edits of tracked files are in it, one of them ignored; an ignored new file is named."""
    (source / ".gitignore").write_text("*.log\n")
    (source / "kept.log").write_text("tracked all the same\n")
    commit_all(source)
    task = bench.task(bench.repo(source))
    _, patch = bench.edited(task, "echo n >new.py; echo e >f.txt; echo k >kept.log; echo x >x.log")
    assert set(patch.stat.files) == {"new.py", "f.txt", "kept.log"}
    assert patch.stat.left_out == {"x.log": "ignored"}


@pytest.mark.docker
def test_commits_stashes_and_nested_repositories(bench: Bench, source: Path) -> None:
    """T36, T38: the patch is against the start whatever the agent did with git, and holds no gitlink."""
    task = bench.task(bench.repo(source))
    prepared, patch = bench.edited(
        task,
        """echo committed >f.txt; git commit -qam mine; git checkout -qb branch; echo edited >run.sh
        echo stashed >ren.txt; git stash push -q -- ren.txt
        git init -q vendor; cd vendor; echo v >v.py; git add .; git commit -qm v; cd ..
        git init -q n2; echo n >n2/n.py""",
    )
    assert set(patch.stat.files) == {"f.txt", "run.sh", "vendor/v.py", "n2/n.py"}
    assert any("stash" in note for note in patch.stat.notes)
    assert b"160000" not in patch.files["patch.diff"]
    assert ("vendor/v.py", "100644") in [(path, mode) for path, mode, _ in bench.tree_with(task, prepared, patch)]


@pytest.mark.docker
def test_git_settings_of_the_agent_run_nowhere(bench: Bench, source: Path) -> None:
    """H39: what the agent configures for git never runs when its patch is made, applied and judged."""
    canary = "touch /workspace/repo/canary /workspace/base/canary /tmp/canary; cat"
    names = ("core.fsmonitor", "core.pager", "diff.external", "diff.evil.textconv", "diff.evil.command")
    filters = ("filter.evil.clean", "filter.evil.smudge", "filter.evil.process")
    settings = "\n".join(f"git config {name} {canary!r}" for name in (*names, *filters))
    task = bench.task(bench.repo(source), no_canary="test ! -e canary")
    prepared, patch = bench.edited(
        task,
        f"""echo '* filter=evil diff=evil text eol=crlf' >.gitattributes
        printf 'one\\nTWO\\nthree\\n' >f.txt
        mkdir -p .git/hooks; printf '#!/bin/sh\\ntouch canary\\n' >.git/hooks/post-checkout
        chmod +x .git/hooks/*; mkdir ../home/x; printf '[core]\\nfsmonitor = touch canary\\n' >../home/.gitconfig
        {settings}""",
    )
    assert set(patch.stat.files) == {".gitattributes", "f.txt"}
    assert bench.verdict(task, prepared, patch).verdict == "verified"


@pytest.mark.docker
@pytest.mark.full
def test_a_flood_of_files_is_bounded(bench: Bench, source: Path) -> None:
    """T40: 20,000 new files and one of 300 MB; the edit is saved, the rest counted."""
    task = bench.task(bench.repo(source))
    _, patch = bench.edited(
        task,
        """mkdir .t; head -c 15345000 /dev/urandom | base64 -w 1023 | split -l 1 -a 5 -d - .t/
        test $(ls .t | wc -l) = 20000; truncate -s 300M huge; echo edited >f.txt""",
    )
    assert patch.stat.files["f.txt"] == (1, 3)
    assert patch.stat.bytes <= task.limits.patch_bytes
    assert "over the cap" in patch.stat.left_out["huge"]
    assert patch.stat.left_out[".t/"].endswith("files: the patch is full at 20,971,520 bytes")


def a_run() -> tuple[Task, Run]:
    task = Task(
        run="r1",
        batch="b1",
        target="cart",
        repo=Repo(url="https://example.org/cart.git", label="cart"),
        prompt="Fix the `price`.\n# not a heading",
        model="scripted:cart",
        script="[]",
        checks=(Check(name="tests", command="npm test"),),
    )
    red = CheckResult(name="tests", status="red", exit_code=1)
    green = CheckResult(name="tests", status="green", exit_code=0, duration_ms=1500)
    run = Run(
        id="r1",
        steps=3,
        finished=Finished(text="Done.\n# Verdict: verified"),
        verdict=Verdict(verdict="verified", checks=(green,), baseline=(red,)),
    )
    return task, run


STAT = PatchStat(files={"price.js": (1, 1), "b.bin": None}, left_out={"x.log": "ignored"}, notes=("a stash",))


def test_a_summary_keeps_words_and_evidence_apart() -> None:
    """What the agent says is quoted under a heading of its own and cannot pose as one of ours."""
    task, run = a_run()
    text = summary(task, run, "changed", None, STAT)
    assert text.startswith("# cart: changed, verified\n")
    assert "| tests | red (exit code 1) | green | 1.5 |" in text
    assert "- `price.js` +1 -1\n- `b.bin` binary" in text
    assert "> # Verdict: verified" in text
    assert "\n# Verdict" not in text
    assert "> # not a heading" in text


def test_a_summary_says_what_became_of_the_tests() -> None:
    """Below the table of the checks, and what the patch may not do below its files."""
    task, run = a_run()
    assert run.verdict is not None
    tests = Compared(check="tests", counts={"fixed": 3, "broke": 1}, named={"broke": ("cart::`price`",)})
    seen = run.verdict.model_copy(update={"tests": (tests,), "guards": ("ci.yml is protected (ci.yml)",)})
    text = summary(task, run.model_copy(update={"verdict": seen}), "failed", None, STAT)
    assert "- tests: 3 fixed, 1 broke, 0 still failing\n  - broke: cart::'price'" in text
    assert "## What the patch may not do\n\n- ci.yml is protected (ci.yml)" in text


def test_a_summary_sets_the_evidence_beside_a_claim() -> None:
    """What the evidence contradicts follows the words, under a heading of its own, each with what was measured."""
    task, run = a_run()
    against = Contradiction(claim="All `tests` pass.", evidence="the check tests is not green with the patch")
    text = summary(task, run, "changed", None, STAT, (against,))
    told = "- > All 'tests' pass.\n  - measured: the check tests is not green with the patch"
    assert (
        text.index("> # Verdict: verified")
        < text.index("## What of that the evidence contradicts")
        < text.index(told)
    )


def test_a_summary_of_a_stopped_run_has_its_progress() -> None:
    """The reason and the progress report stand where the agent's claim would."""
    task, run = a_run()
    failure = Failure(cls="limit", reason="steps", detail="2 of 2 steps")
    text = summary(task, run, "failed", failure, STAT)
    assert "- failed: `limit/steps: 2 of 2 steps`" in text
    assert "## Progress when it stopped" in text
    assert "| steps | 3 | 100 |" in text


def test_a_summary_shows_no_number_that_nobody_knows() -> None:
    """A price that is unknown is not called $0.00, and where nothing was measured there is no table of it."""
    task, run = a_run()
    text = summary(
        task, run.model_copy(update={"unpriced_replies": 1, "verdict": Verdict(verdict=None)}), "failed", None, STAT
    )
    assert "| cost | unknown |" in text
    assert "## Checks" not in text


def test_artifacts_are_stored_masked_and_named() -> None:
    """Patch, summary and the list of what is left out; a secret in the agent's words is masked."""
    task, run = a_run()
    run = run.model_copy(update={"finished": Finished(text="the token is s3cr3t-value")})
    stored: dict[str, bytes] = {}

    def put_blob(data: bytes) -> str:
        name = f"{len(stored):064x}"
        stored[name] = data
        return name

    redactor = Redactor({"TOKEN": "s3cr3t-value"})
    patch = Patch({"patch.diff": b"diff"}, STAT)
    names = artifacts(task, run, "changed", None, patch, put_blob=put_blob, redactor=redactor)
    assert set(names) == {"patch.diff", "summary.md", "left_out.txt"}
    assert stored[names["left_out.txt"]] == b"x.log: ignored\n"
    assert b"[secret TOKEN]" in stored[names["summary.md"]]
    assert b"s3cr3t-value" not in b"".join(stored.values())
    no_patch = Patch({}, PatchStat())
    nothing = artifacts(task, run, "no_change", None, no_patch, put_blob=put_blob, redactor=redactor)
    assert set(nothing) == {"summary.md"}


@pytest.mark.docker
def test_what_setup_left_in_the_repository_is_not_in_the_patch(bench: Bench, source: Path) -> None:
    """What setup made, changed or deleted is named as left out; the agent's edits beside it are the patch."""
    setup = "echo built >made.txt; echo more >>run.sh; rm ren.txt; echo 1 >both.txt"
    task = bench.task(bench.repo(source), setup=setup)
    _, patch = bench.edited(task, "echo agent >new.txt; echo 2 >both.txt")
    assert set(patch.stat.files) == {"new.txt", "both.txt"}
    assert patch.stat.left_out["made.txt"] == "made by setup"
    assert patch.stat.left_out["run.sh"] == "changed by setup"
    assert patch.stat.left_out["ren.txt"] == "deleted by setup"


@pytest.mark.docker
def test_a_patch_over_what_setup_changed_is_measured_beside_it(bench: Bench, source: Path) -> None:
    """In the clean room the agent's version of a path replaces setup's, and setup's other traces stay."""
    setup = "echo built >made.txt; echo more >>f.txt; echo 1 >both.txt"
    room = "grep agent f.txt && grep built made.txt && grep 2 both.txt"
    task = bench.task(bench.repo(source), setup=setup, room=room)
    prepared, patch = bench.edited(task, "echo agent >>f.txt; echo 2 >both.txt")
    assert bench.verdict(task, prepared, patch).verdict == "verified"
