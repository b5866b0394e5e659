"""Owns an archive that is read through and written beside. Refuses to write to the one below it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from pathlib import Path

from worker.store.archive import Archive


class Overlay:
    """See Archive. What was written here hides what lies below under the same key; `fresh`, folders such as
    `runs/r1/journal/`, begin empty, whatever lies below."""

    def __init__(self, below: Archive, above: Archive, *, fresh: tuple[str, ...]) -> None:
        self.url = below.url
        self._below, self._above, self._fresh = below, above, fresh

    def create(self, key: str, data: bytes | Path) -> bool:
        return self._holder(key).size(key) is None and self._above.create(key, data)

    def overwrite(self, key: str, data: bytes) -> None:
        self._above.overwrite(key, data)

    def get(self, key: str, *, max_bytes: int = 256 * 2**20) -> bytes:
        return self._holder(key).get(key, max_bytes=max_bytes)

    def chunks(self, key: str, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        return self._holder(key).chunks(key, start=start, length=length)

    def size(self, key: str) -> int | None:
        return self._holder(key).size(key)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        below = (key for key in self._below.list(prefix, after=after) if not key.startswith(self._fresh))
        last = ""
        for key in heapq.merge(below, self._above.list(prefix, after=after)):
            if key != last:
                yield key
            last = key

    def folders(self, prefix: str) -> Iterator[str]:
        return iter({*self._below.folders(prefix), *self._above.folders(prefix)})

    def aged(self, prefix: str, *, older_than_s: float) -> Iterator[str]:
        return self._above.aged(prefix, older_than_s=older_than_s)

    def delete(self, keys: Iterable[str]) -> None:
        self._above.delete(keys)

    def probe(self) -> None:
        self._above.probe()

    def sweep(self, *, older_than_s: float) -> int:
        return self._above.sweep(older_than_s=older_than_s)

    def _holder(self, key: str) -> Archive:
        """Where the key is read."""
        here = key.startswith(self._fresh) or self._above.size(key) is not None
        return self._above if here else self._below
