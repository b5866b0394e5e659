"""Owns the commit that a patch becomes, and its way to the branch of a remote.

Refuses to overwrite what it was not told of: a push names the commit that the branch must have. What is told of the
remote is for the caller to judge.

Operations: build (url, commit, branch, base, started, message, name, email, at; base/patch.diff) and, on the same
volume, push (url, branch, before, commit).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from cleangit import BASE, GitFailed, Problem, git, init, serve
from remotes import Remote, Start, open_url

GIT_DIR = BASE / "delivery.git"
SAID_LINES = 4
_ORIGIN = "refs/remotes/origin/"
_DENIED = re.compile(
    r"could not read Username|Authentication failed|Permission denied|not found|\b(401|403|404)\b|denied",
    re.IGNORECASE,
)


def build(request: dict[str, Any]) -> dict[str, Any]:
    """The commit, the same for the same request whoever makes it; and what the remote's branches are.

    base: the branch that it shall go into: the one that is asked for, else the one that the run started from if it is
    still there, else the remote's own. there: whether all that is changed is on that already. tip: of the delivery's
    branch, "" where there is none; tip_run: whose `Dawnfleet-Run` it names; tip_by: its author. holds: whether that
    branch has our commit already.
    """
    shutil.rmtree(GIT_DIR, ignore_errors=True)  # of a try that was cut off
    start = Start(request["commit"])
    init(GIT_DIR, object_format=start.object_format)
    remote = open_url(request["url"])
    try:
        remote.fetch(GIT_DIR, start)
        started = request["started"] if _commit(_ORIGIN + request["started"]) else ""
        base = request["base"] or started or remote.start(None).branch
    except Problem as problem:
        raise Problem(_kind(problem.message), problem.message, problem.hint) from problem
    base_tip, tip = _commit(_ORIGIN + base), _commit(_ORIGIN + request["branch"])
    if not base_tip:
        raise Problem("refused", f"{remote.label} has no branch {base!r} that it could go into")
    commit = _commit_of(request, start.commit)
    changed = _changed(start.commit, commit)
    return {
        "commit": commit,
        "base": base,
        "tip": tip,
        "tip_run": _log(tip, "%(trailers:key=Dawnfleet-Run,valueonly)") if tip else "",
        "tip_by": _log(tip, "%an") if tip else "",
        "holds": bool(tip) and _is_ancestor(commit, tip),
        "there": not changed & _changed(base_tip, commit),
    }


def push(request: dict[str, Any]) -> dict[str, Any]:
    """Let the branch go from `before` ("" where there is none) to the commit, and from nothing else."""
    remote = open_url(request["url"])
    ref, before = f"refs/heads/{request['branch']}", request["before"]
    lease = f"--force-with-lease={ref}:{before}"
    try:
        git(
            *("push", "--quiet", "--no-verify", lease, "--", remote.address, f"{request['commit']}:{ref}"),
            git_dir=GIT_DIR,
            settings=remote.settings,
            env=remote.env,
        )
    except GitFailed as failed:
        raise _refusal(remote, failed) from failed
    return {}


def _commit_of(request: dict[str, Any], parent: str) -> str:
    index = {"GIT_INDEX_FILE": str(GIT_DIR / "index")}
    git("read-tree", parent, git_dir=GIT_DIR, env=index)
    try:
        patch = str(BASE / "patch.diff")
        git("apply", "--cached", "--binary", "--whitespace=nowarn", patch, git_dir=GIT_DIR, env=index)
    except GitFailed as failed:
        raise Problem("refused", f"the patch does not apply to its start commit: {failed.text}") from failed
    tree = git("write-tree", git_dir=GIT_DIR, env=index).decode().strip()
    who = {}
    for role in ("AUTHOR", "COMMITTER"):
        values = {"NAME": request["name"], "EMAIL": request["email"], "DATE": request["at"]}
        who |= {f"GIT_{role}_{part}": value for part, value in values.items()}
    message = request["message"].encode("utf-8", "backslashreplace")
    made = git("commit-tree", "-p", parent, tree, git_dir=GIT_DIR, env=who, input=message)
    return made.decode().strip()


def _changed(before: str, after: str) -> set[bytes]:
    names = git("diff-tree", "-r", "-z", "--no-renames", "--name-only", before, after, git_dir=GIT_DIR)
    return set(names.split(b"\0")) - {b""}


def _commit(name: str) -> str:
    try:
        found = git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", git_dir=GIT_DIR)
    except GitFailed:
        return ""
    return found.decode().strip()


def _log(commit: str, form: str) -> str:
    said = git("log", "-1", f"--format={form}", commit, git_dir=GIT_DIR).decode("utf-8", "replace").split("\n")
    return said[0].strip()[:200]


def _is_ancestor(commit: str, of: str) -> bool:
    try:
        git("merge-base", "--is-ancestor", commit, of, git_dir=GIT_DIR)
    except GitFailed:
        return False
    return True


def _refusal(remote: Remote, failed: GitFailed) -> Problem:
    text = failed.text
    said = " | ".join(line for line in text.splitlines() if line.strip())[:500]
    if "stale info" in text or "fetch first" in text or "cannot lock ref" in text:
        return Problem("stale", f"the branch moved at this moment: {said}")
    if "remote rejected" in text or "hook declined" in text or "protected" in text:
        return Problem("refused", f"{remote.label} refuses the push: {said}")
    return Problem(_kind(text), f"cannot push to {remote.label}: {said}")


def _kind(text: str) -> str:
    """refused: nobody but a person can change it; repository: it may go another time."""
    return "refused" if _DENIED.search(text) else "repository"


if __name__ == "__main__":
    sys.exit(serve({"build": build, "push": push}))
