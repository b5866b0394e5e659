"""Owns Cancel, the switch that ends what a run is doing now. Refuses to decide who may throw it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Cancel:
    """A switch that ends what a run is doing now. Thread-safe; `reason` says why (cancel, drain, lease, ...)."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self.reason = ""

    def set(self, reason: str) -> None:
        """Throw it once; later reasons are ignored. Callbacks run in the caller's thread."""
        with self._lock:
            if self._event.is_set():
                return
            self.reason = reason
            self._event.set()
            callbacks = list(self._callbacks)
        for callback in callbacks:
            callback()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_s: float) -> bool:
        """True when it was thrown within timeout_s."""
        return self._event.wait(timeout_s)

    def on_set(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when thrown (at once if it already is); returns a function that takes the callback off."""
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(callback)

                def off() -> None:
                    with self._lock:
                        if callback in self._callbacks:
                            self._callbacks.remove(callback)

                return off
        callback()
        return lambda: None
