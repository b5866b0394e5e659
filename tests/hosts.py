"""Owns real Hosts on a real engine and an archive in a folder. Refuses Redis: the lease of these attempts is held."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from worker.contract.cancel import Cancel
from worker.contract.events import Claimed, digest
from worker.contract.redact import Redactor
from worker.contract.settings import Settings
from worker.contract.task import Environment, Limits, Repo, Task
from worker.hosting import AttemptHost
from worker.lease import Lease
from worker.ledger import Ledger
from worker.mailbox import Mailbox
from worker.prepare import prepare
from worker.sandbox.protocol import Owner, Sandbox
from worker.spool import Spool
from worker.station import Station, utc_now
from worker.store import keys
from worker.store.journal import Journal
from worker.store.local import LocalArchive


class Held:
    """A lease that is never in doubt."""

    def wait_current(self) -> bool:
        return True


class WatchedArchive(LocalArchive):
    """Says what was created, in order. before: called with each key first; it may wait, or raise as a store would."""

    created: list[str]
    before: Callable[[str], None]

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.created = []
        self.before = lambda key: None

    def create(self, key: str, data: bytes | Path) -> bool:
        self.before(key)
        made = super().create(key, data)
        if made:
            self.created.append(key)
        return made


class Hosts:
    """One environment, prepared once, `README` its only file, and any number of runs on it."""

    def __init__(self, folder: Path, sandbox: Sandbox, archive_id: str) -> None:
        self.sandbox = sandbox
        self.archive = WatchedArchive(folder.as_uri())
        self.archive_id = archive_id
        self.drain = Cancel()
        self.spool = Spool()
        self.run = ""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            entry = tarfile.TarInfo("README")
            entry.size = 6
            tar.addfile(entry, io.BytesIO(b"Hello\n"))
        self._source = digest(packed.getvalue())
        self.archive.create(keys.source(self._source), packed.getvalue())

    def fresh(self, run: str, **fields: Any) -> None:
        """Submit a run, which is `run` from now on; archive and spool are in order, and nobody drains."""
        self.run, self.drain, self.spool = run, Cancel(), Spool()
        self.archive.before = lambda key: None
        self.submit(run, **fields)

    def journal(self) -> Journal:
        """Of `run`."""
        return Journal(self.archive, self.run)

    def submit(self, run: str, **fields: Any) -> None:
        task: dict[str, Any] = {
            "run": run,
            "batch": "batch",
            "target": "sample",
            "repo": Repo(source=self._source, source_kind="folder", label="sample"),
            "environment": Environment(image="python"),
            "prompt": "Make it better.",
            "model": "scripted:x",
            "script": "",
            "limits": Limits(memory_bytes=256 * 2**20),
        }
        Journal(self.archive, run).submit(Task(**(task | fields)), by="ann", at=utc_now())

    def claim(self, run: str = "") -> tuple[Ledger, Cancel]:
        """The pen of a new attempt on `run`."""
        cancel = Cancel()
        journal = Journal(self.archive, run or self.run)
        ledger = Ledger(journal, cast(Lease, Held()), cancel, Redactor({}), utc_now, self.spool)
        ledger.claim(Claimed(worker="w", engine="e", lane="main"))
        return ledger, cancel

    @contextmanager
    def host(self, run: str = "", kind: type[AttemptHost] = AttemptHost) -> Iterator[AttemptHost]:
        """An attempt on a submitted run (`run` by default), ready for its first call."""
        ledger, cancel = self.claim(run)
        task = ledger.journal.task()
        owner = Owner(self.archive_id, task.run, ledger.run.attempt or 0, "agent")
        prepared = prepare(
            task,
            archive=self.archive,
            sandbox=self.sandbox,
            owner=owner,
            redactor=Redactor({}),
            secrets={},
            cancel=cancel,
        )
        if ledger.run.prepared is None:
            ledger.commit(prepared.event())
        station = self._station()
        mailbox = Mailbox(station, ledger, cancel, task.batch)
        with (
            self.sandbox.workspace(owner, prepared.image, task.limits) as workspace,
            kind(task, station, ledger, workspace, prepared, cancel, mailbox) as host,
        ):
            host.restore()
            yield host

    def _station(self) -> Station:
        return Station(
            name="w",
            lane="main",
            settings=Settings(),
            archive=self.archive,
            archive_id=self.archive_id,
            hints=cast(Any, None),
            sandbox=self.sandbox,
            redactor=Redactor({}),
            secrets={},
            open_model=cast(Any, None),
            drain=self.drain,
        )
