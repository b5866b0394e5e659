"""A manifest as a file: validate, schema and init, with nothing but the file at hand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import jsonschema_rs
import pytest
from repositories import commit_all, git

from scheduler.cli.main import run as dawn
from scheduler.manifests.reading import parse
from scheduler.manifests.schema import manifest_schema
from scheduler.manifests.starting import starting_manifest
from worker.contract.places import Code, read
from worker.contract.task import Limits

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = [
    path
    for path in [*(ROOT / "scheduler" / "demo").glob("*.yaml"), ROOT / "deploy" / "night" / "night.yaml"]
    if not path.name.endswith(".script.yaml")
]
WRONG = """\
version: 1
name: Fleet
targets:
  - repo: https://git.example.org/a
    reff: main
  - {repo: gone, id: x}
  - {repo: https://git.example.org/b, id: x}
  - file: none.txt
task:
  prompt: fix {{ vars.who }}
  commands: [7]
task: {commands: ['echo {{ vars.who }}']}
limits: {steps: many}
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def validate(capsys: pytest.CaptureFixture[str], text: str, code: int = 3) -> dict[str, Any]:
    Path("fleet.yaml").write_text(text)
    assert dawn(["validate", "fleet.yaml", "--json"]) == code
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert said["schema"] == "dawn.validated/1"
    assert said["valid"] == (code == 0)
    return said


def test_every_mistake_is_told_at_once_with_code_and_place(capsys: pytest.CaptureFixture[str]) -> None:
    """Of keys, values, files, repositories and ids; what is sound of a wrong manifest is judged too (T49)."""
    told = {(one["line"], one["column"], one["code"], one["path"]) for one in validate(capsys, WRONG)["problems"]}
    assert told == {
        (2, 7, "value", "name"),
        (5, 5, "unknown-key", "targets[0].reff"),
        (6, 12, "target", "targets[1].repo"),
        (7, 43, "duplicate-id", "targets[2].id"),
        (8, 11, "file", "targets[3].file"),
        (11, 14, "type", "task.commands[0]"),
        (12, 1, "duplicate-key", "task"),
        (13, 17, "type", "limits.steps"),
    }


def test_a_line_of_it_has_file_line_column_code_path_message_and_hint(capsys: pytest.CaptureFixture[str]) -> None:
    """As compilers write them, so that editors can jump there; exit code 3."""
    Path("fleet.yaml").write_text(WRONG)
    assert dawn(["validate", "fleet.yaml"]) == 3
    said = capsys.readouterr()
    assert "fleet.yaml:5:5 unknown-key targets[0].reff is not known here (did you mean 'ref'?)" in said.err
    assert (
        "fleet.yaml:7:43 duplicate-id targets[2].id 'x' is the id of two targets, the first is on line 6" in said.err
    )
    assert "error: fleet.yaml has 8 problems" in said.err
    assert said.out == ""


def test_submit_tells_the_same(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything starts: the archive is not even opened (T49)."""
    monkeypatch.setenv("DAWN_ARCHIVE", "s3://nowhere/at-all")
    Path("fleet.yaml").write_text(WRONG)
    assert dawn(["validate", "fleet.yaml"]) == 3
    told = capsys.readouterr().err
    assert dawn(["submit", "fleet.yaml"]) == 3
    assert capsys.readouterr().err == told


def test_validate_needs_neither_archive_nor_redis_nor_engine() -> None:
    """A process that validated has not even loaded what speaks to them."""
    Path("fleet.yaml").write_text(starting_manifest([], Path.cwd()))
    program = (
        "import sys; from scheduler.cli.main import run; assert run(['validate', 'fleet.yaml']) == 0;"
        "print(*sys.modules)"
    )
    where = {"DAWN_ARCHIVE": "s3://nowhere/x", "DAWN_REDIS_URL": "redis://127.0.0.1:1", "DOCKER_HOST": "unix:///none"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(ROOT), **where},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "fleet.yaml is valid: 1 target\n" in done.stdout
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {"boto3", "redis", "celery", "docker", "anthropic", "openai"}


def test_what_only_the_archive_knows_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """An earlier batch is not looked at offline, nor vars that only its targets may have."""
    text = (
        "version: 1\nname: again\ntargets: {previous: {batch: fleet, where: failed}}\n"
        "task: {commands: ['echo {{ vars.who }}']}\n"
    )
    said = validate(capsys, text, code=0)
    assert (said["targets"], said["awaited"]) == ([], ["batch fleet"])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_schema_takes_every_manifest_of_the_project(path: Path) -> None:
    """Those of the demonstration and of the night, whose targets are added when it is made."""
    text = path.read_text() + ("" if "\ntargets:" in path.read_text() else "targets: [{repo: packages/one}]\n")
    jsonschema_rs.validator_for(manifest_schema()).validate(read(text).data)


def test_the_schema_refuses_what_validate_refuses() -> None:
    """Unknown keys at any depth, missing ones, wrong types and words."""
    schema = jsonschema_rs.validator_for(manifest_schema())
    good = read(starting_manifest([], Path.cwd())).data
    assert schema.is_valid(good)
    for wrong in (
        {"zzz": 1},
        {"targets": [{"repo": "x", "reff": "y"}]},
        {"targets": [{"file": "x", "repo": "y"}]},
        {"targets": []},
        {"task": {"comands": ["x"]}},
        {"limits": {"steps": "many"}},
        {"on_ask": "perhaps"},
        {"checks": [{"name": "x"}]},
        {"labels": ["two words"]},
    ):
        assert not schema.is_valid(good | wrong), wrong
        with pytest.raises(Exception, match="problem"):
            parse(json.dumps(good | wrong), "m", Path.cwd(), Limits())


def test_the_schema_says_what_each_key_means(capsys: pytest.CaptureFixture[str]) -> None:
    """In the words of the models, for the editors that show them."""
    assert dawn(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    nouns = [schema, *(schema["$defs"][name] for name in ("Target", "FromFile", "Previous", "Work"))]
    silent = [name for noun in nouns for name, told in noun["properties"].items() if not told.get("description")]
    assert set(silent) <= {"commands"}
    assert "left out" in schema["properties"]["exclude"]["description"]


def test_init_writes_a_manifest_that_validates(capsys: pytest.CaptureFixture[str]) -> None:
    """From URLs, repositories and folders of clones; what is there already is not touched."""
    for place in ("clones/one", "clones/two", "alone"):
        Path(place).mkdir(parents=True)
        git(Path(place), "init", "--quiet")
        Path(place, "x.py").write_text("x = 1\n")
        commit_all(Path(place))
    origins = ("https://git.example.org/a/b", "clones", "alone")
    assert dawn(["init", *(word for origin in origins for word in ("--from", origin))]) == 0
    written = Path("fleet.yaml").read_text()
    assert dawn(["validate", "fleet.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["targets"] == ["b", "one", "two", "alone"]
    assert dawn(["init"]) == 10
    assert "fleet.yaml is there already" in capsys.readouterr().err
    assert Path("fleet.yaml").read_text() == written


def test_every_setting_that_init_offers_works(capsys: pytest.CaptureFixture[str]) -> None:
    """A # in front of a setting is all that is to be taken away."""
    Path("clones/one/.git").mkdir(parents=True)
    git(Path("clones/one"), "init", "--quiet")
    Path("repositories.csv").write_text("repo,owner\nhttps://git.example.org/c,ann\n")
    Path("prompt.md").write_text("Do it.\n")
    text, count = re.subn(r"(?m)^( *)#(?=[^ \n])", r"\1", starting_manifest([], Path.cwd()))
    assert count > 8
    text = text.replace("anthropic/NAME", "anthropic/some-model")
    assert validate(capsys, text, code=0)["targets"] == ["service", "c", "one"]


def test_init_refuses_what_is_no_repository(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3, and nothing is written."""
    assert dawn(["init", "--from", "gone"]) == 3
    assert "gone does not exist" in capsys.readouterr().err
    assert not Path("fleet.yaml").exists()


def test_the_codes_are_a_closed_set() -> None:
    """A program may tell complaints apart by them."""
    assert set(get_args(Code)) == {
        *("yaml", "duplicate-key", "unknown-key", "missing", "type", "value"),
        *("file", "template", "target", "duplicate-id", "too-many"),
    }
