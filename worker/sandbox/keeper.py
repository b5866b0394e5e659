"""Owns the talk with the keeper, the root process that guards one volume (sandbox_images/toolbox/keeper.py is the
other end, and explains the wire). Refuses to look into what it carries: tars pass through as bytes.

A request is one JSON line; an answer is one JSON line. Bulk data in either direction is frames: four bytes of
length, big end first, and that many bytes; length 0 ends them.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from worker.contract.errors import InvalidFault, KeeperFault
from worker.contract.task import Limits
from worker.sandbox.docker import Stream
from worker.sandbox.protocol import Snapshot, WorkspaceTooLarge

FRAME_BYTES: Final = 2**20
QUICK_TIMEOUT_S: Final = 60
BULK_TIMEOUT_S: Final = 900
"""For whatever grows with the volume: 5 GiB at 6 MB/s."""


class Keeper:
    """The client of one keeper. Not thread-safe. Raises KeeperFault when it is dead, late or says it failed."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self._deadline = 0.0

    def hello(self, limits: Limits) -> None:
        """Tell it the caps; it makes the three folders of the workspace and gives them their owners."""
        caps = limits.model_dump(include={"workspace_bytes", "workspace_files", "snapshot_bytes"})
        self._ask("hello", QUICK_TIMEOUT_S, limits=caps)

    def ping(self) -> None:
        """Learn that it lives, or raise."""
        self.free_bytes()

    def free_bytes(self) -> int:
        """What is left on the disk that holds the volume. May be asked while a call runs."""
        return int(self._ask("ping", QUICK_TIMEOUT_S)["free"])

    def used_bytes(self) -> int:
        """What the volume takes on disk. May be asked while a call runs. Raises WorkspaceTooLarge."""
        return int(self._ask("used", BULK_TIMEOUT_S)["bytes"])

    def own(self) -> None:
        self._ask("own", BULK_TIMEOUT_S)

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        self._request("put", BULK_TIMEOUT_S, name=name)
        self._send_frames(chunks)
        self._answer("put")

    def get(self, name: str) -> Iterator[bytes]:
        self._ask("get", BULK_TIMEOUT_S, name=name)
        frames = self._frames()
        try:
            for chunk in frames:  # noqa: UP028 (`yield from` would close the frames with us)
                yield chunk
        finally:
            # A reader who stops early must not leave the wire out of step.
            for _ in frames:
                pass

    def snapshot(self, into: Path, *, full: bool) -> Snapshot:
        """Walk, and write the tar of what changed to `into` (not made when nothing did)."""
        answer = self._ask("snapshot", BULK_TIMEOUT_S, full=full)
        size = 0
        if answer["changed"]:
            with open(into, "wb") as file:
                for chunk in self._frames():
                    size += file.write(chunk)
        path = into if answer["changed"] else None
        return Snapshot(answer["listing"], answer["tree"], path, size, answer["full"], tuple(answer["files"]))

    def restore(self, chain: Sequence[Iterable[bytes]]) -> Snapshot:
        self._request("restore", BULK_TIMEOUT_S, count=len(chain))
        for chunks in chain:
            self._send_frames(chunks)
        answer = self._answer("restore")
        return Snapshot(answer["listing"], answer["tree"], None, 0, full=False)

    def tree(self) -> list[tuple[str, str, str]]:
        self._ask("tree", BULK_TIMEOUT_S)
        return [(path, mode, digest) for path, mode, digest in json.loads(b"".join(self._frames()))]

    def ignored(self) -> list[str]:
        return [str(path) for path in self._ask("ignored", BULK_TIMEOUT_S)["paths"]]

    def close(self) -> None:
        """Hang up: the keeper ends when its stdin does."""
        self._stream.close()

    def _ask(self, op: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        self._request(op, timeout_s, **fields)
        return self._answer(op)

    def _request(self, op: str, timeout_s: float, **fields: Any) -> None:
        self._deadline = time.monotonic() + timeout_s
        self._send(json.dumps({"op": op, **fields}).encode() + b"\n")

    def _answer(self, op: str) -> dict[str, Any]:
        while (end := self._buffer.find(b"\n")) < 0:
            self._fill()
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        answer: dict[str, Any] = json.loads(line)
        if answer["ok"]:
            return answer
        said = str(answer["error"])
        if answer["kind"] == "too_large":
            raise WorkspaceTooLarge(said)
        if answer["kind"] == "bad_request":
            raise InvalidFault(f"{op}: {said}")
        raise KeeperFault(f"the keeper could not {op}: {said}")

    def _send_frames(self, chunks: Iterable[bytes]) -> None:
        for chunk in chunks:
            for start in range(0, len(chunk), FRAME_BYTES):
                part = chunk[start : start + FRAME_BYTES]
                self._send(struct.pack(">L", len(part)) + part)
        self._send(struct.pack(">L", 0))

    def _frames(self) -> Iterator[bytes]:
        while True:
            (length,) = struct.unpack(">L", self._take(4))
            if not length:
                return
            yield self._take(length)

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._fill()
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _send(self, data: bytes) -> None:
        # Answers wait in the pipe until they are asked for: the keeper talks only after it has read a request.
        left = memoryview(data)
        while left:
            left = left[self._stream.send(left) :]
            if left:
                self._stream.wait(self._left_s(), write=True)

    def _fill(self) -> None:
        readable, _ = self._stream.wait(self._left_s())
        if readable:
            self._buffer += self._stream.receive()
        if self._stream.ended:
            said = self._stream.errors.decode("utf-8", "replace").strip().splitlines()
            raise KeeperFault("the keeper died" + (f": {said[-1]}" if said else ""))

    def _left_s(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise KeeperFault("the keeper did not answer in time")
        return left
