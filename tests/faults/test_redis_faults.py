"""Redis, doorbells and the scheduler in trouble, over real parts: a Valkey behind a proxy, Celery worker processes,
scheduler processes, an archive in a folder. Only the workers' engines are in memory (fleets.py). Refuses to wait for
time, but for how long a fault lasts.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import redis
from conftest import wait_for
from deployments import Deployment
from fleets import BUSY_S, Fleet, Process
from runs_made import claimed, ended, replied

from scheduler import control
from scheduler.enqueue import freeze, submit
from scheduler.manifests.reading import parse
from scheduler.tick import Scheduler
from worker.contract.events import Yielded
from worker.contract.run import Run
from worker.contract.settings import Settings
from worker.contract.task import Limits, Repo
from worker.station import utc_now
from worker.store import keys
from worker.store.archive import Archive
from worker.store.doorbell import celery_app, ring
from worker.store.hints import Hints, WorkerOffer
from worker.store.journal import Journal

ROOT = Path(__file__).parents[2]
WORKERS, SLOTS = 4, 2
VISIBILITY_S = 3
KEPT = {"dawn:epoch", "_kombu.binding.dawnfleet", "_kombu.binding_permanent.dawnfleet"}
"""Keys without an end; none of them grows with runs."""
LASTING = "sleep 60"
RETURN_S = 30
"""T62: everything goes on within this time of Redis' return."""


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Four workers of two slots and a scheduler, all behind one proxy, for the tests that leave it whole."""
    fleet = Fleet(tmp_path_factory.mktemp("night"))
    try:
        fleet.scheduler()
        fleet.workers(WORKERS, "--visibility", str(VISIBILITY_S), slots=SLOTS)
        yield fleet
    finally:
        fleet.close()


@pytest.fixture
def fleet(night: Fleet) -> Iterator[Fleet]:
    """The same, in order before and after: all consume, and no run is open."""
    wait_for(lambda: len(night.hints.workers()) == WORKERS)
    yield night
    night.calm()
    night.cancel(*(key.removeprefix("open/") for key in night.archive.list("open/")))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Fleet]:
    """A fleet of the test's own, in which nothing but Valkey runs yet."""
    fleet = Fleet(tmp_path)
    yield fleet
    fleet.close()


def lasting(fleet: Fleet, count: int) -> list[str]:
    """Runs in a call that takes longer than any test."""
    runs = [fleet.submit(LASTING) for _ in range(count)]
    for run in runs:
        fleet.calling(run)
    return runs


def all_consume(fleet: Fleet) -> None:
    """Every slot of every worker takes a run."""
    fleet.cancel(*lasting(fleet, WORKERS * SLOTS))


def once(fleet: Fleet, run: str, calls: int) -> None:
    """Each call of the run is committed once and was begun once, by its only attempt."""
    assert len(fleet.events(run, "claimed")) == 1
    assert len(fleet.events(run, "observed")) == calls
    assert len(fleet.calls(run)) == calls


def test_a_long_attempt_is_claimed_once(fleet: Fleet) -> None:
    """F12, T56: an attempt outlives the visibility timeout, nothing is delivered again by that, and a second delivery
    sees a living lease and stops."""
    run = fleet.submit(f"sleep {VISIBILITY_S + 1}", "echo more >> a.txt", "sleep 2")
    fleet.calling(run, 2)
    with celery_app(fleet.straight, visibility_timeout_s=VISIBILITY_S).connection() as connection:
        connection.channel().qos.restore_visible()
    assert fleet.queued() == 0
    before = fleet.said('"held"')
    fleet.ring(run)
    wait_for(lambda: fleet.said('"held"') > before)
    assert fleet.run(run).sealed is None
    fleet.ended(run)
    once(fleet, run, calls=3)


def test_of_fifty_doorbells_one_claims(fleet: Fleet) -> None:
    """F13: the others return while the first is still in its first call, and without work."""
    [run] = lasting(fleet, 1)
    before = fleet.said('"held"')
    fleet.ring(run, 49)
    wait_for(lambda: fleet.said('"held"') == before + 49)
    assert (len(fleet.events(run, "claimed")), len(fleet.calls(run))) == (1, 1)
    assert fleet.events(run, "observed") == []


def test_a_doorbell_lost_between_pop_and_note_is_rung_again(small: Fleet) -> None:
    """F14: a worker that is killed after Redis gave the message away and before kombu noted it."""
    small.scheduler()
    [dying] = small.workers(1, "--stall")
    run = small.submit()
    wait_for((small.folder / "stalled").exists)
    assert small.queued() == 0, "the message is nowhere any more"
    dying.end()
    small.workers(1)
    small.ended(run)
    once(small, run, calls=1)


def test_a_killed_redis_comes_back_with_its_file(fleet: Fleet) -> None:
    """F16: of ten runs, eight are in a call and two are queued; the same processes go on, and no attempt is lost."""
    runs = [fleet.submit("sleep 3", "echo more >> a.txt") for _ in range(WORKERS * SLOTS + 2)]
    wait_for(lambda: sum(bool(fleet.calls(run)) for run in runs) == WORKERS * SLOTS)
    processes = fleet.alive()
    fleet.valkey.kill()
    fleet.valkey.start()
    fleet.ended(*runs)
    for run in runs:
        once(fleet, run, calls=2)
    all_consume(fleet)
    assert fleet.alive() == processes


def test_an_empty_redis_is_filled_again_from_the_archive(fleet: Fleet) -> None:
    """F18: Redis is restarted without its data. Nothing is lost; the attempts that live go on and are not fenced,
    because the scheduler takes nothing over before their leases can be back."""
    running = [fleet.submit("sleep 3", "echo more >> a.txt") for _ in range(WORKERS)]
    for run in running:
        fleet.calling(run)
    before = fleet.hints.epoch()
    fleet.valkey.kill()
    for path in (fleet.folder / "valkey").rglob("appendonly*"):
        if path.is_file():
            path.unlink()
    fleet.valkey.start()
    queued = [fleet.submit() for _ in range(WORKERS)]
    fleet.ended(*running, *queued)
    for run in running:
        once(fleet, run, calls=2)
    assert fleet.hints.epoch() not in (None, before)


def silenced(fleet: Fleet, silent_s: float) -> tuple[float, float]:
    """Swallow every byte to and from Redis for a while. Returns from when on nothing may begin, and when it was over;
    monotonic time, seconds."""
    began = monotonic()
    fleet.proxy.switch("blackhole")
    threading.Event().wait(silent_s)
    fleet.proxy.switch("forward")
    return began + fleet.settings.own_deadline_s + 0.5, monotonic()  # 0.5: from the look at the clock to the act


@pytest.mark.parametrize("longer_than", ["heartbeat_s", "lease_ttl_s"])
def test_a_silent_redis_is_waited_for(fleet: Fleet, longer_than: str) -> None:
    """F20: past the own deadline no call begins, and afterwards all goes on by itself: each call is committed once,
    whoever did it."""
    silent_s = getattr(fleet.settings, longer_than) + 1
    calls = round((silent_s + 2) / 0.4)
    run = fleet.submit(*(f"sleep 0.4; echo {number} >> a.txt" for number in range(calls)))
    fleet.calling(run, 2)
    late, over = silenced(fleet, silent_s)
    fleet.ended(run)
    assert [call for call in fleet.calls(run) if late < call.at < over] == []
    assert [call for call in fleet.calls(run) if call.at > over], "it was over before Redis was back"
    assert len(fleet.events(run, "observed")) == calls
    all_consume(fleet)


SLOW_CALL = """
- calls: [{tool: run_command, arguments: {command: "sleep 4; echo more >> a.txt"}}]
- text: Done.
"""


def test_no_model_is_asked_while_redis_is_silent(fleet: Fleet) -> None:
    """F20: a call that began in time ends past the own deadline; its result waits for Redis before the model reads
    it, which costs nothing."""
    run = fleet.submit(model="scripted:slow", script=SLOW_CALL, prompt="Do.", commands=())
    fleet.calling(run)
    late, over = silenced(fleet, fleet.settings.lease_ttl_s + 1)
    fleet.ended(run)
    assert [act for act in fleet.acts(run, "model") if late < act.at < over] == []
    assert len(fleet.events(run, "replied")) == len(fleet.acts(run, "model")) == 2


def test_connections_that_are_reset_again_and_again(fleet: Fleet) -> None:
    """F20, T62: five times in three seconds while idle, then once in a run's call; that run goes on as it was, and
    three more are worked on."""
    for _ in range(5):
        assert fleet.proxy.reset_open()
        threading.Event().wait(0.6)
    run = fleet.submit("sleep 2", "echo more >> a.txt")
    fleet.calling(run)
    fleet.proxy.reset_open()
    after = [fleet.submit() for _ in range(3)]
    fleet.ended(*after, timeout_s=RETURN_S)
    fleet.ended(run)
    once(fleet, run, calls=2)
    all_consume(fleet)


def test_failed_acknowledgements_cost_no_slot(small: Fleet) -> None:
    """F20: as many as the worker has slots fail, and it goes on taking runs in each of them."""
    small.scheduler()
    small.workers(1, "--deaf", "2", slots=2)
    small.ended(*(small.submit() for _ in range(4)))


def healthy(fleet: Fleet) -> bool:
    """What the health check of a worker's container says."""
    command = [sys.executable, str(ROOT / "deploy" / "health" / "offers.py")]
    env = os.environ | {"DAWN_REDIS_URL": fleet.straight, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=env, check=False).returncode == 0


def test_a_worker_that_does_not_consume_is_not_healthy(small: Fleet) -> None:
    """T62: its doorbells cannot be taken, although its own word still reaches Redis. It offers no slot, so that
    nothing is rung for it, and is healthy again when it consumes again."""
    small.address = small.straight
    small.scheduler()
    small.workers(1, "--broker", small.url)
    run = small.submit("sleep 2")
    small.calling(run)
    assert healthy(small)
    small.proxy.switch("reset")
    wait_for(lambda: not small.hints.workers())
    assert not healthy(small)
    waiting = [small.submit() for _ in range(3)]
    small.ended(run)
    assert small.hints.outstanding() == {}
    small.proxy.switch("forward")
    small.ended(*waiting, timeout_s=RETURN_S)
    assert healthy(small)
    once(small, run, calls=1)


def deployed(fleet: Fleet, folder: Path, **env: str) -> Deployment:
    """The command line of somebody who uses the fleet."""
    (folder / "code").mkdir()
    (folder / "code" / "a.txt").write_text("start\n")
    return Deployment(folder, fleet.settings.archive_url, DAWN_REDIS_URL=fleet.url, **env)


def test_a_full_redis_refuses_new_runs_and_keeps_running_ones(fleet: Fleet, tmp_path: Path) -> None:
    """F21: whoever submits is told, and nothing is written. A run in its call ends; with memory all goes on."""
    user = deployed(fleet, tmp_path)
    run = fleet.submit("sleep 4", "echo more >> a.txt")
    fleet.calling(run)
    fleet.redis.config_set("maxmemory", "1mb")
    before = list(fleet.archive.list("batches/"))
    said = user.dawn("run", "--repo", tmp_path / "code", "--command", "true", "--detach")
    assert (said.code, "Redis is out of memory" in said.err, "maxmemory" in said.err) == (75, True, True), said
    assert list(fleet.archive.list("batches/")) == before
    fleet.ended(run)
    once(fleet, run, calls=2)
    fleet.redis.config_set("maxmemory", "0")
    assert user.dawn("run", "--repo", tmp_path / "code", "--command", "true", "--detach").code == 0
    fleet.ended(fleet.submit())


@pytest.mark.parametrize("what", ["scheduler", "worker"])
def test_a_redis_that_evicts_is_refused_at_start(fleet: Fleet, tmp_path: Path, what: str) -> None:
    """F21: it may throw leases away; the setting to change is named."""
    user = deployed(fleet, tmp_path)
    fleet.redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        said = user.dawn(what)
    finally:
        fleet.redis.config_set("maxmemory-policy", "noeviction")
    assert (said.code, "allkeys-lru" in said.err, "noeviction" in said.err) == (75, True, True), said


SETTINGS = Settings()
Make = Callable[..., Run]


class Office:
    """Schedulers on a real Redis and archive, with their bells and one clock."""

    def __init__(self, archive: Archive, url: str) -> None:
        self.archive, self.hints, self.url = archive, Hints(url), url
        self.now = datetime(2026, 11, 30, 3, 0, tzinfo=UTC)
        self.rings: list[str] = []

    def scheduler(self) -> Scheduler:
        hints = Hints(self.url)
        return Scheduler(self.archive, hints, lambda run, lane: self.rings.append(run), SETTINGS, lambda: self.now)

    def offer(self, slots: int, free: int) -> None:
        self.hints.offer(WorkerOffer("w", ("interactive", "batch"), slots, free), ttl_s=600)


@pytest.fixture
def office(archive: Archive, redis_url: str) -> Office:
    return Office(archive, redis_url)


def test_two_schedulers_in_the_same_moment_ring_once(office: Office, make_run: Make) -> None:
    """F24: in each of many rounds both tick at once, and each run is rung by one of them."""
    office.offer(100, 100)
    gate, runs = threading.Barrier(2), []

    def tick(scheduler: Scheduler) -> None:
        gate.wait()
        scheduler.tick()

    both = [office.scheduler(), office.scheduler()]
    with ThreadPoolExecutor(2) as pool:
        for number in range(20):
            runs.append(f"r{number:02}")
            make_run(runs[-1])
            control.announce(office.hints)
            list(pool.map(tick, both))
    assert sorted(office.rings) == runs


def test_a_scheduler_that_follows_waits_for_living_attempts_too(office: Office, make_run: Make) -> None:
    """F18: the leader that found Redis wiped ends a moment later; whoever leads next takes nothing over, and seals
    nothing, before one lease time is over."""
    first, second = office.scheduler(), office.scheduler()
    make_run("claimed", claimed(), replied())
    make_run("lost", claimed(), claimed(), claimed())
    first.tick()
    office.offer(4, 4)
    redis.Redis.from_url(office.url).delete("dawn:lease:scheduler")
    office.now += timedelta(seconds=SETTINGS.lease_ttl_s - 1)
    second.tick()
    assert office.rings == []
    assert Journal(office.archive, "lost").load().sealed is None
    office.now += timedelta(seconds=1)
    second.tick()
    assert office.rings == ["claimed"]
    assert Journal(office.archive, "lost").load().sealed is not None


def test_a_redis_wiped_while_it_is_read_proves_nothing(office: Office, make_run: Make) -> None:
    """F18: the epoch was seen, and then leases were asked for that were gone by then."""
    make_run("lost", claimed(), claimed(), claimed())
    scheduler = office.scheduler()
    office.now -= timedelta(days=1)
    scheduler.tick()
    office.now += timedelta(days=1)
    held = scheduler._hints.held

    def wiped_first(names: Any) -> set[str]:
        redis.Redis.from_url(office.url).flushall()
        return held(names)

    scheduler._hints.held = wiped_first  # type: ignore[method-assign]
    scheduler.tick()
    assert Journal(office.archive, "lost").load().sealed is None


def test_unanswered_doorbells_are_never_more_than_slots_and_two(office: Office, make_run: Make) -> None:
    """A worker that offers and takes nothing: what lies in Redis is bounded by what it said it can take."""
    for number in range(20):
        make_run(f"r{number:02}")
    office.offer(3, 3)
    scheduler = office.scheduler()
    for _ in range(8):  # 42 s, in which no doorbell is rung again
        scheduler.tick()
        office.now += timedelta(seconds=6)
    assert office.rings == [f"r{number:02}" for number in range(3 + 2)]
    assert sorted(office.hints.outstanding()) == office.rings


def test_an_urgent_run_takes_the_next_slot(office: Office, make_run: Make) -> None:
    """F28: behind 50 that were there before; the order is the scheduler's, and Celery knows no priority."""
    for number in range(50):
        make_run(f"r{number:02}")
    office.offer(1, 0)
    scheduler = office.scheduler()
    scheduler.tick()
    make_run("urgent", lane="interactive", at="2026-11-30T02:59:00.000+00:00")
    control.announce(office.hints)
    office.offer(1, 1)
    scheduler.tick()
    assert office.rings == ["urgent"]


def test_people_do_not_starve_a_batch(office: Office, make_run: Make) -> None:
    """F28: of one slot, which people want all the time, a batch's run has the turn after twenty of theirs."""
    make_run("normal")
    people = [f"p{number:02}" for number in range(25)]
    for run in people:
        make_run(run, lane="interactive")
    scheduler = office.scheduler()
    for _ in range(21):
        office.offer(1, 1)
        scheduler.tick()
        rung = office.rings[-1]
        journal = Journal(office.archive, rung)
        before_it = journal.append(journal.load(), [claimed()], attempt=None, at=utc_now())
        journal.append(before_it, ended(), attempt=before_it.attempt, at=utc_now())
        office.archive.delete([keys.open_marker(rung)])
        office.hints.answered(rung)
        office.now += timedelta(seconds=61)
    assert office.rings == [*people[:20], "normal"]


def test_a_run_is_started_when_it_is_due_and_not_before(fleet: Fleet) -> None:
    """F26: a run that was given back until a time is claimed once, at that time; doorbells before it do nothing, nor
    does the death of a worker that took one."""
    run, due = fleet.new(), datetime.now(UTC) + timedelta(seconds=VISIBILITY_S + 1)
    fleet.hints.claim(f"run:{run}", "the attempt before", ttl_s=60)
    fleet.submit(run=run)
    journal, at = Journal(fleet.archive, run), utc_now()
    before_it = journal.append(journal.load(), [claimed()], attempt=None, at=at)
    given_back = Yielded(why="infra", not_before=due.isoformat(timespec="milliseconds"))
    journal.append(before_it, [given_back], attempt=before_it.attempt, at=at)
    fleet.hints.release(f"run:{run}", "the attempt before")
    before = {process: process.said('"not_due"') for process in fleet.processes}
    fleet.ring(run)
    takers = wait_for(lambda: [process for process, said in before.items() if process.said('"not_due"') > said])
    takers[0].end()
    fleet.workers(1, "--visibility", str(VISIBILITY_S), slots=SLOTS)
    fleet.ended(run)
    [_, started] = [record for record, _ in journal.read() if record.event.type == "claimed"]
    assert due <= datetime.fromisoformat(started.at) < due + timedelta(seconds=RETURN_S)


@pytest.mark.parametrize("resets", [0, 1])
def test_nothing_is_reserved_behind_a_busy_worker(fleet: Fleet, resets: int) -> None:
    """F27: with one slot free in all, the next run starts at once; with none, a doorbell stays in Redis until one is,
    also after the connections were lost in between."""
    busy = lasting(fleet, WORKERS * SLOTS - 1)
    busy += lasting(fleet, 1)
    for _ in range(resets):
        fleet.proxy.reset_open()
        wait_for(lambda: len(fleet.hints.workers()) == WORKERS)
    late = fleet.submit()
    fleet.ring(late)
    freed = fleet.events(busy[0], "claimed")[0].worker
    assert fleet.redis.llen("batch") == 1
    fleet.cancel(busy[0])
    fleet.ended(late)
    assert fleet.events(late, "claimed")[0].worker == freed
    fleet.cancel(*busy[1:])


HOSTILE = ("pickle", "unknown task", "large", "unknown run", "bad run", "no text")


def hostile(message: dict[str, Any], kind: str, breach: Path, large_bytes: int) -> None:
    """Make a sound doorbell a bad one."""
    said: Any = None
    match kind:
        case "pickle":
            message["content-type"] = "application/x-python-serialize"
            message["body"] = base64.b64encode(f"cposix\nsystem\n(S'touch {breach}'\ntR.".encode()).decode()
            return
        case "unknown task":
            message["headers"]["task"] = "os.system"
            return
        case "large":
            said = "x" * large_bytes
        case "unknown run":
            said = "no-such-run"
        case "bad run":
            said = "../../etc/passwd"
        case "no text":
            said = {"run": ["nested"]}
    message["body"] = base64.b64encode(json.dumps([[], {"run_id": said}, {}]).encode()).decode()


LOGGED = {
    "pickle": "Refusing to deserialize",
    "unknown task": "os.system",
    "large": "doorbell_refused",
    "unknown run": "unknown_run",
    "bad run": "doorbell_refused",
    "no text": "doorbell_refused",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_message_is_refused_by_a_whole_worker(fleet: Fleet, tmp_path: Path, kind: str) -> None:
    """H54: logged in lines that stay short, nothing is executed, nothing of it stays in Redis, and every slot of
    every worker still takes runs."""
    processes, before = fleet.alive(), fleet.said(LOGGED[kind])
    runs_before = list(fleet.archive.folders("runs/"))
    send(fleet, kind, tmp_path / "breach", large_bytes=4 * 2**20)
    wait_for(lambda: fleet.said(LOGGED[kind]) > before)
    wait_for(lambda: fleet.queued() == 0)
    assert not (tmp_path / "breach").exists()
    assert list(fleet.archive.folders("runs/")) == runs_before
    all_consume(fleet)
    assert fleet.alive() == processes
    assert longest_line(fleet) < LINE_BYTES


@pytest.mark.full
def test_a_hundred_megabytes_are_refused_by_a_whole_worker(small: Fleet, tmp_path: Path) -> None:
    """H54: as above, and the worker takes a run afterwards."""
    small.address = small.straight
    small.redis.config_set("appendonly", "no")  # the disk is not what is tried here
    small.scheduler()
    [worker] = small.workers(1, "--patient")
    send(small, "large", tmp_path / "breach", large_bytes=100 * 2**20)
    wait_for(lambda: worker.said(LOGGED["large"]), BUSY_S)
    wait_for(lambda: small.queued() == 0, BUSY_S)
    small.ended(small.submit())
    assert worker.poll() is None
    assert longest_line(small) < LINE_BYTES


LINE_BYTES = 16_000


def longest_line(fleet: Fleet) -> int:
    """Of all logs, bytes."""
    return max((len(line) for process in fleet.processes for line in process.log.open("rb")), default=0)


def send(fleet: Fleet, kind: str, breach: Path, large_bytes: int) -> None:
    """Put such a message into the queue."""
    url = fleet.straight.replace("/0", "/1")
    with redis.Redis.from_url(url) as aside:
        ring(celery_app(url), "sound", "batch")
        message = json.loads(aside.rpop("batch"))  # type: ignore[arg-type]
        aside.flushdb()
    hostile(message, kind, breach, large_bytes)
    fleet.redis.lpush("batch", json.dumps(message))


def memory_bytes(process: Process) -> int:
    """Resident, of a living process."""
    [line] = [line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "VmRSS" in line]
    return int(line.split()[1]) * 1024


def data_bytes(fleet: Fleet) -> int:
    """What Redis holds, without its own buffers."""
    return sum(fleet.redis.memory_usage(key) or 0 for key in fleet.redis.scan_iter("*"))  # type: ignore[misc]


def test_twenty_clients_with_one_key_make_one_run(fleet: Fleet) -> None:
    """F51: at once, and each is told of the same batch."""
    text = "version: 1\nname: retried\ntargets: [{repo: https://git.example.org/a}]\ntask: {commands: ['true']}\n"
    loaded = parse(text, "retried", Path("/"), Limits())
    repo = Repo(url="https://git.example.org/a", label="a")
    batch = freeze(loaded, [repo], key="one")
    gate = threading.Barrier(20)

    def client(_: int) -> int:
        gate.wait()
        made = submit(batch, fleet.archive, by="ann", at="2026-11-30T02:00:00.000+00:00")
        control.announce(fleet.hints)
        return made

    with ThreadPoolExecutor(20) as pool:
        made = list(pool.map(client, range(20)))
    [run] = [name for name in fleet.archive.folders("runs/") if name == batch.tasks[0].run]
    sealed = wait_for(lambda: fleet.run(run).sealed)
    assert sum(made) == 1
    assert sealed is not None
    assert len(fleet.events(run, "submitted")) == 1


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=[pytest.mark.full, pytest.mark.timeout(1800)])])
def test_many_runs_leave_nothing_in_redis_and_little_in_memory(fleet: Fleet, count: int) -> None:
    """F51, F52: none is lost, unanswered doorbells never exceed slots + 2, and what Redis holds does not depend on
    how many runs have ended."""
    fleet.ended(*(fleet.submit() for _ in range(WORKERS * SLOTS)))
    wait_for(lambda: fleet.queued() == 0)
    data, sizes = data_bytes(fleet), {process: memory_bytes(process) for process in fleet.alive()}
    runs = [fleet.submit() for _ in range(count)]
    unanswered = queued = 0

    def all_ended() -> bool:
        nonlocal unanswered, queued
        unanswered, queued = max(unanswered, len(fleet.hints.outstanding())), max(queued, fleet.queued())
        return not list(fleet.archive.list("open/"))

    wait_for(all_ended, timeout_s=60 + count)
    fleet.ended(*runs)
    for run in runs:
        once(fleet, run, calls=1)
    assert 0 < unanswered <= WORKERS * SLOTS + 2
    assert queued <= 2 * (WORKERS * SLOTS + 2)  # one that lies for the scaled time on a busy machine is rung again
    assert data_bytes(fleet) <= data + 4096
    assert {key for key in fleet.redis.scan_iter("*") if fleet.redis.ttl(key) == -1} == KEPT
    for process, size in sizes.items():
        assert memory_bytes(process) - size < 48 * 2**20, process.args


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_ten_thousand_doorbells_leave_nothing_in_redis(fleet: Fleet) -> None:
    """F52: each with a bell, a lease and an answer of its own, as of a run that is over."""
    before = set(fleet.redis.scan_iter("*"))
    for number in range(10_000):
        fleet.hints.rung(f"gone-{number}", "batch", 60)
        fleet.ring(f"gone-{number}")
    wait_for(lambda: fleet.queued() == 0, timeout_s=1500)
    wait_for(lambda: not fleet.hints.outstanding())
    wait_for(lambda: set(fleet.redis.scan_iter("*")) <= before | KEPT)  # the last one gives its lease back
    with suppress(redis.RedisError):
        assert fleet.redis.exists("unacked", "unacked_index") == 0
