"""How a user's word for a repository becomes a source in the archive, and what is refused on the way."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from scheduler.launch import located
from scheduler.manifests import targets
from scheduler.manifests.reading import parse
from worker.contract.errors import InvalidFault
from worker.contract.settings import Settings
from worker.contract.task import Limits
from worker.store import keys
from worker.store.archive import Archive, open_archive

LIMIT = 2**20


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return open_archive(f"file://{tmp_path / 'archive'}", Settings())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A plain folder with a script, a link and a file in a folder whose name has a blank and an umlaut."""
    root = tmp_path / "päck age"
    (root / "sub dir").mkdir(parents=True)
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o700)
    (root / "sub dir" / "é.txt").write_text("x\n")
    (root / "link").symlink_to("/etc/passwd")
    return root


def git(path: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "-C", str(path), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    root = tmp_path / "clone"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    (root / "a.txt").write_text("a\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "one")
    return root


def stored(path: Path, archive: Archive) -> tuple[targets.Origin, tarfile.TarFile, str]:
    origin = targets.locate(str(path), Path("/"))
    digest = targets.store(origin, archive, limit_bytes=LIMIT)
    assert digest is not None
    return origin, tarfile.open(fileobj=io.BytesIO(archive.get(keys.source(digest)))), digest


def test_a_folder_keeps_links_and_the_executable_bit(folder: Path, archive: Archive) -> None:
    """Links stay links, wherever they point; modes are 755 or 644; times and owners are dropped."""
    origin, tar, _ = stored(folder, archive)
    members = {member.name: member for member in tar}
    assert origin.kind == "folder"
    assert sorted(members) == ["link", "run.sh", "sub dir/é.txt"]
    assert members["link"].linkname == "/etc/passwd"
    assert members["run.sh"].mode == 0o755
    assert {(member.mtime, member.uid) for member in members.values()} == {(0, 0)}


def test_the_same_content_gives_the_same_source(folder: Path, archive: Archive) -> None:
    """Touching files changes no digest, so a repeated submit uploads nothing."""
    _, _, before = stored(folder, archive)
    os.utime(folder / "run.sh", (1, 1))
    _, _, after = stored(folder, archive)
    assert before == after


def test_history_and_caches_of_a_folder_are_left_out(folder: Path, archive: Archive) -> None:
    """At any depth: running the code once must not make another source of it."""
    for name in (".git", "__pycache__"):
        (folder / "sub dir" / name).mkdir()
        (folder / "sub dir" / name / "x").write_text("x")
    _, tar, _ = stored(folder, archive)
    assert not [name for name in tar.getnames() if ".git" in name or "__pycache__" in name]


def test_a_fifo_is_left_out_and_does_not_block(folder: Path, archive: Archive) -> None:
    """Only files and links are packed."""
    os.mkfifo(folder / "pipe")
    _, tar, _ = stored(folder, archive)
    assert "pipe" not in tar.getnames()


def test_a_file_name_that_is_not_utf8_survives(folder: Path, archive: Archive) -> None:
    """Names are bytes."""
    (folder / os.fsdecode(b"\xff.txt")).write_text("x")
    _, tar, _ = stored(folder, archive)
    assert os.fsdecode(b"\xff.txt") in tar.getnames()


def test_a_clone_is_packed_without_configuration_and_work_tree(clone: Path, archive: Archive, tmp_path: Path) -> None:
    """What is packed is a bare git directory that git can clone, and nothing that git would execute."""
    git(clone, "config", "core.fsmonitor", "touch /canary")
    origin, tar, _ = stored(clone, archive)
    assert origin.kind == "git"
    assert not {"config", "index", "a.txt"} & set(tar.getnames())
    assert not [name for name in tar.getnames() if name.startswith("hooks")]
    tar.extractall(tmp_path / "bare", filter="data")
    git(tmp_path, "clone", "-q", "bare", "again")
    assert (tmp_path / "again" / "a.txt").read_text() == "a\n"


def test_the_user_is_told_that_only_commits_are_used(clone: Path) -> None:
    """A dirty work tree would otherwise surprise."""
    assert "not committed" in targets.locate(str(clone), Path("/")).notes[0]


def test_what_holds_for_several_targets_is_said_once(clone: Path, archive: Archive) -> None:
    """With the first one's name and how many more there are."""
    git(clone.parent, "clone", "-q", "clone", "other")
    text = "version: 1\nname: night\ntargets: [{repo: ./clone}, {repo: ./other}]\ntask: {commands: ['true']}\n"
    said: list[str] = []
    located(parse(text, "night.yaml", clone.parent, Limits()), archive, store=False, say=said.append)
    [note] = said
    assert note.startswith("note: ./clone and 1 more: ")


def test_a_linked_work_tree_is_packed_with_its_own_head(clone: Path, archive: Archive, tmp_path: Path) -> None:
    """Objects and refs come from the common directory, HEAD from the work tree's own."""
    git(clone, "worktree", "add", "-q", "-b", "side", str(tmp_path / "linked"))
    _, tar, _ = stored(tmp_path / "linked", archive)
    head = tar.extractfile("HEAD")
    assert head is not None
    assert head.read() == b"ref: refs/heads/side\n"
    assert "refs/heads/main" in tar.getnames()


def test_a_clone_that_borrows_objects_is_refused(clone: Path, archive: Archive, tmp_path: Path) -> None:
    """Alternates would be missing on the worker."""
    git(tmp_path, "clone", "-q", "--shared", str(clone), "shared")
    with pytest.raises(InvalidFault, match="alternates") as caught:
        stored(tmp_path / "shared", archive)
    assert "repack" in caught.value.hint


def test_a_clone_that_keeps_objects_behind_a_link_is_refused(clone: Path, tmp_path: Path, archive: Archive) -> None:
    """What lies behind a link may be anything on this host, so nothing of it is packed."""
    (clone / ".git" / "objects").rename(tmp_path / "elsewhere")
    (clone / ".git" / "objects").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidFault, match="behind a link"):
        stored(clone, archive)


def test_a_folder_inside_a_clone_is_plain_and_says_so(clone: Path) -> None:
    """The hint names the repository and --path."""
    (clone / "pkg").mkdir()
    (clone / "pkg" / "x").write_text("x")
    origin = targets.locate("pkg", clone)
    assert origin.kind == "folder"
    assert "--path" in origin.notes[0]


def test_an_archive_file_is_stored_as_it_is(tmp_path: Path, archive: Archive) -> None:
    """Nothing is extracted on the host."""
    path = tmp_path / "pkg-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("pkg-1.0/x"))
    origin = targets.locate(str(path), Path("/"))
    digest = targets.store(origin, archive, limit_bytes=LIMIT)
    assert origin.kind == "tarball"
    assert archive.get(keys.source(str(digest))) == path.read_bytes()


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("https://git.example.org/o/name.git", "name"),
        ("ssh://git@git.example.org/o/name", "name"),
        ("git@git.example.org:o/name.git", "name"),
    ],
)
def test_a_url_is_kept_and_labelled(text: str, label: str) -> None:
    """Fetching is the container's work."""
    origin = targets.locate(text, Path("/"))
    assert (origin.url, origin.label) == (text, label)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("https://user:t0ken@git.example.org/a", "holds credentials"),
        ("https://t0ken@git.example.org/a", "holds credentials"),
        ("ext::sh -c touch% /canary", "does not exist"),
        ("ftp://example.org/a", "scheme"),
        ("git.example.org/a/b", "does not exist"),
        ("a\x1b[2Jb", "control characters"),
        ("https:///a", "no host"),
        ("https://user:t0ken@[git.example.org/a", "host cannot be read"),
    ],
)
def test_what_cannot_be_fetched_is_refused_early(text: str, message: str, tmp_path: Path) -> None:
    """Each with a hint, and no token is repeated in the message."""
    with pytest.raises(InvalidFault, match=message) as caught:
        targets.locate(text, tmp_path)
    assert caught.value.hint
    assert "t0ken" not in str(caught.value)


def test_an_empty_folder_is_refused(tmp_path: Path, archive: Archive) -> None:
    """There is nothing to work on."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidFault, match="is empty"):
        stored(tmp_path / "empty", archive)


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    """The first bytes decide, not the name."""
    (tmp_path / "x.tar.gz").write_text("no")
    with pytest.raises(InvalidFault, match="no archive"):
        targets.locate(str(tmp_path / "x.tar.gz"), tmp_path)


def test_a_source_over_the_limit_is_refused(tmp_path: Path, archive: Archive) -> None:
    """A workspace could not hold it."""
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "x").write_bytes(b"0" * (LIMIT + 1))
    with pytest.raises(InvalidFault, match="larger than"):
        stored(tmp_path / "big", archive)
