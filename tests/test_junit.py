"""The in-container program that reads JUnit XML, on real and on hostile files, and what becomes of its tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import junitparser
import pytest
from conftest import wait_for
from hypothesis import given
from hypothesis import strategies as st

from worker.contract.matrix import changed_colour, compare, compared, matrix, named_lines, told
from worker.contract.results import KINDS, Colour, Kind

PROGRAM = Path(__file__).parents[1] / "sandbox_images" / "toolbox" / "junit.py"
CASES = '<testcase classname="cart" name="one"/><testcase classname="cart" name="two"><failure/></testcase>'
TWO = {"cart::one": "passed", "cart::two": "failed"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A workspace in which a check has just begun."""
    (tmp_path / "repo").mkdir()
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "check-began").touch()
    began = (tmp_path / "base" / "check-began").stat().st_ctime_ns

    def later() -> bool:
        (tmp_path / "tick").write_text("")
        return (tmp_path / "tick").stat().st_ctime_ns > began

    wait_for(later)
    return tmp_path


def read(place: Path, glob: str = "report.xml", folder: str = "") -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-I", str(PROGRAM)],
        input=json.dumps({"op": "read", "folder": folder, "glob": glob}).encode(),
        env={"PATH": os.environ["PATH"], "DAWN_WORKSPACE": str(place)},
        capture_output=True,
        check=False,
    )
    assert (done.stderr, done.returncode) == (b"", 0)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def written(place: Path, text: str | bytes, name: str = "report.xml") -> Path:
    path = place / "repo" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_each_end_of_a_test_is_read(place: Path) -> None:
    """passed, failed by failure and error, skipped; also of a file that names no class, and with a namespace."""
    written(
        place,
        f"""<?xml version="1.0"?><testsuites xmlns:x="urn:x"><testsuite name="s">{CASES}
        <testcase name="bare"><error message="m">text</error></testcase>
        <testcase name="later"><properties><property/></properties><skipped/></testcase>
        <x:testcase classname="k" name="spaced
        out"><system-out><failure/></system-out></x:testcase>
        <testcase name="notrun" status="notrun"/></testsuite></testsuites>""",
    )
    ends = {"bare": "failed", "later": "skipped", "k::spaced out": "passed", "notrun": "skipped"}
    assert read(place) == {"files": 1, "tests": TWO | ends, "notes": []}


def test_what_junitparser_writes_is_read(place: Path) -> None:
    """A file of a library that others write theirs with."""
    suite = junitparser.TestSuite("suite")
    for name, result in (("a", None), ("b", junitparser.Failure("no")), ("c", junitparser.Skipped())):
        case = junitparser.TestCase(name, "mod.Class")
        case.result = [] if result is None else [result]
        suite.add_testcase(case)
    report = junitparser.JUnitXml()
    report.add_testsuite(suite)
    report.write(str(place / "repo" / "report.xml"))
    assert read(place)["tests"] == {"mod.Class::a": "passed", "mod.Class::b": "failed", "mod.Class::c": "skipped"}


def test_what_pytest_writes_is_read(place: Path) -> None:
    """pytest's own report: an expected failure counts as skipped, and a file that cannot be imported as failed."""
    (place / "repo" / "test_one.py").write_text(
        "import pytest\ndef test_a(): pass\n@pytest.mark.xfail\ndef test_b(): assert 0\n"
    )
    (place / "repo" / "test_two.py").write_text("import nothing_of_this_name\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:randomly",
        "--continue-on-collection-errors",
        "--junitxml=report.xml",
    ]
    subprocess.run(command, cwd=place / "repo", capture_output=True, check=False)
    assert read(place)["tests"] == {"test_one::test_a": "passed", "test_one::test_b": "skipped", "test_two": "failed"}


def test_a_test_that_is_told_of_twice_is_as_its_worst_end(place: Path) -> None:
    """Two files, or two lines of one: a failure is never hidden by a success."""
    written(place, '<s><testcase name="t"><failure/></testcase><testcase name="t"/></s>', "a.xml")
    written(place, '<s><testcase name="u"/></s>', "b.xml")
    written(place, '<s><testcase name="u"><failure/></testcase></s>', "c.xml")
    assert read(place, "*.xml")["tests"] == {"t": "failed", "u": "failed"}


def test_only_what_the_check_wrote_is_read(place: Path) -> None:
    """A report that lay there before the check began tells of another run."""
    written(place, f"<s>{CASES}</s>")
    mark = place / "base" / "check-began"

    def marked_later() -> bool:
        mark.write_text("")
        return mark.stat().st_ctime_ns > (place / "repo" / "report.xml").stat().st_ctime_ns

    wait_for(marked_later)
    assert read(place) == {"files": 0, "tests": {}, "notes": []}


@pytest.mark.parametrize(
    ("name", "glob", "folder"),
    [
        ("report.xml", "report.xml", ""),
        ("report.xml", "./report.xml", ""),
        ("a [b]/out.xml", "out.xml", "a [b]"),
        ("target/surefire-reports/TEST-x.xml", "target/surefire-reports/TEST-*.xml", ""),
        ("mod/target/r/TEST-x.xml", "**/TEST-*.xml", ""),
        ("pkg/mod/r/TEST-x.xml", "**/r/*.xml", "pkg"),
    ],
)
def test_a_glob_names_reports_from_where_the_check_ran(place: Path, name: str, glob: str, folder: str) -> None:
    """Plain paths and wildcards, below the folder of the run."""
    written(place, f"<s>{CASES}</s>", name)
    assert read(place, glob, folder)["tests"] == TWO


@pytest.mark.parametrize("glob", ["report.xml", "sub/report.xml", "*.xml", "**/*.xml", "link/report.xml"])
def test_nothing_outside_of_the_repository_is_read(place: Path, glob: str) -> None:
    """No link is followed, neither a file's nor a folder's, and a pipe is not waited for."""
    outside = place / "secret"
    outside.mkdir()
    (outside / "report.xml").write_text(f"<s>{CASES}</s>")
    (place / "repo" / "report.xml").symlink_to(outside / "report.xml")
    (place / "repo" / "link").symlink_to(outside)
    (place / "repo" / "sub").mkdir()
    os.mkfifo(place / "repo" / "sub" / "report.xml")
    assert read(place, glob) == {"files": 0, "tests": {}, "notes": []}


BOMB = '<!DOCTYPE s [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><s><testcase name="&b;"/></s>'
OUTSIDE = '<!DOCTYPE s SYSTEM "file:///etc/passwd"><s><testcase name="t"/></s>'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "declares a document type"),
        (OUTSIDE, "declares a document type"),
        ("<s>" * 1_000, "nested deeper than 64"),
        ("<s><testcase", "unclosed token"),
        ("not XML", "syntax error"),
        ("", "no element found"),
        (b"<s>\xff\xfe</s>", "not well-formed"),
        (b'<?xml version="1.0" encoding="nothing"?><s/>', "unknown encoding"),
    ],
)
def test_a_hostile_report_is_a_note(place: Path, text: str | bytes, said: str) -> None:
    """Entities, foreign documents, endless nesting, no XML at all: said, and nothing of it taken."""
    written(place, text)
    answer = read(place)
    assert answer["tests"] == {}
    assert said in answer["notes"][0]


def test_what_stood_before_the_damage_counts(place: Path) -> None:
    """A run that was cut off leaves half a file: its tests are read, and the note says that it is not all."""
    written(place, f"<s>{CASES}")
    answer = read(place)
    assert answer["tests"] == TWO
    assert "what follows there was not read" in answer["notes"][0]


def test_reports_are_bounded(place: Path) -> None:
    """Too many tests, too many files, one that is too large, a name that is too long."""
    written(place, "<s>" + "".join(f'<testcase name="t{n}"/>' for n in range(20_001)) + "</s>")
    answer = read(place)
    assert (len(answer["tests"]), answer["notes"]) == (20_000, ["more than 20,000 tests; the rest was not read"])
    for number in range(201):
        written(place, f'<testcase name="{number}"/>', f"many/{number}.xml")
    answer = read(place, "many/*.xml")
    assert (len(answer["tests"]), answer["notes"]) == (200, ["more than 200 files; the rest was not read"])
    os.truncate(written(place, "<s/>", "large.xml"), (64 << 20) + 1)
    assert read(place, "large.xml")["notes"] == ["large.xml: 67,108,865 bytes are too many; it was not read"]
    long = "n" * 5_000
    written(place, f'<s><testcase name="{long}a"/><testcase name="{long}b"/></s>', "long.xml")
    assert [len(name) for name in read(place, "long.xml")["tests"]] == [315, 315]


COLOURS: tuple[Colour, ...] = ("passed", "failed", "skipped")
TESTS = st.dictionaries(st.sampled_from("abcde"), st.sampled_from(COLOURS))


def kinds(before: dict[str, Colour], after: dict[str, Colour], again: Mapping[str, Colour] = {}) -> dict[str, Kind]:
    return dict(compare(before, after, again, patch_empty=False, whole=True))


@pytest.mark.parametrize(
    ("before", "after", "again", "kind"),
    [
        ("failed", "passed", None, "fixed"),
        ("failed", "passed", "passed", "fixed"),
        ("passed", "failed", "failed", "broke"),
        ("passed", "failed", "passed", "flaky"),
        ("failed", "passed", "failed", "flaky"),
        ("failed", "failed", None, "still_failing"),
        ("passed", "passed", None, "passing"),
        (None, "passed", None, "new_passing"),
        (None, "failed", None, "new_failing"),
        ("skipped", "passed", None, "new_passing"),
        ("skipped", "failed", None, "new_failing"),
        ("passed", "skipped", None, "skipped_now"),
        ("failed", "skipped", None, "skipped_now"),
        ("skipped", "skipped", None, "skipped"),
        (None, "skipped", None, "skipped"),
        ("passed", None, None, "removed"),
        ("passed", "failed", "skipped", "broke"),
    ],
)
def test_one_test_against_its_baseline(
    before: Colour | None, after: Colour | None, again: Colour | None, kind: str
) -> None:
    """Every pair of ends, and the second run where there was one."""
    rooms: list[dict[str, Colour]] = [{"t": end} if end else {} for end in (before, after, again)]
    assert kinds(*rooms) == {"t": kind}


@given(TESTS, TESTS, TESTS)
def test_every_test_has_one_kind_and_the_counts_are_all_of_them(
    before: dict[str, Colour], after: dict[str, Colour], again: dict[str, Colour]
) -> None:
    """Nothing is counted twice or lost, and the matrix holds what the rooms said."""
    found = compare(before, after, again, patch_empty=False, whole=True)
    assert set(found) == {*before, *after}
    assert sum(compared("c", found).counts.values()) == len(found)
    rows = matrix({"c": (found, (before, after, again))})["checks"]["c"]
    assert {name: row.get("after") for name, row in rows.items() if name in after} == after
    assert {name for name, row in rows.items() if row["kind"] == "removed"} == before.keys() - after.keys()


@given(TESTS)
def test_without_a_patch_a_difference_is_unstable(before: dict[str, Colour]) -> None:
    """Nothing can have fixed or broken a test."""
    other: dict[Colour, Colour] = {"passed": "failed", "failed": "passed", "skipped": "skipped"}
    turned = {name: other[end] for name, end in before.items()}
    found = compare(before, turned, {}, patch_empty=True, whole=True)
    assert set(found.values()) <= {"flaky", "skipped"}
    assert changed_colour(before, turned) == ("flaky" in found.values())


def test_a_report_that_is_not_whole_takes_no_test_away() -> None:
    """What a cut file does not tell of may have run."""
    assert compare({"a": "passed"}, {}, {}, patch_empty=False, whole=False) == {}


def test_a_line_says_what_became_of_the_tests() -> None:
    """fixed, broke and still failing always; the rest where there is any; the first of each kind by name."""
    before: dict[str, Colour] = {
        "a": "failed",
        "b": "failed",
        "c": "passed",
        **{f"r{n}": "passed" for n in range(12)},
    }
    one = compared("unit", kinds(before, {"a": "passed", "b": "failed", "c": "passed"}))
    assert told(one) == "1 fixed, 0 broke, 1 still failing, 12 removed"
    lines = named_lines(one)
    assert lines[0] == "removed: r0"
    assert lines[10:] == ["removed: and 2 more", "still failing: b", "fixed: a"]
    assert set(one.counts) <= set(KINDS)
