"""Owns retries: new runs of targets whose run has ended, announced in their batch, then written. Refuses to touch the
runs that they repeat, and to reuse anything: whoever asks for a retry wants the work done.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from scheduler import control
from scheduler.enqueue import WRITERS, run_id, submit_run
from scheduler.runs import View, find, view
from scheduler.selection import Selection, failed, in_batches, select
from worker.contract.errors import ConflictFault, Fault, StoreFault, UsageFault
from worker.contract.run import Run
from worker.contract.task import Task
from worker.store import keys
from worker.store.archive import Archive
from worker.store.hints import Hints
from worker.store.inbox import Control, Message
from worker.store.journal import Journal
from worker.store.mail import Mail
from worker.store.members import Member, Retries, announce, announced, members, retries, submitted

LOG = structlog.get_logger()


@dataclass(frozen=True)
class Wish:
    """A run to be repeated. last: number of the newest run of its target when that was wished."""

    task: Task
    last: int


def wishes(archive: Archive, names: Sequence[str], selection: Selection) -> list[Wish]:
    """What shall be repeated, in the order of the manifests.

    A run that is named is meant however it ended. Of a batch, what counts for its target and has ended; where nothing
    is said of how, what failed. Raises UsageFault where no run or batch is named, ConflictFault for a named run whose
    target has one that has not ended, StoreFault.
    """
    if not names and not selection.batches:
        raise UsageFault("which runs?", hint="name runs or batches, or say --batch")
    named = {found.id for found in (find(archive, name) for name in names) if found.kind == "run"}
    only_failed = not (selection.states or selection.classes)
    wished = []
    for one in select(archive, selection, names):
        if one.task.run in named:
            wished.append(Wish(one.task, _last(archive, one)))
        elif one.run.sealed is not None and (not only_failed or failed(one.run)):
            wished.append(Wish(one.task, max(one.task.ordinal, one.task.candidates - 1)))
    return wished


def again(
    archive: Archive, hints: Hints | None, names: Sequence[str], selection: Selection, *, by: str, at: str
) -> dict[str, list[Member]]:
    """Repeat what is meant (see wishes), or what an interrupted retry of these batches began; returns the new runs by
    batch. at: UTC, ISO 8601. Raises as wishes; ConflictFault where no run is meant; HintsFault before anything is
    written."""
    found = [find(archive, one) for one in names]
    meant = [one.id if one.kind == "batch" else Journal(archive, one.id).task().batch for one in found]
    meant += in_batches(archive, selection.batches) if selection.batches else []
    if hints is not None:
        control.admit(hints)
    made = {one: complete(archive, one) for one in dict.fromkeys(meant)}
    if not any(made.values()):
        wished = wishes(archive, names, selection)
        for one in dict.fromkeys(wish.task.batch for wish in wished):
            made[one] = retry(archive, one, [wish for wish in wished if wish.task.batch == one], by=by, at=at)
    if not any(made.values()):
        raise ConflictFault("no run that has ended is selected", hint="see what there is: dawn ls")
    if hints is not None:
        control.announce(hints)
    return made


def _last(archive: Archive, named: View) -> int:
    ordinals = []
    for member in members(archive, named.task.batch):
        if member.target == named.task.target:
            ordinals.append(member.ordinal)
            if view(archive, member.run).run.sealed is None:
                hint = f"wait for it, or: dawn cancel {member.run}"
                raise ConflictFault(f"run {member.run} of {member.target} has not ended", hint=hint)
    return max(ordinals)


def retry(archive: Archive, batch: str, wished: Sequence[Wish], *, by: str, at: str) -> list[Member]:
    """Announce and write one more run for each of these wishes of one batch; returns them. at: UTC, ISO 8601.

    A target that somebody else retried meanwhile is left to them. Raises StoreFault, IntegrityFault.
    """
    told = len(Control(archive, batch).read())
    while True:
        number = len(retries(archive, batch))
        last = {member.target: member.ordinal for member in members(archive, batch)}
        new = {
            wish.task.target: Member(
                target=wish.task.target,
                ordinal=wish.last + 1,
                run=run_id(batch, wish.task.repo, wish.task.target, wish.last + 1),
            )
            for wish in wished
            if last.get(wish.task.target) == wish.last
        }
        if not new:
            return []
        made = announce(archive, batch, list(new.values()), number=number, by=by, at=at, told=told)
        if made is not None:
            _write(archive, batch, number, made)
            return list(made.runs)


def complete(archive: Archive, batch: str) -> list[Member]:
    """Write the runs that were announced and that a crash kept from being written; returns them. Costs one request
    where there are none. Raises StoreFault, IntegrityFault, NotFoundFault."""
    marked = set(archive.list(keys.announced_folder(batch)))
    left = enumerate(retries(archive, batch) if marked else ())
    return [
        member
        for number, made in left
        if keys.announced(batch, number) in marked
        for member in _write(archive, batch, number, made)
    ]


def complete_all(archive: Archive) -> None:
    """The same for every batch; one of which that cannot be done stops no other. Raises StoreFault."""
    for batch in announced(archive):
        try:
            complete(archive, batch)
        except StoreFault:
            raise
        except Fault as fault:
            LOG.error("retries cannot be written", batch=batch, fault=str(fault))


def begin(archive: Archive, task: Task, *, by: str, at: str) -> None:
    """Write what is missing of a run that has a task: as it was announced where it is a retry. by, at: of any other.
    Raises StoreFault, ConflictFault, IntegrityFault."""
    if task.ordinal >= task.candidates:
        for made in retries(archive, task.batch):
            if any(member.run == task.run for member in made.runs):
                _write_one(archive, task, made, Control(archive, task.batch).read())
                return
    submit_run(task, archive, by=by, at=at)


def _write(archive: Archive, batch: str, number: int, made: Retries) -> list[Member]:
    """Returns those that are new. Each is asked what the first run of its target was asked. The marker goes last."""
    first = {member.target: member.run for member in reversed(submitted(archive, batch))}
    control = Control(archive, batch).read()

    def write(member: Member) -> bool:
        task = Journal(archive, first[member.target]).task()
        asked = Task.model_validate(dict(task) | {"run": member.run, "ordinal": member.ordinal})
        return _write_one(archive, asked, made, control)

    with ThreadPoolExecutor(WRITERS) as pool:
        new = [member for member, is_new in zip(made.runs, pool.map(write, made.runs), strict=True) if is_new]
    archive.delete([keys.announced(batch, number)])
    return new


def _write_one(archive: Archive, task: Task, made: Retries, control: Sequence[Message]) -> bool:
    """Whether it is new. What the batch was told before the announcement the run has read from the start, whoever
    writes it and when: a budget and a pause count for it too, a cancel was meant for those that were there."""
    then = Mail(Run(id=task.run), control=control[: made.told]).steered()
    return submit_run(task, archive, by=made.by, at=made.at, then=then)
