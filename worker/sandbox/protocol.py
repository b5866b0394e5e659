"""Owns the words of the sandbox: Sandbox, Workspace, Command, Result. Refuses to import an engine's SDK.

A *workspace* is one volume with its keeper. It holds three folders, mounted at /workspace in every container:
/workspace/repo (the repository, uid 1000, where commands start), /workspace/home (HOME, uid 1000) and
/workspace/base (root's, read-only to the agent: a bare git directory with the objects of the start commit).
A *call* is one container on that volume, gone when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from worker.contract.cancel import Cancel
from worker.contract.task import Limits

REPO = "/workspace/repo"
HOME = "/workspace/home"
BASE = "/workspace/base"
SECRETS = "/run/secrets"
"""Where programs look for them, as builds of images do."""

Role = Literal["agent", "prepare", "baseline", "verdict"]


@dataclass(frozen=True)
class Owner:
    """Whose a container, volume or network is; becomes its labels `dawnfleet.*`.

    archive: short digest of the archive's address, so that two deployments share an engine in peace.
    claim: seq of the claim (the attempt's name).
    """

    archive: str
    run: str
    claim: int
    role: Role


@dataclass(frozen=True)
class Command:
    """What one call runs.

    shell: payload is a script for the task image's shell, run in cwd; stdin: what it finds on its standard input.
    toolbox: payload is JSON for a program of ours in the toolbox image (`program` names it).
    writes: False mounts the workspace read-only and needs no snapshot. network: the default bridge instead of
    the keeper's loopback-only namespace (never parked). secrets: travel on the stream, become environment
    variables of the program only. secret_files: travel likewise, become files of SECRETS that its user alone may
    read, in memory. root: uid 0, for preparation only. proven: the exit code is the engine's word,
    35 ms later, and not the call's own, which a hostile program may forge (checks).
    """

    payload: bytes
    kind: Literal["shell", "toolbox"] = "shell"
    stdin: bytes = b""
    program: str = ""
    cwd: str = REPO
    writes: bool = True
    network: bool = False
    root: bool = False
    proven: bool = False
    timeout_s: float = 120
    secrets: Mapping[str, str] = field(default_factory=dict)
    secret_files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def outside(self) -> bool:
        """Whether it may do what no rollback undoes: it reaches more than the workspace, or holds what may."""
        return self.network or self.root or bool(self.secrets or self.secret_files)


@dataclass(frozen=True)
class Output:
    """What a call wrote (stdout and stderr as one stream): path holds the kept bytes, total counts all.

    When total is larger than kept, path holds the first half and the last half of the cap, and head_bytes says
    where the cut is. Whoever has read the file may unlink it; what is left goes with the workspace.
    """

    path: Path
    total_bytes: int
    kept_bytes: int
    head_bytes: int


@dataclass(frozen=True)
class Result:
    """How a call ended. ok: by itself, with any exit code. error: it could not start or could not say how it ended.

    exit_code is None for error, timeout, interrupted, and for oom when the wrapper itself died. detail: what a reader
    should know besides (also of an ok call: a limit it met). cancelled: the end was ours, asked for through `Cancel`.
    """

    status: Literal["ok", "error", "timeout", "oom", "interrupted"]
    exit_code: int | None
    output: Output
    duration_ms: int
    detail: str = ""
    cancelled: bool = False


@dataclass(frozen=True)
class Snapshot:
    """What the keeper found on the quiet volume.

    listing, tree: digests (see SnapshotRef). path: a tar of removed and changed entries, None when nothing
    changed since the last walk. full: it is a level 0. files: paths below repo/ that changed, at most 200.
    """

    listing: str
    tree: str
    path: Path | None
    bytes: int
    full: bool
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Build:
    """How the build of an image ended. image: the engine's id, "" where it failed, and `detail` says why. said: the
    end of what it wrote. cancelled: the end was ours."""

    image: str
    said: str = ""
    detail: str = ""
    cancelled: bool = False


Judge = Callable[[Iterable[bytes]], None]


class WorkspaceTooLarge(Exception):
    """The volume is over a cap (bytes, files, one snapshot's bytes): an observation, and the workspace rolls back."""


class Workspace(Protocol):
    """One volume and its keeper. Not thread-safe but for `Cancel`. EngineFault when the engine or keeper fails."""

    def run(self, command: Command, *, cancel: Cancel) -> Result:
        """Run one call in a container of its own; returns when its exit code is known, after which nothing of
        it runs. Raises InvalidFault for a payload the wrapper cannot take."""
        ...

    def expect(self, kind: Literal["shell", "toolbox"], *, writes: bool) -> None:
        """A call of this kind is likely next: park a container for it while the model thinks."""
        ...

    def snapshot(self, *, full: bool = False) -> Snapshot:
        """Walk the quiet volume and save what changed since the last walk. Raises WorkspaceTooLarge."""
        ...

    def restore(self, chain: Sequence[Iterable[bytes]]) -> Snapshot:
        """Empty the volume, lay down the chain (full one first), walk, and say what is there (path None)."""
        ...

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        """Write a root-owned file /workspace/base/<name> from outside (a packed source, a patch)."""
        ...

    def get(self, name: str) -> Iterator[bytes]:
        """Read the file /workspace/base/<name>."""
        ...

    def own(self) -> None:
        """Give repo/ and home/ to uid 1000 (links not followed) and base/ to root, after setup ran as root."""
        ...

    def tree(self) -> list[tuple[str, str, str]]:
        """The work tree as hashed into `tree`: (path, mode 100644|100755|120000, SHA-256 of content), sorted.

        Paths are relative to repo/; bytes that are not UTF-8 come as surrogate escapes."""
        ...

    def ignored(self) -> list[str]:
        """Top-most paths under repo/ that `tree` leaves out (ignored files, caches), at most 1,000."""
        ...

    def commit_image(
        self, command: Command, *, tag: str, cancel: Cancel, judge: Judge | None = None
    ) -> tuple[Result, str]:
        """Run a root command with network on a writable root filesystem and commit that filesystem as an image;
        returns the image id ("" unless the result is ok with exit code 0). judge: is given the filesystem as a tar
        before, and may run calls; what it raises is raised, and there is no image."""
        ...


class Sandbox(Protocol):
    """One container engine. Raises EngineFault when it does not answer."""

    engine_id: str

    def workspace(self, owner: Owner, image: str, limits: Limits) -> AbstractContextManager[Workspace]:
        """A fresh, empty workspace for calls in `image`; leaving the context removes containers and volume.

        Raises EnvironmentFault("image") when the image is missing or has no shell."""
        ...

    def has_image(self, image: str) -> bool:
        """Whether the engine holds this image (name or id)."""
        ...

    def image_id(self, image: str) -> str:
        """The engine's id of an image name of ours or any other. Raises EnvironmentFault("image") with a hint."""
        ...

    def base_id(self, image: str, limits: Limits, *, cancel: Cancel) -> str:
        """As `image_id`, of an image to build on: a registry is asked for one of others that the engine lacks, by one
        process of a host at a time. "" when it was cancelled meanwhile. Raises EnvironmentFault("image"), EngineFault
        where the registry wants to be asked later."""
        ...

    def build_image(
        self, dockerfile: str, bases: Mapping[str, str], *, tag: str, limits: Limits, cancel: Cancel
    ) -> Build:
        """The image of that tag, built of the Dockerfile where the engine lacks it, by one process of a host at a
        time. bases: each base that it names -> the engine's id."""
        ...

    def has_origin(self, image: str) -> bool:
        """Whether a registry gave this image, by a digest under which another engine can get it."""
        ...

    def saved_image(self, image: str) -> AbstractContextManager[Path]:
        """The image as a tar, in a file that is gone when the context ends."""
        ...

    def load_image(self, image: str, chunks: Iterable[bytes]) -> None:
        """Bring the engine an image by id, from the tar that `saved_image` gave. What chunks raises is raised;
        EngineFault when the engine takes it for something else."""
        ...

    def trim_images(self, most_bytes: int) -> int:
        """Of the images that preparation made or `load_image` brought, remove those used longest ago until the rest
        fits, never one in use; returns how many went."""
        ...

    def owned(self, archive: str) -> list[tuple[Owner, str]]:
        """Every container and volume of that archive on this engine: (owner, "container:ID" | "volume:NAME")."""
        ...

    def remove(self, resource: str) -> None:
        """Remove one of `owned`; already gone is success. A thing without our label is refused."""
        ...
