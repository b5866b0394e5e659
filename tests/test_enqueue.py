"""What a submit writes, and that writing it again changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.enqueue import Batch, freeze, submit
from scheduler.manifests.reading import parse
from worker.contract.errors import ConflictFault
from worker.contract.task import Budget, Limits, Repo
from worker.store import keys
from worker.store.archive import Archive
from worker.store.journal import Journal
from worker.store.members import members

AT = "2026-11-30T02:00:00.000+00:00"
TEXT = """\
version: 1
name: night
targets: [{repo: https://git.example.org/a}, {repo: https://git.example.org/a, image: node}]
task: {commands: [fix]}
"""


def batch(text: str = TEXT, key: str = "", url: str = "https://git.example.org/a") -> Batch:
    loaded = parse(text, "m", Path("/"), Limits())
    return freeze(loaded, [Repo(url=url, label="Päck age") for _ in loaded.targets], key=key)


def test_a_batch_is_written_with_its_runs(archive: Archive) -> None:
    """Manifest, targets, and for each target task, marker and first segment."""
    made = batch()
    assert submit(made, archive, by="me", at=AT) == 2
    assert archive.get(keys.batch_manifest(made.id)).decode() == TEXT
    assert [member.run for member in members(archive, made.id)] == [task.run for task in made.tasks]
    assert sorted(archive.list("open/")) == sorted(f"open/{task.run}" for task in made.tasks)
    assert [Journal(archive, task.run).load().submitted_by for task in made.tasks] == ["me", "me"]


def test_a_repeated_submit_changes_nothing(archive: Archive) -> None:
    """The same digest is the same batch, and not one byte is written twice."""
    submit(batch(), archive, by="me", at=AT)
    before = {key: archive.get(key) for prefix in ("batches/", "runs/", "open/") for key in archive.list(prefix)}
    assert submit(batch(), archive, by="other", at="2026-12-01T02:00:00.000+00:00") == 0
    after = {key: archive.get(key) for prefix in ("batches/", "runs/", "open/") for key in archive.list(prefix)}
    assert before == after


def test_a_repeated_submit_completes_what_is_missing(archive: Archive) -> None:
    """A submit that was cut off after the first run goes on with the second."""
    made = batch()
    submit(Batch(made.id, made.manifest, made.targets, made.tasks[:1]), archive, by="me", at=AT)
    assert submit(made, archive, by="me", at=AT) == 1


def test_a_comment_more_asks_for_the_same(archive: Archive) -> None:
    """A manifest whose words alone are others is the batch that is there."""
    submit(batch(), archive, by="me", at=AT)
    assert submit(batch("# once more\n" + TEXT), archive, by="me", at=AT) == 0


def test_every_run_of_a_batch_carries_its_budget() -> None:
    """A worker reads it in the task, which an earlier version of ours does not take."""
    tasks = batch(TEXT + "budget: {usd: 20, on_limit: stop}\n").tasks
    assert [(task.v, task.budget) for task in tasks] == [(2, Budget(usd=20, on_limit="stop"))] * 2
    assert (batch().tasks[0].v, batch().tasks[0].budget) == (1, None)


def test_targets_under_one_label_are_told_apart() -> None:
    """Two targets of the same repository are two runs, with readable ids that hold nothing but a-z, 0-9 and -."""
    first, second = batch().tasks
    assert (first.target, second.target) == ("a", "a#2")
    assert first.run != second.run
    assert first.run.startswith("p-ck-age-")
    assert (first.environment.image, second.environment.image) == ("python", "node")


@pytest.mark.parametrize(
    "other",
    [
        batch(key="again"),
        batch(url="https://git.example.org/b"),
        batch(TEXT.replace("[fix]", "[fix, more]")),
        batch(TEXT + "limits: {steps: 3}\n"),
        batch(TEXT + "budget: {usd: 3}\n"),
    ],
)
def test_anything_asked_otherwise_is_another_batch(other: Batch) -> None:
    """Key, repository, task, limits and budget are part of the digest."""
    assert other.id != batch().id
    assert not {task.run for task in other.tasks} & {task.run for task in batch().tasks}


def test_a_comment_is_part_of_the_stored_text_only() -> None:
    """The digest is of what is asked, not of how it is written."""
    assert batch("# tonight\n" + TEXT).id == batch().id


def test_an_id_that_is_taken_is_refused(archive: Archive) -> None:
    """A collision never mixes two batches."""
    made = batch()
    archive.create(keys.batch_targets(made.id), b"{}")
    with pytest.raises(ConflictFault):
        submit(made, archive, by="me", at=AT)
