"""Owns one snapshot's way out of the volume and back in. Refuses whatever would lead outside."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence

import tarball
from tarball import Member, Reader
from volume import TOPS, Refused, Volume, write_all
from walk import Entry, Walk, in_order


def pack(volume: Volume, walk: Walk, *, full: bool) -> Iterator[bytes]:
    """The tar of a walk: everything when full, else what it says was removed and changed.

    Raises Refused("io") when a file is no longer what the walk found; what came before is worthless then."""
    removed = b"".join(os.fsencode(path) + b"\0" for path in ([] if full else walk.removed))
    yield tarball.head(Member(tarball.REMOVED, tarball.FILE, size=len(removed)))
    yield removed + tarball.padding(len(removed))
    first_names: dict[int, str] = {}
    for path in in_order(walk.entries if full else walk.changed):
        member = _member(volume, path, walk.entries[path], first_names)
        yield tarball.head(member)
        if member.kind == tarball.FILE:
            left = member.size
            for chunk in volume.chunks(path):
                left -= len(chunk)
                yield chunk
            if left:
                raise Refused("io", f"{path!r} changed while it was read: the volume is not quiet")
            yield tarball.padding(member.size)
    yield tarball.END


def _member(volume: Volume, path: str, entry: Entry, first_names: dict[int, str]) -> Member:
    mode, size, inode, mtime_ns, _, uid, gid, links = entry.signature
    kind, target = tarball.FIFO, ""
    if stat.S_ISDIR(mode):
        kind = tarball.FOLDER
    elif stat.S_ISLNK(mode):
        kind, target = tarball.LINK, volume.link_target(path)
    elif stat.S_ISREG(mode):
        # A link made or unmade changes the inode, so all names of one are in the same snapshot.
        first = first_names.setdefault(inode, path) if links > 1 else path
        kind, target = (tarball.FILE, "") if first == path else (tarball.HARD_LINK, first)
    return Member(path, kind, mode & 0o7777, uid, gid, size if kind == tarball.FILE else 0, mtime_ns, target)


class Layer:
    """Lays down the parts of a chain, the full one first, on a volume that was emptied."""

    def __init__(self, volume: Volume, *, workspace_bytes: int | None, workspace_files: int | None) -> None:
        self._volume = volume
        self._bytes_left = workspace_bytes
        self._files_left = workspace_files
        self._folder_times: dict[str, int] = {}

    def lay(self, read: Callable[[int], bytes]) -> None:
        """Apply one part; read(n) gives exactly n bytes. Raises Refused, after which the volume is half laid."""
        reader = Reader(read)
        members = reader.members()
        first = next(members, None)
        if first is None or first.path != tarball.REMOVED or first.kind != tarball.FILE:
            raise Refused("bad_request", "not a snapshot of ours: its first member is not the list of removed paths")
        self._remove(b"".join(reader.content()).split(b"\0")[:-1])
        for member in members:
            self._count(member)
            self._touch_above(member.path)
            self._place(member, reader)
        # Last, because making entries in a folder moved its time on.
        for path in in_order(self._folder_times):
            found = self._volume.stat(path)
            if found is not None and stat.S_ISDIR(found.st_mode):
                self._set_time(path, self._folder_times[path])
        self._folder_times = {}

    def _remove(self, paths: Sequence[bytes]) -> None:
        for path in map(os.fsdecode, paths):
            if path in TOPS:
                raise Refused("bad_request", f"{path}/ itself is never removed")
            self._touch_above(path)
            self._volume.remove(path)

    def _count(self, member: Member) -> None:
        if self._files_left is not None:
            self._files_left -= 1
        if self._bytes_left is not None:
            self._bytes_left -= member.size
        if (self._files_left or 0) < 0 or (self._bytes_left or 0) < 0:
            raise Refused("too_large", "the snapshots hold more than a workspace may")

    def _touch_above(self, path: str) -> None:
        """Remember a folder's time before something in it changes (a file that is written again, say)."""
        folder = path.rpartition("/")[0]
        if folder and folder not in self._folder_times:
            found = self._volume.stat(folder)
            if found is not None:
                self._folder_times[folder] = found.st_mtime_ns

    def _place(self, member: Member, reader: Reader) -> None:
        volume, path = self._volume, member.path
        found = volume.stat(path)
        if member.kind == tarball.FOLDER:
            if found is not None and not stat.S_ISDIR(found.st_mode):
                volume.remove(path)
            descriptor = volume.make_folder(path)
            _own(descriptor, member)
            self._folder_times[path] = member.mtime_ns
            return
        if path in TOPS:
            raise Refused("bad_request", f"{path}/ is always a folder")
        if found is not None:
            volume.remove(path)
        if member.kind == tarball.FILE:
            descriptor = volume.create_file(path)
            try:
                for chunk in reader.content():
                    write_all(descriptor, chunk)
            finally:
                _own(descriptor, member)
        elif member.kind == tarball.HARD_LINK:
            self._link(member)
        else:
            parent, name = volume.parent(path)
            if member.kind == tarball.LINK:
                os.symlink(member.target, name, dir_fd=parent)
                os.chown(name, member.uid, member.gid, dir_fd=parent, follow_symlinks=False)
            else:
                os.mkfifo(name, 0o600, dir_fd=parent)
                _own(os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=parent), member)
        self._set_time(path, member.mtime_ns)

    def _link(self, member: Member) -> None:
        found = self._volume.stat(member.target)
        if found is None or not stat.S_ISREG(found.st_mode):
            raise Refused(
                "bad_request", f"{member.path!r} links to {member.target!r}, which is no file of the volume"
            )
        source, source_name = self._volume.parent(member.target)
        source = os.dup(source)
        try:
            parent, name = self._volume.parent(member.path)
            os.link(source_name, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(source)

    def _set_time(self, path: str, time_ns: int) -> None:
        parent, name = self._volume.parent(path)
        os.utime(name, ns=(time_ns, time_ns), dir_fd=parent, follow_symlinks=False)


def _own(descriptor: int, member: Member) -> None:
    """Give owner and mode (in this order: a new owner takes setuid bits away), and close the descriptor."""
    # By its name under /proc, because a descriptor opened with O_PATH (a FIFO's) takes nothing else.
    name = f"/proc/self/fd/{descriptor}"
    try:
        os.chown(name, member.uid, member.gid)
        os.chmod(name, member.mode)
    finally:
        os.close(descriptor)
