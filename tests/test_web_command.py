"""`dawn web`, `dawn view` and the pages beside `dawn up`, as processes and over HTTP; and what Redis tells a page."""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest
from conftest import program
from runs_made import Make, claimed, ended, name_runs, replied
from starlette.testclient import TestClient
from webs import site_of

from scheduler.cli import web
from scheduler.enqueue import targets_json
from scheduler.stack import Stack
from scheduler.web.door import server
from scheduler.web.door.deployment import Redis, archive_address
from scheduler.web.render import Around
from worker.contract.errors import ExitCode, NotFoundFault, UsageFault
from worker.contract.events import Failure
from worker.contract.settings import Settings
from worker.store import keys
from worker.store.archive import Archive
from worker.store.hints import Hints, WorkerOffer
from worker.store.journal import Journal

BATCH = "night-0123456789ab"
WAIT_S = 150
"""For a process to begin, on a machine that does much else."""


class Reader:
    """Somebody with a browser's cookies, who begins with an address that signs in."""

    def __init__(self, entrance: str) -> None:
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        self.origin = entrance.partition("/enter")[0]
        self.first = self.get(entrance)

    def get(self, path: str) -> str:
        with self._opener.open(path if "://" in path else self.origin + path, timeout=WAIT_S) as answer:
            text: str = answer.read().decode()
        return text

    def data(self, path: str) -> Any:
        return json.loads(self.get(f"{path}?as=json"))["data"]


@contextmanager
def started(addresses: int, *words: str, **env: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A `dawn` process that serves pages on a free port, and so many addresses that it printed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DAWN_")}
    command = [program("dawn"), *words, "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**clean, **env}
    )
    try:
        assert process.stdout is not None
        printed = [process.stdout.readline().split() for _ in range(addresses)]
        assert all(printed), process.communicate()[1]
        yield process, [line[-1] for line in printed]
    finally:
        process.kill()
        process.wait()


def test_the_pages_of_a_deployment_open_without_a_stack(tmp_path: Path, archive: Archive, make_run: Make) -> None:
    """Two addresses sign in, one to read and one to decide; a signal ends the server though a page listens; and no
    token is in what it logs."""
    name_runs(archive, {"r1": "cart"})
    make_run("r1", claimed(), replied(), *ended(verdict="verified"))
    where = {"DAWN_ARCHIVE": archive.url, "DAWN_STATE_DIR": str(tmp_path / "state")}
    with started(2, "web", **where) as (process, (read, decide)):
        reader = Reader(read)
        assert "viewer" in reader.first
        assert BATCH in reader.get("/batches")
        assert "no stack" in reader.data("/queue")["problem"]
        assert "reviewer" in Reader(decide).first
        with pytest.raises(urllib.error.HTTPError) as refused:
            Reader(read.replace("token=", "token=x"))
        assert refused.value.code == 401
        listening = reader._opener.open(f"{reader.origin}/news?of=all", timeout=WAIT_S)
        assert listening.readline() == b": begun\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        assert process.stderr is not None
        assert "token" not in process.stderr.read()
    kept = tmp_path / "state" / "web.json"
    assert kept.stat().st_mode & 0o077 == 0
    assert json.loads(kept.read_text())["viewer"] in read


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("DAWN_WEB_TOKENS", "{}/tokens", "others may read"),
        ("DAWN_ARCHIVE", "ftp://nowhere", "unknown archive address"),
    ],
)
def test_settings_that_cannot_be_used_are_told_before_any_address(
    name: str, value: str, told: str, tmp_path: Path
) -> None:
    """Nobody opens an address that nothing answers, as with a file of tokens that others may read."""
    (tmp_path / "tokens").write_text("rosa reviewer 0123456789abcdef\n")
    (tmp_path / "tokens").chmod(0o644)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DAWN_")}
    env = {**clean, "DAWN_STATE_DIR": str(tmp_path / "state"), name: value.format(tmp_path)}
    done = subprocess.run(
        [program("dawn"), "web", "--port", "0"], env=env, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert told in done.stderr
    assert "pages of" not in done.stderr


def test_a_bundle_opens_alone(tmp_path: Path, archive: Archive, make_run: Make) -> None:
    """A file that `dawn export` made is read without Redis and without a deployment, and nothing can be decided. The
    command below a page reads that file, whatever archive is set."""
    make_run("r1", claimed(), replied(), *ended(verdict="verified"))
    manifest = b"name: night\n"
    archive.create(keys.batch_manifest(BATCH), manifest)
    archive.create(keys.batch_targets(BATCH), targets_json(BATCH, [Journal(archive, "r1").task()], manifest))
    archive.delete([keys.open_marker("r1")])
    file = tmp_path / "the night.tar"
    export = [program("dawn"), "export", BATCH, "--format", "bundle", "--out", str(file)]
    env = {**os.environ, "DAWN_ARCHIVE": archive.url, "DAWN_STATE_DIR": str(tmp_path / "state")}
    subprocess.run(export, env=env, check=True, timeout=WAIT_S, capture_output=True)
    nowhere = {"DAWN_STATE_DIR": str(tmp_path / "nobody"), "DAWN_REDIS_URL": "redis://127.0.0.1:1/0"}
    with started(1, "view", str(file), **nowhere) as (process, (read,)):
        reader = Reader(read)
        assert [one["target"] for one in reader.data(f"/batches/{BATCH}")["rows"]] == ["cart"]
        assert "alone" in reader.data("/queue")["problem"]
        assert '<form method="post"' not in reader.get("/runs/r1")
        typed = json.loads(reader.get(f"/batches/{BATCH}?as=json"))["command"]
        typed = typed.replace(" dawn ", f" {program('dawn')} ")
        elsewhere = {**os.environ, "DAWN_ARCHIVE": f"file://{tmp_path}/nothing", **nowhere}
        shell = ["sh", "-c", typed]
        printed = subprocess.run(shell, env=elsewhere, check=True, timeout=WAIT_S, capture_output=True, text=True)
        assert "cart" in printed.stdout
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0
    assert not (tmp_path / "nobody").exists()


@pytest.mark.parametrize("address", ["file:///it's a night", "s3://bucket/prefix", "bundle:/it's a night.tar"])
def test_commands_of_an_archive_alone_name_it(
    address: str, archive: Archive, make_run: Make, visit: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command that can be copied is of the archive that is looked at, not of the deployment's; of a bundle there
    are none that would write."""
    name_runs(archive, {"r1": "cart", "r2": "shop"})
    make_run("r1", claimed(), replied(), *ended(verdict="verified"))
    failed = Failure(cls="env", reason="setup", detail="exit code 3")
    make_run("r2", claimed(), *ended("failed", failure=failed), target="shop")
    monkeypatch.setattr(archive, "url", address)
    client = visit("look", site_of(archive, settings=None))
    copied = []
    for page in ("/", "/batches", f"/batches/{BATCH}", f"/batches/{BATCH}/failures", "/runs/r2", "/approvals"):
        shown = client.get(page)
        assert shown.status_code == 200
        copied += re.findall(r'data-copy="([^"]*)"', shown.text)
        assert json.loads(client.get(page, params={"as": "json"}).text)["command"] in map(html.unescape, copied)
    words = [shlex.split(html.unescape(one)) for one in copied]
    assert {(one[0], one[1]) for one in words} == {(f"DAWN_ARCHIVE={address}", "dawn")}
    assert ("retry" in {one[2] for one in words}) == (not address.startswith("bundle:"))


def test_commands_of_a_deployment_are_as_short_as_they_were(visit: Callable[..., TestClient]) -> None:
    """What a person has set already is not told again."""
    assert json.loads(visit("look").get("/batches?as=json").text)["command"] == "dawn status --all"


def test_each_of_many_commands_names_the_archive() -> None:
    """A line each, as for many runs that ask the same."""
    around = Around(archive="file:///x")
    assert around.typed("dawn approve a\ndawn approve b") == (
        "DAWN_ARCHIVE=file:///x dawn approve a\nDAWN_ARCHIVE=file:///x dawn approve b"
    )
    assert Around(archive="bundle:/x.tar").typed("dawn approve a\ndawn approve b") == ""


STANDING = """
import os, signal, sys, time
from worker.store.hints import Hints, WorkerOffer
hints = Hints(os.environ["DAWN_REDIS_URL"])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while True:
    hints.offer(WorkerOffer(f"stub-{os.getpid()}", ("interactive", "batch"), 3, 2), 5)
    time.sleep(0.2)
"""


@pytest.mark.full
def test_pages_beside_a_stack_come_back_on_their_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archive: Archive, make_run: Make
) -> None:
    """They show its queue; a process that is killed is started again on its socket; where none can live the stack
    goes on without."""
    for name in [name for name in os.environ if name.startswith("DAWN_")]:
        monkeypatch.delenv(name)
    name_runs(archive, {"r1": "cart"})
    make_run("r1", claimed())
    where = Settings(state_dir=tmp_path / "state", archive=archive.url, web_port=0)
    said: list[str] = []
    with Stack(where, say=said.append, worker_command=(sys.executable, "-c", STANDING)) as stack:
        listening = web.listen(where, None)
        stack.add("pages", web.command(listening), needed=False, inherits=(listening.fileno(),))
        keys = server.kept_keys(where.state_dir)
        reader = Reader(web.address_of(where, listening, keys.viewer))
        found = reader.data("/queue")["stack"]
        assert found["scheduler"]
        assert [(one["slots"], one["free"]) for one in found["workers"]] == [(3, 2)]
        [part] = [part for part in stack._children if part.name == "pages"]
        assert part.process is not None
        part.process.kill()
        part.process.wait()
        stack.tend()
        assert said[-1] == "pages ended with -9; it is started again"
        assert reader.data("/queue")["stack"]["scheduler"]
        part.deaths += part.deaths * 5
        part.process.kill()
        part.process.wait()
        stack.tend()
        assert said[-1].startswith("the stack goes on without pages")
        stack.tend()
        listening.close()


def test_redis_is_found_when_a_stack_comes_and_lost_when_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that were opened before the stack see it later."""
    found: list[str | None] = [None, "unix:///tmp/nobody.sock", None]
    clock = [0.0]
    monkeypatch.setattr("scheduler.web.door.deployment.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("scheduler.stack.connected", lambda where: where.model_copy(update={"redis_url": found[0]}))
    redis = Redis(Settings(state_dir=tmp_path))
    seen = []
    for _ in range(3):
        seen.append(redis() is not None)
        assert (redis() is not None) == seen[-1]
        found.pop(0)
        clock[0] += 60
    assert seen == [False, True, False]


def test_the_queue_of_a_real_redis(
    redis_url: str, archive: Archive, make_run: Make, visit: Callable[..., TestClient]
) -> None:
    """Lanes with doorbells, workers with slots, who holds a lease, which account waits, and why a run does."""
    hints = Hints(redis_url)
    name_runs(archive, {"r1": "cart", "r2": "shop"})
    make_run("r1", claimed())
    make_run("r2", target="shop")
    hints.offer(WorkerOffer("host-1", ("interactive", "batch"), 2, 1), 60)
    hints.claim("run:r1", "token", 60)
    hints.rung("r2", "batch", 60)
    hints.hold("openai", 90)
    client = visit("look", site_of(archive, hints=lambda: hints))
    data = json.loads(client.get("/queue", params={"as": "json"}).text)["data"]
    stack = data["stack"]
    assert {one["lane"]: (one["doorbells"], one["slots"], one["free"]) for one in stack["lanes"]} == {
        "interactive": (0, 2, 1),
        "batch": (1, 2, 1),
        "solo": (0, 0, 0),
    }
    assert (stack["leases"], stack["leaving"], stack["scheduler"]) == (["r1"], 0, False)
    assert 80 < stack["holds"]["openai"] <= 90
    assert [one["run"] for one in data["working"]] == ["r1"]
    assert [one["targets"] for one in data["waiting"]] == [["shop"]]
    page = client.get("/queue").text
    assert "no scheduler leads" in page
    assert "openai" in client.get("/").text


@pytest.mark.parametrize(
    ("host", "hosts", "answered"),
    [
        ("127.0.0.1", (), {"127.0.0.1:8420", "localhost:8420", "[::1]:8420"}),
        ("::1", (), {"127.0.0.1:8420", "localhost:8420", "[::1]:8420"}),
        ("10.0.0.5", (), {"10.0.0.5:8420"}),
        ("0.0.0.0", ("Pages.example.org",), {"127.0.0.1:8420", "localhost:8420", "[::1]:8420", "pages.example.org"}),
    ],
)
def test_a_server_answers_to_the_names_it_was_given(host: str, hosts: tuple[str, ...], answered: set[str]) -> None:
    """Its own, and those of DAWN_WEB_HOSTS; the address that is every address is none."""
    server.nameable(host, hosts)
    assert server.names(host, 8420, hosts) == answered


def test_every_address_wants_a_name() -> None:
    """Whoever opens the pages to the network says what browsers call them."""
    with pytest.raises(UsageFault, match="every address"):
        web.listen(Settings(web_host="0.0.0.0"), 0)


def test_a_taken_port_gives_way_where_nobody_named_it(tmp_path: Path) -> None:
    """Two deployments of a machine both get pages; a port that was asked for is that one or none."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with web.listen(Settings(web_port=taken), None) as listening:
            assert listening.getsockname()[1] != taken
        with pytest.raises(UsageFault, match="in use"):
            web.listen(Settings(), taken)


def test_an_archive_is_named_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder, a file or an address; a word that is none of them is told so, and is no empty archive."""
    (tmp_path / "night.tar").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert archive_address(".") == f"file://{tmp_path}"
    assert archive_address("night.tar") == f"bundle:{tmp_path / 'night.tar'}"
    assert archive_address(f"file://{tmp_path}") == f"file://{tmp_path}"
    assert archive_address("s3://bucket/prefix") == "s3://bucket/prefix"
    for word in ("nothing", "file:///nothing/here"):
        with pytest.raises(NotFoundFault):
            archive_address(word)
