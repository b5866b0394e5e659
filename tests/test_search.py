"""Targets that a forge names: what it is asked, what is taken of its answer, and what a lock keeps of that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from conftest import free_port
from forge_servers import TOKEN, Emulate, Lists, answering, listed, listing, told
from runs_made import AT, ended

from scheduler import lock
from scheduler.cli.main import run as dawn
from scheduler.enqueue import submit
from scheduler.launch import batch_of, located
from scheduler.manifests import search
from scheduler.manifests.reading import Loaded, ManifestFault, parse
from worker import search as asking
from worker.contract.errors import ForgeFault
from worker.contract.search import GitHubSearch, GitLabSearch
from worker.contract.task import Limits
from worker.store.archive import Archive
from worker.store.journal import Journal

BOTH = ("github", "gitlab")


ROWS = [listed("old", archived=True), listed("web", topics=("nightly",)), listed("copy", fork=True), listed("api")]


def asked(kind: str, api_url: str, **more: Any) -> GitHubSearch | GitLabSearch:
    if kind == "github":
        return GitHubSearch.model_validate({"org": "acme", "api_url": api_url} | more)
    return GitLabSearch.model_validate({"group": "acme", "api_url": api_url} | more)


def names(kind: str, forge: Lists, **more: Any) -> list[str]:
    found, left_out = asking.search(asked(kind, forge.api_url, **more), {"FORGE": TOKEN})
    assert left_out == len(forge.rows) - len(found)
    return [one.path.removeprefix("acme/") for one in found]


@pytest.mark.parametrize("kind", BOTH)
def test_an_organization_names_its_repositories(kind: str) -> None:
    """Without archived ones and forks, unless they are asked for; by path, whatever the forge's order."""
    with listing(*ROWS) as forge:
        assert names(kind, forge) == ["api", "web"]
        assert names(kind, forge, archived=True) == ["api", "old", "web"]
        assert names(kind, forge, forks=True, archived=True) == ["api", "copy", "old", "web"]
        assert names(kind, forge, topic="Nightly") == ["web"]
        assert forge.tokens == {None}
        assert names(kind, forge, token="FORGE") == ["api", "web"]
        assert forge.tokens == {None, f"token {TOKEN}" if kind == "github" else TOKEN}


@pytest.mark.parametrize("kind", BOTH)
def test_every_page_is_read(kind: str) -> None:
    """A hundred at a time."""
    with listing(*(listed(f"r{number}") for number in range(250))) as forge:
        assert len(names(kind, forge)) == 250
        assert [query["per_page"] for query in forge.asked] == ["100"] * 3


@pytest.mark.parametrize("kind", BOTH)
def test_too_many_are_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And none of them is left out unsaid."""
    monkeypatch.setattr(asking, "LOOKED_AT", 3)
    with listing(*ROWS) as forge, pytest.raises(ForgeFault, match="names more than 3 repositories"):
        names(kind, forge)


@pytest.mark.parametrize("subgroups", [True, False])
def test_groups_in_a_group_are_asked_for(subgroups: bool) -> None:
    """As wanted; what others share with a group is not its own."""
    with listing(*ROWS) as forge:
        names("gitlab", forge, subgroups=subgroups)
        assert {word.casefold() for word in (forge.asked[0]["include_subgroups"],)} == {str(subgroups).casefold()}
        assert forge.asked[0]["with_shared"].casefold() == "false"


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("url", ["file:///etc", "ext::sh -c id", "/srv/code", "https://u:p@code.example.org/a/b"])
def test_what_a_forge_calls_a_repository_is_a_url_of_the_web(kind: str, url: str) -> None:
    """Never a path of this machine, or a command."""
    strange = listed("x") | {"clone_url": url, "http_url_to_repo": url}
    with listing(strange) as forge, pytest.raises(ForgeFault) as caught:
        names(kind, forge)
    assert caught.value.reason == "answer"


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("status", "headers", "reason", "hint"),
    [
        (429, {"Retry_After": "7"}, "limit", "try again in 7 s; with a token more is allowed"),
        (500, {}, "connection", "try again later"),
        (404, {}, "auth", "may the token read it?"),
        (422, {}, "refused", ""),
    ],
)
def test_a_forge_that_refuses_is_told(kind: str, status: int, headers: Any, reason: str, hint: str) -> None:
    """Whether it may go better another time, when, and what was asked; it is not asked twice."""
    with told(kind, status, {"message": "no"}, **headers) as server, pytest.raises(ForgeFault) as caught:
        asking.search(asked(kind, server.api_url), {})
    fault = caught.value
    assert (fault.reason, fault.retryable) == (reason, reason in ("limit", "connection"))
    assert hint in fault.hint
    assert str(fault).startswith("github org acme: " if kind == "github" else "gitlab group acme: ")
    assert server.asked == 1


@pytest.fixture
def octocats(emulated_github: Emulate) -> str:
    """GitHub where octocat has cart, shop (archived), and both of topic dawnfleet; the API's address."""

    def ask(method: str, path: str, body: Any) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        request = Request(f"{emulated_github.api_url}/{path}", json.dumps(body).encode(), headers, method=method)
        with urlopen(request):
            pass

    for name in ("shop", "cart"):
        ask("POST", "user/repos", {"name": name})
        ask("PUT", f"repos/octocat/{name}/topics", {"names": ["dawnfleet"]})
    ask("PATCH", "repos/octocat/shop", {"archived": True})
    return emulated_github.api_url


def test_a_search_of_github_names_repositories(octocats: str) -> None:
    """By its own words; archived ones are left out."""

    def found(**more: Any) -> list[str]:
        wanted = GitHubSearch.model_validate({"query": "user:octocat", "api_url": octocats} | more)
        return [one.path for one in asking.search(wanted, {})[0]]

    assert found(topic="dawnfleet") == ["octocat/cart"]
    assert found() == ["octocat/cart", "octocat/hello"]
    assert found(query="user:octocat topic:dawnfleet", archived=True)[0] == "octocat/cart"
    assert found(query="user:nobody") == []


@pytest.mark.parametrize(
    ("said", "reason", "words"),
    [
        ({"total_count": 1_001}, "refused", "1,001 repositories fit, and a search of GitHub names 1,000"),
        ({"incomplete_results": True}, "connection", "no time to search everything"),
    ],
)
def test_a_search_that_is_cut_off_is_refused(said: dict[str, Any], reason: str, words: str) -> None:
    """What GitHub leaves out is not taken for what is not there."""
    answer = {"total_count": 1, "incomplete_results": False, "items": [listed("web")]} | said
    with answering(lambda *_: (200, {}, answer)) as url, pytest.raises(ForgeFault, match=words) as caught:
        asking.search(GitHubSearch(query="web", api_url=url), {})
    assert caught.value.reason == reason


def fleet(api_url: str, more: str = "", before: str = "", **entry: Any) -> Loaded:
    source = json.dumps({"org": "acme", "api_url": api_url} | entry)
    text = f"version: 1\nname: fleet\ntargets: [{before}{{github: {source}}}]\ntask: {{commands: [fix]}}\n{more}"
    return parse(text, "fleet.yaml", Path("/"), Limits())


def heard(loaded: Loaded, archive: Archive) -> tuple[list[str], list[str]]:
    """(ids of its targets, what was said)."""
    said: list[str] = []
    whole, _ = located(loaded, archive, store=False, say=said.append)
    return [one.id for one in whole.targets], said


def test_a_manifest_lists_what_a_forge_names(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a process with the token in its environment alone. Their paths are their ids, which can be excluded, and
    their secret is the entry's; what an entry before lists is no second target; what was left out is said."""
    monkeypatch.setenv("DAWN_SECRET_FORGE", TOKEN)
    more, before = "exclude: ['*/api']\n", "{repo: 'https://code.example.org/acme/web', ref: dev}, "
    with listing(*ROWS, listed("new")) as forge:
        loaded = fleet(forge.api_url, token="FORGE", secret="OPENS")
        assert heard(loaded, archive) == (
            ["acme/api", "acme/new", "acme/web"],
            ["github org acme: 3 repositories; left out: archived ones, forks (2 of them)"],
        )
        assert [task.repo.secret for task in batch_of(loaded, archive, say=lambda _: None).tasks] == ["OPENS"] * 3
        assert heard(fleet(forge.api_url, more, before, token="FORGE"), archive)[0] == ["web", "acme/new"]
        assert forge.tokens == {f"token {TOKEN}"}


def test_a_forge_that_is_not_there_may_come_back(archive: Archive) -> None:
    """That is no mistake of the manifest; an organization that is not there is one, with its place, and so is a token
    without a value."""
    with pytest.raises(ForgeFault) as caught:
        heard(fleet(f"http://127.0.0.1:{free_port()}"), archive)
    assert (caught.value.retryable, caught.value.hint) == (True, "try again later")
    with listing(*ROWS) as forge:
        for entry, words in (
            ({"org": "other"}, "github org other: GitHub answered 404"),
            ({"token": "X"}, "no value"),
        ):
            with pytest.raises(ManifestFault) as wrong:
                heard(fleet(forge.api_url, **entry), archive)
            [line] = wrong.value.lines()
            assert line.startswith("fleet.yaml:3:20 target targets[0].github ")
            assert words in line


def test_one_that_never_answers_is_not_waited_for(archive: Archive) -> None:
    """The process ends with the time limit."""
    with listing(*ROWS) as forge, pytest.raises(ForgeFault, match=r"no answer within 0\.01 s") as caught:
        search.search(asked("github", forge.api_url), lambda _: None, timeout_s=0.01)
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{github: {topic: x}}", "must have org or query, one of them"),
        ("{github: {org: a, query: b}}", "must have org or query, one of them"),
        ("{github: {org: a/b}}", "targets[0].github.org"),
        ("{github: {org: a, tokn: B}}", "did you mean 'token'?"),
        ("{github: {org: a, token: ghp_0815}}", "the NAME of a secret"),
        ("{gitlab: {}}", "targets[0].gitlab.group is required"),
        ("{gitlab: {group: a/../b/}}", "targets[0].gitlab.group"),
    ],
)
def test_what_is_asked_of_a_forge_is_judged_offline(entry: str, words: str) -> None:
    """As all of a manifest is."""
    with pytest.raises(ManifestFault) as caught:
        parse(f"version: 1\nname: x\ntargets: [{entry}]\ntask: {{commands: [a]}}\n", "x.yaml", Path("/"), Limits())
    assert words in "\n".join(caught.value.lines())


def locked(loaded: Loaded, archive: Archive, folder: Path) -> lock.Lock:
    """The lock that a plan leaves now, as it is read back."""
    whole, repos = located(loaded, archive, store=False, say=lambda _: None)
    lock.write(folder / "fleet.lock", lock.lock_of(whole, repos))
    made = lock.beside(folder / "fleet.yaml")
    assert made is not None
    return made


def test_a_submit_with_a_lock_asks_no_forge(archive: Archive, tmp_path: Path) -> None:
    """Its targets are those that were found when it was planned, and that is said; where the manifest lists others
    since, the forge is asked anew."""
    with listing(*ROWS) as forge:
        made = locked(fleet(forge.api_url), archive, tmp_path)
        forge.rows.append(listed("new"))
        forge.asked.clear()
        said: list[str] = []
        batch = batch_of(fleet(forge.api_url), archive, say=said.append, lock=made)
        assert [task.target for task in batch.tasks] == ["acme/api", "acme/web"]
        assert forge.asked == []
        assert said == ["note: the targets of github org acme are those of the lock; renew it: dawn plan fleet.yaml"]
        batch = batch_of(fleet(forge.api_url, "exclude: ['*/api']\n"), archive, say=said.append, lock=made)
        assert [task.target for task in batch.tasks] == ["acme/new", "acme/web"]
        assert "the lock is stale" in said[-1]
        batch = batch_of(fleet(forge.api_url, forks=True), archive, say=said.append, lock=made)
        assert "acme/copy" in [task.target for task in batch.tasks]


def test_a_lock_keeps_what_an_earlier_batch_named(archive: Archive, tmp_path: Path) -> None:
    """The same rule: what became of its runs since changes nothing, also of packed repositories."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "x").write_text("x")
    head = "version: 1\nname: {}\ntask: {{commands: [fix]}}\ntargets: "
    text = head.format("first") + "[{repo: code}, {repo: 'https://code.example.org/acme/web'}]\n"
    first = batch_of(parse(text, "first.yaml", tmp_path, Limits()), archive, say=lambda _: None)
    submit(first, archive, by="me", at=AT)
    loaded = parse(
        head.format("second") + "{previous: {batch: first, where: not_reached}}\n", "x.yaml", tmp_path, Limits()
    )
    made = locked(loaded, archive, tmp_path)
    journal = Journal(archive, first.tasks[0].run)
    journal.append(journal.load(), ended("cancelled"), attempt=0, at=AT)
    again = batch_of(loaded, archive, say=lambda _: None, lock=made)
    assert [task.target for task in again.tasks] == ["code", "web"]
    assert again.tasks[0].repo == first.tasks[0].repo
    assert [task.target for task in batch_of(loaded, archive, say=lambda _: None).tasks] == ["web"]


@pytest.mark.usefixtures("without_stack")
def test_a_schedule_names_what_was_found_as_it_was_added(
    archive: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says so. Offline validation names what it did not look at."""
    path = tmp_path / "nightly.yaml"
    with listing(*ROWS) as forge:
        path.write_text(
            f"version: 1\nname: nightly\ntargets: {{github: {{org: acme, api_url: '{forge.api_url}'}}}}\n"
            "task: {commands: [fix]}\nschedule: {cron: '30 1 * * *', zone: UTC}\n"
        )
        assert dawn(["schedule", "add", str(path)]) == 0
        assert "note: github org acme named its targets now; add it again" in capsys.readouterr().err
    assert dawn(["validate", str(path)]) == 0
    assert "0 targets, and those of github org acme, where nobody looked" in capsys.readouterr().out
    assert dawn(["schedule", "add", str(path)]) == 75
