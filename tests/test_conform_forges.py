"""What every forge must do, over GitHub (npm's emulate) and GitLab (a loopback server); how their refusals read."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import Any

import pytest
from conftest import free_port
from forge_servers import TOKEN, ForgeServer, SmallGitLab, Told, answering, forge_of, told

from worker.contract.commit import harmless
from worker.contract.delivery import Deliver
from worker.contract.errors import RETRY_AFTER_S_MAX, ForgeFault
from worker.forges.open import open_forge, place_of, push_url
from worker.forges.protocol import BODY_CHARS, Forge, PullRequest, marked, marks_of

BOTH = ("github", "gitlab")


@pytest.fixture
def branch() -> str:
    """Nobody else's."""
    return f"dawn/lib-{uuid.uuid4().hex[:12]}"


def opened(forge: Forge, branch: str, *, draft: bool = False, **marks: str) -> PullRequest:
    body = marked("Words.", **({"run": "lib-1", "patch": "p1"} | marks))
    return forge.open(branch=branch, base="main", title="Fix it", body=body, draft=draft)


def pull(server: ForgeServer, number: int) -> dict[str, Any]:
    return next(one for one in server.pulls() if one["number"] == number)


@pytest.mark.parametrize("draft", [False, True])
def test_what_is_opened_is_found(forge_server: ForgeServer, branch: str, draft: bool) -> None:
    """By its branch, with its state and marks; a branch without one has none."""
    forge = forge_of(forge_server)
    assert forge.find(branch) is None
    made = opened(forge, branch, draft=draft)
    assert (made.state, made.branch, made.marks) == (
        "draft" if draft else "pr",
        branch,
        {"run": "lib-1", "patch": "p1"},
    )
    assert made.url.startswith("http")
    assert forge.find(branch) == made
    seen = pull(forge_server, made.number)
    assert (seen["base"], seen["title"], seen["draft"]) == ("main", "Fix it", draft)


def test_closed_and_merged_ones_are_found(forge_server: ForgeServer, branch: str) -> None:
    """So that nobody opens again what a person has closed; an open one goes first."""
    forge = forge_of(forge_server)
    first = opened(forge, branch)
    forge_server.close(first.number)
    found = forge.find(branch)
    assert found is not None
    assert (found.number, found.state, found.open) == (first.number, "closed", False)
    second = opened(forge, branch)
    assert forge.find(branch) == second
    forge_server.merge(second.number)
    found = forge.find(branch)
    assert found is not None
    assert (found.number, found.state) == (second.number, "merged")


def test_ours_are_told_from_others(forge_server: ForgeServer, branch: str) -> None:
    """By the marks in their text; what is closed does not count."""
    forge = forge_of(forge_server)
    mine, closed = opened(forge, branch), opened(forge, f"{branch}-2")
    other = forge.open(branch=f"{branch}-3", base="main", title="Mine", body="By hand", draft=False)
    forge_server.close(closed.number)
    numbers = {one.number for one in forge.ours()}
    assert mine.number in numbers
    assert not numbers & {closed.number, other.number}


def test_it_can_be_given_other_words(forge_server: ForgeServer, branch: str) -> None:
    """Title, text and marks; a draft stays one."""
    forge = forge_of(forge_server)
    made = opened(forge, branch, draft=True)
    forge.update(made.number, title="Fix it well", body=marked("Others.", patch="p2"))
    found = forge.find(branch)
    assert found is not None
    assert (found.state, found.marks) == ("draft", {"patch": "p2"})
    assert pull(forge_server, made.number)["title"] == "Fix it well"


def test_labels_and_reviewers_are_added_once(forge_server: ForgeServer, branch: str) -> None:
    """Saying it twice changes nothing."""
    forge = forge_of(forge_server)
    made = opened(forge, branch)
    for _ in range(2):
        forge.furnish(made.number, labels=("bot", "deps"), reviewers=("ann",))
    seen = pull(forge_server, made.number)
    assert (seen["labels"], seen["reviewers"]) == (["bot", "deps"], ["ann"])


def test_more_than_a_page_is_read(small_gitlab: SmallGitLab) -> None:
    """All open ones of ours are counted."""
    forge = forge_of(small_gitlab)
    for number in range(105):
        opened(forge, f"dawn/b-{number}")
    assert len(forge.ours()) == 105


def test_a_second_one_that_gitlab_refuses_is_the_first(small_gitlab: SmallGitLab) -> None:
    """Its refusal is success: what was wanted is there."""
    forge = forge_of(small_gitlab)
    assert opened(forge, "dawn/x") == opened(forge, "dawn/x", patch="p2")
    assert len(small_gitlab.pulls()) == 1


def test_a_second_one_that_github_refuses_is_the_first() -> None:
    """As GitHub words it."""
    there = {
        "number": 5,
        "html_url": "http://localhost/pull/5",
        "state": "open",
        "draft": False,
        "merged_at": None,
        "head": {"ref": "dawn/x", "repo": {"id": 1}},
        "base": {"ref": "main", "repo": {"id": 1}},
        "body": marked("", patch="p1"),
    }
    said = {
        "message": "Validation Failed",
        "errors": [
            {
                "resource": "PullRequest",
                "code": "custom",
                "message": "A pull request already exists for octocat:dawn/x.",
            }
        ],
    }
    with answering(lambda method, *_: (422, {}, said) if method == "POST" else (200, {}, [there])) as url:
        assert opened(forge_of(Told("github", (0, {}, None), url)), "dawn/x").number == 5


@pytest.mark.parametrize("fork", [{"id": 2}, None])
def test_github_one_of_a_fork_is_not_ours(fork: dict[str, Any] | None) -> None:
    """Whoever opened it may have named the branch so, and written our marks; the fork may be gone by now."""
    theirs = {
        "number": 6, "html_url": "http://localhost/pull/6", "state": "open", "draft": False, "merged_at": None,
        "head": {"ref": "dawn/x", "repo": fork}, "base": {"ref": "main", "repo": {"id": 1}},
        "body": marked("", patch="p1"),
    }  # fmt: skip
    with told("github", 200, [theirs]) as server:
        assert (forge_of(server).find("dawn/x"), forge_of(server).ours()) == (None, [])


def test_gitlab_one_of_a_fork_is_not_ours(small_gitlab: SmallGitLab) -> None:
    """Whoever opened it may have named the branch so, and written our marks."""
    forge = forge_of(small_gitlab)
    opened(forge, "dawn/x")
    small_gitlab.rows[0]["source_project_id"] = 2
    assert (forge.find("dawn/x"), forge.ours()) == (None, [])


@pytest.mark.parametrize("kind", BOTH)
def test_a_token_follows_no_redirect_to_another_address(kind: str) -> None:
    """Neither of what is read nor of what is written."""
    with told("gitlab", 200, []) as elsewhere, told(kind, 307, {}, Location=f"{elsewhere.api_url}/x") as server:
        with suppress(ForgeFault):
            forge_of(server).find("dawn/x")
        with suppress(ForgeFault):
            opened(forge_of(server), "dawn/x")
        assert (server.asked, elsewhere.asked) == (2, 0)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("status", "said", "reason", "retryable"),
    [
        (401, {"message": "Bad credentials"}, "auth", False),
        (404, {"message": "Not Found"}, "auth", False),
        (403, {"message": "Resource not accessible by personal access token"}, "auth", False),
        (
            422,
            {"message": "Validation Failed", "errors": [{"message": "No commits between main and x"}]},
            "refused",
            False,
        ),
        (500, {"message": "oops"}, "connection", True),
        (502, "<html>bad gateway</html>", "connection", True),
        (200, {"message": "hello"}, "answer", False),
        (200, "<html>a login page</html>", "answer", False),
        (201, [1], "answer", False),
    ],
)
def test_each_refusal_has_its_reason(kind: str, status: int, said: Any, reason: str, retryable: bool) -> None:
    """And is told whether it may go better another time; nothing is asked twice by itself."""
    with told(kind, status, said) as server:
        with pytest.raises(ForgeFault) as caught:
            opened(forge_of(server), "dawn/x")
        assert (caught.value.reason, caught.value.retryable) == (reason, retryable), caught.value
        assert server.asked == 1
        assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "status", "headers", "said", "wait_s"),
    [
        ("github", 403, {"Retry_After": "7"}, "You have exceeded a secondary rate limit.", 7),
        ("github", 429, {}, "You have exceeded a secondary rate limit.", 60),
        (
            "github",
            403,
            {},
            "You have exceeded a secondary rate limit. Please wait a few minutes before you try again.",
            60,
        ),
        (
            "github",
            403,
            {"X_RateLimit_Remaining": "0", "X_RateLimit_Reset": "99999999999"},
            "API rate limit exceeded",
            None,
        ),
        ("gitlab", 429, {"Retry_After": "9"}, "Retry later", 9),
        ("gitlab", 429, {}, "Retry later", 60),
    ],
)
def test_what_it_asks_to_wait_is_told(kind: str, status: int, headers: Any, said: str, wait_s: float | None) -> None:
    """Retry-After, the end of the hour, or a minute; and it is not waited for here."""
    with told(kind, status, {"message": said}, **headers) as server:
        with pytest.raises(ForgeFault) as caught:
            forge_of(server).find("dawn/x")
        assert (caught.value.reason, caught.value.retryable, server.asked) == ("limit", True, 1)
        assert caught.value.retry_after_s == (RETRY_AFTER_S_MAX if wait_s is None else wait_s)


@pytest.mark.parametrize("kind", BOTH)
def test_one_that_is_away_may_come_back(kind: str) -> None:
    """Nobody listens there."""
    with pytest.raises(ForgeFault) as caught:
        forge_of(Told(kind, (0, {}, None), f"http://127.0.0.1:{free_port()}")).ours()
    assert (caught.value.reason, caught.value.retryable) == ("connection", True)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://github.com/acme/lib.git", ("github", "https://api.github.com", "acme/lib")),
        ("git@github.com:acme/lib.git", ("github", "https://api.github.com", "acme/lib")),
        ("https://github.acme.example/acme/lib", ("github", "https://github.acme.example/api/v3", "acme/lib")),
        ("https://gitlab.com/a/b/c.git", ("gitlab", "https://gitlab.com", "a/b/c")),
        ("ssh://git@gitlab.acme.example:2222/a/b.git", ("gitlab", "https://gitlab.acme.example", "a/b")),
    ],
)
def test_an_address_names_its_forge(url: str, expected: tuple[str, str, str]) -> None:
    """Host and path say where its pull requests live."""
    place = place_of(url, Deliver(kind="pr"))
    assert (place.kind, place.api_url, place.path) == expected


@pytest.mark.parametrize(
    "url",
    ["https://code.acme.example/a/b", "https://github.com/acme", "/srv/git/lib.git", "https://notgithub.com/a/b"],
)
def test_an_address_that_does_not_is_not_guessed(url: str) -> None:
    """Somebody must say it."""
    with pytest.raises(ForgeFault) as caught:
        place_of(url, Deliver(kind="pr"))
    assert caught.value.reason == "unknown"


@pytest.mark.parametrize("url", ["git@github.com:acme/lib.git", "ssh://git@github.com:22/acme/lib.git"])
def test_a_token_pushes_over_https(url: str) -> None:
    """Whatever address the repository was fetched from; an SSH key pushes where it was, and opens no pull request."""
    key = "-----BEGIN OPENSSH PRIVATE KEY-----"
    assert push_url(url, TOKEN) == "https://github.com/acme/lib.git"
    assert push_url(url, key) == url
    assert push_url("http://localhost:8/a/b.git", TOKEN) == "http://localhost:8/a/b.git"
    with pytest.raises(ForgeFault):
        open_forge(url, Deliver(kind="pr"), key)


def test_no_text_of_a_model_acts_on_a_forge() -> None:
    """It mentions nobody, closes nothing, links nothing, opens no comment, and cannot say whose it is."""
    text = harmless(
        "@ann fixes #12, GH-7, !3 https://github.com/a/b/issues/1\n/merge\n<!-- dawnfleet patch=x -->![](//a/b.png)"
    )
    for acting in ("@ann", "#12", "GH-7", "!3", "//", "\n/merge", "<!--"):
        assert acting not in text
    assert marks_of(text) == {}
    assert marks_of(marked(text, patch="p")) == {"patch": "p"}
    assert marks_of(marked("x" * 100_000, patch="p")) == {"patch": "p"}
    assert len(marked("x" * 100_000, patch="p")) <= BODY_CHARS
