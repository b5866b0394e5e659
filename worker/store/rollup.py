"""Owns the roll-up, one file for up to SPAN segments of a journal: a cache that saves its reader most requests.
Refuses to be believed: its lines must continue the chain and end with the very line that the last of those segments
ends with, which by the chain proves all of them. A roll-up that does not is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from worker.contract.errors import IntegrityFault, NotFoundFault
from worker.contract.events import Record, digest, read_json
from worker.contract.fork import Line
from worker.store import keys
from worker.store.archive import Archive
from worker.store.skim import Parse, parsed_line

SPAN: Final = 256
LEAST: Final = 4
"""Segments behind the last full span when a run ends, which get one too: fewer are as soon read one by one."""
BYTES: Final = 64 * 2**20
"""Largest roll-up. Segments that do not fit are read one by one."""

AHEAD: Final = 4
"""Roll-ups fetched at the same time, and held in memory before they are parsed."""


def write(archive: Archive, run: str, records: Sequence[Record]) -> None:
    """Store the records of up to SPAN segments; SPAN divides the number of the first. Raises StoreFault."""
    data = b"".join(record.line() + b"\n" for record in records)
    if len(data) <= BYTES:
        archive.overwrite(keys.rollup(run, records[0].seq), data)


def read(archive: Archive, run: str, after: int, prev: str, parse: Parse = parsed_line) -> Iterator[list[Line]]:
    """The records of each SPAN of segments above `after`, of the last one those that it has, as long as there is a
    sound roll-up of it. prev: hash of the line before. parse: as in Journal.read. Raises StoreFault."""
    first = after + 1
    if first % SPAN:
        return
    known = set(archive.list(keys.rollups(run), after=keys.rollup(run, first - 1) if first else ""))
    starts = []
    while keys.rollup(run, first) in known:
        starts.append(first)
        first += SPAN
    with ThreadPoolExecutor(AHEAD) as pool:
        for at in range(0, len(starts), AHEAD):
            for start, (data, last) in zip(
                starts[at:],
                pool.map(lambda start: _fetch(archive, run, start), starts[at : at + AHEAD]),
                strict=False,
            ):
                lines = _proven(data, last, run, start, prev, parse)
                if lines is None:
                    return
                prev = lines[-1][1]
                yield lines


def _fetch(archive: Archive, run: str, start: int) -> tuple[bytes, bytes]:
    """A roll-up and the last of its segments, empty where there is none that could be read."""
    try:
        rolled = archive.get(keys.rollup(run, start), max_bytes=BYTES)
        return rolled, archive.get(keys.segment(run, _last_seq(rolled, start)), max_bytes=BYTES)
    except (NotFoundFault, IntegrityFault, ValueError):
        return b"", b""


def _last_seq(rolled: bytes, start: int) -> int:
    """As its last line says. Raises ValueError for none that this roll-up may hold."""
    fields = read_json(_last_line(rolled))
    seq = fields.get("seq") if isinstance(fields, dict) else None
    if type(seq) is not int or not start <= seq < start + SPAN:
        raise ValueError("no record of this span")
    return seq


def _last_line(data: bytes) -> bytes:
    """Without its end, and without a copy of what stands before it, which may be all of BYTES."""
    end = len(data) - 1
    return data[data.rfind(b"\n", 0, end) + 1 : end]


def _proven(data: bytes, last: bytes, run: str, start: int, prev: str, parse: Parse) -> list[Line] | None:
    lines: list[Line] = []
    seq = start - 1
    for text in data.split(b"\n")[:-1]:
        try:
            record, line_hash = parse(text)
        except ValueError:
            return None
        follows = record.seq == seq + 1 or (record.seq == seq and lines)
        if record.run != run or record.prev != prev or not follows:
            return None
        seq, prev = record.seq, line_hash
        lines.append((record, prev))
    return lines if last.endswith(b"\n") and digest(_last_line(last)) == prev else None
