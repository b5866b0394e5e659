"""Owns running a task's checks in a workspace, and what is kept of each. Refuses to judge them (verdict.py does)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from worker.contract.cancel import Cancel
from worker.contract.events import CheckResult, Digest
from worker.contract.redact import Redactor
from worker.contract.task import Check, Task
from worker.masking import mask_file
from worker.sandbox.protocol import Result, Workspace
from worker.toolbox import Cancelled
from worker.tools.output import clip_start, lines
from worker.tools.shell import shell

TAIL_LINES: Final = 30
TAIL_BYTES: Final = 4_000
NOT_FOUND: Final = (126, 127)
"""What a shell answers for a program that is not there, or that it cannot execute."""

PutBlob = Callable[[Path], Digest]


def run_checks(
    task: Task,
    checks: Iterable[Check],
    workspace: Workspace,
    *,
    put_blob: PutBlob,
    redactor: Redactor,
    cancel: Cancel,
) -> tuple[CheckResult, ...]:
    """Run the checks one after the other. All that was kept of an output is masked and stored through put_blob.

    Raises Cancelled.
    """
    return tuple(_run(task, check, workspace, put_blob, redactor, cancel) for check in checks)


def _run(
    task: Task, check: Check, workspace: Workspace, put_blob: PutBlob, redactor: Redactor, cancel: Cancel
) -> CheckResult:
    command = replace(shell(check.command, task.repo.path, task.limits.check_timeout_s), proven=True)
    result = workspace.run(command, cancel=cancel)
    output = result.output.path
    try:
        if result.cancelled:
            raise Cancelled(cancel.reason)
        size = mask_file(output, redactor)
        with output.open("rb") as stream:
            tail = clip_start("\n".join(deque(lines(stream), maxlen=TAIL_LINES)), TAIL_BYTES)
        return CheckResult(
            name=check.name,
            status=_status(result),
            exit_code=result.exit_code,
            duration_ms=result.duration_ms,
            blob=put_blob(output) if size else None,
            tail="\n".join(part for part in (tail, redactor.text(result.detail)) if part),
        )
    finally:
        output.unlink(missing_ok=True)


def _status(result: Result) -> Literal["green", "red", "timeout", "oom", "not_found"]:
    match result.status, result.exit_code:
        case "ok", 0:
            return "green"
        case "timeout", _:
            return "timeout"
        case "oom", _:
            return "oom"
        case _, code if code in NOT_FOUND:
            return "not_found"
        case _:
            return "red"
