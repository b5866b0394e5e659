"""Owns the framing of bulk data on the keeper's stdin and stdout. Refuses a length that nobody sends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO

from volume import CHUNK_BYTES, Refused

FRAME_BYTES = 1 << 24
"""The longest frame that is believed."""


class Incoming:
    """One stream of frames: lengths (4 bytes, big endian) and bytes, ended by the length 0."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._left = 0
        self._ended = False

    def read(self, size: int) -> bytes:
        """Exactly size bytes. Raises Refused("bad_request") when the frames end before."""
        pieces = []
        while size:
            piece = self._some(size)
            if not piece:
                raise Refused("bad_request", "the data ends too early")
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def chunks(self) -> Iterator[bytes]:
        """What is left, at most 1 MiB at a time."""
        while piece := self._some(CHUNK_BYTES):
            yield piece

    def _some(self, most: int) -> bytes:
        if not self._left and not self._ended:
            self._left = int.from_bytes(self._exactly(4), "big")
            self._ended = self._left == 0
            if self._left > FRAME_BYTES:
                raise SystemExit(f"a frame of {self._left} bytes: the stream cannot be followed any more")
        piece = self._exactly(min(self._left, most))
        self._left -= len(piece)
        return piece

    def _exactly(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise SystemExit("the requests ended in the middle of one")
        return data


def send(stream: BinaryIO, chunks: Iterable[bytes]) -> None:
    """Write chunks as frames of about 1 MiB, and their end."""
    waiting: list[bytes] = []
    size = 0
    for chunk in chunks:
        waiting.append(chunk)
        size += len(chunk)
        if size >= CHUNK_BYTES:
            stream.write(size.to_bytes(4, "big") + b"".join(waiting))
            waiting, size = [], 0
    if size:
        stream.write(size.to_bytes(4, "big") + b"".join(waiting))
    stream.write(bytes(4))
