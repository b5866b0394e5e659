"""What a host remembers of workers that ran out of memory; faults/test_process_faults.py has the kernel kill one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from worker.memory import Notes

VERSION_1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
VERSION_2 = "low 0\nhigh 0\nmax 12\noom 3\noom_kill {}\noom_group_kill 0\n"


def worker_of(pid: int) -> str:
    return f"{socket.gethostname()}-{pid}"


@pytest.fixture
def dead() -> str:
    """The name of a worker of this host whose process has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return worker_of(ended.pid)


@pytest.fixture
def noted(tmp_path: Path, dead: str) -> Path:
    """The counter of a group in which nobody was killed when that worker began."""
    (tmp_path / dead).write_text(f"0 {tmp_path / 'counter'}")
    return tmp_path / "counter"


@pytest.mark.parametrize("counter", [VERSION_1, VERSION_2])
def test_a_count_that_rose_is_told(tmp_path: Path, noted: Path, dead: str, counter: str) -> None:
    """In control groups of either version."""
    noted.write_text(counter.format(2))
    assert Notes(tmp_path).how_ended(dead) == "out of memory: 2 killed in its control group"


def test_a_count_that_stayed_says_nothing(tmp_path: Path, noted: Path, dead: str) -> None:
    """Then the worker died of something else."""
    noted.write_text(VERSION_1.format(0))
    assert Notes(tmp_path).how_ended(dead) == ""


def test_a_group_that_is_gone_says_nothing(tmp_path: Path, noted: Path, dead: str) -> None:
    """A container's group ends with it."""
    assert Notes(tmp_path).how_ended(dead) == ""


def test_nothing_is_told_of_the_living_and_of_other_hosts(tmp_path: Path, noted: Path, dead: str) -> None:
    """A worker that was only cut off did not run out of memory, and a process id means nothing elsewhere."""
    noted.write_text(VERSION_1.format(1))
    elsewhere = f"elsewhere-{dead.rpartition('-')[2]}"
    for name in (worker_of(os.getpid()), elsewhere):
        (tmp_path / name).write_text((tmp_path / dead).read_text())
        assert Notes(tmp_path).how_ended(name) == ""


def test_notes_are_kept_no_longer_than_they_are_of_use(tmp_path: Path) -> None:
    """An ordered end removes one's own, a start those of workers long gone."""
    notes = Notes(tmp_path / "workers")
    notes.begin("now-1")
    (tmp_path / "workers" / "old-1").touch()
    os.utime(tmp_path / "workers" / "old-1", (0, 0))
    notes.begin("now-2")
    notes.end("now-1")
    assert {note.name for note in (tmp_path / "workers").iterdir()} <= {"now-2"}
