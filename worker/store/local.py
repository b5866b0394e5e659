"""Owns LocalArchive, an archive in a folder (`file:///folder`). Refuses file systems without hard links.

Create-only is `link(2)`: the data is staged under `.staging/`, synced, and linked to its final name, which fails
when the name is taken; then the folder is synced. A crash leaves at most a staged file, which `sweep` removes.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from worker.contract.errors import IntegrityFault, NotFoundFault, StoreFault, UsageFault
from worker.store import keys
from worker.store.archive import prove_create_only

CHUNK_BYTES = 2**20
LINK_TRIES = 10
"""A folder may be removed, being empty, between making it and linking into it: then it is made again."""

DURABLE_FOLDERS = 10_000
"""How many synced folders are remembered, to save the syncs; forgetting them costs only time."""

HINTS = {
    errno.ENOSPC: "the disk is full: free space there, or place the archive elsewhere with DAWN_ARCHIVE",
    errno.EDQUOT: "the quota is used up: free space there, or place the archive elsewhere with DAWN_ARCHIVE",
    errno.EROFS: "the file system is read-only: place the archive elsewhere with DAWN_ARCHIVE",
    errno.EACCES: "this user may not read and write there: change the owner, or set DAWN_ARCHIVE",
    errno.EPERM: "this user may not write or link there, or the file system has no hard links: set DAWN_ARCHIVE",
    errno.EOPNOTSUPP: "the file system has no hard links: place the archive elsewhere with DAWN_ARCHIVE",
}


class LocalArchive:
    """See Archive. The path in the address is taken literally: no percent decoding, so any folder name works."""

    def __init__(self, url: str) -> None:
        """url: `file:///folder`. The folder is made by the first write. Raises UsageFault for a relative path."""
        path = url.removeprefix("file://")
        if not path.startswith("/") or "\0" in path:
            raise UsageFault(f"{url!r} does not name an absolute folder", hint="write it like file:///var/lib/dawn")
        self.url = url
        self._root = Path(path)
        self._staging = self._root / ".staging"
        self._durable: set[Path] = set()

    def create(self, key: str, data: bytes | Path) -> bool:
        path = self._path(key)
        with _writing(key):
            if os.path.lexists(path):
                _sync(path.parent)  # a False must be as durable as the True it answers for
                return False
            with self._staged(data) as staged:
                try:
                    self._into_folder(path.parent, lambda: os.link(staged, path))
                except FileExistsError:
                    _sync(path.parent)
                    return False
                _sync(path.parent)
        return True

    def overwrite(self, key: str, data: bytes) -> None:
        path = self._path(key)
        with _writing(key), self._staged(data) as staged:
            self._into_folder(path.parent, lambda: os.replace(staged, path))
            _sync(path.parent)

    def get(self, key: str, *, max_bytes: int = 256 * 2**20) -> bytes:
        with _reading(key), open(self._path(key), "rb") as file:
            there = os.fstat(file.fileno()).st_size  # a read makes room for all that it is asked for
            data = file.read(min(there, max_bytes) + 1)
        if len(data) > max_bytes:
            raise IntegrityFault(f"{key} is larger than {max_bytes} bytes")
        return data

    def chunks(self, key: str, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        left = length
        with _reading(key), open(self._path(key), "rb") as file:
            file.seek(start)
            while left is None or left > 0:
                chunk = file.read(CHUNK_BYTES if left is None else min(left, CHUNK_BYTES))
                if not chunk:
                    return
                left = None if left is None else left - len(chunk)
                yield chunk

    def size(self, key: str) -> int | None:
        with _reading(key):
            try:
                found = self._path(key).stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        keys.check_folder(prefix)
        return self._walk(prefix, after)

    def folders(self, prefix: str) -> Iterator[str]:
        keys.check_folder(prefix)
        return (name[:-1] for name in self._entries(prefix) if name.endswith("/"))

    def aged(self, prefix: str, *, older_than_s: float) -> Iterator[str]:
        limit = time.time() - older_than_s
        for key in self.list(prefix):
            with _reading(key), suppress(FileNotFoundError):  # deleted meanwhile
                if self._path(key).stat().st_mtime < limit:
                    yield key

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            path = self._path(key)
            with _writing(key), suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
                _sync(self._drop_empty(path.parent))

    def probe(self) -> None:
        prove_create_only(self.create, self, "link")

    def sweep(self, *, older_than_s: float) -> int:
        swept = 0
        with _writing(".staging"):
            for path in self._staging.glob("*"):
                try:
                    if path.stat().st_mtime < time.time() - older_than_s:
                        path.unlink()
                        swept += 1
                except FileNotFoundError:
                    continue  # its writer ended meanwhile
        return swept

    def _path(self, key: str) -> Path:
        return self._root / keys.check(key)

    @contextmanager
    def _staged(self, data: bytes | Path) -> Iterator[Path]:
        """The data in a synced file of the archive's own file system, gone when the context ends."""
        self._staging.mkdir(parents=True, exist_ok=True)
        path = self._staging / f"{os.getpid()}-{uuid.uuid4().hex}"
        try:
            with open(path, "xb") as file:
                if isinstance(data, Path):
                    with open(data, "rb") as source:
                        shutil.copyfileobj(source, file, CHUNK_BYTES)
                else:
                    file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _into_folder(self, folder: Path, act: Callable[[], None]) -> None:
        """Do `act` with a durable folder, once more when somebody removed the folder in between."""
        for _ in range(LINK_TRIES - 1):
            self._make_durable(folder)
            try:
                return act()
            except FileNotFoundError:
                self._durable.clear()
        self._make_durable(folder)
        return act()

    def _make_durable(self, folder: Path) -> None:
        """Make a folder and its parents, each synced into its parent, whoever made it."""
        if folder in self._durable:
            return
        made = [folder, *folder.parents]
        inside = made[: made.index(self._root) + 1]
        self._root.parent.mkdir(parents=True, exist_ok=True)
        for path in reversed(inside):
            path.mkdir(exist_ok=True)
            _sync(path.parent)
        if len(self._durable) >= DURABLE_FOLDERS:
            self._durable.clear()
        self._durable.add(folder)

    def _drop_empty(self, folder: Path) -> Path:
        """Remove folders that became empty, as a store without folders would; returns the first that stays."""
        while folder != self._root:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                break
            folder = folder.parent
        return folder

    def _entries(self, prefix: str) -> Sequence[str]:
        """Names in a folder, folders with a slash, in the order of full keys (`a-b/` before `a/`)."""
        with _reading(prefix):
            try:
                with os.scandir(self._root / prefix) as entries:
                    return sorted(
                        f"{entry.name}/" if entry.is_dir() else entry.name
                        for entry in entries
                        if not entry.name.startswith(".")
                    )
            except (FileNotFoundError, NotADirectoryError):
                return []

    def _walk(self, prefix: str, after: str) -> Iterator[str]:
        for name in self._entries(prefix):
            key = prefix + name
            if key.endswith("/"):
                if key > after or after.startswith(key):
                    yield from self._walk(key, after)
            elif key > after:
                yield key


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _reading(key: str) -> Iterator[None]:
    """Translate what the file system says while one key is read."""
    try:
        with _writing(key):
            yield
    except StoreFault as fault:
        if isinstance(fault.__cause__, FileNotFoundError | NotADirectoryError | IsADirectoryError):
            raise NotFoundFault(f"{key} is not in the archive") from fault.__cause__
        raise


@contextmanager
def _writing(key: str) -> Iterator[None]:
    """Translate what the file system says while one key is written, where nothing is allowed to be missing."""
    try:
        yield
    except OSError as error:
        hint = HINTS.get(error.errno or 0, "")
        what = f"{error.strerror} ({error.filename})" if error.filename else error.strerror
        raise StoreFault(f"the archive failed at {key}: {what}", hint=hint) from error
