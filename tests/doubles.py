"""Owns stand-ins of the outside world that keep our own protocols: an archive and Redis hints, both in memory (the
engine is in double_sandbox.py), and accounts without a rate. Refuses to misbehave by itself (gates.py does): archive
and hints pass their conformance suites.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from worker.contract.errors import IntegrityFault, NotFoundFault
from worker.contract.settings import Rate
from worker.store import keys
from worker.store.archive import prove_create_only
from worker.store.hints import CONTROL_TTL_S, WorkerOffer

CHUNK_BYTES = 2**20
check, check_folder = lru_cache(4_096)(keys.check), lru_cache(4_096)(keys.check_folder)


class MemoryArchive:
    """See Archive. create_only=False is the store that the protocol refuses: a later create replaces the object."""

    def __init__(self, *, create_only: bool = True) -> None:
        self.url = "memory:"
        self._create_only = create_only
        self._objects: dict[str, bytes] = {}
        self._keys: list[str] = []
        self._lock = threading.Lock()

    def create(self, key: str, data: bytes | Path) -> bool:
        check(key)
        content = data.read_bytes() if isinstance(data, Path) else bytes(data)
        with self._lock:
            if key in self._objects and self._create_only:
                return False
            self._put(key, content)
            return True

    def overwrite(self, key: str, data: bytes) -> None:
        with self._lock:
            self._put(check(key), bytes(data))

    def get(self, key: str, *, max_bytes: int = 256 * 2**20) -> bytes:
        try:
            data = self._objects[key]
        except KeyError:
            raise NotFoundFault(f"{key} is not in the archive") from None
        if len(data) > max_bytes:
            raise IntegrityFault(f"{key} is larger than {max_bytes} bytes")
        return data

    def chunks(self, key: str, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        data = self.get(key)[start:][:length]
        for offset in range(0, len(data), CHUNK_BYTES):
            yield data[offset : offset + CHUNK_BYTES]

    def size(self, key: str) -> int | None:
        data = self._objects.get(key)
        return None if data is None else len(data)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        check_folder(prefix)
        first = bisect.bisect_right(self._keys, after) if after >= prefix else bisect.bisect_left(self._keys, prefix)
        found = []
        for key in self._keys[first:]:
            if not key.startswith(prefix):
                break
            found.append(key)
        return iter(found)

    def folders(self, prefix: str) -> Iterator[str]:
        inside = (key.removeprefix(prefix) for key in self.list(prefix))
        return iter(sorted({name.partition("/")[0] for name in inside if "/" in name}))

    def aged(self, prefix: str, *, older_than_s: float) -> Iterator[str]:
        return self.list(prefix) if older_than_s <= 0 else iter(())

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            with self._lock:
                if self._objects.pop(key, None) is not None:
                    del self._keys[bisect.bisect_left(self._keys, key)]

    def probe(self) -> None:
        prove_create_only(self.create, self, "memory")

    def sweep(self, *, older_than_s: float) -> int:
        return 0

    def _put(self, key: str, content: bytes) -> None:
        if key not in self._objects:
            bisect.insort(self._keys, key)
        self._objects[key] = content


class Died(Exception):
    """As SIGKILL would have it: nothing that follows is done."""


class DiesAt:
    """An archive, whose user dies before it creates a key that has `at` in it."""

    def __init__(self, archive: Any, at: str) -> None:
        self._archive, self._at = archive, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive, name)

    def create(self, key: str, data: bytes | Path) -> bool:
        if self._at in key:
            raise Died
        done: bool = self._archive.create(key, data)
        return done


class MemoryHints:
    """The methods of Hints that a run needs. clock: monotonic, seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._values: dict[str, tuple[Any, float]] = {}

    def check(self) -> None:
        pass

    def claim(self, name: str, token: str, ttl_s: float) -> bool:
        if self._get(f"lease:{name}") not in (None, token):
            return False
        self._set(f"lease:{name}", token, ttl_s)
        return True

    def extend(self, name: str, token: str, ttl_s: float) -> bool:
        return self.claim(name, token, ttl_s)

    def release(self, name: str, token: str) -> None:
        if self._get(f"lease:{name}") == token:
            self._values.pop(f"lease:{name}")

    def held(self, names: Iterable[str]) -> set[str]:
        return {name for name in names if self._get(f"lease:{name}") is not None}

    def offer(self, offer: WorkerOffer, ttl_s: float) -> None:
        self._set(f"worker:{offer.name}", offer, ttl_s)

    def withdraw(self, worker: str) -> None:
        self._values.pop(f"worker:{worker}", None)

    def workers(self) -> list[WorkerOffer]:
        return [offer for _, offer in sorted(self._live("worker:").items())]

    def rung(self, run: str, lane: str, ttl_s: float) -> None:
        self._set(f"bell:{run}", lane, ttl_s)

    def answered(self, run: str) -> None:
        self._values.pop(f"bell:{run}", None)

    def outstanding(self) -> dict[str, str]:
        return self._live("bell:")

    def poke(self, name: str, number: int) -> None:
        self._set(f"control:{name}", number, CONTROL_TTL_S)

    def poked(self, names: Iterable[str]) -> dict[str, int]:
        found = {name: self._get(f"control:{name}") for name in names}
        return {name: number for name, number in found.items() if number is not None}

    def hold(self, account: str, for_s: float) -> None:
        if self.held_s(account) < for_s:
            self._set(f"hold:{account}", self._clock() + for_s, for_s)

    def held_s(self, account: str) -> float:
        end: float | None = self._get(f"hold:{account}")
        return 0.0 if end is None else end - self._clock()

    def epoch(self) -> str | None:
        value: str | None = self._get("epoch")
        return value

    def start_epoch(self, value: str) -> None:
        self._set("epoch", value, float("inf"))

    def close(self) -> None:
        pass

    def wipe(self) -> None:
        """As FLUSHALL."""
        self._values.clear()

    def leases(self) -> list[str]:
        """Names of all leases, in the order they were first taken."""
        return list(self._live("lease:"))

    def drop_lease(self, name: str) -> None:
        """As if Redis had forgotten that one."""
        self._values.pop(f"lease:{name}", None)

    def _set(self, key: str, value: Any, ttl_s: float) -> None:
        self._values[key] = (value, self._clock() + ttl_s)

    def _get(self, key: str) -> Any:
        value, until = self._values.get(key, (None, 0.0))
        return value if self._clock() < until else None

    def _live(self, prefix: str) -> dict[str, Any]:
        names = [key for key in self._values if key.startswith(prefix)]
        return {key.removeprefix(prefix): value for key in names if (value := self._get(key)) is not None}


class FreePacing:
    """A Pacing that grants all. asked: account, batch and tokens of each request and of what was counted after it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int]] = []

    def take(self, account: str, batch: str, rate: Rate, tokens: int) -> float:
        self.asked.append((account, batch, tokens))
        return 0.0

    def settle(self, account: str, batch: str, rate: Rate, tokens: int) -> None:
        self.asked.append((account, batch, tokens))
