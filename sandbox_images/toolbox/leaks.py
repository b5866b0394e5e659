"""Owns looking for values that must not stay: in a file system that is to become an image (base/root, a tar of it),
in the work tree and in HOME. Refuses to unpack anything.

Operation: look (sought: name -> values in Base64). Contents, names and link targets are looked at as bytes. base/root
is gone afterwards.
"""

from __future__ import annotations

import base64
import itertools
import os
import sys
import tarfile
from collections.abc import Iterable, Iterator
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from cleangit import Problem, serve
from volume import CHUNK_BYTES, Refused, Volume

WORKSPACE = "/workspace"
ROOT = "base/root"
TOLD_MAX = 5
"""Files that are named."""

Entry = tuple[str, str, Iterable[bytes]]
"""Path, link target or "", content."""


class Sought:
    """Values by the name of their secret."""

    def __init__(self, encoded: dict[str, list[str]]) -> None:
        self._values = [(name, base64.b64decode(value)) for name, values in encoded.items() for value in values]
        self._overlap = max(len(value) for _, value in self._values) - 1

    def found(self, chunks: Iterable[bytes]) -> str:
        """The secret that they hold, "" for none; one that lies over two chunks is found too."""
        before = b""
        for chunk in chunks:
            data = before + chunk
            for name, value in self._values:
                if value in data:
                    return name
            before = data[-self._overlap :]
        return ""


def look(request: dict[str, Any]) -> dict[str, Any]:
    """Raises Problem("setup") that names the files."""
    sought = Sought(request["sought"])
    volume = Volume(WORKSPACE)
    told = []
    try:
        for path, target, content in itertools.chain(_kept(volume), _root(volume)):
            name = sought.found([os.fsencode(f"{path}\0{target}")]) or sought.found(content)
            if name:
                told.append(f"{path} (secret {name})")
            if len(told) == TOLD_MAX:
                break
    except Refused as refused:
        raise Problem("setup", str(refused)) from refused
    finally:
        volume.remove(ROOT)
    if told:
        raise Problem(
            "setup",
            f"setup left the value of a secret in {', '.join(told)}, where every later call would find it",
            "have setup remove it before it ends, or hand it to the program without writing it down",
        )
    return {}


def _kept(volume: Volume) -> Iterator[Entry]:
    """Work tree and HOME, caches too. base/ is proven to be as it was."""
    for top in ("repo", "home"):
        for _, path, entry in volume.entries(top, lambda path, name: True):
            target = volume.link_target(path) if entry.is_symlink() else ""
            content = volume.chunks(path) if entry.is_file(follow_symlinks=False) else ()
            yield f"{WORKSPACE}/{path}", target, content


def _root(volume: Volume) -> Iterator[Entry]:
    with os.fdopen(volume.open_file(ROOT), "rb") as file, tarfile.open(fileobj=file, mode="r|") as tar:
        while (member := tar.next()) is not None:
            yield f"/{member.name}", member.linkname, _content(tar, member)
            tar.members.clear()  # it keeps them all, for a way back that a stream has not


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    file = tar.extractfile(member) if member.isreg() else None
    while file is not None and (chunk := file.read(CHUNK_BYTES)):
        yield chunk


if __name__ == "__main__":
    sys.exit(serve({"look": look}))
