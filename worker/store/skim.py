"""Owns how a line of a journal becomes a record, for a worker and for whoever only looks: in less time and memory,
its sum proven, the longest texts cut. Refuses to be what a run goes on from where it cuts: what was cut is gone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Final

from worker.contract.events import Record, digest, read_json
from worker.contract.fork import Line

WHOLE_BYTES: Final = 2**20
"""A line up to this size is read whole."""
KEPT_BYTES: Final = 64 * 2**10
"""Of each text in a longer line."""
CUT: Final = "\n[cut here: the file of the segment has the rest]"

Parse = Callable[[bytes], Line]
"""Makes a record of a line, or raises ValueError."""
Along = Callable[[Iterator[Line]], Iterator[Line]]
"""Hands on the lines that are read, each as it comes: whoever wants more of them than a fold hears them here."""

_SUM: Final = b',"sum":"'
_SUM_BYTES: Final = len(_SUM) + 64 + 1
_REST: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"')
"""From behind the opening quote of a text in JSON to behind its closing one."""
_ESCAPE_BYTES: Final = 6


def parsed_line(line: bytes) -> Line:
    """A line as a worker reads it: the record exactly as it was written, and the line's hash. Raises ValueError."""
    return Record.parse(line), digest(line)


def skimmed(line: bytes) -> Line:
    """The record of a line, and the line's hash. Raises ValueError for one whose sum is not its own, or that is no
    record.

    The sum is compared over the bytes as they stand, which costs less than writing them anew and finds as much: no
    line passes that a flipped byte has changed.
    """
    view, at = memoryview(line), max(0, line.rfind(_SUM))
    behind = at + _SUM_BYTES
    whole = hashlib.sha256(view[:at])
    rest = whole.copy()
    whole.update(view[at:])
    rest.update(view[behind:])
    if line[at:behind] != _SUM + rest.hexdigest().encode() + b'"':
        raise ValueError("not the bytes that were written")
    fields = read_json(line if len(line) <= WHOLE_BYTES else shortened(line))
    if not isinstance(fields, dict):
        raise ValueError("not a record")
    fields.pop("sum", None)
    return Record.model_validate(fields), whole.hexdigest()


def shortened(line: bytes, kept_bytes: int = KEPT_BYTES) -> bytes:
    """The same JSON, each text in it cut to about kept_bytes, with CUT behind it. Raises ValueError for no JSON."""
    mark = CUT.replace("\n", "\\n").encode()
    parts: list[bytes] = []
    done, quote = 0, line.find(b'"')
    while quote >= 0:
        closing = _closing(line, quote + 1)
        if closing - quote - 1 > kept_bytes:
            parts += [line[done : _sound_end(line, quote + 1, quote + 1 + kept_bytes)], mark]
            done = closing
        quote = line.find(b'"', closing + 1)
    return b"".join((*parts, line[done:]))


def _closing(line: bytes, start: int) -> int:
    """Where the quote stands that ends the text which begins at `start`."""
    first = line.find(b'"', start)
    if first >= 0 and (first == start or line[first - 1 : first] != b"\\"):
        return first
    text = _REST.match(line, start)
    if text is None:
        raise ValueError("a text that does not end")
    return text.end() - 1


def _sound_end(line: bytes, start: int, end: int) -> int:
    """The last place up to `end` where a text that begins at `start` can be cut without cutting an escape in two."""
    slash = line.rfind(b"\\", max(start, end - _ESCAPE_BYTES), end)
    if slash < 0:
        return end
    before = line[start : slash + 1]
    if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
        return end  # each of them is the second half of an escape
    size = _ESCAPE_BYTES if line[slash + 1 : slash + 2] == b"u" else 2
    return slash if slash + size > end else end
