"""What a patch may not do: its diff and its tests against the guards, and what must not be taken for a hit."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from repositories import commit_all, git

from scheduler.enqueue import Batch, freeze
from scheduler.manifests.reading import ManifestFault, parse
from worker.contract import guards
from worker.contract.difftext import FileDiff, files_of
from worker.contract.filekinds import first_match, is_test, lists_dependencies
from worker.contract.guards import HITS_MAX, Guards, Seen, hits
from worker.contract.results import Kind
from worker.contract.task import Environment, Limits, Repo

DIFF = (
    "diff",
    "-M",
    "--full-index",
    "--binary",
    "--no-color",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--cached",
    "HEAD",
)
PATCHED = """
import pytest

def test_total():
    assert total([1, 2]) == 3

def test_rounding():
    assert total([0.1]) == 0.1
"""


def diff(place: Path) -> list[FileDiff]:
    """What git says of all that changed there, as our patches are made."""
    git(place, "add", "--all")
    command = ["git", "-c", "core.quotePath=false", *DIFF]
    return files_of(subprocess.run(command, cwd=place, capture_output=True, check=True).stdout)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A repository with a module, its test and a workflow."""
    git(tmp_path, "init", "-q", "-b", "main")
    files = {
        "cart.py": "def total(prices):\n    return sum(prices)\n",
        "tests/test_cart.py": PATCHED,
        "tests/data/prices.json": "[1, 2]\n",
        "tests/helper.py": "def price():\n    return 1\n",
        ".github/workflows/ci.yml": "on: push\n",
        'ta"b\tü.txt': "1\n--- a\n+++ b\n@@ -1 +1 @@\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    commit_all(tmp_path)
    return tmp_path


def keep(files: list[FileDiff], *seen: Seen, **guards: Any) -> list[str]:
    return list(hits(Guards(**{"tests": "keep", **guards}), files, seen))


def test_a_patch_is_read_as_git_writes_it(place: Path) -> None:
    """Names in quotes, renames, deletions, new and binary files, and lines that look like headers."""
    (place / 'ta"b\tü.txt').write_text("2\n--- c\n+++ d\n@@ -1 +1 @@\n")
    git(place, "mv", "cart.py", "basket.py")
    (place / "tests" / "helper.py").unlink()
    (place / "new.py").write_text("x = 1")
    (place / "b.bin").write_bytes(bytes(range(256)) * 9)
    (place / "empty").touch()
    read = {file.path: file for file in diff(place)}
    assert {path: file.status for path, file in read.items()} == {
        'ta"b\tü.txt': "changed",
        "basket.py": "renamed",
        "tests/helper.py": "deleted",
        "new.py": "added",
        "b.bin": "added",
        "empty": "added",
    }
    assert read["basket.py"].before == "cart.py"
    assert list(read['ta"b\tü.txt'].lines("+")) == ["2", "--- c", "+++ d"]
    assert list(read['ta"b\tü.txt'].lines("-")) == ["1", "--- a", "+++ b"]
    assert list(read["new.py"].lines("+")) == ["x = 1"]
    assert read["b.bin"].hunks == []


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    """Whatever stands there, files come of it or none."""
    files_of(b"diff --git a/x b/x\n@@ -1,3 +1,3 @@\n" + data)
    files_of(data)


def test_a_patch_that_is_too_large_is_a_hit(place: Path) -> None:
    """More files or more lines than asked for; as many is fine."""
    (place / "cart.py").write_text("def total(prices):\n    return 1\n")
    (place / "new.txt").write_text("1\n2\n")
    files = diff(place)
    assert keep(files, max_files=2, max_lines=4) == []
    assert keep(files, max_files=1, max_lines=3) == [
        "2 files are changed, at most 1 may be",
        "4 lines are changed, at most 3 may be",
    ]


def test_a_protected_path_is_a_hit_however_it_is_touched(place: Path) -> None:
    """Edited, moved away, moved in; by default what a repository's own CI runs is protected."""
    git(place, "mv", ".github/workflows/ci.yml", "ci.yml")
    git(place, "mv", "cart.py", ".github/workflows/cart.py")
    assert keep(diff(place)) == [
        ".github/workflows/cart.py is protected (.github/workflows/**)",
        ".github/workflows/ci.yml is protected (.github/workflows/**)",
    ]
    assert keep(diff(place), protected=["cart.py"]) == [
        "cart.py is protected (cart.py)",
        ".github/workflows/cart.py is protected (cart.py)",
    ]
    assert keep(diff(place), protected=[]) == []


def test_deleted_tests_are_a_hit(place: Path) -> None:
    """A file of tests that goes; with `tests: free` it may. Without checks nothing is measured by tests."""
    (place / "tests" / "test_cart.py").unlink()
    files = diff(place)
    assert keep(files) == ["the tests of tests/test_cart.py are deleted"]
    assert keep(files, tests="free") == []
    assert hits(Guards(), files, []) == ()
    assert hits(Guards(), files, [Seen("unit")]) == ("the tests of tests/test_cart.py are deleted",)


def test_moved_tests_are_no_hit(place: Path) -> None:
    """Renamed, moved with edits, put into another file, and what no test is below tests/."""
    git(place, "mv", "tests/test_cart.py", "tests/test_basket.py")
    (place / "tests" / "helper.py").unlink()
    (place / "tests" / "data" / "prices.json").unlink()
    assert keep(diff(place)) == []
    (place / "tests" / "test_basket.py").unlink()
    (place / "tests" / "test_all.py").write_text(
        "class TestCart:\n    def test_rounding(self):\n        pass\n\n    def test_total(self):\n        pass\n"
    )
    assert keep(diff(place)) == []


def test_guards_take_a_time_that_grows_with_the_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of lines that skip tests do not each look at all the others: a worker would do nothing else."""
    looked: list[str] = []
    monkeypatch.setattr(guards, "_declares", lambda line: looked.append(line))
    hunk = [("+", "    self.skipTest('x')")] * 1_000
    assert keep([FileDiff("tests/test_a.py", "tests/test_a.py", hunks=[hunk])])  # type: ignore[list-item]
    assert len(looked) <= 5 * len(hunk)


def test_tests_that_nobody_looks_for_any_more_are_a_hit(place: Path) -> None:
    """Emptied, renamed to what is no test, or put into such a file."""
    test, text = place / "tests" / "test_cart.py", PATCHED
    test.write_text("")
    assert keep(diff(place)) == ["the tests of tests/test_cart.py are deleted"]
    test.unlink()
    (place / "old.txt").write_text("Of last year:\n" * 99 + text)
    assert keep(diff(place)) == ["the tests of tests/test_cart.py are deleted"]
    (place / "old.txt").write_text(text)
    [hit] = keep(diff(place))
    assert hit.startswith("the tests of tests/test_cart.py are renamed to old.txt")


@pytest.mark.parametrize(
    "line",
    [
        '@pytest.mark.skip(reason="later")\ndef test_rounding():',
        "@pytest.mark.skipif(True, reason='')\ndef test_rounding():",
        "@pytest.mark.xfail\ndef test_rounding():",
        "@unittest.skip('x')\ndef test_rounding():",
        "def test_rounding():\n    pytest.skip('not now')",
        "pytestmark = pytest.mark.skip\ndef test_rounding():",
    ],
)
def test_a_test_that_is_skipped_is_a_hit(place: Path, line: str) -> None:
    """Marks above a test, within it, and for a whole file."""
    (place / "tests" / "test_cart.py").write_text(PATCHED.replace("def test_rounding():", line))
    [hit] = keep(diff(place))
    assert hit.startswith("tests/test_cart.py skips a test: ")


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("a.test.ts", "it('adds', () => {\n  ok();\n});\n", "it.skip('adds', () => {\n  ok();\n});\n"),
        ("a.spec.js", 'test("adds", () => {});\n', 'xtest("adds", () => {});\n'),
        ("a.test.js", "describe('cart', () => {});\n", "describe.only('cart', () => {});\n"),
        ("a_test.go", "func TestA(t *testing.T) {\n}\n", 'func TestA(t *testing.T) {\n\tt.Skip("x")\n}\n'),
        ("ATest.java", "@Test\nvoid adds() {\n}\n", "@Disabled\n@Test\nvoid adds() {\n}\n"),
        ("src/lib.rs", "#[test]\nfn adds() {\n}\n", "#[test]\n#[ignore]\nfn adds() {\n}\n"),
        ("a_spec.rb", "it 'adds' do\nend\n", "it 'adds' do\n  skip 'later'\nend\n"),
        ("ATest.php", "function testA() {\n}\n", "function testA() {\n    $this->markTestSkipped('x');\n}\n"),
        ("ATests.cs", "[Fact]\npublic void Adds() {\n}\n", '[Fact(Skip = "x")]\npublic void Adds() {\n}\n'),
    ],
)
def test_skips_of_other_languages_are_hits(tmp_path: Path, name: str, before: str, after: str) -> None:
    """One of each language whose tests are known."""
    git(tmp_path, "init", "-q")
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(before)
    commit_all(tmp_path)
    path.write_text(after)
    assert [hit.split(":")[0] for hit in keep(diff(tmp_path))] == [f"{name} skips a test"]


@pytest.mark.parametrize(
    "text",
    [
        PATCHED.replace("== 3", '== 3, "@pytest.mark.skip is no answer"'),
        PATCHED.replace("import pytest", "import pytest  # @pytest.mark.skip, it.skip, xfail"),
        PATCHED + "\n@pytest.mark.skipif(no_network(), reason='')\ndef test_of_the_network():\n    pass\n",
        PATCHED + "\ndef test_new():\n    if slow():\n        pytest.skip('needs time')\n",
        PATCHED + "\ndef skip_blank(lines):\n    return [line for line in lines if line]\n",
        PATCHED.replace("assert total([1", "skip = 1\n    assert total([1"),
    ],
)
def test_the_word_skip_skips_nothing(place: Path, text: str) -> None:
    """In a string, in a comment, in a name; and a new test may be born skipped."""
    (place / "tests" / "test_cart.py").write_text(text)
    assert keep(diff(place)) == []


def test_a_skip_that_was_there_may_move(place: Path) -> None:
    """Into another class, with other indentation; a mark in a file that is new skips nothing that ran."""
    skipped = "@pytest.mark.skip(reason='old')\ndef test_old():\n    pass\n"
    (place / "tests" / "test_cart.py").write_text(skipped + PATCHED)
    commit_all(place)
    moved = "class TestAll:\n" + "".join(f"    {line}\n" for line in skipped.splitlines())
    (place / "tests" / "test_cart.py").write_text(PATCHED + moved)
    (place / "tests" / "test_new.py").write_text("import pytest\npytestmark = pytest.mark.skip\n")
    assert keep(diff(place)) == []


KINDS: dict[str, Kind] = {"test_cart::test_total": "passing", "test_cart::test_rounding": "removed"}


def test_the_reports_say_what_is_gone_or_skipped(place: Path) -> None:
    """Where tests were compared they are believed, and not the look of a line."""
    (place / "tests" / "test_cart.py").write_text(PATCHED.replace("def test_r", "@pytest.mark.skip\ndef test_r"))
    files = diff(place)
    assert keep(files, Seen("unit", KINDS, green=True)) == ["the test test_cart::test_rounding is gone"]
    skipped: dict[str, Kind] = {"a::b": "skipped_now", "a::c": "skipped"}
    assert keep(files, Seen("unit", skipped)) == ["the test a::b is skipped now"]
    assert keep(files, Seen("unit", {"a": "passing"}, green=True)) == []
    assert keep(files, Seen("unit", lost=True, green=True)) == [
        "the check unit is green and reports no tests any more"
    ]


@pytest.mark.parametrize(
    ("kinds", "green"),
    [
        ({"old.py::TestCart::test_a": "removed", "new.py::TestCart::test_a": "new_passing"}, True),
        ({"t::test_a[1-2]": "removed", "t::test_a[3]": "new_passing"}, True),
        ({"t::test_a": "removed"}, False),
    ],
)
def test_what_moved_or_was_not_reached_is_not_gone(kinds: dict[str, Kind], green: bool) -> None:
    """A test of the same name elsewhere, other parameters, and a red check that may not have come so far."""
    assert keep([], Seen("unit", kinds, green=green)) == []


def test_the_list_of_hits_is_bounded() -> None:
    """The first are named, the rest counted, each is one line."""
    kinds: dict[str, Kind] = {f"k::a{n}\nb": "skipped_now" for n in range(HITS_MAX + 5)}
    told = keep([], Seen("unit", kinds))
    assert (len(told), told[0], told[-1]) == (HITS_MAX + 1, "the test k::a0 b is skipped now", "and 5 more")


@pytest.mark.parametrize(
    ("glob", "named", "others"),
    [
        ("*.lock", ["a.lock", "b/c.lock"], ["a.lock.txt", "lock"]),
        ("docs/**", ["docs/a", "docs/a/b.md"], ["doc/a", "x/docs/a"]),
        ("docs/", ["docs/a", "docs/a/b.md"], ["docs"]),
        ("src/*.py", ["src/a.py"], ["src/b/a.py", "a.py"]),
        ("**/x.py", ["x.py", "a/b/x.py"], ["ax.py"]),
        ("a?.py", ["ab.py"], ["a.py", "a/.py"]),
        ("a[b].(c)", ["a[b].(c)"], ["ab.c"]),
    ],
)
def test_globs_name_paths(glob: str, named: list[str], others: list[str]) -> None:
    """Stars within a folder, two across folders, and no other sign with a meaning."""
    assert [path for path in [*named, *others] if first_match([glob], path)] == named


def test_files_are_told_by_their_names() -> None:
    """Tests in several languages; lists of dependencies; and what only looks like one."""
    tests = ["test_a.py", "src/a_test.go", "x/a.spec.ts", "tests/util.py", "spec/a.rb", "src/ATest.java", "t/basic.t"]
    assert [path for path in tests if is_test(path)] == tests
    assert not any(map(is_test, ["latest.py", "tests/data.json", "contest.go", "attest/a.py", "src/testing.md"]))
    lists = ["package.json", "sub/Cargo.lock", "requirements-dev.txt", "requirements/base.txt", "go.mod"]
    assert [path for path in lists if lists_dependencies(path)] == lists
    assert not any(map(lists_dependencies, ["src/package.json.ts", "docs/requirements.md", "a.lock"]))


# As a manifest asks for them

TEXT = """\
version: 1
name: night
targets: [{repo: https://git.example.org/a}]
task: {commands: [fix]}
"""


def batch(more: str = "") -> Batch:
    loaded = parse(TEXT + more, "fleet.yaml", Path("/"), Limits())
    return freeze(loaded, [Repo(url="https://git.example.org/a", label="a")])


@pytest.mark.parametrize(
    "more",
    [
        "guards: {max_files: 3}\n",
        "baseline: required\n",
        "environment: {network: full}\n",
        "environment: {setup: make, resetup: on_change}\n",
        "environment: {setup: make, setup_secrets: [INDEX]}\n",
        "checks: [{name: t, command: pytest, junit: 'out/*.xml'}]\n",
    ],
)
def test_a_word_of_a_manifest_reaches_its_tasks_and_changes_no_other(more: str) -> None:
    """An older worker refuses the task; where nothing is said the task and the batch are what they always were."""
    [task] = batch(more).tasks
    asked = task.guards or task.baseline or task.checks or task.environment != Environment()
    assert (bool(asked), task.v) == (True, 3)
    [plain] = batch().tasks
    assert (plain.v, plain.guards, plain.baseline) == (1, None, None)
    assert {"guards", "baseline"}.isdisjoint(plain.model_dump())
    assert set(plain.model_dump()["environment"]) == {"image", "setup"}
    assert batch().id != batch(more).id == batch(more).id


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ("guards: {max_file: 3}\n", "guards.max_file is not known here (did you mean 'max_files'?)"),
        ("guards: {protected: [/etc/passwd]}\n", "guards.protected[0] '/etc/passwd' must be a path or glob relative"),
        ("checks: [{name: t, command: t, junit: ../r.xml}]\n", "checks[0].junit '../r.xml' must be a path or glob"),
        ("baseline: on\n", "baseline must be 'required', 'record' or 'off'"),
    ],
)
def test_a_mistake_in_them_is_told_with_its_place(more: str, place: str) -> None:
    """File, line and column as for any other."""
    with pytest.raises(ManifestFault) as caught:
        batch(more)
    [line] = caught.value.lines()
    assert place in line
    assert line.startswith("fleet.yaml:5:")
