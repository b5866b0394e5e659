"""Fixtures of the pages: a site over an archive, and a browser's half without a browser. Refuses to know any page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from scheduler.web.door.access import Access, Token
from scheduler.web.door.app import create
from scheduler.web.seen import Seen
from scheduler.web.site import Site
from worker.contract.settings import Settings
from worker.store.archive import Archive

HOST = "127.0.0.1:8420"
ORIGIN = f"http://{HOST}"
TOKENS = (Token("look", "vera@here", "viewer"), Token("decide", "rosa@here", "reviewer"))


def site_of(archive: Archive, **changes: Any) -> Site:
    """The pages of a deployment without a stack."""
    made: dict[str, Any] = {"archive": archive, "seen": Seen(archive), "access": Access(b"k" * 32, TOKENS)}
    return Site(**(made | {"settings": Settings()} | changes))


@pytest.fixture
def site(archive: Archive) -> Site:
    return site_of(archive)


@pytest.fixture
def visit(site: Site) -> Iterator[Callable[..., TestClient]]:
    """visit("decide" | "look" | None): a client, signed in with that token or with none. of: another site."""
    made: list[TestClient] = []

    def visit(token: str | None = "decide", of: Site | None = None) -> TestClient:
        client = TestClient(create(of or site, {HOST}), base_url=ORIGIN, raise_server_exceptions=True)
        if token is not None:
            client.get("/enter", params={"token": token}, follow_redirects=False)
        made.append(client)
        return client

    yield visit
    for client in made:
        client.close()
