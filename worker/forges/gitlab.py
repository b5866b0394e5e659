"""Owns GitLab as a Forge: a merge request is its pull request. Refuses to wait and to try again: what it was told to
wait it says in its fault. The one door to python-gitlab.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from gitlab import Gitlab
from gitlab.exceptions import GitlabError
from requests import Response, Session
from requests.exceptions import RequestException

from worker.contract.errors import ForgeFault
from worker.contract.search import GitLabSearch
from worker.forges.protocol import LOOKED_AT, PullRequest, Repository, State, marks_of

TIMEOUT_S: Final = 30
PAGE: Final = 100
LIMIT_WAIT_S: Final = 60.0
DRAFT: Final = "Draft: "
NEEDS: Final = "the token needs the scope api and the role Developer"


class GitLab:
    """See Forge. path: `group/.../name`. verify: as requests has it."""

    def __init__(self, api_url: str, path: str, token: str, verify: bool | str) -> None:
        self._api = _api(api_url, token, verify)
        self._project = self._api.projects.get(path, lazy=True)

    def find(self, branch: str) -> PullRequest | None:
        with _faults():
            listed = self._project.mergerequests.list(source_branch=branch, state="all", iterator=True)
            found = [_told(one) for one in listed if _is_from_here(one)]
        ours = [one for one in found if one.branch == branch]
        return max(ours, key=lambda one: (one.open, one.number), default=None)

    def ours(self) -> list[PullRequest]:
        with _faults():
            listed = self._project.mergerequests.list(
                state="opened", order_by="created_at", sort="desc", iterator=True
            )
            newest = itertools.islice(listed, LOOKED_AT)
            return [told for one in newest if _is_from_here(one) and (told := _told(one)).marks]

    def open(self, *, branch: str, base: str, title: str, body: str, draft: bool) -> PullRequest:
        asked = {
            "source_branch": branch,
            "target_branch": base,
            "title": DRAFT + title if draft else title,
            "description": body,
            "remove_source_branch": True,
        }
        try:
            with _faults():
                return _told(self._project.mergerequests.create(asked))
        except ForgeFault as fault:
            there = self.find(branch) if fault.reason == "exists" else None
            if there is None:
                raise
            return there

    def update(self, number: int, *, title: str, body: str) -> None:
        with _faults():
            one = self._project.mergerequests.get(number)
            one.title = DRAFT + title if one.draft else title
            one.description = body
            one.save()

    def furnish(self, number: int, *, labels: Sequence[str], reviewers: Sequence[str]) -> None:
        with _faults():
            one = self._project.mergerequests.get(number)
            changes: dict[str, Any] = {}
            if missing := [label for label in labels if label not in one.labels]:
                changes["add_labels"] = ",".join(missing)
            there = [person["id"] for person in one.reviewers or ()]
            asked = [user.id for name in reviewers for user in self._api.users.list(username=name, get_all=False)]
            if set(asked) - set(there):
                changes["reviewer_ids"] = list(dict.fromkeys([*there, *asked]))
            if changes:
                self._project.mergerequests.update(number, changes)


def repositories(asked: GitLabSearch, token: str | None, verify: bool | str) -> Iterator[Repository]:
    """What GitLab lists of a group, page by page; not what other groups share with it. Raises ForgeFault."""
    with _faults("is that its path, and may the token read it?"):
        group = _api(asked.api_url, token, verify).groups.get(asked.group, lazy=True)
        listed = group.projects.list(
            include_subgroups=asked.subgroups, with_shared=False, order_by="id", sort="asc", iterator=True
        )
        yield from map(_listed, listed)


def _api(api_url: str, token: str | None, verify: bool | str) -> Gitlab:
    session = Session()
    session.hooks["response"] += [_limit, _stay]
    return Gitlab(
        api_url,
        session=session,
        private_token=token,
        ssl_verify=verify,
        timeout=TIMEOUT_S,
        per_page=PAGE,
        retry_transient_errors=False,
        keep_base_url=True,
    )


def _listed(one: Any) -> Repository:
    fork = one.attributes.get("forked_from_project") is not None
    return Repository(one.http_url_to_repo, one.path_with_namespace, one.archived, fork, tuple(one.topics))


def _is_from_here(one: Any) -> bool:
    """Whether its branch is the project's own: anybody's fork may have one of that name, and any words."""
    return bool(one.source_project_id == one.target_project_id)


def _told(one: Any) -> PullRequest:
    state: State = one.state if one.state in ("merged", "closed") else "draft" if one.draft else "pr"
    return PullRequest(one.iid, one.web_url, state, one.source_branch, marks_of(one.description))


def _limit(response: Response, **_: Any) -> None:
    """Raise where GitLab asks to wait, before python-gitlab does wait."""
    if response.status_code == 429:
        after = response.headers.get("retry-after", "")
        wait_s = float(after) if after.isdigit() else LIMIT_WAIT_S
        raise ForgeFault("limit", "GitLab answered 429: too many requests", retryable=True, retry_after_s=wait_s)


def _stay(response: Response, **_: Any) -> None:
    """Refuse a redirect to another address: requests would send the token there, too."""
    if response.is_redirect:
        target = urlsplit(urljoin(response.url, response.headers["location"]))
        if target[:2] != urlsplit(response.url)[:2]:
            raise ForgeFault("answer", f"GitLab sends us on to {target.netloc}", hint="look at api_url")


@contextmanager
def _faults(needs: str = NEEDS) -> Iterator[None]:
    """Translate python-gitlab's exceptions. needs: hint where access is refused."""
    try:
        yield
    except GitlabError as error:
        raise _fault(error, needs) from error
    except (RequestException, OSError) as error:
        raise ForgeFault("connection", f"GitLab cannot be reached: {error}", retryable=True) from error
    except (AttributeError, KeyError, ValueError, TypeError) as error:  # a field that GitLab always has
        raise ForgeFault(
            "answer", f"GitLab's answer is none that we know: {error}", hint="look at api_url"
        ) from error


def _fault(error: GitlabError, needs: str) -> ForgeFault:
    status, said = error.response_code or 0, " ".join(str(error.error_message).split())
    text = f"GitLab answered {status}: {said}"
    if status < 400:
        return ForgeFault("answer", f"GitLab's answer is none that we know: {said}", hint="look at api_url")
    if status >= 500:
        return ForgeFault("connection", text, retryable=True)
    if status in (401, 403, 404):
        return ForgeFault("auth", text, hint=needs)
    return ForgeFault("exists" if status == 409 or "already exists" in said.lower() else "refused", text)
