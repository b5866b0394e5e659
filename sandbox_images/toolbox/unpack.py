"""Owns the unpacking of archives that strangers wrote: tar in any compression, and zip. Refuses to leave its folder.

Every member is laid down by descriptors relative to its parent folder, links never followed, so no member can be
written through a link that an earlier one made.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from cleangit import Problem

CHUNK_BYTES = 1 << 20
PATH_BYTES = 4096
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError)


@dataclass(frozen=True)
class Member:
    """One entry of an archive. target: of a link. open: its content, for a file."""

    name: str
    kind: Literal["file", "folder", "symlink", "hardlink", "other"]
    executable: bool = False
    target: str = ""
    open: Callable[[], IO[bytes]] | None = None


@dataclass(frozen=True)
class Caps:
    """What an archive may unpack to at most."""

    bytes: int
    files: int


Rename = Callable[[str], str | None]
"""The path a member gets, from its plain relative path; None leaves it out."""


def unpack(archive: Path, folder: Path, *, caps: Caps, rename: Rename, strip_top: bool, links_out: bool) -> None:
    """Lay an archive's members down below folder, which exists.

    strip_top: the one folder that everything lies in is left away, where there is one. links_out: symbolic links
    that point outside are kept as links (they are never followed), else refused.
    Raises Problem("repository") for anything unsafe, broken or over the caps.
    """
    left_bytes, left_files = caps.bytes, caps.files
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if strip_top:
            rename = _stripped(rename, _single_top(archive, caps))
        for member in _members(archive, caps):
            name = rename(_plain(member.name))
            if not name:
                continue
            left_files -= 1
            if left_files < 0:
                raise Problem("repository", f"the archive holds more than {caps.files:,} members")
            left_bytes -= _lay_down(top, name, member, left_bytes, rename, links_out)
            if left_bytes < 0:
                raise _too_large(caps)
    except _BROKEN as error:
        raise Problem("repository", f"the archive cannot be unpacked: {error}") from error
    finally:
        os.close(top)


def _single_top(archive: Path, caps: Caps) -> str:
    """The one folder that every member of the archive lies in, with a slash; "" when there is none."""
    tops = set()
    for member in _members(archive, caps):
        name = _plain(member.name)
        if name:
            tops.add(name.split("/", 1)[0] + "/" if "/" in name or member.kind == "folder" else "")
    return tops.pop() if len(tops) == 1 else ""


def _stripped(rename: Rename, top: str) -> Rename:
    return lambda name: rename(name.removeprefix(top)) if name.startswith(top) else None


def _members(archive: Path, caps: Caps) -> Iterator[Member]:
    """Raises Problem at the first member that is over the caps, before its content is read or passed over."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            for info in opened.infolist():
                yield _zip_member(opened, info)
        return
    with tarfile.open(archive, "r:*") as tar:
        left_bytes = caps.bytes
        for entry in tar:
            left_bytes -= entry.size
            if left_bytes < 0:
                raise _too_large(caps)
            yield _tar_member(tar, entry)


def _too_large(caps: Caps) -> Problem:
    return Problem("repository", f"the archive unpacks to more than {caps.bytes:,} bytes")


def _tar_member(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> Member:
    if entry.isfile():
        return Member(entry.name, "file", bool(entry.mode & 0o100), open=lambda: _content(tar, entry))
    if entry.isdir():
        return Member(entry.name, "folder")
    if entry.issym():
        return Member(entry.name, "symlink", target=entry.linkname)
    if entry.islnk():
        return Member(entry.name, "hardlink", target=entry.linkname)
    return Member(entry.name, "other")


def _content(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(entry)
    assert content is not None, "only asked for regular files"
    return content


def _zip_member(opened: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
    mode = info.external_attr >> 16
    if info.is_dir():
        return Member(info.filename, "folder")
    if stat.S_ISLNK(mode):
        with opened.open(info) as content:
            return Member(info.filename, "symlink", target=os.fsdecode(content.read(PATH_BYTES)))
    return Member(info.filename, "file", bool(mode & 0o100), open=lambda: opened.open(info))


def _plain(name: str) -> str:
    """A member's name as a plain relative path, "" for the folder itself. Raises Problem for any other."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise Problem("repository", f"the archive holds an unsafe path: {name!r}")
    return "/".join(parts)


def _lay_down(top: int, name: str, member: Member, left_bytes: int, rename: Rename, links_out: bool) -> int:
    """Write one member; returns its bytes, more than left_bytes when it was too large (and then cut)."""
    folder, _, leaf = name.rpartition("/")
    if member.kind == "folder":
        os.close(_folder(top, name))
        return 0
    parent = _folder(top, folder)
    try:
        _clear(parent, leaf, name)
        if member.kind == "symlink":
            if not links_out and _points_out(folder, member.target):
                raise Problem("repository", f"the archive holds a link that points outside: {name!r}")
            os.symlink(member.target, leaf, dir_fd=parent)
            return len(member.target)
        if member.kind == "hardlink":
            return _copy_link(top, parent, leaf, rename(_plain(member.target)), name)
        if member.kind == "file" and member.open is not None:
            with member.open() as content:
                return _write(parent, leaf, content, member.executable, left_bytes)
        raise Problem("repository", f"the archive holds something that is no file, folder or link: {name!r}")
    finally:
        os.close(parent)


def _folder(top: int, path: str) -> int:
    """A descriptor of the folder `path`, made where it is missing; a link on the way is refused."""
    current = os.dup(top)
    for part in filter(None, path.split("/")):
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=current)
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
        except OSError as error:
            raise Problem("repository", f"the archive writes through {path!r}, which is no folder") from error
        finally:
            os.close(current)
        current = below
    return current


def _clear(parent: int, leaf: str, name: str) -> None:
    """A later member of the same name replaces an earlier one, unless that is a folder."""
    try:
        os.unlink(leaf, dir_fd=parent)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise Problem("repository", f"the archive holds {name!r} as a folder and as a file") from error


def _points_out(folder: str, target: str) -> bool:
    reached = posixpath.normpath(posixpath.join(folder, target))
    return target.startswith("/") or reached == ".." or reached.startswith("../")


def _copy_link(top: int, parent: int, leaf: str, target: str | None, name: str) -> int:
    """A hard link becomes a copy of the member it names, which must be a file laid down before."""
    folder, _, source = (target or "").rpartition("/")
    holder = _folder(top, folder)
    try:
        descriptor = os.open(source or ".", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=holder)
    except OSError as error:
        raise Problem("repository", f"the archive links {name!r} to something it does not hold") from error
    finally:
        os.close(holder)
    with os.fdopen(descriptor, "rb") as content:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Problem("repository", f"the archive links {name!r} to something that is no file")
        return _write(parent, leaf, content, bool(status.st_mode & 0o100), status.st_size)


def _write(parent: int, leaf: str, content: IO[bytes], executable: bool, left_bytes: int) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    written = 0
    with os.fdopen(os.open(leaf, flags, 0o755 if executable else 0o644, dir_fd=parent), "wb") as out:
        while written <= left_bytes and (chunk := content.read(CHUNK_BYTES)):
            out.write(chunk)
            written += len(chunk)
    return written
