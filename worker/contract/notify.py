"""Owns who wants to hear of a batch, and of what. Refuses to send (scheduler/reports/notify.py)."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from worker.contract.frozen import Frozen
from worker.contract.secret_name import SecretName

Word = Literal["done", "needs_person", "breaker", "budget", "unfinished"]
"""done: no run is open. needs_person: something waits for somebody. breaker, budget: runs were not begun for it.
unfinished: runs are left, or were never begun."""

URL_CHARS: Final = 2_000


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        known = parts.port
    except ValueError as error:
        raise ValueError(f"is no address: {error}") from error
    if parts.username is not None or parts.fragment or known == 0 or not re.fullmatch(r"[!-~]+", url):
        raise ValueError("must be an address without a name, password, fragment or blank in it")
    if parts.scheme == "https" and host:
        return url
    if parts.scheme == "http" and is_loopback(host):
        return url
    raise ValueError("must begin with https://, or with http:// for this machine (127.0.0.1, ::1, localhost)")


def is_loopback(host: str) -> bool:
    """Whether the name or number is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Notify(Frozen):
    """file: name of a file in the scheduler's report folder that each report of the batch replaces; its end says
    what it holds. webhook: where a signed message goes. secret: NAME of what signs it (`DAWN_SECRET_<NAME>` in the
    scheduler's environment). on: what is worth a message."""

    file: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.(html|md|json)$")] | None = None
    webhook: Annotated[str, Field(max_length=URL_CHARS), AfterValidator(_address)] | None = None
    secret: SecretName | None = None
    on: Annotated[tuple[Word, ...], Field(min_length=1)] = ("done", "needs_person", "breaker")

    @model_validator(mode="after")
    def _whole(self) -> Notify:
        if self.file is None and self.webhook is None:
            raise ValueError("give file, webhook or both")
        if (self.webhook is None) != (self.secret is None):
            raise ValueError("webhook and secret go together: whoever listens must know that it was us")
        return self
