"""Owns reading what a repository tells agents: AGENTS.md, or CLAUDE.md where there is none, of the folder that the
work starts in and of those above it. Refuses a link that leads out of the repository.
"""

from __future__ import annotations

import os

from beneath import Refused, Root, open_file

NAMES = ("AGENTS.md", "CLAUDE.md")
BYTES_MAX = 32 * 2**10
"""Of all files together: what is said here is sent with every request."""


def instructions(repository: str, folder: str) -> list[tuple[str, str]]:
    """(path, text) of each file, the nearest to the folder first; the farthest are cut where all are too long."""
    root = Root(repository, "")
    parts = [part for part in folder.split("/") if part]
    found: dict[str, str] = {}
    left = BYTES_MAX
    for depth in range(len(parts), -1, -1):
        for name in NAMES:
            path = "/".join([*parts[:depth], name])
            text, size = _start(root, path)
            if not text.strip():
                continue
            shown = text[:left].decode("utf-8", "replace" if size <= left else "ignore")
            if size > left:
                shown += f"\n[... {size - left} more bytes of {path} are not shown here]"
            if shown not in found.values():  # a link to what was read is not read twice
                found[path] = shown
                left -= min(left, size)
            break
    return list(found.items())


def _start(root: Root, path: str) -> tuple[bytes, int]:
    """The first bytes of a text file and the size of all of it; nothing where there is none."""
    try:
        with open_file(root.find(path), path) as file:
            data, size = os.read(file, BYTES_MAX), os.fstat(file).st_size
    except (Refused, OSError):
        return b"", 0
    return (b"", 0) if b"\0" in data else (data, size)
