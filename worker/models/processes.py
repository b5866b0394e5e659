"""Owns the processes of the deployment's own model programs: started when a request needs one, kept for the next.
Refuses to read what they say: a line goes in, a line comes out.
"""

from __future__ import annotations

import os
import selectors
import shlex
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from worker.contract.cancel import Cancel
from worker.contract.errors import InvalidFault, ProviderFault, UsageFault
from worker.contract.redact import MODEL_SECRET_PREFIX, Redactor, redactor_from_env
from worker.models.protocol import cancelled_fault, late_fault

SETTING: Final = "DAWN_MODEL_PROGRAMS"
LINE_BYTES_MAX: Final = 16 * 2**20
"""An answer past this ends the program: four times the longest arguments that a call may have."""
SAID_BYTES: Final = 500
"""How much of the end of its stderr a fault shows."""
CHUNK_BYTES: Final = 64 * 2**10
CANCEL_POLL_S: Final = 0.2
"""How soon a thrown switch is seen while a program thinks."""


class Programs:
    """The programs that the operator listed, and the processes of them that wait for a request. Thread-safe.

    A process serves one request at a time, for whichever run asks; one that did anything wrong is killed.
    """

    def __init__(self, listed: Mapping[str, str], env: Mapping[str, str]) -> None:
        """listed: name -> command line. env: the worker's environment. Raises UsageFault for a line that names no
        absolute path of a program, and as redactor_from_env.

        redactor: masks what a program said before any of it is cut."""
        self.redactor = redactor_from_env(env)
        self._words = {name: _words(name, line) for name, line in listed.items()}
        self._env = {"PATH": os.defpath, "LANG": "C.UTF-8"} | model_secrets(env)
        self._idle: dict[str, list[_Process]] = {name: [] for name in self._words}
        self._lock = threading.Lock()

    def check(self, name: str) -> None:
        """Raises InvalidFault for a program that is not listed."""
        if name not in self._words:
            known = f"known are {', '.join(self._words)}" if self._words else "it has none"
            raise InvalidFault(
                f"this deployment has no model program {name!r}; {known}", hint=f"list it in {SETTING} of each worker"
            )

    def ask(self, name: str, line: bytes, *, timeout_s: float, cancel: Cancel) -> bytes:
        """The line that answers. Raises ProviderFault, and the process is gone then."""
        process = self._take(name)
        try:
            answer = process.exchange(line, timeout_s=timeout_s, cancel=cancel)
        except BaseException:
            process.kill()
            raise
        with self._lock:
            self._idle[name].append(process)
        return answer

    def close(self) -> None:
        """End the processes that wait."""
        for name in self._idle:
            while self._idle[name]:
                self._idle[name].pop().kill()

    def _take(self, name: str) -> _Process:
        while True:
            with self._lock:
                process = self._idle[name].pop() if self._idle[name] else None
            if process is None:
                return _Process(name, self._words[name], self._env, self.redactor)
            if process.waits():
                return process
            process.kill()


def _words(name: str, line: str) -> list[str]:
    with suppress(ValueError):
        words = shlex.split(line)
        if words and Path(words[0]).is_absolute() and os.access(words[0], os.X_OK):
            return words
    raise UsageFault(
        f"{SETTING}: {name} names no program",
        hint="give the absolute path of one that may be executed, and its options",
    )


def model_secrets(env: Mapping[str, str]) -> dict[str, str]:
    """What own models are given of a worker's environment: NAME -> value of DAWN_MODEL_SECRET_NAME."""
    prefix = MODEL_SECRET_PREFIX
    return {name.removeprefix(prefix): value for name, value in env.items() if name.startswith(prefix)}


class _Process:
    """One running program, in a session of its own, so that its children end with it."""

    def __init__(self, name: str, words: list[str], env: Mapping[str, str], redactor: Redactor) -> None:
        """Raises ProviderFault when it cannot be started."""
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                words, stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd="/", start_new_session=True
            )
        except OSError as error:
            raise ProviderFault("unavailable", f"the model program {name} cannot be started: {error}") from error
        self._name = name
        self._stdin, self._stdout, self._stderr = map(_nonblocking, self._pipes())
        self._said: deque[int] = deque(maxlen=SAID_BYTES)
        self._masking = redactor.stream()

    def _pipes(self) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        return stdin, stdout, stderr

    def waits(self) -> bool:
        """Whether it has neither ended nor said anything unasked, which would be taken for the next answer."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            return not selector.select(0)

    def exchange(self, line: bytes, *, timeout_s: float, cancel: Cancel) -> bytes:
        """Write the line, read the one that answers. Raises ProviderFault."""
        end_s = time.monotonic() + timeout_s
        todo, answer = memoryview(line + b"\n"), bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdin, selectors.EVENT_WRITE)
            selector.register(self._stdout, selectors.EVENT_READ)
            selector.register(self._stderr, selectors.EVENT_READ)
            while not answer.endswith(b"\n"):
                if cancel.is_set():
                    raise cancelled_fault(cancel)
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    raise late_fault(timeout_s)
                for ready, _ in selector.select(min(left_s, CANCEL_POLL_S)):
                    if ready.fileobj == self._stdin:
                        todo = todo[self._write(todo) :]
                        if not todo:
                            selector.unregister(self._stdin)
                    elif ready.fileobj == self._stderr:
                        if not self._hear():
                            selector.unregister(self._stderr)
                    else:
                        answer += self._read()
                        if len(answer) > LINE_BYTES_MAX:
                            raise self._wrong(f"answered with more than {LINE_BYTES_MAX // 2**20} MiB")
            if todo:
                raise self._wrong("answered before it had read the request")
        return bytes(answer[:-1])

    def kill(self) -> None:
        """End it and what it started, and let go of it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in self._pipes():
            with suppress(OSError):
                pipe.close()

    def _write(self, todo: memoryview) -> int:
        try:
            return os.write(self._stdin, todo[:CHUNK_BYTES])
        except BlockingIOError:
            return 0
        except BrokenPipeError:  # it cannot have read the whole request
            raise self._ended(unheard=False) from None

    def _read(self) -> bytes:
        """The next bytes of the answer, none past its newline."""
        data = os.read(self._stdout, CHUNK_BYTES)
        if not data:
            raise self._ended(unheard=True)
        if b"\n" in data[:-1]:
            raise self._wrong("answered with more than one line")
        return data

    def _hear(self) -> bytes:
        """What it says on stderr, of which the last bytes are kept, masked; nothing at its end."""
        data = os.read(self._stderr, CHUNK_BYTES)
        self._said.extend(self._masking.feed(data))
        return data

    def _wrong(self, what: str) -> ProviderFault:
        return ProviderFault("unavailable", f"the model program {self._name} {what}", unheard=True)

    def _ended(self, *, unheard: bool) -> ProviderFault:
        with suppress(subprocess.TimeoutExpired, BlockingIOError):
            self._process.wait(1)
            while self._hear():
                pass
        self._said.extend(self._masking.close())
        code = self._process.returncode
        how = "closed its stdout" if code is None else f"ended with exit code {code}"
        said = " ".join(bytes(self._said).decode("utf-8", "replace").split())
        return ProviderFault(
            "connection",
            f"the model program {self._name} {how}{': ' + said if said else ''}",
            retryable=True,
            unheard=unheard,
        )


def _nonblocking(pipe: IO[bytes]) -> int:
    os.set_blocking(pipe.fileno(), False)
    return pipe.fileno()
