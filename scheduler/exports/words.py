"""Owns how text of any kind becomes text that other programs take. Refuses to judge what it says."""

from __future__ import annotations

import json
from typing import Any


def valid(text: str) -> str:
    """The text with every half surrogate pair replaced, so that it encodes as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def encoded(value: Any, *, indent: int | None = None) -> bytes:
    """JSON in UTF-8 that any parser takes, without a newline at its end."""
    return json.dumps(_valid(value), ensure_ascii=False, indent=indent, allow_nan=False).encode()


def _valid(value: Any) -> Any:
    if isinstance(value, str):
        return valid(value)
    if isinstance(value, dict):
        return {valid(key): _valid(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_valid(item) for item in value]
    return value
