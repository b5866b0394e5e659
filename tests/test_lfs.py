"""What a commit keeps in Git LFS, fetched by the in-container program from servers of the test's own on loopback:
which contents come, how much, and who is shown the secret."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from git_server import bridge_address
from preparation import Bench
from pydantic import ValidationError
from repositories import commit_all, git, packed_git
from test_repository import CAPS, Place, new_place

from worker.contract.redact import Redactor
from worker.contract.surroundings import Environment
from worker.contract.task import Repo

TOKEN = "t0ken-of-the-repository"
BASIC = "Basic " + base64.b64encode(f"x-access-token:{TOKEN}".encode()).decode()
WEIGHTS, LOGO = b"\0weights" * 1000, b"\x89PNG logo"


def oid(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def pointer(data: bytes, more: str = "") -> str:
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid(data)}\nsize {len(data)}\n{more}"


@dataclass
class Server:
    """Git repositories below root, and LFS for whoever knows the token. store: where it says that contents lie, ""
    for here. redirect: where it sends on who asks for one. answer: what it says to a batch, None for the right thing.
    seen: (path, Authorization) of each request for LFS."""

    root: Path
    contents: dict[str, bytes]
    url: str = ""
    store: str = ""
    header: dict[str, str] = field(default_factory=dict)
    redirect: str = ""
    answer: Any = None
    seen: list[tuple[str, str]] = field(default_factory=list)

    def told(self, asked: Any) -> Any:
        def download(one: Any) -> Any:
            return {"download": {"href": f"{self.store or self.url}/{one['oid']}", "header": self.header}}

        return self.answer or {"objects": [{**one, "actions": download(one)} for one in asked["objects"]]}


Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """start(): a server that holds all contents, on loopback unless an address is given. Several are several places:
    their ports differ."""
    running: list[ThreadingHTTPServer] = []

    def begin(address: str = "127.0.0.1") -> Server:
        made = Server(tmp_path, {oid(data): data for data in (WEIGHTS, LOGO)})

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.rpartition("/")[2].partition("?")[0]
                if name not in made.contents:
                    file = made.root / self.path.partition("?")[0].lstrip("/")
                    self._send(file.read_bytes() if file.is_file() else None)
                    return
                made.seen.append((self.path, self.headers.get("Authorization", "")))
                if made.redirect:
                    self.send_response(302)
                    self.send_header("Location", f"{made.redirect}/{name}")
                    self.end_headers()
                    return
                self._send(made.contents[name])

            def do_POST(self) -> None:
                shown = self.headers.get("Authorization", "")
                made.seen.append((self.path, shown))
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._send(json.dumps(made.told(asked)).encode() if shown == BASIC else None, 401)

            def _send(self, data: bytes | None, otherwise: int = 404) -> None:
                self.send_response(otherwise if data is None else 200)
                self.send_header("Content-Length", str(len(data or b"")))
                self.end_headers()
                self.wfile.write(data or b"")

            def log_message(self, *_: object) -> None:
                """Nothing."""

        server = ThreadingHTTPServer((address, 0), Handler)
        running.append(server)
        made.url = f"http://{address}:{server.server_port}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return made

    yield begin
    for server in running:
        server.shutdown()
        server.server_close()


@pytest.fixture
def kept(tmp_path: Path, source: Path) -> str:
    """A repository beside the servers with two files in LFS; its start commit. One file only looks like a pointer."""
    (source / ".gitattributes").write_text("*.bin2 filter=lfs diff=lfs merge=lfs -text\nart/** filter=lfs\n")
    (source / "art").mkdir()
    (source / "model.bin2").write_text(pointer(WEIGHTS))
    (source / "art" / "lögo.png").write_text(pointer(LOGO))
    (source / "art" / "copy.png").write_text(pointer(LOGO))
    (source / "art" / "copy.png").chmod(0o755)
    (source / "art" / "plain.txt").write_text("no pointer\n")
    (source / "told.txt").write_text(pointer(WEIGHTS))
    (source / ".lfsconfig").write_text("[lfs]\n\turl = http://127.0.0.1:9/elsewhere\n")
    commit = commit_all(source)
    git(tmp_path, "clone", "--quiet", "--bare", str(source), "repo.git")
    git(tmp_path / "repo.git", "update-server-info")
    return commit


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return new_place(tmp_path, "work")


def fetched(place: Place, server: Server, commit: str, *, secret: str = TOKEN, **request: Any) -> dict[str, Any]:
    asked = {"op": "fetch", "kind": "url", "url": f"{server.url}/repo.git", "commit": commit, "branch": "main"}
    env = {"DAWN_REPO_SECRET": secret} if secret else {}
    return place.run("repository", asked | {"caps": CAPS, "lfs": True} | request, **env)


def test_contents_take_the_place_of_their_pointers(place: Place, start: Start, kept: str) -> None:
    """Of the files that attributes give to LFS, byte for byte and with their modes; git takes none for changed."""
    answer = fetched(place, start(), kept)
    assert answer["notes"] == []
    tree = place.tree()
    assert tree["model.bin2"] == ("100644", WEIGHTS)
    assert (tree["art/lögo.png"], tree["art/copy.png"]) == (("100644", LOGO), ("100755", LOGO))
    assert tree["art/plain.txt"][1] == b"no pointer\n"
    assert tree["told.txt"][1] == pointer(WEIGHTS).encode()
    assert git(place.repo, "status", "--porcelain") == ""


def test_without_the_word_they_stay_pointers(place: Place, start: Start, kept: str) -> None:
    """The server is not asked, and a note says so."""
    server = start()
    answer = fetched(place, server, kept, lfs=False)
    assert (place.tree()["model.bin2"][1], server.seen) == (pointer(WEIGHTS).encode(), [])
    assert answer["notes"] == ["files kept in Git LFS are their pointers: their content is not fetched"]


def test_each_content_is_fetched_once_with_the_secret(place: Place, start: Start, kept: str) -> None:
    """One question for all, then one download for each content; .lfsconfig sends nobody anywhere."""
    server = start()
    fetched(place, server, kept)
    paths = ["/repo.git/info/lfs/objects/batch", *sorted(f"/{oid(data)}" for data in (WEIGHTS, LOGO))]
    assert sorted(server.seen) == sorted((path, BASIC) for path in paths)


def test_the_secret_goes_to_no_other_place(place: Place, start: Start, kept: str) -> None:
    """Contents that lie elsewhere are fetched with what the server says for them and nothing more; a redirect takes
    not even that along."""
    server, store, last = start(), start(), start()
    server.store, server.header, store.redirect = store.url, {"Authorization": "signed"}, last.url
    fetched(place, server, kept)
    assert place.tree()["model.bin2"][1] == WEIGHTS
    assert {shown for _, shown in store.seen} == {"signed"}
    assert {shown for _, shown in last.seen} == {""}
    server.header = {}
    fetched(new_place(place.root.parent, "again"), server, kept)
    assert {shown for _, shown in store.seen} == {"signed", ""}


def test_what_lies_here_is_opened_by_the_servers_own_words_first(place: Place, start: Start, kept: str) -> None:
    """A header that it names for a download stands in the place of the secret."""
    server = start()
    server.header = {"authorization": "signed"}
    fetched(place, server, kept)
    assert {shown for path, shown in server.seen if "batch" not in path} == {"signed"}


def test_nothing_of_the_secret_stays(place: Place, start: Start, kept: str) -> None:
    """Neither in the workspace nor in what the program says."""
    answer = fetched(place, start(), kept)
    stored = b"".join(path.read_bytes() for path in place.root.rglob("*") if path.is_file() and not path.is_symlink())
    assert TOKEN.encode() not in stored + json.dumps(answer).encode()
    assert BASIC.partition(" ")[2].encode() not in stored


@pytest.mark.parametrize(
    ("secret", "answer", "told"),
    [
        ("wrong", None, "answered 401"),
        ("", None, "answered 401"),
        (TOKEN, {"objects": []}, "no answer that makes sense"),
        (TOKEN, {"objects": [{"oid": oid(data), "actions": {"download": {"href": "file:///etc/passwd"}}}
                             for data in (WEIGHTS, LOGO)]}, "no answer that makes sense"),
        (TOKEN, {"objects": [{"oid": oid(data), "error": {"code": 404, "message": "gone\nfor good"}}
                             for data in (WEIGHTS, LOGO)]}, "gone for good"),
        (TOKEN, ["no object"], "no answer that makes sense"),
    ],
)  # fmt: skip
def test_a_server_that_does_not_give_them_fails_the_repository(
    place: Place, start: Start, kept: str, secret: str, answer: Any, told: str
) -> None:
    """With what it said; a run never begins on half of its files."""
    server = start()
    server.answer = answer
    error = fetched(place, server, kept, secret=secret)["error"]
    assert (error["kind"], told in error["message"]) == ("repository", True), error


@pytest.mark.parametrize("wrong", [WEIGHTS + b"more", WEIGHTS[:-1], b"x" * len(WEIGHTS)])
def test_other_contents_are_refused(place: Place, start: Start, kept: str, wrong: bytes) -> None:
    """Longer, shorter, or of the right length; what is longer is not read on."""
    server = start()
    server.contents[oid(WEIGHTS)] = wrong
    assert "another content" in fetched(place, server, kept)["error"]["message"]


def test_more_than_the_workspace_holds_is_not_begun(place: Place, start: Start, kept: str) -> None:
    """The pointers say how much it is."""
    server = start()
    error = fetched(place, server, kept, caps={**CAPS, "bytes": len(WEIGHTS)})["error"]
    assert (error["kind"], server.seen) == ("repository", [])
    assert "over 8,000" in error["message"]


def test_a_packed_repository_has_no_server(place: Place, source: Path, kept: str) -> None:
    """One that keeps something in LFS is refused, with what to do."""
    (place.base / "source").write_bytes(packed_git(source / ".git"))
    request = {"op": "fetch", "kind": "git", "ref": None, "caps": CAPS, "lfs": True}
    error = place.run("repository", request)["error"]
    assert ("the packed repository" in error["message"], "https" in error["hint"]) == (True, True)


def test_a_repository_without_any_asks_nobody(place: Place, start: Start, source: Path, tmp_path: Path) -> None:
    """The word changes nothing there."""
    git(tmp_path, "clone", "--quiet", "--bare", str(source), "repo.git")
    git(tmp_path / "repo.git", "update-server-info")
    server = start()
    answer = fetched(place, server, git(source, "rev-parse", "HEAD"))
    assert ("error" in answer, server.seen) == (False, [])


def test_a_patch_holds_no_contents_of_lfs(place: Place, start: Start, kept: str) -> None:
    """Unchanged ones are no change, changed and copied ones are left out by name; the rest of the patch is as it is,
    and a deleted one is deleted."""
    fetched(place, start(), kept)
    assert place.patch()["files"] == {}
    (place.repo / "model.bin2").write_bytes(b"trained anew")
    (place.repo / "mine.bin").write_bytes(WEIGHTS)
    (place.repo / "art" / "copy.png").unlink()
    (place.repo / "f.txt").write_text("one\n")
    answer = place.patch()
    why = "kept in Git LFS, whose contents are no part of a patch"
    assert answer["left_out"] == {"model.bin2": why, "mine.bin": why}
    assert sorted(answer["files"]) == ["art/copy.png", "f.txt"]


@pytest.mark.parametrize("grants", [True, False])
def test_an_ssh_server_grants_a_download(place: Place, start: Start, kept: str, tmp_path: Path, grants: bool) -> None:
    """It is asked over the connection that the key opens; what it grants goes to the place that it names alone."""
    server, store = start(), start()
    server.store = store.url
    tools = tmp_path / "tools"
    tools.mkdir()
    granted = json.dumps({"href": f"{server.url}/repo.git/info/lfs", "header": {"Authorization": BASIC}})
    (tools / "ssh").write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    answer = f"echo '{granted}'" if grants else "exit 1"
    (tools / "git-lfs-authenticate").write_text(
        f'#!/bin/sh\n[ "$1 $2" = "{tmp_path}/repo.git download" ] && {answer}\n'
    )
    for tool in tools.iterdir():
        tool.chmod(0o755)
    url = f"ssh://git@127.0.0.1:2222{tmp_path}/repo.git"
    asked = {"op": "fetch", "kind": "url", "url": url, "commit": kept, "branch": "main", "caps": CAPS, "lfs": True}
    key = "-----BEGIN PRIVATE KEY-----"
    found = place.run("repository", asked, DAWN_REPO_SECRET=key, PATH=f"{tools}:{os.environ['PATH']}")
    if grants:
        assert place.tree()["model.bin2"][1] == WEIGHTS
        assert {shown for _, shown in store.seen} == {""}
    else:
        assert "grants nothing" in found["error"]["message"]


@pytest.mark.docker
@pytest.mark.full
def test_an_agent_finds_the_contents_and_its_patch_none_of_them(bench: Bench, start: Start, kept: str) -> None:
    """On the engine: the environment with contents is another than the one with pointers, takeovers restore them, the
    secret stands in no object of the archive, and the patch applies."""
    server = start(bridge_address())
    bench.secrets, bench.redactor = {"FORGE": TOKEN}, Redactor({"FORGE": TOKEN})
    task = bench.task(Repo(url=f"{server.url}/repo.git", label="kept", secret="FORGE"))
    plain = bench.prepare(task)
    assert server.seen == []
    task = task.model_copy(update={"environment": task.environment.model_copy(update={"lfs": True})})
    prepared, patch = bench.edited(task, "git status --porcelain; sha256sum model.bin2; echo more >> f.txt")
    assert plain.key != prepared.key
    assert list(patch.stat.files) == ["f.txt"]
    tree = {path: sha256 for path, _, sha256 in bench.tree_with(task, prepared, patch)}
    assert tree["model.bin2"] == oid(WEIGHTS)
    assert TOKEN.encode() not in bench.everything_stored()


def test_the_word_is_refused_where_it_would_not_hold() -> None:
    """A setup that runs anew begins from the commit, whose files are pointers."""
    assert Environment(setup="x", lfs=True).lfs
    with pytest.raises(ValidationError, match="resetup"):
        Environment(setup="x", lfs=True, resetup="on_change")
