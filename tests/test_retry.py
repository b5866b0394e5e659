"""Retries, and the words by which runs are selected for them and for other commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from doubles import Died, DiesAt
from runs_made import AT, claimed, ended

from scheduler.cli.main import run as dawn
from scheduler.enqueue import Batch, freeze, submit
from scheduler.launch import _tasks
from scheduler.manifests.reading import parse
from scheduler.retry import Wish, complete, retry, wishes
from scheduler.runs import BATCHES_SHOWN, Found, runs_in, standing, views
from scheduler.selection import Selection, select
from scheduler.verify import check
from worker.contract.errors import ConflictFault, NotFoundFault, UsageFault
from worker.contract.events import Failure, Sealed, Verdict
from worker.contract.run import Run
from worker.contract.task import Limits, Repo, Task
from worker.store import keys
from worker.store.archive import Archive
from worker.store.inbox import Control, Inbox
from worker.store.journal import Journal
from worker.store.mail import read_mail
from worker.store.members import announce, members

Make = Callable[..., Run]
TEXT = """\
version: 1
name: night
targets: [%s]
task: {commands: [fix]}
labels: [team=web]
"""
INFRA = Failure(cls="infra", reason="engine")
AGENT = Failure(cls="agent", reason="loop")
SIX = ("verified", INFRA, "verified", AGENT, INFRA, "verified")


def batch(number: int = 6, more: str = "", key: str = "") -> Batch:
    targets = ", ".join(f"{{repo: 'https://git.example.org/{one}'}}" for one in "abcdef"[:number])
    loaded = parse(TEXT % targets + more, "m", Path("/"), Limits())
    return freeze(loaded, [Repo(url=one.target.repo, label=one.id) for one in loaded.targets], key=key)


def end(archive: Archive, run: str, how: Any) -> None:
    """how: a failure, a verdict, or an outcome that nobody worked for."""
    journal = Journal(archive, run)
    folded = journal.load()
    if how == "cancelled":
        events: list[Any] = [Sealed(outcome=how)]
    else:
        events = [claimed(), *(ended("failed", failure=how) if isinstance(how, Failure) else ended(verdict=how))]
    for event in events:
        folded = journal.append(folded, [event], attempt=folded.attempt, at=AT)
    archive.delete([keys.open_marker(run)])


def made(archive: Archive, ends: Sequence[Any] = SIX, **options: Any) -> Batch:
    """A batch whose runs have ended so, None for one that has not."""
    one = batch(len(ends), **options)
    submit(one, archive, by="me", at=AT)
    for task, how in zip(one.tasks, ends, strict=True):
        if how is not None:
            end(archive, task.run, how)
    return one


def again(archive: Archive, one: Batch, **how: Any) -> list[str]:
    """Targets of the retries."""
    wished = wishes(archive, [one.id], Selection(**how))
    return [member.target for member in retry(archive, one.id, wished, by="me", at=AT)]


def test_infra_failures_are_retried_and_nothing_else(archive: Archive) -> None:
    """T53: of 3 successes, 2 infra failures and 1 agent failure there are exactly 2 new runs, behind the old ones,
    which stay as they were; order and ids as in the manifest."""
    one = made(archive)
    runs = [task.run for task in one.tasks]
    before = {run: Journal(archive, run).load() for run in runs}
    assert again(archive, one, classes=("infra",)) == ["b", "e"]
    now = runs_in(archive, Found("batch", one.id))
    new = [run for run in now if run not in runs]
    assert now == [*runs[:2], new[0], *runs[2:5], new[1], runs[5]]
    assert {run: Journal(archive, run).load() for run in runs} == before
    for run, old in zip(new, (one.tasks[1], one.tasks[4]), strict=True):
        task = Journal(archive, run).task()
        assert task == Task.model_validate(dict(old) | {"run": run, "ordinal": 1})
        assert Journal(archive, run).load().status == "queued"
    assert sorted(archive.list("open/")) == sorted(keys.open_marker(run) for run in new)
    assert check(archive, Found("batch", one.id)).problems == []


def test_without_a_word_what_failed_is_retried(archive: Archive) -> None:
    """As the exit code counts it: a change that its checks refute is one of them."""
    one = made(archive, ("broke", "verified", AGENT, "cancelled", None, "flaky"))
    assert again(archive, one) == ["a", "c"]


def test_a_retry_is_not_retried_before_it_has_ended(archive: Archive) -> None:
    """The same command again finds nothing; after it failed too, the next one has the next number."""
    one = made(archive)
    assert again(archive, one, classes=("infra",)) == ["b", "e"]
    assert again(archive, one, classes=("infra",)) == []
    [_, second] = [member.run for member in members(archive, one.id) if member.target == "b"]
    with pytest.raises(ConflictFault, match=second):
        wishes(archive, [one.tasks[1].run], Selection())
    end(archive, second, INFRA)
    assert again(archive, one, classes=("infra",)) == ["b"]
    assert [member.ordinal for member in members(archive, one.id) if member.target == "b"] == [0, 1, 2]


def test_what_a_retry_mended_is_not_retried(archive: Archive) -> None:
    """Its earlier run counts no more."""
    one = made(archive, (INFRA,))
    again(archive, one)
    end(archive, members(archive, one.id)[1].run, "verified")
    assert again(archive, one) == []


def test_a_named_run_is_retried_however_it_ended(archive: Archive) -> None:
    """A person has a reason."""
    one = made(archive, ("verified", None))
    [wish] = wishes(archive, [one.tasks[0].run], Selection())
    assert [member.target for member in retry(archive, one.id, [wish], by="me", at=AT)] == ["a"]
    with pytest.raises(ConflictFault, match="has not ended"):
        wishes(archive, [one.tasks[1].run], Selection())


def test_candidates_are_followed_by_their_retries(archive: Archive) -> None:
    """One new run of the target, with the number behind all of them."""
    one = batch(1, "candidates: 3\n")
    submit(one, archive, by="me", at=AT)
    for task in one.tasks[:2]:
        end(archive, task.run, AGENT)
    assert again(archive, one) == []  # one of them works still
    end(archive, one.tasks[2].run, INFRA)
    assert again(archive, one) == ["a"]
    assert [member.ordinal for member in members(archive, one.id)] == [0, 1, 2, 3]
    [counts] = standing(views(archive, runs_in(archive, Found("batch", one.id))).found)
    assert (counts.task.ordinal, counts.place) == (3, "retry 1")


def test_a_retry_cut_off_after_its_announcement_is_completed(archive: Archive) -> None:
    """By whoever asks again: the runs have the ids that were announced, and no others are made."""
    one = made(archive)
    wished = wishes(archive, [one.id], Selection(classes=("infra",)))

    with pytest.raises(Died):
        retry(DiesAt(archive, "runs/"), one.id, wished, by="me", at=AT)
    announced = [member for member in members(archive, one.id) if member.ordinal]
    assert [member.target for member in announced] == ["b", "e"]
    assert complete(archive, one.id) == announced
    assert complete(archive, one.id) == []
    assert list(archive.list("announced/")) == []
    assert [Journal(archive, member.run).load().status for member in announced] == ["queued", "queued"]


def test_of_two_who_retry_at_once_one_does(archive: Archive) -> None:
    """Both have looked before either wrote."""
    one = made(archive)
    first, second = (wishes(archive, [one.id], Selection(classes=("infra",))) for _ in range(2))
    assert len(retry(archive, one.id, first, by="me", at=AT)) == 2
    assert retry(archive, one.id, second, by="you", at=AT) == []
    assert announce(archive, one.id, members(archive, one.id)[:1], number=0, by="you", at=AT) is None


def test_a_retry_has_read_what_its_batch_was_told(archive: Archive) -> None:
    """A budget and a pause count for it; the cancel that ended the others does not end it, and a later one does."""
    one = made(archive, ("cancelled",))
    control = Control(archive, one.id)
    for kind, text in (("budget", "$7.00"), ("cancel", ""), ("pause", "")):
        control.put(kind, by="me", at=AT, text=text)  # type: ignore[arg-type]
    assert again(archive, one, states=("cancelled",)) == ["a"]
    run = Journal(archive, members(archive, one.id)[1].run).load()
    mail = read_mail(archive, run, one.id)
    assert (mail.cancel, mail.paused_by, run.batch_budget_microusd) == (None, "me", 7_000_000)
    control.put("cancel", by="me", at=AT)
    assert read_mail(archive, run, one.id).cancel is not None


def test_a_retry_reuses_nothing(archive: Archive) -> None:
    """Though the work is verified, and a new batch would."""
    loaded = parse(TEXT % "{repo: 'https://git.example.org/a'}", "m", Path("/"), Limits())
    one = freeze(loaded, [Repo(url="https://git.example.org/a", label="a", commit="1" * 40)])
    submit(one, archive, by="me", at=AT)
    end(archive, one.tasks[0].run, "verified")
    retry(archive, one.id, [Wish(one.tasks[0], 0)], by="me", at=AT)
    assert Journal(archive, members(archive, one.id)[1].run).load().status == "queued"


@pytest.mark.parametrize(
    ("selection", "targets"),
    [
        ({}, "abcdef"),
        ({"classes": ("infra", "agent")}, "bde"),
        ({"states": ("verified",)}, "acf"),
        ({"states": ("failed", "verified"), "limit": 2}, "ab"),
        ({"repos": ("https://*/b", "c")}, "bc"),
        ({"labels": ("team=web",)}, "abcdef"),
        ({"labels": ("team=web", "other")}, ""),
        ({"batches": ("nig",), "repos": ("[ab]",)}, "ab"),
    ],
)
def test_runs_are_selected_by_what_they_are(archive: Archive, selection: dict[str, Any], targets: str) -> None:
    """Words of one kind widen, labels and kinds narrow."""
    made(archive)
    assert "".join(view.task.target for view in select(archive, Selection(**selection))) == targets


def test_a_word_that_is_no_state_or_class_is_refused(archive: Archive) -> None:
    """With those that there are; and so is a batch that nobody has."""
    with pytest.raises(UsageFault, match="infraa"):
        Selection(classes=("infraa",))
    with pytest.raises(UsageFault, match="sealed"):
        Selection(states=("sealed",))
    with pytest.raises(NotFoundFault):
        select(archive, Selection(batches=("day",)))


@pytest.mark.parametrize("option", ["batches", "repos", "labels"])
def test_an_empty_word_selects_nothing(option: str) -> None:
    """Every id begins with it: `dawn cancel --batch "$UNSET"` would end all that there is."""
    with pytest.raises(UsageFault, match="is empty"):
        Selection(**{option: ("",)})  # type: ignore[arg-type]


def test_a_run_that_is_named_is_meant_though_another_counts(archive: Archive) -> None:
    """And only it."""
    one = made(archive, (INFRA,))
    again(archive, one)
    assert [view.task.ordinal for view in select(archive, Selection(), [one.tasks[0].run])] == [0]
    assert [view.task.ordinal for view in select(archive, Selection())] == [1]
    assert [view.task.ordinal for view in select(archive, Selection(), every=True)] == [0, 1]


@pytest.fixture
def said(without_stack: None, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, list[str]]]:
    """Exit code and lines of a command's stdout."""

    def say(*words: str) -> tuple[int, list[str]]:
        code = dawn(list(words))
        return code, capsys.readouterr().out.splitlines()

    return say


def test_the_command_retries_by_class(archive: Archive, said: Callable[..., tuple[int, list[str]]]) -> None:
    """It prints the new runs; with nothing selected its exit code is 10, without any name 2."""
    one = made(archive)
    code, out = said("retry", one.id, "--class", "infra", "--json")
    rows = json.loads("\n".join(out))["runs"]
    assert (code, [(row["target"], row["ordinal"]) for row in rows]) == (0, [("b", 1), ("e", 1)])
    assert said("retry", one.id, "--class", "infra") == (10, [])
    assert said("retry", "--label", "team=web") == (2, [])
    assert said("retry", one.id, "--failed", "--class", "agent") == (2, [])
    code, out = said("retry", "--batch", "night", "--class", "agent")
    assert (code, out) == (0, [members(archive, one.id)[5].run])


def test_the_command_completes_what_another_began(
    archive: Archive, said: Callable[..., tuple[int, list[str]]]
) -> None:
    """An announcement without its runs."""
    one = made(archive)
    wished = wishes(archive, [one.id], Selection(classes=("infra",)))
    retry(archive, one.id, wished, by="me", at=AT)
    new = [member.run for member in members(archive, one.id) if member.ordinal]
    for run in new:
        archive.delete([keys.task(run), keys.open_marker(run), keys.segment(run, 0)])
    archive.create(keys.announced(one.id, 0), b"")
    assert said("retry", one.id, "--class", "infra") == (0, new)
    assert said("status", one.id)[0] == 0


def test_ls_lists_what_is_selected(archive: Archive, said: Callable[..., tuple[int, list[str]]]) -> None:
    """Over batches; what a retry stands for only with --all; nothing is exit code 10."""
    one, two = made(archive), made(archive, ("verified", None), key="other")
    again(archive, one, classes=("infra",))
    rows = json.loads("\n".join(said("ls", "--json", "--state", "queued")[1]))["runs"]
    assert sorted((row["batch"], row["target"], row["ordinal"]) for row in rows) == sorted(
        [(one.id, "b", 1), (one.id, "e", 1), (two.id, "b", 0)]
    )
    assert len(json.loads("\n".join(said("ls", "--json", "--all")[1]))["runs"]) == 10
    assert said("ls", "--repo", "zebra") == (10, [])


def test_ls_looks_at_the_newest_and_the_open_batches(
    archive: Archive, without_stack: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """As status does: of an old one that has ended only with --all, or where it is named; and says how many it left
    out."""
    days = [f"2026-11-{day:02}T02:00:00.000+00:00" for day in range(1, BATCHES_SHOWN + 3)]
    old = [batch(1, key=day) for day in days]
    for one, day in zip(old, days, strict=True):
        submit(one, archive, by="me", at=day)
    for one in old[1:]:
        end(archive, one.tasks[0].run, "verified")

    def listed(*words: str) -> tuple[set[str], str]:
        assert dawn(["ls", "--json", *words]) == 0
        told = capsys.readouterr()
        return {row["batch"] for row in json.loads(told.out)["runs"]}, told.err

    shown, note = listed()
    assert shown == {one.id for one in [old[0], *old[2:]]}
    assert "left out (1)" in note
    assert listed("--all") == ({one.id for one in old}, "")
    assert listed("--batch", old[1].id) == listed(old[1].id) == ({old[1].id}, "")


def test_status_shows_what_is_selected(archive: Archive, said: Callable[..., tuple[int, list[str]]]) -> None:
    """Of one batch such runs, of all those batches that hold one."""
    one, two = made(archive, (INFRA, AGENT)), made(archive, ("verified",), key="other")
    rows = json.loads("\n".join(said("status", one.id, "--class", "infra", "--json")[1]))["runs"]
    assert [row["target"] for row in rows] == ["a"]
    listed = json.loads("\n".join(said("status", "--state", "verified", "--json")[1]))["batches"]
    assert [entry["batch"] for entry in listed] == [two.id]
    assert said("status", two.id, "--class", "infra") == (10, [])
    assert said("status", "--label", "nobody") == (10, [])


def test_a_selection_is_cancelled_and_the_rest_is_not(
    archive: Archive, said: Callable[..., tuple[int, list[str]]]
) -> None:
    """Each run is told itself; a whole batch is told as one."""
    one = made(archive, (None, None, "verified"))
    a, b = one.tasks[0].run, one.tasks[1].run
    assert said("cancel", "--repo", "b", "--state", "queued") == (0, [b])
    assert [message.kind for message in Inbox(archive, b).read()] == ["cancel"]
    assert Inbox(archive, a).read() == Control(archive, one.id).read() == []
    assert said("pause", "--batch", one.id) == (0, [a, b])
    assert [message.kind for message in Control(archive, one.id).read()] == ["pause"]
    assert said("unpause", a, b) == (0, [a, b])
    assert said("pause", "--label", "nobody") == (10, [])
    assert said("cancel", one.tasks[2].run) == (10, [])
    assert said("cancel") == (2, [])


def test_a_verdict_of_a_failed_run_makes_it_no_success(make_run: Make, archive: Archive) -> None:
    """It is listed by what was measured, and counted as failed."""
    run = make_run("r", Verdict(verdict="verified"), *ended("failed", failure=AGENT, verdict="verified"))
    [view] = views(archive, [run.id]).found
    assert Selection(states=("failed",)).matches(view)
    assert Selection(states=("verified",)).matches(view)


def test_who_watches_a_batch_sees_what_was_added_and_written(archive: Archive) -> None:
    """A retry whose run is not there yet is none to wait for."""
    one = made(archive, (INFRA, INFRA))
    again(archive, one)
    [_, first, _, second] = runs_in(archive, Found("batch", one.id))
    archive.delete([keys.task(second), keys.segment(second, 0)])
    assert list(_tasks([one], archive)) == [one.tasks[0].run, first, one.tasks[1].run]
