"""Owns what a doorbell does between a real Valkey and a real Celery worker process. Refuses to look at runs."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from proxies import TcpProxy

from worker.contract.errors import HintsFault
from worker.store.doorbell import DELIVER, LANES, TASK, celery_app, ring

if TYPE_CHECKING:
    from tests.conftest import Server

WaitUntil = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[1]

# A worker whose task leaves `<run>.<n>` when it starts and waits for the file `go`.
WORKER = """
import pathlib, sys, threading
from worker.store.doorbell import TASK, celery_app, worker_arguments
url, folder, lanes, slots = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3].split(","), int(sys.argv[4])
app = celery_app(url)
lock = threading.Lock()

@app.task(name=TASK)
def run(run_id):
    with lock:
        number = len(list(folder.glob(f"{run_id}.*")))
        (folder / f"{run_id}.{number}").touch()
    while not (folder / "go").exists():
        threading.Event().wait(0.02)

app.worker_main(worker_arguments("test@localhost", lanes, slots))
"""


class Worker:
    """A Celery worker process and the runs it started."""

    def __init__(self, url: str, folder: Path, lanes: str, slots: int) -> None:
        self.folder = folder
        with open(folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", WORKER, url, str(folder), lanes, str(slots)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )

    def started(self) -> list[str]:
        """`<run>.<n>` of every start, n from 0."""
        return sorted(path.name for path in self.folder.iterdir() if path.name not in ("go", "log"))

    def go(self) -> None:
        """Let waiting runs end, and later ones at once."""
        (self.folder / "go").touch()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Starts a worker; it is killed at the end."""
    made: list[Worker] = []

    def start(url: str, lanes: str = "interactive,batch", slots: int = 2) -> Worker:
        folder = tmp_path / f"worker{len(made)}"
        folder.mkdir()
        made.append(Worker(url, folder, lanes, slots))
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
        one.process.wait()


def queued(url: str, lane: str) -> int:
    with redis.Redis.from_url(url) as client:
        return client.llen(lane)  # type: ignore[return-value]


def test_a_message_says_no_more_than_the_run(redis_url: str) -> None:
    """The body is JSON with the run's id, in the queue of its lane."""
    ring(celery_app(redis_url), "r1", "interactive")
    with redis.Redis.from_url(redis_url) as client:
        message = json.loads(client.lindex("interactive", 0))  # type: ignore[arg-type]
    assert message["content-type"] == "application/json"
    assert json.loads(base64.b64decode(message["body"]))[:2] == [[], {"run_id": "r1"}]


def test_a_delivery_is_a_task_of_its_own(redis_url: str) -> None:
    """In the lane `deliver`, and in no other."""
    app, named = celery_app(redis_url), dict[str, str]()
    for lane in LANES:
        ring(app, "r1", lane)
        with redis.Redis.from_url(redis_url) as client:
            named[lane] = json.loads(client.lindex(lane, 0))["headers"]["task"]  # type: ignore[arg-type]
    assert named == {lane: DELIVER if lane == "deliver" else TASK for lane in LANES}


def test_nothing_is_reserved_behind_a_busy_worker(redis_url: str, worker: Any, wait_until: WaitUntil) -> None:
    """A worker of two slots takes two doorbells; a third stays in Redis for an idle worker (F27)."""
    app = celery_app(redis_url)
    busy = worker(redis_url)
    for n in range(3):
        ring(app, f"r{n}", "batch")
    wait_until(lambda: len(busy.started()) == 2)
    assert queued(redis_url, "batch") == 1
    idle = worker(redis_url)
    wait_until(lambda: idle.started() == ["r2.0"])
    busy.go()
    idle.go()


def test_a_worker_takes_only_its_lanes(redis_url: str, worker: Any, wait_until: WaitUntil) -> None:
    """A doorbell of the solo lane waits for a worker that consumes solo."""
    app = celery_app(redis_url)
    ring(app, "poison", "solo")
    ring(app, "plain", "batch")
    main = worker(redis_url)
    main.go()
    wait_until(lambda: main.started() == ["plain.0"])
    solo = worker(redis_url, lanes="solo", slots=1)
    solo.go()
    wait_until(lambda: solo.started() == ["poison.0"])
    assert main.started() == ["plain.0"]


def test_a_long_run_is_not_started_again(redis_url: str, worker: Any, wait_until: WaitUntil) -> None:
    """A doorbell is acknowledged at start: Redis holds nothing that a visibility timeout could bring back (F12)."""
    ring(celery_app(redis_url), "long", "batch")
    one = worker(redis_url)
    wait_until(lambda: one.started() == ["long.0"])
    with redis.Redis.from_url(redis_url) as client:
        wait_until(lambda: client.hlen("unacked") == 0)


def test_a_restarted_redis_is_consumed_again(crashing_valkey: Server, worker: Any, wait_until: WaitUntil) -> None:
    """A worker consumes again by itself after Redis crashed in mid-run, and the run is not started twice (F16)."""
    url = f"unix://{crashing_valkey.folder / 'valkey.sock'}"
    app = celery_app(url)
    one = worker(url)
    ring(app, "before", "batch")
    wait_until(lambda: one.started() == ["before.0"])
    crashing_valkey.kill()
    with pytest.raises(HintsFault, match="doorbell"):
        ring(app, "lost", "batch")
    crashing_valkey.start()
    ring(app, "after", "batch")
    wait_until(lambda: "after.0" in one.started(), 15)
    one.go()
    assert one.started() == ["after.0", "before.0"]


@pytest.mark.parametrize("kind", ["pickle", "unknown task", "not json", "no run"])
def test_hostile_messages_do_not_stop_the_consumer(
    redis_url: str, worker: Any, wait_until: WaitUntil, kind: str, tmp_path: Path
) -> None:
    """A pickled, unknown, broken or empty message executes nothing, and the next doorbell is taken (H54)."""
    app = celery_app(redis_url)
    ring(app, "sound", "batch")
    with redis.Redis.from_url(redis_url) as client:
        message = json.loads(client.lindex("batch", 0))  # type: ignore[arg-type]
        match kind:
            case "pickle":
                message["content-type"] = "application/x-python-serialize"
                message["body"] = base64.b64encode(
                    f"cposix\nsystem\n(S'touch {tmp_path}/breach'\ntR.".encode()
                ).decode()
            case "unknown task":
                message["headers"]["task"] = "os.system"
            case "not json":
                message["body"] = base64.b64encode(b"{").decode()
            case _:
                message["body"] = base64.b64encode(b"[[], {}, {}]").decode()
        client.rpush("batch", json.dumps(message))  # at the end that is consumed first
    one = worker(redis_url)
    one.go()
    wait_until(lambda: one.started() == ["sound.0"])
    assert not (tmp_path / "breach").exists()
    assert queued(redis_url, "batch") == 0


def test_redis_keeps_nothing_of_finished_runs(redis_url: str, worker: Any, wait_until: WaitUntil) -> None:
    """After ten doorbells and an orderly end of the worker, only the binding sets are left (F52)."""
    app = celery_app(redis_url)
    one = worker(redis_url)
    one.go()
    for n in range(10):
        ring(app, f"r{n}", "batch")
    wait_until(lambda: len(one.started()) == 10)
    one.process.send_signal(signal.SIGTERM)
    one.process.wait(30)
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        assert set(client.keys("*")) == {"_kombu.binding.dawnfleet", "_kombu.binding_permanent.dawnfleet"}


def test_no_redis_is_a_fault(tmp_path: Path) -> None:
    """Ringing without a Redis returns soon, with a hint."""
    with pytest.raises(HintsFault) as caught:
        ring(celery_app(f"unix://{tmp_path}/none.sock"), "r", "batch")
    assert caught.value.hint


def test_celery_knows_every_setting(redis_url: str) -> None:
    """Every name we configure exists in this Celery, so that an upgrade cannot silently drop one."""
    from celery.app.defaults import DEFAULTS

    app = celery_app(redis_url)
    assert set(app.conf.changes) - {"deprecated_settings"} <= set(DEFAULTS)
    assert set(app.amqp.queues) == set(LANES)
    assert TASK not in app.tasks


@pytest.mark.full
def test_a_dead_connection_is_noticed_and_replaced(
    crashing_valkey: Server, worker: Any, wait_until: WaitUntil
) -> None:
    """A worker whose connection died without a word consumes again by itself (F20, T62)."""
    straight = f"unix://{crashing_valkey.folder / 'valkey.sock'}"
    app = celery_app(straight)
    with (
        TcpProxy(str(crashing_valkey.folder / "valkey.sock")) as wire,
        redis.Redis.from_url(straight) as client,
    ):
        one = worker(f"redis://127.0.0.1:{wire.port}/0")
        one.go()
        ring(app, "before", "batch")
        wait_until(lambda: one.started() == ["before.0"])
        wire.switch("blackhole")
        wait_until(lambda: client.info("clients")["blocked_clients"] == 0)  # what it waits for was said, and lost
        wire.switch("forward")
        ring(app, "after", "batch")
        wait_until(lambda: "after.0" in one.started())
