"""Owns whose signals a worker takes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from worker.signals import HEARD, Signals


@pytest.fixture
def _restored() -> Iterator[None]:
    """The signals of the process that runs the tests, as they were."""
    before = {number: signal.getsignal(number) for number in HEARD}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_restored")
def test_a_signal_that_was_ignored_at_start_stays_ignored() -> None:
    """Celery takes it all the same, and its way to end a run is none that a pool of threads knows."""
    station: Any = None
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signals = Signals(station, station, lambda _: None)
    for number in (signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # as Celery does
    signals.listen()
    assert signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) == signals._hear
