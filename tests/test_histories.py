"""Owns the proof that nothing is lost: the real protocol played in thousands of histories of crashes, pauses, lost
and late answers. Refuses to be lucky: a history is its seed, and `play(seed, folder)` plays a failing one again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from histories import play
from simulation import Trap
from world import Weather

from worker.contract.errors import StoreFault

CHUNK = 100
DEFAULT, FULL = 1_000, 10_000
WORKERS = ("worker-a.1", "worker-b.1")
MUTANT_SEEDS = 60
"""A store that is not create-only must be found out within so many histories."""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Where outputs lie: in memory, because a history writes a hundred small files."""
    shared = Path("/dev/shm")
    with TemporaryDirectory(dir=shared if shared.is_dir() else None) as made:
        yield Path(made)


@pytest.fixture(autouse=True)
def _collected_at_the_end() -> Iterator[None]:
    """The collector would take a quarter of the time, and a chunk of histories leaves little."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def failures(seeds: range, folder: Path) -> str:
    return "\n".join(str(played) for seed in seeds if (played := play(seed, folder)).problems)


@pytest.mark.parametrize("first", range(0, DEFAULT, CHUNK))
def test_nothing_is_lost_or_doubled(first: int, folder: Path) -> None:
    """Whatever dies, freezes, forgets or answers late, every run ends once with the result it would have had."""
    assert failures(range(first, first + CHUNK), folder) == ""


@pytest.mark.full
@pytest.mark.parametrize("first", range(DEFAULT, FULL, CHUNK))
def test_nothing_is_lost_or_doubled_in_many_more(first: int, folder: Path) -> None:
    """The same for the rest of 10,000 seeds."""
    assert failures(range(first, first + CHUNK), folder) == ""


@pytest.mark.parametrize("seed", [3, 14, 15])
def test_a_seed_is_one_history(seed: int, folder: Path) -> None:
    """Played twice, a seed makes the same acts at the same times."""
    assert play(seed, folder).trace == play(seed, folder).trace


@pytest.mark.parametrize(
    "trap",
    [
        pytest.param(
            Trap("get runs/run-0/task.json", 1, 95),
            id="a worker that was held up between lease and claim took the run from the one that worked on it",
        ),
        pytest.param(
            Trap("list runs/run-0/inbox", 1, 90, alone=True),
            id="a store that was slow to answer about the inbox held up the heartbeat",
        ),
        pytest.param(
            Trap("list runs/run-0/inbox", 2, error=StoreFault("away")),
            id="a cancelled attempt whose store was away while it ended counted as a lost worker",
        ),
    ],
)
def test_what_once_went_wrong(trap: Trap, folder: Path) -> None:
    """Each of these histories, with the same trap in both workers, broke an invariant before it was repaired."""
    weather = Weather(traps=tuple((name, trap) for name in WORKERS), people=((3, "cancel", 0),) if trap.error else ())
    assert play(0, folder, weather=weather).problems == []


def test_a_store_that_overwrites_is_found_out(folder: Path) -> None:
    """With a store that is not create-only the invariants break: these histories do exercise the fence."""
    assert any(play(seed, folder, create_only=False).problems for seed in range(MUTANT_SEEDS))
