"""Owns a container engine of the tests' own, to be killed, restarted and lost while the machine's engine is left
alone; and a proxy in front of one. Refuses to leave a process, a mount, a cgroup or a folder behind.

The engine lives as on a small machine: in namespaces of its own for processes, mounts and network, which all end with
their first process. It needs root and `dockerd`.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from conftest import wait_for
from proxies import Answer

from worker.contract.settings import Settings
from worker.sandbox import images
from worker.sandbox.sandbox import DockerSandbox

CHUNK_BYTES = 65536
FIRST_PROCESS = """
mount -t tmpfs -o mode=755 none /run
mkdir -p /etc/docker
mount -t tmpfs none /etc/docker
mkdir "$1"
mount -t tmpfs none "$1"
exec env --ignore-signal=CHLD sleep infinity
"""
"""$1 is the disk: in memory, so that it is fast, and gone with the machine. /run holds sockets that an engine puts
nowhere else, /etc/docker the key its id comes from. Who ignores CHLD reaps orphans."""


class OwnEngine:
    """A `dockerd` with its containerd, not started yet. folder: where its socket and its log are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._name = f"dawn-engine-{secrets.token_hex(4)}"
        self._machine: subprocess.Popen[bytes] | None = None
        self._dockerd: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.folder / 'docker.sock'}"

    @property
    def _disk(self) -> str:
        return f"{self.folder}/disk"

    def start(self) -> None:
        """Start what does not run of it, and wait until it answers."""
        if self._machine is None:
            words = (
                "setpriv",
                "--pdeathsig",
                "KILL",
                "unshare",
                "--net",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
            )
            self._machine = subprocess.Popen(
                [*words, "--mount-proc", "sh", "-c", FIRST_PROCESS, "sh", self._disk], stderr=subprocess.DEVNULL
            )
            wait_for(lambda: self._first() and _program(self._first()) == "sleep")
        if self._dockerd is None:
            with open(self.folder / "log", "ab") as log:
                self._dockerd = subprocess.Popen(self._command(), stdout=log, stderr=log)
        wait_for(lambda: self._answers() or self._ended())
        if self._ended():
            raise RuntimeError((self.folder / "log").read_text(errors="replace")[-2000:])

    def kill(self) -> None:
        """kill -9 of dockerd, which takes its containerd along; containers go on."""
        assert self._dockerd is not None
        os.kill(self._process("dockerd"), signal.SIGKILL)
        self._dockerd.wait()
        self._dockerd = None

    def kill_containerd(self) -> None:
        """kill -9 of containerd alone; dockerd starts another (`works` when it did)."""
        os.kill(self._process("containerd"), signal.SIGKILL)

    def works(self) -> bool:
        """Whether a container runs on it."""
        with suppress(RuntimeError):
            self.docker("run", "--rm", images.reference("toolbox"), "true")
            return True
        return False

    def lose(self) -> None:
        """As when the machine is lost: every process at once, and the disk."""
        if self._machine is not None:
            os.kill(self._first(), signal.SIGKILL)
            for process in (self._machine, self._dockerd):
                if process is not None:
                    process.wait()
        self._machine = self._dockerd = None
        for entry in self.folder.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        for group in Path("/sys/fs/cgroup").glob(f"**/{self._name}"):
            for below, _, _ in os.walk(group, topdown=False):
                wait_for(partial(_removed, below))

    def docker(self, *words: str) -> str:
        """What the `docker` command says to it."""
        command = ["docker", "--host", self.url, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"docker {words[0]}: {done.stderr}")
        return done.stdout

    def carry(self, image: str) -> None:
        """Bring it an image of ours from the machine's own engine, unless it has it."""
        images.ensure([image])
        reference = images.reference(image)
        if self.docker("images", "--quiet", reference):
            return
        with subprocess.Popen(["docker", "save", reference], stdout=subprocess.PIPE) as saved:
            subprocess.run(["docker", "--host", self.url, "load", "--quiet"], stdin=saved.stdout, check=True)

    def things(self) -> list[str]:
        """Names of all containers, in any state, and of all volumes."""
        containers = self.docker("ps", "--all", "--format={{.Names}}").split()
        return containers + self.docker("volume", "ls", "--quiet").split()

    def _command(self) -> list[str]:
        return [
            *("nsenter", "--target", str(self._first()), "--net", "--mount", "--pid", "dockerd"),
            *("--host", self.url, "--data-root", f"{self._disk}/data", "--exec-root", f"{self._disk}/exec"),
            *("--pidfile", f"{self._disk}/pid", "--cgroup-parent", self._name, "--storage-driver", "overlay2"),
            *("--exec-opt", "native.cgroupdriver=cgroupfs", "--iptables=false", "--log-level", "warn"),
        ]

    def _first(self) -> int:
        """Process id of the machine's first process, 0 while there is none."""
        assert self._machine is not None
        return next(iter(_children(self._machine.pid)), 0)

    def _process(self, name: str) -> int:
        """Process id of dockerd or of its containerd, once it runs."""

        def found() -> int:
            assert self._dockerd is not None
            below = _children(self._dockerd.pid)
            below += [pid for parent in below for pid in _children(parent)]
            return next((pid for pid in below if _program(pid) == name), 0)

        return int(wait_for(found))

    def _answers(self) -> bool:
        try:
            self.docker("version")
        except RuntimeError:
            return False
        return True

    def _ended(self) -> bool:
        return self._dockerd is None or self._dockerd.poll() is not None


def _children(pid: int) -> list[int]:
    """Of all threads of a process; none when it is gone."""
    found = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def _program(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _removed(folder: str) -> bool:
    """A cgroup is busy for a moment after its last process ended."""
    with suppress(OSError):
        os.rmdir(folder)
    return not Path(folder).exists()


@pytest.fixture(scope="session")
def _own_engine() -> Iterator[OwnEngine]:
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("an engine of the tests' own needs root and dockerd")
    # Not below pytest's folder, whose path may be too long for a socket.
    folder = Path(tempfile.mkdtemp(prefix="dawn-engine-"))
    engine = OwnEngine(folder)
    yield engine
    engine.lose()
    folder.rmdir()


@pytest.fixture
def own_engine(_own_engine: OwnEngine) -> OwnEngine:
    """An engine of the tests' own, running, with our toolbox image; whatever tests did to it before."""
    _own_engine.start()
    _own_engine.carry("toolbox")
    return _own_engine


@pytest.fixture
def own_sandbox(own_engine: OwnEngine, tmp_path: Path) -> Iterator[DockerSandbox]:
    """A sandbox on the engine of the tests' own. Everything made there must be gone when the test ends."""
    sandbox = DockerSandbox(Settings(docker_url=own_engine.url, state_dir=tmp_path / "state"))
    yield sandbox
    sandbox.close()
    own_engine.start()
    left = own_engine.things()
    if left:
        own_engine.lose()
    assert left == []


class EngineProxy:
    """Listens at a Unix socket and gives every request a connection of its own to the engine. What can be set, for
    the requests from then on:

    before: (method, path) -> the Answer in the engine's place, RESET, or None; the engine does not hear of it.
    after: the same, when the engine has done what it was asked: its own answer is lost.
    """

    def __init__(self, target: str, folder: Path) -> None:
        self._target = target.removeprefix("unix://")
        self.url = f"unix://{folder / 'proxy.sock'}"
        self.before: Callable[[str, str], Answer | None] = lambda method, path: None
        self.after: Callable[[str, str], Answer | None] = lambda method, path: None
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(folder / "proxy.sock"))
        self._server.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        Path(self.url.removeprefix("unix://")).unlink()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as engine, suppress(OSError, ValueError):
            head, body = _request(client)
            method, path, _ = head.split(b"\r\n")[0].decode().split(" ")
            answer = self.before(method, path)
            if answer is None:
                engine.connect(self._target)
                # Each request alone: what follows on a kept connection would pass by unseen.
                alone = b"" if b"upgrade" in head.lower() else b"\r\nConnection: close"
                engine.sendall(head + alone + b"\r\n\r\n" + body)
                answer = self.after(method, path)
                threading.Thread(target=_pump, args=(client, engine), daemon=True).start()
                if answer is None:
                    _pump(engine, client)
                    return
                while engine.recv(CHUNK_BYTES):
                    pass
            if answer.status:
                said = b"HTTP/1.1 %d Spoiled\r\nContent-Type: application/json\r\nConnection: close\r\n"
                client.sendall(said % answer.status + b"Content-Length: %d\r\n\r\n" % len(answer.body) + answer.body)
            client.shutdown(socket.SHUT_RDWR)  # closing alone is not seen while the other thread reads


def _request(client: socket.socket) -> tuple[bytes, bytes]:
    """Head and body of a request. Raises ValueError when none comes."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := client.recv(CHUNK_BYTES)):
            raise ValueError("a connection without a request")
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    while length and len(body) < int(length[1]):
        body += client.recv(CHUNK_BYTES)
    return head, body


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Until the source ends; then the sink is told."""
    with suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def engine_proxy(own_engine: OwnEngine, tmp_path: Path) -> Iterator[EngineProxy]:
    """A proxy in front of the engine of the tests' own."""
    proxy = EngineProxy(own_engine.url, own_engine.folder)
    yield proxy
    proxy.close()


@pytest.fixture
def spoiled_sandbox(engine_proxy: EngineProxy, own_sandbox: DockerSandbox, tmp_path: Path) -> Iterator[DockerSandbox]:
    """A sandbox that reaches the engine of the tests' own through the proxy."""
    sandbox = DockerSandbox(Settings(docker_url=engine_proxy.url, state_dir=tmp_path / "spoiled"))
    yield sandbox
    sandbox.close()
