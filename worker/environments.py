"""Owns prepared environments as they lie in the archive: finding, proving and restoring one. Refuses to make one
(prepare.py does)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from worker.contract.environment import Baseline, BuiltImage, PreparedEnvironment
from worker.contract.errors import EnvironmentFault, IntegrityFault, NotFoundFault
from worker.contract.events import Prepared as PreparedEvent
from worker.contract.events import SnapshotRef, canonical, digest
from worker.contract.run import Run
from worker.contract.task import Task
from worker.sandbox.protocol import Sandbox
from worker.store import keys
from worker.store.archive import Archive
from worker.store.content import content_chunks, parsed, put_content
from worker.store.journal import Journal


@dataclass(frozen=True)
class Prepared:
    """An environment that is ready on this engine, and its baseline.

    digest: of env.json. image: what calls run in here (an id or name this engine holds). baseline_digest: of the
    baseline's file; both None for a task without checks, or when no baseline was asked for. reused: nothing had to
    be fetched or set up. chosen: the name of the image where the task left that to us, else None.
    """

    environment: PreparedEnvironment
    digest: str
    image: str
    baseline: Baseline | None = None
    baseline_digest: str | None = None
    reused: bool = True
    duration_ms: int = 0
    chosen: str | None = None

    @property
    def key(self) -> str:
        return self.environment.key

    def event(self, snapshot: SnapshotRef | None = None) -> PreparedEvent:
        """How a journal records it. snapshot: a fork's own level 0; its conversation has the instructions already."""
        return PreparedEvent(
            environment_key=self.key,
            environment=self.digest,
            baseline=self.baseline_digest,
            commit=self.environment.commit,
            image=self.environment.image,
            image_name=self.chosen,
            reused=self.reused,
            duration_ms=self.duration_ms,
            snapshot=snapshot,
            instructions=self.environment.instructions if snapshot is None else (),
        )


def find(archive: Archive, key: str) -> tuple[PreparedEnvironment, str] | None:
    """The environment of that key and the digest of its env.json, None when nobody made it yet. Raises
    IntegrityFault."""
    try:
        data = archive.get(keys.environment(key))
    except NotFoundFault:
        return None
    return parsed(PreparedEnvironment, data, keys.environment(key)), digest(data)


def recorded(archive: Archive, sandbox: Sandbox, event: PreparedEvent) -> Prepared:
    """What a run's `prepared` event names: for takeover and verdict, which trust digests and never the key.

    Raises IntegrityFault when the archive holds something else, EnvironmentFault("image") when this engine lacks
    the image.
    """
    found = find(archive, event.environment_key)
    if found is None or found[1] != event.environment:
        raise IntegrityFault(f"{keys.environment(event.environment_key)} is not the one this run was prepared with")
    environment, name = found
    image = ready_image(archive, sandbox, environment)
    if image is None:
        raise EnvironmentFault(
            "image",
            f"this engine lacks the image {environment.setup_tag or environment.image_name} of the environment",
            hint="it was prepared elsewhere and not stored (DAWN_STORE_IMAGES), or removed from this engine",
        )
    baseline = None
    if event.baseline is not None:
        # By its digest: a fork's limits may differ from those that its parent's baseline was measured under.
        folder = keys.baseline_folder(environment.key)
        measured = (data for key in archive.list(folder) if digest(data := archive.get(key)) == event.baseline)
        if (stored := next(measured, None)) is None:
            raise IntegrityFault(f"{folder} does not hold the baseline this run was prepared with")
        baseline = Baseline.model_validate_json(stored)
    return Prepared(environment, name, image, baseline, event.baseline, chosen=event.image_name)


def ready_image(archive: Archive, sandbox: Sandbox, environment: PreparedEnvironment) -> str | None:
    """What this engine calls the environment's image, brought from the archive when it lacks it and the image was
    stored; None when it is nowhere. Raises IntegrityFault for a tar that is not what was stored."""
    held = held_image(sandbox, environment)
    if held is not None or environment.stored_image is None:
        return held
    key = keys.image(environment.image, environment.stored_image)
    sandbox.load_image(environment.image, content_chunks(archive, key, environment.stored_image))
    return environment.image


def store_image(archive: Archive, sandbox: Sandbox, image: str) -> str | None:
    """The digest under which the archive holds the image, stored now by whoever is first; None when a registry has
    it. image: the engine's id."""
    if sandbox.has_origin(image):
        return None
    known = next(archive.list(keys.image_folder(image)), None)
    if known is not None:
        return known.rpartition("/")[2]
    with sandbox.saved_image(image) as path:
        return put_content(archive, partial(keys.image, image), path)


def known_build(archive: Archive, sandbox: Sandbox, name: str) -> str | None:
    """The image that somebody built of a Dockerfile, on this engine, brought from the archive when it lacks it; None
    when it is nowhere. name: digest of all that it is built of. Raises IntegrityFault."""
    try:
        known = parsed(BuiltImage, archive.get(keys.built_image(name)), keys.built_image(name))
        if not sandbox.has_image(known.image):
            key = keys.image(known.image, known.stored_image)
            sandbox.load_image(known.image, content_chunks(archive, key, known.stored_image))
    except NotFoundFault:
        return None
    return known.image


def keep_build(archive: Archive, sandbox: Sandbox, name: str, image: str) -> None:
    """Store an image that was built of a Dockerfile, so that `known_build` finds it."""
    stored = store_image(archive, sandbox, image)
    if stored is not None:
        built = BuiltImage(image=image, stored_image=stored)
        archive.create(keys.built_image(name), canonical(built.model_dump(mode="json")))


def held_image(sandbox: Sandbox, environment: PreparedEnvironment) -> str | None:
    """What this engine calls the environment's image, None when it has none.

    An image by its id is preferred; another engine's build of the same name or setup does as well."""
    candidates = (environment.image, environment.setup_tag or environment.image_name)
    return next((name for name in candidates if sandbox.has_image(name)), None)


def restore_chain(archive: Archive, prepared: Prepared, run: Run | None = None) -> list[Iterable[bytes]]:
    """What Workspace.restore lays down, full one first: the environment's level 0, and the run's snapshots on it (or
    since the run's own last level 0), which a new fork takes from its parent. Without a run: the untouched start."""
    chain = run.chain if run else ()
    parts: list[Iterable[bytes]] = []
    if not chain or chain[0].level != 0:
        key = keys.environment_blob(prepared.key, prepared.environment.snapshot)
        parts.append(content_chunks(archive, key, prepared.environment.snapshot))
    if run is not None:
        journal = Journal(archive, run.snapshots_of or run.id)
        parts += [journal.get_snapshot(taken.object) for taken in chain if taken.object is not None]
    return parts


def checks_digest(task: Task) -> str:
    """What a baseline is kept under: the checks and all limits that can change how they end."""
    limits = task.limits.model_dump(include={"check_timeout_s", "memory_bytes", "pids", "cpus", "tmpfs_bytes"})
    checks = [check.model_dump() for check in task.checks]
    network = {"network": "full"} if task.environment.networked else {}
    return digest(canonical({"checks": checks, "limits": limits, "path": task.repo.path} | network))
