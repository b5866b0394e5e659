"""Owns what came of a delivery: its records, a person's reviews, and the folds over both. Refuses to push, and to ask
a forge."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, Literal

from worker.contract.delivery import BRANCH_WORDS, Deliver, Kind, filled
from worker.contract.events import canonical, digest
from worker.contract.results import Digest
from worker.contract.run import Run
from worker.contract.task import Frozen, Task

PATCH: Final = "patch.diff"
"""The artifact that is delivered and reviewed."""
KEY_DIGITS: Final = 12
SLUG_CHARS: Final = 40
TASK_CHARS: Final = 120

State = Literal["none", "branch", "draft", "pr", "merged", "closed", "error"]
ReviewState = Literal["pending", "approved", "rejected", "stale"]
Readiness = Literal["ready", "review", "never"]


class Review(Frozen):
    """n: its number, from 0. A person's word on a patch, by the patch's digest; the last one counts."""

    v: Literal[1] = 1
    n: int
    decision: Literal["approved", "rejected"]
    patch: Digest
    by: str
    at: str
    comment: str = ""


class Delivery(Frozen):
    """n: its number, from 0. One act of a delivery, before it (`intent`) or after it (`done`).

    asked: a person wants it now, whatever `when` says, or once more. push: the branch goes from `before` ("" where
    there is none) to `commit`. open: a pull request is made of it. update: its words are made those of a new patch.
    saw: what the forge said, and nothing was done. failed: it ends here, until somebody asks.
    """

    v: Literal[1] = 1
    n: int
    act: Literal["asked", "push", "open", "update", "saw", "failed"]
    step: Literal["intent", "done"] = "done"
    by: str
    at: str
    patch: Digest
    branch: str = ""
    before: str = ""
    commit: str = ""
    state: State = "none"
    url: str = ""
    number: int = 0
    detail: str = ""


class Delivered(Frozen):
    """The fold over a run's deliveries. tips: commits that the branch had by us, or was to have. asked: somebody
    wants it, and nothing came of it yet. acted_at: of the last act that was done. seen: how many records there are.
    """

    state: State = "none"
    branch: str = ""
    commit: str = ""
    url: str = ""
    number: int = 0
    detail: str = ""
    tips: tuple[str, ...] = ()
    asked: bool = False
    acted_at: str = ""
    seen: int = 0

    def after(self, record: Delivery) -> Delivered:
        """The fold after one more record."""
        changes: dict[str, object] = {"seen": record.n + 1}
        if record.act == "push" and record.commit not in self.tips:
            changes["tips"] = (*self.tips, record.commit)
        if record.act == "asked":
            changes |= {"asked": True}
        elif record.step == "done":
            named = {name: getattr(record, name) for name in ("branch", "commit", "url", "number")}
            changes |= {name: value for name, value in named.items() if value}
            changes |= {"detail": record.detail, "acted_at": record.at}
            # A push is no end where a pull request is wanted, and changes none that is open.
            if record.act != "push" or self.state not in ("draft", "pr"):
                changes["state"] = record.state
            if record.act != "push":
                changes["asked"] = False
        return self.model_copy(update=changes)

    def ends(self, kind: Kind) -> bool:
        """Whether nothing is left to do for a delivery of that kind, unless somebody asks."""
        reached = self.state in ("draft", "pr", "merged", "closed", "error")
        return not self.asked and (reached or (self.state == "branch" and kind == "branch"))


def delivered(records: Iterable[Delivery]) -> Delivered:
    """What came of a delivery so far."""
    fold = Delivered()
    for record in records:
        fold = fold.after(record)
    return fold


def patch_of(run: Run) -> Digest | None:
    """The digest of the patch that a sealed run left."""
    return None if run.sealed is None else run.sealed.artifacts.get(PATCH)


def review_state(run: Run, reviews: Iterable[Review]) -> ReviewState:
    """What people say of the run's patch: `stale` when their last word was on another one."""
    last = max(reviews, key=lambda review: review.n, default=None)
    if last is None:
        return "pending"
    return last.decision if last.patch == patch_of(run) else "stale"


def readiness(task: Task, run: Run, review: ReviewState, *, asked: bool = False) -> Readiness:
    """Whether a sealed run may be delivered now, waits for a person's review, or never will be unless somebody asks.

    asked: somebody did; then only a patch that is rejected, or none at all, stands against it."""
    sealed, deliver = run.sealed, task.deliver
    if sealed is None or deliver is None or deliver.kind == "patch" or patch_of(run) is None or review == "rejected":
        return "never"
    if asked or review == "approved":
        return "ready"
    if sealed.outcome != "changed" or task.fork is not None:  # a fork is somebody's try, who may ask
        return "never"
    if deliver.when == "approved":
        return "review"
    return "ready" if deliver.when == "changed" or sealed.verdict == "verified" else "never"


def review_until(run: Run, expiry_s: float) -> datetime:
    """Until when a review of a sealed run is waited for."""
    return datetime.fromisoformat(run.updated_at) + timedelta(seconds=expiry_s)


def wants_delivery(task: Task) -> bool:
    """Whether a sealed run of the task may have to be delivered, so that its marker stays."""
    return task.deliver is not None and task.deliver.kind != "patch"


def branch_of(task: Task) -> str:
    """The branch of the task's target."""
    words = words_of(task)
    return filled((task.deliver or Deliver()).branch, {name: words[name] for name in BRANCH_WORDS})


def words_of(task: Task) -> dict[str, str]:
    """What a task says to templates: run, batch, target (as a slug), key and task, its first line."""
    slug = re.sub(r"[^a-z0-9]+", "-", task.target.lower()).strip("-")[:SLUG_CHARS].strip("-")
    asked = (task.prompt or "; ".join(task.commands)).strip().partition("\n")[0]
    return {
        "run": task.run,
        "batch": task.batch,
        "target": slug or "target",
        "key": digest(canonical([task.batch, task.target]))[:KEY_DIGITS],
        "task": " ".join(asked.split())[:TASK_CHARS],
    }


def delivery_of(run: str) -> str:
    """The name of a delivery's lease, doorbell and hint: its run has others of its own."""
    return f"deliver:{run}"


def token_of(task: Task) -> str:
    """NAME of the secret that a task is delivered with, "" for none."""
    return (task.deliver.token if task.deliver else None) or task.repo.secret or ""


def accounts(task: Task) -> tuple[str, str, str]:
    """What may be told to wait: all that is delivered with the token, into the repository, or this run alone."""
    repo = digest((task.repo.url or "").encode())[:KEY_DIGITS]
    return f"forge:{token_of(task)}", f"repository:{repo}", delivery_of(task.run)
