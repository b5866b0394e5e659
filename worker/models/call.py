"""Owns how a provider is called: one whole-call deadline, a cancel that works at once, faults with a type.
Refuses to know a provider's SDK: status codes, headers and words are all it reads."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

from worker.contract.cancel import Cancel
from worker.contract.errors import ProviderFault
from worker.contract.redact import MIN_CHARS, Redactor, url_password
from worker.models.protocol import cancelled_fault, late_fault

BUSY: Final = (429, 503, 529)
"""Statuses that are about the account or the whole provider, not about one request."""
CUT: Final = ("RemoteProtocolError", "ReadError")
"""What the SDKs' HTTP client calls a connection that ended while it waited for the answer, or in its middle."""
SHOWN_CHARS: Final = 500
"""How much of a provider's own words a fault shows."""

_CONTEXT: Final = re.compile(
    r"context.?(length|window|size|limit)|prompt is too long|maximum context|too many (input )?tokens"
    r"|input length and `?max_tokens`? exceed|exceed_context_size",
    re.IGNORECASE,
)
_OUT_OF_CREDIT: Final = re.compile(r"insufficient_quota|credit balance|billing", re.IGNORECASE)

Answered = TypeVar("Answered")


@dataclass(frozen=True)
class Account:
    """Whom a model is asked through. key_name: the variable the key came from. base_url: None for the provider's
    own address. ca_bundle: certificates to trust instead of the system's."""

    provider: str
    key: str = field(repr=False)
    key_name: str
    base_url: str | None = None
    ca_bundle: Path | None = None

    @property
    def id(self) -> str:
        """What tells this account from every other, without its key."""
        told = hashlib.sha256("\n".join([self.provider, self.base_url or "", self.key]).encode()).hexdigest()
        return f"{self.provider}-{told[:12]}"

    def masked(self, words: str) -> str:
        """One line of the provider's words, without the key in any of its forms (some echo the request), then cut."""
        secrets = {self.key_name: self.key, "of the address": url_password(self.base_url or "") or ""}
        redactor = Redactor({name: value for name, value in secrets.items() if len(value) >= MIN_CHARS})
        line = " ".join(redactor.text(words).split())
        return line if len(line) <= SHOWN_CHARS else line[:SHOWN_CHARS] + "..."


@cache
def trusted(ca_bundle: Path | None) -> ssl.SSLContext:
    """What an HTTP client verifies certificates with: those of a file, or the system's. Kept for the life of the
    process, because reading the system's takes 25 ms of processor time. Raises ProviderFault (connection)."""
    try:
        return ssl.create_default_context(cafile=None if ca_bundle is None else str(ca_bundle))
    except OSError as error:
        raise ProviderFault(
            "connection", f"the certificates of {ca_bundle} cannot be read: {error}", hint="look at DAWN_CA_BUNDLE"
        ) from error


def whole_call(ask: Callable[[], Awaitable[Answered]], *, timeout_s: float, cancel: Cancel) -> Answered:
    """Run one request on an event loop of its own, which alone can give up at any point: while it looks up a
    name, connects, or reads an answer that trickles. Raises ProviderFault when time is up or cancel is thrown."""
    loop = asyncio.new_event_loop()

    async def timed() -> Answered:
        async with asyncio.timeout(timeout_s):
            return await ask()

    task = loop.create_task(timed())

    def stop() -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile: the call is over
            loop.call_soon_threadsafe(task.cancel)

    off = cancel.on_set(stop)
    try:
        return loop.run_until_complete(task)
    except asyncio.CancelledError:
        raise cancelled_fault(cancel) from None
    except TimeoutError:
        raise late_fault(timeout_s) from None
    finally:
        off()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def status_fault(account: Account, status: int, headers: Mapping[str, str], body: str) -> ProviderFault:
    """The fault for an answer with an error status."""
    words = _words(body)
    message = f"{account.provider} answered {status}: {account.masked(words)}"
    if status in (401, 403):
        return ProviderFault("auth", message, hint=f"is {account.key_name} right?")
    if status == 402 or (status in (400, 429) and _OUT_OF_CREDIT.search(words)):
        return ProviderFault("auth", message, hint="the account has no credit or quota left")
    if status == 413 or (400 <= status < 500 and status != 429 and _CONTEXT.search(words)):
        return ProviderFault("context", message)
    if status in (408, 409, 429) or status >= 500:
        # Some providers say whether trying again makes sense; they know better than the status.
        retryable = headers.get("x-should-retry", "true").lower() != "false"
        return ProviderFault(
            "unavailable",
            message,
            retryable=retryable,
            retry_after_s=retry_after_s(headers),
            shared=status in BUSY,
        )
    hint = "is the model's name right?" if status == 404 else ""
    return ProviderFault("bad_request", message, hint=hint)


def connection_fault(account: Account, error: BaseException) -> ProviderFault:
    """The fault for a connection that failed or ended early. The SDK's own words only say "connection error"."""
    cause = error.__cause__ or error
    words = account.masked(f"{type(cause).__name__}: {cause}".rstrip(": "))
    cut = type(cause).__name__ in CUT
    how = "ended the connection" if cut else "cannot be reached"
    return ProviderFault("connection", f"{account.provider} {how}: {words}", retryable=True, cut=cut)


def shape_fault(account: Account, body: bytes) -> ProviderFault:
    """The fault for an answer of status 200 that is no reply (empty, not JSON, a proxy's page)."""
    words = account.masked(body.decode("utf-8", "replace")) or "nothing"
    return ProviderFault(
        "unavailable", f"{account.provider} answered what is no reply: {words}", retryable=True, unheard=True
    )


def _words(body: str) -> str:
    """The message, type and code of an error body, or the body as it is."""
    try:
        error = json.loads(body)
    except ValueError:
        return body
    error = error.get("error", error) if isinstance(error, dict) else error
    if not isinstance(error, dict):
        return str(error)
    parts = [str(error[key]) for key in ("message", "type", "code") if error.get(key)]
    return ", ".join(dict.fromkeys(parts)) or body


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds the provider asks to wait, from milliseconds, seconds or an HTTP date; None when it does not say.
    Whatever it said, as it said it: ProviderFault bounds it."""
    with suppress(KeyError, ValueError):
        return max(0.0, float(headers["retry-after-ms"]) / 1000)
    value = headers.get("retry-after", "")
    with suppress(ValueError):
        return max(0.0, float(value))
    with suppress(ValueError, OverflowError):
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    return None
