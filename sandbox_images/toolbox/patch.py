"""Owns the patch: made from a work tree against its start commit, and laid down on the start commit again.

Refuses to run git on anything the agent could have written: git sees a directory of our own with the objects of
/workspace/base, and the content that changes.py read. Changes below submodules go to a patch of their own.

Operations: make (base/listing -> base/patch.diff, base/submodules.diff) and apply (those two -> the work tree).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import ignore
from changes import Base, Caps, Change, LeftOut, shown, stash_notes
from cleangit import BASE, HOME, REPO, GitFailed, Problem, git, init, quoted, reading_git, serve

PATCH, SUBMODULES = "patch.diff", "submodules.diff"
FILES_MAX = 1000
RENAMES_MAX = 1000
"""How many new and deleted files are compared for similar content; equal content is always found."""
LINE_BYTES = 1 << 20

_COMMITTER = b"committer dawnfleet <dawnfleet> 0 +0000\ndata 0\n"
_SUBMODULES_BEFORE = "refs/heads/submodules-before"
_DIFF = (
    *("diff-tree", "-r", "-M", f"-l{RENAMES_MAX}", "--full-index", "--binary", "--no-color"),
    *("--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/"),
)


@dataclass
class Section:
    """One path's part of a patch. paths: more than one for a rename. data: cut once size is over the cap."""

    status: str
    paths: tuple[bytes, ...]
    data: bytes = b""
    size: int = 0

    @property
    def lines(self) -> tuple[int, int] | None:
        """Lines added and removed, None for binary."""
        head, found, body = self.data.partition(b"\n@@ ")
        if not found:
            return None if b"\nGIT binary patch\n" in head else (0, 0)
        starts = [line[:1] for line in body.split(b"\n")[1:]]
        return starts.count(b"+"), starts.count(b"-")


def make(request: dict[str, Any]) -> dict[str, Any]:
    """Write both patches, without the new files that `reports` names (folder and glob each); answers sizes, files
    (path -> lines added, removed; None for binary), left_out, notes."""
    caps = Caps(request["file_bytes"], request["patch_bytes"])
    listing_file = BASE / "listing"
    listing = [(os.fsencode(path), mode, sha256) for path, mode, sha256 in json.loads(listing_file.read_bytes())]
    listing_file.unlink()
    base = Base()
    reports = [pattern for place in request.get("reports", ()) for pattern in ignore.globbed(*place)]
    repository, submodules, left_out = base.compare(listing, caps, reports)
    files: dict[str, tuple[int, int] | None] = {}
    with tempfile.TemporaryDirectory(dir=BASE) as scratch:
        git_dir = Path(scratch) / "git"
        init(git_dir, object_format=base.object_format)
        (git_dir / "objects" / "info" / "alternates").write_text(f"{base.git_dir}/objects\n")
        parts = ((PATCH, repository, base.commit), (SUBMODULES, submodules, _SUBMODULES_BEFORE))
        with tempfile.TemporaryFile(dir=scratch) as stream:
            _join_submodules(stream, git_dir, base)
            for name, change, before in parts:
                _commit(stream, f"refs/heads/{name}", before, change)
            stream.seek(0)
            git("fast-import", "--quiet", "--force", git_dir=git_dir, stdin=stream)
        room, sizes = caps.patch_bytes, {}
        for name, _, before in parts:
            sections = _fitting(git_dir, before, f"refs/heads/{name}", replace(caps, patch_bytes=room), left_out)
            (BASE / name).write_bytes(b"".join(section.data for section in sections))
            sizes[name] = sum(section.size for section in sections)
            room -= sizes[name]
            files |= {shown(section.paths[-1]): section.lines for section in sections}
    notes = stash_notes()
    if len(files) > FILES_MAX:
        notes.append(f"the patch changes {len(files):,} files, of which {FILES_MAX:,} are listed")
    return {
        "sizes": sizes,
        "files": dict(list(files.items())[:FILES_MAX]),
        "left_out": left_out.summary(),
        "notes": notes,
    }


def apply(request: dict[str, Any]) -> dict[str, Any]:
    """Lay base/patch.diff and base/submodules.diff, made against the start commit, down on the work tree.

    They are applied to the start commit in an index, and only the paths that they change are written: whatever setup
    did to those paths gives way, whatever else it did stays. With `anew` (as root) nothing of it stays: the work tree
    and HOME are emptied, and all of the start commit with the patch is written.
    """
    base = Base()
    with tempfile.TemporaryDirectory() as scratch:
        git_dir = Path(scratch) / "git"
        init(git_dir, object_format=base.object_format)
        (git_dir / "objects" / "info" / "alternates").write_text(f"{base.git_dir}/objects\n")
        entries = b"".join(
            b"%b %b\t%b\0" % (mode.encode(), oid.encode(), path) for path, (mode, oid) in base.entries.items()
        )
        git("update-index", "-z", "--index-info", git_dir=git_dir, input=entries)
        before = git("write-tree", git_dir=git_dir).strip()
        for name in (PATCH, SUBMODULES):
            patch = BASE / name
            if not patch.is_file() or not patch.stat().st_size:
                continue
            try:
                git("apply", "--cached", "--binary", "--whitespace=nowarn", str(patch), git_dir=git_dir)
            except GitFailed as failed:
                raise Problem("patch", f"{name} does not apply to its base: {failed.text}") from failed
        if request.get("anew"):
            for place in (REPO, HOME):
                _empty(place)
            git("checkout-index", "-f", "-a", git_dir=git_dir, work_tree=REPO)
            return {}
        after = git("write-tree", git_dir=git_dir).strip()
        said = git("diff-tree", "-r", "-z", "--no-renames", "--name-status", before, after, git_dir=git_dir)
        statuses, paths = said.split(b"\0")[:-1:2], said.split(b"\0")[1::2]
        for status, path in zip(statuses, paths, strict=True):
            if status == b"D":
                _remove(path)
        written = [path for status, path in zip(statuses, paths, strict=True) if status != b"D"]
        listed = b"".join(path + b"\0" for path in written)
        git("checkout-index", "-f", "-z", "--stdin", git_dir=git_dir, work_tree=REPO, input=listed)
    return {}


def _empty(folder: Path) -> None:
    """Remove all that lies there but a `.git`."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            if entry.name != ".git":
                shutil.rmtree(entry.path)
        elif entry.name != ".git":
            os.unlink(entry.path)


def _remove(path: bytes) -> None:
    """Remove a path of the work tree, and the folders that it leaves empty."""
    place = os.path.join(os.fsencode(REPO), path)
    with suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(place)
    with suppress(OSError):  # the first folder that is not empty ends it
        os.removedirs(os.path.dirname(place))


def _join_submodules(stream: IO[bytes], git_dir: Path, base: Base) -> None:
    """A commit that holds the trees of all submodules at their places: what their patch is made against."""
    stream.write(b"commit %b\n%b" % (_SUBMODULES_BEFORE.encode(), _COMMITTER))
    for path, commit in base.submodules:
        tree = git("rev-parse", f"{commit}^{{tree}}", git_dir=git_dir).strip()
        stream.write(b"M 040000 %b %b\n" % (tree, quoted(path)))
    stream.write(b"\n")


def _commit(stream: IO[bytes], name: str, before: str, change: Change) -> None:
    """The same tree as `before` with the change in it, as fast-import reads it."""
    stream.write(b"commit %b\n%bfrom %b\n" % (name.encode(), _COMMITTER, before.encode()))
    for path in change.deleted:
        stream.write(b"D %b\n" % quoted(path))
    for written in change.written:
        mode, path = written.mode.encode(), quoted(written.path)
        if written.known:
            stream.write(b"M %b %b %b\n" % (mode, written.oid.encode(), path))
        else:
            content = written.content()
            stream.write(b"M %b inline %b\ndata %d\n%b\n" % (mode, path, len(content), content))
    stream.write(b"\n")


def _fitting(git_dir: Path, before: str, after: str, caps: Caps, left_out: LeftOut) -> list[Section]:
    """The sections that keep the caps: changes of tracked files first, then as many new files as have room."""
    tracked: list[Section] = []
    new: list[Section] = []
    rooms = [caps.patch_bytes, caps.patch_bytes]
    for section in _sections(git_dir, before, after, caps.file_bytes):
        is_new = section.status == "A"
        if section.size > caps.file_bytes:
            _leave(section, caps.over(section.size, "a change"), left_out)
        elif section.size > rooms[is_new]:
            _leave(section, caps.full, left_out)
        else:
            rooms[is_new] -= section.size
            (new if is_new else tracked).append(section)
    room = rooms[False]
    for section in new:
        if section.size > room:
            _leave(section, caps.full, left_out)
        else:
            room -= section.size
            tracked.append(section)
    return tracked


def _leave(section: Section, reason: str, left_out: LeftOut) -> None:
    for path in section.paths:
        left_out.add(path, reason)


def _sections(git_dir: Path, before: str, after: str, most_bytes: int) -> Iterator[Section]:
    """The patch in parts, in git's order. A part over most_bytes has its size, but not all of its data."""
    raw = iter(git(*_DIFF, "--raw", "-z", before, after, git_dir=git_dir).split(b"\0"))
    with reading_git(*_DIFF, "--patch", before, after, git_dir=git_dir) as diff:
        starts_line = True
        headers = 0
        section: Section | None = None
        while line := diff.readline(LINE_BYTES):
            if starts_line and line.startswith(b"diff --git "):
                headers -= 1
                if headers <= 0:
                    if section:
                        yield section
                    section = _named(raw)
                    # A file that became a link, or the reverse, is two patches in one: away with it, and anew.
                    headers = 2 if section.status == "T" else 1
            assert section is not None, "a diff starts with its header"
            section.size += len(line)
            if section.size <= most_bytes:
                section.data += line
            starts_line = line.endswith(b"\n")
        if section:
            yield section


def _named(raw: Iterator[bytes]) -> Section:
    """The next record of `--raw -z`: `:modes ids status`, then one path, or two for a rename."""
    status = next(raw).decode().rpartition(" ")[2][:1]
    return Section(status, tuple(next(raw) for _ in range(2 if status in "RC" else 1)))


if __name__ == "__main__":
    sys.exit(serve({"make": make, "apply": apply}))
