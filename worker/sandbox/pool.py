"""Owns parked containers: made ahead while the model thinks, taken by the next call, removed when not needed.
Refuses to know how one is made or what is sent to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from pathlib import Path
from typing import IO, Literal

from worker.contract.errors import Fault
from worker.sandbox.docker import Engine, Stream


@dataclass(frozen=True)
class Kind:
    """What a parked container is good for."""

    kind: Literal["shell", "toolbox"]
    writes: bool


@dataclass(frozen=True)
class Box:
    """A started container and its attached stdin and output."""

    container: str
    stream: Stream

    def alive(self) -> bool:
        """Whether a parked one still waits: one that ended has closed its output."""
        readable, _ = self.stream.wait(0)
        if readable:
            self.stream.receive()
        return not self.stream.ended


class Places:
    """How many containers may be parked on this host, by all processes that share the folder: each place is a locked
    file in it, so a process that dies gives its own back. Thread-safe."""

    def __init__(self, folder: Path, count: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._free: list[IO[bytes]] = [(folder / str(number)).open("ab") for number in range(count)]
        self._taken: list[IO[bytes]] = []
        self._lock = threading.Lock()

    def take(self) -> bool:
        """False when all are taken: then nothing is parked, and a call makes its own container."""
        with self._lock:
            for file in self._free:
                with suppress(BlockingIOError):
                    flock(file, LOCK_EX | LOCK_NB)
                    self._free.remove(file)
                    self._taken.append(file)
                    return True
            return False

    def give_back(self) -> None:
        with self._lock:
            file = self._taken.pop()
            flock(file, LOCK_UN)
            self._free.append(file)

    def close(self) -> None:
        """Give back the files themselves."""
        for file in (*self._free, *self._taken):
            file.close()


class Pool:
    """The parked containers of one workspace, at most one of a kind; also removes any container in the background.

    `expect`, `take` and `close` belong to the workspace's thread; `remove` may be called from any.
    """

    def __init__(
        self, engine: Engine, threads: ThreadPoolExecutor, places: Places, make: Callable[[Kind], Box]
    ) -> None:
        self._engine = engine
        self._threads = threads
        self._places = places
        self._make = make
        self._parked: dict[Kind, Future[Box]] = {}
        self._leaving: list[Future[None]] = []
        self._lock = threading.Lock()

    def expect(self, kind: Kind) -> None:
        """Park one of this kind in the background, if there is none and the host has a place for it.

        When it has not, the one parked longest in this workspace hands over its place: the last wish is likeliest.
        """
        if kind in self._parked:
            return
        if not self._places.take():
            if not self._parked:
                return
            self._drop(next(iter(self._parked)))
        self._parked[kind] = self._threads.submit(self._make, kind)

    def take(self, kind: Kind) -> Box:
        """A container that waits for its call: the parked one, or a fresh one if there is none that still lives."""
        parked = self._parked.pop(kind, None)
        if parked is not None:
            self._places.give_back()
            with suppress(Fault):
                box = parked.result()
                if box.alive():
                    return box
                self.remove(box)
        return self._make(kind)

    def remove(self, box: Box) -> None:
        """Remove a container in the background; `close` waits for it."""
        with self._lock:
            self._leaving = [future for future in self._leaving if not future.done() or future.exception()]
            self._leaving.append(self._threads.submit(self._remove, box))

    def close(self) -> None:
        """Remove everything that is parked and wait until all of it is gone. Raises EngineFault if some is not."""
        while self._parked:
            self._drop(next(iter(self._parked)))
            self._places.give_back()
        with self._lock:
            leaving, self._leaving = self._leaving, []
        failed = [fault for future in leaving if (fault := future.exception()) is not None]
        if failed:
            raise failed[0]

    def _drop(self, kind: Kind) -> None:
        parked = self._parked.pop(kind)

        def act() -> None:
            try:
                box = parked.result()
            except Fault:
                return  # What could not be made was removed by its maker.
            self._remove(box)

        with self._lock:
            self._leaving.append(self._threads.submit(act))

    def _remove(self, box: Box) -> None:
        box.stream.close()
        self._engine.remove_container(box.container)
