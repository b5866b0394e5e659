"""Owns the bytes of one snapshot: a tar that GNU tar reads, and nothing of tar that we do not write ourselves.
Refuses every other kind of member, so a stranger's archive cannot say anything surprising.

The first member is a file `.removed`: the removed paths, each ended by NUL. Then come the changed entries, a folder
before its contents. Per member: type 0 file, 1 hard link (to an earlier member), 2 link, 5 folder, 6 FIFO; numeric
owners; before it a pax header with one record, the time of change in nanoseconds (`mtime`), and where a name is
longer than 100 bytes GNU's long name (L) or long link (K). Names are raw bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from volume import CHUNK_BYTES, Refused

REMOVED = ".removed"
BLOCK = 512
END = bytes(2 * BLOCK)
META_BYTES = 64 * 1024
"""Most of a pax header or a long name; DEPTH_MAX names of 255 bytes fit."""

FILE, HARD_LINK, LINK, FOLDER, FIFO = b"0", b"1", b"2", b"5", b"6"
_KINDS = frozenset({FILE, HARD_LINK, LINK, FOLDER, FIFO})
_PAX, _LONG_NAME, _LONG_LINK = b"x", b"L", b"K"


@dataclass(frozen=True)
class Member:
    """One entry. mode: permission bits. size: bytes of content that follow, 0 but for files."""

    path: str
    kind: bytes
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    size: int = 0
    mtime_ns: int = 0
    target: str = ""


def head(member: Member) -> bytes:
    """All header blocks of a member; `size` bytes of content and `padding(size)` follow."""
    name, target = os.fsencode(member.path), os.fsencode(member.target)
    record = b"mtime=%s\n" % _decimal(member.mtime_ns)
    # The length of a pax record counts its own digits: two, for any time that can be.
    record = b"%d %s" % (len(record) + 3, record)
    blocks = _block(b"pax", _PAX, size=len(record)) + record + padding(len(record))
    for kind, value in ((_LONG_NAME, name), (_LONG_LINK, target)):
        if len(value) > 100:
            blocks += _block(b"././@LongLink", kind, size=len(value) + 1) + value + b"\0" + padding(len(value) + 1)
    return blocks + _block(name[:100], member.kind, member, size=member.size, target=target[:100])


def padding(size: int) -> bytes:
    return bytes(-size % BLOCK)


def _block(name: bytes, kind: bytes, member: Member | None = None, *, size: int, target: bytes = b"") -> bytes:
    mode, uid, gid, mtime_ns = (member.mode, member.uid, member.gid, member.mtime_ns) if member else (0o644, 0, 0, 0)
    fields = (
        name.ljust(100, b"\0"), b"%07o\0" % mode, _number(uid, 8), _number(gid, 8), _number(size, 12),
        _number(mtime_ns // 10**9, 12), b" " * 8, kind, target.ljust(100, b"\0"), b"ustar\x0000",
    )  # fmt: skip
    block = b"".join(fields).ljust(BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _number(value: int, width: int) -> bytes:
    if 0 <= value < 8 ** (width - 1):
        return b"%0*o\0" % (width - 1, value)
    # GNU's base-256: a marker byte, then the number's two's complement.
    return (b"\x80" if value >= 0 else b"\xff") + (value % 256 ** (width - 1)).to_bytes(width - 1, "big")


def _decimal(time_ns: int) -> bytes:
    seconds, rest = divmod(abs(time_ns), 10**9)
    return b"%s%d.%09d" % (b"-" if time_ns < 0 else b"", seconds, rest)


class Reader:
    """Reads members one after the other; read(n) gives exactly n bytes or raises Refused."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._left = 0
        self._padding = 0

    def members(self) -> Iterator[Member]:
        """Every member, `.removed` first. What is left unread of one's content is passed over."""
        name = target = mtime_ns = None
        while True:
            for _ in self.content():
                pass
            block = self._read(BLOCK)
            if block == bytes(BLOCK):
                if self._read(BLOCK) != bytes(BLOCK):
                    raise _broken("one empty block where two end it")
                return
            kind, size = block[156:157], _parse_number(block[124:136])
            if (
                block[257:263] != b"ustar\0"
                or _parse_number(block[148:156]) != sum(block) - sum(block[148:156]) + 256
            ):
                raise _broken("a header's checksum is wrong")
            if kind in {_PAX, _LONG_NAME, _LONG_LINK}:
                if not 0 < size <= META_BYTES:
                    raise _broken(f"a name of {size} bytes")
                value = self._read(size)
                self._read(len(padding(size)))
                if kind == _PAX:
                    mtime_ns = _parse_mtime(value)
                elif kind == _LONG_NAME:
                    name = value.removesuffix(b"\0")
                else:
                    target = value.removesuffix(b"\0")
                continue
            if kind not in _KINDS or (size and kind != FILE) or size < 0 or mtime_ns is None:
                raise _broken(f"a member of type {kind!r} with {size} bytes")
            self._left, self._padding = size, len(padding(size))
            yield Member(
                os.fsdecode(block[:100].rstrip(b"\0") if name is None else name),
                kind,
                _parse_number(block[100:108]) & 0o7777,
                _parse_number(block[108:116]),
                _parse_number(block[116:124]),
                size,
                mtime_ns,
                os.fsdecode(block[157:257].rstrip(b"\0") if target is None else target),
            )
            name = target = mtime_ns = None

    def content(self) -> Iterator[bytes]:
        """What is left of the current member's content."""
        while self._left:
            chunk = self._read(min(self._left, CHUNK_BYTES))
            self._left -= len(chunk)
            yield chunk
        if self._padding:
            self._read(self._padding)
            self._padding = 0


def _parse_number(field: bytes) -> int:
    if field[0] in {0x80, 0xFF}:
        return int.from_bytes(field[1:], "big") - (256 ** (len(field) - 1) if field[0] == 0xFF else 0)
    try:
        return int(field.strip(b"\0 ") or b"0", 8)
    except ValueError as error:
        raise _broken("a header's number is none") from error


def _parse_mtime(record: bytes) -> int:
    length, _, rest = record.partition(b" ")
    key, _, value = rest.partition(b"=")
    seconds, _, fraction = value.removesuffix(b"\n").removeprefix(b"-").partition(b".")
    plain = length.isdigit() and seconds.isdigit() and fraction.isdigit() and len(fraction) == 9 and len(seconds) < 20
    if key != b"mtime" or not plain or int(length) != len(record):
        raise _broken("a pax header that says more than a time")
    time_ns = int(seconds) * 10**9 + int(fraction)
    return -time_ns if value.startswith(b"-") else time_ns


def _broken(text: str) -> Refused:
    return Refused("bad_request", f"not a snapshot of ours: {text}")
