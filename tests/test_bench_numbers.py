"""What README and its plot tell of long conversations is what the benchmarks measure. They need no engine."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from bench import conversation
from bench.growth import measure_growth

README = Path(__file__).parents[1] / "README.md"


@cache
def measured() -> tuple[dict[str, dict[str, float]], dict[str, list[int]]]:
    return conversation.measure()


def sent_millions(steps: int, compaction: str) -> float:
    return measured()[0][f"{steps} steps, compaction {compaction}"]["sent_tokens"] / 1e6


def test_a_long_run_takes_no_more_of_its_journal_for_a_step_than_a_short_one() -> None:
    """Journal bytes are linear in the steps, with summaries and without."""
    found = measure_growth(short=True)
    short, long = (found[f"growth_{steps}_steps_bytes_per_step"] for steps in (100, 1_000))
    assert long == pytest.approx(short, rel=0.02)
    of_conversations = [numbers["journal_bytes_per_step"] for numbers in measured()[0].values()]
    assert max(of_conversations) < 1.05 * min(of_conversations)


def test_readme_tells_what_compaction_saves() -> None:
    """In millions of tokens over 300 steps, as measured now."""
    told = re.search(
        r"300 steps\s+send\s+([\d.]+)\s+million\s+tokens\s+without\s+compaction,\s+([\d.]+)\s+at\s+200,000\s+and\s+"
        r"([\d.]+)\s+at\s+64,000",
        README.read_text(),
    )
    assert told is not None
    assert [float(number) for number in told.groups()] == pytest.approx(
        [sent_millions(300, name) for name in conversation.CONTEXTS], rel=0.08
    )


@pytest.mark.parametrize(("row", "name"), list(enumerate(conversation.CONTEXTS)))
def test_the_plot_is_of_today(row: int, name: str) -> None:
    """The numbers beside its curves, of 20, 100 and 300 steps; `python tests/bench/conversation.py` draws it anew."""
    assert f"({conversation.PLOT.relative_to(README.parent)})" in README.read_text()
    rows = re.findall(r">compaction [^<:]*: ([\d.]+) · ([\d.]+) · ([\d.]+) after", conversation.PLOT.read_text())
    assert [float(number) for number in rows[row]] == pytest.approx(
        [sent_millions(steps, name) for steps in conversation.STEPS], rel=0.08
    )
