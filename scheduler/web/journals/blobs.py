"""Owns finding and reading what a run's events name by digest: outputs, artifacts, what checks printed. Refuses to
hold a large one: it is read by ranges, and sent in chunks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from scheduler.web.journals.stepbody import Text
from worker.contract.errors import NotFoundFault
from worker.contract.run import Run
from worker.store import keys
from worker.store.archive import Archive
from worker.store.content import content_chunks, get_content
from worker.store.lineage import ancestors

PAGE_BYTES: Final = 64 * 1024
"""Of one page of a blob."""
PROVEN_BYTES: Final = 8 * 2**20
"""A larger one is not read whole to show a page of it."""
DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Blob:
    """An object that a run names. key: where it lies."""

    key: str
    digest: str
    size: int


def find(archive: Archive, run: Run, digest: str) -> Blob:
    """An object of the run, of one that it was forked from, or of its environment. Raises NotFoundFault."""
    if not DIGEST.fullmatch(digest):
        raise NotFoundFault(f"{digest!r} is no digest of an object")
    places = [keys.blob(run.id, digest)]
    if run.prepared is not None:
        places.append(keys.environment_blob(run.prepared.environment_key, digest))
    if run.parent:
        places += [keys.blob(one, digest) for one in ancestors(archive, run.id)]
    for key in places:
        if (size := archive.size(key)) is not None:
            return Blob(key, digest, size)
    raise NotFoundFault(f"{keys.blob(run.id, digest)} is not in the archive", hint="it may have expired: dawn gc")


def whole(archive: Archive, blob: Blob) -> Iterator[bytes]:
    """Its bytes, to be kept as a file. One whose digest is wrong breaks off at its end."""
    return content_chunks(archive, blob.key, blob.digest)


@dataclass(frozen=True)
class Part:
    """A page of a blob. start, stop: in bytes. proven: its digest was compared."""

    text: Text
    start: int
    stop: int
    proven: bool


def part(archive: Archive, blob: Blob, start: int, stop: int) -> Part:
    """Some of its bytes as text. Raises IntegrityFault where it was read whole and is not what its name says."""
    if blob.size <= PROVEN_BYTES:
        data = get_content(archive, blob.key, blob.digest, max_bytes=PROVEN_BYTES)[start:stop]
    else:
        data = b"".join(archive.chunks(blob.key, start=start, length=stop - start))
    return Part(Text(data.decode("utf-8", "replace")), start, stop, blob.size <= PROVEN_BYTES)
