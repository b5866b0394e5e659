"""Owns a person's review of a run's patch, and the wish that it be delivered now. Refuses a word on anything but the
patch that the person was shown, and to deliver by itself.
"""

from __future__ import annotations

from typing import Literal

from scheduler.control import SUBMITTED, bounded, poke
from worker.contract.delivered import (
    Delivery,
    Review,
    delivered,
    delivery_of,
    patch_of,
    review_state,
)
from worker.contract.errors import ConflictFault
from worker.contract.run import Run
from worker.contract.task import Task
from worker.store import keys
from worker.store.archive import Archive
from worker.store.deliveries import read_deliveries, read_reviews, write_delivery, write_review
from worker.store.hints import Hints


def review(
    archive: Archive,
    hints: Hints | None,
    run: Run,
    decision: Literal["approved", "rejected"],
    *,
    by: str,
    at: str,
    comment: str = "",
    patch: str = "",
    seen: int | None = None,
) -> Review:
    """Say what a person thinks of the run's patch. patch: first digits of the digest that they were shown. seen: how
    many reviews they were shown, None for whoever does not care what others said. at: UTC.

    Raises ConflictFault for a run without a patch, for another patch, and where somebody was faster; StoreFault.
    """
    found = _patch(run)
    if not found.startswith(patch):
        raise ConflictFault(f"run {run.id} has another patch now", hint=f"look again: dawn diff {run.id}")
    before = read_reviews(archive, run.id)
    if seen is not None and len(before) != seen:
        last = before[-1] if before else None
        said = f"was {last.decision} by {last.by} at {last.at}" if last else "has another number of reviews"
        raise ConflictFault(f"the patch of run {run.id} {said}", hint="load the page again, look, and decide then")
    if (
        seen is None
        and before
        and (before[-1].decision, before[-1].patch, before[-1].comment) == (decision, found, comment)
    ):
        return before[-1]
    made = Review(n=len(before), decision=decision, patch=found, by=by, at=at, comment=bounded(comment))
    write_review(archive, run.id, made)
    poke(hints, delivery_of(run.id))
    return made


def ask(archive: Archive, hints: Hints | None, task: Task, run: Run, *, by: str, at: str) -> None:
    """Have the run's patch delivered now, whatever `when` says, or once more. at: UTC.

    Raises ConflictFault, which says why, where that cannot be; StoreFault.
    """
    patch = _patch(run)
    if task.deliver is None or task.deliver.kind == "patch":
        raise ConflictFault(f"batch {task.batch} asks for no delivery", hint="`deliver: {kind: pr}` in its manifest")
    if review_state(run, read_reviews(archive, run.id)) == "rejected":
        raise ConflictFault(f"the patch of run {run.id} was rejected", hint=f"dawn review {run.id} --approve")
    fold = delivered(read_deliveries(archive, run.id))
    if not fold.asked:
        write_delivery(archive, run.id, Delivery(n=fold.seen, act="asked", by=by, at=at, patch=patch))
    archive.overwrite(keys.open_marker(run.id), b"")
    poke(hints, delivery_of(run.id))
    poke(hints, SUBMITTED)


def _patch(run: Run) -> str:
    if run.sealed is None:
        raise ConflictFault(f"run {run.id} has not ended", hint=f"wait for it: dawn logs {run.id} -f")
    patch = patch_of(run)
    if patch is None:
        raise ConflictFault(f"run {run.id} ended as {run.sealed.outcome} and left no patch")
    return patch
