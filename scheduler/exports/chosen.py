"""Owns which runs an export is made of. Refuses damaged ones, unless what can be read of them is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.runs import Found, View, find, runs_in, standing, views
from worker.contract.errors import IntegrityFault, NotFoundFault
from worker.contract.run import Run
from worker.store.archive import Archive
from worker.store.journal import Journal

PATCH: Final = "patch.diff"
PATCH_BYTES: Final = 64 * 2**20
"""Read at most: three times what a run may make of one by default."""


@dataclass(frozen=True)
class Chosen:
    """roots: what was named. runs: ids of all that this means; views: those that can be read. notes: what a person
    should know, one line each."""

    archive: Archive
    roots: Sequence[Found]
    runs: Sequence[str]
    views: Sequence[View]
    notes: Sequence[str]

    @property
    def ended(self) -> list[View]:
        """Those that are sealed."""
        return [view for view in self.views if view.run.sealed is not None]

    @property
    def standing(self) -> list[View]:
        """Of each target the one that counts, where that is sealed."""
        return [view for view in standing(self.views) if view.run.sealed is not None]


def choose(archive: Archive, words: Sequence[str], *, damaged: bool) -> Chosen:
    """The runs that words name, each once. damaged: what cannot be read is left out with a note, instead of refused.

    Raises NotFoundFault, ConflictFault, IntegrityFault, StoreFault.
    """
    roots = list(dict.fromkeys(find(archive, word) for word in words))
    runs = list(dict.fromkeys(run for root in roots for run in runs_in(archive, root)))
    seen = views(archive, runs)
    wrong = seen.damaged | {view.task.run: _damage(view.run) for view in seen.found if _damage(view.run)}
    if wrong and not damaged:
        run, why = next(iter(wrong.items()))
        more = f", and {len(wrong) - 1} more runs are" if len(wrong) > 1 else ""
        raise IntegrityFault(f"run {run} is damaged: {why}{more}", hint="what can be read goes out with --damaged")
    notes = [f"run {run} cannot be read and is left out: {why}" for run, why in seen.damaged.items()]
    notes += [f"{seen.unwritten} runs were never written; submit the batch again"] if seen.unwritten else []
    return Chosen(archive, roots, runs, seen.found, notes)


def maker(archive: Archive, run: Run) -> Run:
    """Whose patch a run shows: its own, or that of the run whose work it reused. Raises IntegrityFault when that one
    is gone or damaged."""
    if run.sealed is None or not run.sealed.reused:
        return run
    try:
        return maker(archive, Journal(archive, run.sealed.reused).load())
    except NotFoundFault as fault:
        raise IntegrityFault(f"run {run.sealed.reused}, whose work {run.id} reused, is gone") from fault


def patch_of(archive: Archive, run: Run) -> bytes:
    """The patch that a run made, b"" when there is none. Raises IntegrityFault when it is not what its seal names."""
    if run.sealed is None or PATCH not in run.sealed.artifacts:
        return b""
    try:
        return Journal(archive, run.id).get_blob(run.sealed.artifacts[PATCH], max_bytes=PATCH_BYTES)
    except NotFoundFault as fault:
        raise IntegrityFault(fault.message) from fault


def _damage(run: Run) -> str:
    sealed = run.sealed
    if sealed is None or sealed.damaged is None:
        return ""
    return sealed.failure.detail if sealed.failure else f"segment {sealed.damaged} cannot be read"
