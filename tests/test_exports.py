"""What goes out of an archive in other people's formats, read back by their own programs."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import junitparser
import pytest
from atif import Trajectory
from doubles import MemoryArchive
from hypothesis import given
from hypothesis import strategies as st
from runs_made import AT, Make, claimed, ended, replied

from scheduler.cli.main import run as dawn
from scheduler.exports import atif, junit, patches, staged, table
from scheduler.exports.chosen import Chosen
from scheduler.exports.jsonl import SCHEMA, RunLine
from scheduler.exports.words import encoded
from scheduler.runs import View
from worker.contract.errors import ExitCode
from worker.contract.events import (
    CheckResult,
    Compacted,
    Decided,
    Delegated,
    Event,
    Failure,
    FedBack,
    Finished,
    Observation,
    Observed,
    PatchStat,
    Record,
    Replied,
    Reply,
    Sealed,
    Steered,
    Submitted,
    ToolCall,
    Usage,
    Verdict,
    canonical,
    digest,
)
from worker.contract.run import Run, fold
from worker.contract.task import Repo, Task
from worker.store import keys
from worker.store.archive import Archive
from worker.store.bundle import Bundle
from worker.store.journal import Journal
from worker.store.mail import Mail

RUN = "cart-0123456789ab"
HOSTILE = "=cmd|'/c calc'!A0\x1b[31m\x00\x07\ud83d\u202e]]>&<\"'"
PATCH = b"--- a/x\n+++ b/x\n@@ -0,0 +1 @@\n+\xc3\xbc\n"

pytestmark = pytest.mark.usefixtures("without_stack")


def check(status: Any, name: str = "tests", **more: Any) -> CheckResult:
    return CheckResult(name=name, status=status, exit_code=0 if status == "green" else 1, **more)


@pytest.fixture
def night(archive: Archive, make_run: Make) -> str:
    """A batch of four runs: one with a patch, a flaky check and a matrix of tests; one that failed; one that was
    skipped; one that goes on. Hostile bytes stand wherever a repository or a model may put some."""
    journal = Journal(archive, RUN)
    patch = journal.put_blob(PATCH)
    tests = {
        "a::fixed": {"kind": "fixed", "before": "failed", "after": "passed"},
        "a::broke": {"kind": "broke", "before": "passed", "after": "failed"},
        "a::flaky": {"kind": "flaky", "before": "passed", "after": "failed", "again": "passed"},
        "a::gone": {"kind": "removed", "before": "passed"},
    }
    matrix = journal.put_blob(canonical({"v": 1, "checks": {"tests": tests}}))
    verdict = Verdict(
        verdict="flaky",
        checks=(check("green"), check("red", "lint", tail=HOSTILE), check("green", "lint")),
        baseline=(check("red"), check("green", "lint")),
        patch=PatchStat(digest=patch, bytes=len(PATCH), files={"x": (1, 0), "logo.png": None}),
        matrix=matrix,
    )
    seen = Observed(observation=Observation(call_id="c1", tool="run_command", status="ok", output=HOSTILE))
    words = [replied(text=HOSTILE, reasoning="because", cost_microusd=1500), seen, Finished(text=HOSTILE), verdict]
    done = Sealed(outcome="changed", verdict="flaky", artifacts={"patch.diff": patch})
    asked: dict[str, Any] = {"model": "anthropic/x", "prompt": "Fix it."}
    make_run(RUN, claimed(), *words, done, labels=("team=web",), **asked)
    failure = Failure(cls="limit", reason="steps", detail=HOSTILE)
    make_run("failed-0", claimed(), Sealed(outcome="failed", failure=failure), target=HOSTILE, **asked)
    make_run("skipped-0", Sealed(outcome="skipped", detail="wave"), target="late", **asked)
    make_run("going-0", claimed(), target="going", **asked)
    names = [RUN, "failed-0", "skipped-0", "going-0"]
    for name in names[:3]:
        archive.delete([keys.open_marker(name)])
    batch = "night-0123456789ab"
    tasks = [Journal(archive, name).task() for name in names]
    targets = [
        {"target": t.target, "run": t.run, "repo": t.repo.model_dump(mode="json"), "image": t.environment.image}
        for t in tasks
    ]
    manifest = b"version: 1\n"
    archive.create(keys.batch_manifest(batch), manifest)
    data = canonical({"v": 1, "batch": batch, "manifest": digest(manifest), "targets": targets})
    archive.create(keys.batch_targets(batch), data)
    return batch


def exported(format: str, *words: str, capfdbinary: pytest.CaptureFixture[bytes]) -> bytes:
    """What a command prints."""
    capfdbinary.readouterr()
    assert dawn(["export", *words, "--format", format]) == 0
    return capfdbinary.readouterr().out


def test_predictions_are_what_the_harness_reads(night: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """A line for each target whose run has ended, with the exact patch; none made is an empty one."""
    lines = [json.loads(line) for line in exported("swebench", night, capfdbinary=capfdbinary).splitlines()]
    assert [line["model_patch"].encode() for line in lines] == [PATCH, b"", b""]
    assert {*map(frozenset, lines)} == {frozenset({"instance_id", "model_name_or_path", "model_patch"})}
    assert (lines[0]["instance_id"], lines[0]["model_name_or_path"]) == ("cart", "anthropic/x")


def test_one_prediction_a_target(archive: Archive, make_run: Make, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Of several runs of a target the one that counts: the harness takes an instance once."""
    for number, verdict in enumerate(("broke", "verified")):
        name = f"cart-{number}"
        patch = Journal(archive, name).put_blob(b"patch %d" % number)
        end = ended(verdict=verdict, artifacts={"patch.diff": patch})
        make_run(name, claimed(), *end, ordinal=number, candidates=2)
    [line] = exported("swebench", "cart-0", "cart-1", capfdbinary=capfdbinary).splitlines()
    assert json.loads(line)["model_patch"] == "patch 1"


def test_a_reused_run_shows_the_patch_of_the_other(
    archive: Archive, make_run: Make, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Its own record has none. A bundle of it holds both runs, and proves that."""
    patch = Journal(archive, "first").put_blob(PATCH)
    make_run("first", claimed(), *ended(verdict="verified", artifacts={"patch.diff": patch}))
    make_run("again", Sealed(outcome="reused", verdict="verified", reused="first"), target="again")
    archive.delete([keys.open_marker("first"), keys.open_marker("again")])
    [line] = exported("swebench", "again", capfdbinary=capfdbinary).splitlines()
    assert json.loads(line)["model_patch"].encode() == PATCH
    assert dawn(["export", "again", "--format", "patches", "--out", "set"]) == 0
    [entry] = json.loads(Path("set/manifest.json").read_bytes())["patches"]
    assert (entry["run"], entry["made_by"]) == ("again", "first")
    [told] = exported("jsonl", "again", capfdbinary=capfdbinary).splitlines()
    assert json.loads(told)["reused"] == "first"
    assert dawn(["export", "again", "--format", "bundle", "--out", "b.tar"]) == 0
    assert sorted(Bundle("bundle:b.tar").folders("runs/")) == ["again", "first"]
    assert dawn(["verify", "b.tar"]) == 0


def test_a_patch_that_is_no_text_fits_no_prediction(archive: Archive, make_run: Make) -> None:
    """It is refused, and the way out is named; a patch set takes it as it is."""
    patch = Journal(archive, "latin").put_blob(b"+\xff\n")
    make_run("latin", claimed(), *ended(artifacts={"patch.diff": patch}))
    assert dawn(["export", "latin", "--format", "swebench"]) == ExitCode.INVALID
    assert dawn(["export", "latin", "--format", "patches", "--out", "set"]) == 0
    assert Path("set/cart.patch").read_bytes() == b"+\xff\n"


def test_lines_are_what_is_documented(night: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Every line has the fields of RunLine and no other, and names its schema."""
    lines = [json.loads(line) for line in exported("jsonl", night, capfdbinary=capfdbinary).splitlines()]
    assert {line.pop("schema") for line in lines} == {SCHEMA}
    first, *rest = [RunLine.model_validate(line) for line in lines]
    assert (first.outcome, first.verdict, first.cost_usd, first.labels) == ("changed", "flaky", 0.0015, ("team=web",))
    assert [(one.name, one.before, one.now) for one in first.checks] == [
        ("tests", ("red",), ("green",)),
        ("lint", ("green",), ("red", "green")),
    ]
    assert first.patch is not None
    assert (first.patch.files, first.patch.added, first.patch.sha256) == (2, 1, digest(PATCH))
    assert [one.status for one in rest] == ["sealed", "sealed", "running"]
    assert rest[0].failure == "limit/steps"


def test_no_cell_is_a_formula(night: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """What a stranger named or wrote stays text in a spreadsheet, and holds no control byte."""
    text = exported("csv", night, capfdbinary=capfdbinary).decode()
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert tuple(rows[0]) == table.COLUMNS
    assert [row["outcome"] for row in rows] == ["changed", "failed", "skipped", ""]
    assert rows[1]["target"].startswith("'=cmd")
    assert (rows[0]["checks"], rows[0]["added"]) == ("tests: green; lint: red and green", "1")
    assert not [cell for row in rows for cell in row.values() if cell.startswith(table.FORMULAS)]
    assert not re.search("[\x00-\x09\x0b\x0c\x0e-\x1f\x7f]", text)


@given(st.text())
def test_no_text_becomes_a_formula(text: str) -> None:
    """Whatever stands before its first letter, blanks and control characters too."""
    assert not re.match(r"[\t\r\n]|\s*[=+\-@]", table.cell(text))


def test_junit_reads_it_back(night: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """A suite for each run that has ended, with its outcome, checks and tests; no byte of a repository breaks it."""
    document = exported("junit", night, capfdbinary=capfdbinary)
    suites = list(junitparser.JUnitXml.fromstring(document))
    assert [suite.name for suite in suites] == ["cart", junit.NOT_XML.sub("\ufffd", HOSTILE), "late"]
    ends = {
        (case.classname, case.name): [type(one).__name__ for one in case.result] for suite in suites for case in suite
    }
    assert ends == {
        ("cart", "outcome"): [],
        ("cart", "tests"): [],
        ("cart", "lint"): ["Failure"],
        ("cart.tests", "a::fixed"): [],
        ("cart.tests", "a::broke"): ["Failure"],
        ("cart.tests", "a::flaky"): ["Failure"],
        ("cart.tests", "a::gone"): ["Skipped"],
        (suites[1].name, "outcome"): ["Error"],
        ("late", "outcome"): ["Skipped"],
    }
    assert (suites[0].tests, suites[0].failures, suites[0].errors, suites[0].skipped) == (7, 3, 0, 1)
    [lint] = [case for case in suites[0] if case.name == "lint"]
    assert lint.result[0].type == "flaky"
    assert lint.result[0].text == junit.NOT_XML.sub("\ufffd", HOSTILE)


def test_a_trajectory_is_valid_and_whole(night: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """One run is one document: prompt, words, thinking, call with its result, usage and cost."""
    found = Trajectory.model_validate_json(exported("atif", RUN, capfdbinary=capfdbinary))
    asked, step = found.steps[:2]
    assert (asked.source, asked.message, step.source) == ("user", "Fix it.", "agent")
    assert (step.reasoning_content, step.llm_call_count) == ("because", 1)
    assert step.tool_calls is not None
    assert (step.tool_calls[0].function_name, step.tool_calls[0].arguments) == ("run_command", {"command": "ls"})
    assert step.observation is not None
    assert step.observation.results[0].source_call_id == "c1"
    assert step.metrics is not None
    assert (step.metrics.prompt_tokens, step.metrics.completion_tokens, step.metrics.cost_usd) == (100, 10, 0.0015)
    assert found.final_metrics is not None
    assert (found.final_metrics.total_prompt_tokens, found.final_metrics.total_cost_usd) == (100, 0.0015)
    assert found.extra is not None
    assert (found.extra["outcome"], found.extra["verdict"]) == ("changed", "flaky")


def test_several_trajectories_are_a_folder(night: str) -> None:
    """A document for each run, also of those that go on; they do not fit on stdout."""
    assert dawn(["export", night, "--format", "atif"]) == ExitCode.USAGE
    assert dawn(["export", night, "--format", "atif", "--out", "told"]) == 0
    names = sorted(path.name for path in Path("told").iterdir())
    assert names == sorted(f"{name}.json" for name in (RUN, "failed-0", "skipped-0", "going-0"))
    for path in Path("told").iterdir():
        assert Trajectory.model_validate_json(path.read_bytes()).trajectory_id == path.stem


def test_a_delegate_is_a_trajectory_within(
    archive: Archive, make_run: Make, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """It is embedded once, and the result of its call refers to it."""
    child = Journal(archive, keys.delegate("boss", "c1"))
    asked: dict[str, Any] = {"model": "anthropic/x", "prompt": "Fix it."}
    task = Task(
        run=child.run, batch="b", target="cart", repo=Repo(url="https://x/y"), model="anthropic/y", prompt="look"
    )
    child.submit(task, by="the run", at=AT)
    run = child.append(child.load(), [claimed()], attempt=1, at=AT)
    run = child.append(run, [replied(text="found it")], attempt=1, at=AT)
    told = Delegated(call_id="c1", seq=run.last_seq, hash=run.last_hash, usage=Usage(input_tokens=100))
    answer = Observed(observation=Observation(call_id="c1", tool="delegate", status="ok", output="found it"))
    make_run("boss", claimed(), replied(), told, answer, *ended("no_change"), **asked)
    found = Trajectory.model_validate_json(exported("atif", "boss", capfdbinary=capfdbinary))
    assert found.subagent_trajectories is not None
    [sub] = found.subagent_trajectories
    assert (sub.trajectory_id, sub.steps[0].message, sub.agent.model_name) == (child.run, "look", "anthropic/y")
    observation = found.steps[1].observation
    assert observation is not None
    references = observation.results[0].subagent_trajectory_ref
    assert references is not None
    assert [one.trajectory_id for one in references] == [child.run]


TEXT = st.text(st.characters(codec=None)) | st.sampled_from(["", "\ud83d", "{}", HOSTILE])
ARGUMENTS = TEXT | st.sampled_from(
    ['{"a": 1e999}', '{"a": NaN}', "[1]", '{"a": {"b": [null, "\\ud83d"]}}', '{"a": ' * 500 + "1" + "}" * 500]
)
CALL = st.builds(ToolCall, id=st.sampled_from("abc"), name=TEXT, arguments=ARGUMENTS)
USAGE = st.builds(Usage, input_tokens=st.integers(0, 9), cache_read_tokens=st.integers(0, 9))
REPLY = st.builds(
    Reply,
    text=TEXT,
    reasoning=TEXT,
    calls=st.lists(CALL, max_size=2).map(tuple),
    usage=USAGE,
    cost_microusd=st.none() | st.integers(0, 9),
)
OBSERVATION = st.builds(
    Observation, call_id=st.sampled_from("abcd"), tool=TEXT, status=st.just("ok"), output=TEXT, exit_code=st.none()
)
EVENT: st.SearchStrategy[Event] = st.one_of(
    st.builds(Replied, step=st.integers(1, 9), phase=st.sampled_from(["commands", "model"]), reply=REPLY),
    st.builds(Observed, observation=OBSERVATION, snapshot=st.none(), plan=st.none(), files=st.just(())),
    st.builds(Steered, n=st.integers(0, 3), kind=st.sampled_from(["message", "pause"]), by=TEXT, text=TEXT),
    st.builds(Decided, call_id=TEXT, decision=st.just("denied"), by=TEXT, reason=TEXT),
    st.builds(Compacted, through=st.integers(1, 9), summary=TEXT, usage=USAGE, cost_microusd=st.none()),
    st.builds(FedBack, text=TEXT, checks=st.just(())),
    st.builds(Finished, text=TEXT, failure=st.none()),
)


@given(st.lists(EVENT, max_size=12), st.integers(0, 3))
def test_any_journal_makes_a_valid_trajectory(events: list[Event], copied: int) -> None:
    """Whatever a model said, in any order: the document is one that the format's own classes take, from its bytes."""
    task = Task(run="r", batch="b", target="t", repo=Repo(url="u"), model="anthropic/x", prompt="\ud83d p")
    records = [
        Record(run="r", seq=max(0, n - copied), at=AT, nonce="n", prev="0" * 64, event=event)
        for n, event in enumerate([Submitted(by="me"), *events])
    ]
    run = fold((record, digest(record.line())) for record in records)
    document = atif.trajectory("r", task, records, run, {})
    read = Trajectory.model_validate_json(encoded(document))
    assert len([step for step in read.steps if step.source == "agent"]) == len(
        [event for event in events if isinstance(event, Replied)]
    )
    results = [one for step in read.steps if step.observation for one in step.observation.results]
    assert len(results) == len([event for event in events if isinstance(event, Observed)])


def test_a_patch_set_says_what_it_is(night: str) -> None:
    """A file for each patch, their order, and a manifest whose digests are right."""
    assert dawn(["export", night, "--format", "patches", "--out", "set"]) == 0
    assert sorted(path.name for path in Path("set").iterdir()) == ["cart.patch", "manifest.json", "series"]
    assert Path("set/series").read_text() == "cart.patch\n"
    [entry] = json.loads(Path("set/manifest.json").read_bytes())["patches"]
    assert entry["sha256"] == digest(Path("set/cart.patch").read_bytes()) == digest(PATCH)
    assert dawn(["export", night, "--format", "patches", "--out", "set"]) == ExitCode.USAGE
    assert dawn(["export", night, "--format", "patches", "--out", "set.tar"]) == 0
    with tarfile.open("set.tar") as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member)
            assert file is not None
            assert file.read() == (Path("set") / member.name).read_bytes()


@given(
    st.lists(st.text(min_size=1), min_size=1, max_size=5, unique=True) | st.just(["../x", "..\\x", "X", "x", "CON"])
)
def test_names_of_patches_are_safe_and_differ(targets: list[str]) -> None:
    """Whatever a target is called: no folder, no hidden file, no option, no device, none twice in letters of any
    case."""
    views = []
    archive = MemoryArchive()
    for number, target in enumerate(targets):
        blob = Journal(archive, f"r-{number}").put_blob(b"p")
        task = Task(run=f"r-{number}", batch="b", target=target, repo=Repo(url="u"), commands=("x",))
        run = Run(id=task.run, sealed=Sealed(outcome="changed", artifacts={"patch.diff": blob}))
        views.append(View(task, run, Mail(run)))
    chosen = Chosen(archive, [], [], views, [])
    names = [name for name, _ in patches.files(chosen)]
    assert len({name.lower() for name in names}) == len(targets) + 2
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) for name in names)
    assert not any(patches.RESERVED.match(name) for name in names)


FORMATS = ("swebench", "atif", "junit", "jsonl", "csv", "patches", "bundle")


@pytest.mark.parametrize("format", FORMATS)
def test_a_damaged_run_goes_out_only_when_that_is_asked_for(
    format: str, archive: Archive, night: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 11 and nothing written; with --damaged what can be read goes out, and what is left out is named."""
    place = Path(archive.url.removeprefix("file://")) / keys.segment(RUN, 2)
    place.write_bytes(place.read_bytes().replace(b"because", b"becauze"))
    words = ["export", RUN, "failed-0", "--format", format, "--out", "out"]
    assert dawn(words) == ExitCode.INTEGRITY
    assert not Path("out").exists()
    assert dawn([*words, "--damaged"]) == 0
    assert Path("out").exists()
    if format != "bundle":
        assert f"{RUN} cannot be read and is left out" in capsys.readouterr().err


@pytest.mark.parametrize("format", ["swebench", "patches"])
def test_a_patch_that_was_changed_does_not_go_out(format: str, archive: Archive, night: str) -> None:
    """Nor does half of an export: what was there before stays."""
    blob = Path(archive.url.removeprefix("file://")) / keys.blob(RUN, digest(PATCH))
    blob.write_bytes(PATCH.replace(b"+++", b"---"))
    Path("out.tar").write_text("before")
    assert dawn(["export", night, "--format", format, "--out", "out.tar"]) == ExitCode.INTEGRITY
    assert Path("out.tar").read_text() == "before"
    assert [path.name for path in Path().iterdir() if "out" in path.name] == ["out.tar"]


HALF = {
    "file": """
with staged.file(place) as out:
    out.write(b"half")
    out.flush()
    os.kill(os.getpid(), signal.SIGKILL)
""",
    "folder": """
def files():
    yield "a", b"half"
    os.kill(os.getpid(), signal.SIGKILL)

staged.folder(place, files())
""",
}
"""Programs that die in the middle of an export."""


@pytest.mark.parametrize("kind", HALF)
def test_an_export_that_is_killed_leaves_what_was_there(kind: str, tmp_path: Path) -> None:
    """Half of it lies hidden beside its place; the next one is whole."""
    place = tmp_path / "out"

    def found() -> bytes | list[str]:
        return place.read_bytes() if kind == "file" else [path.name for path in place.iterdir()]

    place.write_bytes(b"before") if kind == "file" else place.mkdir()
    before = found()
    opening = "import os, pathlib, signal\nfrom scheduler.exports import staged\nplace = pathlib.Path('out')\n"
    done = subprocess.run([sys.executable, "-c", opening + HALF[kind]], cwd=tmp_path, check=False)
    assert (done.returncode, found()) == (-signal.SIGKILL, before)
    [half] = [path.name for path in tmp_path.iterdir() if path != place]
    assert half.startswith(".out.")
    if kind == "file":
        with staged.file(place) as out:
            out.write(b"whole")
        assert found() == b"whole"
    else:
        staged.folder(place, [("a", b"whole"), ("b", b"too")])
        assert sorted(found()) == ["a", "b"]


def test_json_tells_of_the_file(night: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What was written, and of which runs."""
    assert dawn(["export", RUN, "--format", "bundle", "--out", "b.tar", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["runs"], told["out"]) == ("dawn.exported/1", [RUN], "b.tar")
    assert told["sha256"] == digest(Path("b.tar").read_bytes())
    assert dawn(["export", RUN, "--format", "csv", "--json"]) == ExitCode.USAGE
