"""Owns the bytes of a tar that says nothing but names and contents: no times, owners, links or devices. Refuses to
read one: whoever does compares its headers with those that are made here, so that no other kind of tar is understood.
"""

from __future__ import annotations

from typing import Final

BLOCK_BYTES: Final = 512
END: Final = bytes(2 * BLOCK_BYTES)

_NAME_BYTES: Final = 100
_SIZE_MAX: Final = 8**11 - 1
"""What the old header can say; beyond that, a record before it does (POSIX pax)."""


def header(name: str, size: int) -> bytes:
    """What stands before the content of a file with this name and size, bytes. The same for the same, always."""
    records = []
    encoded = name.encode()
    if len(encoded) > _NAME_BYTES or not name.isascii():
        records.append(_record("path", name))
        encoded = encoded[:_NAME_BYTES]
    if size > _SIZE_MAX:
        records.append(_record("size", str(size)))
        size = 0
    if not records:
        return _block(encoded, size, b"0")
    extended = b"".join(records)
    said = _block(b"pax", len(extended), b"x") + extended + padding(len(extended))
    return said + _block(encoded, size, b"0")


def padding(size: int) -> bytes:
    """What stands behind a content of this size."""
    return bytes(-size % BLOCK_BYTES)


def _record(keyword: str, value: str) -> bytes:
    """`<length> <keyword>=<value>\\n`, where the length counts its own digits."""
    rest = f" {keyword}={value}\n".encode()
    length = len(rest)
    while len(str(length)) + len(rest) != length:
        length = len(str(length)) + len(rest)
    return str(length).encode() + rest


def _block(name: bytes, size: int, kind: bytes) -> bytes:
    fields = [
        name.ljust(_NAME_BYTES, b"\0"),
        b"0000444\0" + b"0000000\0" * 2,  # mode, uid, gid
        b"%011o\0" % size + b"00000000000\0",  # size, time
        b" " * 8,  # the sum, counted as blanks
        kind + bytes(100) + b"ustar\x0000",
        bytes(64) + b"0000000\0" * 2 + bytes(155),  # names of the owners, device, prefix
    ]
    block = b"".join(fields).ljust(BLOCK_BYTES, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]
