"""Owns the roll-up, one file for SPAN segments of a journal: a cache that saves a long run's reader most requests.
Refuses to be believed: its lines must continue the chain and end with the very line that the last of those segments
ends with, which by the chain proves all of them. A roll-up that does not is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from worker.contract.errors import IntegrityFault, NotFoundFault
from worker.contract.events import Record, digest
from worker.contract.fork import Line
from worker.store import keys
from worker.store.archive import Archive
from worker.store.skim import Parse, parsed_line

SPAN: Final = 256
BYTES: Final = 64 * 2**20
"""Largest roll-up. Segments that do not fit are read one by one."""

AHEAD: Final = 4
"""Roll-ups fetched at the same time, and held in memory before they are parsed."""


def write(archive: Archive, run: str, records: Sequence[Record]) -> None:
    """Store the records of SPAN segments, the first of which has a number that SPAN divides. Raises StoreFault."""
    data = b"".join(record.line() + b"\n" for record in records)
    if len(data) <= BYTES:
        archive.overwrite(keys.rollup(run, records[0].seq), data)


def read(archive: Archive, run: str, after: int, prev: str, parse: Parse = parsed_line) -> Iterator[list[Line]]:
    """The records of each SPAN of segments above `after` as long as there is a sound roll-up of it. prev: hash of the
    line before. parse: as in Journal.read. Raises StoreFault."""
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
        return rolled, archive.get(keys.segment(run, start + SPAN - 1), max_bytes=BYTES)
    except (NotFoundFault, IntegrityFault):
        return b"", b""


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
    complete = seq == start + SPAN - 1 and last.endswith(b"\n")
    return lines if complete and digest(last[:-1].rpartition(b"\n")[2]) == prev else None
