"""Owns what is on the volume: entries, what changed since the last walk, and which paths are the work tree.
Refuses to look at a volume that is not quiet.

*Entries* are folders, regular files, links and FIFOs. Sockets and devices are passed over, and so are caches, a
closed list (CACHE_PATHS, CACHE_NAMES) except where the start commit tracks a path in one. Extended attributes are not
kept. Hard links stay links to each other, but the digests do not tell them from copies.

The *listing* is the SHA-256 over all entries in the order of their path's bytes, each as
`<d|f|l|p> <mode, octal> <uid> <gid> <SHA-256 of content or link target, or -> <path> NUL`.
The *tree* is the SHA-256 over the files and links of the work tree in the same order, each as
`<100644|100755|120000> <SHA-256> <path below repo/> NUL`.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from ignore import FILE_BYTES, Rules
from volume import TOPS, Refused, Volume

RACY_NS = 20_000_000
"""An entry whose time of change is this near to a walk, or later, may have been written again within the same tick
of the file system's clock: its content is read again by the next walk. 20 ms: two ticks of the slowest kernel."""

CACHE_PATHS = frozenset({"home/.cache", "home/.npm"})
CACHE_NAMES = frozenset({"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"})
CACHE_BELOW = {".cache": "node_modules"}
"""name -> the folder it must lie in to be a cache."""

TRACKED = "base/tracked"
IGNORE_FILE = ".gitignore"
# Every spelling of `.git` that git refuses in a tree.
_DOT_GIT = re.compile(r"(?:\.git|git~1)[ .]*(?::.*)?", re.IGNORECASE | re.DOTALL)

_KEPT = frozenset({stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK, stat.S_IFIFO})

Signature = tuple[int, int, int, int, int, int, int, int]
"""mode, size, inode, mtime_ns, ctime_ns, uid, gid, links."""


@dataclass(slots=True)
class Entry:
    """One entry as it was found. digest: of content or link target, "-" where there is neither."""

    signature: Signature
    digest: str = "-"

    @property
    def mode(self) -> int:
        return self.signature[0]

    @property
    def size(self) -> int:
        return self.signature[1]

    @property
    def git_mode(self) -> str:
        return "120000" if stat.S_ISLNK(self.mode) else "100755" if self.mode & 0o100 else "100644"

    def line(self, path: str) -> bytes:
        mode, _, _, _, _, uid, gid, _ = self.signature
        kind = "d" if stat.S_ISDIR(mode) else "f" if stat.S_ISREG(mode) else "l" if stat.S_ISLNK(mode) else "p"
        return os.fsencode(f"{kind} {mode & 0o7777:o} {uid} {gid} {self.digest} {path}\0")


@dataclass(frozen=True)
class Caps:
    """Refused above: files counts entries of every type, workspace_bytes sizes (a sparse file in full, caches too),
    snapshot_bytes the sizes of what changed since the last walk. None is no cap."""

    workspace_bytes: int | None = None
    workspace_files: int | None = None
    snapshot_bytes: int | None = None


@dataclass
class Walk:
    """What one walk found, all of it set when `Walker.walk` returns. changed, removed: since the walk before.

    tree: path below repo/ -> (mode, digest). left_out: top-most paths below repo/ that it leaves out.
    """

    started_ns: int
    entries: dict[str, Entry] = field(default_factory=dict)
    caches: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    listing: str = ""
    tree_digest: str = ""
    tree: dict[str, tuple[str, str]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


class Walker:
    """Walks one volume again and again; remembers the last walk it was told to keep."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self.last: Walk | None = None
        self._tracked: frozenset[str] = frozenset()
        self._tracked_folders: frozenset[str] = frozenset()
        self._tracked_signature: Signature | None = None
        self._tracked_read_ns = 0
        self._rules = Rules({})
        self._rules_key: tuple[tuple[str, str], ...] = ()
        self._ignored: dict[tuple[str, bool], bool] = {}

    def walk(self, caps: Caps) -> Walk:
        """Look at everything. Raises Refused("too_large") over a cap, before any content was read."""
        self._volume.forget()
        self._read_tracked()
        last = self.last
        walk = Walk(started_ns=time.time_ns())
        unsure = self._scan(walk, last, caps)
        before = last.entries if last else {}
        for path in unsure:
            entry, old = walk.entries[path], before.get(path)
            entry.digest = self._digest(path, entry)
            if old is None or old.signature != entry.signature or old.digest != entry.digest:
                walk.changed.append(path)
        walk.removed = _topmost(before.keys() - walk.entries.keys()) if last else []
        if last and not walk.changed and not walk.removed and walk.caches == last.caches:
            walk.listing, walk.tree_digest = last.listing, last.tree_digest
            walk.tree, walk.left_out = last.tree, last.left_out
        else:
            self._conclude(walk)
        return walk

    def _scan(self, walk: Walk, last: Walk | None, caps: Caps) -> list[str]:
        """Fill walk.entries; returns the paths that are new, changed, or too fresh to be sure of."""
        before = last.entries if last else {}
        racy_ns = last.started_ns - RACY_NS if last else 0
        unsure: list[str] = []
        counted = Counted(caps)

        def note(path: str, found: os.stat_result) -> None:
            kind = stat.S_IFMT(found.st_mode)
            size = found.st_size if kind == stat.S_IFREG else 0
            counted.add(size)
            if kind not in _KEPT:
                return
            signature = _signature(found)
            old = before.get(path)
            if old is not None and old.signature == signature and found.st_ctime_ns < racy_ns:
                walk.entries[path] = old
                return
            walk.entries[path] = Entry(signature)
            unsure.append(path)
            if last is not None and (old is None or old.signature != signature):
                counted.changed += size

        def enter(path: str, name: str) -> bool:
            if self._is_cache(path, name):
                walk.caches.append(path)
                del walk.entries[path]
                return False
            return True

        for top in TOPS:
            found = self._volume.stat(top)
            if found is None or not stat.S_ISDIR(found.st_mode):
                raise Refused("io", f"the volume has no folder {top}/")
            note(top, found)
            for _, path, item in self._volume.entries(top, enter):
                note(path, item.stat(follow_symlinks=False))
        for cache in walk.caches:
            for _, _, item in self._volume.entries(cache, lambda path, name: True):
                counted.add(item.stat(follow_symlinks=False).st_size)
        counted.check()
        return [path for path in unsure if path in walk.entries]

    def _is_cache(self, path: str, name: str) -> bool:
        listed = name in CACHE_NAMES or path in CACHE_PATHS
        if not listed and name in CACHE_BELOW:
            listed = path.split("/")[-2] == CACHE_BELOW[name]
        return listed and not path.startswith("base/") and path not in self._tracked_folders

    def _digest(self, path: str, entry: Entry) -> str:
        if stat.S_ISLNK(entry.mode):
            return hashlib.sha256(os.fsencode(self._volume.link_target(path))).hexdigest()
        if not stat.S_ISREG(entry.mode):
            return "-"
        digest, size = hashlib.sha256(), 0
        for chunk in self._volume.chunks(path):
            digest.update(chunk)
            size += len(chunk)
        if size != entry.size:
            raise Refused("io", f"{path!r} changed while it was read: the volume is not quiet")
        return digest.hexdigest()

    def _read_tracked(self) -> None:
        found = self._volume.stat(TRACKED)
        signature = _signature(found) if found else None
        if signature == self._tracked_signature and (
            not found or found.st_ctime_ns < self._tracked_read_ns - RACY_NS
        ):
            return
        self._tracked_signature, self._tracked_read_ns = signature, time.time_ns()
        content = b"".join(self._volume.chunks(TRACKED)) if found else b""
        paths = {"repo/" + os.fsdecode(path) for path in content.split(b"\0") if path}
        self._tracked = frozenset(paths)
        names = {*CACHE_NAMES, *CACHE_BELOW}
        folders = (path.split("/")[:-1] for path in paths)
        self._tracked_folders = frozenset(
            "/".join(parts[: depth + 1])
            for parts in folders
            if names.intersection(parts)
            for depth in range(len(parts))
        )

    def _conclude(self, walk: Walk) -> None:
        """Both digests, the tree and what it leaves out, from the entries."""
        ordered = in_order(walk.entries)
        walk.listing = hashlib.sha256(b"".join(walk.entries[path].line(path) for path in ordered)).hexdigest()
        self._read_rules(walk)
        # Of every folder: whether what is in it may be in the tree, is ignored, or is git's own.
        states = {"repo": "in"}
        for path in ordered:
            if not path.startswith("repo/"):
                continue
            folder, _, name = path.rpartition("/")
            entry, state = walk.entries[path], states[folder]
            here = self._state(path, name, state, stat.S_ISDIR(entry.mode))
            if stat.S_ISDIR(entry.mode):
                states[path] = here
            elif here == "in" and not stat.S_ISFIFO(entry.mode):
                walk.tree[path[5:]] = (entry.git_mode, entry.digest)
                continue
            if state == "in" and (here != "in" or stat.S_ISFIFO(entry.mode)) and path != "repo/.git":
                walk.left_out.append(path[5:])
        caches = (path for path in walk.caches if states.get(path.rpartition("/")[0]) == "in")
        walk.left_out = in_order([*walk.left_out, *(path[5:] for path in caches)])
        lines = (f"{mode} {digest} {path}\0" for path, (mode, digest) in walk.tree.items())
        walk.tree_digest = hashlib.sha256(os.fsencode("".join(lines))).hexdigest()

    def _state(self, path: str, name: str, above: str, is_folder: bool) -> str:
        if above == "git" or (name[0] in ".gG" and _DOT_GIT.fullmatch(name)):
            return "git"
        if not is_folder and path in self._tracked:
            return "in"
        if above == "ignored":
            return "ignored"
        key = path, is_folder
        if key not in self._ignored:
            self._ignored[key] = self._rules.ignored(path[5:], is_folder)
        return "ignored" if self._ignored[key] else "in"

    def _read_rules(self, walk: Walk) -> None:
        files = [
            (path, entry.digest)
            for path, entry in walk.entries.items()
            if path.endswith("/" + IGNORE_FILE) and path.startswith("repo/") and stat.S_ISREG(entry.mode)
        ]
        key = tuple(sorted(files))
        if key != self._rules_key:
            contents = {path.removeprefix("repo/"): self._beginning(path) for path, _ in files}
            self._rules = Rules({path.rpartition("/")[0]: content for path, content in contents.items()})
            self._rules_key = key
            self._ignored = {}

    def _beginning(self, path: str) -> bytes:
        descriptor = self._volume.open_file(path)
        try:
            return os.read(descriptor, FILE_BYTES)
        finally:
            os.close(descriptor)


class Counted:
    """Entries and sizes against the caps; a count of files stops the scan, sizes are told at its end."""

    def __init__(self, caps: Caps) -> None:
        self._caps = caps
        self.files = 0
        self.total = 0
        self.changed = 0

    def add(self, size: int) -> None:
        self.files += 1
        self.total += size
        if self._caps.workspace_files is not None and self.files > self._caps.workspace_files:
            raise Refused("too_large", f"the workspace has more than {self._caps.workspace_files:,} files")

    def check(self) -> None:
        for what, count, cap in (
            ("the workspace holds", self.total, self._caps.workspace_bytes),
            ("one call changed files of", self.changed, self._caps.snapshot_bytes),
        ):
            if cap is not None and count > cap:
                raise Refused("too_large", f"{what} {count:,} bytes, {cap:,} are allowed")


def in_order(paths: Iterable[str]) -> list[str]:
    """Sorted by the path's bytes: a folder comes before what is in it."""
    return sorted(paths, key=os.fsencode)


def _signature(found: os.stat_result) -> Signature:
    return (
        found.st_mode, found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_uid, found.st_gid,
        found.st_nlink,
    )  # fmt: skip


def _topmost(paths: Iterable[str]) -> list[str]:
    """Those with no other of them above."""
    chosen = set(paths)
    return in_order(path for path in chosen if path.rpartition("/")[0] not in chosen)
