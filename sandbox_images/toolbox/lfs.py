"""Owns the contents of files that a commit keeps in Git LFS: asked of the repository's own server by the batch
protocol, proven by their digests, and laid in the place of their pointers.

Refuses to let the repository say where they lie (.lfsconfig), to send its secret to any other place, whatever a
server answers or redirects to, and to fetch more than the pointers say and the workspace may hold.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from cleangit import REPO, Problem, environment, git, init
from remotes import SECRET, Remote
from unpack import CHUNK_BYTES, Caps

MEDIA_TYPE = "application/vnd.git-lfs+json"
POINTER_BYTES = 1024
"""What is longer is no pointer (the specification's bound)."""
BATCH = 100
"""Objects that are asked for at once, as servers advise."""
ANSWER_BYTES = 4 << 20
STALLED_S = 60
"""Nothing came for so long."""
SAID_CHARS = 200
_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\noid sha256:(?P<oid>[0-9a-f]{64})\nsize (?P<size>[0-9]{1,15})\n"
)


@dataclass(frozen=True)
class Kept:
    """A file of the commit. oid: SHA-256 of its content."""

    path: bytes
    executable: bool
    oid: str
    size: int


def pointers(git_dir: Path, commit: str) -> list[Kept]:
    """Files that attributes of the commit give to LFS, and that hold a pointer."""
    with tempfile.TemporaryDirectory() as scratch:
        own = Path(scratch)
        init(own, object_format="sha256" if len(commit) == 64 else "sha1")
        (own / "info" / "attributes").unlink()  # ours, which keep git from filtering, would answer for them
        (own / "objects" / "info" / "alternates").write_text(f"{git_dir}/objects\n")
        git("read-tree", commit, git_dir=own)
        small = {path: (mode, oid) for path, mode, oid, size in _files(own, commit) if size < POINTER_BYTES}
        asked = b"".join(path + b"\0" for path in small)
        said = git("check-attr", "--cached", "--stdin", "-z", "filter", git_dir=own, input=asked).split(b"\0")
        given = [path for path, value in zip(said[0::3], said[2::3], strict=False) if value == b"lfs"]
        wanted = "".join(f"{small[path][1]}\n" for path in given)
        blobs = git("cat-file", "--batch", git_dir=own, input=wanted.encode())
    found, at = [], 0
    for path in given:
        end = blobs.index(b"\n", at)
        size = int(blobs[at:end].split()[2])
        if pointer := _POINTER.fullmatch(blobs[end + 1 : end + 1 + size]):
            found.append(Kept(path, small[path][0] == "100755", pointer["oid"].decode(), int(pointer["size"])))
        at = end + 1 + size + 1
    return found


def fetch_contents(remote: Remote, kept: Sequence[Kept], caps: Caps) -> None:
    """Put the contents of these files in the place of their pointers, and keep git from telling them as changed.

    Raises Problem where they do not fit, or the server does not give exactly them."""
    if not kept:
        return
    total = sum(one.size for one in kept)
    if total > caps.bytes:
        raise Problem("repository", f"its files in Git LFS have {total:,} bytes, over {caps.bytes:,}")
    if remote.unpacked:
        raise Problem(
            "repository", f"files in Git LFS cannot be had of {remote.label}", "name it by its https:// address"
        )
    places: dict[str, list[Kept]] = {}
    for one in kept:
        places.setdefault(one.oid, []).append(one)
    server = _Server(remote)
    with tempfile.TemporaryDirectory(dir=REPO / ".git") as scratch:
        file = Path(scratch) / "content"
        for oid, request in server.downloads({oid: ones[0].size for oid, ones in places.items()}):
            server.download(request, oid, places[oid][0].size, file)
            for one in places.pop(oid):
                _lay(file, one)
    if places:
        raise Problem("repository", f"the server of Git LFS names no way to {next(iter(places))}")
    listed = b"".join(one.path + b"\0" for one in kept)
    git("update-index", "--skip-worktree", "-z", "--stdin", git_dir=REPO / ".git", work_tree=REPO, input=listed)


class _Server:
    """Of one repository. Its credentials, or what was granted over SSH, go to its own scheme, host and port alone."""

    def __init__(self, remote: Remote) -> None:
        address = remote.address.rstrip("/")
        if urlsplit(address).scheme in ("http", "https"):
            place = f"{address if address.endswith('.git') else f'{address}.git'}/info/lfs"
            pair = ":".join(remote.env.get(f"{SECRET}_{name}", "") for name in ("USER", "TOKEN"))
            self._headers = (
                {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"} if pair != ":" else {}
            )
        else:
            place, self._headers = _granted(remote)
        self._batch, self._place = f"{place.rstrip('/')}/objects/batch", _place(place)
        self._open = build_opener(_Redirects).open

    def downloads(self, sizes: Mapping[str, int]) -> Iterator[tuple[str, Request]]:
        """(oid, request for its content) of all of these, as the server names them."""
        oids = list(sizes)
        for start in range(0, len(oids), BATCH):
            part = oids[start : start + BATCH]
            asked = {
                "operation": "download",
                "transfers": ["basic"],
                "hash_algo": "sha256",
                "objects": [{"oid": oid, "size": sizes[oid]} for oid in part],
            }
            headers = {"Accept": MEDIA_TYPE, "Content-Type": MEDIA_TYPE, **self._own(self._batch)}
            with self._answer(Request(self._batch, json.dumps(asked).encode(), headers, method="POST")) as answer:
                told = answer.read(ANSWER_BYTES)
            try:
                objects = {one["oid"]: one for one in json.loads(told)["objects"]}
                for oid in part:
                    if "error" in (one := objects[oid]):
                        raise Problem("repository", f"Git LFS has no {oid}: {_short(one['error'].get('message'))}")
                    yield oid, self._request(one["actions"]["download"])
            except (ValueError, KeyError, TypeError, AttributeError):
                raise Problem("repository", "the server of Git LFS gave no answer that makes sense") from None

    def download(self, request: Request, oid: str, size: int, to: Path) -> None:
        """Write exactly that content. Raises Problem for any other."""
        found, left = hashlib.sha256(), size
        with self._answer(request) as answer, to.open("wb") as out:
            while chunk := self._read(answer, min(CHUNK_BYTES, left + 1)):
                left -= len(chunk)
                if left < 0:
                    break
                found.update(chunk)
                out.write(chunk)
        if left or found.hexdigest() != oid:
            raise Problem("repository", f"the server of Git LFS gave another content than {oid}")

    def _request(self, action: Mapping[str, Any]) -> Request:
        href = urljoin(self._batch, action["href"])
        if urlsplit(href).scheme not in ("http", "https"):
            raise ValueError(href)
        headers = {str(name): str(value) for name, value in action.get("header", {}).items()}
        told = any(name.lower() == "authorization" for name in headers)
        return Request(href, headers=headers if told else {**self._own(href), **headers})

    def _own(self, url: str) -> dict[str, str]:
        return self._headers if _place(url) == self._place else {}

    def _answer(self, request: Request) -> IO[bytes]:
        try:
            answer: IO[bytes] = self._open(request, timeout=STALLED_S)
        except HTTPError as error:
            hint = "does the secret of the repository open its Git LFS too?" if error.code in (401, 403) else ""
            raise Problem("repository", f"the server of Git LFS answered {error.code}", hint) from None
        except (OSError, HTTPException, ValueError) as error:
            raise Problem("repository", f"Git LFS cannot be reached: {_short(error)}") from None
        return answer

    def _read(self, answer: IO[bytes], most: int) -> bytes:
        try:
            return answer.read(most)
        except (OSError, HTTPException) as error:
            raise Problem("repository", f"Git LFS broke off: {_short(error)}") from None


class _Redirects(HTTPRedirectHandler):
    """Nothing that was meant for one place goes to another, and nothing goes on unencrypted that was not."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        same = _place(newurl) == _place(req.full_url)
        scheme = urlsplit(newurl).scheme
        if scheme != "https" and (scheme != "http" or urlsplit(req.full_url).scheme == "https"):
            return None
        if same:
            return Request(newurl, req.data, dict(req.header_items()), method=req.get_method())
        return None if req.data is not None else Request(newurl)


def _granted(remote: Remote) -> tuple[str, dict[str, str]]:
    """Address and headers that an SSH server names for a download, where `git-lfs-authenticate` is known to it."""
    host, port, path = _ssh_place(remote.address)
    if host.startswith("-"):
        raise Problem("repository", f"{host!r} is no host")
    command = remote.env.get("GIT_SSH_COMMAND", "ssh -F /dev/null -o BatchMode=yes")
    asked = (*port, host, f"git-lfs-authenticate {shlex.quote(path)} download")
    try:
        done = subprocess.run(
            ["sh", "-c", f'{command} "$@"', "ssh", *asked],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment(),
            timeout=STALLED_S,
            check=True,
        )
        told = json.loads(done.stdout)
        href, headers = str(told["href"]), {str(name): str(value) for name, value in told.get("header", {}).items()}
    except subprocess.SubprocessError:
        raise Problem("repository", f"{remote.label} grants nothing of its Git LFS over SSH") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Problem("repository", "the server of Git LFS gave no answer that makes sense") from None
    if urlsplit(href).scheme not in ("http", "https"):
        raise Problem("repository", "the server of Git LFS names no address of the web")
    return href, headers


def _ssh_place(address: str) -> tuple[str, tuple[str, ...], str]:
    """(user and host, option for the port, path) of `ssh://git@host:22/path` or `git@host:path`."""
    if "://" not in address:
        host, _, path = address.partition(":")
        return host, (), path
    parts = urlsplit(address)
    if parts.scheme != "ssh":
        raise Problem("repository", f"files in Git LFS cannot be had over {parts.scheme}://")
    user = f"{parts.username}@" if parts.username else ""
    return f"{user}{parts.hostname or ''}", ("-p", str(parts.port)) if parts.port else (), parts.path


def _lay(file: Path, one: Kept) -> None:
    place = os.path.join(os.fsencode(REPO), one.path)
    if os.path.realpath(os.path.dirname(place)) != os.path.dirname(place):
        raise Problem("repository", f"{one.path.decode('utf-8', 'backslashreplace')} lies behind a link")
    os.unlink(place)
    shutil.copyfile(file, place, follow_symlinks=False)
    os.chmod(place, 0o755 if one.executable else 0o644)


def _files(git_dir: Path, commit: str) -> Iterator[tuple[bytes, str, str, int]]:
    """(path, mode, object id, size) of every regular file."""
    for line in git("ls-tree", "-r", "-l", "-z", "--full-tree", commit, git_dir=git_dir).split(b"\0"):
        about, _, path = line.partition(b"\t")
        mode, _, oid, size = about.decode().split() if about else ("", "", "", "")
        if mode.startswith("100"):
            yield path, mode, oid, int(size)


def _place(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, (parts.hostname or "").lower(), port


def _short(said: object) -> str:
    return " ".join(str(said).split())[:SAID_CHARS]
