"""Owns running a task's checks in a workspace, what is kept of each, and what their reports tell. Refuses to judge
them (verdict.py does), and to read a report on the host.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from worker.contract.cancel import Cancel
from worker.contract.events import CheckResult, Digest, Reported
from worker.contract.matrix import Tests
from worker.contract.redact import Redactor
from worker.contract.task import Check, Task
from worker.masking import mask_file
from worker.sandbox.protocol import Result, Workspace
from worker.toolbox import Cancelled, ToolboxProblem, ask
from worker.tools.output import clip_start, lines
from worker.tools.shell import shell

TAIL_LINES: Final = 30
TAIL_BYTES: Final = 4_000
NOT_FOUND: Final = (126, 127)
"""What a shell answers for a program that is not there, or that it cannot execute."""

MARK: Final = "check-began"
"""File in base/: what is older than it was not written by the check (sandbox_images/toolbox/junit.py)."""
REPORT_TIMEOUT_S: Final = 60

PutBlob = Callable[[Path], Digest]


@dataclass(frozen=True)
class Ran:
    """One check that was run. tests: what its report tells, None where it wrote none or none was asked for."""

    result: CheckResult
    tests: Tests | None = None


def run_checks(
    task: Task,
    checks: Iterable[Check],
    workspace: Workspace,
    *,
    put_blob: PutBlob,
    redactor: Redactor,
    cancel: Cancel,
) -> tuple[Ran, ...]:
    """Run the checks one after the other. All that was kept of an output is masked and stored through put_blob.

    Raises Cancelled.
    """
    return tuple(_run(task, check, workspace, put_blob, redactor, cancel) for check in checks)


def _run(
    task: Task, check: Check, workspace: Workspace, put_blob: PutBlob, redactor: Redactor, cancel: Cancel
) -> Ran:
    if check.junit is not None:
        workspace.put(MARK, [b""])
    command = shell(check.command, task.repo.path, task.limits.check_timeout_s)
    command = replace(command, proven=True, network=task.environment.networked)
    result = workspace.run(command, cancel=cancel)
    output = result.output.path
    try:
        if result.cancelled:
            raise Cancelled(cancel.reason)
        size = mask_file(output, redactor)
        with output.open("rb") as stream:
            tail = clip_start("\n".join(deque(lines(stream), maxlen=TAIL_LINES)), TAIL_BYTES)
        made = CheckResult(
            name=check.name,
            status=_status(result),
            exit_code=result.exit_code,
            duration_ms=result.duration_ms,
            blob=put_blob(output) if size else None,
            tail="\n".join(part for part in (tail, redactor.text(result.detail)) if part),
        )
    finally:
        output.unlink(missing_ok=True)
    if check.junit is None:
        return Ran(made)
    reported, tests = _report(task, check.junit, workspace, redactor, cancel)
    return Ran(made.model_copy(update={"reported": reported}), tests)


def _report(
    task: Task, glob: str, workspace: Workspace, redactor: Redactor, cancel: Cancel
) -> tuple[Reported | None, Tests | None]:
    """What the check has just written, (None, None) for nothing."""
    request = {"op": "read", "folder": task.repo.path, "glob": glob}
    try:
        answer = ask(workspace, "junit", request, timeout_s=REPORT_TIMEOUT_S, cancel=cancel, root=False, writes=False)
    except ToolboxProblem as problem:
        return Reported(notes=(redactor.text(problem.message),)), {}
    if not answer["files"]:
        return None, None
    tests = {redactor.text(name): colour for name, colour in answer["tests"].items()}
    ends = list(tests.values())
    reported = Reported(
        passed=ends.count("passed"),
        failed=ends.count("failed"),
        skipped=ends.count("skipped"),
        notes=tuple(redactor.text(note) for note in answer["notes"]),
    )
    return reported, tests


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
