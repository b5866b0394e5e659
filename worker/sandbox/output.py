"""Owns the kept bytes of one call: the first half and the last half of a cap, in a file, in constant memory.
Refuses to interpret them."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO, Final

from worker.sandbox.locks import locked
from worker.sandbox.protocol import Output

COPY_BYTES: Final = 2**20


class Spool:
    """A sink without end: bytes past the cap push out the middle. The file never grows past the cap.

    The last half is a ring in the file; `close` puts it into order.
    """

    def __init__(self, path: Path, cap_bytes: int) -> None:
        self.path = path
        self._cap = cap_bytes
        self._head = cap_bytes // 2
        self._total = 0
        self._file: BinaryIO = open(path, "w+b", buffering=0)  # noqa: SIM115

    def write(self, data: bytes) -> None:
        ring = self._cap - self._head
        view = memoryview(data)
        if len(view) > ring and self._total >= self._head:
            # Only the last ring's worth can survive; the rest would be overwritten at once.
            self._total += len(view) - ring
            view = view[-ring:]
        while view:
            at = self._total
            place = at if at < self._head else self._head + (at - self._head) % ring
            room = (self._head if at < self._head else self._cap) - place
            part = view[:room]
            os.pwrite(self._file.fileno(), part, place)
            self._total += len(part)
            view = view[len(part) :]

    def close(self) -> Output:
        """Finish the file and say what is in it."""
        turned = (self._total - self._head) % (self._cap - self._head) if self._total > self._cap else 0
        with self._file:
            if turned:
                self._turn(self._head + turned)
        kept = min(self._total, self._cap)
        return Output(self.path, self._total, kept, self._head if self._total > self._cap else kept)

    def _turn(self, oldest: int) -> None:
        ordered = self.path.with_suffix(".ordered")
        with open(ordered, "wb") as out:
            for start, end in ((0, self._head), (oldest, self._cap), (self._head, oldest)):
                self._file.seek(start)
                left = end - start
                while left:
                    data = self._file.read(min(COPY_BYTES, left))
                    out.write(data)
                    left -= len(data)
        os.replace(ordered, self.path)


@contextmanager
def spool_folder(parent: Path) -> Iterator[Path]:
    """A folder of this process for spooled files, gone afterwards; those of dead processes are swept here too.

    A lock in the folder says that its process lives: process ids come again, locks do not outlive their holder.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for other in parent.iterdir():
        _sweep(other)
    folder, lock = _made(parent)
    with lock:
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _made(parent: Path) -> tuple[Path, IO[bytes]]:
    """A new folder and its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix="sandbox-", dir=parent))
        with suppress(FileNotFoundError):  # swept by another process before it was locked
            return folder, locked(folder / "lock", fcntl.LOCK_EX)


def _sweep(folder: Path) -> None:
    # One whose lock is not there yet has just been made.
    with suppress(OSError):
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        finally:
            os.close(lock)
