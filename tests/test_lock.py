"""What a submit would come to, and the lock that says which commits it takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from runs_made import AT, claimed, ended, replied

from scheduler import lock
from scheduler.cli.main import run as dawn
from scheduler.enqueue import Batch, freeze, submit
from scheduler.launch import batch_of
from scheduler.manifests.reading import Loaded, parse
from scheduler.planning.forecast import forecast
from worker.contract.errors import ExitCode, InvalidFault, UsageFault
from worker.contract.run import Run
from worker.contract.task import Limits, Repo
from worker.contract.window import Window
from worker.store import keys
from worker.store.archive import Archive
from worker.store.journal import Journal

Make = Callable[..., Run]
TEXT = """\
version: 1
name: night
targets: [{repo: https://git.example.org/a, ref: dev}, {repo: https://git.example.org/b}]
task: {commands: [fix], model: anthropic/claude-opus-4, prompt: fix it}
limits: {cost_usd: 2}
"""
NOW = datetime(2026, 12, 1, 1, tzinfo=UTC)
COMMITS = ("1" * 40, "2" * 40)


def loaded(text: str = TEXT) -> Loaded:
    return parse(text, "fleet.yaml", Path("/"), Limits())


def repos(of: Loaded, *commits: str | None) -> list[Repo]:
    told = commits or COMMITS
    return [
        Repo(url=one.target.repo, ref=one.target.ref, label=one.id, commit=commit, branch="dev" if commit else "")
        for one, commit in zip(of.targets, told, strict=True)
    ]


def test_a_submit_takes_the_commits_of_its_lock(archive: Archive, tmp_path: Path) -> None:
    """And what was asked stays beside them. The same targets are the same bytes, whose lines can be compared."""
    manifest = tmp_path / "fleet.yaml"
    made = lock.lock_of(loaded(), repos(loaded()))
    lock.write(lock.path_of(manifest), made)
    lock.write(lock.path_of(manifest), made)
    assert [path.name for path in tmp_path.iterdir()] == ["fleet.lock"]
    assert (tmp_path / "fleet.lock").read_text() == made.text()
    said: list[str] = []
    batch = batch_of(loaded(), archive, say=said.append, lock=lock.beside(manifest))
    assert [(task.repo.ref, task.repo.commit, task.repo.branch) for task in batch.tasks] == [
        ("dev", COMMITS[0], "dev"),
        (None, COMMITS[1], "dev"),
    ]
    assert said == []
    assert batch.id != batch_of(loaded(), archive, say=said.append).id


def test_a_prompt_may_change_under_a_lock(archive: Archive) -> None:
    """The lock is of the targets."""
    other = loaded(TEXT.replace("fix it", "fix it well"))
    batch = batch_of(other, archive, say=pytest.fail, lock=lock.lock_of(loaded(), repos(loaded())))
    assert [task.repo.commit for task in batch.tasks] == list(COMMITS)


@pytest.mark.parametrize(
    "text", [TEXT.replace("dev", "main"), TEXT.replace("org/b", "org/c"), TEXT + "exclude: [b]\n"]
)
def test_a_lock_of_other_targets_is_stale(archive: Archive, text: str) -> None:
    """It is said, and refs are asked when they are fetched."""
    said: list[str] = []
    batch = batch_of(loaded(text), archive, say=said.append, lock=lock.lock_of(loaded(), repos(loaded())))
    assert {task.repo.commit for task in batch.tasks} == {None}
    assert len(said) == 1
    assert "stale" in said[0]
    assert "dawn plan fleet.yaml" in said[0]


def test_a_target_that_could_not_be_asked_is_fetched_by_its_ref(archive: Archive) -> None:
    """The others are locked all the same."""
    made = lock.lock_of(loaded(), repos(loaded(), COMMITS[0], None))
    batch = batch_of(loaded(), archive, say=pytest.fail, lock=made)
    assert [task.repo.commit for task in batch.tasks] == [COMMITS[0], None]


def test_what_is_no_lock_is_refused(tmp_path: Path) -> None:
    """With the command that makes it again; and a manifest is never overwritten by its lock."""
    (tmp_path / "fleet.lock").write_text("{}")
    with pytest.raises(InvalidFault) as refused:
        lock.beside(tmp_path / "fleet.yaml")
    assert "dawn plan" in refused.value.hint
    assert lock.beside(tmp_path / "other.yaml") is None
    with pytest.raises(UsageFault):
        lock.path_of(tmp_path / "fleet.lock")


def test_a_lock_that_somebody_edited_puts_no_commit_on_another_target(archive: Archive, tmp_path: Path) -> None:
    """One whose lines are fewer or in another order is stale, and what is no commit makes no lock."""
    made = lock.lock_of(loaded(), repos(loaded()))
    for lines in (made.targets[:1], made.targets[::-1]):
        said: list[str] = []
        edited = made.model_copy(update={"targets": lines})
        batch = batch_of(loaded(), archive, say=said.append, lock=edited)
        assert ([task.repo.commit for task in batch.tasks], len(said)) == ([None, None], 1)
    (tmp_path / "fleet.lock").write_text(made.text().replace(COMMITS[0], "--upload-pack=x"))
    with pytest.raises(InvalidFault):
        lock.beside(tmp_path / "fleet.yaml")


def seen(archive: Archive, text: str = TEXT, *, batch: Batch | None = None, **said: Any) -> Any:
    of = loaded(text)
    batch = batch or replace(freeze(of, repos(of)), reuse=True)
    return forecast(archive, of.manifest, batch, unreachable=said, excluded=of.excluded, now=NOW)


def test_each_target_has_its_line(archive: Archive) -> None:
    """New; there, where the same was submitted; reused, where the work was verified; excluded; unreachable."""
    text = TEXT.replace("targets: [", "targets: [{repo: https://git.example.org/x}, ").replace(
        "task:", "exclude: [x]\ntask:"
    )
    first = freeze(loaded(), repos(loaded()))
    assert [line.state for line in seen(archive, text, b="no route").lines] == ["new", "unreachable", "excluded"]
    submit(first, archive, by="me", at=AT)
    run = first.tasks[0].run
    folded = Journal(archive, run).load()
    for event in (claimed(), *ended(verdict="verified")):
        folded = Journal(archive, run).append(folded, [event], attempt=folded.attempt, at=AT)
    assert [line.state for line in seen(archive).lines] == ["there", "there"]
    lines = seen(archive, TEXT + "budget: {usd: 1}\n").lines
    assert [(line.state, line.why) for line in lines] == [("reused", run), ("new", "")]


def test_a_plan_says_what_it_may_cost(make_run: Make, archive: Archive) -> None:
    """The limit of each new run, or the budget of all, and what earlier runs of the name did cost."""
    assert seen(archive).cost.text == "at most $4.00 for 2 new runs"
    assert seen(archive, TEXT + "budget: {usd: 3}\n").cost.text.startswith("at most $3.00")
    assert seen(archive, TEXT.replace("cost_usd: 2", "cost_usd: null")).cost.most is None
    assert seen(archive, TEXT.replace("anthropic/claude-opus-4, prompt: fix it", "none")).cost.most == 0
    for number, cost in enumerate((100_000, 300_000, 800_000)):
        make_run(
            f"r{number}", claimed(), replied(cost_microusd=cost), *ended(verdict="verified"), target=f"t{number}"
        )
    targets = [{"target": f"t{number}", "run": f"r{number}"} for number in range(3)]
    archive.create(keys.batch_targets("night-0123456789ab"), json.dumps({"targets": targets}).encode())
    assert "3 earlier ones cost $0.10 to $0.80 each, so about $0.60" in seen(archive).cost.text


@pytest.mark.parametrize(
    ("hours", "said"),
    [(("00:30", "05:00"), "open until 2026-12-01 05:00"), (("03:00", "05:00"), "closed until 2026-12-01 03:00")],
)
def test_a_plan_says_when_the_batch_may_work(archive: Archive, hours: tuple[str, str], said: str) -> None:
    """Now and until when, or from when on; nothing where it always may."""
    batch = freeze(loaded(), repos(loaded()))
    window = Window(open=hours[0], close=hours[1], zone="UTC")
    tasks = tuple(task.model_copy(update={"window": window}) for task in batch.tasks)
    assert seen(archive, batch=replace(batch, tasks=tasks)).window.startswith(said)
    assert seen(archive, batch=batch).window == ""


@pytest.mark.usefixtures("without_stack")
def test_a_plan_of_local_repositories_writes_its_lock_and_nothing_else(
    archive: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No container, no Redis, no object; then a submit is the batch that was told, and says when a source changed."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text(name)
    Path("fleet.yaml").write_text(
        "version: 1\nname: n\ntargets: [{repo: one}, {repo: two}]\ntask: {commands: [fix]}\n"
    )
    assert dawn(["plan", "fleet.yaml", "--json"]) == ExitCode.OK
    told = json.loads(capsys.readouterr().out)
    assert [(line["target"], line["state"]) for line in told["targets"]] == [("one", "new"), ("two", "new")]
    assert (told["schema"], told["cost"]["most"], told["lock"]) == ("dawn.plan/1", 0, "fleet.lock")
    assert list(archive.list("")) == []
    before = Path("fleet.lock").read_bytes()
    assert dawn(["plan", "fleet.yaml"]) == ExitCode.OK
    assert Path("fleet.lock").read_bytes() == before
    assert "2 new" in capsys.readouterr().out
    assert dawn(["submit", "fleet.yaml", "--detach"]) == ExitCode.OK
    assert capsys.readouterr().out.strip() == told["batch"]
    assert dawn(["plan", "fleet.yaml"]) == ExitCode.OK
    assert "2 there" in capsys.readouterr().out
    (tmp_path / "two" / "x").write_text("changed")
    assert dawn(["submit", "fleet.yaml", "--detach"]) == ExitCode.OK
    assert "two has changed since it was planned" in capsys.readouterr().err


def test_the_same_name_again_keeps_batches_apart(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """T52: two batches of one name in one second have keys of their own, and nothing of the first is overwritten; ids
    that differ in case only stay apart."""
    made = [freeze(loaded(text), repos(loaded(text))) for text in (TEXT, TEXT.replace("fix it", "fix more"))]
    submit(made[0], archive, by="me", at=AT)
    before = {key: archive.get(key) for key in archive.list("")}
    submit(made[1], archive, by="me", at=AT)
    after = {key: archive.get(key) for key in archive.list("")}
    assert before.items() <= after.items()
    assert not {task.run for task in made[0].tasks} & {task.run for task in made[1].tasks}
    cased = loaded(TEXT.replace("org/a, ref: dev", "org/B").replace("name: night", "name: cased"))
    runs = [(task.target, task.run) for task in freeze(cased, repos(cased)).tasks]
    assert [target for target, _ in runs] == ["B", "b"]
    assert len({run.lower() for _, run in runs}) == 2
