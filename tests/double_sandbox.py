"""Owns a container engine in memory that keeps the Sandbox protocol, for the histories. Refuses what a history cannot
tell: modes, links, folders, limits, isolation.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal

from worker.contract.cancel import Cancel
from worker.contract.errors import (
    ConflictFault,
    EnvironmentFault,
    KeeperFault,
)
from worker.contract.events import canonical, digest
from worker.contract.task import Limits
from worker.sandbox.protocol import Command, Output, Owner, Result, Snapshot

CHUNK_BYTES = 2**20


class MemorySandbox:
    """One engine. A workspace is a dict of files; a shell call is a small part of sh (see `_Shell`).

    folder: where outputs and snapshots lie, as the real one's spool. images: names and ids it holds.
    """

    def __init__(self, engine_id: str, folder: Path, images: Mapping[str, str]) -> None:
        self.engine_id = engine_id
        self.folder = folder
        self.things: dict[str, Owner] = {}
        self._images = dict(images)
        self._numbers = count()

    @contextmanager
    def workspace(self, owner: Owner, image: str, limits: Limits) -> Iterator[MemoryWorkspace]:
        opened = self.open(owner, image, limits)
        try:
            yield opened
        finally:
            opened.close()

    def open(self, owner: Owner, image: str, limits: Limits) -> MemoryWorkspace:
        """A workspace that stays until it is closed or removed."""
        self.image_id(image)
        number = next(self._numbers)
        names = (f"volume:{number}", f"container:{number}")
        self.things.update(dict.fromkeys(names, owner))
        return MemoryWorkspace(self, names)

    def has_image(self, image: str) -> bool:
        return image in self._images or image in self._images.values()

    def image_id(self, image: str) -> str:
        if not self.has_image(image):
            raise EnvironmentFault("image", f"the engine has no image {image}", hint="another one may")
        return self._images.get(image, image)

    def has_origin(self, image: str) -> bool:
        return True  # so that nobody asks for its bytes

    def trim_images(self, most_bytes: int) -> int:
        return 0

    def owned(self, archive: str) -> list[tuple[Owner, str]]:
        return [(owner, name) for name, owner in self.things.items() if owner.archive == archive]

    def remove(self, resource: str) -> None:
        self.things.pop(resource, None)

    def spooled(self, data: bytes) -> Path:
        """A new file of the spool with these bytes."""
        path = self.folder / f"{self.engine_id}-{next(self._numbers)}"
        path.write_bytes(data)
        return path


class MemoryWorkspace:
    """See Workspace. files: path below /workspace -> content; its modes, links and folders are not modelled."""

    def __init__(self, engine: MemorySandbox, names: tuple[str, ...]) -> None:
        self._engine = engine
        self._names = names
        self.files: dict[str, bytes] = {}
        self._walked: dict[str, bytes] = {}

    def close(self) -> None:
        for name in self._names:
            self._engine.remove(name)

    def run(self, command: Command, *, cancel: Cancel) -> Result:
        self._alive()
        files = self.files if command.writes else dict(self.files)
        if command.kind == "shell":
            shell = _Shell(files, command.cwd, command.timeout_s, cancel)
            status, code, said = shell.run(command.payload.decode())
            waited_s = shell.waited_s
        else:
            status, (code, said), waited_s = "ok", PROGRAMS[command.program](files, json.loads(command.payload)), 0.0
        self._alive()
        kept = len(said)
        output = Output(self._engine.spooled(said), kept, kept, kept)
        cancelled = status == "interrupted"
        return Result(status, code, output, round(waited_s * 1000), cancelled=cancelled)  # type: ignore[arg-type]

    def expect(self, kind: Literal["shell", "toolbox"], *, writes: bool) -> None:
        pass

    def snapshot(self, *, full: bool = False) -> Snapshot:
        self._alive()
        now = self.files if full else _walk(self.files)
        before: Mapping[str, bytes] = {} if full else self._walked
        changed = {path: data for path, data in now.items() if before.get(path) != data}
        removed = sorted(set(before) - set(now))
        touched = sorted({*changed, *removed})
        self._walked = _walk(self.files)
        packed = {path: base64.b64encode(data).decode() for path, data in sorted(changed.items())}
        stored = canonical({"full": full, "removed": removed, "changed": packed}) if full or touched else b""
        return Snapshot(
            listing=self._listing(),
            tree=digest(canonical(self.tree())),
            path=self._engine.spooled(stored) if stored else None,
            bytes=len(stored),
            full=full,
            files=tuple(path.removeprefix("repo/") for path in touched if path.startswith("repo/")),
        )

    def restore(self, chain: Sequence[Iterable[bytes]]) -> Snapshot:
        self._alive()
        self.files.clear()
        for part in chain:
            stored = json.loads(b"".join(part))
            if stored["full"]:
                self.files.clear()
            for path in stored["removed"]:
                self.files.pop(path, None)
            self.files |= {path: base64.b64decode(data) for path, data in stored["changed"].items()}
        self._walked = _walk(self.files)
        return Snapshot(self._listing(), digest(canonical(self.tree())), None, 0, False)

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        self._alive()
        self.files[f"base/{name}"] = b"".join(chunks)

    def get(self, name: str) -> Iterator[bytes]:
        self._alive()
        yield self.files[f"base/{name}"]

    def own(self) -> None:
        self._alive()

    def tree(self) -> list[tuple[str, str, str]]:
        return [(path, "100644", digest(data)) for path, data in sorted(_repo(self.files).items())]

    def ignored(self) -> list[str]:
        return []

    def _listing(self) -> str:
        return digest(canonical({path: digest(data) for path, data in _walk(self.files).items()}))

    def _alive(self) -> None:
        if not all(name in self._engine.things for name in self._names):
            raise KeeperFault("the keeper is gone: somebody removed the workspace")


class _Shell:
    """`;`, newline, `&&`, `>`, `>>`, and echo, cat, rm, mv, test -f, grep -q, sleep, exit, true, false."""

    def __init__(self, files: dict[str, bytes], cwd: str, timeout_s: float, cancel: Cancel) -> None:
        self._files, self._folder = files, cwd.removeprefix("/workspace/")
        self._timeout_s, self._cancel = timeout_s, cancel
        self._said = b""
        self.waited_s = 0.0

    def run(self, script: str) -> tuple[str, int | None, bytes]:
        """Status, exit code, output."""
        code = 0
        for line in script.replace("\n", ";").split(";"):
            for part in line.split("&&") if line.strip() else ():
                words = shlex.split(part)
                if words[0] == "exit":
                    return "ok", int(words[1]), self._said
                if words[0] == "sleep" and (ended := self._sleep(float(words[1]))):
                    return ended, None, self._said
                code = self._simple(words)
                if code:
                    break
        return "ok", code, self._said

    def _sleep(self, seconds: float) -> str:
        """Why it was cut short, "" when it was not."""
        left_s = self._timeout_s - self.waited_s
        if self._cancel.wait(min(seconds, left_s)):
            return "interrupted"
        self.waited_s += min(seconds, left_s)
        return "timeout" if seconds > left_s else ""

    def _simple(self, words: list[str]) -> int:
        into = None
        if len(words) > 2 and words[-2] in (">", ">>"):
            into, append = self._path(words[-1]), words[-2] == ">>"
            words = words[:-2]
        code, said = self._command(words)
        if into is None:
            self._said += said
        else:
            self._files[into] = (self._files.get(into, b"") if append else b"") + said
        return code

    def _command(self, words: list[str]) -> tuple[int, bytes]:
        name, *rest = words
        paths = [self._path(word) for word in rest]
        match name:
            case "echo":
                return 0, " ".join(rest).encode() + b"\n"
            case "cat" if all(path in self._files for path in paths):
                return 0, b"".join(self._files[path] for path in paths)
            case "rm" if all(path in self._files for path in paths):
                for path in paths:
                    del self._files[path]
                return 0, b""
            case "mv" if paths[0] in self._files:
                self._files[paths[1]] = self._files.pop(paths[0])
                return 0, b""
            case "test":
                return int(paths[1] not in self._files), b""
            case "grep":
                return int(rest[1].encode() not in self._files.get(paths[2], b"")), b""
            case "true" | "sleep":
                return 0, b""
            case "false" | "cat" | "rm" | "mv":
                return 1, b""
        return 127, f"{name}: not found\n".encode()

    def _path(self, word: str) -> str:
        return word.removeprefix("/workspace/") if word.startswith("/") else f"{self._folder}/{word}"


def _fetch(files: dict[str, bytes], request: Mapping[str, Any]) -> tuple[int, bytes]:
    """repository.py: a packed source is a JSON object, path -> text."""
    source = json.loads(files.pop("base/source"))
    files |= {f"repo/{path}": text.encode() for path, text in source.items()}
    files["base/start"] = canonical(source)
    return 0, canonical({"commit": "0" * 40, "branch": "", "tracked": len(source), "notes": [], "instructions": []})


def _patch(files: dict[str, bytes], request: Mapping[str, Any]) -> tuple[int, bytes]:
    """patch.py: a patch is a JSON object, path -> new text or null."""
    start = json.loads(files["base/start"])
    if request["op"] == "apply":
        for path, text in json.loads(files["base/patch.diff"]).items():
            if text is None:
                files.pop(f"repo/{path}")
            else:
                files[f"repo/{path}"] = text.encode()
        return 0, b"{}"
    now = {path: data.decode() for path, data in _repo(files).items()}
    changes = {path: now.get(path) for path in sorted({*start, *now}) if start.get(path) != now.get(path)}
    files["base/patch.diff"] = canonical(changes) if changes else b""
    counts = {path: [0 if text is None else text.count("\n"), 0] for path, text in changes.items()}
    sizes = {"patch.diff": len(files["base/patch.diff"])}
    return 0, canonical({"sizes": sizes, "files": counts, "left_out": {}, "notes": []})


def _write(files: dict[str, bytes], request: Mapping[str, Any]) -> tuple[int, bytes]:
    """files.py, of which only write_file is modelled."""
    arguments = request["arguments"]
    if request["tool"] != "write_file":
        raise ConflictFault(f"the double has no tool {request['tool']}")
    files[f"repo/{arguments['path']}"] = arguments["content"].encode()
    return 0, f"{arguments['path']}: written\n".encode()


PROGRAMS: dict[str, Callable[[dict[str, bytes], Any], tuple[int, bytes]]] = {
    "repository": _fetch,
    "patch": _patch,
    "files": _write,
}


def _walk(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """What an ordinary snapshot covers: the agent cannot change base/."""
    return {path: data for path, data in files.items() if not path.startswith("base/")}


def _repo(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The work tree, by path relative to it."""
    return {path.removeprefix("repo/"): data for path, data in files.items() if path.startswith("repo/")}
