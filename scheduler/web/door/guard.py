"""Owns what no page can forget: which hosts and origins are answered, and what a browser may do with an answer.
Refuses to know any page.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES: Final = 256 * 1024
"""Of a form: 20,000 characters (scheduler/control.py WORDS_CHARS) in their longest encoding, and names."""

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # with none at all a browser says `null` of its own forms' origin
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=()"),
)
SAFE: Final = ("GET", "HEAD")


class Guard:
    """An ASGI middleware. hosts: values of `Host` that are ours, in lower case, with their port."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if headers.get("host", "").lower() not in self._hosts:
            # A name that somebody else's DNS points here would let their pages read ours.
            await _refuse(send, 421, "this server has another name (DAWN_WEB_HOSTS)")
        elif scope["method"] not in (*SAFE, "POST"):
            await _refuse(send, 405, "GET, HEAD or POST")
        elif scope["method"] == "POST" and not self._is_ours(headers):
            await _refuse(send, 403, "this form is not on a page of ours")
        elif scope["method"] == "POST" and not _fits(headers):
            await _refuse(send, 413, f"a form has at most {BODY_BYTES} bytes, and says how many")
        else:
            await self._app(scope, receive, _guarded(send))

    def _is_ours(self, headers: dict[str, str]) -> bool:
        """Whether a page of ours asked. A browser names the origin of every POST."""
        try:
            origin = urlsplit(headers.get("origin", ""))
        except ValueError:
            return False
        return origin.scheme in ("http", "https") and origin.netloc.lower() == headers["host"].lower()


def _fits(headers: dict[str, str]) -> bool:
    """A body that is sent in chunks ends when it likes, whatever length is said besides."""
    length = "" if "transfer-encoding" in headers else headers.get("content-length", "")
    return length.isdecimal() and len(length) < 12 and int(length) <= BODY_BYTES


def _guarded(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            there = {name.lower() for name, _ in message["headers"]}
            more = [(name, value) for name, value in HEADERS if name not in there]
            if b"cache-control" not in there:
                more.append((b"cache-control", b"no-store"))
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return sent


async def _refuse(send: Send, status: int, why: str) -> None:
    body = f"{why}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    guarded = _guarded(send)
    await guarded({"type": "http.response.start", "status": status, "headers": headers})
    await guarded({"type": "http.response.body", "body": body})
