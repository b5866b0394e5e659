"""Owns a listener for webhooks on this machine, which keeps what it was sent. Refuses to judge it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@dataclass(frozen=True)
class Message:
    """headers: by lower-case name."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Listener:
    """answers: statuses of the next answers, then 204. hold: an answer waits for it; drip: one header a moment
    meanwhile. headers: of each answer."""

    url: str = ""
    got: list[Message] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    hold: threading.Event | None = None
    drip: bool = False


def _handler(listener: Listener) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            listener.got.append(Message(self.path, headers, body))
            if listener.hold is not None:
                with suppress(ConnectionError):  # whoever sent it has gone
                    self._wait(listener.hold)
            self.send_response(listener.answers.pop(0) if listener.answers else 204)
            for name, value in listener.headers.items():
                self.send_header(name, value)
            self.end_headers()

        def _wait(self, hold: threading.Event) -> None:
            if listener.drip:
                self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            while not hold.wait(0.05):
                if listener.drip:
                    self.wfile.write(b"x-drip: 1\r\n")

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@pytest.fixture
def listener() -> Iterator[Listener]:
    """A listener at `listener.url`."""
    made = Listener()
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(made)) as server:
        server.daemon_threads = True
        made.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield made
        if made.hold is not None:
            made.hold.set()
        server.shutdown()
        thread.join()
