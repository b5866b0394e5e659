"""Owns searching what a model wrote for a pattern of its task, in a time that grows with the text and no faster: `re`
may take hours, and holds the whole worker meanwhile. Refuses patterns that only `re` can search for.

A script's own patterns stay with `re`: they capture, and who wrote them wrote what they are searched in.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

KEPT: Final = 32
"""Compiled patterns: each may take 10 MB, beyond which the engine refuses it."""

_TOKEN: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[+*?}]\+|.", re.DOTALL)
_SETS: Final = re.compile(r"\[|&&|--|~~")


def searchable(pattern: str) -> str:
    """The pattern. Raises ValueError for one that cannot be searched for in linear time, or that the linear engine
    would read otherwise than Python."""
    _engine(pattern)
    return pattern


def found(pattern: str, text: str) -> bool:
    """Whether the pattern is found in the text, as `re.search` would say. One that `searchable` refuses, of a task
    older than it, is searched for with `re`."""
    try:
        engine = _engine(pattern)
    except ValueError:
        return re.search(pattern, text) is not None
    text = text.encode("utf-8", "replace").decode()
    return _fits(engine, text) or (text.endswith("\n") and _fits(engine, text[:-1]))  # Python's $ is before it too


@lru_cache(maxsize=KEPT)
def _engine(pattern: str) -> SchemaValidator:
    for token in _TOKEN.findall(pattern):
        if token in ("\\<", "\\>"):
            raise ValueError(f"write {token[1]} without its backslash")
        if len(token) > 1 and token[0] == "[" and _SETS.search(re.sub(r"\\.", "", token[1:], flags=re.DOTALL)):
            raise ValueError(f"within {token}, write a backslash before [, &, - and ~")
        if len(token) > 1 and token[0] in "+*?}":
            raise ValueError("has a possessive quantifier, which takes a backtracking search")
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError as error:
        why = str(error).rstrip().rsplit("rror: ", 1)[-1]
        raise ValueError(f"cannot be searched for in linear time: {why}") from None


def _fits(engine: SchemaValidator, text: str) -> bool:
    try:
        engine.validate_python(text, strict=True)
    except ValidationError:
        return False
    return True
