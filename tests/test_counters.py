"""Owns what shared budgets are trusted with, on a real Valkey: what is spent, what is reserved, and who may begin."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
import redis

from worker.store.counters import MOST, PUT_AT_ONCE, Counters, Part, Refused
from worker.store.hints import Hints

LONG_S, SHORT_S = 600.0, 0.02
BATCH, DAY = "batch:b", "day:2026-11-30"


@pytest.fixture
def counters(redis_url: str) -> Iterator[Counters]:
    hints = Hints(redis_url)
    yield Counters(hints)
    hints.close()


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


def put(counters: Counters, level: str, **spent: int | Part) -> bool:
    """What a fold found: run -> micro-dollars."""
    parts = {run: one if isinstance(one, Part) else Part(one) for run, one in spent.items()}
    return counters.put(level, counters.begin(level), parts)


def ask(
    counters: Counters,
    run: str,
    estimate: int,
    limits: dict[str, int],
    part: int = 0,
    attempt: int = 1,
    for_s: float = LONG_S,
) -> str:
    """Why the run's call may not begin, "" when it may."""
    refused = counters.reserve(run, attempt, estimate, for_s, limits, dict.fromkeys(limits, part))
    return "" if refused is None else f"{refused.why} {refused.level}"


def test_a_level_is_folded_before_anybody_spends_by_it(counters: Counters) -> None:
    """Nothing is known of a level that is missing, so nothing may be reserved there."""
    assert counters.spent(BATCH) is None
    assert ask(counters, "a", 1, {BATCH: 100}) == f"missing {BATCH}"
    assert put(counters, BATCH, a=3, b=4)
    assert counters.spent(BATCH) == 7
    assert ask(counters, "a", 1, {BATCH: 100}, part=3) == ""


def test_a_reservation_counts_everywhere_or_nowhere(counters: Counters) -> None:
    """The level that has no room is named, and then no level has anything reserved."""
    put(counters, BATCH)
    put(counters, DAY, z=50)
    assert ask(counters, "a", 1, {BATCH: 100, DAY: 50}) == f"spent {DAY}"
    assert ask(counters, "b", 100, {BATCH: 100}) == ""
    assert ask(counters, "c", 1, {DAY: 51, BATCH: 100}) == f"busy {BATCH}"
    assert ask(counters, "d", 1, {DAY: 51}) == ""


def test_a_used_up_level_goes_before_one_that_is_busy(counters: Counters) -> None:
    """Nobody waits for room at one level who has none at another."""
    put(counters, BATCH)
    put(counters, DAY, z=50)
    ask(counters, "a", 100, {BATCH: 100})
    assert ask(counters, "b", 1, {BATCH: 100, DAY: 50}) == f"spent {DAY}"


def test_the_last_call_may_pass_the_limit(counters: Counters) -> None:
    """One micro-dollar that is left admits one call, of any size, and no second one."""
    put(counters, BATCH, z=99)
    assert ask(counters, "a", 1_000, {BATCH: 100}) == ""
    assert ask(counters, "b", 1, {BATCH: 100}) == f"busy {BATCH}"
    counters.settle("a", 1, {BATCH: 500})
    refused = counters.reserve("b", 1, 1, LONG_S, {BATCH: 100}, {BATCH: 0})
    assert refused == Refused("spent", BATCH, 599)


def test_a_raised_limit_makes_room(counters: Counters) -> None:
    """The limit is the asker's, who has read what people allowed."""
    put(counters, BATCH, z=100)
    assert ask(counters, "a", 1, {BATCH: 100}) == f"spent {BATCH}"
    assert ask(counters, "a", 1, {BATCH: 101}) == ""


def test_what_a_run_spent_may_be_told_again(counters: Counters) -> None:
    """It is a sum, not an addition; an older one changes nothing."""
    put(counters, BATCH)
    for part in (5, 5, 8, 5):
        counters.settle("a", 1, {BATCH: part})
    assert counters.spent(BATCH) == 8
    put(counters, BATCH, a=6, b=1)
    assert counters.spent(BATCH) == 9


def test_a_run_has_one_reservation(counters: Counters) -> None:
    """Whoever asks for it has no call in flight; a takeover asks for the run."""
    put(counters, BATCH)
    assert ask(counters, "a", 60, {BATCH: 100}, attempt=1) == ""
    assert ask(counters, "a", 30, {BATCH: 100}, attempt=9) == ""
    assert ask(counters, "b", 69, {BATCH: 100}) == ""
    assert ask(counters, "c", 1, {BATCH: 100}) == ""


def test_an_attempt_that_was_overtaken_frees_nothing(counters: Counters) -> None:
    """Its late word leaves alone what the next attempt reserved."""
    put(counters, BATCH)
    ask(counters, "a", 60, {BATCH: 100}, attempt=9)
    counters.settle("a", 1, {BATCH: 0})
    assert ask(counters, "b", 1_000, {BATCH: 60}) == f"busy {BATCH}"
    assert ask(counters, "a", 1, {BATCH: 60}, attempt=1) == f"busy {BATCH}"
    counters.settle("a", 9, {BATCH: 0})
    assert ask(counters, "b", 1_000, {BATCH: 60}) == ""


def test_a_call_that_must_be_over_counts_as_spent(
    counters: Counters, wait_until: Callable[[Callable[[], object]], object]
) -> None:
    """Its worker may be dead, and the call paid for: nobody waits for that money or spends it until its run tells."""
    put(counters, BATCH)
    assert ask(counters, "dead", 100, {BATCH: 100}, for_s=SHORT_S) == ""
    wait_until(lambda: ask(counters, "b", 1, {BATCH: 100}) == f"spent {BATCH}")
    assert counters.spent(BATCH) == 100
    counters.settle("dead", 2, {BATCH: 30})
    assert counters.spent(BATCH) == 30
    assert ask(counters, "b", 1, {BATCH: 100}) == ""


def test_a_fold_knows_of_calls_in_flight(counters: Counters) -> None:
    """What was reserved before a wipe is reserved again, until its attempt tells what it cost."""
    put(counters, BATCH, a=Part(10, attempt=3, estimate_microusd=90, for_s=LONG_S), b=Part(0))
    assert ask(counters, "b", 1, {BATCH: 100}) == f"busy {BATCH}"
    counters.settle("a", 3, {BATCH: 20})
    assert (counters.spent(BATCH), ask(counters, "b", 1, {BATCH: 100})) == (20, "")


def test_what_was_told_during_a_fold_is_newer(counters: Counters) -> None:
    """A call that ended after its journal was read, and before the fold was put, is neither lost nor in flight."""
    begun = counters.begin(BATCH)
    counters.settle("a", 3, {BATCH: 20})
    counters.put(BATCH, begun, {"a": Part(10, attempt=3, estimate_microusd=90, for_s=LONG_S)})
    assert counters.spent(BATCH) == 20
    assert ask(counters, "b", 1, {BATCH: 21}) == ""


def test_a_fold_begun_before_a_wipe_is_refused(counters: Counters, raw: redis.Redis) -> None:
    """Calls may have begun that it knows nothing of."""
    begun = counters.begin(BATCH)
    raw.flushall()
    assert not counters.put(BATCH, begun, {"a": Part(10)})
    put(counters, BATCH)
    raw.flushall()
    counters.begin(BATCH)
    assert not counters.put(BATCH, begun, {"a": Part(10)})
    assert counters.spent(BATCH) is None


def test_two_folds_of_one_wipe_agree(counters: Counters) -> None:
    """Whoever comes second takes nothing back."""
    first, second = counters.begin(BATCH), counters.begin(BATCH)
    assert counters.put(BATCH, first, {"a": Part(10)})
    assert ask(counters, "b", 85, {BATCH: 100}) == ""
    assert counters.put(BATCH, second, {"a": Part(10), "b": Part(0, attempt=1, estimate_microusd=5, for_s=LONG_S)})
    assert ask(counters, "c", 85, {BATCH: 95}) == f"busy {BATCH}"


def test_a_large_fold_is_put_in_parts_and_counts_when_all_are_there(counters: Counters) -> None:
    """Others are not kept waiting by a batch of thousands."""
    parts = {f"run-{n}": Part(2) for n in range(2 * PUT_AT_ONCE + 1)}
    assert counters.put(BATCH, counters.begin(BATCH), parts)
    assert counters.spent(BATCH) == 2 * len(parts)


def test_at_once_only_what_has_room_is_admitted(counters: Counters) -> None:
    """Of 50 reservations of 10 at once, a limit of 100 lets exactly 10 through."""
    put(counters, BATCH)
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda n: ask(counters, f"r{n}", 10, {BATCH: 100}), range(50)))
    assert told.count("") == 10


@pytest.mark.parametrize("absurd", [2**63, 10**306, -5], ids=["too long", "far too long", "negative"])
def test_an_absurd_estimate_holds_up_its_own_level_only_until_it_ends(counters: Counters, absurd: int) -> None:
    """A script or a task may claim anything; what others ask is answered all the same."""
    put(counters, BATCH)
    assert ask(counters, "absurd", absurd, {BATCH: 100}, for_s=float("inf")) == ""
    assert ask(counters, "b", 1, {BATCH: 100}) == (f"busy {BATCH}" if absurd > 0 else "")
    counters.settle("absurd", 1, {BATCH: 0})
    assert (counters.spent(BATCH), ask(counters, "b", 1, {BATCH: 100})) == (0, "")


def test_an_absurd_cost_is_a_used_up_budget(counters: Counters) -> None:
    """However many runs claim one, told or folded."""
    put(counters, BATCH, a=Part(10**306, 1, 10**306, 1e300), b=2**63)
    for run in ("c", "d"):
        counters.settle(run, 1, {BATCH: 10**306})
    assert counters.spent(BATCH) == MOST
    assert ask(counters, "e", 1, {BATCH: 10**15}) == f"spent {BATCH}"


@pytest.mark.parametrize("foreign", ["", "garbage", "1 2", "1 -9223372036854775808 1", "nan", "1e300", "-7"])
@pytest.mark.parametrize("field", ["spent", "of:b", "due"])
def test_what_nobody_of_ours_wrote_counts_as_nothing(
    counters: Counters, raw: redis.Redis, field: str, foreign: str
) -> None:
    """A foreign value, or one of an older version, stops nobody's calls and is replaced by what is told."""
    put(counters, BATCH)
    key = f"dawn:spent:{BATCH}"
    raw.hset(f"{key}:due" if field == "due" else key, "b" if field == "due" else field, foreign)
    assert counters.spent(BATCH) == 0
    assert ask(counters, "b", 100, {BATCH: 100}) == ""
    assert ask(counters, "c", 1, {BATCH: 100}) == f"busy {BATCH}"
    counters.settle("b", 1, {BATCH: 30})
    assert counters.spent(BATCH) == 30


@dataclass
class Agent:
    """A run in the model of the protocol. journal: what is committed. asking: the estimate of its call in flight,
    which costs no more; dead: with its worker."""

    journal: int = 0
    attempt: int = 1
    asking: int | None = None
    dead: bool = False


@dataclass
class Deployment:
    """Runs under one limit, as worker/purse.py plays them, and what Redis may not forget."""

    counters: Counters
    wipe: Callable[[], object]
    dice: random.Random
    wipes: float
    limit: int = 1_000
    runs: dict[str, Agent] = field(default_factory=lambda: {f"r{n}": Agent() for n in range(5)})
    folding: tuple[str, dict[str, Part]] | None = None
    largest: int = 0
    admitted: int = 0

    def act(self) -> None:
        """One thing that may happen, drawn."""
        acts = [self.ask, self.ask, self.ask, self.end, self.fail, self.die, self.take_over, self.fold, self.fold]
        if self.dice.random() < self.wipes:
            self.wipe()
        self.dice.choice(acts)(self.dice.choice(list(self.runs)))

    def ask(self, run: str) -> None:
        agent, estimate = self.runs[run], self.dice.randint(1, 300)
        if agent.dead or agent.asking is not None:
            return
        parts = {BATCH: agent.journal}
        if self.counters.reserve(run, agent.attempt, estimate, LONG_S, {BATCH: self.limit}, parts) is None:
            agent.asking, self.largest, self.admitted = estimate, max(self.largest, estimate), self.admitted + 1

    def end(self, run: str) -> None:
        """It is told once it is committed; the worker may die between the two."""
        agent = self.runs[run]
        if agent.dead or agent.asking is None:
            return
        agent.journal, agent.asking = agent.journal + self.dice.randint(0, agent.asking), None
        agent.dead = self.dice.random() < 0.1
        if not agent.dead:
            self.counters.settle(run, agent.attempt, {BATCH: agent.journal})

    def fail(self, run: str) -> None:
        agent = self.runs[run]
        if not agent.dead and agent.asking is not None:
            self.counters.settle(run, agent.attempt, {BATCH: agent.journal})
            agent.asking = None

    def die(self, run: str) -> None:
        self.runs[run].dead = True

    def take_over(self, run: str) -> None:
        """What may have been paid for is committed as the most that it can be, and told at the next call."""
        agent = self.runs[run]
        if agent.dead:
            agent.journal, agent.asking, agent.dead = agent.journal + (agent.asking or 0), None, False
            agent.attempt += 1

    def fold(self, run: str) -> None:
        """Begin one, or put what was read a while ago."""
        if self.folding is not None:
            self.counters.put(BATCH, *self.folding)
            self.folding = None
            return
        begun = self.counters.begin(BATCH)
        self.folding = (
            begun,
            {
                name: Part(agent.journal, agent.attempt, agent.asking or 0, LONG_S)
                for name, agent in self.runs.items()
            },
        )

    @property
    def spent(self) -> int:
        """With what may still come of calls that nobody heard the end of."""
        return sum(agent.journal + (agent.asking or 0) for agent in self.runs.values())


def test_the_sum_passes_the_limit_by_one_call_at_most(counters: Counters, raw: redis.Redis) -> None:
    """Whatever comes between: deaths, takeovers, wipes, and folds of journals that have gone on since."""
    admitted = 0
    for seed in range(200):
        raw.flushall()
        dice = random.Random(seed)
        deployment = Deployment(counters, raw.flushall, dice, wipes=dice.choice([0.0, 0.02, 0.1]))
        for _ in range(200):
            deployment.act()
            assert deployment.spent < deployment.limit + deployment.largest, seed
        admitted += deployment.admitted
    assert admitted > 1_000
