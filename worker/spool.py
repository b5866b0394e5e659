"""Owns how many bytes of finished work wait on a worker's disk for the archive. Refuses to let more begin than fits:
while the store is away, calls and snapshots wait where they cost nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

from worker.contract.errors import StoreFault

LIMIT_BYTES: Final = 2**30
"""Plan, section 6: the spool per worker."""

POLL_S: Final = 0.2


class Share:
    """A part of the spool; a context manager that gives it back."""

    def __init__(self, spool: Spool, size: int) -> None:
        self._spool, self._size = spool, size

    def shrink(self, size: int) -> None:
        """Give back what was reserved beyond this size."""
        self._spool._give_back(self._size - size)
        self._size = size

    def __enter__(self) -> Share:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.shrink(0)


class Spool:
    """The spool of one worker process; thread-safe.

    What waits is counted from when its size is known. Whatever will make more waits until that fits at its most, but
    in an empty spool something always begins. Nobody may hold a share while waiting: two could wait for each other.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._held = 0
        self._lock = threading.Lock()
        self._freed = threading.Event()

    @property
    def held(self) -> int:
        """Bytes that wait or are reserved now."""
        return self._held

    def hold(self, size: int) -> Share:
        """A share for bytes that are there already, whatever the limit says."""
        with self._lock:
            self._held += size
        return Share(self, size)

    def reserve(self, most_bytes: int, *, patience_s: float, give_up: Callable[[], bool]) -> Share | None:
        """A share for bytes that will be made, waited for; None when give_up said so first.

        Raises StoreFault after patience_s: what waits is waiting for the store.
        """
        end = time.monotonic() + patience_s
        while not self._take(most_bytes):
            if give_up():
                return None
            if time.monotonic() > end:
                raise StoreFault(
                    f"{self._held} bytes of finished work wait for the store; the spool takes {self._limit_bytes}",
                    hint="is the store back? DAWN_SPOOL_BYTES is the limit",
                )
            self._freed.wait(POLL_S)
        return Share(self, most_bytes)

    def _take(self, size: int) -> bool:
        with self._lock:
            if self._held and self._held + size > self._limit_bytes:
                self._freed.clear()
                return False
            self._held += size
            return True

    def _give_back(self, size: int) -> None:
        with self._lock:
            self._held -= size
        self._freed.set()
