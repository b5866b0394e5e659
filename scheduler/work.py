"""Owns the work key: what makes two runs the same work, and which earlier run has done it. Refuses to look at how a
run is bounded, scheduled, paid or delivered: that changes no result that was measured.
"""

from __future__ import annotations

from typing import Final

from worker.contract.delivered import review_state, wants_delivery
from worker.contract.errors import IntegrityFault, NotFoundFault, VersionFault
from worker.contract.events import Sealed, canonical, digest
from worker.contract.run import Run
from worker.contract.task import Task
from worker.store import keys
from worker.store.archive import Archive
from worker.store.deliveries import read_reviews
from worker.store.journal import Journal

KEY_VERSION: Final = 1
PARTS: Final = frozenset(
    {
        *("prompt", "commands", "script", "model", "fallbacks", "tools", "without_tools", "policy", "on_ask"),
        *("environment", "checks", "baseline", "guards"),
    }
)
"""Of a task, beside its repository."""


def work_key(task: Task) -> str | None:
    """Digest of repository, path, start commit (or packed source), what is asked, environment, checks and guards.

    None where the commit is not known yet, and for a fork, which goes on from something else."""
    repo = task.repo
    if task.fork is not None or (repo.source is None and repo.commit is None):
        return None
    start = (
        {"url": repo.url, "commit": repo.commit} if repo.source is None else {"source": repo.source, "ref": repo.ref}
    )
    asked = task.model_dump(mode="json", include=set(PARTS))
    return digest(canonical({"v": KEY_VERSION, "start": start, "path": repo.path, "asked": asked}))


def earlier(archive: Archive, task: Task) -> Run | None:
    """A run that did this work, was verified, and whose patch nobody rejected; of a task that is to be delivered, one
    that was to be delivered likewise. None when there is none, or it cannot be read. Raises StoreFault."""
    work = work_key(task)
    for name in archive.list(keys.work_folder(work)) if work is not None else ():
        journal = Journal(archive, name.rpartition("/")[2])
        try:
            run, asked = journal.load(), journal.task()
            likewise = not wants_delivery(task) or _goes_to(asked) == _goes_to(task)
            if _verified(run) and likewise and review_state(run, read_reviews(archive, run.id)) != "rejected":
                return run
        except (NotFoundFault, IntegrityFault, VersionFault):
            continue
    return None


def _verified(run: Run) -> bool:
    sealed = run.sealed
    return sealed is not None and sealed.outcome in ("changed", "no_change") and sealed.verdict == "verified"


def _goes_to(task: Task) -> tuple[str, str | None]:
    return ("patch", None) if task.deliver is None else (task.deliver.kind, task.deliver.base)


def reused(run: Run) -> Sealed:
    """The seal of a run whose work that one has done."""
    assert run.sealed is not None, "found by `earlier`"
    ended = f"{run.sealed.outcome}/{run.sealed.verdict}"
    return Sealed(
        outcome="reused",
        verdict=run.sealed.verdict,
        reused=run.id,
        detail=f"the same work ended as {ended}: {run.id}",
    )
