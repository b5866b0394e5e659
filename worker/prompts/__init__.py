"""Owns the texts the model reads. Refuses logic: a text is a file with `$name` places, filled once."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from string import Template


def text(name: str, **values: object) -> str:
    """The text `name`.md with its places filled; KeyError for a place without a value. Values are not expanded."""
    return _template(name).substitute(values)


@cache
def _template(name: str) -> Template:
    return Template((files(__name__) / f"{name}.md").read_text(encoding="utf-8").rstrip("\n"))
