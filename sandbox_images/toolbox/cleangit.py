"""Owns how our in-container programs speak: JSON in, one JSON line out, and git with nothing but our own settings.

Refuses to let git read a configuration, hook, attribute file or environment variable that somebody else wrote.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

WORKSPACE = Path(os.environ.get("DAWN_WORKSPACE", "/workspace"))
REPO = WORKSPACE / "repo"
BASE = WORKSPACE / "base"
HOME = WORKSPACE / "home"

EXACT_BYTES = "* -text !eol -filter -ident !working-tree-encoding !diff !merge\n"
"""For info/attributes, which no .gitattributes can override: files are written and read byte for byte."""

PROBLEM_EXIT_CODE = 3
"""The program understood what is wrong and said so in its JSON line."""

_PASSED_ON = ("PATH", "TMPDIR", "GIT_SSL_CAINFO", "SSL_CERT_FILE", "SSL_CERT_DIR")
_SETTINGS = {
    "core.hooksPath": "/dev/null",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.fsmonitor": "false",
    "core.autocrlf": "false",
    "core.fileMode": "true",
    "core.symlinks": "true",
    "core.quotePath": "false",
    "core.protectNTFS": "false",
    "core.protectHFS": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    "safe.directory": "*",
}


class Problem(Exception):
    """What the caller's input did wrong. kind: repository, ref, patch; message and hint: one line each."""

    def __init__(self, kind: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.hint = hint


class GitFailed(Exception):
    """git ended with a code other than 0; text is what it said on stderr."""

    def __init__(self, arguments: Sequence[str], code: int, text: str) -> None:
        super().__init__(f"git {arguments[0]} ended with {code}: {text}")
        self.text = text


def environment(extra: Mapping[str, str] | None = None, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """The whole environment of a git process. settings: configuration on top of ours; neither is seen in argv."""
    merged = {**_SETTINGS, **(settings or {})}
    pairs = {}
    for number, (name, value) in enumerate(merged.items()):
        pairs[f"GIT_CONFIG_KEY_{number}"] = name
        pairs[f"GIT_CONFIG_VALUE_{number}"] = value
    return {
        **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        "HOME": "/nonexistent",
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "",
        "SSH_ASKPASS": "",
        "GIT_PAGER": "cat",
        "GIT_CONFIG_COUNT": str(len(merged)),
        **pairs,
        **(extra or {}),
    }


def git(
    *arguments: str | bytes,
    git_dir: Path | None = None,
    work_tree: Path | None = None,
    input: bytes = b"",
    stdin: IO[bytes] | None = None,
    settings: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> bytes:
    """Standard output of one git command. Raises GitFailed. Without git_dir it runs outside of any repository."""
    words = [argument if isinstance(argument, str) else os.fsdecode(argument) for argument in arguments]
    done = subprocess.run(
        ["git", *words],
        stdin=stdin,
        input=None if stdin else input,
        capture_output=True,
        cwd=work_tree or "/",
        env=environment({**_places(git_dir, work_tree), **(env or {})}, settings),
        check=False,
    )
    if done.returncode:
        raise GitFailed(words, done.returncode, done.stderr.decode("utf-8", "replace").strip())
    return done.stdout


@contextmanager
def reading_git(*arguments: str, git_dir: Path) -> Iterator[IO[bytes]]:
    """Standard output of a git command, to be read in parts. Raises GitFailed at the end."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            ["git", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            cwd="/",
            env=environment(_places(git_dir, None)),
        )
        assert process.stdout is not None, "it is a pipe"
        with process:
            yield process.stdout
        if process.returncode:
            said.seek(0)
            raise GitFailed(arguments, process.returncode, said.read().decode("utf-8", "replace").strip())


def init(git_dir: Path, *, object_format: str = "sha1", bare: bool = True) -> None:
    """A new git directory without template, so without hooks, that moves bytes as they are."""
    kind = ["--bare"] if bare else []
    git(
        "init",
        "--quiet",
        "--template=",
        f"--object-format={object_format}",
        "--initial-branch=main",
        *kind,
        env={"GIT_DIR": str(git_dir)},
    )
    (git_dir / "info").mkdir(exist_ok=True)
    (git_dir / "info" / "attributes").write_text(EXACT_BYTES)


def check_out(git_dir: Path, work_tree: Path, commit: str, *, branch: str = "") -> None:
    """Write the commit's files, byte for byte, into an empty folder; HEAD is then the branch, or detached."""
    where = ["--no-track", "-B", branch] if branch else ["--detach"]
    git("checkout", "--quiet", *where, commit, git_dir=git_dir, work_tree=work_tree)


def object_format(git_dir: Path) -> str:
    """sha1 or sha256."""
    return git("rev-parse", "--show-object-format", git_dir=git_dir).decode().strip()


def tree_entries(git_dir: Path, tree: str) -> Iterator[tuple[bytes, str, str]]:
    """(path, mode, object id) of every blob, link and submodule below a tree or commit, in git's order."""
    for line in git("ls-tree", "-r", "-z", "--full-tree", tree, git_dir=git_dir).split(b"\0"):
        if line:
            about, path = line.split(b"\t", 1)
            mode, _, oid = about.decode().split(" ")
            yield path, mode, oid


def quoted(path: bytes) -> bytes:
    """A path as fast-import reads it: in double quotes with C escapes."""
    escapes = {0x22: b'\\"', 0x5C: b"\\\\", 0x0A: b"\\n"}
    return b'"' + b"".join(escapes.get(byte, bytes([byte])) for byte in path) + b'"'


def serve(operations: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]) -> int:
    """The whole program: one request from stdin, its operation, one JSON line on stdout, an exit code."""
    request = json.loads(sys.stdin.buffer.read())
    try:
        answer, code = operations[request["op"]](request), 0
    except Problem as problem:
        error = {"kind": problem.kind, "message": problem.message, "hint": problem.hint}
        answer, code = {"error": error}, PROBLEM_EXIT_CODE
    sys.stdout.write(json.dumps(answer) + "\n")
    return code


def _places(git_dir: Path | None, work_tree: Path | None) -> dict[str, str]:
    places = {"GIT_DIR": str(git_dir) if git_dir else "/nonexistent"}
    if work_tree:
        places["GIT_WORK_TREE"] = str(work_tree)
    return places
