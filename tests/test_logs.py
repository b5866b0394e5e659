"""Owns what a log line may look like, whatever is logged."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from worker.store.logs import FIELD_CHARS, configure_logs, log_context


class Lines(io.StringIO):
    def read_all(self) -> list[dict[str, Any]]:
        """Every line as an object; fails when one is not JSON."""
        return [json.loads(line) for line in self.getvalue().split("\n")[:-1]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """Where configured logs go, with a mask that hides one secret."""
    root, before = logging.getLogger(), (logging.getLogger().handlers, logging.getLogger().level)
    stream = Lines()
    configure_logs(mask=lambda text: text.replace("s3cr3t\nkey", "***"), stream=stream)
    yield stream
    root.handlers, root.level = before
    logging.captureWarnings(False)
    structlog.reset_defaults()


@pytest.mark.parametrize("text", ['a\n{"event": "forged"}', "%s{}%d", "\x1b[31m\x9b\u2028\0", "\ud83d", "é"])
def test_a_record_is_one_json_line(lines: Lines, text: str) -> None:
    """Newlines, control characters, format signs and lone surrogates stay inside one line (H56)."""
    structlog.get_logger("x").info(text, field=text)
    logging.getLogger("y").warning(text)
    first, second = lines.read_all()
    assert first["event"] == first["field"] == second["event"] == text
    assert lines.getvalue().isascii()


def test_fields_are_capped(lines: Lines) -> None:
    """A text of 1 MB leaves its beginning and its length (H56)."""
    structlog.get_logger().info("big", field="x" * 10**6, nested={"a": ["y" * 10**6]})
    assert len(lines.getvalue()) < 4 * FIELD_CHARS
    assert "more)" in lines.read_all()[0]["field"]


def test_secrets_are_masked_before_anything_is_cut(lines: Lines) -> None:
    """A secret is masked in messages, nested values, keys and tracebacks, also across the cap (H57)."""
    secret = "s3cr3t\nkey"
    log = structlog.get_logger()
    log.info(secret, nested={"a": secret}, cut="x" * (FIELD_CHARS - 6) + secret, **{secret: 1})
    try:
        raise ValueError(secret)
    except ValueError:
        log.exception("failed")
        logging.getLogger("library").exception("failed: %s", secret)
    assert "s3cr" not in lines.getvalue()
    assert "***" in lines.getvalue()


def test_context_is_bound_and_let_go(lines: Lines) -> None:
    """run, attempt and step stand on every line inside the context, also a library's, and on none after it."""
    with log_context(run="r1", attempt=3), log_context(step=2):
        structlog.get_logger().info("inside")
        logging.getLogger("celery").warning("theirs")
    structlog.get_logger().info("outside")
    inside, theirs, outside = lines.read_all()
    assert (inside["run"], inside["attempt"], inside["step"]) == ("r1", 3, 2)
    assert theirs["run"] == "r1"
    assert "run" not in outside


def test_a_broken_log_call_is_a_line_too(lines: Lines) -> None:
    """A record whose arguments do not fit its text is reported as JSON."""
    record = logging.LogRecord("library", logging.WARNING, __file__, 1, "%d apples", ("no",), None)
    (ours,) = (handler for handler in logging.getLogger().handlers if getattr(handler, "stream", None) is lines)
    ours.handle(record)
    assert lines.read_all()[0]["logger"] == "library"


def test_warnings_become_lines(lines: Lines) -> None:
    """A warning does not reach stderr in its own format."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", stacklevel=1)
    assert "old" in lines.read_all()[0]["event"]


def test_libraries_are_quiet(lines: Lines) -> None:
    """botocore's and celery's chatter below WARNING is left out; our own INFO is not."""
    logging.getLogger("botocore.endpoint").info("headers")
    logging.getLogger("celery.worker").info("received")
    structlog.get_logger("worker.attempt").info("claimed")
    (line,) = lines.read_all()
    assert (line["event"], line["level"], line["at"][-1]) == ("claimed", "info", "Z")
