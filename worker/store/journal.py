"""Owns Journal, the append-only chain of one run in an archive. Refuses to decide what a run does next.

The next segment number is the fence: an append creates `journal/<seq>.jsonl`, and of two writers one is told what
the other wrote. Every line names the hash of the line before; the first names the digest of task.json.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from worker.contract.errors import ConflictFault, IntegrityFault, InvalidFault, NotFoundFault, VersionFault
from worker.contract.events import (
    JOURNAL_VERSION,
    Delegated,
    Event,
    Failure,
    Record,
    Sealed,
    Submitted,
    canonical,
    digest,
    read_json,
)
from worker.contract.fork import Line as Line
from worker.contract.fork import inherited
from worker.contract.run import Run, fold
from worker.contract.task import TASK_VERSION, Task
from worker.store import keys, rollup
from worker.store.archive import Archive, is_near
from worker.store.content import content_chunks, get_content, put_content
from worker.store.evidence import Tally, evidence_problems
from worker.store.skim import Along, Parse, parsed_line

READERS = 8
"""Segments fetched at the same time, which hides an object store's round trips."""

READ_AHEAD = 64
"""Segments held in memory before they are parsed, at most."""

SEGMENT_BYTES = 64 * 2**20
"""Largest segment: texts and arguments only, outputs are blobs. What could not be read is not written."""

RECORD_BYTES = 600
"""What a record adds to its event, at most."""


class AppendConflict(ConflictFault):
    """Somebody else wrote the segment first. winner: its records, ready for `fold(winner, run)`."""

    def __init__(self, run: str, seq: int, winner: tuple[Line, ...]) -> None:
        what = " ".join(record.event.type for record, _ in winner)
        super().__init__(f"segment {seq} of run {run} was written by somebody else: {what}")
        self.winner = winner


class Journal:
    """One run's journal, task and stored bytes. Holds no state of its own; thread-safe.

    Methods raise StoreFault as the archive does, NotFoundFault for a run or object that is not there,
    IntegrityFault for bytes that are not what their digest or chain says, VersionFault for a newer writer's.
    """

    def __init__(self, archive: Archive, run: str) -> None:
        self.run = run
        self._archive = archive

    def submit(
        self, task: Task, by: str, at: str, then: Sequence[Event] = (), *,
        opening: Sequence[Event] = (), waits: bool = False,
    ) -> bool:  # fmt: skip
        """Write task.json, the open marker and segment 0, or what of them is missing; True when segment 0 is ours.

        then: what follows in segment 0. A run that ends there is nobody's to work on, and has no marker. opening: its
        first lines, by default one. waits: segment 0 is written later; True then when the marker is ours.
        Segment 0 of a fork is made of the parent's journal, which is read before anything is written. Raises
        ConflictFault when another task stands under this run id, InvalidFault when the copy is over SEGMENT_BYTES.
        """
        data = canonical(task.model_dump(mode="json"))
        opening = opening or [Submitted(by=by)]
        if task.fork is not None:
            opening = inherited(Journal(self._archive, task.fork.run).read(), task.fork, by)
            _within(sum(len(canonical(event.model_dump(mode="json"))) + RECORD_BYTES for event in opening), 0)
        if not self._archive.create(keys.task(self.run), data) and self._task_bytes() != data:
            raise ConflictFault(f"run {self.run} exists already with another task", hint="submit under another key")
        if self._archive.size(keys.segment(self.run, 0)) is not None:
            return False  # the marker came before segment 0, and may be gone because the run is sealed
        ends = any(isinstance(event, Sealed) for event in then)
        if not ends and not keys.is_delegate(self.run):  # nobody rings a delegate: it is worked on with its run
            ours = self._archive.create(keys.open_marker(self.run), b"")
            if waits:
                return ours
        try:
            self.append(Run(id=self.run), [*opening, *then], attempt=None, at=at)
        except AppendConflict:
            return False
        return True

    def task(self) -> Task:
        """What was asked."""
        data = self._task_bytes()
        try:
            return Task.model_validate(read_json(data))
        except ValueError as error:
            _refuse_newer(data, TASK_VERSION, keys.task(self.run))
            raise IntegrityFault(f"{keys.task(self.run)} is not a task: {_first(error)}") from error

    def read(self, after: int = -1, *, prev: str | None = None, parse: Parse = parsed_line) -> Iterator[Line]:
        """The records of all segments numbered above `after`, oldest first, each proven to continue the chain.

        prev: hash of the last line of segment `after`, when the caller knows it (a folded Run does). parse: whoever
        only looks gives skim.skimmed. A segment that cannot be read raises IntegrityFault, unless the journal ends
        with the seal that names it: then that is next.
        """
        if prev is None:
            prev = digest(self._task_bytes()) if after < 0 else self._segment(after, None)[-1][1]
        for lines in rollup.read(self._archive, self.run, after, prev, parse):
            after, prev = lines[-1][0].seq, lines[-1][1]
            yield from lines
        seq = after
        for key, data in self._segments(after):
            seq += 1
            try:
                if key != keys.segment(self.run, seq):
                    raise IntegrityFault(f"{keys.segment(self.run, seq)} is missing, {key} comes instead")
                lines = _parse(key, data, self.run, seq, prev, parse)
            except IntegrityFault:
                seal = self._seal_over(seq, prev)
                if seal is None:
                    raise
                yield seal
                return
            for line in lines:
                prev = line[1]
                yield line

    def load(self, since: Run | None = None, parse: Parse = parsed_line, along: Along = iter) -> Run:
        """The run after its last segment; with `since`, an earlier fold, only newer segments are read. along: hands
        every line on, as it is read."""
        start = since or Run(id=self.run)
        return fold(along(self.read(start.last_seq, prev=start.last_hash or None, parse=parse)), start)

    def append(
        self, run: Run, events: Iterable[Event], *, attempt: int | None, at: str, nonce: str | None = None
    ) -> Run:
        """Commit events as in `write` and return the run after them."""
        return fold(self.write(run, events, attempt=attempt, at=at, nonce=nonce), run)

    def write(
        self,
        run: Run,
        events: Iterable[Event],
        *,
        attempt: int | None,
        at: str,
        nonce: str | None = None,
        waited_ms: int = 0,
    ) -> list[Line]:
        """Commit events as segment run.last_seq + 1, all or none, and return their records.

        attempt: seq of the claim this is written under. at: UTC, ISO 8601. nonce: give the same one again when a
        write ended in a StoreFault and is repeated; a segment that carries it counts as written by us. waited_ms: see
        Record.
        Raises AppendConflict when somebody else wrote that segment, ConflictFault when the run is sealed,
        InvalidFault when the events are over SEGMENT_BYTES.
        """
        if run.sealed is not None:
            raise ConflictFault(f"run {self.run} is sealed")
        nonce = nonce or secrets.token_hex(16)
        return self._write_at(run.last_seq + 1, run, events, attempt=attempt, at=at, nonce=nonce, waited_ms=waited_ms)

    def _write_at(
        self,
        seq: int,
        run: Run,
        events: Iterable[Event],
        *,
        attempt: int | None,
        at: str,
        nonce: str,
        waited_ms: int = 0,
    ) -> list[Line]:
        """Commit events as segment `seq`, chained to the run's last line."""
        first = prev = run.last_hash or digest(self._task_bytes())
        lines: list[Line] = []
        data = b""
        for event in events:
            record = Record(
                run=self.run,
                seq=seq,
                at=at,
                attempt=attempt,
                nonce=nonce,
                prev=prev,
                waited_ms=0 if lines else waited_ms,
                event=event,
            )
            line = record.line()
            prev = digest(line)
            data += line + b"\n"
            lines.append((record, prev))
        _within(len(data), seq)
        if not self._archive.create(keys.segment(self.run, seq), data):
            lines = self._segment(seq, first)
            if lines[0][0].nonce != nonce:
                raise AppendConflict(self.run, seq, tuple(lines))
        return lines

    def roll_up(self, records: Sequence[Record]) -> None:
        """Leave a cache of these records: whole segments, rollup.SPAN at most."""
        rollup.write(self._archive, self.run, records)

    def seal_damaged(self, at: str, why: str = "") -> Run | None:
        """End a run for something stored that is damaged, as failed with infra/store. at: UTC, ISO 8601.

        Where the journal cannot be read on, the seal goes to the next free number and names the first segment that is
        not sound. A sound one gets an ordinary seal that says why, if there is a reason. None when there is nothing
        to end: no reason, sealed already, or somebody else wrote that number.
        """
        run, damaged = Run(id=self.run), None
        try:
            for line in self.read():
                run = run.after(*line)
            last = run.last_seq
        except IntegrityFault as fault:
            why, damaged = fault.message, run.last_seq + 1
            last = max(keys.segment_seq(key) for key in self._archive.list(keys.journal(self.run)))
        if not why or last < 0 or run.sealed is not None or (damaged is not None and self._is_seal(last)):
            return None
        seal = Sealed(outcome="failed", failure=Failure(cls="infra", reason="store", detail=why), damaged=damaged)
        try:
            return fold(self._write_at(last + 1, run, [seal], attempt=None, at=at, nonce=secrets.token_hex(16)), run)
        except ConflictFault:
            return None

    def tail(self) -> Record:
        """The last record, proven by nothing but its own form: for whoever looks at the ends of many runs. Raises
        NotFoundFault where nothing was written."""
        last = max(self._archive.list(keys.journal(self.run)), default=None)
        if last is None:
            raise NotFoundFault(f"run {self.run} has no journal")
        return self._segment(keys.segment_seq(last), None)[-1][0]

    def _is_seal(self, seq: int) -> bool:
        """Whether that segment can be read and ends the run, though others may be damaged."""
        try:
            return any(isinstance(record.event, Sealed) for record, _ in self._segment(seq, None))
        except IntegrityFault:
            return False

    def put_blob(self, data: bytes | Path) -> str:
        """Store bytes or a file under their digest, and return it. Storing them again changes nothing."""
        return put_content(self._archive, partial(keys.blob, self.run), data)

    def get_blob(self, name: str, *, max_bytes: int = 256 * 2**20) -> bytes:
        """The bytes of a blob, at most max_bytes."""
        return get_content(self._archive, keys.blob(self.run, name), name, max_bytes=max_bytes)

    def put_snapshot(self, data: bytes | Path) -> str:
        """Store a snapshot's archive of changes under its digest, and return it."""
        return put_content(self._archive, partial(keys.snapshot, self.run), data)

    def get_snapshot(self, name: str) -> Iterator[bytes]:
        """A snapshot's archive in chunks; a wrong digest shows at the end (see content_chunks)."""
        return content_chunks(self._archive, keys.snapshot(self.run, name), name)

    def verify(self, tally: Tally | None = None) -> list[str]:
        """Recompute the chain and every digest its events name, with those of its delegates; one line for each
        problem, empty when all is sound.

        Goes on after a problem. tally: counts what was looked at, and is to be given again for other runs of the same
        archive. Raises StoreFault only, and NotFoundFault when there is no such run.
        """
        tally = tally or Tally()
        marked = keys.is_delegate(self.run) or self._archive.size(keys.open_marker(self.run)) is not None
        prev: str | None = digest(self._task_bytes())
        problems: list[str] = []
        try:
            self.task()
        except (IntegrityFault, VersionFault) as fault:
            problems.append(fault.message)
        records: list[Record] = []
        seq = -1
        for key, data in self._segments(-1):
            seq += 1
            try:
                if key != keys.segment(self.run, seq):
                    problems.append(f"{keys.segment(self.run, seq)} is missing, {key} comes instead")
                    seq, prev = keys.segment_seq(key), None
                for record, line_hash in _parse(key, data, self.run, seq, prev):
                    prev = line_hash
                    records.append(record)
            except (IntegrityFault, VersionFault) as fault:
                problems.append(fault.message)
                prev = None
            tally.segments += 1
        tally.records += len(records)
        tally.tails[self.run] = (seq, prev or "")
        if not problems and not marked and not (records and isinstance(records[-1].event, Sealed)):
            marker = keys.open_marker(self.run)
            problems.append(f"{keys.segment(self.run, seq)} is the last and no seal, but {marker} is gone")
        problems += evidence_problems(self._archive, self.run, records, tally)
        for call in dict.fromkeys(record.event.call_id for record in records if isinstance(record.event, Delegated)):
            try:
                problems += Journal(self._archive, keys.delegate(self.run, call)).verify(tally)
            except NotFoundFault as fault:
                problems.append(fault.message)
        return problems

    def _seal_over(self, damaged: int, prev: str) -> Line | None:
        """The journal's last line when it is the seal of a run that could not be read from segment `damaged` on."""
        last = max(self._archive.list(keys.journal(self.run)))
        if (seq := keys.segment_seq(last)) <= damaged:
            return None
        try:
            line = self._segment(seq, prev)[-1]
        except IntegrityFault:
            return None
        event = line[0].event
        return line if isinstance(event, Sealed) and event.damaged == damaged else None

    def _task_bytes(self) -> bytes:
        try:
            return self._archive.get(keys.task(self.run))
        except NotFoundFault:
            raise NotFoundFault(f"there is no run {self.run}") from None

    def _segment(self, seq: int, prev: str | None) -> list[Line]:
        key = keys.segment(self.run, seq)
        return _parse(key, self._archive.get(key, max_bytes=SEGMENT_BYTES), self.run, seq, prev)

    def _segments(self, after: int) -> Iterator[tuple[str, bytes]]:
        """Keys and bytes of the segments numbered above `after`, in order; several are fetched ahead from afar."""
        found = self._archive.list(keys.journal(self.run), after=keys.segment(self.run, after) if after >= 0 else "")

        def fetch(key: str) -> bytes:
            return self._archive.get(key, max_bytes=SEGMENT_BYTES)

        if is_near(self._archive):
            yield from ((key, fetch(key)) for key in found)
            return
        head = list(islice(found, READ_AHEAD))
        if len(head) < 2:
            yield from ((key, fetch(key)) for key in head)
            return
        with ThreadPoolExecutor(READERS) as pool:
            while head:
                yield from zip(head, pool.map(fetch, head), strict=True)
                head = list(islice(found, READ_AHEAD))


def _parse(key: str, data: bytes, run: str, seq: int, prev: str | None, parse: Parse = parsed_line) -> list[Line]:
    """The records of one segment; prev None skips the link to the line before."""
    if not data.endswith(b"\n"):
        raise IntegrityFault(f"{key} is torn: its last line has no end")
    lines: list[Line] = []
    for number, text in enumerate(data[:-1].split(b"\n"), start=1):
        where = f"{key} line {number}"
        try:
            record, line_hash = parse(text)
        except ValueError as error:
            _refuse_newer(text, JOURNAL_VERSION, where)
            raise IntegrityFault(f"{where} is not a record: {_first(error)}") from error
        if record.run != run or record.seq != seq:
            raise IntegrityFault(f"{where} belongs to segment {record.seq} of run {record.run}")
        if prev is not None and record.prev != prev:
            begins = f", which begins at {keys.task(run)}" if seq == 0 and number == 1 else ""
            raise IntegrityFault(f"{where} does not continue the chain{begins}")
        prev = line_hash
        lines.append((record, prev))
    return lines


def _within(size: int, seq: int) -> None:
    if size > SEGMENT_BYTES:
        raise InvalidFault(f"segment {seq} would have {size} bytes, over {SEGMENT_BYTES}")


def _refuse_newer(data: bytes, known: int, where: str) -> None:
    """Raise VersionFault when the bytes say that a newer schema wrote them."""
    try:
        version = read_json(data).get("v")
    except (ValueError, AttributeError):
        return
    if isinstance(version, int) and version > known:
        raise VersionFault(f"{where} has version {version}, this Dawnfleet knows {known}", hint="upgrade Dawnfleet")


def _first(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    found = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in found['loc'])}: {found['msg']}"
