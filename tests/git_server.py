"""Owns a git server that containers reach: `git http-backend` behind a token, on the bridge. Refuses pushes to
repositories whose configuration does not allow them."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import unquote

import pytest


@dataclass
class GitServer:
    """Serves the repositories below root to who knows the token; public: for pushes only. seen: the passwords it was
    offered, "" for none."""

    root: Path
    token: str
    url: str = ""
    public: bool = False
    seen: list[str] = field(default_factory=list)

    def opens_with(self, header: str) -> bool:
        kind, _, credentials = header.partition(" ")
        password = base64.b64decode(credentials).decode().partition(":")[2] if kind == "Basic" else ""
        self.seen.append(password)
        return password == self.token


@contextmanager
def serving(root: Path, token: str, address: str, *, public: bool = False) -> Iterator[GitServer]:
    git = GitServer(root, token, public=public)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = git.opens_with(self.headers.get("Authorization", ""))
            if not known and not (git.public and "git-receive-pack" not in self.path):
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
                self.end_headers()
                return
            path, _, query = self.path.partition("?")
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            done = subprocess.run(
                ["git", "http-backend"],
                input=body,
                stdout=subprocess.PIPE,
                check=True,
                env={
                    "PATH": os.environ["PATH"],
                    "GIT_PROJECT_ROOT": str(root),
                    "GIT_HTTP_EXPORT_ALL": "1",
                    "PATH_INFO": unquote(path),
                    "QUERY_STRING": query,
                    "REQUEST_METHOD": self.command,
                    "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                    "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                    "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                },
            )
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
            self.send_response(int(headers.pop("Status", "200").split()[0]))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Nothing: pytest shows what matters."""

    with ThreadingHTTPServer((address, 0), Handler) as server:
        git.url = f"http://{address}:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield git
        server.shutdown()


@pytest.fixture
def git_server(tmp_path: Path) -> Iterator[Callable[[str, str], GitServer]]:
    """Starts git servers: (name of a folder to serve, token) -> a server on the gateway of the engine's bridge."""
    with ExitStack() as stack:
        yield lambda name, token: stack.enter_context(serving(tmp_path / name, token, bridge_address()))


def bridge_address() -> str:
    """Where containers reach this host."""
    inspect = ["docker", "network", "inspect", "bridge", "--format", "{{json .IPAM.Config}}"]
    (config,) = json.loads(subprocess.run(inspect, check=True, capture_output=True).stdout)
    # The engine names the gateway only where somebody chose it: else it is the first address of the subnet.
    return str(config.get("Gateway") or next(ip_network(config["Subnet"]).hosts()))
