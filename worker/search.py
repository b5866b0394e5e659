"""Owns asking a forge which repositories there are. Refuses to write: what it finds goes to stdout.

`python -m worker.search` reads {"github": {...}} or {"gitlab": {...}} from stdin, as in a manifest's targets, and
answers {"found": [{"url", "path"}], "left_out": number}, by path, or {"fault": {"reason", "message", "hint",
"retryable", "retry_after_s"}}. The token is `DAWN_SECRET_<NAME>` of its environment. Who lists targets starts it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from worker.answering import answer_once
from worker.contract.errors import ForgeFault, InvalidFault
from worker.contract.search import FoundRepo, GitHubSearch, GitLabSearch
from worker.contract.settings import Settings
from worker.contract.task import Frozen
from worker.forges.protocol import Repository
from worker.main import secrets_of

LOOKED_AT: Final = 20_000
"""Repositories of one search, 200 pages of them: more are refused, not cut off."""
TOLD: Final = ("reason", "message", "hint", "retryable", "retry_after_s")
"""Of a forge's fault."""


class Request(Frozen):
    """What stdin holds: one of them."""

    github: GitHubSearch | None = None
    gitlab: GitLabSearch | None = None


def search(
    asked: GitHubSearch | GitLabSearch, secrets: Mapping[str, str], ca_bundle: Path | None = None
) -> tuple[list[FoundRepo], int]:
    """Those that are wanted, by path, and how many more were looked at. Raises ForgeFault."""
    if asked.token is not None and not secrets.get(asked.token):
        hint = f"set DAWN_SECRET_{asked.token} where this command runs"
        raise ForgeFault("auth", f"the token {asked.token} has no value here", hint=hint)
    token = secrets[asked.token].rpartition(":")[2] if asked.token else None
    try:
        listed = list(islice(_repositories(asked, token, str(ca_bundle) if ca_bundle else True), LOOKED_AT + 1))
        if len(listed) > LOOKED_AT:
            raise ForgeFault("refused", f"names more than {LOOKED_AT:,} repositories", hint="ask for fewer of them")
        wanted = {one.path: one.url for one in listed if _wanted(asked, one)}
        found = [FoundRepo(path=path, url=wanted[path]) for path in sorted(wanted)]
    except ValidationError:
        raise ForgeFault("answer", "names what is no repository", hint="look at api_url") from None
    except ForgeFault as fault:
        raise ForgeFault(
            fault.reason,
            f"{asked.told}: {fault.message}",
            hint=fault.hint or _again(fault, asked),
            retryable=fault.retryable,
            retry_after_s=fault.retry_after_s,
        ) from fault
    return found, len({one.path for one in listed}) - len(found)


def _repositories(asked: GitHubSearch | GitLabSearch, token: str | None, verify: bool | str) -> Iterable[Repository]:
    """An SDK loads only where its forge is asked."""
    if isinstance(asked, GitHubSearch):
        from worker.forges import github

        return github.repositories(asked, token, verify)
    from worker.forges import gitlab

    return gitlab.repositories(asked, token, verify)


def _wanted(asked: GitHubSearch | GitLabSearch, one: Repository) -> bool:
    """Whatever the forge made of it."""
    topic = asked.topic is None or asked.topic.casefold() in (name.casefold() for name in one.topics)
    return topic and (asked.archived or not one.archived) and (asked.forks or not one.fork)


def _again(fault: ForgeFault, asked: GitHubSearch | GitLabSearch) -> str:
    if not fault.retryable:
        return ""
    when = "later" if fault.retry_after_s is None else f"in {fault.retry_after_s:.0f} s"
    more = "; with a token more is allowed" if fault.reason == "limit" and asked.token is None else ""
    return f"try again {when}{more}"


def main() -> int:
    """The process. Exit code 0, also with a forge's fault in the answer; or another fault's own."""
    return answer_once(Request, _answer)


def _answer(request: Request) -> dict[str, Any]:
    asked = request.github or request.gitlab
    if asked is None:
        raise InvalidFault("stdin asks for nothing")
    try:
        found, left_out = search(asked, secrets_of(os.environ), Settings().ca_bundle)
    except ForgeFault as fault:
        return {"fault": {name: getattr(fault, name) for name in TOLD}}
    return {"found": [one.model_dump() for one in found], "left_out": left_out}


if __name__ == "__main__":
    sys.exit(main())
