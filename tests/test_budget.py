"""What a used up budget means to runs that nobody began, on a real Redis and a real archive."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from runs_made import AT, claimed, replied

from scheduler.control import tell
from scheduler.runs import Found
from scheduler.tick import Scheduler
from worker.contract.errors import HintsFault
from worker.contract.events import Parked
from worker.contract.run import Run
from worker.contract.settings import Settings
from worker.contract.task import Budget
from worker.store.archive import Archive
from worker.store.counters import Counters, Part
from worker.store.hints import Hints, WorkerOffer
from worker.store.journal import Journal

Make = Callable[..., Run]
Paid = Callable[..., Run]
NAME = "night-0123456789ab"
BATCH = Found("batch", NAME)
STOP = Budget(usd=1, on_limit="stop")


class World:
    """A scheduler with a free worker, its bell and its clock."""

    def __init__(self, archive: Archive, url: str) -> None:
        self.archive, self.hints = archive, Hints(url)
        self.now = datetime(2026, 11, 30, 23, 0, tzinfo=UTC)
        self.rings: list[str] = []
        self.hints.start_epoch("known")
        self.hints.offer(WorkerOffer("w", ("interactive", "batch"), 9, 9), ttl_s=600)
        settings = Settings(decision_poll_s=15, day_budget_usd=5)
        self.scheduler = Scheduler(
            archive, self.hints, lambda run, _: self.rings.append(run), settings, now=lambda: self.now
        )

    def spent(self, usd: float, level: str = f"batch:{NAME}") -> None:
        """As workers counted it."""
        counters = Counters(self.hints)
        counters.put(level, counters.begin(level), {"another": Part(round(usd * 1e6))})

    def tick(self, after_s: float = 0) -> list[str]:
        """One round, after_s later; returns the runs it rang."""
        self.now += timedelta(seconds=after_s)
        before = len(self.rings)
        self.scheduler.tick()
        return self.rings[before:]

    def end(self, run: str) -> tuple[str, str] | None:
        sealed = Journal(self.archive, run).load().sealed
        return None if sealed is None else (sealed.outcome, sealed.detail)


@pytest.fixture
def world(archive: Archive, redis_url: str) -> World:
    return World(archive, redis_url)


@pytest.fixture
def paid(make_run: Make) -> Paid:
    """A run with a model that wants money, in a batch with a budget of $1."""

    def make(run: str, *events: Any, **changes: Any) -> Run:
        asked = {"v": 2, "model": "openai/gpt-5", "prompt": "fix it", "budget": Budget(usd=1)} | changes
        return make_run(run, *events, **asked)

    return make


def test_with_money_left_every_run_is_rung(world: World, paid: Paid) -> None:
    """The last micro-dollar is the limit, not the one before."""
    paid("a", budget=STOP)
    world.spent(0.999999)
    assert world.tick() == ["a"]


def test_a_run_that_nobody_began_is_skipped(world: World, paid: Paid) -> None:
    """T72: it never starts, and its journal says why."""
    paid("a", budget=STOP)
    world.spent(1)
    assert world.tick() == []
    assert world.end("a") == ("skipped", "budget")


def test_a_run_that_was_begun_is_left_to_its_attempt(world: World, paid: Paid) -> None:
    """It has a patch to save, so it is taken over and stops by itself."""
    paid("a", claimed(), replied(), budget=STOP)
    world.spent(1)
    assert world.tick() == ["a"]
    assert world.end("a") is None


def test_without_a_counter_nobody_is_held(world: World, paid: Paid) -> None:
    """A wiped Redis proves nothing; the worker folds the counter before the next model call."""
    paid("a", budget=STOP)
    assert world.tick() == ["a"]


def test_a_held_run_is_not_begun_until_more_is_allowed(world: World, paid: Paid, archive: Archive) -> None:
    """A thousand runs are not claimed one by one to be parked, and they go on when the budget is raised."""
    paid("a")
    world.spent(1)
    assert world.tick() == []
    tell(archive, world.hints, BATCH, "budget", by="me", at=AT, text="$2.00")
    assert world.tick(1) == ["a"]


def test_less_may_be_allowed_too(world: World, paid: Paid, archive: Archive) -> None:
    """The last word counts, also where there was no budget before."""
    paid("a", budget=None)
    world.spent(1)
    tell(archive, world.hints, BATCH, "budget", by="me", at=AT, text="$0.50")
    assert world.tick() == []


def test_a_parked_run_is_rung_when_its_budget_is_changed(world: World, paid: Paid, archive: Archive) -> None:
    """Not before, whatever the counter says, and at once with a hint."""
    paid("a", claimed(), replied(), Parked(waiting="budget"))
    assert world.tick() == []
    tell(archive, world.hints, BATCH, "pause", by="me", at=AT)
    tell(archive, world.hints, BATCH, "unpause", by="me", at=AT)
    assert world.tick(1) == []
    tell(archive, world.hints, BATCH, "budget", by="me", at=AT, text="$2.00")
    assert world.tick(1) == ["a"]


def test_a_change_without_a_hint_is_found(world: World, paid: Paid, archive: Archive) -> None:
    """A lost hint only delays."""
    paid("a", claimed(), replied(), Parked(waiting="budget"))
    world.tick()
    tell(archive, None, BATCH, "budget", by="me", at=AT, text="$2.00")
    assert world.tick(14) == []
    assert world.tick(1) == ["a"]


def test_a_run_parked_for_the_day_waits_for_midnight(world: World, paid: Paid) -> None:
    """No message can bring the next day."""
    paid("a", claimed(), replied(), Parked(waiting="budget", until="2026-12-01T00:00:00.000+00:00"), budget=None)
    assert world.tick(3599) == []
    assert world.tick(1) == ["a"]


def test_the_day_holds_nobody_back(world: World, paid: Paid) -> None:
    """Whether a run's model costs money its attempt knows: a free one goes on, another parks in sight."""
    paid("a", budget=None)
    world.spent(5, "day:2026-11-30")
    assert world.tick() == ["a"]


def test_a_counter_that_cannot_be_read_holds_up_nobody(world: World, paid: Paid, redis_url: str) -> None:
    """It is as good as missing: other people's runs are rung, and its own meet it in their attempts."""
    paid("a")
    paid("b", batch="other-0123456789ab")
    with redis.Redis.from_url(redis_url) as raw:
        raw.set(f"dawn:spent:batch:{NAME}", "of another kind")
    assert sorted(world.tick()) == ["a", "b"]


def test_without_redis_a_round_is_not_finished(world: World, paid: Paid, monkeypatch: pytest.MonkeyPatch) -> None:
    """That it cannot be asked at all is not taken for a missing counter: the scheduler waits."""
    paid("a")

    def away(*_: object) -> None:
        monkeypatch.setattr(Hints, "epoch", away)
        raise HintsFault("Redis is away")

    monkeypatch.setattr(Counters, "spent", away)
    with pytest.raises(HintsFault):
        world.tick()
    assert world.rings == []
