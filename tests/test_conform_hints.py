"""Owns what a run may expect of Redis, over a real Valkey and the double of the histories. Refuses what only one of
them has (addresses, memory, restarts: test_hints.py)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import redis
from doubles import MemoryHints

from worker.store.hints import Hints, WorkerOffer

Wipe = Callable[[], object]
SHORT_S, LONG_S = 0.05, 60.0


@pytest.fixture(params=["valkey", "memory"])
def both(request: pytest.FixtureRequest) -> Iterator[tuple[Hints | MemoryHints, Wipe]]:
    """Hints of each kind, empty, and what wipes them."""
    if request.param == "memory":
        double = MemoryHints(time.monotonic)
        yield double, double.wipe
        return
    url: str = request.getfixturevalue("redis_url")
    hints = Hints(url)
    with redis.Redis.from_url(url) as raw:
        yield hints, raw.flushall
    hints.close()


@pytest.fixture
def hints(both: tuple[Hints | MemoryHints, Wipe]) -> Hints | MemoryHints:
    return both[0]


@pytest.fixture
def wipe(both: tuple[Hints | MemoryHints, Wipe]) -> Wipe:
    return both[1]


def test_a_lease_has_one_holder(hints: Hints) -> None:
    """A second token is refused while the first holds it, and the holder's repeated claim is not."""
    assert hints.claim("run:a", "mine", LONG_S)
    assert not hints.claim("run:a", "other", LONG_S)
    assert hints.claim("run:a", "mine", LONG_S)


def test_a_lease_ends_by_itself(hints: Hints, wait_until: Callable[..., object]) -> None:
    """After its time anybody may have it, and the old holder's heartbeat then loses."""
    hints.claim("run:a", "dead", SHORT_S)
    wait_until(lambda: hints.claim("run:a", "next", LONG_S))
    assert not hints.extend("run:a", "dead", LONG_S)


def test_a_heartbeat_extends(hints: Hints, wait_until: Callable[..., object]) -> None:
    """An extended lease outlives the time it was claimed for."""
    hints.claim("run:a", "mine", SHORT_S)
    hints.claim("run:clock", "x", SHORT_S)
    assert hints.extend("run:a", "mine", LONG_S)
    wait_until(lambda: hints.held(["run:a", "run:clock"]) == {"run:a"})


def test_a_heartbeat_sets_a_missing_lease_again(hints: Hints, wipe: Wipe) -> None:
    """A wiped Redis has the leases of living workers back after their next heartbeat."""
    hints.claim("run:a", "mine", LONG_S)
    wipe()
    assert hints.held(["run:a"]) == set()
    assert hints.extend("run:a", "mine", LONG_S)
    assert hints.held(["run:a"]) == {"run:a"}


def test_a_lease_is_released_by_its_holder_only(hints: Hints) -> None:
    """Another's release is nothing."""
    hints.claim("run:a", "mine", LONG_S)
    hints.release("run:a", "other")
    assert hints.held(["run:a", "run:b"]) == {"run:a"}
    hints.release("run:a", "mine")
    assert hints.held(["run:a"]) == set()


def test_offers(hints: Hints, wait_until: Callable[..., object]) -> None:
    """The newest offer of each worker counts, by name, until it leaves or falls silent."""
    hints.offer(WorkerOffer("b", ("solo",), 1, 1), LONG_S)
    hints.offer(WorkerOffer("a", ("interactive", "batch"), 2, 2), LONG_S)
    hints.offer(WorkerOffer("a", ("interactive", "batch"), 2, 1), LONG_S)
    hints.offer(WorkerOffer("dead", ("batch",), 1, 1), SHORT_S)
    wait_until(lambda: len(hints.workers()) == 2)
    assert hints.workers() == [WorkerOffer("a", ("interactive", "batch"), 2, 1), WorkerOffer("b", ("solo",), 1, 1)]
    hints.withdraw("a")
    hints.withdraw("never there")
    assert [offer.name for offer in hints.workers()] == ["b"]


def test_bells(hints: Hints, wait_until: Callable[..., object]) -> None:
    """A doorbell is outstanding until answered or too old."""
    hints.rung("r1", "batch", LONG_S)
    hints.rung("r2", "interactive", LONG_S)
    hints.rung("r3", "batch", SHORT_S)
    wait_until(lambda: "r3" not in hints.outstanding())
    hints.answered("r1")
    hints.answered("never rung")
    assert hints.outstanding() == {"r2": "interactive"}


def test_pokes(hints: Hints) -> None:
    """The last number poked is read back, for the names that have one."""
    hints.poke("run:a", 0)
    hints.poke("run:b", 1)
    hints.poke("run:b", 7)
    assert hints.poked(["run:a", "run:x", "run:b"]) == {"run:a": 0, "run:b": 7}
    assert hints.poked([]) == {}


def test_a_wipe_takes_everything(hints: Hints, wipe: Wipe) -> None:
    """Epoch, leases, offers, bells and pokes are gone."""
    hints.start_epoch("e1")
    assert hints.epoch() == "e1"
    hints.claim("run:a", "mine", LONG_S)
    hints.offer(WorkerOffer("a", ("batch",), 1, 1), LONG_S)
    hints.rung("r", "batch", LONG_S)
    hints.poke("run:a", 1)
    wipe()
    assert hints.epoch() is None
    assert (hints.held(["run:a"]), hints.workers(), hints.outstanding(), hints.poked(["run:a"])) == (
        set(),
        [],
        {},
        {},
    )


def test_a_held_account_waits_for_the_longest_hold(hints: Hints) -> None:
    """A shorter one does not end it early, and another account is free."""
    assert hints.held_s("openai-1") == 0
    hints.hold("openai-1", LONG_S)
    hints.hold("openai-1", SHORT_S)
    assert LONG_S - 30 < hints.held_s("openai-1") <= LONG_S
    assert hints.held_s("openai-2") == 0


def test_a_hold_ends_by_itself_or_with_a_wipe(hints: Hints, wipe: Wipe, wait_until: Callable[..., object]) -> None:
    """It is a hint: whoever asks too early meets the provider's no."""
    hints.hold("openai-1", SHORT_S)
    wait_until(lambda: hints.held_s("openai-1") == 0)
    hints.hold("openai-1", LONG_S)
    wipe()
    assert hints.held_s("openai-1") == 0
