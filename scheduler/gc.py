"""Owns finding what an archive need not keep, and removing it: expired batches, objects that nothing names, uploads
that a crash left unfinished. Refuses to touch what a kept run names, and what it cannot read.

A batch expires whole, some days after its last run was sealed, unless a kept run was forked from one of its runs.
What nothing names is garbage of an interrupted writer; it is left for some days, because a living one looks the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from scheduler.schedules import stored
from worker.contract.environment import PreparedEnvironment
from worker.contract.errors import Fault, IntegrityFault, NotFoundFault, StoreFault
from worker.contract.events import Prepared
from worker.contract.run import Run
from worker.store import keys
from worker.store.archive import Archive
from worker.store.evidence import named
from worker.store.journal import Journal

UNNAMED_S: Final = 7 * 86400
UNFINISHED_S: Final = 86400
"""No upload takes a day."""

READERS: Final = 8

KINDS: Final = (
    "expired batches",
    "expired runs",
    "day markers",
    "environments",
    "images",
    "work marks",
    "retry marks",
    "sources",
    "blobs and snapshots",
)


@dataclass
class Garbage:
    """kind, one of KINDS -> names of what goes, whole folders with a slash. notes: why something stays."""

    found: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    uploads: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Mark:
    """What a run names. whole: every event of it was read. parts: its own objects that its events name. parent: the
    run that it was forked from, or whose work it reuses."""

    run: Run
    batch: str = ""
    parent: str = ""
    source: str = ""
    environments: frozenset[str] = frozenset()
    parts: frozenset[str] = frozenset()
    whole: bool = True
    why: str = ""

    def expired(self, limit: datetime) -> bool:
        return self.whole and self.run.sealed is not None and datetime.fromisoformat(self.run.updated_at) < limit

    @property
    def may_prepare(self) -> bool:
        """Whether it may name any environment yet, or names one that we could not read."""
        return not self.environments and (self.run.sealed is None or not self.whole)


def collect(archive: Archive, *, keep_s: float, now: datetime, dry_run: bool) -> Garbage:
    """Find garbage and, unless dry_run, remove it. keep_s: how long a sealed batch is kept, seconds. now: UTC.

    A gc that is cut off is finished by the next. Raises StoreFault.
    """
    marks = _mark(archive, archive.folders("runs/"))
    # Runs that began or went on while the others were read name more by now.
    marks |= _mark(archive, (r for r in archive.folders("runs/") if r not in marks or marks[r].run.sealed is None))
    garbage = _garbage(archive, marks, now - timedelta(seconds=keep_s))
    if not dry_run:
        garbage.uploads = archive.sweep(older_than_s=UNFINISHED_S)
        for name in (name for kind in KINDS for name in garbage.found[kind]):
            archive.delete(_in_order(archive, name) if name.endswith("/") else [name])
    return garbage


def _mark(archive: Archive, runs: Iterable[str]) -> dict[str, _Mark]:
    names = list(runs)
    with ThreadPoolExecutor(READERS) as pool:
        return dict(zip(names, pool.map(lambda run: _mark_of(archive, run), names), strict=True))


def _mark_of(archive: Archive, name: str) -> _Mark:
    journal, run = Journal(archive, name), Run(id=name)
    environments: set[str] = set()
    parts: set[str] = set()
    batch = parent = source = why = ""
    try:
        task = journal.task()
        batch, source, parent = task.batch, task.repo.source or "", task.parent or ""
        for record, line_hash in journal.read():
            run = run.after(record, line_hash)
            if isinstance(record.event, Prepared):
                environments.add(record.event.environment_key)
            parts.update(key for key, _ in named(name, "", record.event))
        if run.sealed is not None and run.sealed.reused:
            parent = run.sealed.reused  # what it has to show is that run's
    except (StoreFault, NotFoundFault) as fault:
        if isinstance(fault, StoreFault) or archive.size(keys.task(name)) is not None:
            raise
        why = "gone"
    except Fault as fault:
        why = fault.message
    damaged = run.sealed is not None and run.sealed.damaged is not None
    return _Mark(run, batch, parent, source, frozenset(environments), frozenset(parts), not why and not damaged, why)


def _garbage(archive: Archive, marks: dict[str, _Mark], limit: datetime) -> Garbage:
    garbage = Garbage()
    gone = {name for name, mark in marks.items() if mark.why == "gone" and not _marked(archive, name)}
    garbage.notes += [
        f"run {name} is kept, because it cannot be read: {mark.why}"
        for name, mark in marks.items()
        if mark.why and mark.why != "gone"
    ]
    batches: dict[str, set[str]] = defaultdict(set)
    for name, mark in marks.items():
        batches[mark.batch].add(name)
    expired = {
        batch for batch, names in batches.items() if batch and all(marks[name].expired(limit) for name in names)
    }
    if any(mark.why and not mark.batch for name, mark in marks.items() if name not in gone):
        expired = set()  # nobody knows whom that run was forked from
    expired -= _needed(marks, batches, expired)
    kept = {name: mark for name, mark in marks.items() if mark.batch not in expired and name not in gone}
    garbage.found["expired batches"] = [f"batches/{batch}/" for batch in sorted(expired)]
    garbage.found["expired runs"] = [f"runs/{name}/" for name in sorted(marks) if name not in kept]
    garbage.found["blobs and snapshots"] = [
        key
        for name, mark in sorted(kept.items())
        if mark.whole and mark.run.sealed
        for key in _unnamed(archive, name, mark)
    ]
    garbage.found["day markers"] = [f"days/{day}/" for day in archive.folders("days/") if day < f"{limit:%Y-%m-%d}"]
    garbage.found["day markers"] += [
        f"pushed/{hour}/" for hour in archive.folders("pushed/") if hour < f"{limit:%Y-%m-%d}"
    ]
    garbage.found["work marks"] = [
        key for key in archive.aged("work/", older_than_s=UNNAMED_S) if key.rpartition("/")[2] not in kept
    ]
    garbage.found["retry marks"] = [
        key for key in archive.aged("announced/", older_than_s=UNNAMED_S) if not _announced(archive, key)
    ]
    sources = {keys.source(mark.source) for mark in kept.values()}
    unreadable = any(mark.why for mark in kept.values())
    try:
        sources |= {keys.source(digest) for digest in stored.sources(archive)}
    except (IntegrityFault, NotFoundFault) as fault:
        garbage.notes.append(f"sources are kept: {fault.message}")
        unreadable = True
    if not unreadable:
        garbage.found["sources"] = [
            key for key in archive.aged("sources/", older_than_s=UNNAMED_S) if key not in sources
        ]
    if any(mark.may_prepare for mark in kept.values()):
        garbage.notes.append("environments and images are kept: a run is not prepared yet, or cannot be read")
        return garbage
    wanted = {key for mark in kept.values() for key in mark.environments}
    garbage.found["environments"] = list(_unused_environments(archive, wanted))
    garbage.found["images"] = list(_unused_images(archive, {*garbage.found["environments"]}))
    return garbage


def _marked(archive: Archive, run: str) -> bool:
    return archive.size(keys.open_marker(run)) is not None


def _announced(archive: Archive, marker: str) -> bool:
    """Whether what it marks came, and is there still."""
    _, batch, number = marker.split("/")
    return archive.size(keys.batch_retries(batch, int(number))) is not None


def _needed(marks: dict[str, _Mark], batches: dict[str, set[str]], expired: set[str]) -> set[str]:
    """Of the expired batches those that hold an ancestor of a run that stays."""
    needed: set[str] = set()
    todo = [mark.parent for mark in marks.values() if mark.parent and mark.batch not in expired]
    while todo:
        mark = marks.get(todo.pop())
        if mark is None or mark.batch in needed:
            continue
        if mark.batch in expired:
            needed.add(mark.batch)
            todo += [marks[name].parent for name in batches[mark.batch] if marks[name].parent]
        elif mark.parent:
            todo.append(mark.parent)
    return needed


def _unnamed(archive: Archive, run: str, mark: _Mark) -> Iterator[str]:
    for folder in (keys.blob(run, ""), keys.snapshot(run, "")):
        yield from (key for key in archive.aged(folder, older_than_s=UNNAMED_S) if key not in mark.parts)


def _unused_environments(archive: Archive, wanted: set[str]) -> Iterator[str]:
    """Folders of environments that no kept run names and in which nothing is young."""
    for name in sorted(archive.folders("environments/")):
        folder = f"environments/{name}/"
        if name not in wanted and set(archive.list(folder)) == set(archive.aged(folder, older_than_s=UNNAMED_S)):
            yield folder


def _unused_images(archive: Archive, unused: set[str]) -> Iterator[str]:
    wanted = set()
    for name in archive.folders("environments/"):
        if f"environments/{name}/" in unused:
            continue
        try:
            environment = PreparedEnvironment.model_validate_json(archive.get(keys.environment(name)))
        except NotFoundFault:
            continue  # half built
        except ValueError:
            return  # it may name any image
        if environment.stored_image is not None:
            wanted.add(keys.image(environment.image, environment.stored_image))
    yield from (key for key in archive.aged("images/", older_than_s=UNNAMED_S) if key not in wanted)


def _in_order(archive: Archive, folder: str) -> list[str]:
    """Everything in a folder, what others are found by first: a run without its task, or an environment without its
    env.json, is nobody's, and the next gc removes the rest."""
    first = {f"{folder}task.json", f"{folder}env.json"}
    found = list(archive.list(folder))
    return [key for key in found if key in first] + [key for key in found if key not in first]
