"""Owns the lock beside a manifest: what its targets were when `dawn plan` looked. Refuses to look itself, and to be
used for other targets than those it was made of.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from scheduler.manifests.reading import Loaded, ManifestFault
from scheduler.manifests.sources import Asked, Target, text_file
from scheduler.manifests.targets import Origin
from worker.contract.errors import InvalidFault, UsageFault
from worker.contract.events import canonical, digest
from worker.contract.frozen import Frozen, later
from worker.contract.task import Repo

SUFFIX: Final = ".lock"


class LockedTarget(Frozen):
    """repo, ref, path: as the manifest has them. commit, branch: of a repository at a URL, None and "" where it could
    not be asked. source: digest of a packed local one."""

    id: str
    repo: str
    ref: str | None = None
    path: str = ""
    commit: Annotated[str, Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")] | None = None
    branch: str = ""
    source: str | None = None


class LockedName(Frozen):
    """A target that an archive or a forge named, and where its code is, when that was said."""

    target: Target
    origin: Origin | None = later(None)


class LockedAnswer(Frozen):
    """asked: what an archive or a forge was asked, as the manifest says it. named: in their order."""

    asked: dict[str, Any]
    named: tuple[LockedName, ...]


class Lock(Frozen):
    """targets_digest: of all that the manifest says of its targets; a prompt may change under a lock. answers: what
    earlier batches and forges were asked, and the targets that they named."""

    v: Literal[1] = 1
    targets_digest: str
    targets: tuple[LockedTarget, ...]
    answers: tuple[LockedAnswer, ...] = later(())

    def answer(self, asked: Asked) -> list[tuple[Target, Origin | None]]:
        """As it was when the lock was made. Raises KeyError where that was not asked."""
        known = {canonical(one.asked): one.named for one in self.answers}
        return [(one.target, one.origin) for one in known[canonical(asked.model_dump(mode="json"))]]

    def text(self) -> str:
        """As it is written: JSON, one value a line, the same for the same targets."""
        return json.dumps(self.model_dump(mode="json"), indent=2) + "\n"


def path_of(manifest: Path) -> Path:
    """`fleet.lock` of `fleet.yaml`. Raises UsageFault where that is the manifest."""
    if manifest.suffix == SUFFIX:
        raise UsageFault(f"{manifest} is a name for locks", hint="name the manifest fleet.yaml, or the like")
    return manifest.with_suffix(SUFFIX)


def beside(manifest: Path) -> Lock | None:
    """The lock of a manifest, None when it has none. Raises InvalidFault for a file that is none."""
    path = path_of(manifest)
    if not path.exists():
        return None
    try:
        return Lock.model_validate_json(text_file(path, "a lock"))
    except ValidationError:
        raise InvalidFault(f"{path} is no lock", hint=f"make it again: dawn plan {manifest}") from None


def lock_of(loaded: Loaded, repos: Sequence[Repo]) -> Lock:
    """Of targets that were looked at. repos: theirs, in order."""
    return Lock(
        targets_digest=_asked(loaded),
        targets=tuple(
            LockedTarget(
                id=one.id,
                repo=one.target.repo,
                ref=one.target.ref,
                path=one.target.path,
                commit=repo.commit,
                branch=repo.branch,
                source=repo.source,
            )
            for one, repo in zip(loaded.targets, repos, strict=True)
        ),
        answers=tuple(
            LockedAnswer(
                asked=asked.model_dump(mode="json"),
                named=tuple(LockedName(target=target, origin=origin) for target, origin in named),
            )
            for asked, named in loaded.answers
        ),
    )


def listed(loaded: Loaded, lock: Lock, say: Callable[[str], None]) -> Loaded:
    """With the targets that earlier batches and forges named when the lock was made, which is said; as it is where
    the lock is of other targets."""
    if not loaded.awaited:
        return loaded
    try:
        known = loaded.resolved(lock.answer)
    except (KeyError, ManifestFault):  # what is wrong is told of what they name now
        return loaded
    if lock.targets_digest != _asked(known):
        return loaded
    told = ", ".join(asked.told for asked in loaded.awaited)
    say(f"note: the targets of {told} are those of the lock; renew it: dawn plan {loaded.name}")
    return known


def locked(loaded: Loaded, repos: Sequence[Repo], lock: Lock, say: Callable[[str], None]) -> list[Repo]:
    """The repositories as the lock has them; as they are, with a word about it, where the lock is of other targets. A
    local one is what it is now, and it is said when that has changed."""
    asked = [(one.id, one.target.repo, one.target.ref, one.target.path) for one in loaded.targets]
    there = [(then.id, then.repo, then.ref, then.path) for then in lock.targets]  # which somebody may have edited
    if lock.targets_digest != _asked(loaded) or there != asked:
        say(f"note: the lock is stale, so refs are asked when they are fetched; renew it: dawn plan {loaded.name}")
        return list(repos)
    found = []
    for one, repo, then in zip(loaded.targets, repos, lock.targets, strict=True):
        if then.source != repo.source:
            say(f"note: {one.id} has changed since it was planned")
        known = repo.url is not None and then.commit is not None
        found.append(repo.model_copy(update={"commit": then.commit, "branch": then.branch}) if known else repo)
    return found


def write(path: Path, lock: Lock) -> None:
    """Put it there, whole or not at all. Raises OSError."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
        file.write(lock.text())
        os.fchmod(file.fileno(), 0o644)
    os.replace(file.name, path)


def _asked(loaded: Loaded) -> str:
    return digest(canonical([[one.id, one.target.model_dump(mode="json")] for one in loaded.targets]))
