"""Owns the images of the sandbox: their names, tags (content hashes) and how they come to be on an engine.
Refuses to run a container: it talks to the engine through the `docker` command only, at set-up time."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from worker.contract.errors import EngineFault, EnvironmentFault, Fault, UsageFault
from worker.sandbox.rootfs import debootstrapped

PULL_TIMEOUT_S = 60
BUILD_TIMEOUT_S = 1800
TRANSFER_TIMEOUT_S = 1800
HASH_DIGITS = 12
BASE: Final = "base"
"""What the others are built on; a task may name it too."""

Progress = Callable[[str], None]


def _silent(_: str) -> None:
    """Progress nobody reads."""


@cache
def folder() -> Path:
    """Where images.toml and the images' folders are: `sandbox_images` of a checkout, else the wheel's copy."""
    checkout = Path(__file__).resolve().parents[2] / "sandbox_images"
    return checkout if (checkout / "images.toml").is_file() else Path(__file__).parent / "image_files"


def names() -> tuple[str, ...]:
    """The images a task may name and the toolbox, in the order of images.toml."""
    return tuple(_table()["images"])


def summary(name: str) -> str:
    """What an image holds, one line. Raises UsageFault for an unknown name."""
    return str(_entry(name)["summary"])


def reference(name: str) -> str:
    """`dawnfleet/<name>:<hash12>`: a pure function of the image's entry, the files of its folder and what it is
    built on. Raises UsageFault for an unknown name."""
    return f"dawnfleet/{name}:{_digest(name)[:HASH_DIGITS]}"


def found_by() -> dict[str, tuple[str, ...]]:
    """Of each image that `auto` may choose, in the order in which they are looked for: the files by which a folder
    says that it is meant. Where none lies, it is BASE."""
    entries = _table()["images"].items()
    return {name: tuple(entry["found_by"]) for name, entry in entries if "found_by" in entry}


def missing(wanted: Sequence[str]) -> list[str]:
    """Those of `wanted` that the engine does not hold. Raises EngineFault when it does not answer."""
    if not wanted:
        return []
    # One listing for all: it takes 30 ms where an inspect per image would take that each.
    listed = _docker("images", "--format", "{{.Repository}}:{{.Tag}}", "--filter", "reference=dawnfleet/*")
    held = set(listed.split())
    return [name for name in wanted if reference(name) not in held]


def ensure(wanted: Sequence[str] | None = None, *, progress: Progress = _silent) -> dict[str, str]:
    """Build what is missing of `wanted` (default: all), one builder at a time on a host; name -> reference.

    Raises EnvironmentFault("image") when a build fails, EngineFault when the engine does not answer.
    """
    chosen = tuple(names() if wanted is None else wanted)
    if missing(chosen):
        with _one_builder(progress):
            # Asked again under the lock: another builder may have made them meanwhile.
            for name in missing(chosen):
                _build(name, progress)
    return {name: reference(name) for name in chosen}


def build(
    wanted: Sequence[str] | None = None, *, force: bool = False, progress: Progress = _silent
) -> dict[str, str]:
    """As `ensure`; with force everything is built anew, the base included (security updates of Debian arrive so)."""
    if not force:
        return ensure(wanted, progress=progress)
    chosen = tuple(names() if wanted is None else wanted)
    with _one_builder(progress):
        _make_root(progress)
        for name in ("base", *chosen):
            _build(name, progress, fresh=True)
    return {name: reference(name) for name in chosen}


def save(path: Path, *, progress: Progress = _silent) -> None:
    """Write all images into one tar for a host without registry or mirror, building what is missing first."""
    ensure(progress=progress)
    every = ("root", "base", *names())
    absent = missing(every)
    references = [reference(name) for name in every if name not in absent]
    progress(f"saving {len(references)} images to {path}")
    _docker("save", "-o", str(path), *references, timeout_s=TRANSFER_TIMEOUT_S)


def load(path: Path, *, progress: Progress = _silent) -> None:
    """Bring the engine what `save` wrote. Raises EnvironmentFault("image") when the file holds other versions."""
    if not path.is_file():
        raise UsageFault(f"{path} is not a file", hint="make it with `dawn images save FILE` on another host")
    _docker("load", "-i", str(path), timeout_s=TRANSFER_TIMEOUT_S)
    absent = missing(names())
    if absent:
        raise EnvironmentFault(
            "image",
            f"{path} was saved by another version: it lacks {', '.join(map(reference, absent))}",
            hint="save it again with this version of dawnfleet",
        )
    progress(f"loaded {len(names())} images")


def _table() -> dict[str, Any]:
    return tomllib.loads((folder() / "images.toml").read_text(encoding="utf-8"))


def _entry(name: str) -> dict[str, Any]:
    table = _table()
    entry = table["images"].get(name) or (table[name] if name in ("base", "root") else None)
    if entry is None:
        raise UsageFault(f"no image {name!r}", hint=f"one of {', '.join(table['images'])}")
    return dict(entry)


def _below(name: str) -> str:
    return "root" if name == "base" else "base"


def _files(name: str) -> dict[str, bytes]:
    """Path -> content of everything in the image's folder: what is hashed is what is sent to the engine."""
    home = folder() / name
    paths = (path for path in sorted(home.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(home).as_posix(): path.read_bytes() for path in paths}


def _digest(name: str) -> str:
    # By which files an image is found changes nothing in it.
    described: dict[str, Any] = {"entry": {key: said for key, said in _entry(name).items() if key != "found_by"}}
    if name != "root":
        described["below"] = reference(_below(name))
        described["files"] = {path: hashlib.sha256(data).hexdigest() for path, data in _files(name).items()}
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def _build(name: str, progress: Progress, *, fresh: bool = False) -> None:
    below = _below(name)
    if missing([below]):
        _make_root(progress) if below == "root" else _build(below, progress)
    tag = reference(name)
    progress(f"building {tag}")
    # Proxy variables are known to the builder by name: they reach apt and leave no trace in the image.
    proxies = [f"--build-arg={key}" for key in ("http_proxy", "https_proxy", "no_proxy") if os.environ.get(key)]
    options = [
        *(["--no-cache"] if fresh else []),
        *proxies,
        "--label=dawnfleet=image",
        f"--build-arg=BELOW={reference(below)}",
    ]
    _docker(
        "build", "--rm", "--force-rm", *options, f"--tag={tag}", "-", timeout_s=BUILD_TIMEOUT_S, stdin=_context(name)
    )


def _context(name: str) -> bytes:
    """The build context as a tar whose bytes depend on the contents only."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, data in _files(name).items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _make_root(progress: Progress) -> None:
    """Tag the public image, or import a debootstrap root. The tag is the memory of it: no later build asks again."""
    public = str(_entry("root")["public"])
    if _holds(public) or _pull(public, progress):
        _docker("tag", public, reference("root"))
        return
    with debootstrapped(progress) as root:
        argv = ["tar", "-C", str(root), "--numeric-owner", "-c", "."]
        changes = ("--change=LABEL dawnfleet=image", '--change=CMD ["/bin/bash"]')
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as packed:
            try:
                _docker("import", *changes, "-", reference("root"), timeout_s=BUILD_TIMEOUT_S, stdin=packed.stdout)
            except Fault:
                packed.kill()
                raise
        if packed.returncode != 0:
            _docker("rmi", reference("root"))
            raise EnvironmentFault("image", "tar could not read the root filesystem that debootstrap made")


def _holds(image: str) -> bool:
    return bool(_docker("images", "--quiet", image).strip())


def _pull(image: str, progress: Progress) -> bool:
    progress(f"asking a registry for {image}")
    try:
        _docker("pull", "--quiet", image, timeout_s=PULL_TIMEOUT_S)
    except (EngineFault, EnvironmentFault):
        progress("no registry answers")
        return False
    return True


@contextmanager
def _one_builder(progress: Progress) -> Iterator[None]:
    """Hold the host's lock. Named by user: a sticky folder refuses another user's file, and two users' builds
    meet in the engine, which is safe, only slower."""
    path = Path(tempfile.gettempdir()) / f"dawnfleet-images-{os.getuid()}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another process is building images on this host: waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _docker(*argv: str, timeout_s: float = 60, stdin: bytes | Any = None) -> str:
    """Run the command and return its stdout. Raises EngineFault when there is no engine, EnvironmentFault("image")
    when the engine refuses."""
    # The classic builder is the one every engine since 20.10 has, and it finds local images without a registry.
    environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
    feed: dict[str, Any] = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin or subprocess.DEVNULL}
    try:
        done: subprocess.CompletedProcess[bytes] = subprocess.run(
            ["docker", *argv], capture_output=True, timeout=timeout_s, env=environment, **feed
        )
    except FileNotFoundError as error:
        raise EngineFault(
            "there is no `docker` command",
            hint="install docker.io (and docker-cli where it is apart)",
            retryable=False,
        ) from error
    except subprocess.TimeoutExpired as error:
        raise EngineFault(f"docker {argv[0]} took longer than {timeout_s:g} s") from error
    if done.returncode == 0:
        return done.stdout.decode(errors="replace")
    said = (done.stdout[-4000:] + done.stderr[-4000:]).decode(errors="replace").strip().splitlines()
    tail = " | ".join(said[-8:])
    if "Cannot connect to the Docker daemon" in tail or ("permission denied" in tail and "docker.sock" in tail):
        raise EngineFault(f"the engine does not answer: {tail}", hint="start dockerd, or join the group docker")
    raise EnvironmentFault("image", f"docker {argv[0]} failed: {tail}")


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m worker.sandbox.images build|save|load|list`; references on stdout, progress on stderr."""
    parser = argparse.ArgumentParser(prog="dawn images", description="The images of the sandbox.")
    acts = parser.add_subparsers(dest="act", required=True)
    building = acts.add_parser("build", help="build what is missing")
    building.add_argument("names", nargs="*", help="default: all")
    building.add_argument("--force", action="store_true", help="build anew, the base included")
    acts.add_parser("save", help="write all images into one tar").add_argument("path", type=Path)
    acts.add_parser("load", help="bring the engine what save wrote").add_argument("path", type=Path)
    acts.add_parser("list", help="name, reference, and whether the engine holds it")
    asked = parser.parse_args(argv)

    # The process edge reads this one setting by itself: Settings takes half a second to load, and this command is
    # started again and again when there is nothing to do.
    if docker_url := os.environ.get("DAWN_DOCKER_URL"):
        os.environ["DOCKER_HOST"] = docker_url

    def progress(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        if asked.act == "build":
            for name, tag in build(asked.names or None, force=asked.force, progress=progress).items():
                print(f"{name}\t{tag}")
        elif asked.act == "save":
            save(asked.path, progress=progress)
        elif asked.act == "load":
            load(asked.path, progress=progress)
        else:
            absent = missing(names())
            for name in names():
                print(f"{name}\t{reference(name)}\t{'missing' if name in absent else 'ready'}\t{summary(name)}")
    except Fault as fault:
        print(f"dawn images: {fault}", file=sys.stderr)
        return int(fault.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
