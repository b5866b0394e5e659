"""Owns the submodules of a start commit: fetched where possible, checked out as exact bytes, nested ones too.

Refuses to fail a run for one that cannot be had: its folder stays empty and a note says so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cleangit import REPO, GitFailed, Problem, check_out, git, init, tree_entries
from remotes import Remote, Start

SUBMODULES_MAX = 200


@dataclass(frozen=True)
class Submodule:
    """path: below the repository. git_dir: holds commit."""

    path: bytes
    commit: str
    git_dir: Path


@dataclass(frozen=True)
class _Declared:
    name: str
    url: str


def check_out_submodules(remote: Remote, commit: str) -> tuple[list[Submodule], list[str]]:
    """All submodules of the commit that is checked out at REPO, and a note for each that could not be had."""
    found: list[Submodule] = []
    notes: list[str] = []
    todo = [(Submodule(b"", commit, REPO / ".git"), remote)]
    while todo:
        parent, source = todo.pop(0)
        links = [(path, oid) for path, mode, oid in tree_entries(parent.git_dir, parent.commit) if mode == "160000"]
        declared = _declarations(parent) if links else {}
        for path, oid in links:
            whole = os.path.join(parent.path, path)
            try:
                if len(found) >= SUBMODULES_MAX:
                    raise Problem("repository", f"there are more than {SUBMODULES_MAX}")
                child, child_source = _check_out(parent, source, declared.get(path), whole, oid)
            except (Problem, GitFailed) as failed:
                notes.append(f"submodule {os.fsdecode(whole)} is left empty: {failed}")
            else:
                found.append(child)
                todo.append((child, child_source))
    return found, notes


def _check_out(
    parent: Submodule, source: Remote, declared: _Declared | None, path: bytes, oid: str
) -> tuple[Submodule, Remote]:
    if declared is None or not declared.url or not _safe(declared.name):
        raise Problem("repository", "no sound entry in .gitmodules names it")
    work_tree = REPO / os.fsdecode(path)
    if os.path.realpath(work_tree) != os.path.abspath(work_tree):
        raise Problem("repository", "its folder lies behind a link")
    remote = source.submodule(declared.name, declared.url)
    git_dir = parent.git_dir / "modules" / declared.name
    git_dir.mkdir(parents=True)
    start = Start(oid)
    init(git_dir, object_format=start.object_format)
    remote.fetch(git_dir, start)
    work_tree.mkdir(parents=True, exist_ok=True)
    check_out(git_dir, work_tree, oid)
    git("config", "core.bare", "false", git_dir=git_dir)
    git("config", "core.worktree", os.path.relpath(work_tree, git_dir), git_dir=git_dir)
    (work_tree / ".git").write_text(f"gitdir: {os.path.relpath(git_dir, work_tree)}\n")
    git("config", f"submodule.{declared.name}.url", declared.url, git_dir=parent.git_dir)
    return Submodule(path, oid, git_dir), remote


def _declarations(parent: Submodule) -> dict[bytes, _Declared]:
    """path -> name and URL, from .gitmodules of the parent's commit (of a blob, git follows no includes)."""
    try:
        listed = git("config", "--blob", f"{parent.commit}:.gitmodules", "--null", "--list", git_dir=parent.git_dir)
    except GitFailed:
        return {}
    values: dict[str, dict[str, str]] = {}
    for entry in listed.split(b"\0"):
        key, _, value = os.fsdecode(entry).partition("\n")
        section, _, rest = key.partition(".")
        name, _, variable = rest.rpartition(".")
        if section == "submodule" and name:
            values.setdefault(name, {})[variable] = value
    return {
        os.fsencode(value["path"]): _Declared(name, value.get("url", ""))
        for name, value in values.items()
        if "path" in value
    }


def _safe(name: str) -> bool:
    return not name.startswith("/") and not {"", ".", ".."} & set(name.split("/"))
