"""Which runs a batch has, and which of a target's counts for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs_made import AT, ended

from scheduler.enqueue import Batch, freeze, submit
from scheduler.manifests.reading import parse
from scheduler.reports.rows import cells, counts
from scheduler.runs import Found, View, Views, find, find_newest, runs_in, standing
from scheduler.verify import check
from worker.contract.errors import ConflictFault, ExitCode, IntegrityFault
from worker.contract.events import Failure, PatchStat, Verdict
from worker.contract.run import Run, exit_code
from worker.contract.task import Limits, Repo, Task
from worker.store import keys
from worker.store.archive import Archive
from worker.store.journal import Journal
from worker.store.mail import Mail
from worker.store.members import Member, announce, members

Make = Callable[..., Run]
TEXT = """\
version: 1
name: night
targets: [{repo: https://git.example.org/a}, {repo: https://git.example.org/b}]
task: {commands: [fix]}
candidates: 3
"""


def batch(text: str = TEXT) -> Batch:
    loaded = parse(text, "m", Path("/"), Limits())
    return freeze(loaded, [Repo(url=one.target.repo, label=one.id) for one in loaded.targets])


def view(run: Run, archive: Archive) -> View:
    return View(Journal(archive, run.id).task(), run, Mail(run))


def verdict(name: Any, *, lines: int = 0, size: int = 0) -> Verdict:
    return Verdict(verdict=name, patch=PatchStat(files={"x": (lines, 0)} if lines else {}, bytes=size))


def test_the_newest_batch_of_a_name_is_read(archive: Archive) -> None:
    """Whoever types the manifest's name means the last night; what acts wants the very batch."""
    for text, at in ((TEXT, "2026-11-29T02:00:00.000+00:00"), (TEXT.replace("3", "2"), AT)):
        made = batch(text)
        submit(made, archive, by="me", at=at)
    assert find_newest(archive, "night") == Found("batch", made.id)
    with pytest.raises(ConflictFault):
        find(archive, "night")


def test_every_target_has_its_candidates_side_by_side(archive: Archive) -> None:
    """Ids of their own, numbered from 0, those of a target together; a manifest without the word names one each."""
    made = batch()
    assert [(task.target, task.ordinal) for task in made.tasks] == [(t, n) for t in "ab" for n in range(3)]
    assert len({task.run for task in made.tasks}) == 6
    assert {(task.v, task.candidates) for task in made.tasks} == {(3, 3)}
    assert submit(made, archive, by="me", at=AT) == 6
    assert check(archive, Found("batch", made.id)).problems == []
    assert [(task.v, task.candidates) for task in batch(TEXT.replace("candidates: 3", "")).tasks] == [(1, 1)] * 2


def test_a_retry_stands_behind_the_run_that_it_repeats(archive: Archive) -> None:
    """In the order of the manifest, whenever it was asked for; of an announcement's number only the first counts."""
    made = batch(TEXT.replace("candidates: 3", ""))
    submit(made, archive, by="me", at=AT)
    assert announce(archive, made.id, [Member(target="b", ordinal=1, run="b-2")], number=0, by="me", at=AT)
    assert not announce(archive, made.id, [Member(target="b", ordinal=1, run="b-3")], number=0, by="you", at=AT)
    assert announce(archive, made.id, [Member(target="a", ordinal=1, run="a-2")], number=1, by="me", at=AT)
    [a, b] = [task.run for task in made.tasks]
    assert runs_in(archive, Found("batch", made.id)) == [a, "a-2", b, "b-2"]


def test_damaged_retries_are_named(archive: Archive) -> None:
    """Nobody goes on with half a batch."""
    made = batch()
    submit(made, archive, by="me", at=AT)
    archive.create(keys.batch_retries(made.id, 0), b"{}")
    with pytest.raises(IntegrityFault, match="retries/000000"):
        members(archive, made.id)
    assert any("retries/000000" in problem for problem in check(archive, Found("batch", made.id)).problems)


@pytest.mark.parametrize(
    ("candidates", "best"),
    [
        ([verdict("still_failing"), verdict("verified", lines=9), verdict("unverified")], 1),
        (
            [
                verdict("verified", lines=9),
                verdict("verified", lines=2, size=9),
                verdict("verified", lines=2, size=8),
            ],
            2,
        ),
        ([verdict("verified", lines=2), verdict("verified", lines=2), verdict("broke")], 0),
        ([verdict("broke"), verdict("still_failing"), verdict("flaky")], 2),
        ([verdict("broke"), Failure(cls="infra", reason="engine"), Failure(cls="infra", reason="engine")], 0),
    ],
)
def test_the_best_candidate_counts(
    make_run: Make, archive: Archive, candidates: list[Verdict | Failure], best: int
) -> None:
    """By verdict, then lines, then bytes, then number."""
    views = []
    for ordinal, made in enumerate(candidates):
        events = (
            [made, *ended(verdict=made.verdict)]
            if isinstance(made, Verdict)
            else ended("failed", failure=made, verdict="verified")
        )
        views.append(view(make_run(f"r{ordinal}", *events, ordinal=ordinal, candidates=3, v=3), archive))
    assert [one.task.ordinal for one in standing(views)] == [best]


def test_while_a_candidate_works_its_target_is_not_decided(make_run: Make, archive: Archive) -> None:
    """However good those are that have ended."""
    done = view(make_run("r0", *ended(verdict="verified"), candidates=2, v=3), archive)
    works = view(make_run("r1", ordinal=1, candidates=2, v=3), archive)
    assert standing([done, works]) == [works]


def test_the_last_retry_counts_and_no_earlier_run(make_run: Make, archive: Archive) -> None:
    """Also a worse one: it is the newest that is known. The others are told as what they are."""
    first = view(make_run("r0", *ended("failed", failure=Failure(cls="infra", reason="engine"))), archive)
    good = view(make_run("r1", *ended(verdict="verified"), ordinal=1), archive)
    last = view(make_run("r2", *ended(verdict="still_failing"), ordinal=2), archive)
    assert standing([first, good, last]) == [last]
    assert standing([first, good]) == [good]
    assert [cells(one)[1] for one in (first, good)] == ["cart", "cart (retry 1)"]
    assert counts(Views([first, good], {}, 0)) == "1 changed/verified"
    assert exit_code(one.run for one in standing([first, good])) == ExitCode.OK
    assert exit_code(one.run for one in standing([first, good, last])) == ExitCode.SOME_FAILED


def test_equal_targets_of_two_batches_are_two(make_run: Make, archive: Archive) -> None:
    """A target is named within its batch."""
    here, there = view(make_run("r0"), archive), view(make_run("r1", batch="other-0123456789ab"), archive)
    assert standing([here, there]) == [here, there]


def test_a_lock_s_commit_needs_a_newer_reader() -> None:
    """An older worker refuses the version, and does not take the task for a damaged one."""
    loaded = parse(TEXT.replace("candidates: 3", ""), "m", Path("/"), Limits())
    repos = [Repo(url="https://git.example.org/a", label="a", commit=commit) for commit in ("0" * 40, None)]
    tasks: tuple[Task, ...] = freeze(loaded, repos).tasks
    assert [task.v for task in tasks] == [3, 1]
