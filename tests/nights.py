"""Owns one worker's station on the real engine, a real Redis and an archive in a folder, to work on runs in the
test's own process. Refuses to schedule: a test rings by itself.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sandboxes import ARCHIVE

from worker import attempt
from worker.contract.events import digest
from worker.contract.redact import Redactor
from worker.contract.script import parse_script
from worker.contract.settings import Settings
from worker.contract.task import Check, Environment, Limits, Repo, Task
from worker.models.scripted import ScriptedModel
from worker.sandbox.sandbox import DockerSandbox
from worker.station import Station, utc_now
from worker.store import keys
from worker.store.hints import Hints
from worker.store.journal import Journal
from worker.store.local import LocalArchive

LIMITS = Limits(memory_bytes=256 * 2**20, tmpfs_bytes=32 * 2**20, call_timeout_s=60)
FAST = {
    "lease_ttl_s": 3.0,
    "heartbeat_s": 0.5,
    "own_deadline_s": 2.0,
    "hint_poll_s": 0.1,
    "inbox_poll_s": 0.5,
    "infra_backoff_s": (0.1, 0.1, 0.1),
}
FIX = """
- calls: [{tool: run_checks, arguments: {}}]
- expect: "41"
  calls: [{tool: edit_file, arguments: {path: answer.txt, old_text: "41", new_text: "42"}}]
- text: The answer is 42 now.
"""


class Night:
    """One archive and one worker's station; submits tasks and works on them in this process."""

    def __init__(self, folder: Path, sandbox: DockerSandbox, redis_url: str) -> None:
        folder.mkdir()
        self.archive = LocalArchive(folder.as_uri())
        self.source = self._packed()
        self.station = Station(
            name="worker-1",
            lane="main",
            settings=Settings(redis_url=redis_url, **FAST),
            archive=self.archive,
            archive_id=ARCHIVE,
            hints=Hints(redis_url),
            sandbox=sandbox,
            redactor=Redactor({}),
            secrets={},
            open_model=lambda task: ScriptedModel(task.model, parse_script(task.script or "", "script")),
        )

    def _packed(self) -> str:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            entry = tarfile.TarInfo("answer.txt")
            entry.size = 3
            tar.addfile(entry, io.BytesIO(b"41\n"))
        name = digest(out.getvalue())
        self.archive.create(keys.source(name), out.getvalue())
        return name

    def submit(self, run: str = "run-1", **fields: Any) -> Journal:
        task = Task(
            **{
                "run": run,
                "batch": "batch-1",
                "target": "sample",
                "repo": Repo(source=self.source, source_kind="folder", label="sample"),
                "environment": Environment(image="python"),
                "prompt": "Make it 42.",
                "model": "scripted:fix",
                "script": FIX,
                "checks": (Check(name="answer", command="cat answer.txt; grep -q 42 answer.txt"),),
                "limits": LIMITS,
                **fields,
            }
        )
        journal = Journal(self.archive, run)
        journal.submit(task, by="ann", at=utc_now())
        return journal

    def work(self, run: str = "run-1", **changes: Any) -> str:
        return attempt.run(run, replace(self.station, **changes))

    def leftovers(self) -> list[str]:
        return [name for owner, name in self.station.sandbox.owned(ARCHIVE) if owner.run.startswith("run-")]


@pytest.fixture
def night(tmp_path: Path, sandbox: DockerSandbox, redis_url: str) -> Iterator[Night]:
    night = Night(tmp_path / "archive", sandbox, redis_url)
    yield night
    night.station.hints.close()


def types(journal: Journal) -> list[str]:
    return [record.event.type for record, _ in journal.read()]
