"""Owns how log lines look: one JSON object a line, bounded, masked. Refuses to let a library write its own way.

Logs are hints too: what matters is in the journal, and no decision is read from a log.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, MutableMapping
from contextlib import AbstractContextManager
from typing import Any, Final, TextIO

import structlog

FIELD_CHARS: Final = 8192
"""Longest text of one field; the rest is counted, not kept."""

QUIET: Final = ("amqp", "botocore", "boto3", "celery", "docker", "kombu", "s3transfer", "urllib3", "httpx", "openai")
"""Libraries whose lines below WARNING say nothing about a run, and whose debug lines hold request headers."""

Mask = Callable[[str], str]
"""Replaces the secrets in a text."""


def configure_logs(*, level: str = "INFO", mask: Mask = lambda text: text, stream: TextIO | None = None) -> None:
    """Send structlog's and the standard library's records, warnings included, to stream (stderr) as JSON lines.

    Called once, by a main function; a second call replaces the first. Lines carry UTC time, level, logger, and what
    `log_context` bound.
    """
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.StackInfoRenderer(),
                structlog.processors.format_exc_info,
                _bound(mask),
                # ASCII only: no newline, control character or lone surrogate of the data reaches the line.
                structlog.processors.JSONRenderer(sort_keys=True),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)


def log_context(**fields: str | int) -> AbstractContextManager[None]:
    """Bind run, batch, attempt, step and the like to every line of this thread until the context ends."""
    return structlog.contextvars.bound_contextvars(**fields)


class _Handler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:
        """A record that cannot be formatted becomes a line that says so, instead of a traceback on stderr."""
        line = {
            "event": "a log call could not be formatted",
            "level": "error",
            "logger": record.name,
            "line": record.lineno,
        }
        self.stream.write(json.dumps(line, sort_keys=True) + self.terminator)


def _bound(mask: Mask) -> Callable[[Any, str, MutableMapping[str, Any]], MutableMapping[str, Any]]:
    """A processor that masks every text, then cuts it: cutting first could leave half a secret."""

    def masked(value: object) -> object:
        """Texts inside containers are masked before repr() escapes their newlines."""
        match value:
            case str():
                return mask(value)
            case dict():
                return {mask(key) if isinstance(key, str) else key: masked(inner) for key, inner in value.items()}
            case list() | tuple():
                return [masked(inner) for inner in value]
            case _:
                return value

    def text(value: object) -> str:
        whole = mask(value) if isinstance(value, str) else mask(repr(masked(value)))
        over = len(whole) - FIELD_CHARS
        return whole if over <= 0 else f"{whole[:FIELD_CHARS]}... ({over} more)"

    def process(_: Any, __: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {
            text(key): value if value is None or isinstance(value, bool | int | float) else text(value)
            for key, value in fields.items()
        }

    return process
