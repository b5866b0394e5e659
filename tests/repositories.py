"""Owns the repositories and archives that tests start from, made by git as a person would. Refuses containers."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

MIB = 2**20


def git(folder: Path, *arguments: str) -> str:
    """A git command of a person in a repository of their own."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{who}_{what}": "ann@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    command = ["git", "-c", "protocol.file.allow=always", "-C", str(folder), *arguments]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.strip()


def commit_all(folder: Path, message: str = "more") -> str:
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def packed_git(folder: Path) -> bytes:
    """A tar of the content of a git directory, configuration and hooks included, as a stranger may pack it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.add(folder, ".git")
    return out.getvalue()


def tar_of(*members: tuple[str, bytes | str], top: str = "pkg-1.0/") -> bytes:
    """A tar.gz: bytes make a file, text a symbolic link; a name that ends with + is executable."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(top + name.rstrip("+"))
            info.mode = 0o755 if name.endswith("+") else 0o644
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def first_commit(folder: Path) -> Path:
    """A new repository with one commit of four files on main."""
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "f.txt").write_text("one\ntwo\nthree\n")
    (folder / "b.bin").write_bytes(b"\0\1\2")
    (folder / "run.sh").write_text("echo hi\n")
    (folder / "ren.txt").write_text("".join(f"line {n}\n" for n in range(50)))
    commit_all(folder, "first")
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A repository with one commit on main, in a folder with a difficult name (T44)."""
    return first_commit(tmp_path / "söurce repo")


@pytest.fixture
def with_submodule(source: Path, tmp_path: Path) -> Path:
    """`source` with a submodule at lib/sub, cloned from a repository beside it."""
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "--quiet", "--initial-branch=main")
    (library / "u.py").write_text("u = 1\n")
    commit_all(library)
    git(source, "submodule", "--quiet", "add", str(library), "lib/sub")
    commit_all(source)
    return source
