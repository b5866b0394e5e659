"""Owns what a page becomes when it is kept as a file: its addresses are names of files, and nothing of it acts.
Refuses a document that it cannot read whole.

Templates leave forms and scripts out by themselves where `around.static` is set. This is the second look: what one
forgot goes, whatever page it stands on.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Final

POLICY: Final = "default-src 'none'; style-src 'self' file:; base-uri 'none'; form-action 'none'"
"""Of a page on disk. Browsers differ in whether a file beside it is `'self'`; `file:` reaches no network."""

TAG: Final = re.compile(
    r"""<(?P<end>/?)(?P<name>[a-zA-Z][a-zA-Z0-9-]*)(?P<attributes>(?:"[^"]*"|'[^']*'|[^"'<>])*)>|<!doctype html>""",
    re.ASCII,
)
ATTRIBUTE: Final = re.compile(
    r"""(?P<name>[^\s"'<>/=]+)(?:\s*=\s*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>[^\s"'<>=]+)))?""",
    re.ASCII,
)
ADDRESSES: Final = ("href", "xlink:href")
UNWRAPPED: Final = ("form", "label", "fieldset", "base")
"""Their tags go; what they hold stays."""
VOID: Final = ("input", "embed")
DROPPED: Final = (
    *VOID,
    *("script", "style", "template", "noscript", "iframe", "object", "button", "select", "textarea", "datalist"),
)
ACTING: Final = re.compile(
    r"on.+|hx-.+|data-copy|action|formaction|src|srcset|poster|style|ping|target|background|download", re.I
)
"""Attributes that run something, fetch something, or send something."""


def still(document: str, file_of: Callable[[str], str]) -> str:
    """A document of ours that opens from disk. file_of: the name of the file that an address leads to, seen from this
    one. Raises ValueError for a document with a `<` that begins no tag: a text that nothing escaped."""
    out: list[str] = []
    at, inside = 0, ""
    for tag in TAG.finditer(document):
        between = document[at : tag.start()]
        if not inside:
            if "<" in between:
                raise ValueError("a text of this page is not escaped")
            out.append(between)
        at = tag.end()
        name, end = (tag["name"] or "").lower(), bool(tag["end"])
        if inside:
            inside = "" if end and name == inside else inside
        elif name in DROPPED:
            inside = "" if end or name in VOID else name
        elif not name:
            out.append(tag[0])
        elif name not in UNWRAPPED:
            out.append(_tag(name, end, tag["attributes"], file_of))
            if name == "head" and not end:
                out.append(f'\n<meta http-equiv="Content-Security-Policy" content="{POLICY}">')
    if "<" in document[at:] or inside:
        raise ValueError("a text of this page is not escaped, or an element has no end")
    out.append(document[at:])
    return "".join(out)


def _tag(name: str, end: bool, attributes: str, file_of: Callable[[str], str]) -> str:
    if end:
        return f"</{name}>"
    if "=" not in attributes:
        return f"<{name}{attributes}>"
    kept = []
    for found in ATTRIBUTE.finditer(attributes):
        key = found["name"].lower()
        if ACTING.fullmatch(key) or (name == "meta" and key == "http-equiv"):
            continue
        value = next((one for one in (found["double"], found["single"], found["bare"]) if one is not None), None)
        if key in ADDRESSES and value is not None:
            value = html.escape(file_of(html.unescape(value)))
        kept.append(found["name"] if value is None else f'{found["name"]}="{_quoted(value)}"')
    close = "/" if attributes.rstrip().endswith("/") else ""
    return f"<{name}{''.join(f' {one}' for one in kept)}{close}>"


def _quoted(value: str) -> str:
    return value.replace('"', "&#34;")
