"""Owns watching runs from outside: every record as it is appended, until all are sealed. Refuses to ask Redis: the
journals alone tell, so it works on an archive of another machine too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from worker.contract.events import Record
from worker.contract.run import Run
from worker.store.archive import Archive
from worker.store.journal import Journal

READERS = 8
MAX_PAUSE_S = 5.0
PAUSE_PER_RUN_S = 0.02
"""A poll lists the journal of each run that is not sealed; this bounds the lists to about fifty a second."""


class Follower:
    """runs: the folds as of the last poll, by id, in the order given."""

    def __init__(self, archive: Archive, runs: Sequence[str]) -> None:
        self.runs: dict[str, Run] = {}
        self._archive = archive
        self._journals: dict[str, Journal] = {}
        self.add(runs)

    def add(self, runs: Iterable[str]) -> bool:
        """Watch these too; whether any of them is new."""
        new = [run for run in runs if run not in self.runs]
        self.runs |= {run: Run(id=run) for run in new}
        self._journals |= {run: Journal(self._archive, run) for run in new}
        return bool(new)

    @property
    def open(self) -> list[str]:
        """Runs that are not sealed."""
        return [name for name, run in self.runs.items() if run.sealed is None]

    @property
    def unsealed(self) -> list[Run]:
        """Their folds."""
        return [self.runs[name] for name in self.open]

    def pause_s(self, shortest_s: float) -> float:
        """How long to wait before the next poll."""
        return min(MAX_PAUSE_S, max(shortest_s, PAUSE_PER_RUN_S * len(self.open)))

    def catch_up(self) -> list[Record]:
        """Take in all that is there, and return what the last append of each open run said: where it stands. Raises
        as poll does."""
        last: dict[str, list[Record]] = {}
        for record in self.poll():
            before = last.get(record.run, [])
            last[record.run] = [*before, record] if before and before[-1].seq == record.seq else [record]
        return [record for name in self.open for record in last.get(name, [])]

    def poll(self) -> Iterator[Record]:
        """New records of all runs, each run's in order; the fold stands after the record that was given last.

        Raises as Journal.read does.
        """
        names = self.open
        if not names:
            return
        with ThreadPoolExecutor(min(READERS, len(names))) as pool:
            news = pool.map(self._news, names)
            for name, lines in zip(names, news, strict=True):
                for record, line_hash in lines:
                    self.runs[name] = self.runs[name].after(record, line_hash)
                    yield record

    def _news(self, name: str) -> list[tuple[Record, str]]:
        run = self.runs[name]
        return list(self._journals[name].read(run.last_seq, prev=run.last_hash or None))
