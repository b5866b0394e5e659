"""A run that waits for its turn at a provider: what its journal says of that, and what it does not count."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hosts import Held

from scheduler.cli import transcript
from worker.contract.cancel import Cancel
from worker.contract.events import Claimed, Parked, Replied, Reply
from worker.contract.redact import Redactor
from worker.contract.task import Repo, Task
from worker.delegate import DelegateHost
from worker.hosting import AttemptHost
from worker.lease import Lease
from worker.ledger import Ledger
from worker.mailbox import Mailbox
from worker.store.journal import Journal
from worker.store.local import LocalArchive

BEGAN = datetime(2026, 11, 30, tzinfo=UTC)
REPLIED = Replied(step=1, phase="model", reply=Reply(text="Done."))


class Clock:
    """What the records are dated by."""

    now_s = 0.0

    def __call__(self) -> str:
        return (BEGAN + timedelta(seconds=self.now_s)).isoformat(timespec="milliseconds")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Ledger:
    return opened(tmp_path, "run-1", clock)


def opened(folder: Path, run: str, clock: Clock) -> Ledger:
    """The pen of an attempt that has just claimed a new run."""
    journal = Journal(LocalArchive(folder.as_uri()), run)
    task = Task(run=run, batch="b", target="t", repo=Repo(url="u"), prompt="Go.", model="openai/m")
    journal.submit(task, by="ann", at=clock())
    ledger = Ledger(journal, cast(Lease, Held()), Cancel(), Redactor({}), clock)
    ledger.claim(Claimed(worker="w", engine="e", lane="main"))
    return ledger


def host_of(ledger: Ledger, cancel: Cancel, *runs: Any, kind: Any = AttemptHost) -> AttemptHost:
    """A Host on that pen; nothing else of an attempt is there."""
    journal = ledger.journal
    station = cast(Any, SimpleNamespace(later=lambda pause_s: f"2026-11-30T0{pause_s:.0f}:00:00+00:00"))
    mailbox = Mailbox(station, ledger, cancel, "b")
    host: AttemptHost = kind(*runs, journal.task(), station, ledger, None, None, cancel, mailbox)
    return host


@pytest.mark.parametrize("waited_s", [0, 40.5])
def test_waiting_for_a_turn_is_no_working_time(ledger: Ledger, clock: Clock, waited_s: float) -> None:
    """For this attempt at once; for all that read the journal with the next line, and for ever."""
    before_s = ledger.working_s()
    ledger.waited(waited_s)
    assert ledger.working_s() - before_s == pytest.approx(-waited_s, abs=20)
    clock.now_s = 100
    ledger.commit(REPLIED)
    assert ledger.run.working_s == ledger.journal.load().working_s == 100 - waited_s
    clock.now_s = 150
    ledger.commit(Parked(waiting="provider"))
    assert ledger.journal.load().working_s == 150 - waited_s
    waited_ms = [record.waited_ms for record, _ in ledger.journal.read()]
    assert waited_ms == [0, 0, waited_s * 1000, 0]
    told = [", its turn came after 40.5 s)" in transcript.full(record) for record, _ in ledger.journal.read()]
    assert told == [False, False, bool(waited_s), False]
    assert ledger.journal.verify() == []


def test_a_host_counts_what_it_waited_until_its_cancel_ends_it(ledger: Ledger) -> None:
    """At once, and it says so."""
    cancel = Cancel()
    host = host_of(ledger, cancel)
    assert not host.wait_turn(0.05)
    cancel.set("cancel")
    assert host.wait_turn(3600)
    host.commit(REPLIED)
    assert [record.waited_ms >= 50 for record, _ in ledger.journal.read()] == [False, False, True]


def test_what_a_delegate_waits_is_no_working_time_of_its_run(ledger: Ledger, tmp_path: Path, clock: Clock) -> None:
    """Both journals leave it out."""
    child = opened(tmp_path / "child", "run-2", clock)
    host = host_of(child, Cancel(), ledger, None, kind=DelegateHost)
    host.wait_turn(0.05)
    for pen in (ledger, child):
        pen.commit(REPLIED)
        assert [record.waited_ms >= 50 for record, _ in pen.journal.read()] == [False, False, True]


def test_a_parked_run_says_what_it_waits_for(ledger: Ledger) -> None:
    """Its turn, or a provider in trouble: only the second is tried a limited number of times."""
    host = host_of(ledger, Cancel())
    for paced in (True, False, True):
        parked = host.wait_for_provider(1, "why", paced=paced)
        assert parked == Parked(waiting="provider", until="2026-11-30T01:00:00+00:00", detail="why", paced=paced)
    assert ledger.journal.load().provider_parks == 1
