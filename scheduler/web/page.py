"""Owns what a page is: what it was asked, what it answers, and the table of ways to get there. Refuses to read an
archive and to render.

A page is a function `(site, asked) -> Answer`, entered in a module's `WAYS`. It raises faults as every other part
does: render.py makes pages of them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote, urlencode

from worker.contract.errors import NotFoundFault

if TYPE_CHECKING:
    from scheduler.web.site import Site

Role = Literal["viewer", "reviewer"]
"""A viewer reads; a reviewer also decides."""

NOBODY: Final[Mapping[str, str]] = {}
PER_PAGE: Final = 100
"""Rows of one page of a table."""
PAGES_MAX: Final = 100_000


@dataclass(frozen=True)
class Visitor:
    """Who asks. name: goes into the archive with what they decide. token: what names the one that they signed in with
    (access.py), "" for whom a proxy names."""

    name: str
    role: Role
    token: str = field(default="", repr=False, compare=False)

    @property
    def may_decide(self) -> bool:
        return self.role == "reviewer"


@dataclass(frozen=True)
class Asked:
    """One request. way: the pattern that took it. path: what its places were. query: of each name the last value.
    form: the fields of a POST, "" for what is missing. opened: what this visitor has opened (Page.opened)."""

    way: str
    path: Mapping[str, str]
    visitor: Visitor
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)
    opened: tuple[str, ...] = ()

    def page(self) -> int:
        """The number of the page of a table, from 1."""
        return min(PAGES_MAX, self.number("page", 1)) or 1

    def number(self, name: str, default: int) -> int:
        """A count in the query; default for what is none."""
        text = self.query.get(name, "")
        return int(text) if text.isdecimal() and len(text) < 12 else default

    def words(self, name: str) -> str:
        """What was written into a field of many lines, whose ends browsers send as CR and LF."""
        return self.form.get(name, "").replace("\r\n", "\n").strip()

    def with_query(self, **changes: str) -> dict[str, str]:
        """The query with some values changed; "" takes one out. Another filter begins at its first page."""
        changed = {**self.query, **changes}
        if "page" not in changes:
            changed.pop("page", None)
        return {name: value for name, value in changed.items() if value and name != "as"}


@dataclass(frozen=True)
class Page:
    """A page to show. template: of templates/. data: what it shows, the same that its JSON twin says: dataclasses,
    models, plain values. command: what prints the same in a terminal. follows: `run:<id>` or `batch:<id>` whose news
    make it old, "" for none. tabs: the name of the tab it is, where it is one of several. opened: the name of what
    its visitor has seen with it, for a change that wants proof; "" for nothing."""

    template: str
    title: str
    data: Any
    command: str = ""
    follows: str = ""
    tab: str = ""
    status: int = 200
    opened: str = ""


@dataclass(frozen=True)
class File:
    """Bytes to keep: sent as an attachment, never shown by a browser. size: in bytes, where it is known."""

    name: str
    chunks: Iterator[bytes]
    size: int | None = None


@dataclass(frozen=True)
class Went:
    """What a change led to: the page to go to, and one line that it says."""

    to: str
    said: str = ""


Answer = Page | File | Went
Handler = Callable[["Site", Asked], Answer]


@dataclass(frozen=True)
class Way:
    """How a page is reached. pattern: `/runs/{run}/steps`. changes: it is a POST, for reviewers only, which stores
    something; pages never do."""

    pattern: str
    handler: Handler
    changes: bool = False


def address(pattern: str, /, *, query: Mapping[str, str] = NOBODY, **places: object) -> str:
    """The address of a page: its pattern with every place filled, percent-encoded, whatever stands in it: half a
    letter, which no address can say, as a question mark."""
    path = pattern
    for name, value in places.items():
        path = path.replace("{" + name + "}", quote(str(value), safe="", errors="replace"))
    if "{" in path:
        raise ValueError(f"{pattern} has a place that nothing fills")
    told = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(told, errors='replace')}" if told else path


def is_ours(to: str) -> bool:
    """Whether an address from a form leads to a page of ours: `//elsewhere` would be another host."""
    return to.startswith("/") and to[1:2] not in ("/", "\\") and to.isprintable()


@dataclass(frozen=True)
class Slice:
    """A part of a long table. page: from 1. last: the number of the last page. total: rows of the whole."""

    page: int
    last: int
    total: int
    start: int
    stop: int


def cut(total: int, asked: Asked, per_page: int = PER_PAGE) -> Slice:
    """Which rows the page that was asked for shows. Raises NotFoundFault for a page behind the last."""
    last = max(1, -(-total // per_page))
    page = asked.page()
    if page > last:
        raise NotFoundFault(f"there is no page {page}", hint=f"the last one is {last}")
    start = (page - 1) * per_page
    return Slice(page, last, total, start, min(total, start + per_page))
