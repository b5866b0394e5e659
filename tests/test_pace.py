"""How fast an account is asked, and whose turn it is, on a real Valkey. Its clock stands where a test puts it: in the
scripts' text a key takes the place of TIME."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
import redis
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from worker.contract.settings import Rate
from worker.store import pace as module
from worker.store.hints import Hints
from worker.store.pace import BURST_S, COST_MAX_S, MICRO, NOT_YOUR_TURN_S, TURN_KEPT_S, Pace

START_S = 1_800_000_000
SIXTY = Rate(requests_per_min=60)
TOKENS = Rate(tokens_per_min=60_000)


@dataclass
class Fleet:
    """Whoever asks the account `a`, at a time of the test's own."""

    pace: Pace
    raw: redis.Redis
    now_us: int = START_S * MICRO

    def wait(self, seconds: float) -> None:
        self.now_us += round(seconds * MICRO)
        self.raw.set("clock", self.now_us)

    def take(self, batch: str = "b", rate: Rate = SIXTY, tokens: int = 0) -> float:
        return self.pace.take("a", batch, rate, tokens)

    def settle(self, tokens: int, batch: str = "b", rate: Rate = TOKENS) -> None:
        self.pace.settle("a", batch, rate, tokens)

    def served(self, seconds: float, askers: dict[str, int], rate: Rate = SIXTY, tokens: int = 0) -> list[str]:
        """Who was granted a request, in order, while so many of each batch ask four times a second, one after the
        other, and begin again as soon as they were granted one."""
        granted = []
        for _ in range(round(seconds * 4)):
            for batch, number in askers.items():
                granted += [batch for _ in range(number) if self.take(batch, rate, tokens) == 0]
            self.wait(0.25)
        return granted


@pytest.fixture
def fleet(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    for name in ("_TAKE", "_SETTLE"):
        text = getattr(module, name)
        assert "redis.call('TIME')" in text
        monkeypatch.setattr(module, name, text.replace("redis.call('TIME')", "{0, redis.call('GET', 'clock')}"))
    hints = Hints(redis_url)
    with redis.Redis.from_url(redis_url) as raw:
        fleet = Fleet(Pace(hints), raw)
        fleet.wait(0)
        yield fleet
    hints.close()


@dataclass
class Reckoned:
    """What the scripts should say, in Python."""

    now: int = START_S * MICRO
    at: int = 0
    debts: dict[str, int] = field(default_factory=lambda: {"requests": 0, "tokens": 0})
    turn: int = 0
    served: dict[str, int] = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)

    def take(self, batch: str, request: int, tokens: int) -> int:
        self._pay()
        self.wanted = {b: t for b, t in self.wanted.items() if self.now < t <= self.now + TURN_KEPT_S * MICRO}
        mine = self.served.get(batch, 0) if batch in self.wanted else max(self.turn, self.served.get(batch, 0))
        others = [self.served[other] for other in self.wanted if other != batch]
        self.served = {b: s for b, s in self.served.items() if s > self.turn or b in self.wanted}
        wait = max(0, max(self.debts.values()) - round(BURST_S * MICRO))
        if any(served < mine for served in others):
            wait = max(wait, round(NOT_YOUR_TURN_S * MICRO))
        if wait:
            self.served[batch], self.wanted[batch] = mine, self.now + round(TURN_KEPT_S * MICRO)
            return wait
        cost = max(request, tokens)
        self.debts["requests"] += request
        self.debts["tokens"] += tokens
        self.wanted.pop(batch, None)
        self.turn, self.served[batch] = max(mine, self.turn + cost // (1 + len(others))), mine + cost
        return 0

    def settle(self, batch: str, tokens: int) -> None:
        self._pay()
        self.debts["tokens"] = max(0, self.debts["tokens"] + tokens)
        self.served[batch] = max(0, self.served.get(batch, self.turn) + tokens)

    def _pay(self) -> None:
        passed = max(0, self.now - self.at)
        self.debts = {kind: max(0, debt - passed) for kind, debt in self.debts.items()}
        self.at = self.now


def us(per_min: int | None, count: int) -> int:
    most = round(COST_MAX_S * MICRO)
    return max(-most, min(math.ceil(count * 60 * MICRO / per_min), most)) if per_min else 0


PER_MIN = st.one_of(st.none(), st.integers(1, 100_000))
RATES = st.builds(
    lambda requests, tokens: Rate(requests_per_min=requests or (None if tokens else 7), tokens_per_min=tokens),
    PER_MIN,
    PER_MIN,
)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.just(""), st.integers(-3_000_000, 20_000_000)),
        st.tuples(st.just("take"), st.sampled_from("abc"), st.integers(0, 60_000)),
        st.tuples(st.just("settle"), st.sampled_from("abc"), st.integers(-60_000, 60_000)),
    ),
    max_size=40,
)


@given(rate=RATES, acts=ACTS)
@hypothesis_settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_script_reckons_as_the_model_does(fleet: Fleet, rate: Rate, acts: list[tuple[str, str, int]]) -> None:
    """To the microsecond, whatever is asked, settled and waited for, also with a clock that is set back."""
    fleet.raw.flushall()
    fleet.now_us = START_S * MICRO
    fleet.wait(0)
    model = Reckoned()
    for act, batch, number in acts:
        model.now = fleet.now_us
        if act == "wait":
            fleet.wait(number / MICRO)
        elif act == "take":
            said = fleet.take(batch, rate, number)
            assert round(said * MICRO) == model.take(
                batch, us(rate.requests_per_min, 1), us(rate.tokens_per_min, number)
            )
        else:
            fleet.settle(number, batch, rate)
            model.settle(batch, us(rate.tokens_per_min, number))


@given(
    rate=st.builds(Rate, requests_per_min=st.integers(1, 300), tokens_per_min=st.integers(1_000, 200_000)),
    asks=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30_000), st.floats(0, 15)), max_size=60),
)
@hypothesis_settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_minute_has_more_than_the_rate_the_burst_and_one_request(
    fleet: Fleet, rate: Rate, asks: list[tuple[str, int, float]]
) -> None:
    """Wherever the 60 s begin, and whoever asks for how much."""
    fleet.raw.flushall()
    granted: list[tuple[int, int]] = []
    for batch, tokens, pause_s in asks:
        fleet.wait(pause_s)
        if fleet.take(batch, rate, tokens) == 0:
            granted.append((fleet.now_us, tokens))
    assert rate.requests_per_min is not None
    assert rate.tokens_per_min is not None
    for begin, _ in granted:
        within = [tokens for at, tokens in granted if begin <= at < begin + 60 * MICRO]
        share = 1 + BURST_S / 60
        assert len(within) <= rate.requests_per_min * share + 1
        assert sum(within) <= rate.tokens_per_min * share + max(within)


def test_the_rate_is_used_up(fleet: Fleet) -> None:
    """Eager askers get a minute's requests in a minute, and the burst before."""
    assert 60 <= len(fleet.served(60, {"a": 2})) <= 60 + 6


@pytest.mark.parametrize("first", ["crowd", "one"])
def test_one_run_is_not_starved_by_fifty_of_another_batch(fleet: Fleet, first: str) -> None:
    """It goes every second time, as soon as it asks again, whether it came first or later."""
    askers = {first: 50 if first == "crowd" else 1}
    fleet.served(10, askers)
    granted = fleet.served(20, askers | {"crowd": 50, "one": 1})
    assert "one" in granted[:3]  # the first was granted before it asked, the second was level with it
    assert abs(Counter(granted)["one"] - Counter(granted)["crowd"]) <= 2


def test_three_batches_share_equally_and_by_tokens(fleet: Fleet) -> None:
    """Turns go by the account's time: whoever asks for large requests has fewer."""
    granted: Counter[str] = Counter()
    for _ in range(240):
        for batch, tokens in (("a", 1_000), ("b", 1_000), ("c", 4_000)) * 3:
            if fleet.take(batch, TOKENS, tokens) == 0:
                granted[batch] += tokens
        fleet.wait(0.25)
    assert sum(granted.values()) >= 60_000
    assert max(granted.values()) - min(granted.values()) <= 8_000


def test_a_batch_that_does_not_ask_leaves_its_share_to_the_others(fleet: Fleet) -> None:
    """Also one that asked once and died: nobody waits for it longer than the burst lasts."""
    fleet.served(10, {"crowd": 4})
    while fleet.take("dead") == 0:
        pass
    assert len(fleet.served(61, {"crowd": 4})) >= 60


def test_a_batch_that_slept_has_no_credit(fleet: Fleet) -> None:
    """It begins level with the others, however long it took nothing."""
    fleet.served(5, {"a": 1, "late": 1})
    fleet.served(120, {"a": 4})
    granted = fleet.served(20, {"a": 4, "late": 4})
    assert abs(Counter(granted)["a"] - Counter(granted)["late"]) <= 2


def test_a_request_above_a_whole_minute_goes_alone(fleet: Fleet) -> None:
    """It waits no longer than others, and is paid off before the next."""
    assert fleet.take("a", TOKENS, 180_000) == 0
    assert fleet.take("b", TOKENS, 1) == pytest.approx(180 - BURST_S)
    fleet.wait(180 - BURST_S)
    assert fleet.take("b", TOKENS, 1) == 0


def test_a_large_request_is_not_passed_over_by_small_ones(fleet: Fleet) -> None:
    """Whoever is next goes when the account has any room, whatever the size."""
    fleet.served(10, {"small": 4}, TOKENS, 1_000)
    for _ in range(8):
        if fleet.take("large", TOKENS, 90_000) == 0:
            return
        fleet.served(0.25, {"small": 4}, TOKENS, 1_000)
    pytest.fail("the large request did not go within two seconds")


def test_what_was_not_used_is_given_back(fleet: Fleet) -> None:
    """Of tokens only: a request is one whatever came of it."""
    both = Rate(requests_per_min=6, tokens_per_min=60_000)
    assert fleet.take("a", both, 60_000) == 0
    assert fleet.take("a", both, 1) == pytest.approx(60 - BURST_S)
    fleet.settle(-60_000, "a", both)
    assert fleet.take("a", both, 1) == pytest.approx(10 - BURST_S)


def test_what_was_used_above_the_estimate_is_owed(fleet: Fleet) -> None:
    """By the account, and by the batch."""
    assert fleet.take("a", TOKENS, 1_000) == 0
    fleet.settle(29_000, "a", TOKENS)
    assert fleet.take("b", TOKENS, 1) == pytest.approx(30 - BURST_S)


def test_nothing_is_given_back_beyond_what_is_owed(fleet: Fleet) -> None:
    """A late answer, whose tokens time has paid off already, buys nobody a burst."""
    assert fleet.take("a", TOKENS, 60_000) == 0
    fleet.wait(300)
    fleet.settle(-60_000, "a", TOKENS)
    assert len(fleet.served(0.25, {"a": 20}, TOKENS, 1_000)) == 6


def test_each_account_has_its_own_rate(fleet: Fleet) -> None:
    """And each kind of bound holds without the other."""
    assert fleet.take("b", Rate(requests_per_min=1), 10**9) == 0
    assert fleet.take("b", Rate(requests_per_min=1), 0) == pytest.approx(60 - BURST_S)
    assert fleet.pace.take("other", "b", Rate(tokens_per_min=1), 0) == 0


def test_no_request_holds_an_account_longer_than_a_day(fleet: Fleet) -> None:
    """Whatever it is said to have taken."""
    assert fleet.take("a", TOKENS, 2**53 - 1) == 0
    assert fleet.take("b", TOKENS, 1) == pytest.approx(COST_MAX_S - BURST_S)


def test_a_wiped_redis_starts_anew(fleet: Fleet) -> None:
    """The debts are gone; what is settled after it harms nobody."""
    fleet.take("a", TOKENS, 600_000)
    fleet.raw.flushall()
    fleet.wait(0)
    fleet.settle(-600_000, "a", TOKENS)
    assert fleet.take("b", TOKENS, 1_000) == 0


def test_newcomers_do_not_starve_who_waits(fleet: Fleet) -> None:
    """A new batch each second, each for one request: the old one has its turns among them."""
    granted = fleet.served(5, {"old": 4})
    for number in range(40):
        granted += fleet.served(1, {f"new-{number}": 1, f"new-{number - 1}": 1, "old": 1})
    assert Counter(granted)["old"] >= 5 + 40 // 4


def test_batches_that_are_done_leave_nothing_behind(fleet: Fleet) -> None:
    """What is kept grows with the batches that ask, and ends when nobody does."""
    for number in range(50):
        fleet.take(f"batch-{number}")
        fleet.wait(1)
    fields = fleet.raw.hkeys("dawn:rate:a")
    assert isinstance(fields, list)
    assert len(fields) <= 4 + 5
    assert 0 < int(fleet.raw.pttl("dawn:rate:a")) <= 120_000


def test_a_clock_that_is_set_back_stops_nobody_for_as_long(fleet: Fleet) -> None:
    """An hour back, and the account is asked as before."""
    fleet.served(5, {"a": 2, "b": 2})
    fleet.wait(-3600)
    assert len(fleet.served(30, {"a": 2, "b": 2})) >= 30


def test_of_sixteen_that_ask_at_once_one_is_granted(redis_url: str) -> None:
    """By the clock of Redis itself."""
    hints = Hints(redis_url)
    pace, rate = Pace(hints), Rate(requests_per_min=1)
    with ThreadPoolExecutor(16) as pool:
        said = list(pool.map(lambda n: pace.take("a", f"batch-{n}", rate, 0), range(16)))
    assert said.count(0.0) == 1
    assert all(50 < wait_s <= 60 - BURST_S for wait_s in said if wait_s)
    hints.close()


def test_what_waits_ends_by_the_clock_of_redis(redis_url: str, wait_until: Callable[..., object]) -> None:
    """A moment later the same request is granted."""
    hints = Hints(redis_url)
    pace, rate = Pace(hints), Rate(requests_per_min=600)
    while pace.take("a", "b", rate, 0) == 0:
        pass
    wait_until(lambda: pace.take("a", "b", rate, 0) == 0)
    hints.close()
