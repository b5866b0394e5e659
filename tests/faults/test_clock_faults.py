"""Due times and windows over real processes: schedulers and Celery workers on a Valkey behind proxies, an archive in
a folder; only the workers' engines are in memory (fleets.py). Time passes as it does.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import wait_for
from fleets import BUSY_S, SOURCE, Fleet
from proxies import TcpProxy

from scheduler import control
from scheduler.enqueue import Batch, targets_json
from scheduler.schedules import stored
from scheduler.schedules.cron import Schedule
from scheduler.schedules.stored import Firing
from worker.contract.events import digest
from worker.contract.task import Environment, Repo, Task
from worker.contract.window import Window
from worker.station import utc_now
from worker.store.journal import Journal

pytestmark = pytest.mark.full

VISIBILITY_S = 3
BROKEN_S = 2
EVERY_S = 10
NAME = "ticking"
STEPS = tuple(f"sleep 1; echo {number} >> a.txt" for number in range(45))


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    yield fleet
    fleet.close()


def scheduled(fleet: Fleet, **how: Any) -> None:
    """A schedule of one short run."""
    repo = Repo(source=digest(SOURCE), source_kind="folder", label="sample")
    environment = Environment(image="python")
    task = Task(run="r", batch="b", target="t", repo=repo, environment=environment, commands=("echo a >> a.txt",))
    schedule = Schedule(cron=f"*/{EVERY_S} * * * * *", zone="America/New_York", **how)
    batch = Batch("b", b"", targets_json("b", [task], b""), (task,))
    stored.put(fleet.archive, NAME, schedule, batch, by="ann", at=utc_now())
    control.poke(fleet.hints, control.SCHEDULES)


def firings(fleet: Fleet) -> list[Firing]:
    since = datetime.now(UTC) - timedelta(hours=1)
    return [stored.firing(fleet.archive, NAME, due) for due in stored.dues(fleet.archive, NAME, since)]


def more(fleet: Fleet, number: int) -> list[Firing]:
    """What there is when so many more have fired."""
    goal = len(firings(fleet)) + number
    return wait_for(lambda: found if len(found := firings(fleet)) >= goal else None, BUSY_S)  # type: ignore[no-any-return]


def test_every_tick_has_one_job_whoever_leads(fleet: Fleet) -> None:
    """T59: Redis is gone for two seconds for the standby, then the leader stands still until its lease is over and
    the other has led, and then it goes on: one job a tick throughout, each with one run that ended once."""
    fleet.workers(1)
    leader = fleet.scheduler()
    wait_for(lambda: fleet.hints.held(["scheduler"]), BUSY_S)
    with TcpProxy(("127.0.0.1", fleet.port)) as between:
        fleet.address = f"redis://127.0.0.1:{between.port}/0"
        standby = fleet.scheduler()
        scheduled(fleet, missed="run_all", overlap="queue")
        more(fleet, 1)
        between.switch("pause")
        broken_until = datetime.now(UTC) + timedelta(seconds=BROKEN_S)
        wait_for(lambda: datetime.now(UTC) > broken_until)
        between.switch("forward")
        more(fleet, 1)
        leader.send_signal(signal.SIGSTOP)
        wait_for(lambda: standby.said('"fired"') >= 2, BUSY_S)
        leader.send_signal(signal.SIGCONT)
        more(fleet, 2)
        state = stored.read(fleet.archive, NAME)
        stored.tell(fleet.archive, state, "pause", by="ann", at=utc_now())
        control.poke(fleet.hints, control.SCHEDULES)
        wait_for(lambda: stored.begun(fleet.archive, NAME) == [], BUSY_S)
        found = firings(fleet)
        runs = sorted(fleet.archive.folders("runs/"))
        fleet.ended(*runs)
        assert leader.poll() is None
        assert standby.poll() is None
    times = [datetime.fromisoformat(one.due) for one in found]
    assert {later - one for one, later in pairwise(times)} == {timedelta(seconds=EVERY_S)}
    assert {one.what for one in found} == {"fired"}
    assert len(runs) == len({one.batch for one in found}) == len(found) >= 5
    assert [len(fleet.events(run, "claimed")) for run in runs] == [1] * len(runs)
    assert [len(fleet.events(run, "sealed")) for run in runs] == [1] * len(runs)


def test_a_run_that_starts_later_starts_once_at_its_time(fleet: Fleet) -> None:
    """F26: longer ahead than the visibility timeout; a doorbell before it does nothing, and all workers are killed
    and come again in between."""
    due = datetime.now(UTC) + timedelta(seconds=VISIBILITY_S + 12)
    fleet.scheduler()
    [early] = fleet.workers(1, "--visibility", str(VISIBILITY_S))
    run = fleet.submit(start_at=due.isoformat(timespec="milliseconds"))
    fleet.ring(run)
    wait_for(lambda: early.said('"not_due"'), BUSY_S)
    early.end()
    fleet.workers(1, "--visibility", str(VISIBILITY_S))
    fleet.ended(run)
    [claimed] = [record for record, _ in Journal(fleet.archive, run).read() if record.event.type == "claimed"]
    assert datetime.fromisoformat(claimed.at) >= due


def test_a_window_that_closes_parks_the_run_and_another_worker_goes_on(fleet: Fleet) -> None:
    """It parks at a committed step, its worker is killed while the window is closed, nothing is rung until it opens,
    and what comes out is what would have."""
    fleet.scheduler()
    [worker] = fleet.workers(1)
    now = datetime.now(UTC).replace(microsecond=0)
    closes, opens = now + timedelta(seconds=30), now + timedelta(seconds=45)
    window = Window(open=f"{opens:%H:%M:%S}", close=f"{closes:%H:%M:%S}", zone="UTC")
    run, other = fleet.submit(*STEPS, window=window), fleet.submit(*STEPS)
    parked = wait_for(lambda: fleet.events(run, "parked"), BUSY_S)[0]
    assert (parked.waiting, datetime.fromisoformat(parked.until)) == ("window", opens)
    worker.end()
    fleet.workers(1)
    fleet.ended(run, other)
    records = [record for record, _ in Journal(fleet.archive, run).read()]
    told = [(record.event.type, datetime.fromisoformat(record.at)) for record in records]
    worked = [at for kind, at in told if kind in ("claimed", "observed")]
    assert [at for at in worked if closes + timedelta(seconds=fleet.settings.drain_soft_s) < at < opens] == []
    assert len([kind for kind, _ in told if kind == "claimed"]) == 2
    assert len(fleet.events(run, "observed")) == len(STEPS)
    one, undisturbed = fleet.run(run).sealed, fleet.run(other).sealed
    assert one is not None
    assert undisturbed is not None
    assert (one.outcome, one.verdict) == (undisturbed.outcome, undisturbed.verdict)
    assert one.artifacts["patch.diff"] == undisturbed.artifacts["patch.diff"]
