"""Owns the walk from a path's text to a place beneath a root. Refuses to let the kernel follow a link.

Paths are walked one part at a time on folder descriptors; a link is read and walked the same way, so one that is
swapped meanwhile leads nowhere. What is written appears at once or not at all.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from typing import NamedTuple

LINKS_MAX = 40


class Refused(Exception):
    """The text says why nothing was done."""


class Place(NamedTuple):
    """Where a path leads: name (never a link, "" for the folder itself) in the open folder; missing: parents."""

    folder: int
    name: str
    missing: tuple[str, ...] = ()


class Root:
    """The tree that every path must stay in, and the folder in it where relative paths begin."""

    def __init__(self, path: str, folder: str) -> None:
        self.path = os.path.abspath(path)
        self.folder = folder
        self.descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)

    def find(self, path: str) -> Place:
        """Walk to path. Raises Refused when it, or a link on the way, leads out."""
        if "\0" in path:
            raise Refused("a path cannot hold a NUL byte")
        todo = self._parts(path, path) if path.startswith("/") else [*self.folder.split("/"), *path.split("/")]
        todo = [part for part in todo if part not in ("", ".")]
        stack: list[tuple[str, int]] = []
        links = 0
        while todo:
            part = todo.pop(0)
            here = stack[-1][1] if stack else self.descriptor
            if part == "..":
                if not stack:
                    raise self._outside(path, os.path.normpath("/".join([self.path, "..", *todo])))
                os.close(stack.pop()[1])
                continue
            try:
                mode = os.stat(part, dir_fd=here, follow_symlinks=False).st_mode
            except FileNotFoundError:
                if ".." in todo:
                    raise Refused(f"{path}: no such file or folder") from None
                return Place(here, todo[-1], (part, *todo[:-1])) if todo else Place(here, part)
            if stat.S_ISLNK(mode):
                links += 1
                if links > LINKS_MAX:
                    raise Refused(f"{path}: its links lead in a circle")
                target = os.readlink(part, dir_fd=here)
                if target.startswith("/"):
                    todo[:0] = self._parts(target, path)
                    while stack:
                        os.close(stack.pop()[1])
                else:
                    todo[:0] = [piece for piece in target.split("/") if piece not in ("", ".")]
            elif not todo:
                return Place(here, part)
            elif not stat.S_ISDIR(mode):
                raise Refused(f"{path}: {part} is not a folder")
            else:
                stack.append((part, os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)))
        return Place(stack[-1][1] if stack else self.descriptor, "")

    def _parts(self, absolute: str, asked: str) -> list[str]:
        """The parts below the root of an absolute path; a ".." in it is judged while walking."""
        if absolute != self.path and not absolute.startswith(self.path + "/"):
            raise self._outside(asked, os.path.normpath(absolute))
        return [part for part in absolute[len(self.path) :].split("/") if part not in ("", ".")]

    def _outside(self, asked: str, resolved: str) -> Refused:
        return Refused(f"{asked} leads to {resolved}, which is outside of {self.path}; nothing was done")


@contextlib.contextmanager
def open_file(place: Place, path: str) -> Iterator[int]:
    exists(place, path)
    if kind(place) == "folder":
        raise Refused(f"{path} is a folder; use list_files")
    if kind(place) != "file":
        raise Refused(f"{path} is not a regular file but a {kind(place)}")
    file = os.open(place.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place.folder)
    try:
        yield file
    finally:
        os.close(file)


@contextlib.contextmanager
def open_folder(place: Place, path: str) -> Iterator[int]:
    exists(place, path)
    if kind(place) != "folder":
        raise Refused(f"{path} is not a folder; use read_file")
    folder = os.open(place.name or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place.folder)
    try:
        yield folder
    finally:
        os.close(folder)


def exists(place: Place, path: str) -> None:
    if place.missing or kind(place) is None:
        raise Refused(f"{path}: no such file or folder")


def kind(place: Place) -> str | None:
    """What stands there, None for nothing."""
    if not place.name:
        return "folder"
    try:
        mode = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link", stat.S_IFIFO: "fifo"}
    return kinds.get(stat.S_IFMT(mode), "device or socket")


def replace(place: Place, data: bytes, mode: int | None) -> None:
    """Put data there at once: a reader sees the old bytes or the new ones. mode: None for a new file's usual one."""
    folder = place.folder
    for part in place.missing:
        os.mkdir(part, dir_fd=folder)
        folder = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    new = f".{secrets.token_hex(8)}.tmp"
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=folder)
    try:
        with open(file, "wb") as stream:
            stream.write(data)
            if mode is not None:
                os.fchmod(stream.fileno(), mode & 0o777)
        os.replace(new, place.name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(new, dir_fd=folder)
        raise
