"""Owns turning a manifest and its located targets into a batch of tasks, and writing them. Refuses to ring.

Ids are digests of what was asked: the same submit again completes what is missing and changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Literal

from scheduler.manifests.reading import Loaded
from scheduler.work import earlier, reused, work_key
from worker.contract.errors import ConflictFault
from worker.contract.events import Event, canonical, digest
from worker.contract.surroundings import Environment
from worker.contract.task import Repo, Task, version_of
from worker.store import keys
from worker.store.archive import Archive
from worker.store.inbox import Inbox
from worker.store.journal import Journal

ID_DIGITS: Final = 12
"""48 bits: a billion runs in one archive collide with a chance of one in 560; a collision is refused, not mixed."""
PREFIX_CHARS: Final = 24
WRITERS: Final = 8
TARGETS_VERSION: Final = 1


@dataclass(frozen=True)
class Batch:
    """What is written at submit. tasks: in the manifest's order, the candidates of a target together. reuse: a run
    whose work was done and verified before ends at once, and names the run that did it."""

    id: str
    manifest: bytes
    targets: bytes
    tasks: tuple[Task, ...]
    reuse: bool = False


def freeze(
    loaded: Loaded, repos: Sequence[Repo], *, key: str = "", lane: Literal["interactive", "batch"] = "batch"
) -> Batch:
    """The batch of a manifest all of whose targets are resolved, and lie in `repos`, in order. Pure.

    key: what makes a batch differ from an equal one before. Raises pydantic's ValidationError only when manifest and
    contract disagree, which is a bug of ours.
    """
    manifest = loaded.manifest
    frozen = [
        {
            "repo": repo.model_dump(mode="json"),
            "image": one.target.image or loaded.environment.image,
            **one.target.model_dump(include={"id", "vars"}),
        }
        for one, repo in zip(loaded.targets, repos, strict=True)
    ]
    asked = {**manifest.model_dump(mode="json", exclude={"targets"}), "script": loaded.script, "key": key}
    if loaded.environment.dockerfile is not None:
        asked["dockerfile"] = loaded.environment.dockerfile
    name = f"{manifest.name}-{digest(canonical([asked, frozen]))[:ID_DIGITS]}"
    asked_of_all = {
        "model": manifest.task.model,
        "script": loaded.script,
        "checks": manifest.checks,
        "limits": manifest.limits,
        "policy": manifest.policy,
        "on_ask": manifest.on_ask,
        "tools": manifest.tools,
        "fallbacks": manifest.task.fallbacks,
        "without_tools": manifest.task.without_tools,
        "budget": manifest.budget,
        "labels": manifest.labels,
        "notify": manifest.notify,
        "deliver": manifest.deliver,
        "window": manifest.window,
        "start_at": manifest.start_at,
        "candidates": manifest.count,
        "waves": manifest.waves,
        "breaker": manifest.breaker,
        "weight": manifest.weight,
        "parallel": manifest.parallel,
        "max_per_repo": manifest.max_per_repo,
        "guards": manifest.guards,
        "baseline": manifest.baseline,
    }
    tasks = [
        Task(
            v=version_of(asked_of_all | {"repo": repo, "vars": one.target.vars, "environment": environment}),
            run=run_id(name, repo, one.id, ordinal),
            batch=name,
            target=one.id,
            ordinal=ordinal,
            lane=lane,
            repo=repo,
            environment=environment,
            prompt=one.prompt,
            commands=one.commands,
            vars=one.target.vars,
            prefix_of=run_id(name, repo, one.id, 0) if ordinal and manifest.prefix else None,
            **asked_of_all,
        )
        for one, repo in zip(loaded.targets, repos, strict=True)
        for environment in (_environment(loaded.environment, one.target.image),)
        for ordinal in range(manifest.count)
    ]
    text = loaded.text.encode()
    return Batch(name, text, targets_json(name, tasks, text), tuple(tasks))


def _environment(asked: Environment, image: str | None) -> Environment:
    """That of a target, which may name an image of its own."""
    return asked if image is None else asked.model_copy(update={"image": image, "dockerfile": None})


Hear = Callable[[str], None]
"""Is told of each run that ends as reused."""


def submit(batch: Batch, archive: Archive, *, by: str, at: str, hear: Hear = lambda _: None) -> int:
    """Write the batch and its runs, or what of them is missing; returns how many runs are new.

    by: who submits; at: UTC, ISO 8601. hear: called from several threads. Raises StoreFault, ConflictFault when an id
    is taken by something else.
    """
    archive.create(keys.batch_manifest(batch.id), batch.manifest)
    if not archive.create(keys.batch_targets(batch.id), batch.targets) and not _same_targets(
        archive.get(keys.batch_targets(batch.id)), batch.targets
    ):
        raise ConflictFault(f"batch {batch.id} exists already with other targets", hint="give it another name")
    if batch.tasks[0].lane == "batch":
        archive.create(keys.report_due(batch.id), b"")

    def write(task: Task) -> bool:
        waits = task.prefix_of is not None
        return submit_run(task, archive, by=by, at=at, reuse=batch.reuse, hear=hear, waits=waits)

    with ThreadPoolExecutor(WRITERS) as pool:
        new = sum(pool.map(write, (task for task in batch.tasks if task.prefix_of is None)))
        return new + sum(pool.map(write, (task for task in batch.tasks if task.prefix_of is not None)))


def _same_targets(one: bytes, other: bytes) -> bool:
    """The digest of the manifest's text aside: whoever adds a comment asks for the same."""
    return one == other or {**json.loads(one), "manifest": ""} == {**json.loads(other), "manifest": ""}


def submit_run(
    task: Task,
    archive: Archive,
    *,
    by: str,
    at: str,
    reuse: bool = False,
    hear: Hear = lambda _: None,
    then: Sequence[Event] = (),
    opening: Sequence[Event] = (),
    waits: bool = False,
) -> bool:
    """Write one run, or what of it is missing, and its mark under its work; whether it is new. reuse: see Batch.
    then: what it has read already. opening, waits: of a candidate that goes on from another (followers.py), see
    Journal.submit. Raises StoreFault, ConflictFault."""
    work, journal = work_key(task), Journal(archive, task.run)
    if work is None:
        return journal.submit(task, by, at, then, opening=opening, waits=waits)
    fresh = archive.size(keys.segment(task.run, 0)) is None
    if reuse and fresh and (done := earlier(archive, task)) is not None:
        hear(task.run)
        Inbox(archive, task.run).close(0, by=by, at=at)
        return journal.submit(task, by, at, [reused(done)])
    new = journal.submit(task, by, at, then, opening=opening, waits=waits)
    archive.create(keys.work_marker(work, task.run), b"")
    return new


def run_id(batch: str, repo: Repo, target: str, ordinal: int) -> str:
    """A function of what was asked, so that a repeated submit names the same run."""
    return f"{_slug(repo.label)}-{digest(canonical([batch, target, ordinal]))[:ID_DIGITS]}"


def named(task: Task, batch: str) -> Task:
    """The same asked in another batch."""
    of = {ordinal: run_id(batch, task.repo, task.target, ordinal) for ordinal in (0, task.ordinal)}
    prefix = None if task.prefix_of is None else of[0]
    return task.model_copy(update={"batch": batch, "run": of[task.ordinal], "prefix_of": prefix})


def entry_of(task: Task) -> dict[str, Any]:
    """A run's line in targets.json."""
    return {
        "target": task.target,
        "run": task.run,
        "repo": task.repo.model_dump(mode="json"),
        "image": task.environment.image,
        **({"ordinal": task.ordinal} if task.ordinal else {}),
    }


def targets_json(batch: str, tasks: Sequence[Task], manifest: bytes) -> bytes:
    """What a batch consists of, with the digest of the manifest beside it."""
    targets = [entry_of(task) for task in tasks]
    return canonical({"v": TARGETS_VERSION, "batch": batch, "manifest": digest(manifest), "targets": targets})


def _slug(label: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:PREFIX_CHARS].strip("-")
    return slug or "run"
