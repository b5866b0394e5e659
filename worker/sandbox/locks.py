"""Owns the lock on a file that whoever holds it may remove. Refuses to lock what is not there any more."""

from __future__ import annotations

import os
from fcntl import flock
from pathlib import Path
from typing import IO


def locked(path: Path, mode: int) -> IO[bytes]:
    """The file of that name, made where there is none, locked until it is closed. mode: LOCK_SH or LOCK_EX; waits.

    Who had it before may have removed it after it was opened here: such a lock keeps nobody out. Raises
    FileNotFoundError when its folder went along."""
    while True:
        file = open(path, "ab")  # noqa: SIM115 (handed on)
        flock(file, mode)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()
