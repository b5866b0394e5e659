"""Owns what an archive in a folder promises about crashes and disks, beyond what every archive must do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from worker.contract.errors import ExitCode, StoreFault
from worker.store.local import LocalArchive

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def archive(tmp_path: Path) -> LocalArchive:
    return LocalArchive(f"file://{tmp_path}/archive")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB; needs root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "dawn-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("mounting needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def staged(archive: LocalArchive) -> list[Path]:
    return list(Path(archive.url.removeprefix("file://"), ".staging").iterdir())


def test_a_crash_in_the_middle_leaves_nothing_visible(
    archive: LocalArchive, tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    """A writer killed while it copies has made no object; what it staged is swept, a living writer's is not (F40)."""
    os.mkfifo(tmp_path / "endless")
    program = "import sys, pathlib; from worker.store.local import LocalArchive as A; "
    program += "A(sys.argv[1]).create('images/x.tar', pathlib.Path(sys.argv[2]))"
    writer = subprocess.Popen(
        [sys.executable, "-c", program, archive.url, str(tmp_path / "endless")],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    with open(tmp_path / "endless", "wb") as source:
        source.write(bytes(3 * 2**20))
        source.flush()
        wait_until(lambda: Path(archive.url.removeprefix("file://"), ".staging").is_dir() and staged(archive))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert list(archive.list("")) == []
    assert len(staged(archive)) == 1
    assert archive.sweep(older_than_s=3600) == 0
    assert archive.sweep(older_than_s=-1) == 1
    assert staged(archive) == []
    assert archive.create("images/x.tar", b"whole")


def test_losing_and_failing_writers_leave_no_staged_file(archive: LocalArchive, tmp_path: Path) -> None:
    """Neither a lost race nor a source that cannot be read leaves anything behind."""
    archive.create("a", b"1")
    archive.create("a", b"2")
    with pytest.raises(StoreFault):
        archive.create("b", tmp_path / "missing")
    assert staged(archive) == []


def test_a_full_disk_is_named_and_leaves_what_was_there(small_disk: Path) -> None:
    """No space: exit code 75, a hint, no half object; smaller writes go on."""
    archive = LocalArchive(f"file://{small_disk}/archive")
    assert archive.create("a", b"kept")
    with pytest.raises(StoreFault, match="No space left") as caught:
        archive.create("b", bytes(2**21))
    assert caught.value.exit_code == ExitCode.TRY_LATER
    assert "free space" in caught.value.hint
    assert archive.size("b") is None
    assert staged(archive) == []
    assert archive.create("b", b"small")
    assert archive.get("a") == b"kept"


def test_a_read_only_disk_is_named(small_disk: Path) -> None:
    """A read-only file system can be read, and refuses writes with the setting to change."""
    archive = LocalArchive(f"file://{small_disk}/archive")
    archive.create("a", b"1")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert archive.get("a") == b"1"
    with pytest.raises(StoreFault, match="Read-only") as caught:
        archive.create("b", b"1")
    assert "DAWN_ARCHIVE" in caught.value.hint


def test_a_file_in_the_way_is_a_fault(tmp_path: Path) -> None:
    """An archive below a plain file cannot be written, and says so instead of 'not found'."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreFault, match="Not a directory"):
        LocalArchive(f"file://{tmp_path}/file/archive").create("a", b"1")


def test_keys_sort_as_text_across_folders(archive: LocalArchive) -> None:
    """A folder stands where its keys stand, as in S3: `a-b/` before `a/`."""
    for key in ("a/x", "a-b/x", "a.b/x", "a0/x"):
        archive.create(key, b"")
    assert list(archive.list("")) == ["a-b/x", "a.b/x", "a/x", "a0/x"]
    assert list(archive.list("", after="a.b/x")) == ["a/x", "a0/x"]


def test_folders_go_with_their_last_object(archive: LocalArchive) -> None:
    """A folder that became empty is gone, as in a bucket, and can be filled again."""
    archive.create("runs/a/x", b"")
    archive.delete(["runs/a/x"])
    assert list(archive.folders("runs/")) == []
    assert archive.create("runs/a/x", b"again")


def test_what_is_created_is_synced_in_order(archive: LocalArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data is synced before it gets its name, and the folder after: a power cut cannot leave a name without
    data or lose a name that was reported."""
    acts: list[str] = []
    fsync, link = os.fsync, os.link

    def watched_fsync(descriptor: int) -> None:
        acts.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "data")
        fsync(descriptor)

    def watched_link(*arguments: Any) -> None:
        acts.append("link")
        link(*arguments)

    archive.create("runs/a/first", b"")
    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "link", watched_link)
    archive.create("runs/a/second", b"1")
    assert acts == ["data", "link", "folder"]
    acts.clear()
    archive.create("runs/new/first", b"1")
    assert acts[0] == "data"
    assert acts.index("link") > acts.index("folder")
    assert acts[-1] == "folder"
