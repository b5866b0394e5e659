"""A client that is slow or stays silent costs a connection for a bounded time, over real sockets."""

from __future__ import annotations

import http.client
import itertools
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import pytest
from browsers import served
from conftest import wait_for

from scheduler.web.door import app, connection, news, server
from scheduler.web.page import Asked, File, Page, Way
from scheduler.web.site import Site

Dial = Callable[..., socket.socket]
WAIT_S = 60.0


@pytest.fixture
def dial(site: Site) -> Iterator[Dial]:
    """dial(text): a connection to the pages that has sent this."""
    with ExitStack() as stack:
        origin: list[str] = []

        def dial(text: str = "") -> socket.socket:
            if not origin:
                origin.append(stack.enter_context(served(site)))
            host = urlsplit(origin[0])
            made = stack.enter_context(socket.create_connection((host.hostname or "", host.port or 0), WAIT_S))
            made.sendall(text.replace("HOST", host.netloc).replace("ORIGIN", origin[0]).encode())
            return made

        yield dial


def status(client: socket.socket) -> int:
    """Of the next answer, which is read whole."""
    answer = http.client.HTTPResponse(client)
    answer.begin()
    answer.read()
    return answer.status


def signed_in(site: Site) -> str:
    """The cookie of somebody who is."""
    visitor = site.access.sign_in("look")
    assert visitor is not None
    return f"{site.access.cookie('session')}={site.access.session(visitor)}"


FORM = (
    "POST /enter HTTP/1.1\r\nhost: HOST\r\norigin: ORIGIN\r\ncontent-length: {}\r\n"
    "content-type: application/x-www-form-urlencoded\r\n\r\nto"
)


@pytest.mark.parametrize(
    "text",
    ["", "GET / HTTP/1.1\r\nhost: HO", FORM.format(100), "GET /favicon.ico HTTP/1.1\r\nhost: HOST\r\n\r\nGET / HT"],
    ids=["nothing", "head", "form", "second"],
)
def test_a_request_that_does_not_end_is_cut_off(text: str, dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence, half a head, half a form, and half a request behind another: the connection is closed."""
    monkeypatch.setattr(connection, "REQUEST_S", 0.5)
    monkeypatch.setattr(server, "KEEP_ALIVE_S", 600)
    client = dial(text)
    if "favicon" in text:
        assert status(client) == 204
        client.sendall(b"TP")  # from here on uvicorn waits for ever
    assert client.recv(1) == b""


def is_cut_off(client: socket.socket) -> bool:
    """Whether one more letter reaches nobody."""
    try:
        client.sendall(b"x")
    except ConnectionError:
        return True
    return False


@pytest.mark.parametrize("text", ["GET / HTTP/1.1\r\nhost: HOST\r\nx: ", FORM.format(100), FORM.format(5_000_000)])
def test_a_letter_at_a_time_is_no_way_around(text: str, dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline is of the whole request: what still arrives does not put it off, not even where nobody reads the
    rest."""
    monkeypatch.setattr(connection, "REQUEST_S", 0.5)
    client = dial(text)
    wait_for(lambda: is_cut_off(client))


def test_who_has_asked_may_listen_for_as_long_as_they_like(
    dial: Dial, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline ends with the request, not with its answer."""
    monkeypatch.setattr(connection, "REQUEST_S", 1.0)
    monkeypatch.setattr(news, "ALIVE_S", 0.1)
    client = dial(f"GET /news?of=all HTTP/1.1\r\nhost: HOST\r\ncookie: {signed_in(site)}\r\n\r\n")
    heard = b""
    while heard.count(b": still here") < 15:
        heard += client.recv(4096) or pytest.fail(f"cut off after {heard!r}")


ASKS = "GET /favicon.ico HTTP/1.1\r\nhost: HOST\r\n\r\n"


def test_who_opens_many_and_asks_nothing_keeps_nobody_out(
    dial: Dial, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past the bound, whoever was silent for longest makes room; who listens to news stays."""
    monkeypatch.setattr(connection, "CONNECTIONS_MAX", 4)
    listener = dial(f"GET /news?of=all HTTP/1.1\r\nhost: HOST\r\ncookie: {signed_in(site)}\r\n\r\n")
    assert listener.recv(1) == b"H"
    silent = [dial() for _ in range(9)]
    assert status(dial(ASKS)) == 204
    assert [one.recv(1) for one in silent[:7]] == [b""] * 7
    assert site.news.listeners == 1


def test_more_than_can_be_answered_are_told_to_come_later(
    dial: Dial, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all are being answered, one more is refused; when one goes, there is room."""
    monkeypatch.setattr(connection, "CONNECTIONS_MAX", 1)
    monkeypatch.setattr(server, "BACKLOG", 1)
    listener = dial(f"GET /news?of=all HTTP/1.1\r\nhost: HOST\r\ncookie: {signed_in(site)}\r\n\r\n")
    assert listener.recv(1) == b"H"
    assert status(dial(ASKS)) == 503
    listener.close()
    wait_for(lambda: status(dial(ASKS)) == 204)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux does it")
def test_an_answer_that_nobody_reads_is_given_up(dial: Dial, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that asks for something large and takes nothing of it holds it for a bounded time."""
    monkeypatch.setattr(server, "UNREAD_S", 1)

    def large(_: Site, __: Asked) -> Page | File:
        return File("large", itertools.repeat(b"x" * 2**20))

    create: Any = app.create
    monkeypatch.setattr(app, "create", lambda site, hosts: create(site, hosts, (Way("/large", large),)))
    client = dial(f"GET /large HTTP/1.1\r\nhost: HOST\r\ncookie: {signed_in(site)}\r\n\r\n")
    wait_for(lambda: is_cut_off(client))
