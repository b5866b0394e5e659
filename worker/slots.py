"""Owns how many runs this process can take, and telling Redis. Refuses to schedule: the scheduler reads the offer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from worker.contract.errors import HintsFault
from worker.store.hints import Hints, WorkerOffer

LOG = structlog.get_logger(__name__)

OFFER_TTL_FACTOR = 3
"""An offer outlives two lost heartbeats."""


class Slots(threading.Thread):
    """Publishes the offer every heartbeat_s and whenever a slot is taken or freed, while this process consumes
    (`consume`; it does not at first). One that does not is offered to nobody: the doorbells rung for it would lie in
    Redis, and its health check would not tell."""

    def __init__(self, hints: Hints, name: str, lanes: tuple[str, ...], slots: int, heartbeat_s: float) -> None:
        super().__init__(name="slots", daemon=True)
        self._hints = hints
        self._offer = (name, lanes, slots)
        self._heartbeat_s = heartbeat_s
        self._free = slots
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._consumes = False
        self._closed = False

    def consume(self, consumes: bool) -> None:
        """Whether this process takes doorbells from now on."""
        self._consumes = consumes
        self._changed.set()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Hold one slot."""
        self._move(-1)
        try:
            yield
        finally:
            self._move(1)

    def run(self) -> None:
        while not self._closed:
            self._publish()
            self._changed.wait(self._heartbeat_s)
            self._changed.clear()
        self.consume(False)
        self._publish()

    def end(self) -> None:
        """Offer nothing more, from now on; a thread of its own tells Redis."""
        self._closed = True
        self._changed.set()

    def close(self) -> None:
        """Offer nothing more, and wait until Redis knows."""
        self.end()
        self.join()

    def _move(self, by: int) -> None:
        with self._lock:
            self._free += by
        self._changed.set()

    def _publish(self) -> None:
        name, lanes, slots = self._offer
        try:
            if self._consumes:
                self._hints.offer(WorkerOffer(name, lanes, slots, self._free), self._heartbeat_s * OFFER_TTL_FACTOR)
            else:
                self._hints.withdraw(name)
        except HintsFault as fault:
            LOG.warning(
                "offer_not_published", consumes=self._consumes, fault=str(fault)
            )  # the last one ends by itself
