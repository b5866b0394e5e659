"""Owns DockerSandbox: one container engine and the workspaces on it. Refuses to keep anything between processes:
what it left behind is found by its labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, Final

from worker.contract.cancel import Cancel
from worker.contract.errors import ConflictFault, EngineFault, EnvironmentFault, Fault, UsageFault
from worker.contract.settings import Settings
from worker.contract.task import Limits
from worker.sandbox import building, images, shape
from worker.sandbox.docker import Engine
from worker.sandbox.output import spool_folder
from worker.sandbox.pool import Places
from worker.sandbox.prepared import PreparedImages
from worker.sandbox.protocol import Build, Owner
from worker.sandbox.workspace import DockerWorkspace

THREADS: Final = 32
SYSTEM_CA_BUNDLES: Final = (
    Path("/etc/ssl/certs/ca-certificates.crt"),
    Path("/etc/pki/tls/certs/ca-bundle.crt"),
    Path("/etc/ssl/ca-bundle.pem"),
)
"""Debian and Alpine, Fedora, SUSE."""


class DockerSandbox:
    """Implements Sandbox. `close` gives back connections, threads and the spool."""

    def __init__(self, settings: Settings) -> None:
        """Raises EngineFault when the engine is absent or too old, UsageFault when the CA bundle cannot be read."""
        self._ca_bundle = _ca_bundle(settings.ca_bundle)
        self._engine = Engine(settings.docker_url)
        self.engine_id = self._engine.id
        self._stack = ExitStack()
        self._stack.callback(self._engine.close)
        self._spool = self._stack.enter_context(spool_folder(settings.state_dir / "spool"))
        self._threads = self._stack.enter_context(ThreadPoolExecutor(THREADS, thread_name_prefix="sandbox"))
        self._places = Places(settings.state_dir / "parked", settings.parked_max or 2 * self._engine.cpus + 4)
        self._stack.callback(self._places.close)
        self._prepared = PreparedImages(self._engine, settings.state_dir / "images")
        self._proven: set[str] = set()

    def close(self) -> None:
        self._stack.close()

    @contextmanager
    def workspace(self, owner: Owner, image: str, limits: Limits) -> Iterator[DockerWorkspace]:
        found = self._found(image)
        volumes = shape.image_volumes((found.get("Config") or {}).get("Volumes") or ())
        image_id = str(found["Id"])
        with self._prepared.hold(image_id), self._opened(owner, image, image_id, limits, volumes) as workspace:
            yield workspace

    @contextmanager
    def _opened(
        self, owner: Owner, image: str, image_id: str, limits: Limits, image_volumes: Sequence[str]
    ) -> Iterator[DockerWorkspace]:
        spool = Path(mkdtemp(dir=self._spool))
        workspace = DockerWorkspace(
            self._engine,
            self._threads,
            self._places,
            spool,
            owner=owner,
            image=image_id,
            toolbox=self.image_id("toolbox"),
            limits=limits,
            ca_bundle=self._ca_bundle,
            image_volumes=image_volumes,
        )
        try:
            workspace.open()
            if image_id not in self._proven:
                workspace.prove(image)
                self._proven.add(image_id)
            yield workspace
        except BaseException:
            # What an engine in trouble keeps is found by its labels and removed by the janitor.
            with suppress(Fault):
                workspace.close()
            raise
        else:
            workspace.close()
        finally:
            rmtree(spool, ignore_errors=True)

    def has_image(self, image: str) -> bool:
        found = self._engine.image(_reference(image))
        if found is not None:
            self._prepared.touch(str(found["Id"]))
        return found is not None

    def has_origin(self, image: str) -> bool:
        found = self._engine.image(_reference(image))
        return bool(found and found.get("RepoDigests"))

    @contextmanager
    def saved_image(self, image: str) -> Iterator[Path]:
        folder = Path(mkdtemp(dir=self._spool))
        try:
            self._engine.save(_reference(image), folder / "image.tar")
            yield folder / "image.tar"
        finally:
            rmtree(folder, ignore_errors=True)

    def load_image(self, image: str, chunks: Iterable[bytes]) -> None:
        self._engine.load(chunks)
        if self._engine.image(image) is None:
            raise EngineFault(f"the engine loaded another image than {image}", retryable=False)
        self._prepared.keep(image)

    def trim_images(self, most_bytes: int) -> int:
        return self._prepared.trim(most_bytes)

    def image_id(self, image: str) -> str:
        return str(self._found(image)["Id"])

    def base_id(self, image: str, limits: Limits, *, cancel: Cancel) -> str:
        reference = _reference(image)
        if reference != image or self._engine.image(image) is not None:
            return self.image_id(image)
        failure = ""
        with self._prepared.pulling(image, cancel):
            found = self._engine.image(image)
            if found is None and not cancel.is_set():
                failure = building.pull(self._engine, image, limits, cancel)
                found = self._engine.image(image)
        if found is None and cancel.is_set():
            return ""
        if found is None:
            raise EnvironmentFault(
                "image",
                f"the engine has no image {image}, and no registry gave it: {failure or 'it said nothing'}",
                hint=f"bring it to every worker host: docker pull {image}, or docker load",
            )
        return str(found["Id"])

    def build_image(
        self, dockerfile: str, bases: Mapping[str, str], *, tag: str, limits: Limits, cancel: Cancel
    ) -> Build:
        if not self.has_image(tag):
            with self._prepared.building(tag, cancel):
                if cancel.is_set():
                    return Build("", detail=cancel.reason, cancelled=True)
                if not self.has_image(tag):
                    return building.build(self._engine, dockerfile, bases, tag, limits, cancel)
        return Build(self.image_id(tag))

    def _found(self, image: str) -> Mapping[str, Any]:
        """What the engine knows of an image. Raises EnvironmentFault("image") with a hint."""
        reference = _reference(image)
        found = self._engine.image(reference)
        if found is None:
            ours = reference != image
            raise EnvironmentFault(
                "image",
                f"the engine has no image {reference}",
                hint=f"`dawn images build {image}` makes it" if ours else f"`docker pull {reference}` may bring it",
            )
        return found

    def owned(self, archive: str) -> list[tuple[Owner, str]]:
        marked = self._engine.labelled({shape.LABEL: "1", f"{shape.LABEL}.archive": archive})
        return [(owner, resource) for resource, labels in marked if (owner := shape.owner(labels)) is not None]

    def remove(self, resource: str) -> None:
        labels = self._engine.labels(resource)
        if labels is None:
            return
        if labels.get(shape.LABEL) != "1":
            raise ConflictFault(f"{resource} does not carry the label {shape.LABEL}=1: it is not ours to remove")
        kind, _, name = resource.partition(":")
        if kind == "container":
            self._engine.remove_container(name)
        else:
            self._engine.remove_volume(name)


@cache
def _reference(image: str) -> str:
    # Once: a checkout that changes under a running worker must not change its images.
    return images.reference(image) if image in (*images.names(), images.BASE) else image


def _ca_bundle(chosen: Path | None) -> bytes:
    path = chosen or next((path for path in SYSTEM_CA_BUNDLES if path.is_file()), None)
    if path is None:
        return b""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageFault(f"the CA bundle {path} cannot be read: {error}", hint="set DAWN_CA_BUNDLE") from error
