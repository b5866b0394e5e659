"""Owns the pages on which a person has a say in one run or one batch. Refuses to do it (changes.py)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from scheduler.approvals import commands
from scheduler.budget import Spending, spending
from scheduler.reports.fingerprints import failed
from scheduler.runs import standing
from scheduler.web import headline
from scheduler.web.journals import runhead
from scheduler.web.journals.runhead import Head
from scheduler.web.page import Asked, Page, Way
from scheduler.web.questions import Question, is_asking, question
from scheduler.web.site import Site
from worker.contract.delivered import patch_of
from worker.contract.errors import NotFoundFault


@dataclass(frozen=True)
class OfRun:
    """question: what it asks a person. unseen: number of the next message to it. can_say: there is a model that reads
    one. cancelled_by, paused_by: who said so, "" for nobody. members: runs of its batch. repeated: another run counts
    for its target."""

    head: Head
    question: Question | None
    ended: bool
    unseen: int
    can_say: bool
    can_fork: bool
    has_patch: bool
    cancelled_by: str
    paused_by: str
    members: int
    repeated: bool


def of_run(site: Site, asked: Asked) -> Page:
    seen = runhead.look(site, asked)
    view = seen.view
    task, run, mail = view.task, view.run, view.mail
    members = site.seen.members(task.batch)
    counts = (
        {one.task.run for one in standing(site.seen.batch(task.batch).found)} if run.sealed is not None else set()
    )
    data = OfRun(
        head=seen.head,
        question=question(site.archive, view) if is_asking(view) else None,
        ended=run.sealed is not None,
        unseen=mail.inbox[-1].n + 1 if mail.inbox else run.inbox_seen,
        can_say=task.model != "none",
        can_fork=run.prepared is not None,
        has_patch=patch_of(run) is not None,
        cancelled_by=mail.cancel.by if mail.cancel is not None else "",
        paused_by=mail.paused_by,
        members=len(members),
        repeated=run.sealed is not None and task.run not in counts,
    )
    typed = commands(task.run, run.asked)[0] if data.question and run.asked else f"dawn show {task.run}"
    return Page("decide_run.html", f"Decide on {seen.head.target}", data, typed, "", "Decide")


@dataclass(frozen=True)
class OfBatch:
    """open: runs that have not ended. failed: targets whose run failed; classes: how many of each class of failure.
    members: runs of the batch. spent: where it has a budget. last: the last word on all of it, and whose."""

    head: headline.Head
    open: int
    failed: int
    classes: dict[str, int]
    members: int
    spent: Spending | None
    to_review: int


def of_batch(site: Site, asked: Asked) -> Page:
    batch = asked.path["batch"]
    members = site.seen.members(batch)
    views = site.seen.batch(batch).found
    if not views:
        raise NotFoundFault(f"no run of batch {batch} can be read", hint=f"look: dawn verify {batch}")
    current = standing(views)
    bad = [view.run for view in current if failed(view.run)]
    classes = Counter(
        run.sealed.failure.cls for run in bad if run.sealed is not None and run.sealed.failure is not None
    )
    data = OfBatch(
        head=headline.head(site, batch),
        open=sum(view.run.sealed is None for view in views),
        failed=len(bad),
        classes=dict(sorted(classes.items())),
        members=len(members),
        spent=spending(site.archive, views[0].task, views),
        to_review=sum(view.after is not None and view.after.review == "pending" for view in current),
    )
    typed = f"dawn retry {batch}" if not data.open else f"dawn pause {batch}"
    return Page("decide_batch.html", f"Decide on {batch}", data, typed, "", "Decide")


WAYS: Final = (Way("/runs/{run}/decide", of_run), Way("/batches/{batch}/decide", of_batch))
