"""Owns the proof that nothing is lost: the real protocol played in thousands of histories of crashes, pauses, lost
and late answers. Refuses to be lucky: a history is its seed, and `play(seed, folder)` plays a failing one again.
"""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from histories import play
from simulation import Trap
from weather import Weather

from worker.contract.errors import StoreFault

CHUNK = 50
DEFAULT, FULL = 1_000, 10_000
WORKERS = ("worker-a.1", "worker-b.1")
MUTANT_SEEDS = 60
"""A store that is not create-only must be found out within so many histories."""

MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with spool() as made:
        yield Path(made)


def spool() -> TemporaryDirectory[str]:
    """Where outputs lie: in memory, because a history writes a hundred small files."""
    return TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)


def failures(first: int) -> list[str]:
    """What went wrong in the CHUNK histories from this one on. The garbage collector would take a quarter of the
    time, and a chunk leaves little behind."""
    gc.collect()
    gc.disable()
    try:
        with spool() as folder:
            played = (play(seed, Path(folder)) for seed in range(first, first + CHUNK))
            return [str(one) for one in played if one.problems]
    finally:
        gc.enable()


def all_failures(seeds: Iterable[int]) -> str:
    """The same of all chunks that begin at these seeds, on all cores."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as pool:
        return "\n".join(one for chunk in pool.map(failures, seeds) for one in chunk)


@pytest.mark.timeout(900)
def test_nothing_is_lost_or_doubled() -> None:
    """Whatever dies, freezes, forgets or answers late, every run ends once with the result it would have had."""
    assert all_failures(range(0, DEFAULT, CHUNK)) == ""


@pytest.mark.full
@pytest.mark.timeout(1_800)
def test_nothing_is_lost_or_doubled_in_ten_thousand_histories() -> None:
    """The same for the rest of the seeds; five minutes on two idle cores."""
    assert all_failures(range(DEFAULT, FULL, CHUNK)) == ""


@pytest.mark.parametrize("seed", [10, 16, 33])
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


def test_words_between_the_last_reply_and_the_verdict_are_heard(folder: Path) -> None:
    """The worker dies as it begins to measure for the last time; what somebody says before the next one comes gets a
    turn of the model."""
    dying = tuple((name, Trap("open verdict", 5)) for name in WORKERS)
    played = play(0, folder, weather=Weather(traps=dying, people=((60, "message", 0),)))
    assert played.problems == []
    assert any("dies" in act for act in played.trace)


def test_a_reply_that_dies_with_its_worker_is_counted(folder: Path) -> None:
    """It came, was paid for, and was not written down: the next worker counts it and asks again."""
    dying = tuple((name, Trap("ask the model for step 2: done", 1)) for name in WORKERS)
    played = play(0, folder, weather=Weather(traps=dying))
    assert played.problems == []
    assert sum("ask the model for step 2: done" in act for act in played.trace) > 1


@pytest.mark.parametrize("tells", [True, False])
def test_a_busy_provider_is_left_alone(tells: bool, folder: Path) -> None:
    """The run waits without a worker, which takes the next one meanwhile, and goes on where it was."""
    weather = Weather(provider_busy=((3, 60),), provider_tells=tells, scenarios=("repair", "commands"))
    played = play(0, folder, weather=weather)
    assert played.problems == []
    asked = [float(act.split()[0]) for act in played.trace if "ask the model" in act]
    assert max(after - before for before, after in itertools.pairwise(asked)) >= 60
    assert played.results["run-0"]["steps"] == 5


@pytest.mark.parametrize("word", ["create runs/run-0/journal", "ask the model for step 3"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_worker_may_die_wherever_it_makes_room(word: str, nth: int, folder: Path) -> None:
    """Before, while and after a summary is made: there is one, and the task is found in what it leaves."""
    nth += 6 if word.startswith("create") else 0
    dying = Weather(traps=((WORKERS[0], Trap(word, nth)), (WORKERS[1], Trap(word, nth))), scenarios=("long",))
    played = play(0, folder, weather=dying)
    assert played.problems == []
    assert any("dies" in act for act in played.trace)
    assert played.results["run-0"]["compactions"] == 1


@pytest.mark.parametrize("append", [3, 5, 8, 11])
def test_a_stale_writer_writes_nothing(append: int, folder: Path) -> None:
    """A worker that stands still for two leases, with an append in its hands, finds the number taken and stops; with
    a store that overwrites it would not."""
    frozen = Weather(traps=tuple((name, Trap("create runs/run-0/journal", append, 120)) for name in WORKERS))
    assert play(0, folder, weather=frozen).problems == []
    assert play(0, folder, weather=frozen, create_only=False).problems != []


def test_a_claim_beats_the_scheduler_that_seals(folder: Path) -> None:
    """A run is cancelled before anybody claimed it, and claimed while the scheduler closes its inbox: the scheduler
    leaves it to the attempt, which is cancelled."""
    weather = Weather(
        people=((3, "cancel", 0),),
        traps=(
            *((name, Trap("took", 1, 4, alone=True)) for name in WORKERS),
            *((name, Trap("owned", 1, 3, alone=True)) for name in WORKERS),
            ("scheduler-0.1", Trap("create runs/run-0/inbox", 1, 3, alone=True)),
        ),
    )
    played = play(0, folder, weather=weather)
    assert played.problems == []
    assert played.results["run-0"]["sealed"]["outcome"] == "cancelled"
    assert any("scheduler-0.1 main: create runs/run-0/journal/000000001" in act for act in played.trace)


def test_a_store_that_overwrites_is_found_out(folder: Path) -> None:
    """With a store that is not create-only the invariants break: these histories do exercise the fence."""
    assert any(play(seed, folder, create_only=False).problems for seed in range(MUTANT_SEEDS))
