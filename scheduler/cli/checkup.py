"""Owns what `dawn doctor` looks at on the control plane's side. Refuses to talk to an engine: `worker.doctor`, a
process of the data plane, reports on engine, images and keys.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from scheduler import stack
from scheduler.cli import edge
from worker.contract.errors import ExitCode, Fault
from worker.contract.redact import without_passwords
from worker.contract.settings import Settings
from worker.store.hints import Hints

WORKER_TIMEOUT_S: Final = 120
CLOCK_TIMEOUT_S: Final = 5
CLOCK_SKEW_S: Final = 300
"""S3 refuses requests from 15 minutes on; leases and time limits want it closer."""
RELEASED: Final = datetime(2026, 11, 1, tzinfo=UTC)
"""No clock that is right stands before the day this was written."""


@dataclass(frozen=True)
class Finding:
    """One line of the report. hint: what to do about it, also where only some runs need it."""

    name: str
    ok: bool
    detail: str
    hint: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def examine(settings: Settings) -> list[Finding]:
    """Look at everything; one bad thing keeps nothing else from being looked at."""
    return [_archive(settings), _redis(settings), _clock(settings), *_data_plane()]


def exit_code(findings: list[Finding]) -> int:
    """75 when something is not ready, 0 otherwise."""
    return int(ExitCode.OK if all(finding.ok for finding in findings) else ExitCode.TRY_LATER)


def _archive(settings: Settings) -> Finding:
    try:
        edge.archive(settings).probe()
    except Fault as fault:
        return Finding("archive", False, without_passwords(fault.message), fault.hint)
    return Finding("archive", True, f"{settings.archive_url} honours create-only writes")


def _redis(settings: Settings) -> Finding:
    try:
        url = stack.connected(settings).redis_url
        if url is None:
            return Finding("redis", True, f"none runs; a stack would start {stack.valkey_binary()}")
        hints = Hints(url)
        hints.check()
        return Finding("redis", True, f"{without_passwords(url)}, {len(hints.workers())} workers")
    except Fault as fault:
        return Finding("redis", False, without_passwords(fault.message), fault.hint)


def _clock(settings: Settings) -> Finding:
    now = datetime.now(UTC)
    if now < RELEASED:
        return Finding("clock", False, f"it says {now:%Y-%m-%d}", "set it, for example with timedatectl")
    theirs = _store_clock(settings)
    if theirs is None:
        return Finding("clock", True, f"{now:%Y-%m-%d %H:%M:%S} UTC")
    skew_s = abs((now - theirs).total_seconds())
    detail = f"{skew_s:.0f} s away from the archive's server"
    ok = skew_s <= CLOCK_SKEW_S
    return Finding("clock", ok, detail, "" if ok else "set it, for example with timedatectl")


def _store_clock(settings: Settings) -> datetime | None:
    """What time the object store has, by its Date header; None for a folder or when it does not say."""
    if not settings.archive_url.startswith("s3://"):
        return None
    url = settings.s3_endpoint_url or f"https://s3.{settings.s3_region}.amazonaws.com"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=CLOCK_TIMEOUT_S) as answer:
            date = answer.headers.get("Date")
    except urllib.error.HTTPError as error:
        date = error.headers.get("Date")
    except (OSError, ValueError):
        return None
    return parsedate_to_datetime(date) if date else None


def _data_plane() -> Iterator[Finding]:
    command = [sys.executable, "-P", "-m", "worker.doctor", "--json"]
    hint = "run `python -m worker.doctor` to see why"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=WORKER_TIMEOUT_S, check=False)
        checks = json.loads(done.stdout)["checks"]
        for check in checks:
            yield Finding(check["name"], bool(check["ok"]), check.get("detail", ""), check.get("hint", ""))
    except subprocess.TimeoutExpired:
        yield Finding("worker", False, f"no answer within {WORKER_TIMEOUT_S} s", "is the engine stuck?")
    except (ValueError, KeyError, TypeError):
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        yield Finding("worker", False, last[0][:300], hint)
