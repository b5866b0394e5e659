"""Owns which image an environment is made of: the one that the task names, the one that fits what the repository
holds, or one that is built of the task's Dockerfile. Refuses to read a file of a repository: it looks at paths only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Final

from worker import environments
from worker.contract import dockerfile
from worker.contract.cancel import Cancel
from worker.contract.errors import EnvironmentFault
from worker.contract.events import canonical, digest
from worker.contract.redact import Redactor
from worker.contract.surroundings import AUTO
from worker.contract.task import Task
from worker.sandbox import images
from worker.sandbox.protocol import Sandbox
from worker.store.archive import Archive
from worker.toolbox import Cancelled
from worker.tools.output import clip_start, lines

SETUP_IMAGE: Final = "dawnfleet/prepared"
"""What the engine calls all images that we make, so that they count as one."""
TAG_DIGITS: Final = 24
SAID_LINES: Final = 20
SAID_BYTES: Final = 2_000


@dataclass(frozen=True)
class Asked:
    """key: what of it the environments are told apart by. name: what an engine calls it; None until the repository is
    there to be looked at. id: the engine's; None until it is chosen or built. bases: of a Dockerfile."""

    key: Any
    name: str | None
    id: str | None = None
    digest: str = ""
    bases: Mapping[str, str] = field(default_factory=dict)


def asked(task: Task, sandbox: Sandbox, *, redactor: Redactor, cancel: Cancel) -> Asked:
    """What the task asks for, as far as it is known before its repository is there. Raises EnvironmentFault("image")
    where the engine lacks it, or what it is built on; Cancelled."""
    environment = task.environment
    if environment.dockerfile is not None:
        return _asked_to_build(task, environment.dockerfile, sandbox, redactor, cancel)
    if environment.image == AUTO:
        names = (*images.found_by(), images.BASE)
        held = {name: sandbox.image_id(name) if sandbox.has_image(name) else None for name in names}
        return Asked({AUTO: held}, None)
    image_id = sandbox.image_id(environment.image)
    return Asked(image_id, environment.image, image_id)


def _asked_to_build(task: Task, text: str, sandbox: Sandbox, redactor: Redactor, cancel: Cancel) -> Asked:
    path, read = task.environment.image, dockerfile.read(text)
    if redactor.text(text) != text:
        raise EnvironmentFault(
            "image", f"{path} holds the value of a secret", hint="setup may be handed one: setup_secrets"
        )
    if read.mistakes:
        first = read.mistakes[0]
        raise EnvironmentFault("image", f"{path}:{first.line}:{first.column} {first.message}", hint=first.hint)
    bases = {name: sandbox.base_id(name, task.limits, cancel=cancel) for name in read.bases}
    if cancel.is_set():
        raise Cancelled(cancel.reason)
    name = digest(
        canonical({"dockerfile": text, "bases": bases, "cache_keys": sorted({*task.environment.cache_keys})})
    )
    return Asked({"dockerfile": name}, f"{SETUP_IMAGE}:{name[:TAG_DIGITS]}", digest=name, bases=bases)


def ready(
    image: Asked,
    task: Task,
    *,
    archive: Archive,
    sandbox: Sandbox,
    redactor: Redactor,
    cancel: Cancel,
    store: bool = False,
) -> str:
    """The engine's id of an image whose name is known: held, brought from the archive, or built now. store: keep one
    that was built in the archive, for other hosts. Raises EnvironmentFault("image") with the end of what the build
    said, Cancelled."""
    if image.id is not None:
        return image.id
    text, path = task.environment.dockerfile, task.environment.image
    assert text is not None, "only a Dockerfile has no id"
    assert image.name is not None, "and it has a name"
    if not sandbox.has_image(image.name) and (known := environments.known_build(archive, sandbox, image.digest)):
        return known
    built = sandbox.build_image(text, image.bases, tag=image.name, limits=task.limits, cancel=cancel)
    if built.cancelled:
        raise Cancelled(cancel.reason)
    if not built.image:
        told = "\n".join(deque(lines(BytesIO(redactor.text(built.said).encode())), maxlen=SAID_LINES))
        said = clip_start(told, SAID_BYTES).strip() or "it wrote nothing"
        raise EnvironmentFault("image", f"no image came of {path}: {redactor.text(built.detail)}: {said}")
    if store:
        environments.keep_build(archive, sandbox, image.digest, built.image)
    return built.image


def chosen(tracked: Iterable[bytes], path: str) -> str:
    """The image that fits a repository, of whose paths each ends with NUL. path: the folder that the work starts in;
    it and those above it are looked at in turn."""
    found = images.found_by()
    sought = {name for names in found.values() for name in names}
    here: dict[str, set[str]] = {}
    for entry in _entries(tracked):
        folder, _, name = entry.rpartition("/")
        if name in sought and (not folder or path == folder or path.startswith(f"{folder}/")):
            here.setdefault(folder, set()).add(name)
    for folder in sorted(here, key=len, reverse=True):
        return next(image for image, names in found.items() if here[folder] & {*names})
    return images.BASE


def _entries(chunks: Iterable[bytes]) -> Iterable[str]:
    half = b""
    for chunk in chunks:
        *whole, half = (half + chunk).split(b"\0")
        yield from (entry.decode("utf-8", "surrogateescape") for entry in whole)
