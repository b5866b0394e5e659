"""Owns reading the JUnit XML that a check has just written. Refuses entities, documents of a declared type, and to
read more than its caps: the file is whatever a stranger's code left there.

Operation: read. Only files that changed after base/check-began count: one that lay there before tells of another run.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from typing import Any
from xml.parsers import expat

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import ignore
from cleangit import BASE, REPO, serve

MARK = "check-began"
FILES_MAX = 200
FILE_BYTES_MAX = 64 << 20
ALL_BYTES_MAX = 128 << 20
TESTS_MAX = 20_000
NAMES_BYTES_MAX = 3 << 20
NAME_CHARS = 300
DEPTH_MAX = 64
NOTES_MAX = 20
CHUNK_BYTES = 1 << 16
WORST = ("skipped", "passed", "failed")


class Unreadable(Exception):
    """The text says what is wrong with a file."""


class Reports:
    """The tests of all files together. A test that is told of twice is as its worst end."""

    def __init__(self) -> None:
        self.tests: dict[str, str] = {}
        self.notes: list[str] = []
        self.room = NAMES_BYTES_MAX
        self.full = False

    def add(self, name: str, colour: str) -> None:
        before = self.tests.get(name)
        if before is None:
            self.room -= len(name.encode("utf-8", "replace"))
            if len(self.tests) >= TESTS_MAX or self.room < 0:
                self.full = True
                return
        if before is None or WORST.index(colour) > WORST.index(before):
            self.tests[name] = colour


class Reader:
    """One file. Children of a testcase say how it ended; whatever else stands there is passed over."""

    def __init__(self, reports: Reports) -> None:
        self.reports = reports
        self.depth = 0
        self.case: tuple[int, str, str] | None = None
        parser = self.parser = expat.ParserCreate()
        parser.StartElementHandler = self.start
        parser.EndElementHandler = self.end
        parser.StartDoctypeDeclHandler = self.refuse
        parser.EntityDeclHandler = self.refuse

    def refuse(self, *_: Any) -> None:
        raise Unreadable("declares a document type, which no report needs")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise Unreadable(f"is nested deeper than {DEPTH_MAX}")
        tag = tag.rpartition(":")[2]
        if tag == "testcase" and self.case is None:
            colour = "skipped" if attributes.get("status") in ("notrun", "skipped", "disabled") else "passed"
            self.case = (self.depth, named(attributes), colour)
        elif self.case is not None and self.depth == self.case[0] + 1:
            depth, name, colour = self.case
            if tag in ("failure", "error"):
                colour = "failed"
            elif tag == "skipped" and colour != "failed":
                colour = "skipped"
            self.case = (depth, name, colour)

    def end(self, _: str) -> None:
        if self.case is not None and self.depth == self.case[0]:
            self.reports.add(*self.case[1:])
            self.case = None
        self.depth -= 1


def named(attributes: dict[str, str]) -> str:
    """`class::name` of a test, one line; a long one is cut and keeps apart from others by its digest."""
    parts = [attributes.get(key, "").strip() for key in ("classname", "name")]
    name = " ".join("::".join(part for part in parts if part).split()) or "(no name)"
    if len(name) <= NAME_CHARS:
        return name
    return f"{name[:NAME_CHARS]}...{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:12]}"


def read(request: dict[str, Any]) -> dict[str, Any]:
    """request: {folder: where the check ran, below repo/; glob: relative to it}. Answers files (how many were read),
    tests (name -> passed, failed or skipped) and notes."""
    reports = Reports()
    began = (BASE / MARK).stat().st_ctime_ns
    files, room = 0, ALL_BYTES_MAX
    for path, shown in sorted(found(request["folder"], request["glob"])):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_ctime_ns <= began:
                continue
            files += 1
            if files > FILES_MAX:
                reports.notes.append(f"more than {FILES_MAX} files; the rest was not read")
                break
            if status.st_size > min(FILE_BYTES_MAX, room):
                reports.notes.append(f"{shown}: {status.st_size:,} bytes are too many; it was not read")
                continue
            room -= status.st_size
            reader = Reader(reports)
            try:
                left = status.st_size
                while left > 0 and (chunk := file.read(min(CHUNK_BYTES, left))):
                    left -= len(chunk)
                    reader.parser.Parse(chunk, False)
                reader.parser.Parse(b"", True)
            except (Unreadable, expat.ExpatError, ValueError, LookupError) as error:
                reports.notes.append(f"{shown}: {error}; what follows there was not read")
    if reports.full:
        reports.notes.append(f"more than {len(reports.tests):,} tests; the rest was not read")
    return {"files": files, "tests": reports.tests, "notes": reports.notes[:NOTES_MAX]}


def found(folder: str, glob: str) -> Iterator[tuple[bytes, str]]:
    """Path and shown name of what the glob names below the folder; no link is followed, and .git is left out."""
    patterns = ignore.globbed(folder, glob)
    root = os.fsencode(REPO)
    start = os.path.join(root, os.fsencode(_literal(folder, glob)))
    if os.path.realpath(start) != os.path.normpath(start):
        return
    for here, folders, names in os.walk(start):
        folders[:] = sorted(name for name in folders if name != b".git")
        for name in names:
            path = os.path.join(here, name)
            below = os.path.relpath(path, root)
            if ignore.named(patterns, below):
                yield path, below.decode("utf-8", "backslashreplace")


def _literal(folder: str, glob: str) -> str:
    """The folders that a glob names without a wildcard: where its walk begins."""
    parts = [*filter(None, folder.split("/"))]
    for part in glob.removeprefix("./").split("/")[:-1]:
        if any(sign in part for sign in "*?[\\"):
            break
        parts.append(part)
    return "/".join(parts)


if __name__ == "__main__":
    sys.exit(serve({"read": read}))
