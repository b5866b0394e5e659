"""Owns the sealed bundle: objects of an archive in one tar, with an index of their digests, read as an archive
without being unpacked. Refuses whatever it would not have written itself, to the byte, and every write.

The tar's first member, `bundle.json`, is the index; the objects follow in its order, under their keys. As a header is
a function of name and size, the index alone says what every byte of the file but the contents must be, and the
contents have digests. So a flipped byte anywhere is found, and no link, device, sparse file, doubled or strange name
can be in one. Whoever makes a bundle anew can make it say anything: the digest of the whole file is what to keep
elsewhere.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Annotated, Final, Literal, NamedTuple, NoReturn

from pydantic import Field, ValidationError

from worker.contract.errors import (
    IntegrityFault,
    InvalidFault,
    NotFoundFault,
    StoreFault,
    UsageFault,
    VersionFault,
)
from worker.contract.events import Digest, canonical, digest, read_json
from worker.contract.task import Frozen
from worker.store import keys, tar
from worker.store.archive import Archive

SCHEME: Final = "bundle:"
INDEX: Final = "bundle.json"
BUNDLE_VERSION: Final = 1
INDEX_BYTES: Final = 64 * 2**20
"""Largest index: about 300,000 objects."""
CHUNK_BYTES: Final = 2**20

Size = Annotated[int, Field(ge=0, lt=2**53)]


class Root(Frozen):
    """What a bundle was made of."""

    kind: Literal["batch", "run"]
    id: str


class Index(Frozen):
    """versions: of the nouns that are written when the bundle is made, by name. objects: key, size and digest of
    each, sorted by key. left_out: key and digest of what belongs to it and is not inside (images)."""

    v: Literal[1] = BUNDLE_VERSION
    versions: dict[str, int]
    roots: tuple[Root, ...]
    objects: tuple[tuple[str, Size, Digest], ...]
    left_out: tuple[tuple[str, Digest], ...] = ()

    def data(self) -> bytes:
        """Canonical JSON with the digest of the rest of it, `sum`."""
        fields = self.model_dump(mode="json")
        return canonical(fields | {"sum": digest(canonical(fields))})

    @classmethod
    def parse(cls, data: bytes) -> Index:
        """Raises IntegrityFault for what `data` did not write, VersionFault for what a newer one did."""
        try:
            fields = read_json(data)
            said = dict(fields)
            if said.pop("sum") != digest(canonical(said)) or canonical(fields) != data:
                raise ValueError("its bytes are not those that were written")
            if isinstance(said["v"], int) and said["v"] > BUNDLE_VERSION:
                raise VersionFault(
                    f"{INDEX} has version {said['v']}, this Dawnfleet knows {BUNDLE_VERSION}",
                    hint="upgrade Dawnfleet",
                )
            return cls.model_validate(said)
        except (ValueError, TypeError, KeyError) as error:
            what = "is not of its shape" if isinstance(error, ValidationError | KeyError | TypeError) else str(error)
            raise IntegrityFault(f"{INDEX}: {what}") from error


class _Place(NamedTuple):
    offset: int
    size: int
    digest: str


def write(archive: Archive, index: Index, out: IO[bytes]) -> str:
    """Write the bundle of objects that the index names; returns the SHA-256 of all of it.

    Raises IntegrityFault when an object is not what the index says, NotFoundFault, StoreFault.
    """
    whole = hashlib.sha256()

    def put(data: bytes) -> None:
        whole.update(data)
        out.write(data)

    data = index.data()
    put(tar.header(INDEX, len(data)) + data + tar.padding(len(data)))
    for key, size, name in index.objects:
        put(tar.header(key, size))
        hasher, length = hashlib.sha256(), 0
        for chunk in archive.chunks(key):
            hasher.update(chunk)
            length += len(chunk)
            put(chunk)
        if (length, hasher.hexdigest()) != (size, name):
            raise IntegrityFault(f"{key} changed while it was read")
        put(tar.padding(size))
    put(tar.END)
    return whole.hexdigest()


class Bundle:
    """A bundle as an Archive that takes no writes: those raise UsageFault. url: `bundle:` and the path.

    Its whole structure is proven when it is opened, contents when they are read: a whole object that does not have
    its digest raises IntegrityFault, at the end where it comes in chunks; of a part nothing is proven.
    """

    def __init__(self, url: str) -> None:
        """Raises NotFoundFault, StoreFault for a file that cannot be read, IntegrityFault for what is no bundle, or
        not one that was written so, VersionFault."""
        self.url = url
        self.path = Path(url.removeprefix(SCHEME))
        try:
            with self._open() as file:
                self.index, start = _index(file)
                self._places = _places(file, self.index, start)
        except IntegrityFault as fault:
            raise IntegrityFault(f"{self.path}: {fault.message}", hint=fault.hint or "get it anew") from fault
        self._keys = list(self._places)

    def digest(self, key: str) -> str:
        """What the index says of an object. Raises NotFoundFault."""
        return self._place(key).digest

    def get(self, key: str, *, max_bytes: int = 256 * 2**20) -> bytes:
        if self._place(key).size > max_bytes:
            raise IntegrityFault(f"{key} is larger than {max_bytes} bytes")
        return b"".join(self.chunks(key))

    def chunks(self, key: str, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        place = self._place(key)
        left = max(0, place.size - start) if length is None else max(0, min(length, place.size - start))
        hasher = hashlib.sha256() if left == place.size else None
        with self._open() as file:
            file.seek(place.offset + start)
            while left:
                chunk = file.read(min(left, CHUNK_BYTES))
                if not chunk:
                    raise IntegrityFault(f"{self.path} became shorter while it was read")
                left -= len(chunk)
                if hasher is not None:
                    hasher.update(chunk)
                yield chunk
        if hasher is not None and hasher.hexdigest() != place.digest:
            raise IntegrityFault(f"{key} does not have the digest {place.digest}")

    def size(self, key: str) -> int | None:
        place = self._places.get(key)
        return None if place is None else place.size

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        keys.check_folder(prefix)
        first = max(bisect_left(self._keys, prefix), bisect_right(self._keys, after))
        for key in self._keys[first:]:
            if not key.startswith(prefix):
                return
            yield key

    def folders(self, prefix: str) -> Iterator[str]:
        inside = (key.removeprefix(prefix) for key in self.list(prefix))
        return iter(dict.fromkeys(name.partition("/")[0] for name in inside if "/" in name))

    def aged(self, prefix: str, *, older_than_s: float) -> Iterator[str]:
        """None: nothing in a bundle has an age."""
        keys.check_folder(prefix)
        return iter(())

    def create(self, key: str, data: bytes | Path) -> bool:
        keys.check(key)
        self._refuse()

    def overwrite(self, key: str, data: bytes) -> None:
        self._refuse()

    def delete(self, keys: Iterable[str]) -> None:
        self._refuse()

    def probe(self) -> None:
        self._refuse()

    def sweep(self, *, older_than_s: float) -> int:
        self._refuse()

    def problems(self) -> Sequence[str]:
        """One line for each object whose bytes do not have their digest. Raises StoreFault."""
        found = []
        for key in self._keys:
            try:
                for _ in self.chunks(key):
                    pass
            except IntegrityFault as fault:
                found.append(fault.message)
        return found

    def _place(self, key: str) -> _Place:
        try:
            return self._places[key]
        except KeyError:
            raise NotFoundFault(f"{key} is not in {self.path}") from None

    def _refuse(self) -> NoReturn:
        raise UsageFault(f"{self.path} is a bundle and takes no writes", hint=f"dawn import {self.path}")

    def _open(self) -> IO[bytes]:
        if not self.path.is_file():
            raise NotFoundFault(f"{self.path} is no file", hint="name a bundle that dawn export made")
        try:
            return open(self.path, "rb")
        except OSError as error:
            raise StoreFault(f"{self.path} cannot be read: {error.strerror}", retryable=False) from error


def _index(file: IO[bytes]) -> tuple[Index, int]:
    """The index and where the first object's header stands."""
    head = file.read(tar.BLOCK_BYTES)
    try:
        size = int(head[124:135], 8)
    except ValueError:
        size = -1
    if not 0 <= size <= INDEX_BYTES or head != tar.header(INDEX, size):
        raise IntegrityFault("is no bundle: it does not begin with its index", hint="dawn export --format bundle")
    data = file.read(size)
    rest = tar.padding(size)
    if len(data) != size or file.read(len(rest)) != rest:
        raise IntegrityFault("its index is cut")
    return Index.parse(data), len(head) + size + len(rest)


def _places(file: IO[bytes], index: Index, start: int) -> dict[str, _Place]:
    """Where each object's bytes stand. Everything between them must be as it was written."""
    places: dict[str, _Place] = {}
    last = ""
    for key, size, name in index.objects:
        if key <= last or key == INDEX:
            raise IntegrityFault(f"{INDEX}: its keys are not sorted")
        last = key
        try:
            header = tar.header(keys.check(key), size)
        except InvalidFault as fault:
            raise IntegrityFault(f"{INDEX}: {fault.message}") from fault
        _expect(file, start, header, f"the header of {key}")
        places[key] = _Place(start + len(header), size, name)
        start += len(header) + size
        _expect(file, start, tar.padding(size), f"what stands behind {key}")
        start += len(tar.padding(size))
    _expect(file, start, tar.END, "its end")
    if file.read(1):
        raise IntegrityFault("something stands behind its end")
    return places


def _expect(file: IO[bytes], offset: int, data: bytes, what: str) -> None:
    file.seek(offset)
    if file.read(len(data)) != data:
        raise IntegrityFault(f"{what} is not what was written")


def opened(word: str) -> Bundle | None:
    """The bundle that a word names, None where it names no file. Raises as Bundle."""
    path = Path(word.removeprefix(SCHEME))
    if not word.startswith(SCHEME) and not path.is_file():
        return None
    return Bundle(f"{SCHEME}{path.absolute()}")
