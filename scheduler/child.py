"""Owns starting a process that cannot outlive the one that started it. Refuses to import anything of ours.

Run as a file: `python child.py PARENT_PID COMMAND...`. The kernel kills what it becomes when the parent's thread
that started it ends, however it ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    """Tie this process to its parent, then become the command."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit(0)  # it ended before we asked
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
