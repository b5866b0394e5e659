"""Owns who may see the pages and who may decide on them: tokens, signed cookies, the form's own token, and what a
visitor has opened. Refuses to store who visited: all of it is signed, and kept by their browser.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Final

from scheduler.web.page import Role, Visitor

SESSION_S: Final = 7 * 86_400.0
"""A week: whoever reviews each morning signs in once."""
FORM_S: Final = 12 * 3_600.0
"""A page that was loaded a working day ago shows what was asked then; it must be loaded again to decide."""
SAID_S: Final = 60.0
SAID_CHARS: Final = 500
TOKEN_BYTES: Final = 32
OPENED_S: Final = 12 * 3_600.0
"""What was opened counts for a working day, as a form does."""
COOKIE_CHARS: Final = 3_800
"""Of a value: a browser keeps 4,096 bytes of a cookie with its name, and one that is longer not at all."""
LOOPBACK: Final = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


@dataclass(frozen=True)
class Token:
    """What a person signs in with. name: who they are, for the archive."""

    secret: str
    name: str
    role: Role


@dataclass(frozen=True)
class Access:
    """key: signs sessions, forms and messages; whoever has it is everybody. tokens: who may sign in. identity_header:
    the header in which a reverse proxy that this deployment trusts names its user, "" for none: then nobody is
    believed. reviewers: of those users the ones that decide. proxies: where from it is believed."""

    key: bytes
    tokens: tuple[Token, ...] = ()
    identity_header: str = ""
    reviewers: frozenset[str] = frozenset()
    proxies: tuple[IPv4Network | IPv6Network, ...] = LOOPBACK
    now_s: Callable[[], float] = time.time

    def cookie(self, kind: str) -> str:
        """Its name. Browsers keep cookies by host, not by port: two servers of a machine must not share them."""
        return f"dawn_{kind}_{self._mac(b'cookies')[:8]}"

    def sign_in(self, secret: str) -> Visitor | None:
        """Whose token it is."""
        found = None
        for token in self.tokens:  # all of them, so that the time taken says nothing
            if hmac.compare_digest(token.secret.encode(), secret.encode()):
                found = Visitor(token.name, token.role, self._print(token))
        return found

    def session(self, visitor: Visitor) -> str:
        """The cookie that a visitor carries from now on."""
        return self._signed("session", {"token": visitor.token, "id": secrets.token_urlsafe(16)}, SESSION_S)

    def visitor(self, cookie: str, headers: Mapping[str, str], peer: str = "") -> Visitor | None:
        """Who asks; None for nobody that is known. headers: with names in lower case. peer: the address that the
        request came from."""
        if self._believes(peer):
            name = headers.get(self.identity_header.lower(), "").strip()
            if name and name.isprintable() and len(name) <= 200:
                return Visitor(name, "reviewer" if name in self.reviewers else "viewer")
        told = self._read("session", cookie) or {}
        # Whose token was taken away is out, and whose role was changed has the new one: a session says neither.
        for token in self.tokens:
            if told.get("token") == self._print(token):
                return Visitor(token.name, token.role, self._print(token))
        return None

    def form_token(self, visitor: Visitor, cookie: str) -> str:
        """What every form of this visitor's pages carries: another site cannot read it, and it ages."""
        return self._signed("form", {"of": self._bound(visitor, cookie)}, FORM_S)

    def is_form(self, token: str, visitor: Visitor, cookie: str) -> bool:
        told = self._read("form", token)
        return told is not None and hmac.compare_digest(str(told.get("of")), self._bound(visitor, cookie))

    def say(self, text: str) -> str:
        """A line for the next page, as a cookie: in an address anybody could write one."""
        cookie = self._signed("said", {"text": text[:SAID_CHARS]}, SAID_S)
        while len(cookie) > COOKIE_CHARS:  # of some scripts a letter takes sixteen
            text = text[: min(len(text), SAID_CHARS) // 2]
            cookie = self._signed("said", {"text": text}, SAID_S)
        return cookie

    def said(self, cookie: str) -> str:
        told = self._read("said", cookie)
        return "" if told is None else str(told.get("text", ""))

    def seal(self, kind: str, told: Mapping[str, Any], lives_s: float) -> str:
        """Small data for a form, a cookie or an address, which only this server can have written. kind: what it is
        for; what was sealed for something else does not count. Seconds."""
        return self._signed(f"sealed {kind}", dict(told), lives_s)

    def unseal(self, kind: str, text: str) -> Mapping[str, Any] | None:
        """What was sealed; None when it is too old, for something else, or not ours."""
        return self._read(f"sealed {kind}", text)

    def opened(self, visitor: Visitor, cookie: str) -> tuple[str, ...]:
        """What this visitor has opened, the last one last."""
        told = self.unseal("opened", cookie)
        if told is None or told.get("by") != self._mac(f"opened {visitor.name}".encode()):
            return ()
        return tuple(str(told.get("of", "")).split())

    def with_opened(self, visitor: Visitor, before: Collection[str], name: str) -> str:
        """The cookie that says it of one thing more. name: a word. It forgets what was opened first when it is full:
        it holds 140 names of sixteen letters."""
        of, by = [*(one for one in before if one != name), name], self._mac(f"opened {visitor.name}".encode())
        while len(cookie := self.seal("opened", {"by": by, "of": " ".join(of)}, OPENED_S)) > COOKIE_CHARS and of:
            del of[0]
        return cookie

    def is_https(self, told: Sequence[str], peer: str) -> bool:
        """Whether the browser came by TLS, as far as a proxy that is believed says so: all that it said of it."""
        return [one.lower() for one in told] == ["https"] and self._believes(peer)

    def _believes(self, peer: str) -> bool:
        if not self.identity_header:
            return False
        try:
            address = ip_address(peer)
        except ValueError:
            return False
        return any(address in network for network in self.proxies if network.version == address.version)

    def _print(self, token: Token) -> str:
        """Names a token in a session, and tells nothing of it."""
        return self._mac(f"token {token.secret}".encode())

    def _bound(self, visitor: Visitor, cookie: str) -> str:
        return self._mac(f"{visitor.name}\n{visitor.role}\n{cookie}".encode())

    def _signed(self, kind: str, told: dict[str, object], lives_s: float) -> str:
        told = {**told, "kind": kind, "until": self.now_s() + lives_s}
        body = base64.urlsafe_b64encode(json.dumps(told).encode()).rstrip(b"=")  # which a cookie would have to quote
        return f"{body.decode()}.{self._mac(body)}"

    def _read(self, kind: str, text: str) -> dict[str, object] | None:
        body, _, mac = text.partition(".")
        if not mac.isascii() or not body.isascii() or not hmac.compare_digest(mac, self._mac(body.encode())):
            return None
        try:
            told = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        except (ValueError, binascii.Error):
            return None
        fresh = isinstance(told, dict) and told.get("kind") == kind and told.get("until", 0) > self.now_s()
        return told if fresh else None

    def _mac(self, data: bytes) -> str:
        return hmac.new(self.key, data, hashlib.sha256).hexdigest()


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)
