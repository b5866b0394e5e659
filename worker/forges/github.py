"""Owns GitHub as a Forge. Refuses to wait and to try again: what it was told to wait it says in its fault. The one
door to PyGithub.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from github import Auth, Github
from github.GithubException import BadAttributeException, GithubException, RateLimitExceededException
from github.PullRequest import PullRequest as Pull
from requests.exceptions import RequestException

from worker.contract.errors import ForgeFault
from worker.forges.protocol import LOOKED_AT, PullRequest, State, marks_of

TIMEOUT_S: Final = 30
PAGE: Final = 100
SECONDARY_WAIT_S: Final = 60.0
"""GitHub: of a secondary limit that says no time, wait at least a minute."""


class GitHub:
    """See Forge. path: `owner/name`. verify: as requests has it."""

    def __init__(self, api_url: str, path: str, token: str, verify: bool | str) -> None:
        self._owner = path.partition("/")[0]
        self._api = Github(
            auth=Auth.Token(token),
            base_url=api_url,
            timeout=TIMEOUT_S,
            per_page=PAGE,
            verify=verify,
            retry=None,
            seconds_between_requests=None,
            seconds_between_writes=None,
            lazy=True,
        )
        self._repo = self._api.get_repo(path)

    def find(self, branch: str) -> PullRequest | None:
        with _faults():
            found = [_told(pull) for pull in self._repo.get_pulls(state="all", head=f"{self._owner}:{branch}")]
        ours = [pull for pull in found if pull.branch == branch]
        return max(ours, key=lambda pull: (pull.open, pull.number), default=None)

    def ours(self) -> list[PullRequest]:
        with _faults():
            newest = itertools.islice(self._repo.get_pulls(state="open", sort="created", direction="desc"), LOOKED_AT)
            return [pull for pull in map(_told, newest) if pull.marks]

    def open(self, *, branch: str, base: str, title: str, body: str, draft: bool) -> PullRequest:
        try:
            with _faults():
                return _told(self._repo.create_pull(base=base, head=branch, title=title, body=body, draft=draft))
        except ForgeFault as fault:
            there = self.find(branch) if fault.reason == "exists" else None
            if there is None:
                raise
            return there

    def update(self, number: int, *, title: str, body: str) -> None:
        with _faults():
            self._repo.get_pull(number).edit(title=title, body=body)

    def furnish(self, number: int, *, labels: Sequence[str], reviewers: Sequence[str]) -> None:
        with _faults():
            pull = self._repo.get_pull(number)
            if labels:
                pull.add_to_labels(*labels)
            if people := [name for name in reviewers if "/" not in name]:
                pull.create_review_request(reviewers=people)
            if teams := [name.partition("/")[2] for name in reviewers if "/" in name]:
                pull.create_review_request(team_reviewers=teams)


def _told(pull: Pull) -> PullRequest:
    state: State = (
        "merged" if pull.merged_at else "closed" if pull.state == "closed" else "draft" if pull.draft else "pr"
    )
    return PullRequest(pull.number, pull.html_url, state, pull.head.ref, marks_of(pull.body))


@contextmanager
def _faults() -> Iterator[None]:
    """Translate PyGithub's exceptions."""
    try:
        yield
    except GithubException as error:
        raise _fault(error) from error
    except BadAttributeException as error:
        raise ForgeFault("answer", f"GitHub's answer is none that we know: {error}") from error
    except (RequestException, OSError) as error:
        raise ForgeFault("connection", f"GitHub cannot be reached: {error}", retryable=True) from error
    except (
        AssertionError,
        RuntimeError,
        AttributeError,
        ValueError,
        TypeError,
        KeyError,
    ) as error:  # a strange server
        raise ForgeFault("answer", f"GitHub's answer cannot be followed: {error}", hint="look at api_url") from error


def _fault(error: GithubException) -> ForgeFault:
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    said = _said(error.data) or str(error.message or "")
    text = f"GitHub answered {error.status}: {said}"
    if error.status == 429 or isinstance(error, RateLimitExceededException) or "retry-after" in headers:
        return ForgeFault("limit", text, retryable=True, retry_after_s=_wait_s(headers))
    if error.status >= 500:
        return ForgeFault("connection", text, retryable=True)
    if error.status == 401:
        return ForgeFault("auth", text, hint="is the token still good?")
    if error.status in (403, 404):
        return ForgeFault("auth", text, hint="the token needs to read and write contents and pull requests")
    return ForgeFault("exists" if "already exists" in said.lower() else "refused", text)


def _wait_s(headers: Mapping[str, str]) -> float:
    """What it says to wait: Retry-After, or the time at which the hour's requests are there again."""
    if (after := headers.get("retry-after", "")).isdigit():
        return float(after)
    if headers.get("x-ratelimit-remaining") == "0" and (reset := headers.get("x-ratelimit-reset", "")).isdigit():
        return max(1.0, float(reset) - time.time())
    return SECONDARY_WAIT_S


def _said(data: Any) -> str:
    """The message and what stands behind it, on one line."""
    if not isinstance(data, dict):
        return ""
    errors = data.get("errors")
    more = [str(one.get("message") or one) if isinstance(one, dict) else str(one) for one in errors or ()]
    return "; ".join([str(data.get("message", "")), *more][:5])
