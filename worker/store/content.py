"""Owns objects named by their own SHA-256: storing them, reading them with proof; and what an object must be to be
read at all. Refuses to trust a store's word."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from worker.contract.errors import IntegrityFault
from worker.contract.events import Digest, canonical, digest, read_json
from worker.contract.frozen import Frozen, later
from worker.store.archive import Archive

M = TypeVar("M", bound=BaseModel)


class Summed(Frozen):
    """What no journal proves: `sum` is the SHA-256 of its canonical JSON without it, None where an older version
    wrote none."""

    sum: Digest | None = later(None)

    def data(self) -> bytes:
        """The bytes that are stored, with the right sum."""
        fields = self.model_dump(mode="json", exclude={"sum"})
        return canonical(fields | {"sum": digest(canonical(fields))})


def put_content(archive: Archive, key: Callable[[str], str], data: bytes | Path) -> str:
    """Store bytes or a file under key(digest), and return the digest. Storing the same again changes nothing."""
    if isinstance(data, Path):
        with data.open("rb") as file:
            name = hashlib.file_digest(file, "sha256").hexdigest()
    else:
        name = digest(data)
    archive.create(key(name), data)
    return name


def get_content(archive: Archive, key: str, name: str, *, max_bytes: int = 256 * 2**20) -> bytes:
    """The whole object, at most max_bytes. Raises IntegrityFault when its digest is not `name`."""
    data = archive.get(key, max_bytes=max_bytes)
    if digest(data) != name:
        raise IntegrityFault(f"{key} does not have the digest {name}")
    return data


def parsed(model: type[M], data: bytes, key: str) -> M:
    """The object that lies under key, as the model it was written from. Raises IntegrityFault when it is none, or
    carries a sum that is not its own."""
    try:
        found = model.model_validate(read_json(data))
    except ValueError as error:
        raise IntegrityFault(f"{key} is not what was written") from error
    if isinstance(found, Summed) and found.sum is not None and found.data() != data:
        raise IntegrityFault(f"{key} does not have the sum that it carries")
    return found


def content_chunks(archive: Archive, key: str, name: str) -> Iterator[bytes]:
    """The object in chunks. A wrong digest shows only at the end: then the last step raises IntegrityFault, and what
    was made of the chunks before must be thrown away."""
    hasher = hashlib.sha256()
    for chunk in archive.chunks(key):
        hasher.update(chunk)
        yield chunk
    if hasher.hexdigest() != name:
        raise IntegrityFault(f"{key} does not have the digest {name}")


def measured(archive: Archive, key: str) -> tuple[int, str]:
    """Size in bytes and digest of an object, whatever its name says."""
    hasher, size = hashlib.sha256(), 0
    for chunk in archive.chunks(key):
        hasher.update(chunk)
        size += len(chunk)
    return size, hasher.hexdigest()
