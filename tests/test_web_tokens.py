"""Whom a deployment's settings let in: a team's tokens, and a reverse proxy's users."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from webs import HOST, ORIGIN, site_of

from scheduler.web.door.access import Access, Token
from scheduler.web.door.app import create
from scheduler.web.door.server import fresh_keys
from scheduler.web.door.tokens import access_of
from scheduler.web.page import Visitor
from scheduler.web.patches.groups import opened_as
from worker.contract.errors import UsageFault
from worker.contract.settings import Settings
from worker.store.archive import Archive

SECRET = "s3cret-of-sixteen-and-more"
ROSA = Visitor("rosa", "reviewer")


def of_file(tmp_path: Path, text: str, mode: int = 0o600) -> Access:
    path = tmp_path / "tokens"
    path.write_text(text)
    path.chmod(mode)
    return access_of(Settings(web_tokens=path), fresh_keys(), "me@here")


def test_each_of_a_team_has_a_token(tmp_path: Path) -> None:
    """A line names who it is, what they may do, and what they sign in with; the deployment's own stay."""
    access = of_file(tmp_path, f"# the night shift\n\nrosa reviewer {SECRET}\nvera viewer {SECRET}2\n")
    assert access.sign_in(SECRET) == Visitor("rosa", "reviewer")
    assert access.sign_in(f"{SECRET}2") == Visitor("vera", "viewer")
    assert [token.name for token in access.tokens[:2]] == ["me@here", "me@here"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"rosa admin {SECRET}", "no role"),
        ("rosa reviewer short", "fewer than 16"),
        (f"rosa reviewer {SECRET} more", "4 words"),
        (f"ro\x07sa viewer {SECRET}", "not printable"),
        (f"rosa viewer {SECRET}\nvera reviewer {SECRET}", "the token of another"),
    ],
)
def test_a_line_that_is_none_is_refused(tmp_path: Path, line: str, said: str) -> None:
    """Whoever mistypes a role does not become another, and the complaint holds no token."""
    with pytest.raises(UsageFault, match=said) as caught:
        of_file(tmp_path, line)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    """What others have read are no secrets any more."""
    with pytest.raises(UsageFault, match="others may read"):
        of_file(tmp_path, f"rosa reviewer {SECRET}\n", mode)


def test_settings_of_the_pages_are_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names stand between commas or blanks, as people write them."""
    monkeypatch.setenv("DAWN_WEB_HOSTS", "dawn.example.org, dawn:8443")
    monkeypatch.setenv("DAWN_WEB_REVIEWERS", "rosa vera")
    settings = Settings()
    assert settings.web_hosts == ("dawn.example.org", "dawn:8443")
    assert settings.web_reviewers == ("rosa", "vera")


@pytest.mark.parametrize("settings", [{"web_proxies": "10.0.0.7"}, {"web_proxies": "x", "web_identity_header": "A"}])
def test_a_proxy_that_makes_no_sense_is_refused(settings: dict[str, Any]) -> None:
    """One without its header, and one that is no address."""
    with pytest.raises(UsageFault, match="DAWN_WEB_PROXIES"):
        access_of(Settings(**settings), fresh_keys(), "me@here")


def proxied(archive: Archive, peer: str, headers: list[tuple[str, str]], **settings: Any) -> int:
    """How the first page answers a request from that address."""
    where = Settings(web_identity_header="X-User", **settings)
    site = site_of(archive, access=access_of(where, fresh_keys(), "me@here"))
    client = TestClient(create(site, {HOST}), base_url=ORIGIN, client=(peer, 5_000))
    return client.get("/", headers=headers).status_code


@pytest.mark.parametrize(
    ("peer", "proxies", "status"),
    [("127.0.0.1", "", 200), ("10.0.0.7", "", 401), ("10.0.0.7", "10.0.0.0/24", 200), ("127.0.0.1", "10.0.0.7", 401)],
)
def test_the_header_is_believed_from_the_proxy(archive: Archive, peer: str, proxies: str, status: int) -> None:
    """Whoever reaches the server past the proxy names nobody."""
    assert proxied(archive, peer, [("x-user", "rosa")], web_proxies=proxies) == status


def test_a_header_that_stands_there_twice_names_nobody(archive: Archive) -> None:
    """A proxy that adds its header behind the visitor's own would let them choose."""
    assert proxied(archive, "127.0.0.1", [("x-user", "rosa"), ("X-User", "eve")]) == 401


def test_what_is_sealed_for_one_purpose_proves_nothing_for_another() -> None:
    """A seal names its kind, its age and its key."""
    clock = [1_000.0]
    access = Access(b"k" * 32, now_s=lambda: clock[0])
    sealed = access.seal("opened", {"by": "rosa"}, 60)
    assert (access.unseal("opened", sealed) or {})["by"] == "rosa"
    assert access.unseal("session", sealed) is None
    assert access.visitor(sealed, {}) is None
    assert Access(b"x" * 32, now_s=lambda: clock[0]).unseal("opened", sealed) is None
    clock[0] += 61
    assert access.unseal("opened", sealed) is None


@pytest.mark.parametrize("name", ["rosa", "\U0001f305" * 200])
def test_what_was_opened_is_ones_own_and_fits_into_a_cookie(name: str) -> None:
    """The cookie of another visitor counts nothing; a full one forgets what was opened first, and a browser takes
    it whoever signed in: longer ones are dropped by browsers without a word."""
    access, cookie, visitor = Access(os.urandom(32)), "", Visitor(name, "reviewer")
    names = [opened_as(f"night-{number:010d}", "d" * 64) for number in range(200)]
    for one in names:
        cookie = access.with_opened(visitor, access.opened(visitor, cookie), one)
    kept = access.opened(visitor, cookie)
    assert len(kept) >= 140
    assert list(kept) == names[-len(kept) :]
    assert len(access.cookie("opened")) + 1 + len(cookie) <= 4_096
    assert access.opened(Visitor("vera", "reviewer"), cookie) == ()


def test_what_a_change_led_to_fits_into_a_cookie() -> None:
    """A long line in letters that take much room is told as far as it fits, and not dropped."""
    access = Access(os.urandom(32))
    cookie = access.say("\U0001f305" * 900)
    assert len(access.cookie("said")) + 1 + len(cookie) <= 4_096
    assert access.said(cookie).startswith("\U0001f305" * 100)


def test_who_lost_their_token_is_out_at_once() -> None:
    """H52: a session is worth what its token is now: gone with it, and with another role when the file says so."""
    key = os.urandom(32)
    before = Access(key, (Token(SECRET, "rosa", "reviewer"),))
    visitor = before.sign_in(SECRET)
    assert visitor is not None
    session = before.session(visitor)
    assert before.visitor(session, {}) == Visitor("rosa", "reviewer")
    assert Access(key, (Token(SECRET, "rosa", "viewer"),)).visitor(session, {}) == Visitor("rosa", "viewer")
    assert Access(key, (Token(f"{SECRET}2", "rosa", "reviewer"),)).visitor(session, {}) is None
    assert SECRET not in session
