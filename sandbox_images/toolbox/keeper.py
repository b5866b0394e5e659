"""Owns one workspace volume for as long as it lives: answers requests about it on stdin and stdout.
Refuses to run anything but itself, and ends when stdin does.

A request is one line of JSON, {"op": ...}; its answer is one line of JSON, {"ok": true, ...} or
{"ok": false, "kind": "too_large" | "bad_request" | "io", "error": text}. Bulk data in either direction is a stream
of frames (frames.py) that follows the line. A request's frames are read to their end also when it is refused. Paths
are text with surrogate escapes in JSON. Below, `>` are frames of the request, `<` frames that follow a good answer.

  hello limits        makes repo/, home/ and base/; limits: {"workspace_bytes", "workspace_files", "snapshot_bytes"},
                      each a number or absent. Answers version.
  ping                Answers free, the bytes left on the volume's disk.
  used                Answers bytes, what the volume takes on disk. This and ping may be asked while a call runs.
  own                 repo/ and home/ to uid 1000, base/ to root and read-only to everybody else.
  put name  > bytes   writes base/<name> in one step.
  get name  < bytes   reads base/<name>. Answers bytes.
  snapshot full  < tar if changed   walks. Answers listing, tree (digests), full (true also when nothing was walked
                      before), changed, files (paths below repo/ whose part of the tree changed, at most 200).
                      Refused over a limit, and then nothing of it is remembered.
  restore count  > tar, count times   empties the volume, lays them down, walks. Answers as snapshot, without frames.
  tree  < JSON        walks; [[path below repo/, mode, SHA-256], ...] in the order of the paths' bytes.
  ignored             walks. Answers paths, the top-most ones below repo/ that the tree leaves out, at most 1,000.

`tree` and `ignored` leave what the next snapshot is compared with alone. An error in the middle of outgoing frames
ends the keeper: a half-sent tar has no other honest end.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import frames
from snapshots import Layer, pack
from volume import Refused, Volume
from walk import Caps, Walk, Walker

VERSION = 1
AGENT = 1000
LINE_BYTES = 1 << 20
FILES_SHOWN = 200
LEFT_OUT_SHOWN = 1_000

Answer = tuple[dict[str, Any], Iterable[bytes] | None]
"""Fields of the answer, and the frames that follow it."""


class Keeper:
    """The operations on the volume at root. Each takes the request and its incoming streams of frames."""

    def __init__(self, root: str) -> None:
        self._volume = Volume(root)
        self._walker = Walker(self._volume)
        self._caps = Caps()

    def answer(self, request: dict[str, Any], incoming: list[frames.Incoming]) -> Answer:
        """Raises Refused, OSError, and KeyError or TypeError for a request that makes no sense."""
        operation = request["op"]
        if operation == "snapshot":
            return self._snapshot(full=request["full"])
        if operation == "restore":
            return self._restore(incoming)
        if operation == "put":
            self._volume.replace_file(f"base/{request['name']}", incoming[0].chunks())
            return {}, None
        if operation == "get":
            path = f"base/{request['name']}"
            found = self._volume.stat(path)
            if found is None:
                raise Refused("bad_request", f"there is no {path}")
            return {"bytes": found.st_size}, self._volume.chunks(path)
        if operation == "tree":
            return {}, _as_json(self._walker.walk(Caps()).tree)
        if operation == "ignored":
            return {"paths": self._walker.walk(Caps()).left_out[:LEFT_OUT_SHOWN]}, None
        if operation == "ping":
            return {"free": self._volume.free_bytes()}, None
        if operation == "used":
            return {"bytes": self._volume.used_bytes()}, None
        if operation == "own":
            self._volume.own(AGENT)
        elif operation == "hello":
            self._caps = Caps(**request["limits"])
            self._volume.make_tops(AGENT)
        else:
            raise Refused("bad_request", f"no operation {operation!r}")
        return {"version": VERSION}, None

    def _snapshot(self, *, full: bool) -> Answer:
        last = self._walker.last
        full = full or last is None
        walk = self._walker.walk(self._caps)
        changed = full or bool(walk.changed or walk.removed)
        self._walker.last = walk
        answer = {**_found(walk, last), "full": full, "changed": changed}
        return answer, pack(self._volume, walk, full=full) if changed else None

    def _restore(self, incoming: list[frames.Incoming]) -> Answer:
        self._walker.last = None
        self._volume.empty()
        layer = Layer(
            self._volume, workspace_bytes=self._caps.workspace_bytes, workspace_files=self._caps.workspace_files
        )
        for part in incoming:
            layer.lay(part.read)
            if any(chunk.strip(b"\0") for chunk in part.chunks()):
                raise Refused("bad_request", "a snapshot goes on after its end")
        walk = self._walker.walk(Caps())
        self._walker.last = walk
        return {**_found(walk, walk), "full": False, "changed": False}, None


def serve(keeper: Keeper, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until they end."""
    while line := requests.readline(LINE_BYTES):
        incoming: list[frames.Incoming] = []
        outgoing = None
        try:
            request = json.loads(line)
            count = {"put": 1, "restore": request.get("count")}.get(request["op"], 0)
            incoming = [frames.Incoming(requests) for _ in range(count)]
            fields, outgoing = keeper.answer(request, incoming)
            fields["ok"] = True
        except Refused as refusal:
            fields = {"ok": False, "kind": refusal.kind, "error": str(refusal)}
        except OSError as error:
            fields = {"ok": False, "kind": "io", "error": str(error)}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            fields = {"ok": False, "kind": "bad_request", "error": f"{type(error).__name__}: {error}"}
        for stream in incoming:
            for _ in stream.chunks():
                pass
        answers.write(json.dumps(fields).encode() + b"\n")
        if outgoing is not None:
            frames.send(answers, outgoing)
        answers.flush()


def _found(walk: Walk, last: Walk | None) -> dict[str, Any]:
    before = last.tree if last else {}
    files: list[str] = []
    if walk.tree is not before:
        paths = dict.fromkeys([*walk.tree, *before])
        files = [path for path in paths if walk.tree.get(path) != before.get(path)]
    return {"listing": walk.listing, "tree": walk.tree_digest, "files": files[:FILES_SHOWN]}


def _as_json(tree: dict[str, tuple[str, str]]) -> Iterator[bytes]:
    separator = b"["
    for path, (mode, digest) in tree.items():
        yield separator + json.dumps([path, mode, digest]).encode()
        separator = b",\n"
    yield b"]" if tree else b"[]"


def main() -> None:
    root = sys.argv[1] if len(sys.argv) > 1 else "/workspace"
    os.umask(0)
    # Answers get a descriptor of their own: whatever else prints, prints to stderr.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(Keeper(root), os.fdopen(os.dup(0), "rb"), answers)


if __name__ == "__main__":
    main()
