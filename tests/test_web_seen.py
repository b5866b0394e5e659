"""What the pages have read: made once for all who ask at the same time, read once for all that it tells, and never
older than a decision."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import wait_for
from runs_made import AT, Make, claimed, ended, name_runs, replied

from scheduler.web.seen import LASTING_S, Seen
from worker.contract.errors import StoreFault
from worker.store.archive import Archive
from worker.store.journal import Journal
from worker.store.local import LocalArchive

BATCH = "night-0123456789ab"


class Counted(LocalArchive):
    """A folder that counts what is read of it, and gives nothing before `opens`."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.reads: list[str] = []
        self.asked, self.opens = threading.Event(), threading.Event()
        self.opens.set()

    def get(self, key: str, *, max_bytes: int = 256 * 2**20) -> bytes:
        self.asked.set()
        assert self.opens.wait(60)
        self.reads.append(key)
        return super().get(key, max_bytes=max_bytes)

    @property
    def journals(self) -> list[str]:
        """What was read of journals, sorted."""
        return sorted(key for key in self.reads if "/journal/" in key)


@pytest.fixture
def night(tmp_path: Path, archive: Archive, make_run: Make) -> Counted:
    """Two runs that have ended and one that goes on; nothing of them was read."""
    name_runs(archive, {"r1": "cart", "r2": "shop", "r3": "web"})
    for run, target in (("r1", "cart"), ("r2", "shop")):
        make_run(run, claimed(), replied(cost_microusd=500_000), *ended(verdict="verified"), target=target)
    make_run("r3", claimed("host-2"), replied(cost_microusd=7), target="web")
    return Counted(archive.url)


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


def test_a_journal_is_read_once_for_its_run_and_its_times(night: Counted) -> None:
    """Runs, timeline and spend of a night that has ended come from one reading."""
    seen = Seen(night)
    seen.batch(BATCH)
    first = night.journals
    assert len(first) == len(set(first)) > 0
    assert [(one.target, [each.worker for each in one.attempts]) for one in seen.stories(BATCH, 3)] == [
        ("cart", ["host-1"]),
        ("shop", ["host-1"]),
        ("web", ["host-2"]),
    ]
    assert [cost for one in seen.stories(BATCH, 3) for _, cost in one.spent] == [500_000, 500_000, 7]
    assert night.journals == first


def test_a_story_goes_on_where_the_last_look_ended(night: Counted) -> None:
    """What a run did since is heard once, as if all had been read now; who looked before keeps what was true then."""
    seen = Seen(night)
    [before] = seen.stories(BATCH, 3)[2:]
    journal = Journal(night, "r3")
    folded = journal.load()
    for event in (replied(2, cost_microusd=4), *ended(verdict="verified")):
        folded = journal.append(folded, [event], attempt=folded.attempt, at=AT)
    seen.expire()
    assert seen.stories(BATCH, 3) == Seen(night).stories(BATCH, 3)
    assert [cost for _, cost in seen.stories(BATCH, 3)[2].spent] == [11]
    assert [cost for _, cost in before.spent] == [7]
    assert before.attempts[-1].end is None


def test_two_who_open_a_batch_at_once_read_it_once(night: Counted) -> None:
    """One is sorting it and one looks at its timeline, while neither has been read."""
    seen = Seen(night)
    night.opens.clear()
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(seen.batch, BATCH)
        assert night.asked.wait(60)
        other = pool.submit(seen.stories, BATCH, 3)
        night.opens.set()
        assert [view.run.id for view in one.result(60).found] == ["r1", "r2", "r3"]
        assert [story.run for story in other.result(60)] == ["r1", "r2", "r3"]
    assert len(night.journals) == len(set(night.journals))


def test_what_is_read_ahead_is_there_for_whoever_asks_next(night: Counted) -> None:
    """Once for a batch, however often it is begun; the next page reads nothing of runs that have ended."""
    seen = Seen(night)
    for _ in range(3):
        seen.ahead(BATCH)
    wait_for(lambda: any("/r3/" in key for key in night.journals))
    seen.batch(BATCH)
    read = night.journals
    assert len(read) == len(set(read))
    assert {key.split("/")[1] for key in read} == {"r1", "r2", "r3"}


def test_reading_ahead_of_an_archive_that_is_away_disturbs_nobody(
    night: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page that needs the runs meets the fault itself, and tells it."""
    seen, met = Seen(night), threading.Event()

    def away(batch: str) -> None:
        met.set()
        raise StoreFault("the archive is away")

    monkeypatch.setattr(seen, "batch", away)
    raised: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    seen.ahead(BATCH)
    assert met.wait(60)
    wait_for(lambda: not [one for one in threading.enumerate() if one.name == f"ahead-{BATCH}"])
    assert raised == []
