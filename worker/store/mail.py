"""Owns Mail, all that lies in an archive for a run and that the run has not read: its inbox, its batch's control, the
decision on its question. Refuses to act on it: the attempt does, or the scheduler for a run without one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from worker.contract.errors import IntegrityFault
from worker.contract.events import Steered
from worker.contract.run import Run
from worker.contract.task import Task
from worker.store import keys
from worker.store.archive import Archive
from worker.store.decisions import Decision, read_decision
from worker.store.deliveries import read_deliveries, read_reviews
from worker.store.inbox import Control, Inbox, Message


@dataclass(frozen=True)
class Mail:
    """For one run, as of one moment. inbox, control: unread messages, oldest first."""

    run: Run
    inbox: Sequence[Message] = ()
    control: Sequence[Message] = ()
    decision: Decision | None = None

    @property
    def cancel(self) -> Message | None:
        """The first wish to end the run."""
        return next((message for message in (*self.inbox, *self.control) if message.kind == "cancel"), None)

    @property
    def words(self) -> bool:
        """Whether there is something for the model to read."""
        return any(message.kind == "message" for message in self.inbox)

    @property
    def paused_by(self) -> str:
        """Who paused the run or its batch, when all of this is read; "" when it may work."""
        run = self._read()
        return run.paused_by or run.batch_paused_by

    @property
    def blocks(self) -> Literal["", "person", "paused", "budget"]:
        """Why no attempt may begin now: a person paused the run, one must answer first, or its batch's budget is used
        up and nobody has changed it. A run whose attempt died is never blocked: the next one records why it stops."""
        if self.run.status == "running":
            return ""
        if self.paused_by:
            return "paused"
        waiting = self.run.waiting
        if waiting is not None and waiting.waiting == "budget" and waiting.until is None:
            return "" if any(message.kind == "budget" for message in self.control) else "budget"
        return "person" if self.run.asked is not None and self.decision is None else ""

    def budget_microusd(self, task: Task) -> int | None:
        """What the batch may spend when all of this is read; None for no bound."""
        return self._read().budget_microusd(task)

    def steered(self) -> list[Steered]:
        """The events that record it as read, in the order of each folder."""
        return [
            Steered(scope=scope, n=one.n, kind=one.kind, by=one.by, sent_at=one.at, text=one.text)
            for scope, messages in (("batch", self.control), ("run", self.inbox))
            for one in messages
        ]

    def _read(self) -> Run:
        run = self.run
        for event in self.steered():
            run = run.steered(event)
        return run


def read_mail(
    archive: Archive, run: Run, batch: str, control: Callable[[str], Sequence[Message]] | None = None
) -> Mail:
    """Three requests at most. control: gives all messages to a batch, for who looks at many of its runs. Raises
    StoreFault, IntegrityFault."""
    told = Control(archive, batch).read(run.control_seen) if control is None else control(batch)
    return Mail(
        run,
        Inbox(archive, run.id).read(run.inbox_seen),
        [message for message in told if message.n >= run.control_seen],
        None if run.asked is None else read_decision(archive, run.id, run.asked.call_id),
    )


def last_mail(archive: Archive, run: Run, batch: str, *, by: str, at: str) -> Mail:
    """Take no more messages, and return all that came before: the sealer consumes it. Raises as read_mail does."""
    Inbox(archive, run.id).end(run.inbox_seen, by=by, at=at)
    mail = read_mail(archive, run, batch)
    return replace(mail, inbox=mail.inbox[:-1])


def mail_problems(archive: Archive, run: str) -> list[str]:
    """One line for each message to the run, answer to it, delivery and review of it that is not what was written.
    Raises StoreFault."""
    calls = (key.rpartition("/")[2].removesuffix(".json") for key in archive.list(keys.decisions_folder(run)))
    reads: list[Callable[[], object]] = [
        Inbox(archive, run).read,
        partial(read_deliveries, archive, run),
        partial(read_reviews, archive, run),
        *(partial(read_decision, archive, run, call) for call in calls),
    ]
    return _problems(reads)


def control_problems(archive: Archive, batch: str) -> list[str]:
    """The same of the messages to a batch."""
    return _problems([Control(archive, batch).read])


def _problems(reads: Sequence[Callable[[], object]]) -> list[str]:
    found = []
    for read in reads:
        try:
            read()
        except IntegrityFault as fault:
            found.append(fault.message)
    return found
