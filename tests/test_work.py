"""The work key, and runs that end as reused because their work was done before."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from doubles import Died, DiesAt
from hypothesis import given
from hypothesis import strategies as st
from runs_made import AT, audited, claimed, ended

from scheduler.cli.main import run as dawn
from scheduler.enqueue import Batch, freeze, submit, submit_run
from scheduler.gc import collect
from scheduler.manifests.reading import parse
from scheduler.runs import Found
from scheduler.verify import check
from scheduler.work import PARTS, earlier, work_key
from worker.contract.delivered import Review
from worker.contract.delivery import Deliver
from worker.contract.errors import ConflictFault, ExitCode
from worker.contract.events import Failure
from worker.contract.run import Run, exit_code
from worker.contract.task import Budget, Check, Environment, ForkPoint, Limits, Repo, Task
from worker.store import keys
from worker.store.archive import Archive
from worker.store.deliveries import write_review
from worker.store.inbox import Inbox
from worker.store.journal import Journal
from worker.store.mail import read_mail

Make = Callable[..., Run]
COMMIT = "1" * 40
OTHER = "2" * 40
TEXT = """\
version: 1
name: night
targets: [{repo: https://git.example.org/a}, {repo: https://git.example.org/b}]
task: {commands: [fix]}
checks: [test]
"""
NOT_WORK = {
    *("v", "run", "batch", "target", "ordinal", "candidates", "lane", "repo", "fork", "labels"),
    *("limits", "budget", "waves", "breaker", "weight", "parallel", "max_per_repo", "window", "start_at"),
    *("deliver", "notify", "vars", "prefix_of"),
}
"""Of a task: who does it, when, how it is bounded and paid, and what becomes of it. (repo counts by its parts, vars
where prompt and commands hold them.)"""


def task(**changes: Any) -> Task:
    base: dict[str, Any] = {
        "run": "r",
        "batch": "b",
        "target": "t",
        "repo": Repo(url="https://git.example.org/a", commit=COMMIT),
        "commands": ("fix",),
        "checks": (Check(name="c", command="test"),),
    }
    return Task(**(base | changes))


def batch(text: str = TEXT, key: str = "", reuse: bool = True) -> Batch:
    loaded = parse(text, "m", Path("/"), Limits())
    repos = [Repo(url=one.target.repo, label=one.id, commit=COMMIT) for one in loaded.targets]
    return replace(freeze(loaded, repos, key=key), reuse=reuse)


def end(archive: Archive, run: str, *events: Any) -> None:
    journal = Journal(archive, run)
    folded = journal.load()
    for event in events:
        folded = journal.append(folded, [event], attempt=folded.attempt, at=AT)
    archive.delete([keys.open_marker(run)])


CHANGES: dict[str, Any] = {
    "repo": [
        Repo(url="https://git.example.org/b", commit=COMMIT),
        Repo(url="https://git.example.org/a", commit=OTHER),
        Repo(url="https://git.example.org/a", commit=COMMIT, path="pkg"),
        Repo(source="3" * 64, source_kind="git"),
        Repo(source="4" * 64, source_kind="git"),
        Repo(source="3" * 64, source_kind="git", ref="dev"),
    ],
    "commands": [("fix", "more"), ("other",)],
    "prompt": ["do it", "do it well"],
    "model": ["scripted:x"],
    "script": ["a", "b"],
    "checks": [(), (Check(name="c", command="other"),)],
    "environment": [Environment(image="node"), Environment(setup="pip install x")],
    "without_tools": [("search",)],
    "on_ask": ["deny"],
}


@given(st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in CHANGES.items()}))
def test_any_part_that_differs_makes_another_key(changes: dict[str, Any]) -> None:
    """And what is asked alike has the same one, whoever asks, when, and with which limits and money."""
    fields = changes | ({"prompt": "p", "script": "s"} | changes if "model" in changes else {})
    made = task(**fields)
    same = Task.model_validate(
        json.loads(made.model_dump_json())
        | {"run": "r2", "batch": "b2", "target": "t2", "ordinal": 1, "limits": {"steps": 3}, "budget": {"usd": 1}}
    )
    assert work_key(made) == work_key(same) is not None
    assert (work_key(made) == work_key(task())) == (not fields)


@given(st.permutations(list(task().model_dump(mode="json"))))
def test_the_order_of_keys_makes_no_other_key(names: list[str]) -> None:
    """A mapping is what it holds."""
    fields = task().model_dump(mode="json")
    assert work_key(Task.model_validate({name: fields[name] for name in names})) == work_key(task())


def test_every_field_of_a_task_is_work_or_is_not() -> None:
    """Whoever adds one decides: what changes a result must change the key."""
    assert set(Task.model_fields) <= PARTS | NOT_WORK


def test_where_the_commit_is_not_known_there_is_no_key() -> None:
    """A ref moves. And a fork goes on from another run."""
    assert work_key(task(repo=Repo(url="https://git.example.org/a", ref="main"))) is None
    assert work_key(task(fork=ForkPoint(run="r0", step=1, seq=1, hash="0" * 64))) is None


def test_verified_work_is_reused(archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    """Another batch asks the same of one repository: that run ends at once, names the earlier one, counts as done and
    takes no messages; the other repository, whose run failed, is worked on."""
    first = batch()
    submit(first, archive, by="me", at=AT)
    [a, b] = [one.run for one in first.tasks]
    end(archive, a, claimed(), *ended(verdict="verified"))
    end(archive, b, claimed(), *ended("failed", failure=Failure(cls="agent", reason="loop"), verdict="verified"))
    second = batch(TEXT + "budget: {usd: 3}\n")
    assert submit(second, archive, by="you", at=AT) == 2
    run = Journal(archive, second.tasks[0].run).load()
    assert run.sealed is not None
    assert (run.sealed.outcome, run.sealed.verdict, run.sealed.reused) == ("reused", "verified", a)
    assert a in run.sealed.detail
    assert (run.submitted_by, run.last_seq) == ("you", 0)
    assert exit_code([run]) == ExitCode.OK
    assert list(archive.list("open/")) == [keys.open_marker(second.tasks[1].run)]
    assert check(archive, Found("run", run.id)).problems == []
    assert audited(archive, run.id) == (0, "")
    with pytest.raises(ConflictFault):
        Inbox(archive, run.id).put("cancel", by="me", at=AT)
    assert submit(second, archive, by="me", at=AT) == 0


@pytest.mark.parametrize("at", ["/task.json", "/journal/"])
def test_a_reused_run_that_was_cut_off_is_completed(archive: Archive, at: str) -> None:
    """Its inbox is closed and it has no first segment: nobody works on it, and the same submit ends it."""
    first, second = batch(), batch(key="second")
    submit(first, archive, by="me", at=AT)
    end(archive, first.tasks[0].run, claimed(), *ended(verdict="verified"))
    run = second.tasks[0]
    with pytest.raises(Died):
        submit_run(run, DiesAt(archive, at), by="me", at=AT, reuse=True)
    assert [message.kind for message in Inbox(archive, run.run).read()] == ["closed"]
    assert archive.size(keys.open_marker(run.run)) is None
    assert submit(second, archive, by="you", at=AT) == 2
    sealed = Journal(archive, run.run).load().sealed
    assert sealed is not None
    assert (sealed.outcome, sealed.reused) == ("reused", first.tasks[0].run)
    assert check(archive, Found("run", run.run)).problems == []


def test_a_reused_run_that_was_cut_off_is_worked_on_where_nothing_can_be_reused_any_more(archive: Archive) -> None:
    """Its patch was rejected meanwhile; what closed the inbox is void once the run has read it."""
    first, second = batch(), batch(key="second")
    submit(first, archive, by="me", at=AT)
    done, run = first.tasks[0].run, second.tasks[0]
    end(archive, done, claimed(), *ended(verdict="verified", artifacts={"patch.diff": "0" * 64}))
    with pytest.raises(Died):
        submit_run(run, DiesAt(archive, "/journal/"), by="me", at=AT, reuse=True)
    review = Review(n=0, decision="rejected", by="ann", at=AT, patch="0" * 64)
    write_review(archive, done, review)
    submit(second, archive, by="me", at=AT)
    folded = Journal(archive, run.run).load()
    assert folded.status == "queued"
    mail = read_mail(archive, folded, second.id)
    assert mail.cancel is None
    Journal(archive, run.run).append(folded, [claimed(), *mail.steered()], attempt=1, at=AT)
    assert Inbox(archive, run.run).put("message", by="me", at=AT, text="go on").n == 1


def test_a_run_without_the_mark_of_its_work_is_given_it(archive: Archive) -> None:
    """By the same submit; then its work can be reused."""
    first = batch()
    with pytest.raises(Died):
        submit_run(first.tasks[0], DiesAt(archive, "work/"), by="me", at=AT)
    assert Journal(archive, first.tasks[0].run).load().status == "queued"
    assert submit(first, archive, by="me", at=AT) == 1
    end(archive, first.tasks[0].run, claimed(), *ended(verdict="verified"))
    again = batch(key="again")
    submit(again, archive, by="me", at=AT)
    assert Journal(archive, again.tasks[0].run).load().sealed.reused == first.tasks[0].run  # type: ignore[union-attr]


def test_again_reuses_nothing(archive: Archive) -> None:
    """Also not what is verified."""
    first = batch()
    submit(first, archive, by="me", at=AT)
    end(archive, first.tasks[0].run, claimed(), *ended(verdict="verified"))
    second = batch(key="again", reuse=False)
    submit(second, archive, by="me", at=AT)
    assert [Journal(archive, one.run).load().status for one in second.tasks] == ["queued", "queued"]


def test_what_reused_is_not_reused_itself(archive: Archive) -> None:
    """The third batch names the run that did the work, not one that only names it."""
    made = [batch(key=str(n)) for n in range(3)]
    submit(made[0], archive, by="me", at=AT)
    for one in made[0].tasks:
        end(archive, one.run, claimed(), *ended(verdict="verified"))
    for later in made[1:]:
        submit(later, archive, by="me", at=AT)
        submit(later, archive, by="me", at=AT)
    sealed = Journal(archive, made[2].tasks[0].run).load().sealed
    assert sealed is not None
    assert sealed.reused == made[0].tasks[0].run


def test_an_earlier_run_that_cannot_be_read_is_passed_over(archive: Archive) -> None:
    """The work is done once more, and the damage is told where that run is looked at."""
    key = work_key(task())
    assert key is not None
    archive.create(keys.work_marker(key, "gone"), b"")
    archive.create(keys.work_marker(key, "torn"), b"")
    archive.create(keys.task("torn"), b"{}")
    archive.create(keys.segment("torn", 0), b"{")
    assert earlier(archive, task()) is None


def test_a_rejected_patch_is_not_reused(archive: Archive) -> None:
    """A person said no to it; until they think better of it the work is done once more."""
    first = batch()
    submit(first, archive, by="me", at=AT)
    run = first.tasks[0].run
    patch = Journal(archive, run).put_blob(b"--- a/x\n+++ b/x\n")
    end(archive, run, claimed(), *ended(verdict="verified", artifacts={"patch.diff": patch}))
    asked = first.tasks[0]
    assert earlier(archive, asked) is not None
    for n, decision in enumerate(("rejected", "approved")):
        write_review(archive, run, Review(n=n, decision=decision, patch=patch, by="me", at=AT))
        assert (earlier(archive, asked) is None) == (decision == "rejected")


def test_what_is_to_be_delivered_reuses_only_what_was(archive: Archive) -> None:
    """A run that ended as reused has no patch of its own to deliver: where the earlier one only kept its patch, or
    aimed at another branch, there would be no pull request."""
    first = batch()
    submit(first, archive, by="me", at=AT)
    end(archive, first.tasks[0].run, claimed(), *ended(verdict="verified"))
    kept = first.tasks[0]
    pr, other = (kept.model_copy(update={"deliver": Deliver(kind="pr", base=base)}) for base in (None, "next"))
    assert [earlier(archive, asked) is not None for asked in (kept, pr, other)] == [True, False, False]
    submitted = pr.model_copy(update={"run": "delivered"})
    submit_run(submitted, archive, by="me", at=AT)
    end(archive, "delivered", claimed(), *ended(verdict="verified"))
    assert [earlier(archive, asked) is not None for asked in (kept, pr, other)] == [True, True, False]


def test_a_run_that_is_reused_stays(archive: Archive) -> None:
    """gc keeps it as it keeps the parent of a fork; the marks of what went go too, once they are old."""
    first, second = batch(), batch(key="later")
    submit(first, archive, by="me", at=AT)
    for one in first.tasks:
        end(archive, one.run, claimed(), *ended(verdict="verified"))
    now = datetime.fromisoformat(AT) + timedelta(days=100)
    submit(second, archive, by="me", at=now.isoformat(timespec="milliseconds"))
    kept = collect(archive, keep_s=86400, now=now.astimezone(UTC), dry_run=True)
    assert kept.found["expired runs"] == []
    gone = collect(archive, keep_s=86400, now=now + timedelta(days=100), dry_run=True)
    assert len(gone.found["expired runs"]) == 4
    archive.delete([keys.task(first.tasks[0].run)])
    assert check(archive, Found("run", second.tasks[0].run)).problems != []


@pytest.mark.usefixtures("without_stack")
def test_a_reused_run_shows_the_earlier_one_and_its_patch(
    archive: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the commands: submit twice over the same folder, with another budget the second time."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "x").write_text("x")
    text = "version: 1\nname: night\ntargets: [{repo: ./code}]\ntask: {commands: [fix]}\n"
    Path("one.yaml").write_text(text)
    Path("two.yaml").write_text(text + "budget: {usd: 3}\n")
    assert dawn(["submit", "one.yaml", "--detach", "--json"]) == 0
    [run] = json.loads(capsys.readouterr().out)["batches"][0]["runs"]
    patch = Journal(archive, run).put_blob(b"--- a/x\n+++ b/x\n")
    end(archive, run, claimed(), *ended(verdict="verified", artifacts={"patch.diff": patch}))
    assert dawn(["submit", "two.yaml", "--detach", "--json"]) == 0
    told = capsys.readouterr()
    assert "1 new run, 1 of them reused" in told.err
    [again] = json.loads(told.out)["batches"][0]["runs"]
    assert dawn(["show", again]) == 0
    assert run in capsys.readouterr().out
    assert dawn(["status", again]) == 0
    assert "reused" in capsys.readouterr().out
    assert dawn(["diff", again]) == 0
    assert "+++ b/x" in capsys.readouterr().out
    assert dawn(["submit", "two.yaml", "--detach", "--json", "--again"]) == 0
    [new] = json.loads(capsys.readouterr().out)["batches"][0]["runs"]
    assert new not in (run, again)
    assert Journal(archive, new).load().status == "queued"


@pytest.mark.parametrize(
    ("fail_on", "codes"),
    [("any", [4, 5, 4, 4, 0]), ("all", [0, 5, 4, 0, 0]), ("infra", [0, 0, 0, 4, 0]), ("never", [0] * 5)],
)
def test_whoever_submits_says_which_failures_count(make_run: Make, fail_on: Any, codes: list[int]) -> None:
    """Some failed, all failed, the only one failed, one failed for our machinery, none failed."""
    ok = make_run("ok", *ended(verdict="verified"))
    bad = make_run("bad", *ended(verdict="broke"))
    agent = make_run("agent", *ended("failed", failure=Failure(cls="agent", reason="loop")))
    infra = make_run("infra", *ended("failed", failure=Failure(cls="infra", reason="engine")))
    cases = [[ok, bad], [bad, agent], [bad], [ok, infra], [ok]]
    assert [int(exit_code(runs, fail_on=fail_on)) for runs in cases] == codes


@pytest.mark.usefixtures("without_stack")
def test_a_word_that_fail_on_does_not_know_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is read."""
    assert dawn(["submit", "gone.yaml", "--fail-on", "some"]) == ExitCode.USAGE
    assert "any, all, infra, never" in capsys.readouterr().err


def test_the_budget_is_no_part_of_the_work() -> None:
    """Nor are the limits: a verified result stays verified."""
    assert work_key(task(budget=Budget(usd=1), limits=Limits(steps=2))) == work_key(task())
