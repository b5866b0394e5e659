"""Owns asking what refs of repositories are now: `git ls-remote` in containers, many at once. Refuses to fetch
anything, and to write: what it finds goes to stdout.

`python -m worker.resolve` reads {"repos": [{"url", "ref", "secret"}]} from stdin and answers {"resolved": [...]} in
the same order: {"commit", "branch"}, or {"reason", "message", "hint"} of one that could not be asked. `dawn plan`
starts it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final

from worker import toolbox
from worker.answering import answer_once
from worker.contract.cancel import Cancel
from worker.contract.errors import EnvironmentFault
from worker.contract.settings import Settings
from worker.contract.task import Frozen, Limits, Repo
from worker.main import archive_id, secrets_of
from worker.prepare import repo_secret
from worker.sandbox.protocol import Owner, Sandbox, Workspace
from worker.store.archive import open_archive
from worker.toolbox import ToolboxProblem

LANES: Final = 8
"""Repositories asked at the same time, each in a container."""
ASK_TIMEOUT_S: Final = 60
OWNER: Final = "resolve"
LIMITS: Final = Limits(memory_bytes=256 * 2**20, tmpfs_bytes=64 * 2**20)


class Asked(Frozen):
    """A repository and what of it: a branch, tag or commit, None for its HEAD. secret: NAME of what opens it."""

    url: str
    ref: str | None = None
    secret: str | None = None


class Request(Frozen):
    """What stdin holds."""

    repos: tuple[Asked, ...]


def resolve(
    repos: Iterable[Asked],
    sandbox: Sandbox,
    archive: str,
    secrets: Mapping[str, str],
    timeout_s: float = ASK_TIMEOUT_S,
) -> list[dict[str, str]]:
    """The answers, in order; a repository that cannot be asked is one of them. archive: whose containers they are.

    Raises EngineFault, and EnvironmentFault where the toolbox image is missing.
    """
    _sweep(sandbox, archive)
    asked = list(repos)
    left: SimpleQueue[int] = SimpleQueue()
    for number in range(len(asked)):
        left.put(number)
    answers: dict[int, dict[str, str]] = {}
    cancel, image = Cancel(), sandbox.image_id("toolbox")

    def lane(number: int) -> None:
        owner = Owner(archive, f"{OWNER}-{os.getpid()}", number, "prepare")
        with suppress(Empty), sandbox.workspace(owner, image, LIMITS) as workspace:
            while not cancel.is_set():
                which = left.get_nowait()
                answers[which] = _answer(asked[which], workspace, secrets, cancel, timeout_s)

    with ThreadPoolExecutor(LANES) as pool:
        try:
            list(pool.map(lane, range(min(LANES, len(asked)))))
        except BaseException:
            cancel.set("interrupted")
            raise
    return [answers[number] for number in range(len(asked))]


def _answer(
    asked: Asked, workspace: Workspace, secrets: Mapping[str, str], cancel: Cancel, timeout_s: float
) -> dict[str, str]:
    request = {"op": "resolve", "url": asked.url, "ref": asked.ref}
    try:
        secret = repo_secret(Repo(url=asked.url, secret=asked.secret), secrets)
        found = toolbox.ask(
            workspace, "repository", request, timeout_s=timeout_s, cancel=cancel, network=True, secrets=secret
        )
        return {"commit": found["commit"], "branch": found["branch"]}
    except EnvironmentFault as fault:
        return {"reason": fault.reason, "message": fault.message, "hint": fault.hint}
    except ToolboxProblem as problem:
        if problem.kind == "unfinished":
            return {"reason": "repository", "message": f"gave no answer within {timeout_s:g} s", "hint": ""}
        return {"reason": problem.kind, "message": problem.message, "hint": problem.hint}


def _sweep(sandbox: Sandbox, archive: str) -> None:
    """Remove what one of us left that is no longer there: no janitor knows it."""
    for owner, resource in sandbox.owned(archive):
        name, _, process = owner.run.rpartition("-")
        if name == OWNER and not os.path.exists(f"/proc/{process}"):
            sandbox.remove(resource)


def main() -> int:
    """The process. Exit code 0, or a fault's own."""
    return answer_once(Request, _resolved)


def _resolved(request: Request) -> dict[str, Any]:
    from worker.sandbox.sandbox import DockerSandbox

    settings = Settings()
    sandbox = DockerSandbox(settings)
    try:
        place = archive_id(open_archive(settings.archive_url, settings))
        return {"resolved": [*resolve(request.repos, sandbox, place, secrets_of(os.environ))]}
    finally:
        sandbox.close()


if __name__ == "__main__":
    sys.exit(main())
