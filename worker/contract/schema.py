"""Owns the door to jsonschema-rs: whether a JSON Schema (draft 2020-12) can be used, and what of a value does not
fit. Refuses to fetch what a schema refers to, and patterns that take longer than their text is long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Misfit = tuple[tuple[str | int, ...], str]
"""Where in the value, and what is wrong there."""

SHOWN_CHARS: Final = 300


def matcher(schema: dict[str, Any]) -> Callable[[Any], list[Misfit]]:
    """Tells everything that is wrong with a value, [] for one that fits. Raises ValueError for a schema that is none,
    refers to another document, or has a pattern with look-around or back-references."""
    import jsonschema_rs

    try:
        validator = jsonschema_rs.Draft202012Validator(
            schema, offline=True, validate_formats=True, pattern_options=jsonschema_rs.RegexOptions()
        )
    except jsonschema_rs.ValidationError as error:
        where = "/".join(map(str, error.instance_path))
        raise ValueError(f"is no JSON Schema: {where + ': ' if where else ''}{_short(error.message)}") from None

    def misfits(value: Any) -> list[Misfit]:
        return [(tuple(error.instance_path), _short(error.message)) for error in validator.iter_errors(value)]

    return misfits


def _short(message: str) -> str:
    """The message quotes the value, which may be megabytes."""
    return (
        message if len(message) <= SHOWN_CHARS else f"{message[: SHOWN_CHARS // 2]}...{message[-SHOWN_CHARS // 2 :]}"
    )
