"""A registry that wants to be asked later, behind an engine that tells of it. The engine is a server of the test's
own: what is tried is what we ask one, and what we make of its words.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from worker import base_image
from worker.contract.cancel import Cancel
from worker.contract.errors import EngineFault, EnvironmentFault
from worker.contract.redact import Redactor
from worker.contract.settings import Settings
from worker.contract.task import Environment, Limits, Repo, Task
from worker.sandbox.sandbox import DockerSandbox
from worker.toolbox import Cancelled

IMAGE = "registry.example:5000/team/base:1"
WAIT_S = 60
"""Whoever waits so long hangs."""


@dataclass
class Registry:
    """pull: what comes of the number-th time that it is asked: an error, "" for the image. asked: names, in order."""

    pull: Callable[[int], str] = lambda number: ""
    asked: list[str] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    by_status: bool = False


class Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


def handler(registry: Registry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _, _, what = urlsplit(self.path).path.partition("/images/")
            name = unquote(what.removesuffix("/json"))
            if name in registry.held:
                self.say(200, {"Id": "sha256:" + "1" * 64})
            elif name:
                self.say(404, {"message": f"No such image: {name}"})
            else:
                self.say(200, {"ApiVersion": "1.45", "MinAPIVersion": "1.24", "ID": "engine", "NCPU": 1})

        def do_POST(self) -> None:
            asked = parse_qs(urlsplit(self.path).query)
            name = f"{asked['fromImage'][0]}:{asked['tag'][0]}"
            registry.asked.append(name)
            if not registry.by_status:  # an engine that has begun can only tell in words how it ended
                self.begin(200)
            if error := registry.pull(len(registry.asked)):
                if registry.by_status:
                    self.say(500, {"message": error})
                else:
                    self.write({"error": error})
                return
            registry.held.add(name)
            if registry.by_status:
                self.begin(200)
            self.write({"status": "Downloaded newer image"})

        def say(self, status: int, told: dict[str, object]) -> None:
            self.begin(status)
            self.write(told)

        def begin(self, status: int) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.end_headers()

        def write(self, told: dict[str, object]) -> None:
            with suppress(OSError):  # whoever asked has gone
                self.wfile.write(json.dumps(told).encode() + b"\n")

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *_: object) -> None:
            """Nothing."""

    return Handler


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def processes(registry: Registry, tmp_path: Path) -> Iterator[tuple[DockerSandbox, DockerSandbox]]:
    """Two workers of one host."""
    with ExitStack() as stack:
        server = stack.enter_context(Server(str(tmp_path / "engine.sock"), handler(registry)))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        stack.callback(server.shutdown)
        settings = Settings(docker_url=f"unix://{tmp_path / 'engine.sock'}", state_dir=tmp_path / "state")
        made = DockerSandbox(settings), DockerSandbox(settings)
        for one in made:
            stack.callback(one.close)
        yield made


@pytest.mark.parametrize("by_status", [True, False])
@pytest.mark.parametrize(
    "said",
    [
        "toomanyrequests: You have reached your pull rate limit.",
        "unexpected status from HEAD request to https://registry.example/v2/x/manifests/1: 429 Too Many Requests",
        "received unexpected HTTP status: 503 Service Unavailable",
    ],
)
def test_a_registry_that_wants_to_be_asked_later_is_no_fault_of_the_image(
    registry: Registry, processes: tuple[DockerSandbox, DockerSandbox], said: str, by_status: bool
) -> None:
    """T54: a fault of the engine's kind, which gives a run back for a while, with the registry's words; the third
    time the image comes."""
    sandbox, _ = processes
    registry.pull, registry.by_status = lambda number: said if number < 3 else "", by_status
    for _ in range(2):
        with pytest.raises(EngineFault, match="no registry gives") as caught:
            sandbox.base_id(IMAGE, Limits(), cancel=Cancel())
        assert said in caught.value.message
        assert caught.value.retryable
    assert sandbox.base_id(IMAGE, Limits(), cancel=Cancel()) == "sha256:" + "1" * 64
    assert registry.asked == [IMAGE] * 3


@pytest.mark.parametrize(
    "said",
    [
        "manifest for registry.example:5000/team/base:503 not found: manifest unknown",
        "pull access denied for base, repository does not exist or may require 'docker login'",
        "unexpected status from GET request to https://registry.example:5000/v2/500/manifests/1: 404 Not Found",
    ],
)
def test_an_image_that_no_registry_has_is_one(
    registry: Registry, processes: tuple[DockerSandbox, DockerSandbox], said: str
) -> None:
    """Asking again would not help."""
    registry.pull = lambda number: said
    with pytest.raises(EnvironmentFault, match="no registry gave it") as caught:
        processes[0].base_id(IMAGE, Limits(), cancel=Cancel())
    assert caught.value.reason == "image"


class Watched(Cancel):
    """Tells that somebody waits, as for a lock."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        self.waits.set()
        return super().wait(timeout_s)


def test_an_image_is_pulled_once_by_all_who_want_it(
    registry: Registry, processes: tuple[DockerSandbox, DockerSandbox]
) -> None:
    """T54: one pull of an image and host at a time; whoever waited finds it there."""
    begun, second = threading.Event(), Watched()

    def pull(number: int) -> str:
        begun.set()
        if number > 1:
            second.waits.set()
        return "" if second.waits.wait(WAIT_S) else "nobody else came"

    registry.pull = pull
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(processes[0].base_id, IMAGE, Limits(), cancel=Cancel())
        assert begun.wait(WAIT_S)
        other = pool.submit(processes[1].base_id, IMAGE, Limits(), cancel=second)
        assert one.result() == other.result()
    assert registry.asked == [IMAGE]


def test_a_worker_that_drains_while_an_image_is_pulled_blames_no_image(
    registry: Registry, processes: tuple[DockerSandbox, DockerSandbox]
) -> None:
    """The run is given back, and does not end as one whose image is nowhere."""
    cancel, ended = Cancel(), threading.Event()

    def pull(number: int) -> str:
        cancel.set("drain")
        ended.wait(WAIT_S)
        return "cut off"

    registry.pull = pull
    environment = Environment(image="ci/Dockerfile", dockerfile=f"FROM {IMAGE}\n")
    task = Task(
        run="r", batch="b", target="t", repo=Repo(url="https://h/r"), commands=("x",), environment=environment
    )
    with pytest.raises(Cancelled, match="drain"):
        base_image.asked(task, processes[0], redactor=Redactor({}), cancel=cancel)
    ended.set()
