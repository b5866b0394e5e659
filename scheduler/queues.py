"""Owns what stands between runs and workers: doorbells, workers and their slots, leases, holds of accounts. Refuses
to change any of it: Redis is asked for what it knows at this moment, which it may forget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from scheduler.planning.plan import Pool, Slots
from scheduler.planning.why import Now
from scheduler.runs import marked_runs
from worker.store.archive import Archive
from worker.store.hints import Hints, WorkerOffer

SCHEDULER: Final = "scheduler"


@dataclass(frozen=True)
class Queues:
    """open: runs that have not ended. doorbells: lane -> rung and not answered. workers: as they offer themselves.
    leases: runs that somebody works on. holds: account -> seconds until it may be asked again. scheduler: one
    leads."""

    open: int
    doorbells: dict[str, int]
    workers: tuple[WorkerOffer, ...]
    leases: tuple[str, ...]
    holds: dict[str, float]
    scheduler: bool

    @property
    def leaving(self) -> int:
        """Runs in the hands of workers that offer nothing any more: they drain, or died less than a lease ago."""
        return max(0, len(self.leases) - sum(worker.slots - worker.free for worker in self.workers))

    @property
    def lanes(self) -> list[tuple[str, int, int, int]]:
        """(lane, doorbells, slots, free ones) of all that is served or rung."""
        named = dict.fromkeys(["interactive", "batch", "solo", *self.doorbells])
        named |= dict.fromkeys(lane for worker in self.workers for lane in worker.lanes)
        rows = []
        for lane in named:
            serving = [worker for worker in self.workers if lane in worker.lanes]
            slots, free = sum(worker.slots for worker in serving), sum(worker.free for worker in serving)
            rows.append((lane, self.doorbells.get(lane, 0), slots, free))
        return rows

    def as_json(self) -> dict[str, Any]:
        return {
            "open_runs": self.open,
            "lanes": [
                {"lane": lane, "doorbells": bells, "slots": slots, "free": free}
                for lane, bells, slots, free in self.lanes
            ],
            "workers": [
                {"worker": worker.name, "lanes": list(worker.lanes), "slots": worker.slots, "free": worker.free}
                for worker in self.workers
            ],
            "leases": list(self.leases),
            "leaving": self.leaving,
            "holds_s": self.holds,
            "scheduler": self.scheduler,
        }


def queues(archive: Archive, hints: Hints) -> Queues:
    """As of now. Raises StoreFault, HintsFault."""
    runs = marked_runs(archive)
    held = hints.held([SCHEDULER, *(f"run:{run}" for run in runs)])
    return Queues(
        open=len(runs),
        doorbells=dict(Counter(hints.outstanding().values())),
        workers=tuple(hints.workers()),
        leases=tuple(sorted(name.removeprefix("run:") for name in held if name != SCHEDULER)),
        holds=hints.holds(),
        scheduler=SCHEDULER in held,
    )


def as_planned(hints: Hints, runs: Iterable[str]) -> Now:
    """What the scheduler's plan asks Redis for. runs: those that are open. Raises HintsFault."""
    slots: dict[Pool, Slots] = {}
    for worker in hints.workers():
        pool: Pool = "solo" if "solo" in worker.lanes else "main"
        before = slots.get(pool, Slots())
        slots[pool] = Slots(before.total + worker.slots, before.free + worker.free)
    held = hints.held(f"run:{run}" for run in runs)
    return Now(leased={name.removeprefix("run:") for name in held}, rung=set(hints.outstanding()), slots=slots)
