"""What the pages have read: made once for all who ask at the same time, and never older than a decision."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from scheduler.web.seen import LASTING_S, Seen
from worker.contract.errors import StoreFault
from worker.store.archive import Archive


class Slow:
    """Something that takes until `ends`."""

    def __init__(self) -> None:
        self.begun, self.ends = threading.Event(), threading.Event()
        self.made = 0

    def make(self) -> int:
        self.made += 1
        number = self.made
        self.begun.set()
        assert self.ends.wait(60)
        return number

    def fail(self) -> int:
        self.make()
        raise StoreFault("the archive is away")


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.ends.set()


@pytest.mark.parametrize("asking", [3])
def test_what_many_ask_for_at_once_is_made_once(archive: Archive, slow: Slow, asking: int) -> None:
    """Ten people who open a large batch in the morning cost what one costs."""
    seen, waiting = Seen(archive), threading.Barrier(asking)

    def ask() -> int:
        waiting.wait(60)
        return seen.answer("groups", slow.make, 60)

    with ThreadPoolExecutor(asking) as pool:
        answers = [pool.submit(ask) for _ in range(asking)]
        assert slow.begun.wait(60)
        slow.ends.set()
        assert [one.result(60) for one in answers] == [1] * asking


def test_a_fault_is_told_to_all_who_waited_and_to_nobody_later(archive: Archive, slow: Slow) -> None:
    """An archive that is away is not asked again by each who waited; whoever comes then asks anew."""
    seen = Seen(archive)
    slow.ends.set()
    with pytest.raises(StoreFault):
        seen.answer("groups", slow.fail, 60)
    assert seen.answer("groups", slow.make, 60) == 2


@pytest.mark.parametrize(("fresh_s", "then"), [(60.0, 2), (LASTING_S + 1, 1)])
def test_what_was_begun_before_a_decision_is_not_kept(
    archive: Archive, slow: Slow, fresh_s: float, then: int
) -> None:
    """Whoever decided sees it at once, though somebody's page was being made meanwhile; what has all that it depends
    on in its name stays."""
    seen = Seen(archive)
    with ThreadPoolExecutor(1) as pool:
        before = pool.submit(seen.answer, "standing", slow.make, fresh_s)
        assert slow.begun.wait(60)
        seen.expire()
        slow.ends.set()
        assert before.result(60) == 1
    assert seen.answer("standing", slow.make, fresh_s) == then
