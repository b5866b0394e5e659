"""Owns turning what a user calls a repository (URL, folder, archive file) into a contract Repo. Refuses to fetch:
that is done in a container. A local path is packed and stored once, under `sources/<digest>`.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Literal
from urllib.parse import SplitResult, unquote, urlsplit

from scheduler.manifests import pack
from worker.contract.errors import Fault, InvalidFault
from worker.contract.task import Repo
from worker.store import keys
from worker.store.archive import Archive

URL: Final = re.compile(r"^(https?|ssh|git)://[^\s]+$")
SCP: Final = re.compile(r"^[A-Za-z0-9._-]+@[A-Za-z0-9.-]+:[^\s-][^\s]*$")
"""`git@host:owner/name`, as git writes it."""

SourceKind = Literal["git", "folder", "tarball"]


@dataclass(frozen=True)
class Origin:
    """Where code comes from, before anything is read: a URL, or a local path with its kind.

    label: a short name for people. source: digest of what was packed of it before, in place of a path. notes: what
    the user should know of it, one line each.
    """

    label: str
    url: str | None = None
    path: Path | None = None
    kind: SourceKind | None = None
    source: str | None = None
    notes: tuple[str, ...] = ()


def locate(text: str, folder: Path) -> Origin:
    """Say what `text` names; relative paths start at folder. Raises InvalidFault with a hint, reads nothing large."""
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
        raise InvalidFault("the repository's name holds control characters", hint="remove them")
    if text.startswith("file://"):
        return _local(Path(unquote(_parts(text).path)), text)
    if URL.match(text):
        return _remote(text)
    if SCP.match(text):
        return Origin(label=_label(text.split(":", 1)[1]), url=text)
    if "://" in text:
        raise InvalidFault(f"{text} has a scheme we do not fetch", hint="use https, http, ssh, git or a local path")
    return _local(folder / Path(text).expanduser(), text)


def store(origin: Origin, archive: Archive | None, *, limit_bytes: int, spool: Path | None = None) -> str | None:
    """Pack a local origin and store it once; returns its digest, or the one it has, None for a URL. archive: None to
    store nothing. spool: folder for the packed file. Raises InvalidFault when it cannot be read or is empty,
    StoreFault when the archive refuses."""
    if origin.path is None:
        return origin.source
    with tempfile.NamedTemporaryFile(dir=spool, prefix="dawn-source-") as out:
        try:
            digest = _pack(origin, origin.path, out.file, limit_bytes)
        except OSError as error:
            raise InvalidFault(
                f"{origin.path} cannot be read: {error.strerror or error}", hint="check its permissions"
            ) from error
        except InvalidFault as fault:
            raise InvalidFault(f"{origin.path} {fault.message}", hint=fault.hint) from fault
        out.flush()
        if archive is not None:
            archive.create(keys.source(digest), Path(out.name))
    return digest


def repo(origin: Origin, digest: str | None, *, ref: str | None, path: str, secret: str | None = None) -> Repo:
    """The contract's Repo of a located, stored origin."""
    return Repo(
        url=origin.url,
        source=digest,
        source_kind=origin.kind,
        label=origin.label,
        ref=ref,
        path=path,
        secret=secret,
    )


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # whose words may hold a password
        raise InvalidFault("the URL's host cannot be read", hint="write https://host/owner/name") from None


def _remote(url: str) -> Origin:
    parts = _parts(url)
    if parts.password is not None or (parts.username and parts.scheme in ("http", "https")):
        host = parts.hostname or ""
        raise InvalidFault(
            f"the URL of {host} holds credentials, which would be archived",
            hint="take them out, set DAWN_SECRET_NAME for the worker, and write `secret: NAME` or --secret NAME",
        )
    if not parts.hostname or parts.hostname.startswith("-"):
        raise InvalidFault(f"{url} names no host", hint="write https://host/owner/name")
    return Origin(label=_label(parts.path), url=url)


def _local(path: Path, text: str) -> Origin:
    label = _label(str(path.absolute()))
    try:
        if path.is_file():
            if not pack.is_archive(path):
                hint = "name a folder, or a .tar, .tar.gz, .tar.xz or .zip file"
                raise InvalidFault(f"{text} is a file, but no archive", hint=hint)
            return Origin(label=label, path=path, kind="tarball")
        if not path.is_dir():
            raise InvalidFault(f"{text} does not exist", hint=_missing_hint(text))
        if pack.git_dir(path) is not None:
            bare = not (path / ".git").exists()
            note = "what is committed is used; changes that are not committed are not"
            return Origin(label=label, path=path, kind="git", notes=() if bare else (note,))
        if not os.access(path, os.R_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
        return Origin(label=label, path=path, kind="folder", notes=_inside(path))
    except OSError as error:
        raise InvalidFault(f"{text} cannot be read: {error.strerror}", hint="check its permissions") from error


def _inside(path: Path) -> tuple[str, ...]:
    for parent in path.absolute().parents:
        if (parent / ".git").exists():
            return (f"packed as a plain folder; for its commits name {parent} with --path",)
    return ()


def _pack(origin: Origin, path: Path, out: IO[bytes], limit_bytes: int) -> str:
    if origin.kind == "tarball":
        return pack.copy_file(path, out, limit_bytes)
    if origin.kind == "folder":
        return pack.pack_folder(path, out, limit_bytes)
    found = pack.git_dir(path)
    if found is None:
        raise Fault(f"{path} is no repository any more", hint="try again")
    return pack.pack_git(found, out, limit_bytes)


def _missing_hint(text: str) -> str:
    if re.match(r"^[\w-]+(\.[\w-]+)+/", text):
        return f"for a server write https://{text}"
    return "name a URL, a folder, a git repository or an archive file"


def _label(path: str) -> str:
    name = path.rstrip("/").rsplit("/", 1)[-1].removesuffix(".git")
    return name or "repository"
