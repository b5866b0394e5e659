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
    """Publishes the offer every heartbeat_s and whenever a slot is taken or freed."""

    def __init__(self, hints: Hints, name: str, lanes: tuple[str, ...], slots: int, heartbeat_s: float) -> None:
        super().__init__(name="slots", daemon=True)
        self._hints = hints
        self._offer = (name, lanes, slots)
        self._heartbeat_s = heartbeat_s
        self._free = slots
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._closed = False

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
        name = self._offer[0]
        try:
            self._hints.withdraw(name)
        except HintsFault as fault:
            LOG.warning("offer_not_withdrawn", worker=name, fault=str(fault))  # it ends by itself

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
            self._hints.offer(WorkerOffer(name, lanes, slots, self._free), self._heartbeat_s * OFFER_TTL_FACTOR)
        except HintsFault as fault:
            LOG.warning("offer_not_published", fault=str(fault))
