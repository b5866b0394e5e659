"""Owns the verdict: checks in a clean room, base plus patch, against the baseline of the untouched base. Refuses to
read what the agent said.

The rerun rule: a check that ends in another colour than its baseline is run once more in a clean room of its own.
When the two runs differ the check is unstable (flaky). Without a patch another colour than the baseline's is
unstable by itself, because nothing differs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from worker.checks import PutBlob, run_checks
from worker.contract.cancel import Cancel
from worker.contract.errors import EngineFault, IntegrityFault
from worker.contract.events import CheckResult, Digest, Verdict, VerdictName
from worker.contract.redact import Redactor
from worker.contract.run import Run
from worker.contract.task import Task
from worker.environments import Prepared, restore_chain
from worker.publish import Patch, make_patch
from worker.sandbox.protocol import Owner, Sandbox, Workspace
from worker.store.archive import Archive
from worker.toolbox import ToolboxProblem, ask

APPLY_TIMEOUT_S: Final = 300
WORST_FIRST: Final[tuple[VerdictName, ...]] = ("broke", "flaky", "still_failing", "verified")


def measure(
    task: Task,
    prepared: Prepared,
    patch: Patch,
    *,
    archive: Archive,
    sandbox: Sandbox,
    owner: Owner,
    put_blob: PutBlob,
    redactor: Redactor,
    cancel: Cancel,
) -> Verdict:
    """Run the task's checks on base plus patch, in a fresh workspace that shares nothing with the agent's.

    The answer's checks are one result each, then the second results of those that were run again. Its patch also
    carries the environment's notes, so that a submodule nobody could fetch is said where the result is read.
    owner: of the attempt; its role is replaced. put_blob: stores the masked outputs with the run. Raises Cancelled,
    EngineFault, and IntegrityFault when the patch does not apply to its own base.
    """
    began = time.monotonic()
    room = _Room(task, prepared, patch, archive, sandbox, replace(owner, role="verdict"), put_blob, redactor, cancel)
    before = prepared.baseline.checks if prepared.baseline else ()
    after = room.run([check.name for check in task.checks])
    again = () if patch.empty else room.run(differing(before, after))
    return Verdict(
        verdict=classify(before, after, again, patch_empty=patch.empty),
        checks=(*after, *again),
        baseline=before,
        patch=patch.stat.model_copy(update={"notes": (*prepared.environment.notes, *patch.stat.notes)}),
        duration_ms=round((time.monotonic() - began) * 1000),
    )


def of_workspace(
    task: Task,
    run: Run,
    workspace: Workspace,
    prepared: Prepared,
    *,
    archive: Archive,
    sandbox: Sandbox,
    owner: Owner,
    put_blob: Callable[[bytes | Path], Digest],
    redactor: Redactor,
    cancel: Cancel,
) -> tuple[Patch, Verdict]:
    """The patch of the agent's workspace as it lies, and what the clean room says of it. Of a run that failed and
    changed nothing, nothing is measured. Raises what make_patch and measure raise."""
    patch = make_patch(workspace, task, put_blob=put_blob, redactor=redactor, cancel=cancel)
    if run.finished is not None and run.finished.failure is not None and patch.empty:
        return patch, Verdict(verdict=None, patch=patch.stat)
    measured = measure(
        task,
        prepared,
        patch,
        archive=archive,
        sandbox=sandbox,
        owner=owner,
        put_blob=put_blob,
        redactor=redactor,
        cancel=cancel,
    )
    return patch, measured


def classify(
    before: Sequence[CheckResult], after: Sequence[CheckResult], again: Sequence[CheckResult], *, patch_empty: bool
) -> VerdictName:
    """The verdict of all checks together: the worst of broke, flaky, still_failing, verified.

    before: the baseline, empty when there is none. again: second results of checks whose colour changed.
    """
    if not after:
        return "unverified"
    baseline, second = _by_name(before), _by_name(again)
    verdicts = {_one(baseline.get(one.name), one, second.get(one.name), patch_empty) for one in after}
    return next(verdict for verdict in WORST_FIRST if verdict in verdicts)


def differing(before: Sequence[CheckResult], after: Sequence[CheckResult]) -> list[str]:
    """Names of the checks that ended in another colour than their baseline."""
    baseline = _by_name(before)
    return [one.name for one in after if one.name in baseline and _green(baseline[one.name]) != _green(one)]


def _one(before: CheckResult | None, after: CheckResult, again: CheckResult | None, patch_empty: bool) -> VerdictName:
    if again is not None and _green(again) != _green(after):
        return "flaky"
    if patch_empty and before is not None and _green(before) != _green(after):
        return "flaky"
    if _green(after):
        return "verified"
    return "broke" if before is not None and _green(before) else "still_failing"


def _green(result: CheckResult) -> bool:
    return result.status == "green"


def _by_name(results: Sequence[CheckResult]) -> Mapping[str, CheckResult]:
    return {result.name: result for result in results}


@dataclass(frozen=True)
class _Room:
    """Makes clean rooms: each run of checks gets a new one."""

    task: Task
    prepared: Prepared
    patch: Patch
    archive: Archive
    sandbox: Sandbox
    owner: Owner
    put_blob: PutBlob
    redactor: Redactor
    cancel: Cancel

    def run(self, names: Sequence[str]) -> tuple[CheckResult, ...]:
        checks = [check for check in self.task.checks if check.name in names]
        if not checks:
            return ()
        with self._workspace() as workspace:
            return run_checks(
                self.task, checks, workspace, put_blob=self.put_blob, redactor=self.redactor, cancel=self.cancel
            )

    @contextmanager
    def _workspace(self) -> Iterator[Workspace]:
        with self.sandbox.workspace(self.owner, self.prepared.image, self.task.limits) as workspace:
            workspace.restore(restore_chain(self.archive, self.prepared))
            if not self.patch.empty:
                apply(workspace, self.patch, cancel=self.cancel)
            yield workspace


def apply(workspace: Workspace, patch: Patch, *, cancel: Cancel) -> None:
    """Lay the patch down on a workspace that holds the untouched base. Raises IntegrityFault when it does not fit,
    EngineFault when it ran into a limit."""
    for name, data in patch.files.items():
        workspace.put(name, [data])
    try:
        ask(workspace, "patch", {"op": "apply"}, timeout_s=APPLY_TIMEOUT_S, cancel=cancel, root=False)
    except ToolboxProblem as problem:
        fault = EngineFault if problem.kind == "unfinished" else IntegrityFault
        raise fault(problem.message) from None
