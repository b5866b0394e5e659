"""Locks on files of a host that whoever holds them removes: a worker that starts while another one sweeps."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from worker.sandbox import locks, output
from worker.sandbox.output import spool_folder


def first(monkeypatch: pytest.MonkeyPatch, does: Callable[[], None]) -> None:
    """Before the next lock is taken, somebody else does this."""

    def flock(file: object, mode: int) -> None:
        monkeypatch.undo()
        does()
        locks.flock(file, mode)  # type: ignore[arg-type]

    monkeypatch.setattr(locks, "flock", flock)


def test_a_folder_that_is_swept_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers start at once, and one takes the other's new folder for that of a dead one: both have one then, or
    every run of the other fails for as long as it lives."""

    def sweep() -> None:
        [made] = tmp_path.iterdir()
        output._sweep(made)
        assert not made.exists()

    first(monkeypatch, sweep)
    with spool_folder(tmp_path) as mine:
        assert list(tmp_path.iterdir()) == [mine]
        output._sweep(mine)
        assert mine.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_the_file_that_is_locked_is_the_one_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was removed between opening and locking keeps nobody out."""
    mark = tmp_path / "image"
    first(monkeypatch, mark.unlink)
    with locks.locked(mark, fcntl.LOCK_SH) as held:
        assert os.path.samestat(os.fstat(held.fileno()), mark.stat())
        with open(mark, "ab") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
