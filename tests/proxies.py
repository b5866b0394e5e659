"""Owns the trouble between us and a server: an HTTP proxy that spoils requests and answers of a store; a TCP proxy
(TCP and Unix sockets) that holds, swallows, resets and refuses connections. Refuses to know what is said through it.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import random
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

CHUNK_BYTES = 65536
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER of no time: close sends RST in place of FIN."""

CHUNKED_HEADERS = frozenset(
    {"content-encoding", "x-amz-decoded-content-length", "x-amz-content-sha256", "x-amz-trailer"}
)
HOP_HEADERS = frozenset({"date", "transfer-encoding", "connection", "content-length"})


@dataclass(frozen=True)
class Answer:
    """What the proxy says in the store's place."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


RESET: Final = Answer(0)
"""No answer: the connection is reset."""


def s3_error(status: int, code: str) -> Answer:
    """An error as S3 writes it."""
    return Answer(status, f"<Error><Code>{code}</Code><Message>as asked by a test</Message></Error>".encode())


def anything(method: str, path: str) -> bool:
    return True


class Sometimes:
    """One of `values` for a share of the requests that fit, chosen by a seed; None for the others. Thread-safe."""

    def __init__(
        self, seed: int, share: float, values: Sequence[Any], when: Callable[[str, str], bool] = anything
    ) -> None:
        self.struck: list[str] = []
        self._random, self._lock = random.Random(seed), threading.Lock()
        self._share, self._values, self._when = share, values, when

    def __call__(self, method: str, path: str) -> Any:
        with self._lock:
            if not self._when(method, path) or self._random.random() >= self._share:
                return None
            self.struck.append(f"{method} {path}")
            return self._random.choice(self._values)


def once(value: Any, when: Callable[[str, str], bool] = anything) -> Callable[[str, str], Any]:
    """The value for the first request that fits, None for all others."""
    left = [value]
    return lambda method, path: left.pop() if left and when(method, path) else None


class HttpProxy(ThreadingHTTPServer):
    """Forwards to a store, an `http://` address. What can be set, for the requests from then on:

    before: (method, path) -> the Answer in the store's place, RESET, or None; the store does not hear of it.
    after: (method, path) -> whether the store's answer is lost, by a reset, after it did what it was asked.
    damage: changes a body on its way to the store; onward: changes a path.
    away: every connection is reset.
    raw: store a chunked upload with its framing, as endpoints do that do not know it.
    cut_bodies_at: answers to GET break off after so many bytes. cut: (method, path) -> after how many bytes of its
    body this one answer is reset, or None.
    date: what the Date header of every answer says.
    keys: with them what is changed onward is signed anew, for stores that check it.
    """

    daemon_threads = True

    def __init__(self, target: str, tls: tuple[Path, Path] | None = None) -> None:
        """tls: certificate of `localhost` and its key, to be reached by `https://`."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        if tls is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(*tls)
            self.socket = context.wrap_socket(self.socket, server_side=True)
            self.url = f"https://localhost:{self.server_port}"
        self.target = target.removeprefix("http://")
        self.seen: list[str] = []
        self.before: Callable[[str, str], Answer | None] = lambda method, path: None
        self.after: Callable[[str, str], bool | None] = lambda method, path: False
        self.damage: Callable[[bytes], bytes] = lambda body: body
        self.onward: Callable[[str], str] = lambda path: path
        self.away = False
        self.raw = False
        self.cut_bodies_at: int | None = None
        self.cut: Callable[[str, str], int | None] = lambda method, path: None
        self.date: datetime | None = None
        self.keys: tuple[str, str] | None = None
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    def shutdown_request(self, request: Any) -> None:
        """Close without a FIN of our own, so that SO_LINGER decides."""
        self.close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of ours."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HttpProxy

    def handle_any(self) -> None:
        proxy, where = self.server, (self.command, self.path)
        proxy.seen.append(" ".join(where))
        if proxy.away:
            return self.reset()
        body = self.received()
        if (answer := proxy.before(*where)) is not None:
            return self.reply(answer.status, answer.headers, answer.body) if answer.status else self.reset()
        left_out = {"expect", "connection", "content-length", "transfer-encoding"} | (
            CHUNKED_HEADERS if proxy.raw else set()
        )
        headers = {name: value for name, value in self.headers.items() if name.lower() not in left_out}
        with contextlib.closing(http.client.HTTPConnection(proxy.target)) as onward:
            path = proxy.onward(self.path)
            if proxy.keys is not None and path != self.path:
                headers = _signed(proxy.keys, self.command, f"http://{proxy.target}{path}", headers)
            onward.request(self.command, path, proxy.damage(body), headers)
            response = onward.getresponse()
            data = response.read()
        if proxy.after(*where) or proxy.away:
            return self.reset()
        kept = {name: value for name, value in response.getheaders() if name.lower() not in HOP_HEADERS}
        length = response.headers.get("Content-Length", "0") if self.command == "HEAD" else None
        return self.reply(response.status, kept, data, length)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

    def received(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.close_connection = True

    def reply(self, status: int, headers: Mapping[str, str], data: bytes, length: str | None = None) -> None:
        self.send_response_only(status)
        own = {
            "Content-Length": length or str(len(data)),
            "Date": format_datetime(self.server.date or datetime.now(UTC), usegmt=True),
        }
        for name, value in {**own, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        limit = self.server.cut_bodies_at
        if self.command == "GET" and limit is not None and len(data) > limit:
            self.wfile.write(data[:limit])
            self.close_connection = True
            return
        if (limit := self.server.cut(self.command, self.path)) is not None:
            self.wfile.write(data[:limit])
            self.reset()
            return
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def _signed(keys: tuple[str, str], method: str, url: str, headers: Mapping[str, str]) -> dict[str, str]:
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    kept = {name: value for name, value in headers.items() if name.lower() not in ("authorization", "host")}
    request = AWSRequest(method, url, headers=kept, data=b"")
    S3SigV4Auth(Credentials(*keys), "s3", "us-east-1").add_auth(request)
    return dict(request.headers.items())


Mode = Literal["forward", "pause", "blackhole", "reset"]


class TcpProxy:
    """Forwards connections to a server, half-closed ones too. Modes, of open connections and new ones:

    forward: bytes go through.
    pause: nothing goes through, nothing is lost: it arrives after the next `switch("forward")`.
    blackhole: every byte is swallowed; a connection that lost some stays dead, also after `switch("forward")`.
    reset: every connection is reset at once.

    A context manager; addresses are (host, port) or the path of a Unix socket.
    """

    def __init__(self, target: tuple[str, int] | str, listen: str | None = None) -> None:
        """listen: the path of the Unix socket to listen at; without one it is a TCP port of 127.0.0.1."""
        self._target = target
        self._mode: Mode = "forward"
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter | None]] = set()
        self.accepted = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._changed: asyncio.Event
        self._server = self._call(self._listen(listen))
        self.address: tuple[str, int] | str = listen or self._server.sockets[0].getsockname()[:2]

    @property
    def port(self) -> int:
        """The TCP port it listens at."""
        return int(self.address[1])

    def switch(self, mode: Mode) -> None:
        """From now on, and before this returns."""
        self._call(self._switch(mode))

    def reset_open(self) -> int:
        """Reset the connections that are open now, and say how many; new ones are not touched."""
        return self._call(self._reset_open())

    def close(self) -> None:
        """Reset everything and listen no more. May be called again."""
        if self._loop.is_running():
            self.switch("reset")
            self._call(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    async def _listen(self, path: str | None) -> asyncio.Server:
        self._changed = asyncio.Event()
        if path is not None:
            return await asyncio.start_unix_server(self._serve, path)
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _close(self) -> None:
        self._server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _switch(self, mode: Mode) -> None:
        self._mode = mode
        if mode == "reset":
            await self._reset_open()
        self._changed.set()
        self._changed = asyncio.Event()

    async def _reset_open(self) -> int:
        pairs = list(self._pairs)
        for pair in pairs:
            _reset(*pair)
        return len(pairs)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._mode == "reset":
            return _reset(writer)
        alone = (writer, None)
        self._pairs.add(alone)
        try:
            while self._mode != "forward":
                await self._changed.wait()
            if isinstance(self._target, str):
                far_reader, far_writer = await asyncio.open_unix_connection(self._target)
            else:
                far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            return _reset(writer)
        finally:
            self._pairs.discard(alone)
        pair = (writer, far_writer)
        self._pairs.add(pair)
        try:
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        except OSError:
            _reset(*pair)
        finally:
            self._pairs.discard(pair)
            writer.close()
            far_writer.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while True:
            data = await source.read(CHUNK_BYTES)
            while self._mode == "pause":
                await self._changed.wait()
            if self._mode == "blackhole":
                while await source.read(CHUNK_BYTES):
                    pass
                await asyncio.Event().wait()  # not even its end is told
            if not data:
                break
            sink.write(data)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()


def _reset(*ends: asyncio.StreamWriter | None) -> None:
    """End a connection with RST where the socket has one (a Unix socket just ends)."""
    for end in ends:
        if end is None:
            continue
        with contextlib.suppress(OSError):
            end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        end.transport.abort()
