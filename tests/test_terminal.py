"""How tables look in a narrow terminal, a wide one and a pipe."""

from __future__ import annotations

import sys

import pytest

from scheduler.cli.terminal import emit_table
from scheduler.reports.rows import CUT, HEADINGS

NUMBERS = ("12", "42.5 s", "$0.12")
LONG = "env/setup the setup command exited with code 1: pip could not find a version that satisfies the requirement"
ROWS = [
    ("answer-0123456789ab", "packages/first-of-many", "changed", "still_failing", *NUMBERS, ""),
    ("answer-ba9876543210", "two", "no_change", "-", *NUMBERS, LONG),
]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of a table of runs in a terminal of 80 columns."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    emit_table(HEADINGS, ROWS, cut=CUT)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_a_narrow_terminal_breaks_no_word_of_how_a_run_ended(shown: list[str]) -> None:
    """Outcome, verdict, steps, time and cost stand whole in the one line of the run, and so does its id."""
    for row in ROWS:
        [line] = [line for line in shown if line.split()[:1] == [row[0]]]
        assert line.split()[2:] == " ".join(row[2:7]).split()


def test_a_narrow_terminal_shows_a_long_detail_below_its_row(shown: list[str]) -> None:
    """Indented, every word of it."""
    assert " ".join(line.strip() for line in shown if line.startswith("    ")) == LONG


def test_a_narrow_terminal_cuts_a_target_with_an_ellipsis(shown: list[str]) -> None:
    """And no line is longer than the terminal."""
    assert [line.split()[1][-1] for line in shown if "packages" in line] == ["…"]
    assert max(map(len, shown)) <= 80


def test_a_pipe_has_each_row_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With its detail and its whole target."""
    emit_table(HEADINGS, ROWS, cut=CUT)
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f" {ROWS[0][0]}")]
    assert ROWS[0][1] in line
