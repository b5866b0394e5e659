"""Owns the images that preparation made or brought to this host: which are in use, and which go when they take too
much room. Refuses to remove one that any process of this host works with.

A use is a shared lock on a file named after the image, held by the process that works with it and gone with it; the
file's time is that of the last use.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

from worker.contract.cancel import Cancel
from worker.contract.events import digest
from worker.sandbox.building import BASE_LABEL, BUILD_LABEL
from worker.sandbox.docker import Engine
from worker.sandbox.locks import locked

REPOSITORY: Final = "dawnfleet/prepared"
GRACE_S: Final = 600
"""An image that was found a moment ago is about to be used."""
POLL_S: Final = 0.2
SWEEP_S: Final = 5
"""An engine that was told to end a build needs a moment to be rid of its container."""


class PreparedImages:
    """Of one engine. folder: where uses are marked, shared by the worker processes of a host."""

    def __init__(self, engine: Engine, folder: Path, repository: str = REPOSITORY) -> None:
        self._engine = engine
        self._folder = folder
        self._repository = repository
        folder.mkdir(parents=True, exist_ok=True)

    def touch(self, image_id: str) -> None:
        """Count the image as used now."""
        self._mark(image_id).touch()

    @contextmanager
    def hold(self, image_id: str) -> Iterator[None]:
        """Nobody removes the image inside the block."""
        with locked(self._mark(image_id), fcntl.LOCK_SH) as mark:
            os.utime(mark.fileno())
            yield
            os.utime(mark.fileno())

    def keep(self, image_id: str) -> None:
        """Take an image that was loaded among ours."""
        self._engine.tag(image_id, self._repository, image_id.removeprefix("sha256:")[:24])

    @contextmanager
    def building(self, tag: str, cancel: Cancel) -> Iterator[None]:
        """No other process of this host builds the image of that tag inside the block, and what the build leaves
        beside the image goes with it. Ends at once when it is cancelled while it waits."""
        digits = tag.rpartition(":")[2]
        with self._alone(self._building(digits), cancel) as ours:
            try:
                yield
            finally:
                deadline = time.monotonic() + SWEEP_S
                # What was cut off a moment ago may still be in use.
                while ours and self._sweep(f"{BUILD_LABEL}={digits}") and time.monotonic() < deadline:
                    time.sleep(POLL_S)

    @contextmanager
    def pulling(self, image: str, cancel: Cancel) -> Iterator[None]:
        """No other process of this host asks a registry for the image inside the block. Ends at once when it is
        cancelled while it waits."""
        with self._alone(self._folder / f"pull-{digest(image.encode())}", cancel):
            yield

    @contextmanager
    def _alone(self, path: Path, cancel: Cancel) -> Iterator[bool]:
        """Whether the lock is ours; else it was cancelled while it waited."""
        with open(path, "ab") as mark:
            while not (ours := _locked(mark)) and not cancel.wait(POLL_S):
                pass
            yield ours

    def trim(self, most_bytes: int) -> int:
        """Remove those used longest ago until the rest fits; returns how many went. Raises EngineFault.

        An image counts with what it adds to its parent, one that was loaded in full. What builds of dead workers left
        goes too.
        """
        self._sweep(BUILD_LABEL, grace_s=GRACE_S)
        every = {str(image["Id"]): image for image in self._engine.images()}
        ours = {key: image for key, image in every.items() if self._names(image)}
        sizes = {key: int(image["Size"]) - _below(image, every) for key, image in ours.items()}
        left = sum(sizes.values())
        removed = 0
        for image_id in sorted(ours, key=self._used_at):
            if left <= most_bytes:
                break
            if self._remove(image_id, self._names(ours[image_id])):
                left -= sizes[image_id]
                removed += 1
        return removed

    def _sweep(self, label: str, *, grace_s: float = 0) -> int:
        """Remove what lies beside the images that were built: other stages, and steps that led nowhere. Returns how
        many are left that a container still uses. grace_s: leave younger ones, and those of a build that goes on."""
        left = 0
        for image in self._engine.nameless(label):
            with open(self._building(image["Labels"][BUILD_LABEL]), "ab") as mark:
                if not grace_s or (time.time() - image["Created"] > grace_s and _locked(mark)):
                    left += not self._engine.remove_image(str(image["Id"]))
        return left

    def _building(self, digits: str) -> Path:
        return self._folder / f"build-{digits}"

    def _remove(self, image_id: str, names: list[str]) -> bool:
        """Unless somebody works with it, here or in a container."""
        mark = self._mark(image_id)
        with open(mark, "ab") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if time.time() - self._used_at(image_id) < GRACE_S:
                return False
            gone = all(self._engine.remove_image(name) for name in names)
            if gone:
                mark.unlink(missing_ok=True)
            return gone

    def _used_at(self, image_id: str) -> float:
        """When it was used last; one that was never seen is seen now."""
        with suppress(FileNotFoundError):
            return self._mark(image_id).stat().st_mtime
        self.touch(image_id)
        return time.time()

    def _mark(self, image_id: str) -> Path:
        return self._folder / image_id.removeprefix("sha256:")

    def _names(self, image: Mapping[str, Any]) -> list[str]:
        return [name for name in image.get("RepoTags") or () if name.startswith(f"{self._repository}:")]


def _locked(mark: IO[bytes]) -> bool:
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _below(image: Mapping[str, Any], every: Mapping[str, Mapping[str, Any]]) -> int:
    """What the image stands on: the one it was made of, or below the steps of its build."""
    parent = every.get(str(image.get("ParentId"))) or every.get((image.get("Labels") or {}).get(BASE_LABEL, ""))
    return int(parent["Size"]) if parent else 0
