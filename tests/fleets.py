"""Owns a deployment without containers: a Valkey behind a proxy, an archive in a folder, real Celery workers and
schedulers as processes, whose engines are in memory (fleet_process.py). Refuses whatever needs a real engine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from conftest import Server, free_port, valkey_server, wait_for
from proxies import TcpProxy

from scheduler.control import tell
from scheduler.runs import Found
from worker.contract.errors import ConflictFault, HintsFault
from worker.contract.events import Event, canonical, digest
from worker.contract.run import Run
from worker.contract.settings import Settings
from worker.contract.task import Environment, Repo, Task
from worker.station import utc_now
from worker.store import keys
from worker.store.archive import open_archive
from worker.store.doorbell import LANES, celery_app, ring
from worker.store.hints import Hints
from worker.store.journal import Journal

TESTS = Path(__file__).parent
BUSY_S = 180
"""Whatever takes longer hangs, also on a machine with much else to do."""
SOURCE = canonical({"a.txt": "start\n"})
SCALED = {
    "lease_ttl_s": 5.0,
    "heartbeat_s": 0.5,
    "own_deadline_s": 3.0,
    "hint_poll_s": 0.1,
    "inbox_poll_s": 1.0,
    "ring_again_s": 4.0,
    "relist_s": 2.0,
    "tick_s": 0.1,
    "drain_soft_s": 8.0,
    "infra_backoff_s": (1.0, 1.0, 1.0),
}
"""The protocol's times, a ninth of the product's; heartbeats are closer, because this machine may be busy."""


@dataclass(frozen=True)
class Act:
    """A call of an agent, or a request to its model, as it began. at: monotonic time of this machine, seconds."""

    at: float
    run: str
    what: str


class Process(subprocess.Popen[bytes]):
    """A worker or scheduler with its log."""

    def __init__(self, words: list[str], env: dict[str, str], log: Path) -> None:
        self.log = log
        path = f"{TESTS.parent}:{TESTS}"
        with log.open("ab") as out:
            super().__init__(
                [sys.executable, str(TESTS / "fleet_process.py"), *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=env | {"PYTHONPATH": path},
            )

    def said(self, what: str) -> int:
        """How many lines of its log hold this."""
        return sum(what in line for line in self.log.read_text(errors="replace").splitlines())

    def end(self) -> None:
        """kill -9, also of one that stands still."""
        self.kill()
        self.wait()


class Fleet:
    """Nothing runs at first but Valkey and the proxy. changes: to the settings SCALED.

    url, straight: of Redis, behind the proxy and past it. address: what processes that start now are told of it.
    """

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        self.port = free_port()
        (folder / "valkey").mkdir()
        self.valkey: Server = valkey_server(
            folder / "valkey", "--port", str(self.port), "--bind", "127.0.0.1"
        ).start()
        self.proxy = TcpProxy(("127.0.0.1", self.port))
        self.straight = f"redis://127.0.0.1:{self.port}/0"
        self.url = self.address = f"redis://127.0.0.1:{self.proxy.port}/0"
        self.settings = Settings(archive=f"file://{folder / 'archive'}", redis_url=self.url, **(SCALED | changes))
        self.archive = open_archive(self.settings.archive_url, self.settings)
        self.archive.create(keys.source(digest(SOURCE)), SOURCE)
        self.hints = Hints(self.straight)
        self.redis = redis.Redis.from_url(self.straight, decode_responses=True, socket_timeout=BUSY_S)
        self.processes: list[Process] = []
        self._bell = celery_app(self.straight)
        self._numbers = iter(range(1_000_000))

    def workers(self, count: int, *words: str, slots: int = 2) -> list[Process]:
        """Workers that consume."""
        begun = [self._start("worker", str(self.folder), "--slots", str(slots), *words) for _ in range(count)]
        for process in begun:
            wait_for(lambda process=process: process.poll() is not None or self.offers(process), BUSY_S)
            assert process.poll() is None, process.log.read_text()[-2000:]
        return begun

    def scheduler(self) -> Process:
        return self._start("scheduler")

    def alive(self) -> list[Process]:
        return [process for process in self.processes if process.poll() is None]

    def offers(self, worker: Process) -> bool:
        """Whether Redis knows of its slots."""
        return any(offer.name.endswith(f"-{worker.pid}") for offer in self.hints.workers())

    def new(self) -> str:
        """An id that no run has."""
        return f"run-{next(self._numbers)}"

    def submit(self, *commands: str, **fields: Any) -> str:
        """A run of these commands, in the archive; the scheduler finds it. fields: of the task."""
        name: str = fields.get("run") or self.new()
        task: dict[str, Any] = {
            "run": name,
            "batch": "batch",
            "target": name,
            "repo": Repo(source=digest(SOURCE), source_kind="folder", label="sample"),
            "environment": Environment(image="python"),
            "commands": commands or ("echo done >> a.txt",),
        }
        Journal(self.archive, name).submit(Task(**(task | fields)), by="ann", at=utc_now())
        with suppress(HintsFault, redis.RedisError):
            self.redis.set("dawn:control:submitted", name.removeprefix("run-"), px=60_000)
        return name

    def run(self, run: str) -> Run:
        return Journal(self.archive, run).load()

    def events(self, run: str, kind: str) -> list[Any]:
        records = [record for record, _ in Journal(self.archive, run).read()]
        found: list[Event] = [record.event for record in records if record.event.type == kind]
        return found

    def ended(self, *runs: str, timeout_s: float = BUSY_S) -> None:
        """Wait until all of them are sealed, and not as failed or cancelled."""
        for run in runs:
            sealed = wait_for(lambda run=run: self.run(run).sealed, timeout_s)
            assert sealed.outcome in ("changed", "no_change"), (run, sealed)

    def cancel(self, *runs: str) -> None:
        """As a person does, and wait until they are sealed, whichever way."""
        for run in runs:
            with suppress(ConflictFault):  # it has ended meanwhile
                tell(self.archive, self.hints, Found("run", run), "cancel", by="ann", at=utc_now())
        for run in runs:
            wait_for(lambda run=run: self.run(run).sealed, BUSY_S)

    def said(self, what: str) -> int:
        """How many log lines of all processes hold this."""
        return sum(process.said(what) for process in self.processes)

    def acts(self, run: str, what: str) -> list[Act]:
        """Those of a run that began, `call` or `model`, whatever became of them."""
        path = self.folder / "acts"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [Act(float(at), name, kind) for at, name, kind in map(str.split, lines)]
        return [act for act in found if (act.run, act.what) == (run, what)]

    def calls(self, run: str) -> list[Act]:
        return self.acts(run, "call")

    def calling(self, run: str, number: int = 1) -> None:
        """Wait until the number-th call of a run has begun."""
        wait_for(lambda: len(self.calls(run)) >= number, BUSY_S)

    def ring(self, run: str, times: int = 1) -> None:
        """Doorbells that no scheduler asked for."""
        for _ in range(times):
            ring(self._bell, run, "batch")

    def queued(self) -> int:
        """Doorbells that lie in Redis, those included that a worker has taken and not acknowledged."""
        found = [self.redis.llen(lane) for lane in LANES] + [self.redis.hlen("unacked")]
        return sum(int(number) for number in found)  # type: ignore[arg-type]

    def calm(self) -> None:
        """End every fault that is of no process: Redis is up, reachable and has memory."""
        self.proxy.switch("forward")
        with suppress(redis.RedisError):
            self.redis.config_set("maxmemory", "0")

    def close(self) -> None:
        """End everything."""
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.end()
        self.proxy.close()
        self.hints.close()
        self.redis.close()
        self.valkey.kill()

    def _start(self, *words: str) -> Process:
        env = {name: value for name, value in os.environ.items() if not name.startswith("DAWN_")}
        env |= {"DAWN_STATE_DIR": str(self.folder / "state"), "DAWN_REDIS_URL": self.address}
        env["DAWN_ARCHIVE"] = self.settings.archive_url
        env |= {
            f"DAWN_{name.upper()}": str(list(value) if isinstance(value, tuple) else value)
            for name in SCALED
            if (value := getattr(self.settings, name)) is not None
        }
        log = self.folder / f"{words[0]}-{len(self.processes)}.log"
        self.processes.append(Process(list(words), env, log))
        return self.processes[-1]
