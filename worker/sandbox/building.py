"""Owns images that the engine builds of a task's Dockerfile, or is given by a registry. Refuses to send a file along,
and whatever could be a secret: no build argument, no login of a registry.

The engine's own builder runs each step in a container of its own kind: with its default capabilities, and without a
limit of processes. Memory, processors, time and network are those of setup.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from worker.contract.cancel import Cancel
from worker.contract.dockerfile import read
from worker.contract.errors import EngineFault, EnvironmentFault, Fault
from worker.contract.task import Limits
from worker.sandbox.docker import Engine, Telling
from worker.sandbox.protocol import Build
from worker.sandbox.shape import LABEL, MIB, NOFILE, SHM_BYTES

BUILD_LABEL: Final = f"{LABEL}.build"
"""On all that comes of a build: the part of its tag that says of which."""
BASE_LABEL: Final = f"{LABEL}.base"
"""On it too: the id of the image that it was built on."""
SAID_CHARS: Final = 64 * 2**10
KILLED: Final = 137
PERIOD_US: Final = 100_000
LATER: Final = re.compile(r"too ?many ?requests|\bstatus\b.* 5\d\d ", re.IGNORECASE)
"""What engines say of a registry that answers 429 or 5xx: words of its own, or its status."""


def build(
    engine: Engine, dockerfile: str, bases: Mapping[str, str], tag: str, limits: Limits, cancel: Cancel
) -> Build:
    """Build it under that tag, never from what is left of another build. bases: base -> the engine's id.

    Raises EngineFault when the engine does not answer."""
    digits = tag.rpartition(":")[2]
    text = read(dockerfile).pinned(bases, lambda base: {LABEL: "image", BUILD_LABEL: digits, BASE_LABEL: base})
    said, failure = "", ""
    try:
        with _bounded(engine, "/build", _options(tag, limits, engine.cpus), limits, cancel, _context(text)) as told:
            for line in told.lines:
                said = (said + str(line.get("stream", "")))[-SAID_CHARS:]
                if error := line.get("error"):
                    failure = _failure(str(error), line.get("errorDetail") or {}, limits)
    except EnvironmentFault as fault:
        return Build("", said, fault.message)
    if told.ended:
        return Build("", said, told.ended, cancelled=cancel.is_set())
    found = engine.image(tag)
    if failure or found is None:
        return Build("", said, failure or "the engine made no image of it")
    under = max((int((engine.image(one) or {}).get("Size", 0)) for one in bases.values()), default=0)
    if int(found["Size"]) - under > limits.workspace_bytes:
        engine.remove_image(tag)
        return Build("", said, f"it outgrew the limit of {limits.workspace_bytes / MIB:g} MiB (workspace_bytes)")
    return Build(str(found["Id"]), said)


def pull(engine: Engine, image: str, limits: Limits, cancel: Cancel) -> str:
    """Have a registry give the image; why not, "" when it did. Raises EngineFault where it is to be asked later."""
    name, _, tag = image.rpartition(":") if ":" in image.rpartition("/")[2] else (image, "", "")
    options = {"fromImage": name, "tag": tag or "latest"} if "@" not in image else {"fromImage": image}
    failure = ""
    try:
        with _bounded(engine, "/images/create", options, limits, cancel) as told:
            for line in told.lines:
                failure = str(line.get("error", failure))
        failure = told.ended or failure
    except Fault as fault:  # whether the engine is there at all, whoever looks for the image then learns
        failure = fault.message
    if LATER.search(failure):
        raise EngineFault(f"no registry gives {image} now: {failure}", hint=f"or bring it here: docker pull {image}")
    return failure


class _Told:
    """lines: what the engine tells. ended: why we stopped listening, "" when it came to its own end."""

    def __init__(self, telling: Telling) -> None:
        self.lines: Iterator[Mapping[str, Any]] = iter(telling)
        self.ended = ""
        self._telling = telling

    def end(self, why: str) -> None:
        self.ended = self.ended or why
        self._telling.stop()


@contextmanager
def _bounded(
    engine: Engine, path: str, options: Mapping[str, Any], limits: Limits, cancel: Cancel, data: bytes = b""
) -> Iterator[_Told]:
    """Long work that ends with the time limit of setup, and when it is cancelled. Raises EnvironmentFault("image")
    for what the engine refuses at once."""
    with engine.told(path, options, limits.setup_timeout_s + 60, data) as telling:
        told = _Told(telling)
        timer = threading.Timer(
            limits.setup_timeout_s, told.end, [f"it did not come to an end within {limits.setup_timeout_s:g} s"]
        )
        off = cancel.on_set(lambda: told.end(cancel.reason or "it was cancelled"))
        timer.daemon = True
        timer.start()
        try:
            yield told
        except EngineFault:
            if not told.ended:  # else it is our own doing that nothing more came
                raise
        finally:
            timer.cancel()
            off()


def _options(tag: str, limits: Limits, cpus: int) -> dict[str, Any]:
    limited = [("core", 0), ("nofile", NOFILE), ("fsize", limits.workspace_bytes)]
    return {
        "t": tag,
        "rm": 1,
        "forcerm": 1,
        "nocache": 1,
        "networkmode": "bridge",
        "memory": limits.memory_bytes,
        "memswap": limits.memory_bytes,
        "cpuperiod": PERIOD_US,
        "cpuquota": int(min(limits.cpus, cpus) * PERIOD_US),
        "shmsize": SHM_BYTES,
        "ulimits": json.dumps([{"Name": name, "Soft": value, "Hard": value} for name, value in limited]),
    }


def _context(text: str) -> bytes:
    """A build context that is the Dockerfile and nothing else."""
    buffer, data = io.BytesIO(), text.encode()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo("Dockerfile")
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _failure(error: str, detail: Mapping[str, Any], limits: Limits) -> str:
    if detail.get("code") == KILLED:
        return f"{error} (killed; the limit of memory is {limits.memory_bytes / MIB:g} MiB)"
    return error
