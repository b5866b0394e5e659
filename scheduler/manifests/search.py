"""Owns having a forge asked which repositories there are, by a process of the data plane. Refuses to know a forge's
words.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Final

from pydantic import ValidationError

from scheduler.manifests.sources import Target
from worker.contract.errors import ForgeFault
from worker.contract.search import FoundRepo, GitHubSearch, GitLabSearch

PROGRAM: Final = "worker.search"
"""Of the data plane, which this package never imports."""
SEARCH_S: Final = 300
"""Of one search: 200 pages of a second each, and half as much again."""


def search(
    asked: GitHubSearch | GitLabSearch, say: Callable[[str], None], timeout_s: float = SEARCH_S
) -> list[Target]:
    """What the forge named, by path. say: hears how many, and what was left out. Raises ForgeFault."""
    request = {"github" if isinstance(asked, GitHubSearch) else "gitlab": asked.model_dump(mode="json")}
    command = [sys.executable, "-P", "-m", PROGRAM]
    text = json.dumps(request).encode()
    try:
        done = subprocess.run(command, input=text, stdout=subprocess.PIPE, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        told = f"{asked.told}: no answer within {timeout_s:g} s"
        raise ForgeFault("connection", told, hint="try again later, or ask for less", retryable=True) from None
    if done.returncode:
        raise ForgeFault("answer", f"{asked.told}: the search ended with exit code {done.returncode}")
    answer = json.loads(done.stdout)
    if said := answer.get("fault"):
        raise ForgeFault(**said)
    try:
        repos = [FoundRepo.model_validate(one) for one in answer["found"]]
        found = [Target(repo=one.url, id=one.path, secret=asked.secret) for one in repos]
    except ValidationError:
        raise ForgeFault("answer", f"{asked.told}: names what is no repository", hint="look at api_url") from None
    more, without = answer["left_out"], asked.left_out()
    counted = f" ({more:,} of them)" if more else ""
    say(
        f"{asked.told}: {len(found):,} repositor{'y' if len(found) == 1 else 'ies'}"
        + (f"; left out: {', '.join(without)}{counted}" if without else "")
    )
    return found
