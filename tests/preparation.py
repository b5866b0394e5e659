"""Owns the way from a packed repository to a verdict that several test modules walk, on a real engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from repositories import packed_git
from sandboxes import Shell, owner

from worker.contract.cancel import Cancel
from worker.contract.events import Verdict, digest
from worker.contract.redact import Redactor
from worker.contract.task import Check, Environment, Limits, Repo, Task
from worker.environments import Prepared, restore_chain
from worker.prepare import prepare
from worker.publish import Patch, make_patch
from worker.room import apply
from worker.sandbox.protocol import Sandbox
from worker.sandbox.workspace import DockerWorkspace
from worker.store import keys
from worker.store.local import LocalArchive
from worker.verdict import measure

LIMITS = Limits(memory_bytes=512 * 2**20, tmpfs_bytes=128 * 2**20)


@dataclass
class Bench:
    """An archive of its own, the shared engine, and the stages in their order."""

    archive: LocalArchive
    sandbox: Sandbox
    redactor: Redactor = field(default_factory=lambda: Redactor({}))
    secrets: dict[str, str] = field(default_factory=dict)
    cancel: Cancel = field(default_factory=Cancel)

    def source(self, packed: bytes, kind: str = "git", **fields: Any) -> Repo:
        """A packed source as submit leaves it in the archive."""
        name = digest(packed)
        self.archive.create(keys.source(name), packed)
        return Repo.model_validate({"source": name, "source_kind": kind, "label": "sample", **fields})

    def repo(self, folder: Path, **fields: Any) -> Repo:
        return self.source(packed_git(folder / ".git"), **fields)

    def task(self, repo: Repo, *, setup: str | None = None, limits: Limits = LIMITS, **checks: str) -> Task:
        """A task with the checks given as name=command."""
        return Task(
            run="run",
            batch="batch",
            target="target",
            repo=repo,
            environment=Environment(setup=setup),
            commands=("true",),
            checks=tuple(Check(name=name, command=command) for name, command in checks.items()),
            limits=limits,
        )

    def reporting(self, task: Task, junit: str) -> Task:
        """The task, whose checks write JUnit XML there."""
        return task.model_copy(
            update={"checks": tuple(check.model_copy(update={"junit": junit}) for check in task.checks)}
        )

    def prepare(self, task: Task) -> Prepared:
        return prepare(
            task,
            archive=self.archive,
            sandbox=self.sandbox,
            owner=owner(),
            redactor=self.redactor,
            secrets=self.secrets,
            cancel=self.cancel,
        )

    @contextmanager
    def agent(self, task: Task, prepared: Prepared) -> Iterator[Shell]:
        """The agent's workspace at the start."""
        with self.sandbox.workspace(owner(), prepared.image, task.limits) as workspace:
            assert isinstance(workspace, DockerWorkspace)
            workspace.restore(restore_chain(self.archive, prepared))
            yield Shell(workspace)

    def patch(self, task: Task, shell: Shell) -> Patch:
        return make_patch(shell.workspace, task, put_blob=self.put_blob, redactor=self.redactor, cancel=self.cancel)

    def tree_with(self, task: Task, prepared: Prepared, patch: Patch) -> list[tuple[str, str, str]]:
        """The work tree of the start commit with the patch applied."""
        with self.agent(task, prepared) as shell:
            apply(shell.workspace, patch, cancel=self.cancel)
            return shell.workspace.tree()

    def verdict(self, task: Task, prepared: Prepared, patch: Patch) -> Verdict:
        return measure(
            task,
            prepared,
            patch,
            archive=self.archive,
            sandbox=self.sandbox,
            owner=owner(),
            put_blob=self.put_blob,
            redactor=self.redactor,
            cancel=self.cancel,
        )

    def edited(self, task: Task, script: str) -> tuple[Prepared, Patch]:
        """Prepare, let the agent run one script, make the patch."""
        prepared = self.prepare(task)
        with self.agent(task, prepared) as shell:
            result = shell.run(script)
            assert (result.status, result.exit_code) == ("ok", 0), result.output.path.read_text()
            return prepared, self.patch(task, shell)

    def put_blob(self, data: bytes | Path) -> str:
        content = data.read_bytes() if isinstance(data, Path) else data
        self.archive.create(keys.blob("run", digest(content)), content)
        return digest(content)

    def everything_stored(self) -> bytes:
        """All bytes of the archive but its snapshots, one after the other."""
        return b"\n".join(self.archive.get(key) for key in self.archive.list(""))


@pytest.fixture
def bench(sandbox: Sandbox, tmp_path: Path) -> Bench:
    folder = tmp_path / "archive"
    folder.mkdir()
    return Bench(LocalArchive(folder.as_uri()), sandbox)
