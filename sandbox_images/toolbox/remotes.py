"""Owns what git fetches from: a URL with the secret that opens it, or an unpacked git directory.

Refuses to let anything of a source take effect: of a git directory only objects and refs are taken, never its
configuration or hooks; a token is offered to the URL's own host alone and stays out of argv, configuration and URLs.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from cleangit import GitFailed, Problem, git
from unpack import Caps, unpack

SECRET = "DAWN_REPO_SECRET"
"""Environment variable with the token (`token` or `user:token`) or the SSH private key of the repository."""

BRANCHES_SHOWN = 20
SAID_LINES = 4
_NETWORK = {"GIT_ALLOW_PROTOCOL": "https:http:ssh:git"}
_HEADS, _TAGS, _REMOTES = "refs/heads/", "refs/tags/", "refs/remotes/"
_OID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_ABBREVIATED = re.compile(r"[0-9a-f]{4,63}")
_GIT_CONTENT = re.compile(r"(modules/.+/)?(HEAD|packed-refs|shallow|(objects|refs)(/.*)?)")
_NOT_TAKEN = ("objects/info/alternates", "objects/info/http-alternates")
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"


@dataclass(frozen=True)
class Start:
    """Where the work begins. commit: may be abbreviated until `complete`. branch: "" for a tag or commit."""

    commit: str
    branch: str = ""

    @property
    def known(self) -> bool:
        """Whether commit is a whole object id."""
        return _OID.fullmatch(self.commit) is not None

    @property
    def object_format(self) -> str:
        return "sha256" if len(self.commit) == 64 else "sha1"


@dataclass(frozen=True)
class Remote:
    """address: a URL without credentials or a folder. settings, env: for git. unpacked: the folder, if it is one."""

    address: str
    settings: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    unpacked: Path | None = None

    @property
    def label(self) -> str:
        """How a message names it."""
        return "the packed repository" if self.unpacked else self.address

    def start(self, ref: str | None) -> Start:
        """Where ref (branch, tag, commit; None for HEAD) points, from the listing of refs alone.

        Raises Problem: "repository" when it cannot be read or has no commit, "ref" when nothing has that name.
        """
        listing = self._git("ls-remote", "--symref", "--", self.address).decode("utf-8", "surrogateescape")
        lines = [line.partition("\t")[::2] for line in listing.split("\n") if line]
        symbolic = {name: value.removeprefix("ref: ") for value, name in lines if value.startswith("ref: ")}
        refs = {name: value for value, name in lines if not value.startswith("ref: ")}
        if not refs:
            raise Problem("repository", f"{self.label} has no commits")
        if ref in (None, "HEAD"):
            if "HEAD" not in refs:
                raise Problem("ref", f"the HEAD of {self.label} names no branch that exists", _branches(refs))
            return Start(refs["HEAD"], symbolic.get("HEAD", "").removeprefix(_HEADS))
        for name in (_HEADS + ref, f"{_TAGS}{ref}^{{}}", _TAGS + ref, _REMOTES + ref, ref):
            if name in refs:
                return Start(refs[name], name.removeprefix(_HEADS) if name.startswith(_HEADS) else "")
        if _OID.fullmatch(ref.lower()) or _ABBREVIATED.fullmatch(ref.lower()):
            return Start(ref.lower())
        raise Problem("ref", f"{self.label} has no branch, tag or commit {ref!r}", _branches(refs))

    def fetch(self, git_dir: Path, start: Start) -> Start:
        """Bring all branches and tags, and start's commit, into git_dir; start with its whole commit id."""
        refspecs = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
        self._fetch(git_dir, *refspecs)
        if not _commit(git_dir, start.commit) and start.known:
            try:
                self._fetch(git_dir, start.commit)
            except Problem as problem:
                raise self._missing(start.commit) from problem
        commit = _commit(git_dir, start.commit)
        if not commit:
            raise self._missing(start.commit)
        return replace(start, commit=commit)

    def submodule(self, name: str, url: str) -> Remote:
        """Where a submodule of this repository comes from: the packed one if it is there, else its URL.

        Raises Problem when it has neither."""
        if self.unpacked:
            packed = self.unpacked / "modules" / name
            if (packed / "HEAD").is_file():
                return replace(self, address=str(packed), unpacked=packed)
            if url.startswith("."):
                raise Problem("repository", f"it is not packed and its URL {url!r} is relative")
            return Remote(without_credentials(url), env=_NETWORK)
        if url.startswith("."):
            url = _relative(self.address, url)
        address = without_credentials(url)
        if _host(address) != _host(self.address):
            return Remote(address, env=_NETWORK)
        return replace(self, address=address)

    def _fetch(self, git_dir: Path, *refspecs: str) -> None:
        # --update-shallow: from a shallow source a shallow copy, instead of nothing.
        self._git("fetch", "--quiet", "--no-tags", "--update-shallow", "--", self.address, *refspecs, git_dir=git_dir)

    def _git(self, *arguments: str, git_dir: Path | None = None) -> bytes:
        try:
            return git(*arguments, git_dir=git_dir, settings=self.settings, env=self.env)
        except GitFailed as failed:
            said = " | ".join(failed.text.splitlines()[:SAID_LINES])
            raise Problem("repository", f"cannot read {self.label}: {said}", _hint(failed.text)) from failed

    def _missing(self, commit: str) -> Problem:
        hint = ""
        if self.unpacked and (self.unpacked / "shallow").is_file():
            hint = "the local clone is shallow: `git fetch --unshallow` in it first"
        return Problem("ref", f"{self.label} has no commit {commit}", hint)


def open_url(url: str) -> Remote:
    """The URL with what opens it, from the environment.

    The credential helper is bound to the URL's own host, so that neither a redirect nor a submodule elsewhere is
    ever offered the token; git's shell reads the value from the environment.
    """
    secret = os.environ.get(SECRET, "")
    address = without_credentials(url)
    if not secret:
        return Remote(address, env=_NETWORK)
    if "PRIVATE KEY" in secret:
        return Remote(address, env={**_NETWORK, "GIT_SSH_COMMAND": _ssh_command(secret)})
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise Problem("repository", f"the secret for {address} is no private key", "a token opens https:// only")
    user, _, token = secret.rpartition(":")
    place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    helper = f'!printf "username=%s\\npassword=%s\\n" "${SECRET}_USER" "${SECRET}_TOKEN"; :'
    opened_by = {f"{SECRET}_USER": user or parts.username or "x-access-token", f"{SECRET}_TOKEN": token}
    return Remote(address, settings={f"credential.{place}.helper": helper}, env={**_NETWORK, **opened_by})


def open_packed(archive: Path, folder: Path, caps: Caps) -> Remote:
    """A tar of a git directory (bare layout, or .git with or without its name), unpacked into folder."""
    folder.mkdir()
    unpack(archive, folder, caps=caps, rename=_git_content, strip_top=False, links_out=False)
    if not (folder / "HEAD").is_file():
        raise Problem("repository", "the packed source is no git directory: it has no HEAD")
    for head in (folder / "HEAD", *folder.glob("modules/**/HEAD")):
        for needed in ("objects", "refs"):
            (head.parent / needed).mkdir(exist_ok=True)
        (head.parent / "config").write_text(_CONFIG)
    return Remote(str(folder), env={"GIT_ALLOW_PROTOCOL": "file"}, unpacked=folder)


def without_credentials(url: str) -> str:
    """The URL as it may stand in a configuration or message: user and password removed (an SSH user is kept)."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _host(address: str) -> str:
    """Host and port of a URL, or of `git@host:path`."""
    place = urlsplit(address).netloc if "://" in address else address.partition(":")[0]
    return place.rpartition("@")[2].lower()


def _relative(address: str, url: str) -> str:
    """A submodule's URL that starts with ./ or ../, as git reads it: relative to the address of its parent."""
    place = address.rstrip("/")
    while url.startswith(("./", "../")):
        step, _, url = url.partition("/")
        if step == "..":
            place = place[: max(place.rfind("/"), place.rfind(":"))]
    return f"{place}/{url}"


def _ssh_command(key: str) -> str:
    """The key goes to a file on the container's tmpfs; the host's key is trusted at first sight."""
    folder = Path(tempfile.mkdtemp())
    path = folder / "key"
    path.touch(mode=0o600)
    path.write_text(key.strip() + "\n")
    return (
        f"ssh -F /dev/null -i {path} -o IdentitiesOnly=yes -o BatchMode=yes "
        f"-o StrictHostKeyChecking=accept-new -o UserKnownHostsFile={folder}/known_hosts"
    )


def _git_content(name: str) -> str | None:
    name = name.removeprefix(".git/")
    return name if _GIT_CONTENT.fullmatch(name) and not name.endswith(_NOT_TAKEN) else None


def _commit(git_dir: Path, name: str) -> str:
    """The whole id of a commit that git_dir holds, "" when it does not."""
    try:
        return git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", git_dir=git_dir).decode().strip()
    except GitFailed:
        return ""


def _branches(refs: Mapping[str, str]) -> str:
    names = sorted(name.removeprefix(_HEADS) for name in refs if name.startswith(_HEADS))
    more = f" and {len(names) - BRANCHES_SHOWN} more" if len(names) > BRANCHES_SHOWN else ""
    return f"branches: {', '.join(names[:BRANCHES_SHOWN]) or 'none'}{more}"


def _hint(text: str) -> str:
    if re.search(r"could not read Username|Authentication failed|Permission denied|\b(401|403)\b", text):
        return "a private repository needs `secret: NAME` with a value in DAWN_SECRET_NAME of the worker"
    return ""
