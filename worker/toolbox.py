"""Owns asking one of our in-container programs (sandbox_images/toolbox) and reading its answer. Refuses to know what
they do: a problem they name comes back as it is, anything else is a fault of the engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from worker.contract.cancel import Cancel
from worker.contract.errors import EngineFault
from worker.contract.redact import Redactor
from worker.sandbox.protocol import Command, Workspace

PROBLEM_EXIT_CODE: Final = 3
ANSWER_BYTES: Final = 4 * 2**20
SAID_CHARS: Final = 500


class ToolboxProblem(Exception):
    """What the program found wrong with its input. kind: repository, ref, setup or patch, or unfinished when it ran
    into a limit; hint may be empty."""

    def __init__(self, kind: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.hint = hint


class Cancelled(Exception):
    """The Cancel was thrown, so nothing came of what was asked."""


def ask(
    workspace: Workspace,
    program: str,
    request: Mapping[str, Any],
    *,
    timeout_s: float,
    cancel: Cancel,
    network: bool = False,
    root: bool = True,
    writes: bool = True,
    secrets: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The answer to one request. Raises ToolboxProblem, Cancelled, and EngineFault when there is no answer."""
    command = Command(
        json.dumps(request).encode(),
        kind="toolbox",
        program=program,
        cwd="/",
        network=network,
        root=root,
        writes=writes,
        timeout_s=timeout_s,
        secrets=secrets or {},
    )
    result = workspace.run(command, cancel=cancel)
    try:
        if result.cancelled:
            raise Cancelled(cancel.reason)
        with result.output.path.open("rb") as output:
            output.seek(max(0, result.output.kept_bytes - ANSWER_BYTES))
            said = output.read().rstrip(b"\n")
    finally:
        result.output.path.unlink(missing_ok=True)
    if result.status in ("timeout", "oom") or result.exit_code is None:
        # Our programs only grow with what they are given, so this is its doing and not the engine's.
        raise ToolboxProblem("unfinished", f"{request['op']} did not come to an end: {result.detail}", "")
    if result.exit_code not in (0, PROBLEM_EXIT_CODE):
        # Masked before it is cut: half a secret at the edge would be found by nobody later.
        text = Redactor(secrets or {}).text(said.decode("utf-8", "replace"))[-SAID_CHARS:]
        raise EngineFault(f"{program} {request['op']} ended with {result.status} {result.exit_code}: {text}")
    answer: dict[str, Any] = json.loads(said.rpartition(b"\n")[2])
    if "error" in answer:
        raise ToolboxProblem(**answer["error"])
    return answer
