"""Owns proving a sealed bundle, and putting its objects into an archive. Refuses to replace one that is there, to add
to a run or batch that is there, and a bundle of which anything is wrong.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scheduler.runs import Found
from scheduler.verify import Checked, check
from worker.contract.errors import ConflictFault, IntegrityFault
from worker.store import keys
from worker.store.archive import Archive
from worker.store.bundle import Bundle
from worker.store.content import measured
from worker.store.evidence import Tally

FOLDERS: Final = ("batches/", "environments/", "images/", "runs/", "sources/")
"""What evidence consists of. Markers are no part of it: one could have a deployment work on what has ended."""

IN_MEMORY_BYTES: Final = 8 * 2**20
APART: Final = "import it into an archive of its own: DAWN_ARCHIVE"


@dataclass(frozen=True)
class Imported:
    """new, known: how many objects were written, and were there already. runs: all that the bundle holds."""

    new: int
    known: int
    runs: tuple[str, ...]


def prove(bundle: Bundle) -> Checked:
    """Every byte, and every chain and digest in it but those of images that were left out. Raises StoreFault."""
    problems = [*bundle.problems(), *_strange(bundle)]
    if problems:
        return Checked([], problems)
    tally = Tally(said={key: "" for key, _ in bundle.index.left_out if key.startswith("images/")})
    proven = Checked([], tally=tally)
    roots = [Found(root.kind, root.id) for root in bundle.index.roots]
    for found in [*roots, *(Found("run", run) for run in bundle.folders("runs/"))]:
        if found.id not in proven.runs:
            checked = check(bundle, found, tally)
            proven.runs += checked.runs
            proven.problems += checked.problems
    proven.problems = list(dict.fromkeys(proven.problems))  # runs share objects
    return proven


def bring_in(bundle: Bundle, archive: Archive) -> Imported:
    """Create every object of a bundle in the archive, what others are found by last, so that one that was cut off is
    completed by the next. Raises IntegrityFault for a bundle of which something is wrong, ConflictFault when other
    bytes stand under one of its keys, or one is new to a run or batch that is there: then nothing was written, unless
    they came in this moment; StoreFault."""
    checked = prove(bundle)
    if checked.problems:
        more = f" and {len(checked.problems) - 1} more" if len(checked.problems) > 1 else ""
        raise IntegrityFault(f"{checked.problems[0]}{more}", hint=f"see all: dawn verify {bundle.path}")
    wanted = sorted(bundle.list(""), key=lambda key: (_rank(key), key))
    missing = [key for key in wanted if not _there(bundle, archive, key)]
    _refuse_more(archive, missing)
    for key in missing:
        if not _create(bundle, archive, key):
            _there(bundle, archive, key)
    return Imported(len(missing), len(wanted) - len(missing), tuple(checked.runs))


def _strange(bundle: Bundle) -> Iterator[str]:
    yield from (f"{key} is no part of any evidence" for key in bundle.list("") if not key.startswith(FOLDERS))


def _rank(key: str) -> int:
    """A run without task.json is nobody's, and a batch is found by its folder."""
    if key.startswith("batches/"):
        return 3
    return 2 if key.endswith("/task.json") else 1 if "/journal/" in key else 0


def _there(bundle: Bundle, archive: Archive, key: str) -> bool:
    """Whether the archive has the object. Raises ConflictFault when it has another under the key."""
    if archive.size(key) is None:
        return False
    if measured(archive, key) != (bundle.size(key), bundle.digest(key)):
        raise ConflictFault(f"{archive.url} has another object under {key}", hint=APART)
    return True


def _refuse_more(archive: Archive, missing: Sequence[str]) -> None:
    """What is whole grows by those who work on it only: no bundle approves a patch, cancels a batch or adds a retry.
    The last object of a run or batch that is written says that it is whole."""
    lasts = {}
    for key in missing:
        folder, name, *_ = key.split("/")
        if folder in ("batches", "runs"):
            lasts[keys.batch_targets(name) if folder == "batches" else keys.task(name)] = key
    for last, key in lasts.items():
        if archive.size(last) is not None:
            raise ConflictFault(f"{key} is new to what {archive.url} has already", hint=APART)


def _create(bundle: Bundle, archive: Archive, key: str) -> bool:
    if (bundle.size(key) or 0) <= IN_MEMORY_BYTES:
        return archive.create(key, bundle.get(key))
    with tempfile.NamedTemporaryFile(prefix="dawn-import-") as spool:
        for chunk in bundle.chunks(key):
            spool.write(chunk)
        spool.flush()
        return archive.create(key, Path(spool.name))
