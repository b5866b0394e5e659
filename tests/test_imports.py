"""What comes in as tasks: SWE-bench instances and issues become a manifest, and the agent sees what is wrong only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs_made import AT

from scheduler.cli.main import run as dawn
from scheduler.enqueue import submit
from scheduler.imports import fleet
from scheduler.launch import batch_of
from scheduler.manifests.reading import load
from worker.contract.errors import ExitCode
from worker.contract.task import Limits, Task
from worker.store import keys
from worker.store.archive import Archive
from worker.store.journal import Journal

MODEL = "anthropic/claude-x"
STATEMENT = "It breaks.\r\n\r\n{{ vars.mark }} and {{{{, 'quotes', \"both\", # no comment\n- a: [yaml\x1b[0m\ud83d\n"
SEEN = "It breaks.\n\n{{ vars.mark }} and {{{{, 'quotes', \"both\", # no comment\n- a: [yaml\ufffd[0m\ufffd\n"
SECRETS = {
    "patch": "GOLD-PATCH-3141",
    "test_patch": "TEST-PATCH-2718",
    "FAIL_TO_PASS": '["tests::HIDDEN_1618"]',
    "PASS_TO_PASS": '["tests::HIDDEN_1414"]',
    "hints_text": "HINT-0577",
    "version": "VERSION-4669",
    "environment_setup_commit": "5" * 40,
    "created_at": "CREATED-2685",
    "a field of tomorrow": "FUTURE-1202",
}
WITHHELD = (
    *("GOLD-PATCH", "TEST-PATCH", "HIDDEN_", "HINT-", "VERSION-", "5" * 40, "CREATED-", "FUTURE-"),
    *("test_patch", "FAIL_TO_PASS", "PASS_TO_PASS", "hints_text", "environment_setup_commit", "tomorrow"),
)

pytestmark = pytest.mark.usefixtures("without_stack")


def instance(**changes: Any) -> dict[str, Any]:
    row = {"instance_id": "shop__cart-7", "repo": "shop/cart", "base_commit": "c" * 40}
    return row | {"problem_statement": STATEMENT} | SECRETS | changes


def written(*rows: Any, name: str = "rows.jsonl") -> str:
    """A file of JSON Lines."""
    Path(name).write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return name


def imported(*words: str, out: str = "fleet", code: int = 0) -> None:
    assert dawn(["import", *words, "--out", out, "--model", MODEL]) == code


def tasks(manifest: str, archive: Archive) -> list[Task]:
    """What a submit of it writes."""
    loaded = load(Path(manifest), Limits())
    batch = batch_of(loaded, archive, say=lambda _: None)
    submit(batch, archive, by="me", at=AT)
    return [Journal(archive, task.run).task() for task in batch.tasks]


def test_an_instance_becomes_a_task(archive: Archive) -> None:
    """Repository, commit and id are the instance's; its statement is in the prompt word for word, marked as a
    stranger's."""
    imported(written(instance(), instance(instance_id="shop__cart-8")), "--format", "swebench")
    assert dawn(["validate", "fleet/fleet.yaml"]) == 0
    made, _ = tasks("fleet/fleet.yaml", archive)
    assert (made.target, made.repo.url, made.repo.ref) == ("shop__cart-7", "https://github.com/shop/cart", "c" * 40)
    assert made.model == MODEL
    assert SEEN in made.prompt
    before, text, after = made.prompt.split(f"----- {made.vars['mark']}\n")
    assert "written by strangers" in before
    assert (text.rstrip("\n"), after.strip()) == (SEEN.rstrip("\n"), "")


def test_nothing_that_judges_reaches_an_agent(archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither manifest, nor table, nor one byte of the archive holds any of it; the file beside has all, and is named
    as what to keep apart."""
    name = written(instance(), instance(instance_id="shop__cart-8"))
    imported(name, "--format", "swebench")
    assert "keep it from agents" in capsys.readouterr().err
    tasks("fleet/fleet.yaml", archive)
    stored = {key: archive.get(key) for key in archive.list("")}
    stored |= {path.name: path.read_bytes() for path in Path("fleet").iterdir() if path.name != "evaluation.jsonl"}
    assert {"fleet.yaml", "targets.csv"} < stored.keys()
    assert [key for key, data in stored.items() for word in WITHHELD if word.encode() in data or word in key] == []
    assert any(b"It breaks." in data for data in stored.values())
    assert Path("fleet/evaluation.jsonl").read_bytes() == Path(name).read_bytes()


def test_every_line_that_is_no_instance_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """All of them at once, each with its number, and nothing is written."""
    lacking = {key: value for key, value in instance().items() if key != "base_commit"}
    rows = [
        instance(),
        "{",
        "[" * 100_000,
        "3",
        lacking,
        instance(base_commit="main"),
        instance(base_commit="--upload-pack=x"),
        instance(instance_id="../x"),
        *(instance(repo=repo) for repo in ("/etc", "../x", "file:///etc", "https://me:pw@h/x", "-x/y", "ext::sh", 7)),
    ]
    imported(written(*rows), "--format", "swebench", code=ExitCode.INVALID)
    told = capsys.readouterr().err
    assert [number for number in range(1, 16) if f"rows.jsonl:{number} " in told] == list(range(2, 16))
    assert not Path("fleet").exists()


@pytest.mark.parametrize(
    ("rows", "what"), [([], "no task"), ([instance(), instance()], "shop__cart-7 is there twice")]
)
def test_what_makes_no_batch_is_refused(rows: list[Any], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty file, and an instance that is there twice."""
    imported(written(*rows), "--format", "swebench", code=ExitCode.INVALID)
    assert what in capsys.readouterr().err


def test_a_long_statement_is_whole(archive: Archive) -> None:
    """Longer than one value of a manifest may be; a short one beside it stays as it is."""
    long = "".join(f"line {n}\n" for n in range(5_000))
    rows = [instance(problem_statement=long), instance(instance_id="short", problem_statement="Short.")]
    imported(written(*rows), "--format", "swebench", out="night.yaml")
    one, other = tasks("night.yaml", archive)
    assert long.rstrip() in one.prompt
    assert "\nShort.\n----- " in other.prompt
    assert sorted(path.name for path in Path().glob("night*")) == [
        *("night.evaluation.jsonl", "night.targets.csv", "night.yaml"),
    ]
    imported("rows.jsonl", "--format", "swebench", out="night.yaml", code=ExitCode.USAGE)


def test_many_instances_fit(archive: Archive) -> None:
    """More than a manifest holds by itself, and more than one table may have bytes."""
    rows = [instance(instance_id=f"i-{n}", problem_statement=f"{n} " * 2_000) for n in range(1_100)]
    imported(written(*rows), "--format", "swebench")
    assert sorted(path.name for path in Path("fleet").glob("targets*")) == [
        *("targets-2.csv", "targets-3.csv", "targets.csv"),
    ]
    loaded = load(Path("fleet/fleet.yaml"), Limits())
    assert [one.id for one in loaded.targets] == [f"i-{n}" for n in range(1_100)]


@settings(max_examples=25)
@given(st.text(st.characters(codec=None), max_size=300))
def test_any_text_comes_through(text: str) -> None:
    """What a table is made of is read back from it as it was, and ends up between the marks."""
    wanted = [fleet.Wanted("i", "https://h/o/n", "", fleet.text_of(text))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet, "VAR_CHARS_MAX", 100)
        [manifest, *_] = fleet.write(
            Path(f"made-{abs(hash(text))}-{len(list(Path().iterdir()))}"), "n", MODEL, wanted
        )
    [one] = load(manifest, Limits()).targets
    assert one.prompt.count(f"----- {one.target.vars['mark']}\n{wanted[0].text}\n-----") == 1


def test_issues_become_tasks(archive: Archive) -> None:
    """As the API lists them: pull requests are none, a missing body is empty, the repository is told by the issue."""
    url = "https://git.example.org/shop/cart"
    issues = [
        {"number": 7, "title": "Price\nis wrong", "body": "See {{ vars.x }}", "html_url": f"{url}/issues/7"},
        {"number": 8, "title": "A change", "body": "", "html_url": f"{url}/pull/8", "pull_request": {"url": "x"}},
        {"number": 9, "title": "Slow", "body": None, "html_url": f"{url}/issues/9", "labels": [{"name": "bug"}]},
    ]
    Path("issues.json").write_text(json.dumps(issues))
    imported("issues.json", "--format", "issues")
    assert dawn(["validate", "fleet/fleet.yaml"]) == 0
    one, other = tasks("fleet/fleet.yaml", archive)
    assert (one.target, one.repo.url, one.repo.ref) == ("cart#7", url, None)
    assert "\n# Price is wrong\n\nSee {{ vars.x }}\n-----" in one.prompt
    assert other.target == "cart#9"
    assert not Path("fleet/evaluation.jsonl").exists()


def test_a_folder_of_documents_becomes_tasks(archive: Archive) -> None:
    """A title is its first heading, or the file's name; a local repository is found from anywhere."""
    Path("asked").mkdir()
    Path("code").mkdir()
    Path("code/a.py").write_text("x = 1\n")
    Path("asked/b-titled.md").write_text("# Titled\n\nDo it.\n")
    Path("asked/a-plain.md").write_text("Do that.\n")
    Path("asked/notes.txt").write_text("no issue\n")
    imported("asked", "--format", "issues", "--repo", "code")
    one, other = tasks("fleet/fleet.yaml", archive)
    assert ("\n# a-plain\n\nDo that.\n" in one.prompt, "\n# Titled\n\nDo it.\n" in other.prompt) == (True, True)
    assert (one.target, one.repo.source_kind) == ("a-plain", "folder")
    assert archive.size(keys.source(str(one.repo.source)))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("{}", "is no JSON list"),
        ('[{"number": 1, "title": "t"}]', "tells no repository"),
        ('[{"title": "t"}]', "has no number"),
        ("[3]", "has no title"),
        ("[" * 100_000, "is no JSON list"),
    ],
)
def test_what_is_no_issue_is_told(content: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A person reads what and where."""
    Path("issues.json").write_text(content)
    imported("issues.json", "--format", "issues", code=ExitCode.INVALID)
    assert what in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["rows.jsonl", "--format", "swebench"],
        ["rows.jsonl", "--format", "swebench", "--out", "x"],
        ["rows.jsonl", "--format", "swebench", "--out", "x", "--model", MODEL, "--repo", "."],
        ["bundle.tar", "--model", MODEL],
    ],
)
def test_options_that_make_no_sense_together_are_usage(words: list[str]) -> None:
    """Exit code 2, and nothing is written."""
    written(instance())
    assert dawn(["import", *words]) == ExitCode.USAGE
    assert not Path("x").exists()
