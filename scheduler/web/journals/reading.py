"""Owns the indexes of the journals that pages were asked for: each is read once and then its tail, and the oldest are
let go. Refuses to hide damage: what stands before it is shown, and what is wrong is said.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from scheduler import runs
from scheduler.runs import View
from scheduler.web.journals.steps import Index
from worker.contract.errors import IntegrityFault, VersionFault
from worker.store import keys
from worker.store.archive import Archive
from worker.store.journal import Journal
from worker.store.mail import Mail
from worker.store.skim import skimmed

FRESH_S: Final = 1.0
"""For how long a run that goes on is taken as it was."""
ROWS_KEPT: Final = 50_000
"""Of all indexes together; about 1.5 KB each."""


@dataclass
class Read:
    """A journal as far as it was read. damage: what is wrong with what comes next, "" for nothing."""

    index: Index
    damage: str = ""


@dataclass
class _Held:
    lock: threading.Lock = field(default_factory=threading.Lock)
    read: Read | None = None
    until_s: float = 0.0


class Journals:
    """Safe to use from many threads; two that ask for one journal read it once."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._lock = threading.Lock()
        self._held: OrderedDict[str, _Held] = OrderedDict()

    def read(self, name: str) -> Read:
        """A run's journal, or a delegate's (keys.delegate). Raises NotFoundFault, StoreFault, and IntegrityFault or
        VersionFault where not even its task can be read."""
        with self._lock:
            held = self._held.setdefault(name, _Held())
            self._held.move_to_end(name)
        try:
            with held.lock:
                if held.read is None or time.monotonic() >= held.until_s:
                    held.read = self._read_on(name, held.read)
                    final = held.read.index.run.sealed is not None and not held.read.damage
                    held.until_s = float("inf") if final else time.monotonic() + FRESH_S
                return held.read
        finally:
            self._let_go(name)

    def _read_on(self, name: str, so_far: Read | None) -> Read:
        journal = Journal(self._archive, name)
        index = so_far.index if so_far is not None else Index(journal.task(), name)
        run, damage = index.run, ""
        try:
            index.take(journal.read(run.last_seq, prev=run.last_hash or None, parse=skimmed))
        except (IntegrityFault, VersionFault) as fault:
            damage = fault.message
        return Read(index, damage)

    def _let_go(self, asked: str) -> None:
        """Of the indexes that nobody asked for longest, those beyond what is kept; and one that could not be read."""
        with self._lock:
            if asked in self._held and self._held[asked].read is None:
                del self._held[asked]
            rows = {name: len(one.read.index.rows) if one.read else 0 for name, one in self._held.items()}
            total = sum(rows.values())
            for name in list(rows)[:-1]:
                if total <= ROWS_KEPT:
                    return
                total -= rows[name]
                del self._held[name]


def view(archive: Archive, read: Read) -> View:
    """The run of an index, with what people sent it and what became of its patch. A delegate has none of these, and
    of a damaged run nothing is read beside its journal. Raises as runs.view."""
    run, task = read.index.run, read.index.task
    so_far = View(task, run, Mail(run))
    if read.damage or keys.is_delegate(run.id):
        return so_far
    return runs.view(archive, task.run, since=so_far)
