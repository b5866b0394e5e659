"""Owns how an export gets to its place: all of it is made aside, then appears at once. Refuses to replace a folder
that holds anything, and to leave half of an export behind.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from worker.contract.errors import UsageFault
from worker.store import tar


@contextmanager
def file(place: Path) -> Iterator[IO[bytes]]:
    """What is written inside the block is the file at its end; a fault leaves what was there before."""
    aside = _aside(place)
    try:
        with aside.open("xb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        aside.replace(place)
    finally:
        aside.unlink(missing_ok=True)


def folder(place: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Make a folder of these files. Raises UsageFault when one is there that is not empty."""
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UsageFault(f"{place} is there already", hint="name a folder that is not there, or an empty one")
    aside = _aside(place)
    aside.mkdir()
    try:
        for name, content in files:
            (aside / name).write_bytes(content)
        aside.rename(place)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def tree(place: Path, mark: str, content: str) -> Iterator[Path]:
    """A folder to fill inside the block. At its end it holds a file called mark and stands at its place, where an
    earlier one with that mark may have stood, which goes as a whole. Raises UsageFault where something else is."""
    place = place.resolve()
    if place.exists() and not (place.is_dir() and ((place / mark).is_file() or not any(place.iterdir()))):
        raise UsageFault(
            f"{place} holds something else",
            hint="name a folder that is not there, an empty one, or one that this made",
        )
    aside, before = _aside(place), _aside(place)
    aside.mkdir(parents=True)
    try:
        yield aside
        (aside / mark).write_text(content, encoding="utf-8")
        if place.exists():
            place.rename(before)
        try:
            aside.rename(place)
        except OSError:
            if before.exists():
                before.rename(place)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(before, ignore_errors=True)


def tarball(files: Iterable[tuple[str, bytes]], out: IO[bytes]) -> None:
    """The same files as a tar, byte for byte the same for the same files."""
    for name, content in files:
        out.write(tar.header(name, len(content)) + content + tar.padding(len(content)))
    out.write(tar.END)


def _aside(place: Path) -> Path:
    """Beside it, so that a rename is enough."""
    return place.absolute().with_name(f".{place.absolute().name}.{secrets.token_hex(4)}")
