"""Owns the claims that fault tests make of the TCP proxy. Refuses claims about what is behind it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from proxies import TcpProxy


def echo(listener: socket.socket) -> None:
    """Answer each connection with what it said, until it says no more, and then with `end`."""

    def serve(peer: socket.socket) -> None:
        with peer, contextlib.suppress(ConnectionError):
            while data := peer.recv(65536):
                peer.sendall(data)
            peer.sendall(b"end")

    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=serve, args=(peer,), daemon=True).start()


@pytest.fixture(params=["tcp", "unix"])
def proxy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TcpProxy]:
    """A proxy in front of an echo, over each kind of socket."""
    if request.param == "tcp":
        listener = socket.create_server(("127.0.0.1", 0))
        found = TcpProxy(listener.getsockname()[:2])
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / "far"))
        listener.listen()
        found = TcpProxy(str(tmp_path / "far"), listen=str(tmp_path / "near"))
    threading.Thread(target=echo, args=(listener,), daemon=True).start()
    with found:
        yield found
    listener.close()


def connect(proxy: TcpProxy) -> socket.socket:
    client = socket.socket(socket.AF_INET if isinstance(proxy.address, tuple) else socket.AF_UNIX)
    client.settimeout(10)
    client.connect(proxy.address)
    return client


def said(client: socket.socket, words: bytes) -> bytes:
    client.sendall(words)
    return client.recv(len(words))


def silent(client: socket.socket) -> bool:
    """Nothing comes for a tenth of a second."""
    client.settimeout(0.1)
    try:
        return client.recv(10) is None
    except TimeoutError:
        return True
    finally:
        client.settimeout(10)


def test_a_half_closed_connection_still_answers(proxy: TcpProxy) -> None:
    """The end of one direction is told, and the other stays open, as an attached container needs."""
    with connect(proxy) as client:
        assert said(client, b"hello") == b"hello"
        client.shutdown(socket.SHUT_WR)
        assert client.recv(10) == b"end"


def test_a_pause_loses_nothing(proxy: TcpProxy) -> None:
    """What was said in a pause arrives after it."""
    with connect(proxy) as client:
        assert said(client, b"one") == b"one"
        proxy.switch("pause")
        client.sendall(b"two")
        assert silent(client)
        proxy.switch("forward")
        assert client.recv(10) == b"two"


def test_a_blackholed_connection_stays_dead(proxy: TcpProxy) -> None:
    """One that lost bytes is never answered again; new ones are."""
    with connect(proxy) as client:
        assert said(client, b"one") == b"one"
        proxy.switch("blackhole")
        client.sendall(b"two")
        assert silent(client)
        proxy.switch("forward")
        client.sendall(b"three")
        assert silent(client)
        with connect(proxy) as new:
            assert said(new, b"four") == b"four"


def ended(proxy: TcpProxy, client: socket.socket | None = None) -> bool:
    """Whether a connection, or a new one, is ended without an answer."""
    try:
        with client or connect(proxy) as found:
            return not said(found, b"words")
    except ConnectionError:
        return True


def test_a_reset_ends_connections_old_and_new(proxy: TcpProxy) -> None:
    """Both end at once, until the proxy forwards again."""
    old = connect(proxy)
    assert said(old, b"one") == b"one"
    proxy.switch("reset")
    assert ended(proxy, old)
    assert ended(proxy)
    proxy.switch("forward")
    with connect(proxy) as client:
        assert said(client, b"three") == b"three"
        assert proxy.reset_open() == 1
        assert ended(proxy, client)
