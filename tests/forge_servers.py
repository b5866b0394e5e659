"""Owns forges to deliver to: the GitHub of npm's `emulate`, a small GitLab of our own, and one that says the same to
every request, and lists of repositories as either has them. Refuses to know the adapters.

What emulate cannot do: it holds no commits (a head that it does not know it makes up), refuses no second pull request
of one head, checks no token, has no limits, lists no organization and takes no pushes. That nothing is opened twice
is thus nobody's doing but ours; refusals and limits are played by `Told`; pushes go to a git server (git_server.py).
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote, urlsplit
from urllib.request import Request, urlopen

import pytest
from conftest import free_port, listens, wait_for
from npm_peers import npm_peers

from worker.contract.delivery import Deliver
from worker.forges.open import open_forge
from worker.forges.protocol import Forge

TOKEN = "token-of-a-forge-1"
PATH = "octocat/hello"
Answer = tuple[int, dict[str, str], Any]


class Address(Protocol):
    """Where a forge is, and of which kind."""

    api_url: str
    kind: Any


class ForgeServer(Address, Protocol):
    """A forge with the repository octocat/hello, and what its people do."""

    def pulls(self) -> list[dict[str, Any]]:
        """All there are: number, branch, base, open, draft, title, body, labels, reviewers."""
        ...

    def close(self, number: int) -> None: ...

    def merge(self, number: int) -> None: ...


def forge_of(server: Address, token: str = TOKEN) -> Forge:
    asked = Deliver(kind="pr", forge=server.kind, api_url=server.api_url)
    return open_forge(f"http://localhost/{PATH}.git", asked, token)


@dataclass
class Emulate:
    """GitHub, as somebody else wrote it."""

    api_url: str
    kind: Any = "github"

    def pulls(self) -> list[dict[str, Any]]:
        found = self._ask("GET", "pulls?state=all&per_page=100")
        return [
            {
                "number": one["number"],
                "branch": one["head"]["ref"],
                "base": one["base"]["ref"],
                "open": one["state"] == "open",
                "draft": one["draft"],
                "title": one["title"],
                "body": one["body"],
                "labels": [label["name"] for label in self._ask("GET", f"issues/{one['number']}/labels")],
                "reviewers": [person["login"] for person in one["requested_reviewers"]],
            }
            for one in found
        ]

    def close(self, number: int) -> None:
        self._ask("PATCH", f"pulls/{number}", {"state": "closed"})

    def merge(self, number: int) -> None:
        self._ask("PUT", f"pulls/{number}/merge", {})

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        request = Request(f"{self.api_url}/repos/{PATH}/{path}", data, headers, method=method)
        with urlopen(request) as answer:
            return json.load(answer)


@contextmanager
def emulating(config: pytest.Config, folder: Path) -> Iterator[Emulate]:
    node, home = npm_peers(config)
    seed = folder / "seed.json"
    repo = {"owner": "octocat", "name": "hello", "auto_init": True}
    github = {"users": [{"login": "octocat"}, {"login": "ann"}], "repos": [repo]}
    seed.write_text(json.dumps({"tokens": {TOKEN: {"login": "octocat", "scopes": ["repo"]}}, "github": github}))
    port = free_port()
    program = home / "node_modules/emulate/dist/index.js"
    command = [str(node), str(program), "start", "--service", "github", "--port", str(port), "--seed", str(seed)]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log, cwd=folder) as process:
        wait_for(lambda: listens(port) or process.poll() is not None)
        assert process.poll() is None, (folder / "log").read_text()
        yield Emulate(f"http://localhost:{port}")
        process.terminate()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    answers: Callable[[str, str, dict[str, Any], dict[str, str]], Answer]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, headers, content = self.server.answers(
            self.command, self.path, json.loads(body or b"{}"), dict(self.headers)
        )
        data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def answering(answers: Callable[[str, str, dict[str, Any], dict[str, str]], Answer]) -> Iterator[str]:
    """A server whose answers to (method, path, body, headers) are these."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.answers = answers
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@dataclass
class Told:
    """A forge that says the same to every request, whatever it is asked. asked: how often."""

    kind: str
    answer: Answer
    api_url: str = ""
    asked: int = 0

    def __call__(self, method: str, path: str, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        self.asked += 1
        return self.answer


@contextmanager
def told(kind: str, status: int, content: Any, **headers: str) -> Iterator[Told]:
    forge = Told(kind, (status, {name.replace("_", "-"): value for name, value in headers.items()}, content))
    with answering(forge) as forge.api_url:
        yield forge


@dataclass
class SmallGitLab:
    """What GitLab's API 4 says of merge requests of octocat/hello: fields and refusals as its reference has them."""

    api_url: str = ""
    kind: Any = "gitlab"
    rows: list[dict[str, Any]] = field(default_factory=list)

    def pulls(self) -> list[dict[str, Any]]:
        return [
            {
                "number": row["iid"],
                "branch": row["source_branch"],
                "base": row["target_branch"],
                "open": row["state"] == "opened",
                "draft": row["draft"],
                "title": row["title"].removeprefix("Draft: "),
                "body": row["description"],
                "labels": row["labels"],
                "reviewers": [person["username"] for person in row["reviewers"]],
            }
            for row in self.rows
        ]

    def close(self, number: int) -> None:
        self.rows[number - 1]["state"] = "closed"

    def merge(self, number: int) -> None:
        self.rows[number - 1]["state"] = "merged"

    def __call__(self, method: str, target: str, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        parts = urlsplit(target)
        asked = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if headers.get("PRIVATE-TOKEN", headers.get("Private-Token")) != TOKEN:
            return 401, {}, {"message": "401 Unauthorized"}
        if parts.path == "/api/v4/users":
            people = {"ann": 7, "bo": 8}
            found = [{"id": n, "username": name} for name, n in people.items() if name == asked.get("username")]
            return 200, {}, found
        match = re.fullmatch(r"/api/v4/projects/([^/]+)/merge_requests(?:/(\d+))?", parts.path)
        if match is None or unquote(match[1]) != PATH:
            return 404, {}, {"message": "404 Project Not Found"}
        if match[2]:
            return self._one(method, self.rows[int(match[2]) - 1], body)
        return self._create(body) if method == "POST" else self._list(asked)

    def _one(self, method: str, row: dict[str, Any], body: dict[str, Any]) -> Answer:
        if method == "PUT":
            row["labels"] += [label for label in body.pop("add_labels", "").split(",") if label]
            names = {7: "ann", 8: "bo"}
            if ids := body.pop("reviewer_ids", None):
                row["reviewers"] = [{"id": n, "username": names[n]} for n in ids]
            row |= body
            row["draft"] = row["title"].startswith("Draft: ")
        return 200, {}, row

    def _create(self, body: dict[str, Any]) -> Answer:
        for row in self.rows:
            if row["source_branch"] == body["source_branch"] and row["state"] == "opened":
                said = f"Another open merge request already exists for this source branch: !{row['iid']}"
                return 409, {}, {"message": [said]}
        number = len(self.rows) + 1
        row = {
            "id": 100 + number,
            "iid": number,
            "source_project_id": 1,
            "target_project_id": 1,
            "state": "opened",
            "labels": [],
            "reviewers": [],
            "web_url": f"{self.api_url}/{PATH}/-/merge_requests/{number}",
            "draft": body["title"].startswith("Draft: "),
            **body,
        }
        self.rows.append(row)
        return 201, {}, row

    def _list(self, asked: dict[str, str]) -> Answer:
        found = [
            row
            for row in reversed(self.rows)
            if asked.get("state") in ("all", row["state"])
            and asked.get("source_branch") in (None, row["source_branch"])
        ]
        page, size = int(asked.get("page", 1)), int(asked.get("per_page", 20))
        shown = found[(page - 1) * size : page * size]
        more = f"<{self.api_url}/api/v4/projects/{PATH.replace('/', '%2F')}/merge_requests?"
        query = "&".join(f"{name}={value}" for name, value in (asked | {"page": str(page + 1)}).items())
        links = {"Link": f'{more}{query}>; rel="next"'} if page * size < len(found) else {}
        return 200, {"X-Page": str(page), "X-Per-Page": str(size), **links}, shown


@dataclass
class Lists:
    """A forge whose organization or group has these repositories, a page at a time. asked: each request's query."""

    rows: list[dict[str, Any]]
    api_url: str = ""
    asked: list[dict[str, str]] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)

    def __call__(self, method: str, target: str, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        parts = urlsplit(target)
        self.asked.append({name: values[-1] for name, values in parse_qs(parts.query).items()})
        named = {name.lower(): text for name, text in headers.items()}
        self.tokens.add(named.get("private-token") or named.get("authorization"))
        if not re.fullmatch(r"/orgs/acme/repos|/api/v4/groups/acme/projects", unquote(parts.path)):
            return 404, {}, {"message": "Not Found"}
        page, size = int(self.asked[-1].get("page", 1)), int(self.asked[-1]["per_page"])
        more = f'<{self.api_url}{parts.path}?per_page={size}&page={page + 1}>; rel="next"'
        shown = self.rows[(page - 1) * size : page * size]
        return 200, {"Link": more} if page * size < len(self.rows) else {}, shown


def listed(name: str, *, archived: bool = False, fork: bool = False, topics: tuple[str, ...] = ()) -> dict[str, Any]:
    """As either forge lists a repository."""
    url, path = f"https://code.example.org/acme/{name}.git", f"acme/{name}"
    found = {"full_name": path, "clone_url": url, "fork": fork, "url": url, "archived": archived, "topics": [*topics]}
    found |= {"path_with_namespace": path, "http_url_to_repo": url, "id": 1}
    return found | ({"forked_from_project": {"id": 2}} if fork else {})


@contextmanager
def listing(*rows: dict[str, Any]) -> Iterator[Lists]:
    """Both forges at one address; acme is a group and an organization."""
    forge = Lists([*rows])
    with answering(forge) as forge.api_url:
        yield forge


@pytest.fixture(scope="session")
def emulated_github(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulate]:
    """One for all tests: a branch is a test's own."""
    with emulating(request.config, tmp_path_factory.mktemp("emulate")) as forge:
        yield forge


@pytest.fixture
def small_gitlab() -> Iterator[SmallGitLab]:
    """An empty GitLab."""
    forge = SmallGitLab()
    with answering(forge) as forge.api_url:
        yield forge


@pytest.fixture(params=["github", "gitlab"])
def forge_server(request: pytest.FixtureRequest) -> ForgeServer:
    """Either forge. GitHub's is of the session, and keeps what was opened there: a branch is a test's own."""
    server: ForgeServer = request.getfixturevalue("emulated_github" if request.param == "github" else "small_gitlab")
    return server
