"""Owns the secrets that setup and own tools are handed: their values, and that setup leaves none of them. Refuses to
look for them itself: that is done in a container.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping

from worker.contract.cancel import Cancel
from worker.contract.errors import EnvironmentFault
from worker.contract.redact import Redactor, traces
from worker.contract.task import Limits
from worker.sandbox.protocol import Workspace
from worker.toolbox import ToolboxProblem, ask

ROOT = "root"
"""File of base/ that sandbox_images/toolbox/leaks.py reads and removes."""


def values(names: Iterable[str], whose: str, secrets: Mapping[str, str]) -> dict[str, str]:
    """NAME -> value of those that `whose` is handed. secrets: the worker's. Raises EnvironmentFault("setup") where
    one has no value."""
    found = {name: secrets.get(name, "") for name in names}
    for name, value in found.items():
        if not value.strip():
            raise EnvironmentFault(
                "setup",
                f"the secret {name} of {whose} has no value here",
                hint=f"set DAWN_SECRET_{name} in the worker's environment",
            )
    return found


def prove_gone(
    handed: Mapping[str, str],
    root: Iterable[bytes],
    workspace: Workspace,
    limits: Limits,
    *,
    redactor: Redactor,
    cancel: Cancel,
) -> None:
    """That no value stands in the file system `root` (a tar), the work tree or HOME: as it is, escaped, or in Base64.

    Raises EnvironmentFault("setup") that names the files, and for a file system above workspace_bytes; Cancelled."""
    sought = {name: [b64encode(one).decode() for one in sorted(traces(value))] for name, value in handed.items()}
    workspace.put(ROOT, _capped(root, limits.workspace_bytes))
    request = {"op": "look", "sought": sought}
    try:
        ask(workspace, "leaks", request, timeout_s=limits.setup_timeout_s, cancel=cancel)
    except ToolboxProblem as problem:
        raise EnvironmentFault("setup", redactor.text(problem.message), hint=problem.hint) from None


def _capped(chunks: Iterable[bytes], most_bytes: int) -> Iterator[bytes]:
    left = most_bytes
    for chunk in chunks:
        left -= len(chunk)
        if left < 0:
            raise EnvironmentFault(
                "setup",
                f"the image is larger than workspace_bytes, {most_bytes:,}, and cannot be searched for secrets",
                hint="raise limits.workspace_bytes, or take a smaller image",
            )
        yield chunk
