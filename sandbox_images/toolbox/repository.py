"""Owns the start of every run: a URL or a packed source becomes /workspace/repo and /workspace/base.

/workspace/repo has a git directory of its own, with history; /workspace/base holds what a patch is made against:
`git` (bare, the objects of the start commit), `commit`, `tracked` (paths, each ended by NUL), `submodules` (JSON:
path, commit) and, where contents were fetched from Git LFS, `lfs` (JSON: path, SHA-256). Refuses to leave credentials
in either.

Operations: resolve (url, ref), fetch (kind, url, ref or commit and branch, caps, lfs), and prove (print), which says
whether base is still as fetch left it: its answer's `print`. What fetch found of instructions for agents is its
answer's `instructions`: (path, text), nearest first.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import lfs
from changes import LFS
from cleangit import (
    BASE,
    HOME,
    REPO,
    GitFailed,
    Problem,
    check_out,
    git,
    init,
    object_format,
    reading_git,
    serve,
    tree_entries,
)
from instructions import instructions
from remotes import Remote, Start, open_packed, open_url
from submodules import Submodule, check_out_submodules
from unpack import CHUNK_BYTES, Caps, unpack

IDENTITY = {"user.name": "Dawnfleet agent", "user.email": "agent@dawnfleet.invalid", "commit.gpgSign": "false"}
FOLDER_DATE = "2000-01-01T00:00:00Z"
"""Author and committer date of the one commit that a folder or tarball becomes: its id depends on content only."""
BASE_DEPTH = 20
"""Folders inside folders of base. Fetching makes fewer."""


def resolve(request: dict[str, Any]) -> dict[str, Any]:
    """The commit a ref of a URL names now. Only an abbreviated commit needs a fetch, into a scratch folder."""
    remote = open_url(request["url"])
    start = remote.start(request["ref"])
    if not start.known:
        with tempfile.TemporaryDirectory(dir=BASE) as scratch:
            init(Path(scratch))
            start = remote.fetch(Path(scratch), start)
    return {"commit": start.commit, "branch": start.branch}


def fetch(request: dict[str, Any]) -> dict[str, Any]:
    """kind: url (with commit and branch, as resolved), git (with ref), folder or tarball (packed at base/source).

    path: the folder inside the repository that the work starts in; it must exist. lfs: whether what
    it keeps in Git LFS is fetched.
    """
    caps = Caps(request["caps"]["bytes"], request["caps"]["files"])
    try:
        start, submodules, notes = _filled(request, caps)
    except GitFailed as failed:
        raise Problem("repository", str(failed)) from failed
    finally:
        shutil.rmtree(BASE / "source.git", ignore_errors=True)
        (BASE / "source").unlink(missing_ok=True)
    path = request.get("path", "")
    if os.path.realpath(REPO / path) != str(REPO / path) or not (REPO / path).is_dir():
        raise Problem("repository", f"the repository has no folder {path!r}")
    tracked = _write_base(start.commit, submodules)
    notes += _lfs_notes(submodules)
    return {
        "commit": start.commit,
        "branch": start.branch,
        "tracked": tracked,
        "notes": notes,
        "instructions": instructions(str(REPO), path),
        "print": _print(),
    }


def prove(request: dict[str, Any]) -> dict[str, Any]:
    """Setup runs as root, and with it what the repository brings along: it must leave our part alone."""
    for folder in (REPO, HOME, BASE):
        if folder.is_symlink() or not folder.is_dir():
            raise Problem("setup", f"setup removed or replaced the folder {folder}")
    if _print() != request["print"]:
        raise Problem("setup", f"setup changed {BASE}, which patches are made against")
    return {}


def _filled(request: dict[str, Any], caps: Caps) -> tuple[Start, list[Submodule], list[str]]:
    kind = request["kind"]
    if kind in ("folder", "tarball"):
        return _from_files(kind, request.get("ref"), caps), [], []
    if kind == "url":
        remote = open_url(request["url"])
        start = Start(request["commit"], request["branch"])
    else:
        remote = open_packed(BASE / "source", BASE / "source.git", caps)
        start = remote.start(request.get("ref"))
    start = _from_git(remote, start, caps)
    if request.get("lfs"):
        kept = lfs.pointers(REPO / ".git", start.commit)
        lfs.fetch_contents(remote, kept, caps)
        (BASE / LFS).write_text(json.dumps([[os.fsdecode(one.path), one.oid] for one in kept]))
    return start, *check_out_submodules(remote, start.commit)


def _from_git(remote: Remote, start: Start, caps: Caps) -> Start:
    git_dir = REPO / ".git"
    init(git_dir, object_format=start.object_format, bare=False)
    start = remote.fetch(git_dir, start)
    _fits(git_dir, start.commit, caps)
    for name, value in IDENTITY.items():
        git("config", name, value, git_dir=git_dir)
    if not remote.unpacked:
        git("config", "remote.origin.url", remote.address, git_dir=git_dir)
        git("config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*", git_dir=git_dir)
    check_out(git_dir, REPO, start.commit, branch=start.branch)
    return start


def _from_files(kind: str, ref: str | None, caps: Caps) -> Start:
    """One commit of everything (of a folder: of what its own ignore files do not leave out)."""
    if ref:
        raise Problem("ref", f"a {kind} has no {ref!r}: it has one state only")
    unpack(
        BASE / "source",
        REPO,
        caps=caps,
        rename=lambda name: None if ".git" in name.lower().split("/") else name,
        strip_top=kind == "tarball",
        # A person's own folder may hold a virtual environment, whose links point outside; a download may not.
        links_out=kind == "folder",
    )
    git_dir = REPO / ".git"
    init(git_dir, bare=False)
    force = ["--force"] if kind == "tarball" else []
    git("add", "--all", *force, "--", ".", git_dir=git_dir, work_tree=REPO)
    if not git("ls-files", "--cached", "-z", git_dir=git_dir):
        raise Problem("repository", f"the {kind} holds no files")
    for name, value in IDENTITY.items():
        git("config", name, value, git_dir=git_dir)
    tree = git("write-tree", git_dir=git_dir).decode().strip()
    dates = {"GIT_AUTHOR_DATE": FOLDER_DATE, "GIT_COMMITTER_DATE": FOLDER_DATE}
    commit = git("commit-tree", "-m", f"Import of a {kind}", tree, git_dir=git_dir, env=dates).decode().strip()
    git("update-ref", "refs/heads/main", commit, git_dir=git_dir)
    return Start(commit, "main")


def _write_base(commit: str, submodules: Sequence[Submodule]) -> int:
    """Fill BASE from the checked-out repository; returns how many paths are tracked, those of submodules included."""
    repository = Submodule(b"", commit, REPO / ".git")
    base = BASE / "git"
    init(base, object_format=object_format(repository.git_dir))
    tracked = []
    for part in (repository, *submodules):
        listed = git("rev-list", "--objects", "--no-walk", part.commit, git_dir=part.git_dir)
        pack = str(base / "objects" / "pack" / "pack")
        git("pack-objects", "--quiet", pack, git_dir=part.git_dir, input=listed)
        entries = tree_entries(part.git_dir, part.commit)
        tracked += [os.path.join(part.path, path) for path, mode, _ in entries if mode != "160000"]
    commits = sorted({commit, *(part.commit for part in submodules)})
    (base / "shallow").write_text("".join(f"{one}\n" for one in commits))
    git("update-ref", "refs/heads/main", commit, git_dir=base)
    (BASE / "tracked").write_bytes(b"".join(path + b"\0" for path in sorted(tracked)))
    (BASE / "submodules").write_text(json.dumps([[os.fsdecode(part.path), part.commit] for part in submodules]))
    (BASE / "commit").write_text(commit + "\n")
    return len(tracked)


def _fits(git_dir: Path, commit: str, caps: Caps) -> None:
    """Raises Problem for a commit that would check out to more than the caps: a few small objects can name millions
    of files."""
    files = size = 0
    with reading_git("ls-tree", "-r", "-l", "-z", "--full-tree", commit, git_dir=git_dir) as listing:
        for entry in _ended_by_nul(listing):
            files += 1
            about = entry.partition(b"\t")[0].split()
            size += int(about[3]) if about[3].isdigit() else 0
            if files > caps.files:
                raise Problem("repository", f"the commit holds more than {caps.files:,} files")
            if size > caps.bytes:
                raise Problem("repository", f"the commit's files are larger than {caps.bytes:,} bytes")


def _ended_by_nul(stream: IO[bytes]) -> Iterator[bytes]:
    half = b""
    while chunk := stream.read(CHUNK_BYTES):
        *whole, half = (half + chunk).split(b"\0")
        yield from whole


def _print() -> str:
    """SHA-256 over names, kinds and contents of all in base; links are not followed."""
    found = hashlib.sha256()
    for folder, folders, files in os.walk(BASE):
        folders.sort()
        if folder.count("/") > str(BASE).count("/") + BASE_DEPTH:
            break
        for name in sorted([*folders, *files]):
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            found.update(os.fsencode(f"{stat.S_IFMT(mode)} {path}\0"))
            if stat.S_ISREG(mode):
                with open(path, "rb") as content:
                    found.update(hashlib.file_digest(content, "sha256").digest())
    return found.hexdigest()


def _lfs_notes(submodules: Sequence[Submodule]) -> list[str]:
    if (BASE / LFS).exists():
        return ["what submodules keep in Git LFS stays pointers"] if submodules else []
    attributes = REPO / ".gitattributes"
    if attributes.is_file() and not attributes.is_symlink() and b"filter=lfs" in attributes.read_bytes():
        return ["files kept in Git LFS are their pointers: their content is not fetched"]
    return []


if __name__ == "__main__":
    sys.exit(serve({"resolve": resolve, "fetch": fetch, "prove": prove}))
