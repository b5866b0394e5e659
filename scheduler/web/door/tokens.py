"""Owns who a deployment's settings let in: its own two tokens, those of a team's file, a reverse proxy's users.
Refuses a file that others may read, and a word in it that is not understood: a mistyped role is nobody's.
"""

from __future__ import annotations

import os
import stat
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scheduler.web.door.access import LOOPBACK, Access, Token
from worker.contract.errors import UsageFault

if TYPE_CHECKING:
    from scheduler.web.door.server import Keys
    from worker.contract.settings import Settings

FILE_BYTES: Final = 2**20
SECRET_CHARS: Final = 16
"""A shorter token can be guessed."""
NAME_CHARS: Final = 100
LINE: Final = "a line is `name viewer|reviewer token`"


def access_of(settings: Settings, keys: Keys, actor: str) -> Access:
    """Who may see the pages of a deployment, and who may decide. keys: its own. actor: whose the tokens of these are.

    Raises UsageFault that names the setting or the line of the file that cannot be used.
    """
    team = () if settings.web_tokens is None else read_tokens(settings.web_tokens)
    if settings.web_proxies and not settings.web_identity_header:
        raise UsageFault(
            "DAWN_WEB_PROXIES says who is believed, and no header what", hint="set DAWN_WEB_IDENTITY_HEADER too"
        )
    try:
        proxies = tuple(ip_network(word) for word in settings.web_proxies) or LOOPBACK
    except ValueError as error:
        raise UsageFault(
            f"DAWN_WEB_PROXIES: {error}", hint="addresses or networks, like 10.0.0.7 10.1.0.0/16"
        ) from None
    return Access(
        keys.key,
        (*keys.tokens(actor), *team),
        identity_header=settings.web_identity_header,
        reviewers=frozenset(settings.web_reviewers),
        proxies=proxies,
    )


def read_tokens(path: Path) -> tuple[Token, ...]:
    """Of a file of lines `name role token`; empty lines and those behind # say nothing. Raises UsageFault."""
    try:
        with path.open(encoding="utf-8") as file:
            mode, text = os.fstat(file.fileno()).st_mode, file.read(FILE_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageFault(f"DAWN_WEB_TOKENS: {path} cannot be read: {error}", hint="name a file of text") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageFault(f"DAWN_WEB_TOKENS: others may read {path}", hint=f"chmod 600 {path}, and make new tokens")
    if len(text) > FILE_BYTES:
        raise UsageFault(f"DAWN_WEB_TOKENS: {path} has more than {FILE_BYTES} bytes", hint=LINE)
    found: dict[str, Token] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        token = _token(words)
        if isinstance(token, str):
            raise UsageFault(f"DAWN_WEB_TOKENS: line {number} of {path} {token}", hint=LINE)
        if token.secret in found:
            raise UsageFault(f"DAWN_WEB_TOKENS: line {number} of {path} has the token of another line", hint=LINE)
        found[token.secret] = token
    return tuple(found.values())


def _token(words: list[str]) -> Token | str:
    """What is wrong with a line, where it is none. Never says the token itself."""
    if len(words) != 3:
        return f"has {len(words)} words"
    name, role, secret = words
    if role not in ("viewer", "reviewer"):
        return "has a second word that is no role"
    if not name.isprintable() or len(name) > NAME_CHARS:
        return f"has a name that is not printable or longer than {NAME_CHARS}"
    if len(secret) < SECRET_CHARS:
        return f"has a token of fewer than {SECRET_CHARS} characters"
    return Token(secret, name, "reviewer" if role == "reviewer" else "viewer")
