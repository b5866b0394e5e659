"""What an agent's last words claim against the evidence: what is found, and above all what is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.contract.claims import CLAIMS_MAX, contradictions
from worker.contract.events import CheckResult, PatchStat, Verdict
from worker.contract.task import Check

TESTS, LINT = Check(name="unit", command="pytest -q"), Check(name="lint", command="ruff check")
PATCH = PatchStat(files={"src/cart.py": (3, 1)}, left_out={"build/out.js": "ignored"})
RED = Verdict(
    verdict="still_failing",
    checks=(
        CheckResult(name="unit", status="red", exit_code=1),
        CheckResult(name="lint", status="green", exit_code=0),
    ),
    patch=PATCH,
)
GREEN = Verdict(
    verdict="verified", checks=tuple(one.model_copy(update={"status": "green"}) for one in RED.checks), patch=PATCH
)
LINT_RED = RED.model_copy(
    update={"checks": (CheckResult(name="unit", status="green"), CheckResult(name="lint", status="red"))}
)
LOOKED = (("read_file", '{"path": "a.py"}'), ("run_command", '{"command": "ls src"}'))
TESTED = (("run_command", '{"command": "python -m pytest"}'),)


def told(words: str, verdict: Verdict = RED, calls: tuple[tuple[str, str], ...] = TESTED) -> list[str]:
    return [one.evidence for one in contradictions(words, verdict, (TESTS, LINT), calls)]


@pytest.mark.parametrize(
    ("words", "evidence"),
    [
        ("All tests pass.", "the check unit is not green with the patch"),
        ("Done! All 12 existing tests are passing now.", "the check unit is not green with the patch"),
        ("- The tests pass now.", "the check unit is not green with the patch"),
        ("The full test suite is green.", "the check unit is not green with the patch"),
        ("All checks pass.", "the check unit is not green with the patch"),
        ("I added tests for the rounding.", "the patch touches no test file"),
        ("Wrote three new unit tests.", "the patch touches no test file"),
        ("Added a regression test that covers it.", "the patch touches no test file"),
        ("No changes were needed.", "the patch changes 1 file"),
        ("The code is right as it is, so no changes are required.", "the patch changes 1 file"),
        ("I made no changes to the code.", "the patch changes 1 file"),
        ("I updated `src/price.py` and the docs.", "the patch does not change src/price.py"),
        ("Modified the file README.md.", "the patch does not change README.md"),
        ("**Created** src/new/module.ts with the helper.", "the patch does not change src/new/module.ts"),
    ],
)
def test_a_claim_that_the_evidence_contradicts_is_told(words: str, evidence: str) -> None:
    """Each kind of claim, in several wordings, each with the evidence against it."""
    assert told(words) == [evidence]


def test_tests_that_nobody_ran_are_told() -> None:
    """A word about running tests where no call could have done it."""
    assert told("I ran the full test suite.", GREEN, LOOKED) == ["no call of the run could have run tests"]
    assert told("I ran all tests.", GREEN, ()) == ["no call of the run could have run tests"]
    assert told("I've also executed the whole test suite.", GREEN, ()) == ["no call of the run could have run tests"]
    assert told("The pipeline ran the tests last night.", GREEN, ()) == []


@pytest.mark.parametrize(
    "words",
    [
        "All tests should pass.",
        "All tests pass except two unrelated ones.",
        "Not all tests pass.",
        "I could not make all tests pass.",
        "To check: do all tests pass?",
        "If you install the package, all tests pass.",
        "All tests in test_cart.py pass.",
        "The linter's tests of style pass.",
        "Before my change all tests passed.",
        "> All tests pass.",
        "```\nAll tests pass.\n```",
        "# All tests pass",
        "Please make sure all checks pass.",
        "I did not add tests.",
        "No tests were added.",
        "You may want tests; I would have added tests for it.",
        "I added test-friendly logging.",
        "Added test data for the importer.",
        "Added test fixtures.",
        "I added a testing note.",
        "No changes to the API were needed.",
        "No changes were needed in the tests.",
        "No changes were needed except in cart.py.",
        "No further changes are needed after this patch to make it work.",
        "I updated src/cart.py.",
        "I updated `cart.py`.",
        "Updated /workspace/repo/src/cart.py.",
        "I updated the call of foo.bar() there.",
        "I did not change src/price.py.",
        "You should have updated src/price.py.",
        "Created repro.py to see it, and removed it again.",
        "The error says that price.py changed.",
        "Renamed price.py to cart.py.",
        "Added README.md to the list of files.",
        "Added `secrets.txt` to .gitignore.",
        "Upstream updated setup.cfg in June.",
        "The first author wrote tests for it.",
        "The release added new tests.",
        "The upstream release updated v1.2 to v1.3.",
        "",
    ],
)
def test_what_claims_nothing_is_left_alone(words: str) -> None:
    """Plans, conditions, denials, parts, quotes and other things' names are no claims about the whole."""
    assert told(words) == []


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        ("All tests pass.", GREEN),
        ("All tests pass.", LINT_RED),
        ("No changes were needed.", Verdict(verdict="verified")),
        ("I added tests.", GREEN.model_copy(update={"patch": PatchStat(files={"tests/test_cart.py": (9, 0)})})),
        ("I added tests.", GREEN.model_copy(update={"patch": PatchStat(files={"src/lib.rs": (9, 0)})})),
        ("I ran the tests.", GREEN),
        ("Updated build/out.js.", GREEN),
        ("I added tests.", GREEN.model_copy(update={"patch": PatchStat(left_out={"big/": "900 files: ignored"})})),
    ],
)
def test_what_is_true_is_left_alone(words: str, verdict: Verdict) -> None:
    """The same words, where the evidence bears them out or says nothing of them."""
    assert told(words, verdict) == []


def test_a_tool_of_the_task_may_have_run_the_tests() -> None:
    """What it does nobody here knows, and so nothing is said."""
    assert told("I ran the tests.", GREEN, (("verify_all", "{}"),)) == []
    assert told("I ran the tests.", GREEN, (("run_checks", "{}"),)) == []


def test_a_long_patch_lists_not_all_of_its_files() -> None:
    """Then no file can be missed in it."""
    long = PatchStat(files={f"a{n}.py": (1, 0) for n in range(1000)})
    assert told("I updated src/price.py.", GREEN.model_copy(update={"patch": long})) == []


def test_each_evidence_is_told_once_and_with_the_claim() -> None:
    """The sentence that said it first stands beside it, cut to a line."""
    words = "All tests pass.\nAs I said,  all tests pass" + "!" * 500
    [one] = contradictions(words, RED, (TESTS, LINT), TESTED)
    assert one.claim == "All tests pass."
    many = " ".join(f"I updated a{n}.py." for n in range(50))
    assert len(told(many)) == CLAIMS_MAX


@given(st.text(max_size=300))
def test_no_words_break_it(words: str) -> None:
    """Whatever a model writes last, it is read, and only lines come of it."""
    assert all("\n" not in one.claim for one in contradictions(words, RED, (TESTS,), ()))


@pytest.mark.parametrize(
    "words", ["no " * 10_000, "added the new " * 5_000, "a/" * 20_000, "updated " * 5_000, "1) " * 9_000]
)
def test_long_words_are_read_at_once(words: str) -> None:
    """No search backtracks: else these would run into the time limit that every test has."""
    assert told(words) == []
