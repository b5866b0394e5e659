"""Owns the branch of a delivery on its remote, built and pushed in containers with network. Refuses to judge what is
on it: it says whose tip it found, and a push names the tip that it was told of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from worker import toolbox
from worker.contract import commit
from worker.contract.cancel import Cancel
from worker.contract.delivered import PATCH, branch_of, patch_of
from worker.contract.delivery import Deliver
from worker.contract.errors import ForgeFault
from worker.contract.run import Run
from worker.contract.task import Task
from worker.environments import find
from worker.forges.open import push_url
from worker.sandbox.protocol import Owner, Workspace
from worker.station import Station
from worker.store.journal import Journal
from worker.toolbox import ToolboxProblem

SECRET: Final = "DAWN_REPO_SECRET"
"""How the token reaches git in the container (sandbox_images/toolbox/remotes.py)."""
BUILD_TIMEOUT_S: Final = 600
PUSH_TIMEOUT_S: Final = 300


class Refused(Exception):
    """Nobody but a person can change it."""


@dataclass(frozen=True)
class Built:
    """commit: that the patch became, the same whoever makes it. base: the branch that it shall go into; there: all
    that it changes is on that already. tip: of the delivery's branch, "" where there is none; tip_run: whose it says
    that it is; tip_by: its author; holds: it has our commit."""

    commit: str
    base: str
    there: bool
    tip: str
    tip_run: str
    tip_by: str
    holds: bool


class Branch:
    """Of one run, on one volume. may_act: called before each act, raises where none may begin. Methods raise Refused,
    Cancelled, and ForgeFault for what may go better another time."""

    def __init__(
        self, workspace: Workspace, task: Task, url: str, token: str, cancel: Cancel, may_act: Callable[[], None]
    ) -> None:
        self._workspace, self._task, self._token = workspace, task, token
        self._url = push_url(url, token)
        self._cancel, self._may_act = cancel, may_act
        self.name = branch_of(task)

    def build(self, station: Station, run: Run) -> Built:
        """Fetch, and make the commit."""
        prepared, patch = run.prepared, patch_of(run)
        assert prepared is not None, "a patch has a base"
        assert patch is not None, "there is something to deliver"
        environment = find(station.archive, prepared.environment_key)
        self._workspace.put(PATCH, [Journal(station.archive, run.id).get_blob(patch)])
        request = {
            "op": "build",
            "commit": prepared.commit,
            "branch": self.name,
            "base": (self._task.deliver or Deliver()).base or "",
            "started": environment[0].branch if environment else "",
            "message": commit.message(self._task, run),
            "name": commit.AUTHOR,
            "email": commit.EMAIL,
            "at": run.updated_at,
        }
        return Built(**self._ask(request, BUILD_TIMEOUT_S))

    def push(self, before: str, made: str) -> None:
        """Let the branch go from that commit ("": none) to the one that was built, and from nothing else."""
        request = {"op": "push", "branch": self.name, "before": before, "commit": made}
        self._ask(request, PUSH_TIMEOUT_S)

    def _ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self._may_act()
        try:
            return toolbox.ask(
                self._workspace,
                "deliver",
                {**request, "url": self._url},
                timeout_s=timeout_s,
                cancel=self._cancel,
                network=True,
                secrets={SECRET: self._token},
            )
        except ToolboxProblem as problem:
            if problem.kind == "refused":
                raise Refused(problem.message) from problem
            raise ForgeFault("connection", problem.message, retryable=True) from problem


@contextmanager
def volume(station: Station, task: Task, run: Run) -> Iterator[Workspace]:
    """A fresh workspace for the delivery of a sealed run; what a crash left of another on this engine goes first."""
    # A claim that nobody made, so no janitor takes it for an attempt that ended.
    owner = Owner(station.archive_id, run.id, run.last_seq + 1, "verdict")
    for left, resource in station.sandbox.owned(owner.archive):
        if left == owner:
            station.sandbox.remove(resource)
    with station.sandbox.workspace(owner, "toolbox", task.limits) as workspace:
        yield workspace
