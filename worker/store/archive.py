"""Owns the Archive protocol and `open_archive`. Refuses to interpret keys (keys.py) or contents (journal.py)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from worker.contract.errors import StoreFault, UsageFault
from worker.contract.settings import Settings


class Archive(Protocol):
    """A create-only object store. Keys are `/`-separated, as made by keys.py, relative to the archive's root.

    Every method raises StoreFault (retryable or not, with a hint) when the store cannot be reached or refuses.
    """

    url: str
    """The address it was opened with, without credentials."""

    def create(self, key: str, data: bytes | Path) -> bool:
        """Store data under key if nothing is there: True when this call created it, False when it existed.

        Atomic and durable: after True a crash cannot lose it, a reader never sees half of it. A Path is streamed.
        Uploaded size and digest are verified.
        """
        ...

    def overwrite(self, key: str, data: bytes) -> None:
        """Write a cache or marker, never evidence (roll-ups, indexes, `open/`, `days/`)."""
        ...

    def get(self, key: str, *, max_bytes: int = 256 * 2**20) -> bytes:
        """The whole object. Raises NotFoundFault, and IntegrityFault when it is larger than max_bytes."""
        ...

    def chunks(self, key: str, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        """The object, or a range of it, in chunks of at most 1 MiB. Raises NotFoundFault at the first chunk."""
        ...

    def size(self, key: str) -> int | None:
        """Bytes of the object, None when it does not exist."""
        ...

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        """All keys below prefix (a full folder, ends with `/`, or "" for everything) that are greater than after.

        Sorted inside one folder; stores differ in how they order a folder among its neighbours, so only a folder
        without sub-folders can be read on from its last key."""
        ...

    def folders(self, prefix: str) -> Iterator[str]:
        """Names of the direct sub-folders of prefix (ends with `/`), without slash, in no order all stores share.

        A store may go on naming a folder for some time after its last object was deleted."""
        ...

    def aged(self, prefix: str, *, older_than_s: float) -> Iterator[str]:
        """Keys below prefix (as for `list`) that were written longer ago than that, by the store's clock."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Remove markers and expired objects. A key that is already gone is success."""
        ...

    def probe(self) -> None:
        """Prove that the store honours create-only writes; raises StoreFault naming the reason when it does not."""
        ...

    def sweep(self, *, older_than_s: float) -> int:
        """Remove what interrupted writers left behind (staged files, unfinished uploads); returns how many.

        older_than_s must be longer than any upload may take, since a living writer's work looks the same.
        """
        ...


def is_near(archive: Archive) -> bool:
    """Whether its objects lie on this machine: there one read after the other costs a third of what threads do."""
    return archive.url.startswith(("file:", "bundle:"))


def prove_create_only(create: Callable[[str, bytes], bool], archive: Archive, what: str) -> None:
    """Create one object twice through `create` and see the second refused and the first kept.

    what: the kind of write, for the message. Raises StoreFault, not retryable, for a store that does not honour
    conditional writes. Leaves nothing behind.
    """
    key = f"probe/{uuid.uuid4().hex}"
    try:
        first, second = create(key, b"first"), create(key, b"second")
        kept = archive.get(key, max_bytes=64)
    finally:
        archive.delete([key])
    if not first or second or kept != b"first":
        raise StoreFault(
            f"{archive.url} ignores conditional writes ({what}): a second create of one key "
            + ("was taken for a success" if second else "did not keep the first object"),
            hint="use a store that honours If-None-Match: *, such as AWS S3, MinIO or SeaweedFS, or file:///folder",
            retryable=False,
        )


def open_archive(url: str, settings: Settings) -> Archive:
    """Open `file:///folder`, `s3://bucket/prefix` or, to read only, `bundle:FILE`. The SDK loads only for s3.

    Raises UsageFault for another scheme, StoreFault when it cannot be reached. Does not probe.
    """
    if url.startswith("file://"):
        from worker.store.local import LocalArchive

        return LocalArchive(url)
    if url.startswith("s3://"):
        from worker.store.s3 import S3Archive

        return S3Archive(url, settings)
    if url.startswith("bundle:"):
        from worker.store.bundle import Bundle

        return Bundle(url)
    raise UsageFault(f"unknown archive address {url!r}", hint="use file:///folder or s3://bucket/prefix")
