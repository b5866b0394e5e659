"""Owns reading SWE-bench instances, JSON Lines, as tasks: repository, base commit, problem statement. Refuses to let
anything else of an instance near the agent: gold patch, tests, hints and names of tests go into a file apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scheduler.imports.fleet import ImportFault, Wanted, text_of
from worker.contract.errors import InvalidFault
from worker.contract.events import read_json

LINE_BYTES: Final = 64 * 2**20
NEEDED: Final = ("instance_id", "repo", "base_commit", "problem_statement")
INSTANCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
REPOSITORY: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9_][A-Za-z0-9._-]*")
URL: Final = re.compile(r"https://[A-Za-z0-9.-]+(:\d+)?/[A-Za-z0-9._~/-]+")
"""A path of this machine would be packed and shown to a model: who wrote the file may not name one."""


@dataclass(frozen=True)
class Instances:
    """evaluation: the instances as they were, byte for byte, for whoever judges predictions afterwards."""

    wanted: list[Wanted]
    evaluation: bytes


def read(path: Path) -> Instances:
    """All instances of a file. Raises ImportFault with every line that is none, InvalidFault."""
    wanted: list[Wanted] = []
    problems: list[str] = []
    kept: list[bytes] = []
    for number, line in _lines(path):
        kept.append(line.rstrip(b"\n") + b"\n")
        try:
            wanted.append(_wanted(read_json(line)))
        except ValueError as error:
            problems.append(f"{path}:{number} {error}")
    if problems:
        raise ImportFault(path, problems)
    return Instances(wanted, b"".join(kept))


def _wanted(row: Any) -> Wanted:
    if not isinstance(row, dict):
        raise ValueError("is no JSON object")
    if missing := [name for name in NEEDED if not isinstance(row.get(name), str) or not row[name].strip()]:
        raise ValueError(f"lacks {', '.join(missing)}")
    instance, repo, commit = row["instance_id"], row["repo"], row["base_commit"]
    if not INSTANCE.fullmatch(instance):
        raise ValueError(f"instance_id {instance[:60]!r} has other characters than letters, digits, `.`, `_` and `-`")
    if not COMMIT.fullmatch(commit):
        raise ValueError(f"base_commit {commit[:60]!r} is no whole commit id")
    if REPOSITORY.fullmatch(repo):
        repo = f"https://github.com/{repo}"
    elif not URL.fullmatch(repo):
        raise ValueError(f"repo {repo[:60]!r} is neither owner/name nor an https address")
    return Wanted(instance, repo, commit, text_of(row["problem_statement"]))


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Those that are not blank, numbered from 1."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES), b""), start=1):
                if len(line) == LINE_BYTES:
                    raise InvalidFault(f"{path}:{number} is longer than {LINE_BYTES >> 20} MiB")
                if line.strip():
                    yield number, line
    except OSError as error:
        raise InvalidFault(f"cannot read {path}: {error.strerror}", hint="name a file of JSON Lines") from error
