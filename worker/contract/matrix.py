"""Owns what became of each test of a check between the start commit and the patch. Refuses to read reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from worker.contract.results import KINDS, Colour, Compared, Kind

Tests = Mapping[str, Colour]
"""Name of a test -> how it ended, as one room's report tells it."""

MATRIX_VERSION: Final = 1
NAMED: Final[tuple[Kind, ...]] = (
    *("broke", "flaky", "removed", "skipped_now", "new_failing"),
    *("still_failing", "fixed"),
)
"""Kinds whose tests people want named, those that need them first."""
NAMED_MAX: Final = 10
"""Tests of one kind that an event names; `tests.json` has all."""
SAID: Final[Mapping[Kind, str]] = {
    "still_failing": "still failing",
    "new_failing": "new and failing",
    "new_passing": "new and passing",
    "skipped_now": "skipped now",
}
ALWAYS: Final[tuple[Kind, ...]] = ("fixed", "broke", "still_failing")


def compare(before: Tests, after: Tests, again: Tests, *, patch_empty: bool, whole: bool) -> dict[str, Kind]:
    """Kind of each test. again: of the second run, empty when there was none. whole: both reports are complete, so
    that a test which is missing is gone.

    A test that was skipped, or not there, did not run: that it runs now is new. One whose two runs differ is flaky,
    and so is one that differs where no patch does.
    """
    names = dict.fromkeys((*before, *after)) if whole else after
    return {name: _kind(before.get(name), after.get(name), again.get(name), patch_empty) for name in names}


def _kind(was: Colour | None, now: Colour | None, second: Colour | None, patch_empty: bool) -> Kind:
    if now is None:
        return "removed"
    if {now, second} == {"passed", "failed"}:
        return "flaky"
    if now == "skipped":
        return "skipped" if was in (None, "skipped") else "skipped_now"
    if was in (None, "skipped"):
        return "new_passing" if now == "passed" else "new_failing"
    if was == now:
        return "passing" if now == "passed" else "still_failing"
    if patch_empty:
        return "flaky"
    return "fixed" if now == "passed" else "broke"


def changed_colour(before: Tests, after: Tests) -> bool:
    """Whether a test passed in one and failed in the other, so that the check should be run again."""
    return any({colour, before.get(name)} == {"passed", "failed"} for name, colour in after.items())


def compared(check: str, kinds: Mapping[str, Kind]) -> Compared:
    """What a verdict says of one check's tests."""
    named: dict[Kind, tuple[str, ...]] = {}
    for kind in NAMED:
        if names := [name for name, one in kinds.items() if one == kind]:
            named[kind] = tuple(names[:NAMED_MAX])
    counts = {kind: number for kind in KINDS if (number := list(kinds.values()).count(kind))}
    return Compared(check=check, counts=counts, named=named)


def matrix(rows: Mapping[str, tuple[Mapping[str, Kind], Sequence[Tests]]]) -> dict[str, Any]:
    """The artifact `tests.json`: of each check its kinds and its reports, on the start, with the patch, and again."""
    return {"v": MATRIX_VERSION, "checks": {check: _rows(*row) for check, row in rows.items()}}


def _rows(kinds: Mapping[str, Kind], reports: Sequence[Tests]) -> dict[str, dict[str, str]]:
    rooms = list(zip(("before", "after", "again"), reports, strict=True))
    return {
        name: {"kind": kind} | {room: tests[name] for room, tests in rooms if name in tests}
        for name, kind in kinds.items()
    }


def told(one: Compared) -> str:
    """`3 fixed, 0 broke, 2 still failing`, and what else there is that somebody should know."""
    kinds: list[Kind] = [*ALWAYS, *(kind for kind in KINDS if kind not in (*ALWAYS, "passing", "skipped"))]
    return ", ".join(
        f"{one.counts.get(kind, 0)} {SAID.get(kind, kind)}" for kind in kinds if kind in ALWAYS or kind in one.counts
    )


def named_lines(one: Compared) -> list[str]:
    """`broke: cart::price` and so on: the tests that people want named."""
    lines = []
    for kind, names in one.named.items():
        lines += [f"{SAID.get(kind, kind)}: {name}" for name in names]
        if (more := one.counts.get(kind, 0) - len(names)) > 0:
            lines.append(f"{SAID.get(kind, kind)}: and {more} more")
    return lines
