"""Owns processes of ours that kill themselves at a named point: real workers, a real scheduler, real `dawn` commands,
whose doors to the outside are wrapped before they start. Refuses to change what passes through a door.

`python crashing.py FOLDER fleet WORKERS` keeps a scheduler and workers of one slot running until SIGTERM and starts
again what dies, as systemd would. `python crashing.py FOLDER dawn COMMANDS` does `dawn` commands one after the other
(JSON: [[name, words...], ...]) and prints their exit codes. All are forks of a process that has loaded everything,
because loading takes longer than a takeover. The settings are the environment's.

A *point* is `<claim> <door> <name> <number> <side>`: under which claim of its run (0: none yet; or `scheduler` or
`dawn`, which claim nothing), which door, what passed, for the how manieth time, and before or after it did.
FOLDER/plan/<run or label> has a line for each point at which whoever works on that run dies, in order, once each; the
label of a run is what stands before the digits of its id. FOLDER/passed/<run> lists what passed; FOLDER/deaths/<run>
has a line for each death. A run in FOLDER/lost takes its containers along, as a lost host does.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
SCHEDULER = "scheduler"
SCHEDULER_TTL_S = "2"
"""Of the scheduler's own lease: until the dead one's ends nothing is rung."""
STOP_S = 20.0
NO_RUN = "nothing"

Name = Callable[..., "tuple[str, str] | None"]
"""(run, what passes) for the arguments of a call, None where nobody cares."""


class Doors:
    """What passes in this process, and at what of it the process dies. who: stands for the claim outside a worker."""

    def __init__(self, folder: Path, who: str = "") -> None:
        self._folder, self._who = folder, who
        self._passed: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self._boxes: dict[str, str] = {}
        self._inside = threading.local()
        self.run = NO_RUN
        self.claim = 0

    def begin(self, run: str) -> None:
        """This worker begins an attempt."""
        with self._lock:
            self.run, self.claim = run, 0
            self._passed.clear()

    def wrap(self, owner: Any, method: str, door: str, name: Name) -> None:
        """Let every call of a function pass through the door."""

        def through(act: Any, *args: Any, **kwargs: Any) -> Any:
            found = name(*args, **kwargs)
            if found is None:
                return act(*args, **kwargs)
            with self.passing(door, *found):
                return act(*args, **kwargs)

        around(owner, method, through)

    @contextmanager
    def passing(self, door: str, run: str, name: str) -> Iterator[None]:
        """Something goes through a door."""
        with self._lock:
            what = f"{self._who or self.claim} {door} {name}"
            point = f"{what} {self._number(run, what)}"
        self._at(run, f"{point} before")
        self._inside.at = (run, point)
        yield
        self._inside.at = None
        self._at(run, f"{point} after")

    def _number(self, run: str, what: str) -> int:
        """How often it passed, this time included. Of a scheduler by all of them: one that dies at another run's
        point leaves this run to the next."""
        if self._who == SCHEDULER:
            return 1 + sum(
                bool(re.fullmatch(rf"{re.escape(what)} \d+ before", line))
                for line in read(self._folder / "passed" / run)
            )
        self._passed[run, what] += 1
        return self._passed[run, what]

    def halfway(self, side: str) -> None:
        """What this thread passes, if anything, is in the middle of it."""
        if at := getattr(self._inside, "at", None):
            self._at(at[0], f"{at[1]} {side}")

    def _at(self, run: str, point: str) -> None:
        _line(self._folder / "passed" / run, point)
        points = read(self._folder / "plan" / run) or read(self._folder / "plan" / label(run))
        deaths = self._folder / "deaths" / run
        with self._lock:
            died = len(read(deaths))
            if points[died : died + 1] != [point]:
                return
            _line(deaths, f"{time.time():.3f} {point}")
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()

    # What stands in a point for each thing that passes.

    def of_key(self, archive: Any, key: str, *_: Any) -> tuple[str, str] | None:
        """An object, by what kind it is: a digest is different in each run."""
        kind, owner, *rest = key.split("/")
        if kind == "probe":
            return None
        if kind == "work":  # the mark of a run under what it does
            return rest[0], kind
        run = owner if kind in ("runs", "open") else self.run
        name = "/".join(rest or [kind])
        return run, re.sub(r"/0*(\d+)\.jsonl?$", r"/\1", re.sub(r"/[0-9a-f]{64}(\.json)?$", "", name))

    def of_body(self, engine: Any, name: str, body: Any) -> tuple[str, str]:
        """A container that is to be made."""
        return self.run, _box(body)

    def of_box(self, engine: Any, container: str, *_: Any, **__: Any) -> tuple[str, str] | None:
        """A container that is there: ours, or one that somebody left. A janitor passes no door: whose it is, it finds
        out later."""
        if threading.current_thread().name == "janitor":
            return None
        return self.run, self._boxes.get(container, "earlier")

    def made(self, create: Any, engine: Any, name: str, body: Any) -> Any:
        """Around Engine.create: remember what the container is."""
        container = create(engine, name, body)
        self._boxes[container] = _box(body)
        return container

    def of_volume(self, engine: Any, volume: str, *_: Any) -> tuple[str, str] | None:
        if threading.current_thread().name == "janitor":
            return None
        own = re.match(rf"dawnfleet-{re.escape(f'{self.run}-{self.claim}')}-([a-z]+)-", volume)
        return self.run, own[1] if own else "earlier"

    def mine(self, word: str) -> Name:
        """What is done once or more for the run that this worker works on."""
        return lambda *_, **__: (self.run, word)

    def of_lease(self, hints: Any, name: str, *_: Any) -> tuple[str, str] | None:
        return (name.removeprefix("run:"), "lease") if name.startswith("run:") else None

    def of_run(self, hints: Any, run: str, *_: Any) -> tuple[str, str]:
        return run, "bell"


def around(owner: Any, method: str, through: Callable[..., Any]) -> None:
    """Put `through` in the place of a function; it is given that first, and then the arguments."""
    act = getattr(owner, method)

    @functools.wraps(act)
    def instead(*args: Any, **kwargs: Any) -> Any:
        return through(act, *args, **kwargs)

    setattr(owner, method, instead)


def label(run: str) -> str:
    """The name under which a run is planned."""
    return run.rpartition("-")[0]


def _box(body: Any) -> str:
    """What a container is: whose, and what it may."""
    host = body["HostConfig"]
    kind = "reads" if host["Mounts"][0]["ReadOnly"] else "writes"
    if body["Entrypoint"][0] == "python3":
        kind = "keeper"
    outside = "-outside" if host["NetworkMode"] == "bridge" else ""
    return f"{body['Labels']['dawnfleet.role']}-{kind}{outside}"


def read(path: Path) -> list[str]:
    """The lines of a file, none where it is not there."""
    return path.read_text().splitlines() if path.exists() else []


def _line(path: Path, text: str) -> None:
    """Append a line, which is there when this returns, whatever becomes of the process."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, f"{text}\n".encode())
    finally:
        os.close(file)


def wrap_archive(doors: Doors) -> None:
    """Every write to an archive, in the local one also between staging a file and linking it."""
    from worker.store.local import LocalArchive
    from worker.store.s3 import S3Archive

    def deleted(act: Any, archive: Any, names: Any) -> None:
        for key in names:
            if (found := doors.of_key(archive, key)) is None:
                act(archive, [key])
                continue
            with doors.passing("delete", *found):
                act(archive, [key])

    def linked(act: Any, *args: Any) -> None:
        doors.halfway("staged")
        act(*args)

    for archive in (LocalArchive, S3Archive):
        doors.wrap(archive, "create", "create", doors.of_key)
        around(archive, "delete", deleted)
    around(LocalArchive, "_into_folder", linked)


def wrap_worker(doors: Doors) -> None:
    """Every act of a worker on engine, keeper, model, Redis and queue."""
    from kombu.transport.redis import QoS

    from worker.ledger import Ledger
    from worker.models.scripted import ScriptedModel
    from worker.sandbox import calls
    from worker.sandbox.docker import Engine
    from worker.sandbox.keeper import Keeper
    from worker.sandbox.output import Spool
    from worker.sandbox.workspace import DockerWorkspace
    from worker.store.hints import Hints

    tags: dict[str, str] = {}

    def written(act: Any, spool: Any, data: bytes) -> None:
        if data:
            doors.halfway("running")
        act(spool, data)

    def claimed(act: Any, ledger: Any, *asked: Any) -> Any:
        before = act(ledger, *asked)
        doors.claim = ledger.run.attempt
        return before

    def noted(act: Any, queue: Any, message: Any, tag: str) -> None:
        tags[tag] = re.findall(r"'run_id': '([^']+)'", message.headers.get("kwargsrepr", ""))[0]
        doors.begin(tags[tag])
        with doors.passing("queue", tags[tag], "note"):
            act(queue, message, tag)

    wrap_archive(doors)
    # What a process does at its first use of an image only, would give later points other numbers in other processes.
    around(DockerWorkspace, "prove", lambda *_: None)
    around(Engine, "create", doors.made)
    doors.wrap(Engine, "create", "container create", doors.of_body)
    for act in ("attach", "start", "kill"):
        doors.wrap(Engine, act, f"container {act}", doors.of_box)
    doors.wrap(Engine, "remove_container", "container remove", doors.of_box)
    doors.wrap(Engine, "create_volume", "volume create", doors.of_volume)
    doors.wrap(Engine, "remove_volume", "volume remove", doors.of_volume)
    doors.wrap(Engine, "commit", "image commit", doors.mine("setup"))
    for act in ("hello", "snapshot", "restore", "put", "own"):
        doors.wrap(Keeper, act, "keeper", doors.mine(act))
    doors.wrap(ScriptedModel, "reply", "model", doors.mine("reply"))
    doors.wrap(calls, "converse", "call", doors.mine("run"))
    doors.wrap(Hints, "claim", "redis claim", doors.of_lease)
    doors.wrap(Hints, "release", "redis release", doors.of_lease)
    doors.wrap(Hints, "answered", "redis answered", doors.of_run)
    doors.wrap(QoS, "ack", "queue", lambda queue, tag: (tags[tag], "ack"))
    around(QoS, "append", noted)
    around(Spool, "write", written)
    around(Ledger, "claim", claimed)


def wrap_scheduler(doors: Doors) -> None:
    """Every write of a scheduler to the archive and to Redis."""
    from scheduler import service
    from worker.store.hints import Hints

    wrap_archive(doors)
    doors.wrap(Hints, "rung", "redis rung", doors.of_run)
    doors.wrap(service, "ring", "queue ring", lambda app, run, lane: (run, "bell"))


def be_worker(folder: Path, *words: str) -> None:
    """A worker process, but for the solo worker beside it, which the fleet has as one of its own."""
    from worker import main

    around(main, "solo_beside", lambda _: main.nothing_beside())
    wrap_worker(Doors(folder))
    sys.argv = ["worker", *words]
    sys.exit(main.main())


def be_scheduler(folder: Path) -> None:
    """A scheduler process."""
    from scheduler.cli.main import run

    os.environ["DAWN_LEASE_TTL_S"] = SCHEDULER_TTL_S
    wrap_scheduler(Doors(folder, SCHEDULER))
    sys.exit(run(["scheduler"]))


def be_dawn(folder: Path, name: str, *words: str) -> None:
    """One `dawn` command. What belongs to no run passes under the command's name."""
    from scheduler.cli.main import run

    doors = Doors(folder, "dawn")
    doors.run = name
    wrap_archive(doors)
    sys.stdout = sys.stderr
    sys.exit(run(words))


def load() -> None:
    """Load what any of these processes needs, so that a fork of this one starts at once. Nothing of it opens a
    connection or a thread."""
    import celery.apps.worker
    import celery.bin.worker
    import celery.concurrency.thread
    import celery.worker.consumer
    import celery.worker.strategy
    import docker
    import redis

    import scheduler.cli.keep
    import scheduler.launch
    import scheduler.service
    import worker.attempt
    import worker.before_call
    import worker.janitor
    import worker.main
    import worker.models.open
    import worker.models.scripted
    import worker.sandbox.sandbox
    import worker.slots
    import worker.store.local
    import worker.tasks

    assert all((celery, docker, redis, scheduler, worker))


def forked(act: Callable[..., None], *arguments: Any) -> int:
    """Do it in a child, which ends with this process; its process id."""
    parent = os.getpid()
    if child := os.fork():
        return child
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            act(*arguments)
    except SystemExit as ended:
        os._exit(ended.code if isinstance(ended.code, int) else 1)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(70)
    os._exit(0)


def bury(folder: Path) -> None:
    """Remove what a host would have taken along: containers and volumes of the runs in FOLDER/lost that have died."""
    from worker.sandbox.docker import Engine

    engine = Engine(None)
    for lost in (folder / "lost").iterdir():
        dead = [death.name for death in (folder / "deaths").iterdir() if lost.name in (death.name, label(death.name))]
        for run in dead:
            for resource, _ in engine.labelled({"dawnfleet": "1", "dawnfleet.run": run}):
                kind, _, name = resource.partition(":")
                (engine.remove_container if kind == "container" else engine.remove_volume)(name)
            lost.unlink(missing_ok=True)
    engine.close()


def fleet(folder: Path, workers: int) -> None:
    """A scheduler, a solo worker and so many others, each started again when it dies, until SIGTERM."""
    stopping = threading.Event()
    parts: dict[int, tuple[Any, ...]] = {}
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    wanted: list[tuple[Any, ...]] = [(be_scheduler, folder), (be_worker, folder, "--lanes", "solo")]
    wanted += [(be_worker, folder, "--slots", "1")] * workers
    for part in wanted:
        parts[forked(*part)] = part
    while not stopping.is_set():
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            stopping.wait(0.02)
            continue
        if pid not in parts:
            continue
        part = parts.pop(pid)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            print(f"{part[0].__name__} ended with {os.waitstatus_to_exitcode(status)}", file=sys.stderr, flush=True)
            stopping.wait(1)
        elif any((folder / "lost").iterdir()):
            forked(bury, folder)  # it is waited for as the others are
        parts[forked(*part)] = part
    for pid in parts:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while parts:
        pid, _ = os.waitpid(-1, os.WNOHANG)
        parts.pop(pid, None)
        if pid == 0:
            time.sleep(0.05)
            if time.monotonic() > deadline:
                for late in parts:
                    os.kill(late, signal.SIGKILL)


def main() -> int:
    """The program; see the module."""
    folder = Path(sys.argv[1])
    for name in ("plan", "passed", "deaths", "lost"):
        (folder / name).mkdir(exist_ok=True)
    load()
    if sys.argv[2] == "fleet":
        fleet(folder, int(sys.argv[3]))
        return 0
    codes = []
    for command in json.loads(sys.argv[3]):
        _, status = os.waitpid(forked(be_dawn, folder, *command), 0)
        codes.append(os.waitstatus_to_exitcode(status))
    print(json.dumps(codes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
