"""Owns what a patch may not do whatever its checks say, and finding that it does. Refuses to measure: it reads the
patch and what became of the tests.

How tests are kept: a file of tests that goes, is emptied or gets the name of no test is a hit, unless its tests stand
in other test files of the patch. Where a check's reports could be compared they say what else is gone or skipped;
where there are none, added lines of test files that skip a test do. What is new may be skipped, and what was skipped
may stay so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Final, Literal

from pydantic import Field

from worker.contract.difftext import FileDiff, Line
from worker.contract.filekinds import Glob, first_match, is_test
from worker.contract.frozen import Frozen
from worker.contract.results import Kind

PROTECTED: Final = (
    *(".github/workflows/**", ".github/actions/**", ".gitlab-ci.yml", ".circleci/**", ".buildkite/**"),
    *("Jenkinsfile", "azure-pipelines.yml", "bitbucket-pipelines.yml"),
)
"""What runs with the secrets of a repository's own CI as soon as it is pushed."""
HITS_MAX: Final = 20
HIT_CHARS: Final = 300


class Guards(Frozen):
    """Bounds of a patch. max_files, max_lines (added and removed together): None for none. protected: globs of paths
    that it may not touch. tests: may not go or be skipped (keep), or may (free); None to keep them where there are
    checks."""

    max_files: Annotated[int, Field(gt=0)] | None = None
    max_lines: Annotated[int, Field(gt=0)] | None = None
    protected: Annotated[tuple[Glob, ...], Field(max_length=100)] = PROTECTED
    tests: Literal["keep", "free"] | None = None


@dataclass(frozen=True)
class Seen:
    """What the clean room saw of one check's tests. kinds: of each test, None where reports could not be compared.
    green: the check is. lost: it reported on the start, and no more."""

    check: str
    kinds: Mapping[str, Kind] | None = None
    green: bool = False
    lost: bool = False


def hits(guards: Guards, files: Sequence[FileDiff], seen: Sequence[Seen]) -> tuple[str, ...]:
    """What the patch does that the guards forbid, one line each, at most HITS_MAX. Pure. seen: one a check."""
    found = [*_size(guards, files), *_protected(guards, files)]
    if guards.tests == "keep" or (guards.tests is None and seen):
        found += _deleted(files)
        reported = [one for one in seen if one.kinds is not None or one.lost]
        found += _unlike(reported) if reported else _skipped(files)
    found = list(dict.fromkeys(" ".join(hit.split())[:HIT_CHARS] for hit in found))
    if (more := len(found) - HITS_MAX) > 0:
        return (*found[:HITS_MAX], f"and {more} more")
    return tuple(found)


def _size(guards: Guards, files: Sequence[FileDiff]) -> Iterator[str]:
    if guards.max_files is not None and len(files) > guards.max_files:
        yield f"{len(files):,} files are changed, at most {guards.max_files:,} may be"
    lines = sum(1 for file in files for sign in ("+", "-") for _ in file.lines(sign))
    if guards.max_lines is not None and lines > guards.max_lines:
        yield f"{lines:,} lines are changed, at most {guards.max_lines:,} may be"


def _protected(guards: Guards, files: Sequence[FileDiff]) -> Iterator[str]:
    for path in dict.fromkeys(path for file in files for path in (file.before, file.path)):
        if glob := first_match(guards.protected, path):
            yield f"{path} is protected ({glob})"


# By what was measured


def _unlike(seen: Iterable[Seen]) -> Iterator[str]:
    """Of a red check no test is called gone: it may not have come that far, and its colour counts already."""
    for one in seen:
        if one.lost and one.green:
            yield f"the check {one.check} is green and reports no tests any more"
        kinds = one.kinds or {}
        there = {_bare(name) for name, kind in kinds.items() if kind != "removed"}
        for name, kind in kinds.items():
            if kind == "skipped_now":
                yield f"the test {name} is skipped now"
            elif kind == "removed" and one.green and _bare(name) not in there:
                yield f"the test {name} is gone"


def _bare(name: str) -> str:
    """A test's own name: its file may have moved, and its parameters may have other values."""
    return re.sub(r"[\[(].*$", "", name.rpartition("::")[2], flags=re.DOTALL).strip() or name


# By what stands in the patch

_DECLARED: Final = re.compile(
    r"""(?x) ^\s* (?:
        (?:async\s+)? def \s+ (?P<py>test\w*)                                       # Python, and minitest
      | class \s+ (?P<cls>Test\w*|\w+Tests?) \b
      | func \s+ (?:\([^)]*\)\s*)? (?P<go>(?:Test|Fuzz|Example)\w*) \s* \(
      | (?:pub\s+)?(?:async\s+)? fn \s+ (?P<rs>\w+) \s* \(
      | (?:[fx]?(?:it|test|describe|context|specify))(?:\.\w+)* \s* \(? \s* (?P<q>['"`]) (?P<js>.*?) (?P=q)
      | (?:(?:public|private|internal|async|override|static)\s+)* (?:void|fun|Task) \s+
        `?(?P<jvm>\w[\w ]*?)`? \s* \(
      | (?:public\s+)? function \s+ (?P<php>test\w*)
    )"""
)
_PYTHON: Final = re.compile(
    r"^\s*(?:@(?:pytest\.mark\.|unittest\.|mark\.)?(?:skip|skipif|skipIf|skipUnless|xfail|expectedFailure)\b"
    r"|pytest\.(?:skip|xfail)\(|pytestmark\s*=.*\b(?:skip|skipif|xfail)\b|raise\s+(?:unittest\.)?SkipTest\b"
    r"|self\.skipTest\()"
)
_JAVASCRIPT: Final = re.compile(
    r"^\s*(?:(?:it|test|describe|context|suite)\.(?:skip|todo|failing|fixme|only)\b|(?:x|f)(?:it|test|describe)\s*\()"
)
_JVM: Final = re.compile(r"^\s*@(?:Disabled|Ignore)\b")
_SHARP: Final = re.compile(r"^\s*\[(?:Ignore\b|(?:Fact|Theory|Test|TestMethod)\(.*\b(?:Skip|Ignore)\b)")
_SKIPS: Final[Mapping[str, re.Pattern[str]]] = {
    **dict.fromkeys(("py",), _PYTHON),
    **dict.fromkeys(("js", "jsx", "ts", "tsx", "mjs", "cjs", "vue"), _JAVASCRIPT),
    **dict.fromkeys(("java", "kt", "scala", "groovy"), _JVM),
    **dict.fromkeys(("cs", "fs"), _SHARP),
    "go": re.compile(r"^\s*\w+\.Skip(?:f|Now)?\("),
    "rs": re.compile(r"^\s*#\[ignore\b"),
    "rb": re.compile(r"^\s*(?:(?:skip|pending)(?:$|\s+['\"(])|x(?:it|describe|context|specify)\b)"),
    "php": re.compile(r"^\s*\$this->markTest(?:Skipped|Incomplete)\("),
}
_ABOVE: Final = re.compile(r"^\s*(?:@|#\[|\[)")
"""A mark that stands above the test that it skips; any other stands within it, or is its own line."""


def _deleted(files: Sequence[FileDiff]) -> Iterator[str]:
    """Files of tests that went, were emptied, or have another name now."""
    tests = [file for file in files if is_test(file.path) or file.path.endswith(".rs")]  # Rust has them in any file
    added = {name for file in tests for line in file.lines("+") if (name := _declares(line))}
    names = {file.path.rpartition("/")[2] for file in tests if file.status == "added"}
    for file in files:
        by_name = is_test(file.before.rpartition("/")[2])  # others below tests/ may be helpers
        if file.status == "renamed" and by_name and not is_test(file.path):
            yield f"the tests of {file.before} are renamed to {file.path}, where nobody looks for tests"
        if not (is_test(file.path) and (file.status == "deleted" or _emptied(file))):
            continue
        gone = {name for line in file.lines("-") if (name := _declares(line))}
        moved = gone <= added if gone else file.path.rpartition("/")[2] in names
        if not moved and (gone or by_name):
            yield f"the tests of {file.path} are deleted"


def _emptied(file: FileDiff) -> bool:
    """Whether nothing but removed lines stands in the diff of what has still its name."""
    return file.status == "changed" and len(file.hunks) == 1 and all(sign == "-" for sign, _ in file.hunks[0])


def _skipped(files: Sequence[FileDiff]) -> Iterator[str]:
    """Lines that skip a test which there was before."""
    before = {name for file in files for line in file.lines("-") if (name := _declares(line))}
    moved = Counter(line.strip() for file in files for line in file.lines("-"))
    for file in files:
        skips = _SKIPS.get(file.path.rpartition(".")[2].lower())
        if skips is None or file.status in ("added", "deleted") or not (is_test(file.path) or skips is _SKIPS["rs"]):
            continue
        for hunk in file.hunks:
            names = [None if sign == "-" else _declares(line) for sign, line in hunk]
            above, below = _nearest(names), _nearest(names[::-1])[::-1]
            for number, (sign, line) in enumerate(hunk):
                if sign != "+" or not skips.match(line):
                    continue
                if moved[line.strip()] > 0:
                    moved[line.strip()] -= 1
                elif not _is_new(hunk, number, above[number], len(hunk) - 1 - below[number], before):
                    yield f"{file.path} skips a test: {line.strip()}"


def _nearest(names: Sequence[str | None]) -> list[int]:
    """Of each place the last one before it that has a name, -1 for none."""
    last = accumulate(range(len(names)), lambda found, n: found if names[n] is None else n, initial=-1)
    return list(last)[:-1]


def _is_new(hunk: Sequence[Line], number: int, above: int, below: int, before: set[str]) -> bool:
    """Whether the test that a line skips came with the patch. above, below: where the nearest tests begin, outside
    of the hunk where there is none. before: names of tests in removed lines."""
    text = hunk[number][1]
    if (own := _declares(text)) is not None:
        return own not in before
    nearest = below if _ABOVE.match(text) else above
    if not 0 <= nearest < len(hunk):
        return False
    sign, line = hunk[nearest]
    return sign == "+" and _declares(line) not in before


def _declares(line: str) -> str | None:
    """The name of the test that a line begins, None for any other line."""
    found = _DECLARED.match(line)
    named = {} if found is None else found.groupdict()
    return next((name for key, name in named.items() if key != "q" and name), None)
