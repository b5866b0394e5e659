"""Owns finishing what a crash began on this host: every container and volume of an attempt that is not its run's
current one goes. Refuses to ask Redis, and to touch a thing without our labels: the journal is the judge.
"""

from __future__ import annotations

import threading
from collections import defaultdict

import structlog

from worker.contract.errors import EngineFault, Fault, IntegrityFault, NotFoundFault, StoreFault
from worker.contract.run import Run
from worker.sandbox.protocol import Owner, Sandbox
from worker.store.archive import Archive
from worker.store.journal import Journal

LOG = structlog.get_logger(__name__)


def sweep(archive: Archive, archive_id: str, sandbox: Sandbox, *, run: str | None = None) -> int:
    """Remove what belongs to no living attempt; returns how many things went. run: look at that run's only.

    Raises StoreFault as it comes; EngineFault and IntegrityFault after all other runs were looked at. What belongs to
    a run that this archive does not know stays: an archive that is not mounted looks the same.
    """
    found: dict[str, list[tuple[Owner, str]]] = defaultdict(list)
    for owner, resource in sandbox.owned(archive_id):
        if run is None or owner.run == run:
            found[owner.run].append((owner, resource))
    removed = 0
    faults: list[Fault] = []
    for name, things in found.items():
        try:
            state = Journal(archive, name).load()
            for owner, resource in things:
                if not living(state, owner.claim):
                    sandbox.remove(resource)
                    removed += 1
        except NotFoundFault:
            continue
        except (EngineFault, IntegrityFault) as fault:
            faults.append(fault)
    if removed:
        LOG.info("janitor_removed", things=removed)
    if faults:
        raise faults[0]
    return removed


def living(run: Run, claim: int) -> bool:
    """Whether that claim is the run's current attempt. A claim newer than our fold is one: it was made meanwhile."""
    if run.attempt is not None and claim < run.attempt:
        return False
    return run.status == "running" or claim > run.last_seq


class Janitor(threading.Thread):
    """Sweeps this host every interval_s until stopped, and bounds its prepared images to images_bytes. An engine or
    store that is away is tried again next time."""

    def __init__(
        self, archive: Archive, archive_id: str, sandbox: Sandbox, interval_s: float, images_bytes: int
    ) -> None:
        super().__init__(name="janitor", daemon=True)
        self._place = (archive, archive_id, sandbox)
        self._sandbox = sandbox
        self._interval_s = interval_s
        self._images_bytes = images_bytes
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            for act in (self._sweep, self._trim):
                try:
                    act()
                except (EngineFault, StoreFault) as fault:
                    LOG.warning("janitor_waits", fault=str(fault))
                except Fault as fault:
                    # A journal it cannot trust must not stop it from sweeping the rest of the host's life.
                    LOG.error("janitor_fault", fault=str(fault))

    def _sweep(self) -> None:
        sweep(*self._place)

    def _trim(self) -> None:
        if images := self._sandbox.trim_images(self._images_bytes):
            LOG.info("images_removed", images=images)

    def stop(self) -> None:
        """End after the sweep in hand."""
        self._stopped.set()
        self.join()
