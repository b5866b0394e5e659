"""Owns a batch as a folder of plain pages that open from disk: which pages are in it, what their files are called,
and where it ends. Refuses to take a name of a file from anything that a repository or a model wrote.
"""

from __future__ import annotations

import heapq
import itertools
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from scheduler.exports import staged
from scheduler.web import headline, paper, render
from scheduler.web.page import Asked, Page, Visitor, Way, address
from scheduler.web.render import Around
from scheduler.web.site import Site
from scheduler.web.ways import WAYS
from worker.contract.errors import Fault, IntegrityFault, StoreFault
from worker.store import keys

SCHEMA: Final = "dawn.static/1"
MARK: Final = ".dawn-report.json"
"""The file by which a folder of ours is known again, and which of its files are ours."""
FILES_MAX: Final = 20_000
BYTES_MAX: Final = 512 * 2**20
RUN_FILES_MAX: Final = 300
"""Of one run and one kind of page: lists of 30,000 steps, and 300 of the steps themselves."""
LEFT_OUT: Final = "left-out.html"
LEFT_OUT_SHOWN: Final = 1_000

BATCH: Final[Mapping[str, str]] = {
    "/batches/{batch}": "index",
    "/batches/{batch}/groups": "groups",
    "/batches/{batch}/failures": "failures",
    "/batches/{batch}/timeline": "timeline",
    "/batches/{batch}/spend": "spend",
    "/batches/{batch}/manifest": "manifest",
    "/batches/{batch}/activity": "activity",
}
"""Pattern of a page -> the stem of its file."""
RUN: Final[Mapping[str, tuple[int, str]]] = {
    "": (1, "index"),
    "/diff": (2, "diff"),
    "/checks": (2, "checks"),
    "/environment": (2, "environment"),
    "/spend": (2, "spend"),
    "/audit": (2, "audit"),
    "/steps": (3, "steps"),
    "/steps/{seq}": (4, "step"),
}
"""What stands behind the address of a run, or of a delegate -> (when its turn is: what everybody looks at comes
first; the stem of its file)."""
OF_RUN: Final = "/runs/{run}"
OF_DELEGATE: Final = "/runs/{run}/delegates/{call}"
COMMANDS: Final[Mapping[str, str]] = {
    "": "dawn show",
    "/diff": "dawn diff",
    "/audit": "dawn show --audit",
    "/steps": "dawn logs",
    "/steps/{seq}": "dawn logs",
}
"""The same -> what tells it in a terminal."""
STEP: Final = re.compile(r"s?[0-9]{1,9}", re.ASCII)
"""How a step is called in an address, and the end of its file's name."""
NUMBERS: Final = ("page", "file")
"""What of a query makes a page of its own: a number, of which a file can be named."""


@dataclass(frozen=True, order=True)
class _Wanted:
    """A page on its way into the folder."""

    turn: int
    order: int
    file: str = field(compare=False)
    here: str = field(compare=False)
    way: Way = field(compare=False)
    places: Mapping[str, str] = field(compare=False)
    query: Mapping[str, str] = field(compare=False)


@dataclass(frozen=True)
class Written:
    """What is in the folder. bytes: of all files. left_out: commands that tell what had no room."""

    batch: str
    at: str
    pages: int
    bytes: int
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class LeftOut:
    """What the page of that name shows. commands: what tells of the pages that had no room, the first of them; more:
    how many are not named."""

    batch: str
    archive: str
    commands: tuple[str, ...]
    more: int


class Folder:
    """One export. ways: of all pages, of which it takes those of a batch and of its runs."""

    def __init__(self, site: Site, batch: str, ways: Sequence[Way] = WAYS) -> None:
        self._site, self._batch = site, batch
        runs = site.seen.members(batch)
        width = max(4, len(str(len(runs))))
        self._runs = {run: f"runs/{number:0{width}}" for number, run in enumerate(runs, 1)}
        self._ways = [(way, _pattern(way.pattern)) for way in ways if way.pattern in BATCH or _behind(way) in RUN]
        self._files: dict[str, str] = {}
        self._folders: dict[str, Counter[str]] = {}
        self._delegates: dict[tuple[str, str], str] = {}
        self._todo: list[_Wanted] = []
        self._order = itertools.count()
        self._left_out: dict[str, None] = {}

    def write(self, place: Path) -> Written:
        """Make it, and put it at its place. Raises StoreFault, NotFoundFault, and UsageFault as staged.tree does."""
        at = self._site.stamp()
        headline.count_now(self._site, self._batch)
        with staged.tree(place, MARK, {"schema": SCHEMA, "batch": self._batch, "at": at}) as root:
            total = pages = 0
            for name, content in self._assets():
                total += _put(root, name, content)
            self._file(address("/batches/{batch}", batch=self._batch))
            for pattern in BATCH:
                self._file(address(pattern, batch=self._batch))
            for run in self._runs:
                self._file(address("/runs/{run}", run=run))
            while self._todo:
                wanted = heapq.heappop(self._todo)
                content = self._made(wanted, at) if total < BYTES_MAX else self._stub(wanted, at)
                total += _put(root, wanted.file, content)
                pages += 1
            total += _put(root, LEFT_OUT, self._page(LEFT_OUT, "/left-out", self._told(), at))
        return Written(self._batch, at, pages, total, tuple(self._left_out))

    def _made(self, wanted: _Wanted, at: str) -> str:
        asked = Asked(wanted.way.pattern, wanted.places, Visitor("", "viewer"), wanted.query)
        try:
            page = wanted.way.handler(self._site, asked)
        except StoreFault:
            raise
        except Fault as fault:
            page = _problem(fault)
        if not isinstance(page, Page):
            raise TypeError(f"{wanted.way.pattern} is no page")
        return self._page(wanted.file, wanted.here, page, at, wanted.query)

    def _stub(self, wanted: _Wanted, at: str) -> str:
        """The page of a folder that is full: links lead to it already."""
        command = self._leave_out(wanted.way, wanted.places)
        said = {"status": "left out", "message": "This page is not in the folder, which is full", "hint": command}
        return self._page(wanted.file, wanted.here, Page("problem.html", "Left out", said, command), at)

    def _page(self, file: str, here: str, page: Page, at: str, query: Mapping[str, str] | None = None) -> str:
        said = f"A copy, as it was at {render.when(at)} UTC. Nothing can be decided here."
        around = Around(here=here, said=said, query=query or {}, static=True, live=False)
        return paper.still(render.html(page, around), partial(self._seen_from, file))

    def _seen_from(self, file: str, to: str) -> str:
        """What an address is called in the folder, relative to a file of it."""
        target, mark, fragment = to.partition("#")
        if not target:
            return to
        return posixpath.relpath(self._file(target), posixpath.dirname(file) or ".") + mark + fragment

    def _file(self, to: str) -> str:
        """The file of an address, which is made when it is asked for first."""
        parts = urlsplit(to)
        if parts.scheme or parts.netloc:
            return LEFT_OUT
        if parts.path in ("/", "/batches"):
            return "index.html"
        if parts.path.startswith("/assets/"):
            return f"assets/{name}" if (name := parts.path.removeprefix("/assets/")) in self._sheets() else LEFT_OUT
        query = {name: value for name, value in parse_qsl(parts.query) if name in NUMBERS and _is_number(value)}
        if query.get("page") == "1":
            del query["page"]
        for way, pattern in self._ways:
            if (found := pattern.fullmatch(parts.path)) is not None:
                places = {name: unquote(value) for name, value in found.groupdict().items()}
                return self._named(way, places, query)
        return LEFT_OUT

    def _named(self, way: Way, places: Mapping[str, str], query: Mapping[str, str]) -> str:
        here = address(way.pattern, query=dict(sorted(query.items())), **places)
        if here in self._files:
            return self._files[here]
        numbers = "".join(f"-{name}-{int(query[name])}" for name in NUMBERS if name in query)
        if way.pattern in BATCH:
            if places["batch"] != self._batch:
                return LEFT_OUT
            turn, folder, stem = 0, "", BATCH[way.pattern]
        else:
            turn, stem = RUN[_behind(way)]
            if places["run"] not in self._runs or not STEP.fullmatch(places.get("seq", "0")):
                return LEFT_OUT
            folder = self._folder(places["run"], places.get("call", "")) + "/"
            numbers = (f"-{places['seq']}" if "seq" in places else "") + numbers
        kind = self._folders.setdefault(folder, Counter())
        if len(self._files) >= FILES_MAX or kind[stem] >= RUN_FILES_MAX:
            self._leave_out(way, places)
            return LEFT_OUT
        kind[stem] += 1
        file = self._files[here] = f"{folder}{stem}{numbers}.html"
        heapq.heappush(self._todo, _Wanted(turn, next(self._order), file, here, way, places, query))
        return file

    def _folder(self, run: str, call: str) -> str:
        """Of a run, or of the delegate that answered a call: by their numbers."""
        if not call:
            return self._runs[run]
        return self._delegates.setdefault(
            (run, call), f"{self._runs[run]}/delegate-{sum(one == run for one, _ in self._delegates) + 1}"
        )

    def _leave_out(self, way: Way, places: Mapping[str, str]) -> str:
        run, call = places.get("run", ""), places.get("call", "")
        if not run:
            command = f"dawn report {self._batch}"
        else:
            told = COMMANDS.get(_behind(way), "dawn show").split()
            command = " ".join([*told[:2], keys.delegate(run, call) if call else run, *told[2:]])
        self._left_out[command] = None
        return command

    def _told(self) -> Page:
        commands = tuple(self._left_out)
        shown = commands[:LEFT_OUT_SHOWN]
        data = LeftOut(self._batch, self._site.archive.url, shown, len(commands) - len(shown))
        return Page("left_out.html", "Not in this folder", data, f"dawn view {self._site.archive.url}")

    def _assets(self) -> Iterator[tuple[str, str]]:
        for name in self._sheets():
            yield f"assets/{name}", (files("scheduler.web") / "assets" / name).read_text(encoding="utf-8")

    def _sheets(self) -> list[str]:
        return sorted(one.name for one in (files("scheduler.web") / "assets").iterdir() if one.name.endswith(".css"))


def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile("".join(f"(?P<{one[1:-1]}>[^/]+)" if one[:1] == "{" else one for one in _parts(pattern)))


def _behind(way: Way) -> str:
    """What of a pattern stands behind the address of a run or of a delegate; the whole of any other."""
    for base in (OF_DELEGATE, OF_RUN):
        if way.pattern.startswith(base):
            return way.pattern.removeprefix(base)
    return way.pattern


def _parts(pattern: str) -> list[str]:
    return re.split(r"(\{\w+\})", pattern)


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdecimal() and len(value) <= 9


def _problem(fault: Fault) -> Page:
    damaged = isinstance(fault, IntegrityFault)
    said = {"status": "damaged" if damaged else "not there", "message": fault.message, "hint": fault.hint}
    return Page("problem.html", fault.message, said)


def _put(root: Path, name: str, content: str) -> int:
    data = content.encode("utf-8", "backslashreplace")
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return len(data)
