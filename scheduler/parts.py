"""Owns one process of an embedded stack: starting it with its log, what it said before it ended, ending it. Refuses
to know what the process is for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from scheduler import child
from worker.contract.errors import ExitCode, Fault

LOG_BYTES: Final = 16 * 2**20
"""A log larger than this is moved aside when its process starts."""
DEATHS_ALLOWED: Final = 5
DEATHS_WINDOW_S: Final = 120.0


@dataclass
class Part:
    """logs: the folder of its log. needed: the stack is nothing without it. inherits: file descriptors that it gets
    from us, under the same numbers."""

    name: str
    command: list[str]
    logs: Path
    needed: bool = True
    inherits: tuple[int, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    deaths: list[float] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """It was started and runs no more."""
        return self.process is not None and self.process.poll() is not None

    def died(self) -> bool:
        """Counts one more death: whether it is too many to start it again."""
        now = time.monotonic()
        self.deaths = [at for at in self.deaths if now - at < DEATHS_WINDOW_S] + [now]
        return len(self.deaths) > DEATHS_ALLOWED

    def start(self, environment: Mapping[str, str]) -> None:
        """Once more, where it was started before."""
        command = [sys.executable, "-I", "-S", child.__file__, str(os.getpid()), *self.command]
        with self._log() as log:
            # A session of its own: Ctrl-C in the terminal is for us, who then end the children in order.
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                pass_fds=self.inherits,
            )

    def last_words(self) -> Fault:
        """What it said before it ended, its hint and its exit code, where it gave them."""
        path = self.logs / f"{self.name}.log"
        said = path.read_text("utf-8", "replace").strip().splitlines()[-2:] if path.exists() else []
        hint = said.pop().removeprefix("hint: ") if said and said[-1].startswith("hint: ") else "run `dawn doctor`"
        last = said[-1].removeprefix("error: ")[:400] if said else "it said nothing"
        code = self.process.returncode if self.process else None
        fault = Fault(f"{self.name} ended with {code}: {last}", hint=f"{hint}; its log is {path}")
        if code in set(ExitCode):
            fault.exit_code = ExitCode(code)
        return fault

    def _log(self) -> IO[bytes]:
        path = self.logs / f"{self.name}.log"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.exists() and path.stat().st_size > LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
        return open(path, "ab", opener=private)


def end(parts: Sequence[Part], wait_s: float, *, hurry: bool = False) -> None:
    """Tell processes to end, and kill those that have not after wait_s. hurry: workers shall not wait for calls."""
    for part in parts:
        if part.process is not None and part.process.poll() is None:
            part.process.send_signal(signal.SIGQUIT if hurry and part.name.startswith("worker") else signal.SIGTERM)
    deadline = time.monotonic() + wait_s
    for part in parts:
        if part.process is None:
            continue
        try:
            part.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            part.process.kill()
            part.process.wait()


def private(path: str, flags: int) -> int:
    """Opens a file that only this user may read."""
    return os.open(path, flags, 0o600)
