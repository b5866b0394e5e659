"""Owns which objects a sealed bundle is made of: all of the runs, of those they were forked from or whose work they
reused, of their batches and environments. Refuses a run that has not ended, whose journal would go on in two places.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from worker.contract.environment import ENVIRONMENT_VERSION, PreparedEnvironment
from worker.contract.errors import ConflictFault, IntegrityFault, NotFoundFault, VersionFault
from worker.contract.events import JOURNAL_VERSION, Prepared
from worker.contract.run import Run
from worker.contract.task import TASK_VERSION
from worker.store import keys
from worker.store.archive import Archive
from worker.store.bundle import Index, Root
from worker.store.content import measured, parsed
from worker.store.journal import Journal
from worker.store.lineage import ancestors

VERSIONS: Final = {"environment": ENVIRONMENT_VERSION, "journal": JOURNAL_VERSION, "task": TASK_VERSION}
CACHES: Final = "/rollup/"


@dataclass
class _Picked:
    """folders: everything below them belongs to it, caches aside. images: key -> digest."""

    folders: set[str] = field(default_factory=set)
    objects: set[str] = field(default_factory=set)
    images: dict[str, str] = field(default_factory=dict)


def index(archive: Archive, roots: Sequence[Root], runs: Iterable[str], *, images: bool) -> Index:
    """Of all that the runs consist of, as it lies: whoever wants only what is sound has verified them before.

    images: with the container images that no registry has. Raises ConflictFault for a run that has not ended, and
    StoreFault.
    """
    picked, todo = _Picked(), list(runs)
    while todo:
        run = todo.pop()
        if f"runs/{run}/" not in picked.folders:
            todo += [*_ancestors(archive, run), *_pick(archive, run, picked)]
    found = {key for folder in picked.folders for key in archive.list(folder) if CACHES not in key}
    found |= {key for key in (*picked.objects, *(picked.images if images else ())) if archive.size(key) is not None}
    return Index(
        versions=VERSIONS,
        roots=tuple(roots),
        objects=tuple((key, *measured(archive, key)) for key in sorted(found)),
        left_out=() if images else tuple(sorted(picked.images.items())),
    )


def _ancestors(archive: Archive, run: str) -> list[str]:
    try:
        return ancestors(archive, run)
    except IntegrityFault:
        return []


def _pick(archive: Archive, run: str, picked: _Picked) -> list[str]:
    """What a run consists of, as far as it can be read. Returns the run whose work it reused, if any."""
    journal, folded = Journal(archive, run), Run(id=run)
    picked.folders.add(f"runs/{run}/")
    try:
        task = journal.task()
        picked.folders.add(f"batches/{task.batch}/")
        if task.repo.source is not None:
            picked.objects.add(keys.source(task.repo.source))
        for record, line_hash in journal.read():
            folded = folded.after(record, line_hash)
            if isinstance(record.event, Prepared):
                _pick_environment(archive, record.event.environment_key, picked)
    except (IntegrityFault, NotFoundFault, VersionFault):
        return []
    if folded.sealed is None:
        raise ConflictFault(f"run {run} has not ended", hint=f"wait for it, or end it: dawn cancel {run}")
    return [folded.sealed.reused] if folded.sealed.reused else []


def _pick_environment(archive: Archive, key: str, picked: _Picked) -> None:
    picked.folders.add(f"environments/{key}/")
    name = keys.environment(key)
    try:
        stored = parsed(PreparedEnvironment, archive.get(name), name)
    except (IntegrityFault, NotFoundFault):
        return
    if stored.stored_image is not None:
        picked.images[keys.image(stored.image, stored.stored_image)] = stored.stored_image
