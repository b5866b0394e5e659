"""Owns what product modules get in place of `time`, `threading`, `secrets` and `ThreadPoolExecutor` while a
simulation runs, so that they stay as they are. Refuses to stand in for what no simulated module uses.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

from simulation import Actor, Crash, Event, room

from worker.store import journal


class Lock:
    """threading.Lock in the room."""

    def __init__(self) -> None:
        self._held = False
        self._freed = Event()

    def __enter__(self) -> bool:
        while self._held:
            self._freed.clear()
            self._freed.wait()
        self._held = True
        return True

    def __exit__(self, *_: object) -> None:
        self._held = False
        self._freed.set()


class Thread:
    """threading.Thread in the room: an actor of the process that starts it."""

    def __init__(
        self, *, target: Callable[..., None], args: tuple[Any, ...] = (), name: str = "", daemon: bool = False
    ):
        self._act, self._name = lambda: target(*args), name or "thread"
        self._actor: Actor | None = None

    def start(self) -> None:
        self._actor = room().spawn(room().current.process, self._act, self._name)

    def join(self, timeout: float | None = None) -> None:
        assert self._actor is not None
        self._actor.ended.wait(timeout)


class Future:
    """concurrent.futures.Future in the room."""

    def __init__(self) -> None:
        self._done = Event()
        self._answer: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._done.is_set()

    def result(self, timeout: float | None = None) -> Any:
        if not self._done.wait(timeout):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._answer

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._done.wait(timeout)
        return self._error

    def play(self, act: Callable[[], Any]) -> None:
        """Run it and keep what came of it."""
        try:
            self._answer = act()
        except Crash:
            raise
        except BaseException as error:
            self._error = error
        self._done.set()


class Executor:
    """ThreadPoolExecutor in the room: `submit` is an actor of its own, `map` (parallel reads) goes one by one."""

    def __init__(self, *_: Any, thread_name_prefix: str = "pool", **__: Any) -> None:
        self._name = thread_name_prefix
        self._futures: list[Future] = []

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def submit(self, act: Callable[..., Any], *args: Any, **kwargs: Any) -> Future:
        future = Future()
        self._futures.append(future)
        room().spawn(room().current.process, lambda: future.play(lambda: act(*args, **kwargs)), self._name)
        return future

    def map(self, act: Callable[..., Any], *iterables: Iterable[Any]) -> Iterator[Any]:
        return map(act, *iterables)

    def shutdown(self, wait: bool = True, **_: Any) -> None:
        for future in self._futures if wait else ():
            future.exception()


class _Stand:
    """A module with some of its names replaced."""

    def __init__(self, module: Any, **names: Any) -> None:
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _monotonic() -> float:
    return room().now


def _time_ns() -> int:
    return round(room().now * 1e9)


STANDS: list[tuple[Any, Any]] = [
    (
        time,
        _Stand(
            time,
            monotonic=_monotonic,
            perf_counter=_monotonic,
            time_ns=_time_ns,
            sleep=lambda seconds: room().sleep(seconds),
        ),
    ),
    (secrets, _Stand(secrets, token_hex=lambda count: room().nonces.randbytes(count).hex())),
    (threading, _Stand(threading, Event=Event, Lock=Lock, Thread=Thread)),
    (ThreadPoolExecutor, Executor),
    (journal._parse, lru_cache(4_096)(journal._parse)),  # pure, and each segment is read a dozen times
]
"""What product modules have, and what they get instead."""


@contextmanager
def installed(package: tuple[str, ...]) -> Iterator[None]:
    """Replace the stands in every loaded module whose name starts so, for as many simulations as the block makes."""
    places = _places(package, len(sys.modules))
    assert all(getattr(module, attribute) is real for module, attribute, real, _ in places), "installed twice"
    for module, attribute, _, stand in places:
        setattr(module, attribute, stand)
    try:
        yield
    finally:
        for module, attribute, real, _ in places:
            setattr(module, attribute, real)


@cache
def _places(package: tuple[str, ...], _loaded: int) -> list[tuple[Any, str, Any, Any]]:
    """Where a stand belongs: (module, attribute, real, stand). _loaded: a newly loaded module makes it look again."""
    found = []
    for name, module in list(sys.modules.items()):
        for attribute, value in list(vars(module).items()) if name.startswith(package) else ():
            found += [(module, attribute, real, stand) for real, stand in STANDS if value is real]
    return found
