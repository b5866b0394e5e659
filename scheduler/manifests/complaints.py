"""Owns what a person is told of a value that does not fit: its place, in the words of YAML, and the key that was
meant. Refuses to know any key by name: the pydantic models say what may stand where.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError

from worker.contract.places import Code, Document, Path, Problem

WORDS: Final = {
    "missing": "is required",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "string_type": "must be text (put a number in quotes)",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
}
"""What pydantic's kinds of errors say of a document."""


def complaints(document: Document, error: ValidationError, form: Any) -> list[Problem]:
    """All that pydantic found. form: the model, or the type, that the document was read as."""
    found = error.errors()
    return [
        _complaint(document, one, form)
        for one in found
        if one["type"] != "too_short" or not any(_inner(other["loc"], one["loc"]) for other in found)
    ]


def _inner(loc: Path, outer: Path) -> bool:
    """Whether what is wrong with entries of a list is told already; then it is not too short as well."""
    return len(loc) > len(outer) and loc[: len(outer)] == outer


def _complaint(document: Document, details: Mapping[str, Any], form: Any) -> Problem:
    path, here = _follow(tuple(details["loc"]), form)
    if details["type"] != "extra_forbidden":
        return document.problem(path, _message(details), code=_code(details["type"]))
    keys = [name for model in here for name in model.model_fields]
    hint = nearest(str(path[-1]), keys)
    return document.problem(path, "is not known here", at_key=True, code="unknown-key", hint=hint)


def nearest(word: str, known: Sequence[str]) -> str:
    """A hint: the known word that was meant, else all of them."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known) or 'nothing'}"


def _code(kind: str) -> Code:
    if kind == "missing":
        return "missing"
    return "type" if kind.endswith(("_type", "_parsing")) or kind == "int_from_float" else "value"


def _message(details: Mapping[str, Any]) -> str:
    """In the words of YAML, not of Python."""
    said = str(details["msg"]).removeprefix("Value error, ")
    return WORDS.get(details["type"]) or re.sub(r"^(Input|String|Tuple|List|Value) should ", "must ", said)


def _follow(loc: Path, form: Any) -> tuple[Path, list[type[BaseModel]]]:
    """Where an error is in the document, and the models whose keys may stand beside the end of it.

    pydantic's own way there also names which form of several was tried: that is no part of the document.
    """
    path: list[str | int] = []
    above: list[_Form] = []
    here = list(_forms(form))
    for part in loc:
        if len(here) > 1 and (tried := [form for form in here if form.tag == part]):
            here = tried
            continue
        path.append(part)
        above, here = here, [deeper for form in here for deeper in _inside(form.type, part)]
    return tuple(path), [form.type for form in above if _is_model(form.type)]


@dataclass(frozen=True)
class _Form:
    """A type that a value may have, and what pydantic calls it where it may have several."""

    type: Any
    tag: str


def _forms(type_: Any, tag: str = "") -> Iterator[_Form]:
    """Each alternative of a type that may be written, without what only narrows it."""
    if get_origin(type_) is Annotated:
        inner, *narrowed = get_args(type_)
        yield from _forms(inner, next((told.tag for told in narrowed if isinstance(told, Tag)), tag))
    elif get_origin(type_) in (Union, UnionType):
        for alternative in get_args(type_):
            yield from _forms(alternative)
    elif type_ is not NoneType:
        yield _Form(type_, tag or getattr(type_, "__name__", str(type_)))


def _inside(type_: Any, part: str | int) -> Iterator[_Form]:
    """What may stand in a value of this type under a key or number."""
    if _is_model(type_):
        if part in type_.model_fields:
            yield from _forms(type_.model_fields[part].annotation)
    elif arguments := get_args(type_):  # of a mapping, a list or a tuple
        yield from _forms(arguments[-1] if get_origin(type_) is dict else arguments[0])


def _is_model(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, BaseModel)
