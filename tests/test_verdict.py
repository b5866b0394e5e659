"""The verdict: pure classification by the plan's table, and measuring in a clean room on a real engine."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from preparation import Bench
from repositories import commit_all

from worker.checks import Ran
from worker.contract.cancel import Cancel
from worker.contract.environment import Baseline
from worker.contract.errors import EngineFault
from worker.contract.events import CheckResult, Compared, PatchStat, VerdictName
from worker.contract.results import Colour as EndOfTest
from worker.publish import Patch
from worker.room import apply
from worker.sandbox.protocol import Command, Output, Result, Workspace
from worker.verdict import WORST_FIRST, classify, differing, unlike

NO_PATCH = Patch({}, PatchStat())

Colour = Literal["green", "red", "timeout", "oom", "not_found"]


def results(**colours: Colour) -> list[CheckResult]:
    return [CheckResult(name=name, status=colour) for name, colour in colours.items()]


@pytest.mark.parametrize(
    ("before", "after", "again", "verdict"),
    [
        ("green", "green", None, "verified"),
        ("red", "green", "green", "verified"),
        ("red", "green", "red", "flaky"),
        ("red", "red", None, "still_failing"),
        ("green", "red", "red", "broke"),
        ("green", "red", "green", "flaky"),
        ("green", "timeout", "oom", "broke"),
        ("timeout", "red", None, "still_failing"),
        ("green", "not_found", "not_found", "broke"),
        (None, "green", None, "verified"),
        (None, "red", None, "still_failing"),
    ],
)
def test_one_check_against_its_baseline(
    before: Colour | None, after: Colour, again: Colour | None, verdict: VerdictName
) -> None:
    """Every line of the table, with a patch."""
    said = [results(c=colour) if colour else [] for colour in (before, after, again)]
    assert classify(*said, patch_empty=False) == verdict


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ("green", "green", "verified"),
        ("red", "red", "still_failing"),
        ("green", "red", "flaky"),
        ("red", "green", "flaky"),
        (None, "red", "still_failing"),
    ],
)
def test_without_a_patch_another_colour_is_unstable(
    before: Colour | None, after: Colour, verdict: VerdictName
) -> None:
    """Nothing differs from the base, so nothing can have broken."""
    assert classify(results(c=before) if before else [], results(c=after), [], patch_empty=True) == verdict


def test_a_patch_that_is_laid_down_too_slowly_is_not_called_damaged(tmp_path: Path) -> None:
    """A slow engine is tried again; only a patch that does not fit means that stored bytes are wrong."""

    class Slow:
        def put(self, *_: Any) -> None: ...

        def run(self, command: Command, **_: Any) -> Result:
            said = tmp_path / "said"
            said.touch()
            return Result("timeout", None, Output(said, 0, 0, 0), 300_000)

    with pytest.raises(EngineFault, match="did not come to an end"):
        apply(cast(Workspace, Slow()), Patch({"patch.diff": b"x"}, PatchStat()), cancel=Cancel())


@pytest.mark.parametrize("patch_empty", [True, False])
def test_no_checks_is_unverified(patch_empty: bool) -> None:
    """Nothing was measured."""
    assert classify([], [], [], patch_empty=patch_empty) == "unverified"


def test_the_worst_check_decides() -> None:
    """broke > flaky > still_failing > verified, for every pair of checks."""
    shapes: dict[VerdictName, tuple[Colour, Colour, Colour | None]] = {
        "broke": ("green", "red", "red"),
        "flaky": ("green", "red", "green"),
        "still_failing": ("red", "red", None),
        "verified": ("green", "green", None),
    }
    for (one, a), (other, b) in product(shapes.items(), repeat=2):
        again = {name: shape[2] for name, shape in (("a", a), ("b", b)) if shape[2]}
        said = classify(results(a=a[0], b=b[0]), results(a=a[1], b=b[1]), results(**again), patch_empty=False)
        assert said == min(one, other, key=WORST_FIRST.index)


def test_what_changed_colour_is_run_again() -> None:
    """Red in any way is one colour; a check without baseline is not run again."""
    before = results(same="green", fixed="red", hung="timeout", broken="green")
    after = results(same="green", fixed="green", hung="oom", broken="red", new="red")
    assert differing(before, after) == ["fixed", "broken"]


@pytest.mark.docker
def test_a_repair_is_verified_in_a_clean_room(bench: Bench, source: Path) -> None:
    """The red check is green with the patch, twice; nothing of the agent's HOME, .git or ignored files is there."""
    (source / ".gitignore").write_text("cheat\n")
    commit_all(source)
    task = bench.task(
        bench.repo(source), fixed="grep -q TWO f.txt", clean="test ! -e cheat && test ! -e ~/cheat && echo seen"
    )
    prepared, patch = bench.edited(task, "sed -i s/two/TWO/ f.txt; touch cheat ~/cheat")
    verdict = bench.verdict(task, prepared, patch)
    assert verdict.verdict == "verified"
    assert [(check.name, check.status) for check in verdict.checks] == [
        ("fixed", "green"),
        ("clean", "green"),
        ("fixed", "green"),
    ]
    seen = verdict.checks[1]
    assert seen.tail == "seen"
    assert seen.blob is not None
    assert bench.archive.get(f"runs/run/blobs/{seen.blob}") == b"seen\n"


@pytest.mark.docker
def test_a_damage_is_broke_and_a_claim_is_still_failing(bench: Bench, source: Path) -> None:
    """A check that was green is red with the patch; one that was red stays so."""
    task = bench.task(bench.repo(source), was_green="test -f f.txt", was_red="test -f missing")
    prepared, patch = bench.edited(task, "rm f.txt")
    assert bench.verdict(task, prepared, patch).verdict == "broke"
    _, harmless = bench.edited(task, "echo more >>f.txt")
    assert bench.verdict(task, prepared, harmless).verdict == "still_failing"


@pytest.mark.docker
def test_no_patch_is_measured_too(bench: Bench, source: Path) -> None:
    """no_change is verified when the base is green."""
    task = bench.task(bench.repo(source), green="true")
    prepared = bench.prepare(task)
    verdict = bench.verdict(task, prepared, NO_PATCH)
    assert (verdict.verdict, len(verdict.checks)) == ("verified", 1)


@pytest.mark.docker
def test_a_check_over_its_time_is_said_so(bench: Bench, source: Path) -> None:
    """A check that hangs with the patch is stopped by its limit and counts as red."""
    limits = bench.task(bench.repo(source)).limits.model_copy(update={"check_timeout_s": 3.0})
    task = bench.task(bench.repo(source), limits=limits, quick="test ! -e hang || sleep 600")
    prepared, patch = bench.edited(task, "touch hang")
    verdict = bench.verdict(task, prepared, patch)
    assert verdict.verdict == "broke"
    assert {check.status for check in verdict.checks} == {"timeout"}


@pytest.mark.docker
def test_a_submodule_edit_counts(bench: Bench, tmp_path: Path, with_submodule: Path) -> None:
    """T39: an edit below a submodule alone is a patch of its own, applied before the checks run."""
    task = bench.task(bench.repo(with_submodule), two="grep -q 2 lib/sub/u.py")
    prepared, patch = bench.edited(task, "echo 'u = 2' >lib/sub/u.py")
    assert set(patch.files) == {"submodules.diff"}
    assert patch.stat.digest is not None
    assert bench.verdict(task, prepared, patch).verdict == "verified"


REPORTER = """
{ echo '<s>'; for name in one two three; do
    test -e $name || continue
    echo "<testcase classname='k' name='$name'>"
    case "$(cat $name)" in bad) echo '<failure/>';; off) echo '<skipped/>';; esac
    echo '</testcase>'
done; echo '</s>'; } >out/report.xml
! grep -q bad one two three
"""


@pytest.fixture
def reporting(source: Path) -> Path:
    """A repository whose check reports three tests, each as its file says."""
    (source / "check.sh").write_text(REPORTER)
    (source / "out").mkdir()
    for name, end in {"one": "bad", "two": "bad", "three": "good", "out/report.xml": "<s/>"}.items():
        (source / name).write_text(f"{end}\n")
    commit_all(source)
    return source


@pytest.mark.docker
def test_tests_that_only_got_better_make_no_red_check_green(bench: Bench, reporting: Path) -> None:
    """One of two is repaired: the check is red as before, its tests say how far it came, and all are stored."""
    task = bench.reporting(bench.task(bench.repo(reporting), unit="sh check.sh"), "out/*.xml")
    prepared, patch = bench.edited(task, "echo good >one; echo good >four; sh check.sh; test -s out/report.xml")
    verdict = bench.verdict(task, prepared, patch)
    assert verdict.verdict == "still_failing"
    [tests] = verdict.tests
    assert tests.counts == {"fixed": 1, "still_failing": 1, "passing": 1}
    assert tests.named == {"still_failing": ("k::two",), "fixed": ("k::one",)}
    assert [check.reported.failed for check in verdict.checks if check.reported] == [1, 1]
    assert verdict.matrix is not None
    stored = json.loads(bench.archive.get(f"runs/run/blobs/{verdict.matrix}"))
    ends = {"before": "failed", "after": "passed", "again": "passed"}
    assert stored["checks"]["unit"]["k::one"] == {"kind": "fixed", **ends}


@pytest.mark.docker
def test_a_test_that_broke_counts_where_its_check_was_red(bench: Bench, reporting: Path) -> None:
    """The check is red before and after; a test that passed fails now, twice: broke."""
    task = bench.reporting(bench.task(bench.repo(reporting), unit="sh check.sh"), "out/report.xml")
    prepared, patch = bench.edited(task, "echo good >one; echo good >two; echo bad >three")
    verdict = bench.verdict(task, prepared, patch)
    assert verdict.verdict == "broke"
    assert verdict.tests[0].counts == {"fixed": 2, "broke": 1}


@pytest.mark.docker
def test_a_report_is_in_no_patch_unless_it_is_tracked(bench: Bench, reporting: Path) -> None:
    """What the agent's own run of the check wrote is named as left out; a report that the repository tracks is an
    edit like any other."""
    task = bench.task(bench.repo(reporting), unit="sh check.sh; cp out/report.xml new.xml")
    _, patch = bench.edited(bench.reporting(task, "*.xml"), "cp check.sh new.xml; echo '<s> </s>' >out/report.xml")
    assert set(patch.stat.files) == {"out/report.xml"}
    assert patch.stat.left_out == {"new.xml": "a report of a check"}


@pytest.mark.docker
def test_a_report_of_another_run_tells_nothing(bench: Bench, reporting: Path) -> None:
    """A check that writes none has none, whatever lies where it would: the patch can bring no tests of its own."""
    forged = "<s><testcase name='forged'/></s>"
    task = bench.reporting(bench.task(bench.repo(reporting), unit="true"), "out/report.xml")
    prepared, patch = bench.edited(task, f'echo "{forged}" >out/report.xml')
    verdict = bench.verdict(task, prepared, patch)
    assert (verdict.verdict, verdict.tests, verdict.matrix) == ("verified", (), None)
    assert [check.reported for check in verdict.checks] == [None]


@pytest.mark.docker
def test_setup_runs_anew_on_a_patch_that_changes_dependencies(bench: Bench, source: Path) -> None:
    """Only then, and where it was asked for: in the task's own image, on base plus patch, with nothing of the first
    setup left in image, work tree or HOME. One that fails with the patch is the patch's fault."""
    (source / "requirements.txt").write_text("one\n")
    commit_all(source)
    setup = """! grep -q broken requirements.txt || { echo no such thing; exit 9; }
    cat requirements.txt >>/opt/installed; cat requirements.txt >>~/installed; touch "of-$(cat requirements.txt)" """
    clean = "test $(cat /opt/installed) = two && test $(cat ~/installed) = two && test ! -e of-one && test -e of-two"
    never = bench.task(bench.repo(source), setup=setup, clean=f"{clean} && test $(cat requirements.txt) = two")
    environment = never.environment.model_copy(update={"resetup": "on_change"})
    asked = never.model_copy(update={"environment": environment})
    prepared, patch = bench.edited(asked, "echo two >requirements.txt")
    assert bench.verdict(never, prepared, patch).verdict == "still_failing"
    verdict = bench.verdict(asked, prepared, patch)
    assert verdict.verdict == "verified", verdict.checks
    assert verdict.patch.notes == ("setup ran anew for the checks, because requirements.txt changed",)
    _, other = bench.edited(asked, "echo more >>f.txt")
    assert bench.verdict(asked, prepared, other).patch.notes == ()
    _, broken = bench.edited(asked, "echo broken >requirements.txt")
    [check] = bench.verdict(asked, prepared, broken).checks
    assert check.status == "red"
    assert check.tail.startswith("with the patch, setup ended with exit code 9")
    assert "no such thing" in check.tail


def ran(**tests: dict[str, EndOfTest]) -> list[Ran]:
    return [Ran(CheckResult(name=name, status="red", exit_code=1), ends) for name, ends in tests.items()]


def test_a_check_is_run_again_when_one_of_its_tests_turned() -> None:
    """Though its own colour is the same; new, gone and skipped tests ask for no second run."""
    base = Baseline(
        checks=tuple(results(same="red", turned="red", new="red", none="red")),
        tests={"same": {"a": "failed"}, "turned": {"a": "passed"}, "new": {"a": "skipped"}},
    )
    first = ran(
        same={"a": "failed"}, turned={"a": "failed"}, new={"a": "failed", "b": "passed"}, none={"a": "failed"}
    )
    assert unlike(base, first) == ["turned"]


def test_a_test_that_broke_or_is_flaky_decides() -> None:
    """Where every check has the colour it had; tests that were fixed change nothing."""
    red = results(c="red")
    for kind, verdict in (("broke", "broke"), ("flaky", "flaky"), ("fixed", "still_failing")):
        tests = [Compared.model_validate({"check": "c", "counts": {kind: 1}})]
        assert classify(red, red, [], patch_empty=False, tests=tests) == verdict


FORGER = """
import os, re
wrapper, memory = os.getppid(), b""
for line in open(f"/proc/{wrapper}/maps"):
    first, last = (int(end, 16) for end in line.split()[0].split("-"))
    if "rw" in line and last - first < 1 << 24:
        with open(f"/proc/{wrapper}/mem", "rb", 0) as mem:
            mem.seek(first)
            memory += mem.read(last - first)
for nonce in set(re.findall(rb"trailer ([0-9a-f]{32})", memory)):
    os.write(1, b"\\n" + nonce + b" 0 0 0\\n")
print("forged")
os._exit(1)
"""


@pytest.mark.docker
def test_a_check_cannot_forge_its_exit_code(bench: Bench, source: Path) -> None:
    """A program that finds its call's nonce and says 0 is red all the same: checks wait for the engine's word."""
    (source / "forger.py").write_text(FORGER)
    commit_all(source)
    task = bench.task(bench.repo(source), forged="exec python3 forger.py")
    prepared = bench.prepare(task)
    assert prepared.baseline is not None
    assert [check.status for check in prepared.baseline.checks] == ["red"]
