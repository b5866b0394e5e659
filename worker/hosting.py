"""Owns the loop's Host on a real workspace: commit, inbox, and one call carried out as a transaction. Refuses to
decide anything a person or the meter should: it carries out.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog
from pydantic import BaseModel

from worker.contract.cancel import Cancel
from worker.contract.errors import EnvironmentFault, Fault
from worker.contract.events import Asked, Called, Event, Observation, Observed, Parked, Record, SnapshotRef, ToolCall
from worker.contract.run import Run
from worker.contract.task import Task
from worker.environments import Prepared, restore_chain
from worker.host import Stopped
from worker.ledger import Ledger
from worker.mailbox import Mailbox
from worker.masking import mask_file
from worker.policy import Ruling
from worker.sandbox.protocol import Command, Output, Result, Workspace, WorkspaceTooLarge
from worker.station import Station
from worker.store.lineage import inherited_blob
from worker.tools import observe
from worker.tools.tool import Answer, Tool, ToolContext

LOG = structlog.get_logger(__name__)

FULL_EVERY = 50
"""Snapshots in a chain before a new level 0 (plan, section 4)."""


class AttemptHost:
    """One attempt's Host; a context manager.

    A call is shown as soon as its output is known. The rest of its transaction (output stored, container gone,
    snapshot taken and stored, then the append) follows in one background thread, which has the workspace for itself:
    the next call waits for it, and so does leaving the context.
    """

    def __init__(
        self,
        task: Task,
        station: Station,
        ledger: Ledger,
        workspace: Workspace,
        prepared: Prepared,
        cancel: Cancel,
        mailbox: Mailbox,
    ) -> None:
        self._task = task
        self._station = station
        self._ledger = ledger
        self._workspace = workspace
        self._prepared = prepared
        self._cancel = cancel
        self._mailbox = mailbox
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"commit {task.run}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Wait for the last commit. What it raises is raised, but for a fault that is on its way already."""
        self._thread.shutdown()
        try:
            self.settle()
        except Fault as fault:
            if kind is None:
                raise
            LOG.warning("last_commit_failed", fault=str(fault))

    @property
    def task(self) -> Task:
        return self._task

    @property
    def cancel(self) -> Cancel:
        return self._cancel

    @property
    def run(self) -> Run:
        return self._ledger.run

    def records(self) -> Sequence[Record]:
        return self._ledger.records

    def working_s(self) -> float:
        return self._ledger.working_s()

    def commit(self, *events: Event) -> None:
        self._ledger.commit(*events)

    def inbox(self) -> Parked | Stopped | None:
        if self._station.drain.is_set():
            return Stopped("drain")
        self._ledger.check()
        return self._mailbox.take()

    def before_call(self, call: ToolCall, arguments: BaseModel) -> Ruling:
        task = self._task
        asked = {"id": call.id, "tool": call.name, "arguments": arguments.model_dump(mode="json")}
        where = {"run": task.run, "batch": task.batch, "target": task.target, "step": self.run.steps}
        return self._station.before_call({"v": 1, **where, "call": asked})

    def ask(self, asked: Asked) -> Parked:
        return self._mailbox.ask(asked)

    def wait_turn(self, wait_s: float) -> bool:
        began_s = time.monotonic()
        thrown = self._cancel.wait(wait_s)
        self._waited(time.monotonic() - began_s)
        return thrown

    def _waited(self, seconds: float) -> None:
        self._ledger.waited(seconds)

    def wait_for_provider(self, pause_s: float, detail: str, *, paced: bool = False) -> Parked:
        return self._mailbox.wait_for_provider(pause_s, detail, paced=paced)

    def wait_for_budget(self, until: str | None, detail: str) -> Parked:
        return self._mailbox.wait_for_budget(until, detail)

    def observe(self, call: ToolCall, tool: Tool, arguments: Any) -> Parked | Stopped | None:
        self.settle()
        work = tool.command(arguments, self._context())
        if isinstance(work, Answer):
            answered = Observed(observation=observe.answered(call, work), plan=work.plan)
            self._ledger.commit_later(answered, lambda: answered, self._thread)
            return None
        if not self._ledger.has_room(self._task.limits.output_kept_bytes):
            return Stopped(self._cancel.reason)
        self._ledger.check()
        if any(command.outside for command in work):  # no rollback undoes it: whoever comes later must know
            self._ledger.commit(Called(call_id=call.id))
        results: list[Result] = []
        with ExitStack() as files:
            for command in work:
                results.append(self._workspace.run(self._bounded(command), cancel=self._cancel))
                files.callback(results[-1].output.path.unlink, missing_ok=True)
                if results[-1].cancelled:
                    return Stopped(self._cancel.reason)
            joint = results[0].output.path.with_suffix(".joint")
            files.callback(joint.unlink, missing_ok=True)
            output = observe.joined(work, results, joint)
            for part in results:  # only what is stored waits in the spool
                if part.output.path != output.path:
                    part.output.path.unlink()
            own_limit = hasattr(arguments, "timeout_s")
            observation = self._observation(call, results, output, own_limit)
            writes = any(command.writes for command in work)
            finish = partial(self._finished, self.run, observation, output.path, files.pop_all(), writes=writes)
        self._ledger.commit_later(Observed(observation=observation), finish, self._thread)
        return None

    def settle(self) -> bool:
        return self._ledger.settle()

    def restore(self) -> None:
        """Lay the workspace down as the last commit left it. A fork's first act is a level 0 of its own. Raises
        EnvironmentFault when that is too large."""
        self._restore(self.run)
        if not self.run.snapshots_of:
            return
        try:
            level_0, _ = self._saved(0, full=True)
        except WorkspaceTooLarge as error:
            raise EnvironmentFault("repository", f"the workspace is too large to fork: {error}") from error
        self._ledger.commit(self._prepared.event(level_0))

    def _restore(self, run: Run) -> None:
        self._workspace.restore(restore_chain(self._station.archive, self._prepared, run))

    def _observation(self, call: ToolCall, results: Sequence[Result], output: Output, own_limit: bool) -> Observation:
        """Masked before it is shown, under the digest it will be stored by: what the model reads is what the archive
        holds."""
        kept_bytes = mask_file(output.path, self._station.redactor)
        blob = None
        if kept_bytes:
            with output.path.open("rb") as file:
                blob = hashlib.file_digest(file, "sha256").hexdigest()
        output = replace(output, kept_bytes=kept_bytes)
        return observe.observed(call, results, output, self._task.limits, blob=blob, own_limit=own_limit)

    def _finished(
        self, before: Run, observation: Observation, output: Path, files: ExitStack, *, writes: bool
    ) -> Observed:
        """In the background: the output stored, the container gone, the workspace saved. before: the run before the
        call; files: removes what the call left in the spool."""
        with files:
            if observation.blob is not None:
                self._ledger.put_blob(output)
        if not writes:
            return Observed(observation=observation)
        try:
            snapshot, changed = self._saved(len(before.chain), full=len(before.chain) >= FULL_EVERY)
            return Observed(observation=observation, snapshot=snapshot, files=changed)
        except WorkspaceTooLarge as error:
            self._restore(before)
            return Observed(observation=observe.with_error(observation, str(error)))

    def _saved(self, below: int, *, full: bool) -> tuple[SnapshotRef, tuple[str, ...]]:
        """The workspace, stored on top of `below` others or as a level 0, and the paths that changed."""
        most_bytes = self._task.limits.snapshot_bytes
        taken, stored = self._ledger.put_snapshot(most_bytes, lambda: self._workspace.snapshot(full=full))
        level = 0 if taken.full else below + 1
        reference = SnapshotRef(
            listing=taken.listing, tree=taken.tree, object=stored, level=level if stored else 0, bytes=taken.bytes
        )
        return reference, tuple(self._station.redactor.text(path) for path in taken.files)

    def _bounded(self, command: Command) -> Command:
        left_s = max(1.0, self._task.limits.working_time_s - self.working_s())
        return replace(command, timeout_s=min(command.timeout_s, left_s))

    def _context(self) -> ToolContext:
        return ToolContext(
            limits=self._task.limits,
            checks=self._task.checks,
            path=self._task.repo.path,
            plan=self.run.plan,
            read_output=self._kept_output,
            network=self._task.environment.networked,
            secrets=self._station.secrets,
        )

    def _kept_output(self, call_id: str) -> bytes | None:
        for record in reversed(self._ledger.records):
            event = record.event
            if isinstance(event, Observed) and event.observation.call_id == call_id:
                blob = event.observation.blob
                if blob is not None and record.seq == 0:
                    return inherited_blob(self._station.archive, self.run.id, blob)
                return self._ledger.journal.get_blob(blob) if blob else event.observation.output.encode()
        return None
