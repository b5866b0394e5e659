"""Owns telling a batch's news, to a file and to a webhook: signed, recorded before and after, at least once. Refuses
to wait: whoever calls says when to try again.

A message is announced in `batches/<batch>/notices/` before it is sent, under an id that never changes, and what came
of it is the next object there. So a crash between the two sends it again, and its listener knows it by its id. It is
signed as the Standard Webhooks say: HMAC-SHA256 over `id.timestamp.body`, in the header `webhook-signature`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field

from scheduler.reports.kept import Stored
from scheduler.reports.reported import Morning
from worker.contract.events import canonical
from worker.contract.frozen import Frozen
from worker.contract.notify import Notify, Word
from worker.contract.redact import SECRET_PREFIX
from worker.store import keys
from worker.store.archive import Archive
from worker.store.content import parsed

SEND_TIMEOUT_S: Final = 10.0
"""For the whole exchange, from connecting to the answer's headers."""
BACKOFF_S: Final = (0.0, 30.0, 120.0, 600.0, 3600.0)
"""Before each try; then it is given up."""
NEEDS_SAID: Final = 50
BODY_BYTES: Final = 256 * 2**10
NOTICE_BYTES: Final = 2**20
AGAIN: Final = frozenset({408, 425, 429})
"""Answers that speak of this moment only, as all from 500 on do."""
SECRET_MARK: Final = "whsec_"
"""Before a secret whose bytes are written in Base64."""

Secret = Callable[[str], str | None]
"""The value of `DAWN_SECRET_<NAME>`, None where there is none."""


class Notice(Frozen):
    """kind: announced, or what came of it. id: of the message. report: number of what it tells. at: UTC, ISO 8601.
    detail: what the listener answered."""

    v: Literal[1] = 1
    kind: Literal["announced", "sent", "given_up"]
    id: str
    report: Annotated[int, Field(ge=0)]
    on: tuple[Word, ...] = ()
    at: str
    detail: str = ""


@dataclass(frozen=True)
class Answer:
    """ok: the listener has it. final: trying again is of no use."""

    ok: bool
    final: bool
    detail: str


def notices(archive: Archive, batch: str) -> list[Notice]:
    """Oldest first, up to the first number that is not there. Raises StoreFault, IntegrityFault."""
    found = []
    for n, key in enumerate(archive.list(keys.batch_notices_folder(batch))):
        if key != keys.batch_notice(batch, n):
            break
        found.append(parsed(Notice, archive.get(key, max_bytes=NOTICE_BYTES), key))
    return found


def unsent(told: Sequence[Notice]) -> list[Notice]:
    """What was announced and has no end."""
    over = {notice.id for notice in told if notice.kind != "announced"}
    return [notice for notice in told if notice.kind == "announced" and notice.id not in over]


def announce(archive: Archive, stored: Stored, notify: Notify, *, at: str) -> list[Notice]:
    """Announce the report's message where it is one that somebody wants and nobody has announced it; returns what is
    to be sent of the batch. Raises StoreFault, IntegrityFault."""
    batch = stored.report.batch
    wanted = tuple(word for word in stored.report.news if word in notify.on)
    told = notices(archive, batch)
    if notify.webhook is not None and wanted and all(notice.report != stored.n for notice in told):
        name = f"{batch}.{stored.n}"
        told = _add(archive, batch, Notice(kind="announced", id=name, report=stored.n, on=wanted, at=at))
    return unsent(told)


def conclude(archive: Archive, batch: str, notice: Notice, answer: Answer, *, at: str) -> None:
    """Record what came of it. Raises StoreFault, IntegrityFault."""
    kind: Literal["sent", "given_up"] = "sent" if answer.ok else "given_up"
    _add(archive, batch, notice.model_copy(update={"kind": kind, "at": at, "detail": answer.detail}))


def _add(archive: Archive, batch: str, notice: Notice) -> list[Notice]:
    """Under the next number, unless one of its id and kind is there by then."""
    while True:
        told = notices(archive, batch)
        if any((one.id, one.kind) == (notice.id, notice.kind) for one in told):
            return told
        if archive.create(keys.batch_notice(batch, len(told)), canonical(notice.model_dump(mode="json"))):
            return [*told, notice]


def body(notice: Notice, report: Morning) -> bytes:
    """What is sent: the news, and where the rest lies. At most BODY_BYTES."""
    needs = [{"why": need.why, "targets": len(need.targets), "type": need.commands} for need in report.needs]
    said = {
        "schema": "dawn.notice/1",
        "id": notice.id,
        "batch": report.batch,
        "on": notice.on,
        "headline": report.headline,
        "at": report.at,
        "ended": report.ended,
        "counts": report.counts,
        "needs": needs[:NEEDS_SAID],
        "report": keys.batch_report(report.batch, notice.report, "report.html"),
    }
    data = json.dumps(said).encode()
    return data if len(data) <= BODY_BYTES else json.dumps(said | {"needs": []}).encode()


def headers(secret: str, name: str, timestamp_s: int, data: bytes) -> dict[str, str]:
    """The three that a listener checks."""
    signed = hmac.new(_key(secret), f"{name}.{timestamp_s}.".encode() + data, hashlib.sha256).digest()
    return {
        "webhook-id": name,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
    }


def send(notify: Notify, notice: Notice, report: Morning, secret: Secret, *, now_s: float, ca: Path | None) -> Answer:
    """One try. now_s: Unix time. ca: certificates to trust instead of the system's."""
    value = secret(notify.secret or "")
    if not value:
        return Answer(False, False, f"{SECRET_PREFIX}{notify.secret} is not set where the scheduler runs")
    data = body(notice, report)
    try:
        status = _post(str(notify.webhook), data, headers(value, notice.id, int(now_s), data), ca)
    except (OSError, http.client.HTTPException) as error:
        return Answer(False, False, f"{type(error).__name__}: {error}"[:200])
    return Answer(200 <= status < 300, status < 500 and status not in AGAIN, f"answered {status}")


def _post(url: str, data: bytes, signed: dict[str, str], ca: Path | None) -> int:
    """The status of the answer, whose body nobody reads. No redirect is followed. Raises OSError, HTTPException."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        trusted = ssl.create_default_context(cafile=None if ca is None else str(ca))
        connection = http.client.HTTPSConnection(host, parts.port, timeout=SEND_TIMEOUT_S, context=trusted)
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=SEND_TIMEOUT_S)
    began = time.monotonic()
    late = threading.Timer(SEND_TIMEOUT_S, _cut, [connection])  # a listener may drip its answer byte by byte
    late.daemon = True
    late.start()
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request(
            "POST", path, data, {"content-type": "application/json", "user-agent": "dawnfleet", **signed}
        )
        status = connection.getresponse().status
        if time.monotonic() - began >= SEND_TIMEOUT_S:
            raise TimeoutError("its answer did not end")
        return status
    finally:
        late.cancel()
        connection.close()


def _cut(connection: http.client.HTTPConnection) -> None:
    with suppress(OSError, AttributeError):  # not connected yet, or gone: then its own time limit ends it
        connection.sock.shutdown(socket.SHUT_RDWR)


def _key(secret: str) -> bytes:
    if secret.startswith(SECRET_MARK):
        with suppress(ValueError):
            return base64.b64decode(secret.removeprefix(SECRET_MARK), validate=True)
    return secret.encode()


def write_file(folder: Path, notify: Notify, made: Callable[[str], bytes]) -> None:
    """Replace the report's file, whole or not at all. made: the report as `html`, `md` or `json`. Raises OSError."""
    if notify.file is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    staged = folder / f".{notify.file}"
    staged.write_bytes(made(notify.file.rpartition(".")[2]))
    staged.replace(folder / notify.file)
