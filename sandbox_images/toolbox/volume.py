"""Owns the volume: every look at it and every change of it is relative to an open folder, links never followed.
Refuses a path that could lead out of its three folders."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator

MODES = {"base": 0o755, "home": 0o700, "repo": 0o755}
TOPS = tuple(MODES)
DEPTH_MAX = 200
"""Folders inside folders. Nothing people write is deeper, and each level costs an open descriptor."""
CHUNK_BYTES = 1 << 20

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# NONBLOCK: should a FIFO ever take a file's place, its open returns.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """A request that is answered with an error. kind: too_large, bad_request or io."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Volume:
    """The folder that holds repo/, home/ and base/. Paths are relative to it, `repo/a/b`."""

    def __init__(self, root: str) -> None:
        self._root = os.open(root, _FOLDER)
        self._near: tuple[str, int] | None = None

    def parent(self, path: str) -> tuple[int, str]:
        """A descriptor of the folder that holds path (ours until the next call), and path's last component.

        Raises Refused("bad_request") for a path that is not plainly inside, or that leads through a link."""
        folder, _, name = path.rpartition("/")
        parts = path.split("/")
        if parts[0] not in TOPS or "\0" in path or any(part in {"", ".", ".."} for part in parts):
            raise Refused("bad_request", f"{path!r} is not a path inside the volume")
        if len(parts) > DEPTH_MAX + 1:
            raise Refused("too_large", f"{'/'.join(parts[:3])}/... lies more than {DEPTH_MAX} folders deep")
        if not folder:
            return self._root, name
        if self._near is None or self._near[0] != folder:
            self.forget()
            self._near = folder, self._open_folder(folder)
        return self._near[1], name

    def forget(self) -> None:
        """Close the folder that `parent` keeps open: after folders were moved or removed."""
        if self._near is not None:
            os.close(self._near[1])
            self._near = None

    def _open_folder(self, path: str) -> int:
        here = os.dup(self._root)
        try:
            for part in path.split("/"):
                below = os.open(part, _FOLDER, dir_fd=here)
                os.close(here)
                here = below
        except OSError as error:
            os.close(here)
            if error.errno in {errno.ENOTDIR, errno.ELOOP}:
                raise Refused("bad_request", f"{path!r} leads through something that is no folder") from error
            raise
        return here

    def stat(self, path: str) -> os.stat_result | None:
        """Of the entry itself; None when there is none."""
        parent, name = self.parent(path)
        try:
            return os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open_file(self, path: str) -> int:
        """A descriptor of a regular file, for reading."""
        parent, name = self.parent(path)
        descriptor = os.open(name, _READ, dir_fd=parent)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise Refused("bad_request", f"{path!r} is not a regular file")
        return descriptor

    def chunks(self, path: str) -> Iterator[bytes]:
        """The content of a regular file."""
        descriptor = self.open_file(path)
        try:
            while chunk := os.read(descriptor, CHUNK_BYTES):
                yield chunk
        finally:
            os.close(descriptor)

    def link_target(self, path: str) -> str:
        parent, name = self.parent(path)
        return os.readlink(name, dir_fd=parent)

    def entries(self, top: str, enter: Callable[[str, str], bool]) -> Iterator[tuple[int, str, os.DirEntry[str]]]:
        """(descriptor of its folder, path, entry) of all below top, a folder before its contents.

        enter(path, name): whether to go into that folder. Raises Refused("too_large") below DEPTH_MAX."""
        first = self._open_folder(top)
        stack = [(first, top, os.scandir(first))]
        try:
            while stack:
                descriptor, prefix, listing = stack[-1]
                entry = next(listing, None)
                if entry is None:
                    stack.pop()
                    listing.close()
                    os.close(descriptor)
                    continue
                path = f"{prefix}/{entry.name}"
                yield descriptor, path, entry
                if entry.is_dir(follow_symlinks=False) and enter(path, entry.name):
                    if len(stack) >= DEPTH_MAX:
                        raise Refused("too_large", f"folders are nested deeper than {DEPTH_MAX} below {top}/")
                    below = os.open(entry.name, _FOLDER, dir_fd=descriptor)
                    stack.append((below, path, os.scandir(below)))
        finally:
            for descriptor, _, listing in stack:
                listing.close()
                os.close(descriptor)

    def make_folder(self, path: str) -> int:
        """Make it unless it is there; a descriptor of it, which the caller closes."""
        parent, name = self.parent(path)
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
        return os.open(name, _FOLDER, dir_fd=parent)

    def create_file(self, path: str) -> int:
        """A descriptor of a new, empty file, for writing; the caller closes it."""
        parent, name = self.parent(path)
        return os.open(name, _WRITE, 0o600, dir_fd=parent)

    def remove(self, path: str) -> None:
        """Remove an entry and all below it; already gone is success."""
        parent, name = self.parent(path)
        try:
            os.unlink(name, dir_fd=parent)
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            self._remove_folder(parent, name)
            self.forget()

    def _remove_folder(self, parent: int, name: str) -> None:
        """Every folder is moved to the volume's root before it is emptied: any depth, no recursion."""
        moved = 1
        os.rename(name, ".removed-1", src_dir_fd=parent, dst_dir_fd=self._root)
        waiting = [".removed-1"]
        while waiting:
            here = waiting.pop()
            descriptor = os.open(here, _FOLDER, dir_fd=self._root)
            with os.scandir(descriptor) as listing:
                for entry in listing:
                    if entry.is_dir(follow_symlinks=False):
                        moved += 1
                        waiting.append(f".removed-{moved}")
                        os.rename(entry.name, waiting[-1], src_dir_fd=descriptor, dst_dir_fd=self._root)
                    else:
                        os.unlink(entry.name, dir_fd=descriptor)
            os.close(descriptor)
            os.rmdir(here, dir_fd=self._root)

    def empty(self) -> None:
        """Remove everything below the three folders."""
        for top in TOPS:
            descriptor = self._open_folder(top)
            names = os.listdir(descriptor)
            os.close(descriptor)
            for name in names:
                self.remove(f"{top}/{name}")

    def free_bytes(self) -> int:
        """What is left on the file system that holds the volume."""
        found = os.fstatvfs(self._root)
        return found.f_bavail * found.f_frsize

    def used_bytes(self) -> int:
        """What the volume takes on disk, also while a call changes it: what vanishes meanwhile does not count.

        Raises Refused("too_large") for folders deeper than a snapshot takes."""
        total = 0
        for path, _, names, folder in os.fwalk(".", dir_fd=self._root, follow_symlinks=False):
            if path.count("/") > DEPTH_MAX:
                raise Refused("too_large", f"a folder lies more than {DEPTH_MAX} folders deep")
            for name in names:
                with contextlib.suppress(OSError):
                    total += os.stat(name, dir_fd=folder, follow_symlinks=False).st_blocks * 512
        return total

    def make_tops(self, agent: int) -> None:
        """Make the three folders and give them their owners: base is root's, the others the agent's."""
        for top, mode in MODES.items():
            descriptor = self.make_folder(top)
            owner = 0 if top == "base" else agent
            os.fchown(descriptor, owner, owner)
            os.fchmod(descriptor, mode)
            os.close(descriptor)

    def own(self, agent: int) -> None:
        """Give all of repo/ and home/ to the agent and all of base/ to root, readable to everybody and writable to
        nobody else. A link is given, what it points to is not."""
        self.make_tops(agent)
        for top in TOPS:
            owner = 0 if top == "base" else agent
            for folder, _, entry in self.entries(top, lambda path, name: True):
                os.chown(entry.name, owner, owner, dir_fd=folder, follow_symlinks=False)
                if top == "base" and not entry.is_symlink():
                    readable = 0o555 if entry.is_dir(follow_symlinks=False) else 0o444
                    mode = entry.stat(follow_symlinks=False).st_mode
                    os.chmod(entry.name, (mode | readable) & 0o755, dir_fd=folder)

    def replace_file(self, path: str, chunks: Iterable[bytes]) -> None:
        """Write a file of root's in one step: readers see the old one or the new one."""
        if path.rpartition("/")[0] not in TOPS:
            raise Refused("bad_request", f"{path!r} must be a plain name in one of the three folders")
        half = f"{path}.half"
        self.remove(half)
        descriptor = self.create_file(half)
        try:
            for chunk in chunks:
                write_all(descriptor, chunk)
            os.fchmod(descriptor, 0o644)
        except BaseException:
            self.remove(half)
            raise
        finally:
            os.close(descriptor)
        parent, name = self.parent(path)
        os.rename(f"{name}.half", name, src_dir_fd=parent, dst_dir_fd=parent)


def write_all(descriptor: int, data: bytes) -> None:
    """All of data, however the system cuts it."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
