"""Owns the model's view of what a command wrote: cleaned lines, head and tail. Refuses to hold a whole output.

Lines are cleaned as a terminal would leave them: escape sequences gone, a progress line as its final state. NUL and
bytes that are not UTF-8 become visible escapes. The kept bytes stay as they came, in the archive.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Iterator
from typing import BinaryIO

PIECE_BYTES = 2**16
LINE_CHARS_MAX = 200_000
"""A longer line is cut in its middle; both halves are more than is ever shown."""

MARKER_BYTES = 400
"""Kept free for the text that says what was cut."""

ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: titles, links, clipboard
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]?"
)
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def lines(stream: BinaryIO) -> Iterator[str]:
    """The cleaned lines of an output, each without its newline; memory is bounded by one line's cap."""
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    line, begun = "", False
    while piece := stream.readline(PIECE_BYTES):
        line, begun = line + decoder.decode(piece), True
        if line.endswith("\n"):
            yield _clean(line[:-1])
            line, begun = "", False
        elif len(line) > LINE_CHARS_MAX:
            line = _shortened(line)
    line += decoder.decode(b"", final=True)
    if begun:
        yield _clean(line)


def shown(stream: BinaryIO, call_id: str, *, max_bytes: int, max_lines: int, unkept_bytes: int = 0) -> str:
    """The output within both caps: whole, or its head and tail around a line that says what was cut.

    unkept_bytes: what the command wrote beyond the bytes that were kept, for the text. No character is cut in two.
    """
    half_bytes, half_lines = (max_bytes - MARKER_BYTES) // 2, (max_lines - 1) // 2
    head, head_bytes, head_lines = "", 0, 0
    tail: deque[tuple[int, str]] = deque()
    tail_bytes = cut_bytes = total = 0
    for total, line in enumerate(lines(stream), 1):
        rest = line + "\n"
        if not tail and total <= half_lines:
            fits = clip(rest, half_bytes - head_bytes)
            head, head_bytes, head_lines = head + fits, head_bytes + len(fits.encode()), total
            rest = rest[len(fits) :]
        if rest:
            tail.append((total, rest))
            tail_bytes += len(rest.encode())
        while tail_bytes > half_bytes or len(tail) > half_lines:
            number, first = tail.popleft()
            size = len(first.encode())
            end = clip_start(first, size - max(0, tail_bytes - half_bytes)) if len(tail) < half_lines else ""
            if end:
                tail.appendleft((number, end))
            cut_bytes += size - len(end.encode())
            tail_bytes -= size - len(end.encode())
    lost = f"; {unkept_bytes} bytes from the middle of the output were too many to keep" if unkept_bytes else ""
    text = "".join(piece for _, piece in tail).removesuffix("\n")
    if not cut_bytes:
        return (head + text).removesuffix("\n") + (f"\n[{lost[2:]}]" if lost else "")
    again = f'read_output(call_id="{call_id}", start_line={head_lines}, end_line={tail[0][0]})'
    marker = f"[... {cut_bytes} bytes cut here, of {total} lines in all{lost}. {again} shows them ...]"
    return "\n".join([head.removesuffix("\n"), marker, text])


def clip(text: str, size: int) -> str:
    """The longest beginning of text with at most size bytes of UTF-8."""
    return text.encode()[: max(0, size)].decode("utf-8", "ignore")


def clip_start(text: str, size: int) -> str:
    """The longest end of text with at most size bytes of UTF-8."""
    return text.encode()[-size:].decode("utf-8", "ignore") if size > 0 else ""


def _clean(line: str) -> str:
    """One line, without its newline, as a terminal would leave it."""
    line = ESCAPES.sub("", line).rstrip("\r")
    line = line.rpartition("\r")[2]
    return CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", line)


def _shortened(line: str) -> str:
    """An unfinished line without what no later byte can bring back: earlier progress, or else its middle."""
    progress = line.rstrip("\r").rpartition("\r")[2]
    if len(progress) <= LINE_CHARS_MAX:
        return progress
    half = LINE_CHARS_MAX // 2
    return f"{progress[:half]}[... {len(progress) - 2 * half} characters of this line left out ...]{progress[-half:]}"
