"""Owns how what was measured of a run reads: checks, tests, guards, files. Refuses to mix it with what was said.

Every text here may hold what a repository wrote; whoever prints it makes it harmless first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from worker.contract.events import CheckResult, Verdict
from worker.contract.matrix import named_lines, told

FILES_SHOWN: Final = 20


def measured(verdict: Verdict) -> list[tuple[str, str]]:
    """(heading, text) pairs; a text may be empty, or have several lines."""
    named = [f"{one.check}: {line}" for one in verdict.tests for line in named_lines(one)]
    return [
        ("checks", checks_text(verdict)),
        ("tests", "\n".join(named)),
        ("guards", "\n".join(verdict.guards)),
        *_files(verdict),
    ]


def checks_text(verdict: Verdict) -> str:
    """One line a check, its reruns together: `tests: red before, green now; 3 fixed, 0 broke, 0 still failing`."""
    tests = {one.check: told(one) for one in verdict.tests}
    reported = {check.name: check.reported for check in verdict.checks if check.reported is not None}
    for name, one in reported.items():
        tests.setdefault(name, f"{one.passed} passed, {one.failed} failed, {one.skipped} skipped")
    lines = [
        f"{name}: {_seen(name, verdict.baseline) or 'no baseline'} before, {_seen(name, verdict.checks)} now"
        + (f"; {tests[name]}" if name in tests else "")
        for name in dict.fromkeys(check.name for check in verdict.checks)
    ]
    return "\n".join([*lines, *(f"{name}: {note}" for name, one in reported.items() for note in one.notes)])


def _seen(name: str, checks: Iterable[CheckResult]) -> str:
    """Every way a check ended: `green`, or `red (exit code 1) and green` when it is unstable."""
    ends = [
        check.status + (f" (exit code {check.exit_code})" if check.exit_code not in (0, None) else "")
        for check in checks
        if check.name == name
    ]
    return " and ".join(dict.fromkeys(ends))


def _files(verdict: Verdict) -> Sequence[tuple[str, str]]:
    changed = []
    for path, lines in list(verdict.patch.files.items())[:FILES_SHOWN]:
        changed.append(f"{path}  binary" if lines is None else f"{path}  +{lines[0]} -{lines[1]}")
    if len(verdict.patch.files) > FILES_SHOWN:
        changed.append(f"and {len(verdict.patch.files) - FILES_SHOWN} more")
    left_out = [f"{path}  {why}" for path, why in list(verdict.patch.left_out.items())[:FILES_SHOWN]]
    return [
        ("files", "\n".join(changed)),
        ("left out", "\n".join(left_out)),
        ("notes", "\n".join(verdict.patch.notes)),
    ]
