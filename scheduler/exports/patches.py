"""Owns the patch set: a file for each run's patch, `series` with their order, `manifest.json` with what each is of.
Refuses a name that a file system or a shell could take for something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from scheduler.exports.chosen import Chosen, maker, patch_of
from scheduler.exports.words import encoded
from worker.contract.events import digest

NAME_CHARS: Final = 100
RESERVED: Final = re.compile(r"^(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)
"""Devices, where names of files may be no devices."""


def files(chosen: Chosen) -> Iterator[tuple[str, bytes]]:
    """(name, content) of each file of the set. Raises IntegrityFault for one that is not what its seal names."""
    listed: list[dict[str, Any]] = []
    taken: set[str] = set()
    for view in chosen.standing:
        made_by = maker(chosen.archive, view.run)
        patch = patch_of(chosen.archive, made_by)
        if not patch:
            continue
        name = _free(safe(view.task.target), view.task.run, taken)
        sealed, prepared = view.run.sealed, made_by.prepared
        listed.append(
            {
                "file": name,
                "sha256": digest(patch),
                "bytes": len(patch),
                "run": view.task.run,
                "made_by": made_by.id,
                "target": view.task.target,
                "url": view.task.repo.url,
                "commit": prepared.commit if prepared else None,
                "verdict": sealed.verdict if sealed else None,
            }
        )
        yield name, patch
    yield "series", "".join(f"{entry['file']}\n" for entry in listed).encode()
    yield "manifest.json", encoded({"schema": "dawn.patches/1", "patches": listed}, indent=2) + b"\n"


def safe(target: str) -> str:
    """A name for a file made of letters, digits, `.`, `_` and `-`, which begins with a letter or digit."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", target).strip("-._")[:NAME_CHARS].rstrip("-._")
    return name if name and not RESERVED.match(name) else f"target-{name}".rstrip("-")


def _free(name: str, run: str, taken: set[str]) -> str:
    """The file's name, which tells the run too where another one has it already, in letters of any case."""
    if name.lower() in taken:
        name = f"{name}-{run.rpartition('-')[2]}"
    taken.add(name.lower())
    return f"{name}.patch"
