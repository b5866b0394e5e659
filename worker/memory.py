"""Owns what a host remembers of a worker that ran out of memory: the kernel's count of kills in its control group, as
it was when the worker started. Refuses to watch anybody: whoever claims next asks.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

KEPT_S: Final = 7 * 86_400
"""A note this old is of a worker whose runs were taken over long ago."""
COUNTERS: Final = (("memory", "/sys/fs/cgroup/memory", "memory.oom_control"), ("", "/sys/fs/cgroup", "memory.events"))
"""Controller, mount and file that count them, in control groups of version 1 and 2."""


class Notes:
    """folder: shared by the workers of a host. What cannot be read or written is not known, and costs nothing else.

    A count that rose tells of the group, and not of the process: it is told only of one that is gone. A group that
    ended with its worker, as a container's does, took its count along.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self, worker: str) -> None:
        """Note the count for a worker of this process, and drop old notes."""
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            for note in self._folder.iterdir():
                if time.time() - note.stat().st_mtime > KEPT_S:
                    note.unlink()
            counter = _counter()
            if counter is not None:
                (self._folder / worker).write_text(f"{_kills(counter)} {counter}")

    def end(self, worker: str) -> None:
        """Forget a worker that ended in order."""
        with suppress(OSError):
            (self._folder / worker).unlink(missing_ok=True)

    def how_ended(self, worker: str) -> str:
        """`out of memory` and what that was seen by, for a worker of this host that is gone; else empty."""
        host, _, pid = worker.rpartition("-")
        if host != socket.gethostname() or not pid.isdecimal() or _lives(int(pid)):
            return ""
        try:
            before, _, counter = (self._folder / worker).read_text().partition(" ")
            kills = _kills(Path(counter)) - int(before)
        except (OSError, ValueError):
            return ""
        return f"out of memory: {kills} killed in its control group" if kills > 0 else ""


def _counter() -> Path | None:
    """The file that counts the kills of this process's group, also where only the group itself is mounted."""
    groups = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), group))
    for controller, mount, file in COUNTERS:
        for folder in (groups.get(controller, "/"), "/"):
            path = Path(f"{mount}{folder}") / file
            if controller in groups and path.is_file():
                return path
    return None


def _kills(counter: Path) -> int:
    """Raises OSError where there is none, ValueError where it does not count."""
    fields = dict(line.split() for line in counter.read_text().splitlines())
    return int(fields.get("oom_kill", ""))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
