"""Owns the page of what stands between runs and workers, and why each open run waits. Refuses to change any of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scheduler.queues import queues
from scheduler.web import now
from scheduler.web.page import Asked, Page, Way
from scheduler.web.site import Site
from worker.contract.errors import HintsFault

LEASES_SHOWN: Final = 200


@dataclass(frozen=True)
class Lane:
    """doorbells: rung and not answered yet. slots: of the workers that serve it; free: of these."""

    lane: str
    doorbells: int
    slots: int
    free: int


@dataclass(frozen=True)
class Worker:
    """One that takes runs."""

    worker: str
    lanes: tuple[str, ...]
    slots: int
    free: int


@dataclass(frozen=True)
class Stack:
    """What Redis says. leases: runs that somebody works on, the first LEASES_SHOWN of leased. leaving: of them at
    workers that take nothing more. holds: account -> seconds."""

    scheduler: bool
    lanes: tuple[Lane, ...]
    workers: tuple[Worker, ...]
    leased: int
    leases: tuple[str, ...]
    leaving: int
    holds: dict[str, float]


@dataclass(frozen=True)
class Reason:
    """Open runs of a batch that wait for the same."""

    batch: str
    why: str
    count: int
    targets: tuple[str, ...]


@dataclass(frozen=True)
class Working:
    """A run that somebody works on."""

    run: str
    target: str
    batch: str
    doing: str
    step: int
    worker: str
    age_s: float


@dataclass(frozen=True)
class Queue:
    """stack: None where none runs, problem says why. open: runs that have not ended, or wait to be delivered.
    left_out: open batches that were not looked at."""

    archive: str
    stack: Stack | None
    problem: str
    open: int
    working: tuple[Working, ...]
    waiting: tuple[Reason, ...]
    left_out: tuple[str, ...]


def queue(site: Site, asked: Asked) -> Page:
    stack, problem = _stack(site)
    standing = now.standing(site)
    working = [
        Working(one.run, one.target, board.batch, one.doing, one.step, one.worker, one.age_s)
        for board in standing.boards
        for one in board.working
    ]
    waiting = [
        Reason(board.batch, one.why, len(one.targets), one.targets[: now.NAMED])
        for board in standing.boards
        for one in board.waiting
    ]
    data = Queue(
        archive=site.archive.url,
        stack=stack,
        problem=problem,
        open=site.seen.answer("open runs", lambda: sum(1 for _ in site.archive.list("open/"))),
        working=tuple(working),
        waiting=tuple(sorted(waiting, key=lambda one: -one.count)),
        left_out=standing.left_out,
    )
    return Page("queue.html", "Queue", data, "dawn queue", follows="all")


def _stack(site: Site) -> tuple[Stack | None, str]:
    """What Redis says, or why nobody does."""
    if site.settings is None:
        return None, "these pages read an archive alone"
    try:
        hints = site.hints()
        if hints is None:
            return None, "no stack is running here"
        found = queues(site.archive, hints)
    except HintsFault as fault:
        return None, fault.message
    return (
        Stack(
            scheduler=found.scheduler,
            lanes=tuple(Lane(*row) for row in found.lanes),
            workers=tuple(Worker(one.name, tuple(one.lanes), one.slots, one.free) for one in found.workers),
            leased=len(found.leases),
            leases=found.leases[:LEASES_SHOWN],
            leaving=found.leaving,
            holds=found.holds,
        ),
        "",
    )


WAYS: Final = (Way("/queue", queue),)
