"""The mutations of mutate.py fit the code as it is. Which test each turns red, only the program itself shows."""

from __future__ import annotations

import ast

import pytest
from mutate import GUARDS, ROOT, Guard


@pytest.mark.parametrize("guard", GUARDS, ids=lambda one: one.name)
def test_a_guard_can_still_be_removed(guard: Guard) -> None:
    """Each of its places is found once, and what is left without it compiles."""
    for edit in guard.edits:
        compile(edit.applied(ROOT), edit.file, "exec")


@pytest.mark.parametrize("guard", GUARDS, ids=lambda one: one.name)
def test_the_tests_of_a_guard_exist(guard: Guard) -> None:
    """A test that is renamed takes its guard along."""
    for test in guard.tests:
        path, _, name = test.partition("::")
        body = ast.parse((ROOT / "tests" / path).read_text()).body
        assert name in {node.name for node in body if isinstance(node, ast.FunctionDef)}


def test_guards_have_names_of_their_own() -> None:
    """They are called by it."""
    assert len({one.name for one in GUARDS}) == len(GUARDS)
