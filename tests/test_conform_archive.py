"""Owns what every archive must do, over a folder, moto's server, SeaweedFS, the double in memory, one that is read
through, and a bundle, which is read only. Refuses store-specific claims."""

from __future__ import annotations

import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from doubles import MemoryArchive

from worker.contract.errors import ExitCode, IntegrityFault, InvalidFault, NotFoundFault, StoreFault, UsageFault
from worker.contract.settings import Settings
from worker.store.archive import Archive, open_archive
from worker.store.bundle import SCHEME, Bundle, Index, write
from worker.store.content import measured
from worker.store.overlay import Overlay

PART_BYTES = 5 * 2**20
"""The smallest part that S3 takes: a file above it goes up in several."""


class Bundled:
    """What is written lies in memory; each read is one of a bundle of all that."""

    def __init__(self, path: Path) -> None:
        self.url, self._path, self._below = "memory:", path, MemoryArchive()
        self.create, self.overwrite, self.delete = self._below.create, self._below.overwrite, self._below.delete
        self.probe, self.aged, self.sweep = self._below.probe, self._below.aged, self._below.sweep

    def __getattr__(self, name: str) -> Any:
        """get, chunks, size, list, folders: of a bundle made in this moment."""
        objects = tuple((key, *measured(self._below, key)) for key in self._below.list(""))
        with self._path.open("wb") as out:
            write(self._below, Index(versions={}, roots=(), objects=objects), out)
        return getattr(Bundle(f"{SCHEME}{self._path}"), name)


@pytest.fixture(params=["local", "moto", "seaweed", "memory", "overlay", "bundle"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Archive:
    """An empty archive of each kind."""
    if request.param == "memory":
        return MemoryArchive()
    if request.param == "bundle":
        return Bundled(tmp_path / "bundle.tar")
    if request.param == "overlay":
        return Overlay(MemoryArchive(), MemoryArchive(), fresh=("runs/fresh/journal/",))
    if request.param == "local":
        return open_archive(f"file://{tmp_path}/an archive ü", Settings())
    settings: Settings = request.getfixturevalue(request.param)
    return open_archive(
        f"s3://dawn/test {uuid.uuid4().hex}", settings.model_copy(update={"s3_part_bytes": PART_BYTES})
    )


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file of two and a half parts."""
    path = tmp_path / "large"
    path.write_bytes(os.urandom(PART_BYTES * 5 // 2))
    return path


def test_first_create_wins(archive: Archive) -> None:
    """The second create of a key says False and changes nothing."""
    assert archive.create("runs/a/task.json", b"first")
    assert not archive.create("runs/a/task.json", b"second")
    assert archive.get("runs/a/task.json") == b"first"


def test_one_winner_of_16(archive: Archive) -> None:
    """Of 16 writers at once exactly one is told True, and its bytes are stored."""
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda n: archive.create("runs/a/journal/1", b"%d" % n), range(16)))
    assert won.count(True) == 1
    assert archive.get("runs/a/journal/1") == b"%d" % won.index(True)


def test_a_large_file_is_create_only_too(archive: Archive, large: Path, tmp_path: Path) -> None:
    """A file above the part size arrives whole, and a second one does not replace it."""
    other = tmp_path / "other"
    other.write_bytes(bytes(PART_BYTES * 2))
    assert archive.create("images/x.tar", large)
    assert not archive.create("images/x.tar", other)
    assert archive.get("images/x.tar") == large.read_bytes()


def test_chunks_are_small_and_cut_where_asked(archive: Archive, large: Path) -> None:
    """Chunks have at most 1 MiB; a range crosses part borders exactly; past the end there is nothing."""
    archive.create("x", large)
    assert all(len(chunk) <= 2**20 for chunk in archive.chunks("x"))
    assert (
        b"".join(archive.chunks("x", start=PART_BYTES - 3, length=6))
        == large.read_bytes()[PART_BYTES - 3 : PART_BYTES + 3]
    )
    assert not list(archive.chunks("x", start=10**9))


def test_an_empty_object_is_an_object(archive: Archive) -> None:
    """A marker has no bytes and exists."""
    assert archive.create("open/a", b"")
    assert not archive.create("open/a", b"")
    assert archive.size("open/a") == 0
    assert archive.get("open/a") == b""
    assert list(archive.chunks("open/a")) == []


def test_missing_objects(archive: Archive) -> None:
    """What is not there has no size and cannot be read; a folder is not an object."""
    archive.create("runs/a/x", b"1")
    for key in ("nothing", "runs", "runs/a", "runs/a/x/y"):
        assert archive.size(key) is None
        with pytest.raises(NotFoundFault):
            archive.get(key)
        with pytest.raises(NotFoundFault):
            next(archive.chunks(key))


def test_too_large_to_read(archive: Archive) -> None:
    """get refuses an object over its bound, and takes one of exactly that size."""
    archive.create("x", b"12345")
    assert archive.get("x", max_bytes=5) == b"12345"
    with pytest.raises(IntegrityFault):
        archive.get("x", max_bytes=4)


def test_list_is_sorted_and_starts_after(archive: Archive) -> None:
    """Keys of a folder come sorted, all below it and none beside it, strictly greater than `after`."""
    names = [f"runs/a/journal/{n:09d}.jsonl" for n in range(12)]
    for name in [*reversed(names), "runs/ab/journal/0"]:
        archive.create(name, b"x")
    assert list(archive.list("runs/a/journal/")) == names
    assert list(archive.list("runs/a/journal/", after=names[4])) == names[5:]
    assert list(archive.list("runs/a/journal/", after=names[-1])) == []
    assert sorted(archive.list("runs/")) == [*names, "runs/ab/journal/0"]
    assert list(archive.list("nothing/")) == []


def test_folders_are_direct(archive: Archive) -> None:
    """Sub-folders come sorted, without slash, without objects and without deeper ones."""
    for key in ("runs/b/x/y", "runs/a/x", "runs/a-1/x", "runs/object"):
        archive.create(key, b"")
    assert sorted(archive.folders("runs/")) == ["a", "a-1", "b"]
    assert list(archive.folders("nothing/")) == []


def test_delete_is_repeatable(archive: Archive) -> None:
    """Deleting many keys, one of which is gone, succeeds, and the key can be created again."""
    for key in ("open/a", "open/b"):
        archive.create(key, b"")
    archive.delete(["open/a", "open/b", "open/never"])
    archive.delete(["open/a"])
    assert list(archive.list("open/")) == []
    assert archive.create("open/a", b"again")


def test_overwrite_replaces(archive: Archive) -> None:
    """A cache is replaced whole, and made when missing."""
    archive.overwrite("cache/index", b"a longer one")
    archive.overwrite("cache/index", b"two")
    assert archive.get("cache/index") == b"two"


@pytest.mark.parametrize("name", ["a+b", "a b", "ü#?%41", "A", "a", "x" * 240, "%2e%2e", "&<>\"'"])
def test_strange_names_stay_apart(archive: Archive, name: str) -> None:
    """A name is stored, listed and read back as it is (T64)."""
    assert archive.create(f"runs/{name}/task.json", name.encode())
    assert list(archive.list("runs/")) == [f"runs/{name}/task.json"]
    assert archive.get(f"runs/{name}/task.json") == name.encode()


@pytest.mark.parametrize(
    "key", ["../x", "a/../b", "a//b", "x/", "/y", "", "a\0b", "a\nb", "a\\b", "x" * 300, "a/" * 600 + "b"]
)
def test_impossible_names_are_refused(archive: Archive, key: str) -> None:
    """No key leaves the archive, has an empty part or is too long for some store (T64)."""
    with pytest.raises(InvalidFault):
        archive.create(key, b"")


def test_probe_passes_and_leaves_nothing(archive: Archive) -> None:
    """A sound store is accepted, and nothing of the proof stays."""
    archive.probe()
    assert list(archive.list("")) == []


def test_probe_refuses_the_double_that_overwrites() -> None:
    """The mutation of the histories is the store that a deployment refuses to start with."""
    with pytest.raises(StoreFault, match="ignores conditional writes"):
        MemoryArchive(create_only=False).probe()


def test_probe_refuses_a_store_that_ignores_conditions(rclone: Settings) -> None:
    """rclone's server lets a second create replace the first: it is refused with the reason (F41)."""
    with pytest.raises(StoreFault, match="ignores conditional writes") as caught:
        open_archive("s3://dawn/x", rclone).probe()
    assert not caught.value.retryable
    assert "If-None-Match" in caught.value.hint


@pytest.mark.parametrize("url", ["ftp://x", "/plain", "s3://", "s3:///x", "s3://key@bucket/x", "file://relative"])
def test_bad_addresses(url: str) -> None:
    """An address that names no archive is a usage fault."""
    with pytest.raises(UsageFault) as caught:
        open_archive(url, Settings())
    assert caught.value.exit_code == ExitCode.USAGE
    assert caught.value.hint
