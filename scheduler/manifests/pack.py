"""Owns packing a local path into one file for `sources/<digest>`: the same content gives the same bytes.

Refuses to run git and to follow a link: it only ever reads bytes and writes a tar, because a repository's own
configuration can make git execute code.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, cast

from worker.contract.errors import InvalidFault

FOLDER_SKIPS: Final = frozenset({".git", "__pycache__"})
"""Of a plain folder: history we do not take, and what Python writes beside sources whenever it runs them."""
GIT_FILES: Final = ("HEAD", "packed-refs", "shallow")
GIT_FOLDERS: Final = ("objects", "refs", "modules")
MODULE_SKIPS: Final = frozenset({"hooks", "logs", "worktrees", "config", "config.worktree", "index", "info"})
"""Not needed to check a submodule out, and configuration is never taken along."""
OBJECT_SKIPS: Final = re.compile(r"^(tmp_.*|.*\.lock|multi-pack-index.*|commit-graph.*)$")

Entry = tuple[str, Path]


@dataclass(frozen=True)
class GitDir:
    """own: where HEAD is. common: where objects and refs are (another folder for a linked work tree)."""

    own: Path
    common: Path


@dataclass
class _Writer:
    """Counts and hashes what tarfile writes. limit_bytes is a bound on the packed file."""

    out: IO[bytes]
    limit_bytes: int
    written: int = 0
    sha256: hashlib._Hash = field(default_factory=hashlib.sha256)

    def write(self, data: bytes) -> int:
        self.written += len(data)
        if self.written > self.limit_bytes:
            raise InvalidFault(
                f"is larger than {self.limit_bytes:,} bytes", hint="raise the limit workspace_bytes, or name less"
            )
        self.sha256.update(data)
        return self.out.write(data)


def git_dir(path: Path) -> GitDir | None:
    """The git directory of a work tree, linked work tree, submodule or bare repository at path, None when it is
    no repository. Raises InvalidFault when `.git` points to nowhere."""
    inside = path / ".git"
    if inside.is_file():
        text = inside.read_text("utf-8", "surrogateescape").strip()
        own = (path / text.removeprefix("gitdir:").strip()).resolve()
        if not text.startswith("gitdir:") or not (own / "HEAD").is_file():
            raise InvalidFault(f"{inside} points to no git directory", hint="repair it: git worktree repair")
    elif _is_git_dir(inside):
        own = inside.resolve()
    elif _is_git_dir(path):
        own = path.resolve()
    else:
        return None
    common = own / "commondir"
    if common.is_file():
        return GitDir(own, (own / common.read_text("utf-8", "surrogateescape").strip()).resolve())
    return GitDir(own, own)


def pack_git(repository: GitDir, out: IO[bytes], limit_bytes: int) -> str:
    """Pack HEAD, refs and objects as a bare git directory without configuration; returns the SHA-256 in hex.

    Raises InvalidFault for a repository that is not complete in itself (alternates, partial clone), and for
    formats that need configuration (reftable, SHA-256 objects).
    """
    common = repository.common
    _refuse_incomplete(common)
    entries = [(name, (repository.own if name == "HEAD" else common) / name) for name in GIT_FILES]
    for folder in GIT_FOLDERS:
        if (common / folder).is_symlink():  # what lies behind it may be anything on this host
            raise InvalidFault(f"keeps its {folder} behind a link", hint="name a full clone")
        skips = MODULE_SKIPS if folder == "modules" else frozenset()
        entries += [(f"{folder}/{name}", path) for name, path in _walk(common / folder, skips)]
    kept = [(name, path) for name, path in entries if not OBJECT_SKIPS.match(path.name) or "refs/" in name]
    return _tar(sorted(kept), out, limit_bytes, folders=("objects", "refs"))


def pack_folder(path: Path, out: IO[bytes], limit_bytes: int) -> str:
    """Pack every file and link below path, without FOLDER_SKIPS; returns the SHA-256 in hex.

    Owners and times are dropped, modes become 755 or 644. Raises InvalidFault when there is nothing to pack.
    """
    entries = list(_walk(path, FOLDER_SKIPS))
    if not entries:
        raise InvalidFault("is empty", hint="name a folder with files, or a repository")
    return _tar(entries, out, limit_bytes)


def copy_file(path: Path, out: IO[bytes], limit_bytes: int) -> str:
    """Take an archive file as it is; returns the SHA-256 in hex."""
    writer = _Writer(out, limit_bytes)
    with path.open("rb") as data:
        while chunk := data.read(2**20):
            writer.write(chunk)
    return writer.sha256.hexdigest()


def is_archive(path: Path) -> bool:
    """Whether the first bytes are those of a tar, gzip, bzip2, xz or zip file."""
    with path.open("rb") as data:
        head = data.read(512)
    return head.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"PK\x03\x04")) or head[257:262] == b"ustar"


def _is_git_dir(path: Path) -> bool:
    return (path / "HEAD").is_file() and (path / "objects").is_dir() and (path / "refs").is_dir()


def _refuse_incomplete(common: Path) -> None:
    if (common / "objects" / "info" / "alternates").exists():
        raise InvalidFault(
            "borrows objects from another repository (objects/info/alternates)",
            hint="run `git repack -a -d` there and remove that file, or name a full clone",
        )
    if any((common / "objects" / "pack").glob("*.promisor")):
        raise InvalidFault("is a partial clone and lacks objects", hint="name a full clone, or the URL it came from")
    if (common / "reftable").is_dir():
        raise InvalidFault("keeps its refs in a reftable", hint="run `git refs migrate --ref-format=files` there")
    config = common / "config"
    text = config.read_text("utf-8", "surrogateescape") if config.is_file() else ""
    if re.search(r"^\s*objectformat\s*=\s*sha256", text, re.IGNORECASE | re.MULTILINE):
        raise InvalidFault("uses SHA-256 object names, which are not supported", hint="name a SHA-1 repository")


def _walk(folder: Path, skips: frozenset[str]) -> Iterator[Entry]:
    """(path relative to folder, path) of files and links, sorted by name at each level, links not followed."""
    pending: list[tuple[str, Path]] = [("", folder)]
    while pending:
        prefix, current = pending.pop()
        if not current.is_dir():
            continue
        with os.scandir(current) as listing:
            found = sorted(listing, key=lambda entry: entry.name, reverse=True)
        for entry in found:
            if entry.name in skips and not _in_git_names(prefix):
                continue
            if entry.is_dir(follow_symlinks=False):
                pending.append((f"{prefix}{entry.name}/", Path(entry.path)))
            elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
                yield f"{prefix}{entry.name}", Path(entry.path)


def _in_git_names(prefix: str) -> bool:
    """Inside a submodule's refs or objects every name is data: a branch may be called `config`."""
    return "/refs/" in f"/{prefix}" or "/objects/" in f"/{prefix}"


def _tar(entries: list[Entry], out: IO[bytes], limit_bytes: int, *, folders: tuple[str, ...] = ()) -> str:
    writer = _Writer(out, limit_bytes)
    with tarfile.open(fileobj=cast(IO[bytes], writer), mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for folder in folders:
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        for name, path in entries:
            _add(tar, name, path)
    return writer.sha256.hexdigest()


def _add(tar: tarfile.TarFile, name: str, path: Path) -> None:
    info = tarfile.TarInfo(name)
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(found.st_mode):
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, os.readlink(path), 0o777
        tar.addfile(info)
        return
    if not stat.S_ISREG(found.st_mode):
        return
    info.mode = 0o755 if found.st_mode & 0o111 else 0o644
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as data:
        info.size = os.fstat(data.fileno()).st_size
        try:
            tar.addfile(info, data)
        except OSError as error:
            raise InvalidFault(f"{name} changed while it was packed: {error}", hint="try again") from error
