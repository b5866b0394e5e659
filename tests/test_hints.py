"""Owns what Redis is trusted with, shown on a real Valkey: leases, offers, bells, pokes, counters and refusals."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from worker.contract.errors import HintsFault, UsageFault
from worker.store.counters import Counters, Part
from worker.store.hints import Hints, WorkerOffer, client_url

if TYPE_CHECKING:
    from tests.conftest import Server


@pytest.fixture
def hints(redis_url: str) -> Iterator[Hints]:
    found = Hints(redis_url)
    yield found
    found.close()


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    """A look at the keys themselves."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


def test_one_claimer_of_16_holds_the_lease(hints: Hints) -> None:
    """A lease has one holder."""
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda n: hints.claim("run:a", f"token{n}", 60), range(16)))
    assert won.count(True) == 1


def test_a_repeated_claim_of_the_holder_succeeds(hints: Hints) -> None:
    """A claim whose answer was lost may be sent again."""
    assert hints.claim("run:a", "mine", 60)
    assert hints.claim("run:a", "mine", 60)


def test_a_lease_ends_by_itself(hints: Hints, wait_until) -> None:  # type: ignore[no-untyped-def]
    """Nobody has to release the lease of a dead worker."""
    hints.claim("run:a", "dead", 0.05)
    wait_until(lambda: hints.claim("run:a", "next", 60))


def test_extend_keeps_sets_again_or_loses(hints: Hints, raw: redis.Redis) -> None:
    """Own token is extended, a missing one (a wiped Redis) is set again, another's is lost and left alone."""
    hints.claim("run:a", "mine", 10)
    assert hints.extend("run:a", "mine", 1000)
    assert int(raw.ttl("dawn:lease:run:a")) > 900  # type: ignore[arg-type]
    raw.flushall()
    assert hints.extend("run:a", "mine", 60)
    assert not hints.extend("run:a", "other", 60)
    assert raw.get("dawn:lease:run:a") == "mine"


def test_release_takes_only_ones_own(hints: Hints) -> None:
    """A worker that lost its lease cannot free the next one's."""
    hints.claim("run:a", "mine", 60)
    hints.release("run:a", "other")
    assert hints.held(["run:a", "run:b"]) == {"run:a"}
    hints.release("run:a", "mine")
    assert hints.held(["run:a", "run:b"]) == set()
    assert hints.held([]) == set()


def test_offers_are_read_back_and_end(hints: Hints, raw: redis.Redis, wait_until) -> None:  # type: ignore[no-untyped-def]
    """A worker is listed with its newest offer until it leaves or falls silent; its name does not stay behind."""
    hints.offer(WorkerOffer("b", ("batch",), 4, 4), 60)
    hints.offer(WorkerOffer("a", ("interactive", "batch"), 2, 2), 60)
    hints.offer(WorkerOffer("a", ("interactive", "batch"), 2, 1), 60)
    hints.offer(WorkerOffer("dead", ("batch",), 1, 1), 0.05)
    wait_until(lambda: len(hints.workers()) == 2)
    assert hints.workers()[0] == WorkerOffer("a", ("interactive", "batch"), 2, 1)
    hints.withdraw("a")
    assert [offer.name for offer in hints.workers()] == ["b"]
    assert raw.smembers("dawn:worker") == {"b"}


def test_a_bell_is_outstanding_until_answered_or_too_old(hints: Hints, wait_until) -> None:  # type: ignore[no-untyped-def]
    """Outstanding doorbells are those neither answered nor older than the time to ring again."""
    hints.rung("r1", "batch", 60)
    hints.rung("r2", "interactive", 60)
    hints.rung("r3", "batch", 0.05)
    wait_until(lambda: "r3" not in hints.outstanding())
    hints.answered("r1")
    hints.answered("never rung")
    assert hints.outstanding() == {"r2": "interactive"}


def test_many_pokes_are_read_at_once(hints: Hints) -> None:
    """A poke names the newest inbox number of a run or batch."""
    hints.poke("run:a", 0)
    hints.poke("run:a", 1)
    hints.poke("batch:b", 7)
    assert hints.poked(["run:a", "run:x", "batch:b"]) == {"run:a": 1, "batch:b": 7}


def test_a_wiped_redis_is_noticed(hints: Hints, raw: redis.Redis) -> None:
    """The epoch is None after a wipe."""
    hints.start_epoch("e1")
    assert hints.epoch() == "e1"
    raw.flushall()
    assert hints.epoch() is None


def test_every_key_ends_by_itself(hints: Hints, raw: redis.Redis) -> None:
    """But for the one epoch key, nothing stays in Redis for ever (F52)."""
    hints.claim("run:a", "t", 60)
    hints.offer(WorkerOffer("a", ("batch",), 1, 1), 60)
    hints.rung("r", "batch", 60)
    hints.poke("run:a", 1)
    counters = Counters(hints)
    counters.put("day:x", counters.begin("day:x"), {"b": Part(1, attempt=2, estimate_microusd=3, for_s=60)})
    assert counters.reserve("a", 1, 5, 60, {"day:x": 9}, {"day:x": 2}) is None
    counters.settle("a", 1, {"day:y": 1})
    hints.hold("openai-0123", 60)
    hints.start_epoch("e")
    assert [key for key in raw.scan_iter("*") if raw.ttl(key) == -1] == ["dawn:epoch"]


def test_a_sound_redis_is_accepted(hints: Hints) -> None:
    """check says nothing about a Redis that keeps its keys."""
    hints.check()


def test_a_redis_that_evicts_is_refused(hints: Hints, raw: redis.Redis) -> None:
    """maxmemory-policy other than noeviction is refused with the setting to change (F21)."""
    raw.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(HintsFault, match="allkeys-lru") as caught:
            hints.check()
    finally:
        raw.config_set("maxmemory-policy", "noeviction")
    assert "noeviction" in caught.value.hint
    assert not caught.value.retryable


def test_a_full_redis_refuses_new_work_and_keeps_running_runs(hints: Hints, raw: redis.Redis) -> None:
    """At maxmemory a claim is refused clearly, while leases are extended, offered slots and bells kept (F21)."""
    hints.claim("run:a", "mine", 60)
    raw.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(HintsFault, match="out of memory"):
            hints.claim("run:b", "mine", 60)
        with pytest.raises(HintsFault, match="out of memory"):
            hints.poke("run:b", 1)
        assert hints.extend("run:a", "mine", 60)
        hints.offer(WorkerOffer("a", ("batch",), 1, 0), 60)
        hints.release("run:a", "mine")
    finally:
        raw.config_set("maxmemory", "0")


def test_no_redis_is_a_fault_with_a_hint(tmp_path: Path) -> None:
    """Nothing listening: a HintsFault that names the setting, not a traceback of redis-py."""
    with pytest.raises(HintsFault) as caught:
        Hints(f"unix://{tmp_path}/none.sock").check()
    assert "DAWN_REDIS_URL" in caught.value.hint
    assert caught.value.retryable


def test_a_silent_redis_is_given_up() -> None:
    """A Redis that takes the connection and says nothing is given up instead of waited for (F20)."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hints = Hints(f"redis://127.0.0.1:{silent.getsockname()[1]}", socket_timeout_s=0.1)
        done = threading.Event()

        def ask() -> None:
            with pytest.raises(HintsFault):
                hints.claim("run:a", "mine", 60)
            done.set()

        threading.Thread(target=ask, daemon=True).start()
        assert done.wait(30)


def test_a_restarted_redis_is_used_again(crashing_valkey: Server) -> None:
    """After a crash and a restart the same Hints goes on, and what was synced to disk is still there (F16)."""
    hints = Hints(f"unix://{crashing_valkey.folder / 'valkey.sock'}")
    hints.start_epoch("e1")
    crashing_valkey.kill()
    with pytest.raises(HintsFault):
        hints.epoch()
    crashing_valkey.start()
    assert hints.epoch() == "e1"


@pytest.mark.parametrize(
    ("given", "spoken"),
    [
        ("redis+socket:///run/a b.sock?virtual_host=3", "unix:///run/a b.sock?db=3"),
        ("redis+socket:///run/r.sock", "unix:///run/r.sock?db=0"),
        ("redis://:pw@host:6379/1", "redis://:pw@host:6379/1"),
        ("unix:///run/r.sock?db=2", "unix:///run/r.sock?db=2"),
    ],
)
def test_both_spellings_of_a_socket_are_understood(given: str, spoken: str) -> None:
    """Celery's socket address is translated to redis-py's."""
    assert client_url(given) == spoken


@pytest.mark.parametrize("url", ["http://x", "nonsense", "redis://host:port"])
def test_bad_addresses_are_usage_faults(url: str) -> None:
    """An address redis-py cannot parse names the setting."""
    with pytest.raises(UsageFault, match="DAWN_REDIS_URL"):
        Hints(url)


@pytest.mark.parametrize(
    "value",
    ["no json", "null", "[]", '[["batch"], "1", 1]', '[["batch"], 1e300, 1]', "[[0], 1, 1]", "[" * 99999, b"\xff"],
)
def test_what_no_worker_writes_is_no_offer(hints: Hints, raw: redis.Redis, value: str | bytes) -> None:
    """Nonsense beside a worker's offer takes nothing from it."""
    offer = WorkerOffer("host-1", ("batch",), 4, 2)
    hints.offer(offer, 60)
    raw.sadd("dawn:worker", "stranger")
    raw.set("dawn:worker:stranger", value)
    assert hints.workers() == [offer]


@pytest.mark.parametrize("value", ["letters", "1.5", "", "-1", "9" * 5000, b"\xff"])
def test_a_hint_that_is_no_number_is_none(hints: Hints, raw: redis.Redis, value: str | bytes) -> None:
    """The others beside it count."""
    hints.poke("run:b", 3)
    raw.set("dawn:control:run:a", value)
    assert hints.poked(["run:a", "run:b"]) == {"run:b": 3}
