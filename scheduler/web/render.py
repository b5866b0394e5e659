"""Owns how an answer reads: HTML by the templates, or the same data as JSON. Refuses to let a text of a repository or
a model be anything but text: everything is escaped, control characters are written out.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from scheduler.reports.harmless import plain
from scheduler.reports.rows import duration
from scheduler.web.page import Page, Visitor, address
from worker.contract.task import usd_text
from worker.store.bundle import SCHEME

if TYPE_CHECKING:
    from jinja2 import Environment

SCHEMA: Final = "dawn.web/1"
DAWN: Final = re.compile(r"^dawn ", re.MULTILINE)
"""Where a command begins: several stand on a line each."""
READS: Final = re.compile(r"dawn (ls|status|show|diff|logs|verify|report|compare|watch|schedule ls)\b")


@dataclass(frozen=True)
class Around:
    """What stands around a page. here: its own address. form_token: for its forms, "" where nothing can be decided.
    said: what the last change led to. link: how one page names another."""

    here: str = "/"
    visitor: Visitor | None = None
    form_token: str = ""
    said: str = ""
    query: Mapping[str, str] | None = None
    link: Callable[..., str] = address
    static: bool = False
    """Whether it is a file in a folder: no forms, no script, no address with a query."""
    live: bool = True
    archive: str = ""
    """Its address, where one is read alone; "" for that of the deployment."""

    def typed(self, command: str) -> str:
        """A command as it is true for these pages: it takes its archive from DAWN_ARCHIVE. "" for one that would
        write into a bundle."""
        if self.archive.startswith(SCHEME) and not READS.match(command):
            return ""
        where = f"DAWN_ARCHIVE={shlex.quote(self.archive)} " if self.archive else ""
        return DAWN.sub(lambda found: where + found[0], command)

    @property
    def may_decide(self) -> bool:
        return bool(self.form_token)


def prepare() -> None:
    """Load and compile every template, before anybody waits for one: that takes a third of a second."""
    for name in _environment().list_templates(extensions=["html"]):
        _environment().get_template(name)


def html(page: Page, around: Around) -> str:
    """The whole document."""
    template = _environment().get_template(page.template)
    return template.render(page=page, data=page.data, around=around, link=around.link)


def as_json(page: Page, around: Around) -> bytes:
    """The twin of a page: its data, with its title and command."""
    import pydantic_core

    told = {"schema": SCHEMA, "title": page.title, "command": around.typed(page.command), "data": page.data}
    try:
        return pydantic_core.to_json(told, indent=2)
    except pydantic_core.PydanticSerializationError:
        # Half a letter, which a file or a model may hold, is no UTF-8: JSON can say it in an escape.
        return json.dumps(pydantic_core.to_jsonable_python(told), indent=2).encode()


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from scheduler.web import exact
    from scheduler.web.journals import ansi

    made = Environment(
        loader=PackageLoader("scheduler.web"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printed,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "ansi": ansi.html,
        "code": exact.code,
        "usd": _usd,
        "duration": duration,
        "size": size,
        "when": when,
        "number": _number,
        "css": css,
    }
    return made


def _printed(value: Any) -> Any:
    """What an expression of a template prints. Markup is ours."""
    if value is None:
        return ""
    return value if hasattr(value, "__html__") or not isinstance(value, str) else plain(value, lines=True)


def _usd(microusd: int) -> str:
    return usd_text(microusd)


def _number(count: int) -> str:
    return f"{count:,}"


def css(word: str) -> str:
    """A word as the end of a class name; `other` for what is none."""
    return word if word.isascii() and word.replace("_", "").isalpha() else "other"


def size(count: int) -> str:
    """`512 B`, `1.5 KiB`, `20.0 MiB`."""
    amount, units = float(count), ["B", "KiB", "MiB", "GiB"]
    while amount >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{count} B" if units[0] == "B" else f"{amount:.1f} {units[0]}"


def when(at: str | datetime | None) -> str:
    """A time of the archive for a reader: `2026-11-30 02:15:04`, UTC as every time of a page."""
    text = at.isoformat() if isinstance(at, datetime) else at or ""
    return text[:19].replace("T", " ")
