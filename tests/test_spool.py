"""Owns what is proved of the spool alone; what calls do with it stands in test_hosting.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from worker.contract.errors import StoreFault
from worker.spool import Share, Spool


def never() -> bool:
    return False


def reserve(spool: Spool, most_bytes: int, give_up: Callable[[], bool] = never) -> Share | None:
    return spool.reserve(most_bytes, patience_s=60, give_up=give_up)


def test_what_does_not_fit_waits_until_it_does() -> None:
    """Nothing begins beyond the limit; it begins as soon as enough was stored."""
    spool = Spool(100)
    waiting, begun = spool.hold(60), threading.Event()

    def begin() -> None:
        with reserve(spool, 50) or pytest.fail("gave up"):
            begun.set()

    thread = threading.Thread(target=begin)
    thread.start()
    assert not begun.wait(0.5)
    assert spool.held == 60
    waiting.shrink(50)
    assert begun.wait(30)
    thread.join()
    assert spool.held == 50


def test_the_limit_holds_for_any_number_at_once() -> None:
    """Of many that reserve together, never more are granted than fit, and each is in the end."""
    spool, seen = Spool(100), []

    def work() -> None:
        for _ in range(20):
            with reserve(spool, 40) or pytest.fail("gave up") as share:
                seen.append(spool.held)
                share.shrink(10)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 160
    assert max(seen) <= 100
    assert spool.held == 0


def test_one_that_is_larger_than_the_spool_goes_alone() -> None:
    """A limit below one result must not stop a worker for ever: it begins when nothing else waits."""
    spool = Spool(100)
    with reserve(spool, 500) or pytest.fail("gave up"):
        assert spool.held == 500
        with pytest.raises(StoreFault):
            spool.reserve(1, patience_s=0, give_up=never)


def test_waiting_ends_with_patience_as_the_store_being_away() -> None:
    """The fault is one that gives the run back, and names the setting."""
    spool = Spool(100)
    spool.hold(100)
    with pytest.raises(StoreFault) as caught:
        spool.reserve(1, patience_s=0, give_up=never)
    assert caught.value.retryable
    assert "DAWN_SPOOL_BYTES" in caught.value.hint


def test_whoever_gives_up_waits_no_more(wait_until: Callable[..., Any]) -> None:
    """A cancelled call does not wait for room, and has taken none."""
    spool, cancelled, got = Spool(100), threading.Event(), []
    spool.hold(100)
    thread = threading.Thread(target=lambda: got.append(reserve(spool, 1, cancelled.is_set)))
    thread.start()
    cancelled.set()
    thread.join(30)
    assert got == [None]
    assert spool.held == 100
