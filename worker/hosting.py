"""Owns the loop's Host on a real workspace: commit, inbox, and one call carried out as a transaction. Refuses to
decide anything a person or the meter should: it carries out.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from worker.contract.cancel import Cancel
from worker.contract.events import Event, Observation, Observed, Parked, Record, SnapshotRef, Steered, ToolCall
from worker.contract.run import Run
from worker.contract.task import Task
from worker.environments import Prepared, restore_chain
from worker.host import Stopped
from worker.ledger import Ledger
from worker.masking import mask_file
from worker.sandbox.protocol import Command, Result, Workspace, WorkspaceTooLarge
from worker.station import Station
from worker.store.inbox import Inbox
from worker.tools import observe
from worker.tools.tool import Answer, Tool, ToolContext

FULL_EVERY = 50
"""Snapshots in a chain before a new level 0 (plan, section 4)."""


class AttemptHost:
    """One attempt's Host. mail: set when the inbox should be looked at."""

    def __init__(
        self,
        task: Task,
        station: Station,
        ledger: Ledger,
        workspace: Workspace,
        prepared: Prepared,
        cancel: Cancel,
        mail: threading.Event,
    ) -> None:
        self._task = task
        self._station = station
        self._ledger = ledger
        self._workspace = workspace
        self._prepared = prepared
        self._cancel = cancel
        self._mail = mail

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
        if not self._mail.is_set():
            return None
        self._mail.clear()
        waiting = Inbox(self._station.archive, self.run.id).read(self.run.inbox_seen)
        for message in waiting:
            if message.kind == "cancel":
                return Stopped("cancel")  # consumed with the seal, in one segment: no crash may lose it
            if message.kind != "closed":
                self.commit(Steered(n=message.n, kind=message.kind, by=message.by, text=message.text))
        return None

    def execute(self, call: ToolCall, tool: Tool, arguments: Any) -> Observed | None:
        work = tool.command(arguments, self._context())
        if isinstance(work, Answer):
            return Observed(observation=observe.answered(call, work), plan=work.plan)
        self._ledger.check()
        results: list[Result] = []
        try:
            for command in work:
                results.append(self._workspace.run(self._bounded(command), cancel=self._cancel))
                if results[-1].cancelled:
                    return None
            observation = self._observation(call, work, results)
        finally:
            for result in results:
                result.output.path.unlink(missing_ok=True)
        if not any(command.writes for command in work):
            return Observed(observation=observation)
        try:
            return Observed(observation=observation, **self._snapshot())
        except WorkspaceTooLarge as error:
            self.restore()
            return Observed(observation=observe.with_error(observation, str(error)))

    def restore(self) -> None:
        """Lay the workspace down as the last commit left it."""
        self._workspace.restore(restore_chain(self._station.archive, self._prepared, self.run))

    def _observation(self, call: ToolCall, work: Sequence[Command], results: Sequence[Result]) -> Observation:
        """Masked and stored before it is shown: what the model reads is what the archive holds."""
        output = observe.joined(work, results, results[0].output.path.with_suffix(".joint"))
        try:
            kept_bytes = mask_file(output.path, self._station.redactor)
            blob = self._ledger.journal.put_blob(output.path) if kept_bytes else None
            output = replace(output, kept_bytes=kept_bytes)
            return observe.observed(call, results, output, self._task.limits, blob=blob)
        finally:
            output.path.unlink(missing_ok=True)

    def _snapshot(self) -> dict[str, Any]:
        full = len(self.run.chain) >= FULL_EVERY
        taken = self._workspace.snapshot(full=full)
        stored = None
        if taken.path is not None:
            stored = self._ledger.journal.put_snapshot(taken.path)
            taken.path.unlink(missing_ok=True)
        level = 0 if taken.full else len(self.run.chain) + 1
        reference = SnapshotRef(
            listing=taken.listing, tree=taken.tree, object=stored, level=level if stored else 0, bytes=taken.bytes
        )
        return {"snapshot": reference, "files": tuple(self._station.redactor.text(path) for path in taken.files)}

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
        )

    def _kept_output(self, call_id: str) -> bytes | None:
        for record in reversed(self._ledger.records):
            event = record.event
            if isinstance(event, Observed) and event.observation.call_id == call_id:
                blob = event.observation.blob
                return self._ledger.journal.get_blob(blob) if blob else event.observation.output.encode()
        return None
