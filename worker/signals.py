"""Owns how a worker process ends: what each signal asks of it, and of the solo process beside it. Refuses to end an
attempt itself: it throws the station's switches, and when their time is over it leaves.

The first SIGTERM, SIGINT or SIGHUP drains: nothing new begins, calls in hand may end. The second one, or SIGQUIT,
hurries: they are killed and rolled back now. One more leaves at once, as a crash would.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Final

import structlog

from worker.contract.errors import ExitCode
from worker.slots import Slots
from worker.station import Station
from worker.store import doorbell

LOG = structlog.get_logger(__name__)

HEARD: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
HARD_SHARE: Final = 0.75
"""Calls in hand are killed after this share of the soft limit, so that yielding and clearing up fit in the rest."""
HURRY_S: Final = 10.0
"""A hurried end may take so long at least. Eight runs killed at once were given back within 2 s and cleared up in
13 s while fifty processes waited for two processors; three on a quieter machine in 2 s."""
SOLO_RESTART_S: Final = 5.0

PassOn = Callable[[int], None]
"""Sends a signal to the process beside this one, which is then not started again."""


class Signals:
    """Of one worker process. pass_on: what its solo process is told."""

    def __init__(self, station: Station, offer: Slots, pass_on: PassOn) -> None:
        self._station = station
        self._offer = offer
        self._pass_on = pass_on
        self._count = 0
        self._heard: SimpleQueue[int] = SimpleQueue()
        self._hurried = False
        self._thread = threading.Thread(target=self._obey, name="signals", daemon=True)
        self._ignored = [number for number in HEARD if signal.getsignal(number) is signal.SIG_IGN]

    def listen(self) -> None:
        """Take the signals from Celery, whose second SIGTERM is ignored and whose SIGQUIT waits for the calls in
        hand. One that whoever started us ignored (`nohup`, a shell's background) is ignored again. Called in the main
        thread, each time that consuming begins."""
        for number in HEARD:
            signal.signal(number, signal.SIG_IGN if number in self._ignored else self._hear)
        if not self._thread.is_alive():
            self._thread.start()

    def _hear(self, number: int, _: object) -> None:
        # One signal may come while another is heard: nothing here may wait for a lock that the other one holds.
        self._count += 2 if number == signal.SIGQUIT and not self._count else 1
        if self._count > 2:
            self._leave()
        self._heard.put(self._count)

    def _obey(self) -> None:
        while True:
            if self._heard.get() == 1:
                self._drain()
            else:
                self._hurry()

    def _drain(self) -> None:
        soft_s = self._station.settings.drain_soft_s
        LOG.info("draining", soft_limit_s=soft_s)
        self._stop()
        self._pass_on(signal.SIGTERM)
        _after(soft_s * HARD_SHARE, self._hurry)

    def _hurry(self) -> None:
        if self._hurried:
            return
        self._hurried = True
        LOG.info("killing_calls_in_hand")
        self._stop()
        self._station.drain_now.set("drain")
        self._pass_on(signal.SIGQUIT)
        _after(max(HURRY_S, self._station.settings.drain_soft_s * (1 - HARD_SHARE)), self._leave)

    def _stop(self) -> None:
        """Begin nothing more: neither a call, nor a run."""
        self._station.drain.set("drain")
        doorbell.stop_consuming()
        self._offer.end()

    def _leave(self) -> None:
        """What is not given back waits for its lease to end; what is left on the engine, for a janitor."""
        self._pass_on(signal.SIGKILL)
        os._exit(int(ExitCode.INTERRUPTED))


def _after(delay_s: float, act: Callable[[], None]) -> None:
    timer = threading.Timer(delay_s, act)
    timer.daemon = True
    timer.start()


@contextmanager
def solo_beside(words: Sequence[str]) -> Iterator[PassOn]:
    """A solo worker process (arguments of this Python) as long as the block runs; started again when it dies, which
    is what it is for. In a process group of its own: Ctrl-C in a terminal is for us, who then pass it on."""
    done = threading.Event()
    starting = threading.RLock()
    child: list[subprocess.Popen[bytes]] = []

    def keep() -> None:
        while True:
            with starting:
                if done.is_set():
                    return
                child[:] = [subprocess.Popen([sys.executable, "-P", *words], process_group=0)]
            child[0].wait()
            done.wait(SOLO_RESTART_S)

    def pass_on(number: int) -> None:
        done.set()
        with starting:
            if child:
                child[0].send_signal(number)

    keeper = threading.Thread(target=keep, name="solo", daemon=True)
    keeper.start()
    try:
        yield pass_on
    finally:
        if not done.is_set():
            pass_on(signal.SIGTERM)
        keeper.join()
