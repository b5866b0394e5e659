"""Owns checking runs and batches against their digests. Refuses to repair: it says what is wrong, and where."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from scheduler.enqueue import entry_of
from scheduler.runs import Found, runs_in
from worker.contract.errors import Fault, NotFoundFault, StoreFault
from worker.contract.events import canonical, digest, read_json
from worker.store import keys
from worker.store.archive import Archive
from worker.store.evidence import Tally
from worker.store.journal import Journal
from worker.store.mail import control_problems, mail_problems
from worker.store.members import retries


@dataclass
class Checked:
    """problems: one line each, the first one of a run names the first thing that is wrong with it."""

    runs: list[str]
    problems: list[str] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)


def check(archive: Archive, found: Found, tally: Tally | None = None) -> Checked:
    """Every byte that the run, or any run of the batch, names, and what people said. tally: of what was looked at
    before. Raises StoreFault."""
    tally = tally or Tally()
    if found.kind == "run":
        checked = Checked([found.id], tally=tally)
    else:
        problems = [*_batch_problems(archive, found.id), *control_problems(archive, found.id)]
        try:
            checked = Checked(runs_in(archive, found), problems, tally)
        except (Fault, ValueError, KeyError, TypeError) as error:
            if isinstance(error, StoreFault):
                raise
            checked = Checked([], problems or [f"{keys.batch_targets(found.id)} cannot be read: {error}"], tally)
    for run in checked.runs:
        try:
            checked.problems += Journal(archive, run).verify(checked.tally)
            checked.problems += mail_problems(archive, run)
        except NotFoundFault as fault:
            checked.problems.append(fault.message)
    return checked


def _batch_problems(archive: Archive, batch: str) -> list[str]:
    """Of manifest.yaml, targets.json and retries: each line must be what its run was asked."""
    key = keys.batch_targets(batch)
    try:
        data = archive.get(key)
        targets: dict[str, Any] = read_json(data)
        if canonical(targets) != data or (targets["v"], targets["batch"]) != (1, batch):
            return [f"{key} is not the bytes that were written"]
        problems = []
        if digest(archive.get(keys.batch_manifest(batch))) != targets["manifest"]:
            problems.append(f"{keys.batch_manifest(batch)} does not have the digest that {key} names")
        for entry in targets["targets"]:
            task = Journal(archive, entry["run"]).task()
            if (entry_of(task), task.batch) != (entry, batch):
                problems.append(f"{key} does not say of {entry['run']} what {keys.task(entry['run'])} says")
        for member in (member for made in retries(archive, batch) for member in made.runs):
            task = Journal(archive, member.run).task()
            if (task.batch, task.target, task.ordinal) != (batch, member.target, member.ordinal):
                problems.append(f"batch {batch} announced {member.run} as what {keys.task(member.run)} does not say")
        return problems
    except StoreFault:
        raise
    except Fault as fault:
        return [fault.message]
    except (ValueError, KeyError, TypeError) as error:
        return [f"{key} is not a list of targets: {error!r}"]
