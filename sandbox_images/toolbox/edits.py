"""Owns replacing one exact place in the bytes of a text. Refuses to touch, or re-encode, any byte outside of it."""

from __future__ import annotations

import re
from itertools import takewhile

from beneath import Refused


def edited(body: bytes, old: bytes, new: bytes) -> tuple[bytes, int]:
    """The bytes with the one place of old replaced, and that place's line. Raises Refused when there is not one."""
    places = _matches(body, old)
    if len(places) != 1:
        raise Refused(_why_not(body, old, places))
    start, end = places[0]
    return body[:start] + _replacement(body, start, end, old, new) + body[end:], line_of(body, start)


def _matches(body: bytes, old: bytes) -> list[tuple[int, int]]:
    """All places of old, overlapping ones too. A plain \\n in old stands for the file's own line ending."""
    exact = rb"\r?\n".join(re.escape(piece) for piece in re.split(rb"(?<!\r)\n", old))
    ends: dict[int, int] = {}
    for match in re.finditer(b"(?=(" + exact + b"))", body):
        ends.setdefault(match.end(1), match.start(1))
    return [(start, end) for end, start in ends.items()]


def _replacement(body: bytes, start: int, end: int, old: bytes, new: bytes) -> bytes:
    """new with the line endings of the place it goes to; lines that it shares with old keep their own."""
    if b"\r\n" in old or b"\r\n" in new:
        return new
    pieces = re.findall(rb"\r\n|[\s\S]", body[start:end])
    plain = b"".join(piece[-1:] for piece in pieces)
    head = _shared(plain, new)
    tail = _shared(plain[head:][::-1], new[head:][::-1])
    replaced, middle = pieces[head : len(pieces) - tail], new[head : len(new) - tail]
    endings = iter([piece for piece in replaced if piece.endswith(b"\n")])
    usual = _ending(body, start)
    middle = re.sub(rb"\n", lambda _: next(endings, usual), middle)
    return b"".join(pieces[:head]) + middle + b"".join(pieces[len(pieces) - tail :])


def _shared(one: bytes, other: bytes) -> int:
    """Length of the common beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _ending(body: bytes, start: int) -> bytes:
    """The line ending used at a place: of its own line, else of the line before, else \\n."""
    at = body.find(b"\n", start)
    at = body.rfind(b"\n", 0, start) if at < 0 else at
    return b"\r\n" if at > 0 and body[at - 1 : at] == b"\r" else b"\n"


def _why_not(body: bytes, old: bytes, places: list[tuple[int, int]]) -> str:
    if places:
        lines = [str(line_of(body, start)) for start, _ in places]
        where = ", ".join(lines[:20]) + (", ..." if len(lines) > 20 else "")
        return f"old_text is there {len(lines)} times, at lines {where}; quote more lines around the one you mean."
    words = old.split()
    loose = re.search(rb"\s+".join(re.escape(word) for word in words), body) if words else None
    if loose:
        line = line_of(body, loose.start())
        text = body.split(b"\n")[line - 1].decode("utf-8", "backslashreplace")[:200]
        return f"old_text is not there, but with other whitespace it is at line {line}, which reads {text!r}."
    if re.match(rb"\s*\d+\t", old):
        return "old_text is not there; leave out the line numbers that read_file puts before each line."
    if not is_utf8(body):
        return f"old_text is not there. The file is not UTF-8 but {encoding(body)}: quote only its ASCII text."
    return "old_text is not there; read the file again and quote it exactly."


def line_of(body: bytes, at: int) -> int:
    """The number of the line that holds this byte, from 1."""
    return body.count(b"\n", 0, at) + 1


def is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def encoding(data: bytes) -> str:
    """The encoding that the first two lines declare (PEP 263), as far as they do."""
    declared = re.search(rb"coding[:=][ \t]*([-\w.]+)", b"\n".join(data.split(b"\n", 2)[:2]))
    return declared.group(1).decode() if declared else "of an undeclared encoding"


def line_count(data: bytes) -> int:
    return data.count(b"\n") + (not data.endswith(b"\n")) if data else 0
