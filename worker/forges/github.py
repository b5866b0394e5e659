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
from github.Repository import Repository as Repo
from requests.exceptions import RequestException

from worker.contract.errors import ForgeFault
from worker.contract.search import GitHubSearch
from worker.forges.protocol import LOOKED_AT, PullRequest, Repository, State, marks_of

TIMEOUT_S: Final = 30
PAGE: Final = 100
SEARCHED: Final = 1_000
"""GitHub tells no more of a search."""
READS: Final = "is that its name, and may the token read it? A person's repositories: `query: user:NAME`"
NEEDS: Final = "the token needs to read and write contents and pull requests"
SECONDARY_WAIT_S: Final = 60.0
"""GitHub: of a secondary limit that says no time, wait at least a minute."""


class GitHub:
    """See Forge. path: `owner/name`. verify: as requests has it."""

    def __init__(self, api_url: str, path: str, token: str, verify: bool | str) -> None:
        self._owner = path.partition("/")[0]
        self._repo = _api(api_url, token, verify).get_repo(path)

    def find(self, branch: str) -> PullRequest | None:
        with _faults():
            listed = self._repo.get_pulls(state="all", head=f"{self._owner}:{branch}")
            found = [_told(pull) for pull in listed if _is_from_here(pull)]
        ours = [pull for pull in found if pull.branch == branch]
        return max(ours, key=lambda pull: (pull.open, pull.number), default=None)

    def ours(self) -> list[PullRequest]:
        with _faults():
            newest = itertools.islice(self._repo.get_pulls(state="open", sort="created", direction="desc"), LOOKED_AT)
            return [told for pull in newest if _is_from_here(pull) and (told := _told(pull)).marks]

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


def repositories(asked: GitHubSearch, token: str | None, verify: bool | str) -> Iterator[Repository]:
    """What GitHub lists of them, page by page. A search is narrowed where GitHub can, and not cut off: raises
    ForgeFault where it comes to more than SEARCHED, or GitHub did not look at all."""
    with _faults(READS):
        api = _api(asked.api_url, token, verify)
        if asked.org is not None:
            yield from map(_listed, api.get_organization(asked.org).get_repos(sort="full_name", direction="asc"))
            return
        words = [
            asked.query,
            "" if asked.topic is None else f"topic:{asked.topic}",
            "" if asked.archived else "archived:false",
            "fork:true" if asked.forks else "",
        ]
        found = api.search_repositories(" ".join(word for word in words if word))
        for number, one in enumerate(found):
            if number == 0 and found.totalCount > SEARCHED:
                told = f"{found.totalCount:,} repositories fit, and a search of GitHub names {SEARCHED:,}"
                raise ForgeFault("refused", told, hint="narrow the query, or ask for an org")
            yield _listed(one)
        if found.incomplete_results:
            raise ForgeFault("connection", "GitHub had no time to search everything", retryable=True)


def _api(api_url: str, token: str | None, verify: bool | str) -> Github:
    return Github(
        auth=None if token is None else Auth.Token(token),
        base_url=api_url,
        timeout=TIMEOUT_S,
        per_page=PAGE,
        verify=verify,
        retry=None,
        seconds_between_requests=None,
        seconds_between_writes=None,
        lazy=True,
    )


def _listed(one: Repo) -> Repository:
    return Repository(one.clone_url, one.full_name, one.archived, one.fork, tuple(one.topics or ()))


def _is_from_here(pull: Pull) -> bool:
    """Whether its branch is the repository's own: anybody's fork may have one of that name, and any words. A fork
    that was deleted is None."""
    return pull.head.repo is not None and pull.head.repo.id == pull.base.repo.id


def _told(pull: Pull) -> PullRequest:
    state: State = (
        "merged" if pull.merged_at else "closed" if pull.state == "closed" else "draft" if pull.draft else "pr"
    )
    return PullRequest(pull.number, pull.html_url, state, pull.head.ref, marks_of(pull.body))


@contextmanager
def _faults(needs: str = NEEDS) -> Iterator[None]:
    """Translate PyGithub's exceptions. needs: hint where access is refused."""
    try:
        yield
    except GithubException as error:
        raise _fault(error, needs) from error
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


def _fault(error: GithubException, needs: str) -> ForgeFault:
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
        return ForgeFault("auth", text, hint=needs)
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
