"""Holds README.md of this folder to its word: every fault has its row, every test it names is there. Refuses to say
whether such a test is a good one.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent.parent
FAULTS = (1, 2, 3, 5, 7, 8, 9, 10, 12, 13, 14, 16, 18, 20, 21, 24, 26, 27, 28, 29, 30, 31, 33, 35, 36, 37, 38, 40, 41)
FAULTS += (43, 44, 47, 48, 49, 51, 52, 54)
CASES = (41, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 72)
REASON_WORDS = 8
"""So many words a reason has at least: what it is for must be readable by somebody who was not there."""


def rows() -> list[tuple[str, str]]:
    """(number, tests or reason) of every row that has a number."""
    lines = (TESTS / "faults" / "README.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| [FT]\d", line)]
    assert all(len(row) == 3 for row in cells), "a row has three columns"
    return [(row[0], row[2]) for row in cells]


def named(cell: str) -> list[tuple[str, str]]:
    """(path, test) of every test that a cell names."""
    return re.findall(r"`([\w/]+\.py)::(\w+)`", cell)


@cache
def functions(path: str) -> set[str]:
    """Names of the functions of a test module, none when it is not there."""
    module = TESTS / path
    body = ast.parse(module.read_text()).body if module.exists() else []
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


def test_every_number_has_its_row() -> None:
    """Once each, in order."""
    assert [number for number, _ in rows()] == [f"F{n:02}" for n in FAULTS] + [f"T{n:02}" for n in CASES]


def test_every_row_names_a_test_or_a_reason() -> None:
    """An empty cell, or a word, is neither."""
    assert [number for number, cell in rows() if not named(cell) and len(cell.split()) < REASON_WORDS] == []


def test_every_named_test_exists() -> None:
    """A test that is renamed takes its row along."""
    missing = [f"{path}::{test}" for _, cell in rows() for path, test in named(cell) if test not in functions(path)]
    assert missing == []


def test_a_test_that_carries_a_number_stands_in_its_row() -> None:
    """Whoever writes one adds it to the page."""
    listed = {(number, *test) for number, cell in rows() for test in named(cell)}
    numbers = {number for number, _ in rows()}
    carried = {
        (number, module.relative_to(TESTS).as_posix(), node.name)
        for module in TESTS.rglob("test_*.py")
        for node in ast.parse(module.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        for number in re.findall(r"\b[FT]\d\d\b", ast.get_docstring(node) or "")
    }
    assert {one for one in carried if one[0] in numbers} - listed == set()
