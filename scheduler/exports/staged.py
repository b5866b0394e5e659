"""Owns how an export gets to its place: all of it is made aside, then appears. Refuses to replace or to remove what
no export wrote, and to follow a link on its way.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
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
def tree(place: Path, mark: str, about: Mapping[str, str]) -> Iterator[Path]:
    """A folder to fill inside the block. At its end it stands at its place, with a file called mark that says what it
    is and names its files. Where an earlier one stands, its files are replaced one by one or removed, and nothing
    else is touched. A death in between leaves what the next call finishes.

    Raises UsageFault where something else is, or where a file has to be and another is that no earlier one wrote.
    """
    place = place.resolve()
    before = _named(place / mark)
    if before is None and place.exists() and not (place.is_dir() and not any(place.iterdir())):
        raise UsageFault(
            f"{place} holds something else",
            hint="name a folder that is not there, an empty one, or one that this made",
        )
    aside = _aside(place)
    aside.mkdir(parents=True)
    try:
        yield aside
        names = {path.relative_to(aside).as_posix() for path in aside.rglob("*") if path.is_file()}
        if before is None:
            _mark(aside / mark, about, names)
            aside.rename(place)  # where at most an empty folder is
            return
        for name in sorted(names):
            if not _is_free(place, name, name in before):
                raise UsageFault(f"{place / name} is in the way: this did not write it", hint="move it elsewhere")
        _mark(aside / mark, about, names | before).replace(place / mark)
        for name in sorted(names):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (aside / name).replace(place / name)
        for name in sorted(before - names):
            _remove(place, name)
        _mark(aside / mark, about, names).replace(place / mark)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _named(mark: Path) -> frozenset[str] | None:
    """The files that an earlier call wrote beside its mark; None where it did not, or says what it never would."""
    try:
        told = json.loads(mark.read_text(encoding="utf-8"))["files"] if not mark.is_symlink() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(told, list) or not all(isinstance(name, str) and _is_inside(name) for name in told):
        return None
    return frozenset(told)


def _is_inside(name: str) -> bool:
    return not name.startswith("/") and "\0" not in name and not {"", ".", ".."} & set(name.split("/"))


def _mark(mark: Path, about: Mapping[str, str], names: Iterable[str]) -> Path:
    with file(mark) as out:
        out.write(json.dumps({**about, "files": sorted(names)}, indent=1).encode() + b"\n")
    return mark


def _is_free(place: Path, name: str, is_ours: bool) -> bool:
    """Whether a file may be put there, by way of folders alone: a link leads elsewhere."""
    path = place / name
    if any(one.is_symlink() or (one.exists() and not one.is_dir()) for one in _folders(place, name)):
        return False
    return (is_ours and path.is_file() and not path.is_symlink()) or not os.path.lexists(path)


def _remove(place: Path, name: str) -> None:
    """A file that an earlier call wrote, and the folders that are empty without it."""
    if not _is_free(place, name, True):
        return  # a person's now
    (place / name).unlink(missing_ok=True)
    for folder in reversed(_folders(place, name)):
        with suppress(OSError):  # it holds something, or went before a call that was cut off
            folder.rmdir()


def _folders(place: Path, name: str) -> list[Path]:
    """From the place down to the file, without the place."""
    return [place / one for one in reversed(PurePosixPath(name).parents) if one.parts]


def tarball(files: Iterable[tuple[str, bytes]], out: IO[bytes]) -> None:
    """The same files as a tar, byte for byte the same for the same files."""
    for name, content in files:
        out.write(tar.header(name, len(content)) + content + tar.padding(len(content)))
    out.write(tar.END)


def _aside(place: Path) -> Path:
    """Beside it, so that a rename is enough."""
    return place.absolute().with_name(f".{place.absolute().name}.{secrets.token_hex(4)}")
