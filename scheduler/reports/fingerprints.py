"""Owns which failures are alike: their words without what differs from run to run. Refuses to know why a run failed;
it compares text.
"""

from __future__ import annotations

import re
from typing import Final

from worker.contract.events import digest
from worker.contract.run import FAILED_VERDICTS, Run

DIGITS: Final = 12
TAIL_LINES: Final = 12
TEXT_CHARS: Final = 2_000
"""Of a check's end. What a program prints last is why it stopped; more of it differs between equal failures."""

_MASKS: Final = (
    (re.compile(r"\x1b\[[0-9;?]*[A-Za-z]"), ""),
    (re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>]+", re.IGNORECASE), "<url>"),
    (re.compile(r"(?<![\w/])(?:[A-Za-z]:)?[\w.+~@-]*(?:[/\\][\w.+~@-]+)+[/\\]?"), "<path>"),
    (
        re.compile(
            r"\b(?:0x[0-9a-f]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?=[a-f]*\d)[0-9a-f]{7,64})\b", re.I
        ),
        "<hash>",
    ),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "<n>"),
    (re.compile(r"([=\-_.*~# ])\1{2,}"), r"\1"),
    (re.compile(r"[ \t]+"), " "),
)
"""In this order: an address holds a path, a path may hold a hash, and both hold numbers."""


def words(text: str) -> str:
    """The end of a text without addresses, paths, hashes, numbers and the lines that fill up a terminal's width."""
    kept = "\n".join(text[-TEXT_CHARS:].strip().split("\n")[-TAIL_LINES:])
    for pattern, instead in _MASKS:
        kept = pattern.sub(instead, kept)
    return "\n".join(line.strip() for line in kept.split("\n") if line.strip())


def failed(run: Run) -> bool:
    """Whether the sealed run counts as a failure, as the exit codes count."""
    return run.sealed is not None and (run.sealed.outcome == "failed" or run.sealed.verdict in FAILED_VERDICTS)


def kind(run: Run) -> str:
    """Of a failed run: class and reason, or what the verdict was."""
    assert run.sealed is not None, "it has ended"
    return str(run.sealed.failure or run.sealed.verdict)


def sample(run: Run) -> str:
    """The words that a failed run is known by: why it ended, or how its red checks did."""
    assert run.sealed is not None, "it has ended"
    if run.sealed.failure is not None:
        return run.sealed.failure.detail.strip()
    checks = run.verdict.checks if run.verdict else ()
    return "\n".join(
        f"{check.name}: {check.status}\n{check.tail.strip()}" for check in checks if check.status != "green"
    )


def fingerprint(run: Run) -> str:
    """Of a failed run, DIGITS hex digits: equal for runs that failed alike."""
    return digest(f"{kind(run)}\n{words(sample(run))}".encode("utf-8", "backslashreplace"))[:DIGITS]
