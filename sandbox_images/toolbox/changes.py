"""Owns what a work tree is apart from its start commit: each listed path compared by git's own object id.

Refuses to run git on the work tree: the bytes of the listed paths are read here, links not followed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import ignore
from cleangit import BASE, REPO, Problem, object_format, tree_entries

READ_FACTOR = 4
"""Tracked files are read up to this many times the patch's cap: a large file may have a small change."""
NAMED_MAX = 100
"""More left-out paths than this are counted by their top folder."""
CHUNK_BYTES = 1 << 20
PREPARED = "prepared"
"""File in base/: the listing of the work tree after setup."""

LFS = "lfs"
"""And in base/: path and SHA-256 of each file whose content came from Git LFS."""

Listing = Iterable[tuple[bytes, str, str]]
"""(path, mode, SHA-256 of the content), as Workspace.tree() gives it."""


@dataclass(frozen=True)
class Caps:
    """Bytes of one file in the patch, and of the whole patch."""

    file_bytes: int
    patch_bytes: int

    @property
    def full(self) -> str:
        return f"the patch is full at {self.patch_bytes:,} bytes"

    def over(self, size: int, what: str) -> str:
        return f"{what} of {size:,} bytes, over the cap of {self.file_bytes:,} for one file"


@dataclass(frozen=True)
class Written:
    """A new or changed path. sha256: what the listing says. known: the base holds this object already."""

    path: bytes
    mode: str
    sha256: str
    oid: str
    size: int
    known: bool

    def content(self) -> bytes:
        """Its bytes. Raises Problem when they are no longer those of the listing."""
        with opened(self.path, self.mode) as (content, _):
            data = content.read()
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise Problem("patch", f"{shown(self.path)} changed while the patch was made")
        return data


@dataclass
class Change:
    """All that differs from the base in one part: the repository, or its submodules together."""

    written: list[Written] = field(default_factory=list)
    deleted: list[bytes] = field(default_factory=list)


class LeftOut:
    """Paths that are not in the patch, and why."""

    def __init__(self) -> None:
        self._reasons: dict[bytes, str] = {}

    def add(self, path: bytes, reason: str) -> None:
        self._reasons[path] = reason

    def summary(self) -> dict[str, str]:
        """Path -> reason; when there are many, top folder -> counts and reasons."""
        if len(self._reasons) <= NAMED_MAX:
            return {shown(path): reason for path, reason in sorted(self._reasons.items())}
        counts = Counter((b"".join(path.partition(b"/")[:2]), why) for path, why in self._reasons.items())
        tops: dict[str, str] = {}
        for (top, why), number in sorted(counts.items()):
            said = f"{number:,} files: {why}" if number > 1 else why
            before = tops.get(shown(top))
            tops[shown(top)] = f"{before}; {said}" if before else said
        return tops


class Base:
    """The start commit in /workspace/base. entries: path -> (mode, object id), those of submodules included.

    links: paths of all submodules; submodules: (path, commit) of the fetched ones, parents first. prepared: the work
    tree as `setup` left it, None where no setup ran: what lies there unchanged is not the agent's doing. lfs:
    path -> SHA-256 of contents that came from Git LFS, where the commit has pointers.
    """

    def __init__(self) -> None:
        self.git_dir = BASE / "git"
        self.object_format = object_format(self.git_dir)
        self.commit = (BASE / "commit").read_text().strip()
        listed = json.loads((BASE / "submodules").read_text())
        self.submodules = [(os.fsencode(path), commit) for path, commit in listed]
        self.prepared = _listed(BASE / PREPARED)
        fetched = json.loads((BASE / LFS).read_text()) if (BASE / LFS).is_file() else []
        self.lfs = {os.fsencode(path): sha256 for path, sha256 in fetched}
        self.entries: dict[bytes, tuple[str, str]] = {}
        self.links: set[bytes] = set()
        for place, commit in [(b"", self.commit), *self.submodules]:
            for path, mode, oid in tree_entries(self.git_dir, commit):
                whole = os.path.join(place, path)
                if mode == "160000":
                    self.links.add(whole)
                else:
                    self.entries[whole] = (_plain_mode(mode), oid)

    def compare(self, listing: Listing, caps: Caps, reports: list[ignore.Pattern]) -> tuple[Change, Change, LeftOut]:
        """What the work tree changes in the repository and in its submodules, and what is left out. reports: name
        what checks write."""
        repository, submodules, left_out = Change(), Change(), LeftOut()
        fetched = tuple(place + b"/" for place, _ in self.submodules)

        def part(path: bytes) -> Change:
            return submodules if fetched and path.startswith(fetched) else repository

        known, in_lfs = {oid for _, oid in self.entries.values()}, set(self.lfs.values())
        new: list[Written] = []
        seen = set()
        room = READ_FACTOR * caps.patch_bytes
        for path, mode, sha256 in listing:
            seen.add(path)
            reason = self._impossible(path, fetched)
            if reason:
                left_out.add(path, reason)
                continue
            if path not in self.entries and ignore.named(reports, path):
                left_out.add(path, "a report of a check")
                continue
            if self.lfs and self.lfs.get(path) == sha256 and self.entries[path][0] == mode:
                continue
            size, oid = _object_id(path, mode, self.object_format)
            if self.entries.get(path) == (mode, oid):
                continue
            if path in self.lfs or sha256 in in_lfs:
                left_out.add(path, "kept in Git LFS, whose contents are no part of a patch")
                continue
            if self.prepared is not None and self.prepared.get(path) == (mode, sha256):
                left_out.add(path, "changed by setup" if path in self.entries else "made by setup")
                continue
            written = Written(path, mode, sha256, oid, size, oid in known)
            if path not in self.entries and not written.known:
                new.append(written)
            elif not written.known and size > min(caps.patch_bytes, room):
                left_out.add(path, f"changed, and with {size:,} bytes too large to compare")
            else:
                room -= 0 if written.known else size
                part(path).written.append(written)
        # New files come last: a flood of them never pushes out an edit.
        room = caps.patch_bytes
        for written in new:
            if written.size > caps.file_bytes:
                left_out.add(written.path, caps.over(written.size, "a new file"))
            elif written.size > room:
                left_out.add(written.path, caps.full)
            else:
                room -= written.size
                part(written.path).written.append(written)
        for path in sorted(self.entries.keys() - seen):
            if self.prepared is not None and path not in self.prepared:
                left_out.add(path, "deleted by setup")
            else:
                part(path).deleted.append(path)
        return repository, submodules, left_out

    def _impossible(self, path: bytes, fetched: tuple[bytes, ...]) -> str:
        if b".git" in path.lower().split(b"/"):
            return "git takes no file of this name"
        if any(link == path or link.startswith(path + b"/") for link in self.links):
            return "it takes the place of a submodule"
        if any(path.startswith(link + b"/") for link in self.links) and not path.startswith(fetched):
            return "it lies in a submodule that was not fetched"
        return ""


@contextmanager
def opened(path: bytes, mode: str) -> Iterator[tuple[IO[bytes], int]]:
    """The content of a listed path and its size: the target of a link, the bytes of a regular file."""
    place = os.path.join(os.fsencode(REPO), path)
    if mode == "120000":
        target = os.readlink(place)
        yield io.BytesIO(target), len(target)
        return
    # Not blocking: a pipe in the place of a file is refused instead of waited for.
    descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as content:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Problem("patch", f"{shown(path)} is no regular file")
        yield content, status.st_size


def stash_notes(repository: Path = REPO) -> list[str]:
    """Whether the agent left a stash, read as text from its git directory."""
    for name in (".git/refs/stash", ".git/packed-refs"):
        try:
            with opened(os.fsencode(repository / name), "100644") as (content, _):
                if name.endswith("stash") or b" refs/stash\n" in content.read(CHUNK_BYTES):
                    return ["a stash was left behind in the repository; it is not part of the patch"]
        except (OSError, Problem):
            continue
    return []


def _listed(listing: Path) -> dict[bytes, tuple[str, str]] | None:
    """Path -> (mode, SHA-256) of a stored listing, None where there is none."""
    if not listing.is_file():
        return None
    return {os.fsencode(path): (mode, sha256) for path, mode, sha256 in json.loads(listing.read_bytes())}


def shown(path: bytes) -> str:
    """A path as text for people: the real name, escapes only for bytes that are no UTF-8."""
    return path.decode("utf-8", "backslashreplace")


def _object_id(path: bytes, mode: str, algorithm: str) -> tuple[int, str]:
    with opened(path, mode) as (content, size):
        digest = hashlib.new(algorithm, b"blob %d\0" % size)
        while chunk := content.read(CHUNK_BYTES):
            digest.update(chunk)
    return size, digest.hexdigest()


def _plain_mode(mode: str) -> str:
    """Old repositories hold modes such as 100664, which git reads as 100644."""
    if mode == "120000":
        return mode
    return "100755" if int(mode, 8) & 0o100 else "100644"
