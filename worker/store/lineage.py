"""Owns whom a run was forked from, and so where the objects lie that its copied events name. Refuses to follow a
journal: a task names its parent."""

from __future__ import annotations

from worker.contract.errors import NotFoundFault
from worker.contract.task import Task
from worker.store import keys
from worker.store.archive import Archive
from worker.store.content import get_content, parsed


def ancestors(archive: Archive, run: str) -> list[str]:
    """The runs it was forked from, nearest first; empty for a run that was not. One that is gone ends the list.

    Raises IntegrityFault for a task that cannot be read, StoreFault."""
    found: list[str] = []
    try:
        while (parent := _parent(archive, found[-1] if found else run)) is not None:
            found.append(parent)
    except NotFoundFault:
        pass
    return found


def inherited_blob(archive: Archive, run: str, name: str) -> bytes:
    """A blob that a copied event of the run names: it lies with the ancestor whose event that was. Raises
    NotFoundFault."""
    for ancestor in ancestors(archive, run):
        if archive.size(keys.blob(ancestor, name)) is not None:
            return get_content(archive, keys.blob(ancestor, name), name)
    raise NotFoundFault(f"blob {name} of the run that {run} was forked from is not in the archive")


def _parent(archive: Archive, run: str) -> str | None:
    return parsed(Task, archive.get(keys.task(run)), keys.task(run)).parent
