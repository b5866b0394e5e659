"""Owns the clean room: base plus patch in a workspace that shares nothing with the agent's. Refuses to judge what the
checks say there (verdict.py does).

Where the task asks for it, and the patch changes a list of dependencies, the room's environment is made of base plus
patch: setup runs on a work tree in which nothing is left of its first run, in the task's own image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from worker import base_image
from worker.base_image import SETUP_IMAGE, TAG_DIGITS
from worker.checks import Ran, run_checks
from worker.contract.cancel import Cancel
from worker.contract.difftext import files_of
from worker.contract.errors import EngineFault, EnvironmentFault, IntegrityFault
from worker.contract.events import CheckResult, Digest, canonical, digest
from worker.contract.filekinds import lists_dependencies
from worker.contract.redact import Redactor
from worker.contract.task import Task
from worker.environments import Prepared, restore_chain
from worker.prepare import set_up
from worker.publish import Patch
from worker.sandbox.protocol import Owner, Sandbox, Workspace, WorkspaceTooLarge
from worker.store.archive import Archive
from worker.toolbox import ToolboxProblem, ask

APPLY_TIMEOUT_S: Final = 300
CHUNK_BYTES: Final = 1 << 20

PutData = Callable[[bytes | Path], Digest]


@dataclass(frozen=True)
class Room:
    """Makes clean rooms of one patch: each run of checks gets a new one. put_blob: stores the masked outputs."""

    task: Task
    prepared: Prepared
    patch: Patch
    archive: Archive
    sandbox: Sandbox
    owner: Owner
    put_blob: PutData
    redactor: Redactor
    cancel: Cancel

    def run(self, names: Sequence[str]) -> tuple[Ran, ...]:
        checks = [check for check in self.task.checks if check.name in names]
        if not checks:
            return ()
        try:
            with self._set_up_anew() if self.resetup else self._workspace(self.prepared.image) as workspace:
                return run_checks(
                    self.task, checks, workspace, put_blob=self.put_blob, redactor=self.redactor, cancel=self.cancel
                )
        except EnvironmentFault as fault:
            if not self.resetup or fault.reason != "setup":
                raise
            # The patch is at fault: it changed what setup reads.
            told = f"with the patch, {fault.message}"
            return tuple(Ran(CheckResult(name=check.name, status="red", tail=told)) for check in checks)

    @property
    def notes(self) -> list[str]:
        """What a person should know of how it was measured."""
        return [f"setup ran anew for the checks, because {self.resetup} changed"] if self.resetup else []

    @cached_property
    def resetup(self) -> str:
        """The file for whose sake setup runs again, "" where it does not."""
        environment = self.task.environment
        if environment.resetup == "never" or environment.setup is None:
            return ""
        files = (file for data in self.patch.files.values() for file in files_of(data))
        changed = (path for file in files for path in (file.path, file.before))
        return next(filter(lists_dependencies, changed), "")

    @contextmanager
    def _workspace(self, image: str, *, anew: bool = False) -> Iterator[Workspace]:
        with self.sandbox.workspace(self.owner, image, self.task.limits) as workspace:
            workspace.restore(restore_chain(self.archive, self.prepared))
            if not self.patch.empty:
                apply(workspace, self.patch, cancel=self.cancel, anew=anew)
            yield workspace

    def _first_image(self) -> str:
        """What setup ran in the first time: its image has what it did then."""
        if self.task.environment.dockerfile is None:
            return self.sandbox.image_id(self.prepared.environment.image_name)
        image = base_image.asked(self.task, self.sandbox, redactor=self.redactor, cancel=self.cancel)
        return base_image.ready(
            image,
            self.task,
            archive=self.archive,
            sandbox=self.sandbox,
            redactor=self.redactor,
            cancel=self.cancel,
        )

    @contextmanager
    def _set_up_anew(self) -> Iterator[Workspace]:
        """The environment made of base plus patch: nothing that setup did to the base is left in it."""
        name = digest(canonical([self.prepared.key, sorted(map(digest, self.patch.files.values()))]))
        with self._workspace(self._first_image(), anew=True) as first:
            tag = f"{SETUP_IMAGE}:{name[:TAG_DIGITS]}"
            image = set_up(self.task, first, tag, redactor=self.redactor, cancel=self.cancel)
            first.own()
            try:
                level_0 = first.snapshot(full=True)
            except WorkspaceTooLarge as error:
                raise EnvironmentFault("setup", f"the workspace is too large after setup: {error}") from error
            assert level_0.path is not None, "a full snapshot has a file"
            with (
                self.sandbox.workspace(self.owner, image, self.task.limits) as second,
                level_0.path.open("rb") as tar,
            ):
                second.restore([iter(lambda: tar.read(CHUNK_BYTES), b"")])
                yield second


def apply(workspace: Workspace, patch: Patch, *, cancel: Cancel, anew: bool = False) -> None:
    """Lay the patch down on a workspace that holds the base as setup left it. anew: and take away what setup did.
    Raises IntegrityFault when it does not fit, EngineFault when it ran into a limit."""
    for name, data in patch.files.items():
        workspace.put(name, [data])
    request = {"op": "apply", "anew": anew}
    try:
        ask(workspace, "patch", request, timeout_s=APPLY_TIMEOUT_S, cancel=cancel, root=anew)
    except ToolboxProblem as problem:
        fault = EngineFault if problem.kind == "unfinished" else IntegrityFault
        raise fault(problem.message) from None
