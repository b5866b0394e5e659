"""Owns the page of a run's patch: its files, their hunks, and which call made each. Refuses to show a patch as
anything but text, and to hold more of it than a page.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Literal

from scheduler.runs import READERS
from scheduler.web.journals import blobs, runhead, stepbody
from scheduler.web.journals.runhead import Head, Seen
from scheduler.web.journals.steps import Row as StepRow
from scheduler.web.page import Asked, File, Page, Slice, Way, address, cut
from scheduler.web.pages.steps import place
from scheduler.web.patches import diffs
from scheduler.web.patches.diffs import RAW_BYTES, ROWS, FileChange, Hunk, Patch, Row, Window
from scheduler.web.patches.groups import SUBMODULES, opened_as
from scheduler.web.patches.highlight import Allowance
from scheduler.web.patches.provenance import Origin, Provenance, provenance
from scheduler.web.site import Site
from worker.contract.delivered import patch_of
from worker.contract.errors import IntegrityFault, NotFoundFault
from worker.contract.events import Record
from worker.store.content import get_content

PATCH_BYTES: Final = 24 * 2**20
"""What the clean room takes, and room; a larger one can be had as a file."""
FILES_SHOWN: Final = 100
"""Of one page, and as many hunks of one step are named."""
WRITES_MAX: Final = 400
"""Steps that changed files and are read to tell who made a hunk, the last ones: about a second of requests to an
object store. Of older ones the page says that it has not looked at them."""
RAW_ROW: Final = 100
"""Bytes of text that take as much room as a row."""
KEPT_S: Final = 3_600.0


@dataclass(frozen=True)
class ShownHunk:
    """id: where it is on the page. step: the place of the step that made it, "" where nobody knows. pairs: its rows
    side by side, where they were asked for so."""

    id: str
    hunk: Hunk
    origin: Origin | None
    step: str
    pairs: list[tuple[Row | None, Row | None]] | None


@dataclass(frozen=True)
class ShownFile:
    """window: None for a file for whose rows the page has no room. hunks: of the window. origin: of a file without
    hunks."""

    file: FileChange
    window: Window | None
    hunks: list[ShownHunk] = field(default_factory=list)
    origin: Origin | None = None
    step: str = ""


@dataclass(frozen=True)
class Made:
    """A hunk that the step which was asked for has made. to: where it is."""

    path: str
    hunk: int
    to: str


@dataclass(frozen=True)
class Diff:
    """why: why there is nothing to show, "" where there is. elsewhere: the run whose patch this is. file: number of
    the one that is shown alone, from 1, 0 for all. step: the one whose hunks were asked for, 0 for none.
    steps_unread: early steps that changed files and were not looked at for who made a hunk."""

    head: Head
    why: str
    patch: str = ""
    size: int = 0
    elsewhere: str = ""
    submodules: str = ""
    layout: Literal["unified", "split"] = "unified"
    read: Patch | None = None
    files: list[ShownFile] = field(default_factory=list)
    slice: Slice | None = None
    file: int = 0
    step: int = 0
    made: list[Made] = field(default_factory=list)
    more_made: int = 0
    steps_unread: int = 0


def diff(site: Site, asked: Asked) -> Page:
    seen = runhead.look(site, asked)
    run, command = seen.view.run, f"dawn diff {seen.head.run}"
    title = f"Diff of {seen.head.target}"
    found, why = patch_of(run), ""
    elsewhere = run.sealed.reused or "" if run.sealed is not None else ""
    if run.sealed is None:
        why = "The run has not ended; its patch is made when it has."
    elif found is None:
        why = "It reused another run's work." if elsewhere else "It left no patch."
    else:
        blob = blobs.find(site.archive, run, found)
        if blob.size > PATCH_BYTES:
            why = "The patch is too large to be shown here; it can be kept as a file."
    if why or found is None:
        size = 0 if found is None else blob.size
        return Page(
            "run_diff.html", title, Diff(seen.head, why, found or "", size, elsewhere), command, seen.follows, "Diff"
        )
    patch = get_content(site.archive, blob.key, found, max_bytes=PATCH_BYTES)
    data = _shown(site, asked, seen, patch, found)
    # Whoever came to one hunk or file has not seen what else is there, nor how much that is.
    begun = "" if data.file or asked.page() > 1 else opened_as(run.id, found)
    return Page("run_diff.html", title, data, command, seen.follows, "Diff", opened=begun)


def raw(site: Site, asked: Asked) -> File:
    """The patch as it is stored, to be kept."""
    seen = runhead.look(site, asked)
    found = patch_of(seen.view.run)
    if found is None:
        raise NotFoundFault(f"run {seen.head.run} left no patch", hint=f"dawn diff {seen.head.run}")
    blob = blobs.find(site.archive, seen.view.run, found)
    return File(f"{seen.head.run}.diff", blobs.whole(site.archive, blob), blob.size)


def _shown(site: Site, asked: Asked, seen: Seen, patch: bytes, found: str) -> Diff:
    read = diffs.read(patch)
    made_by = site.seen.answer(
        ("provenance", seen.head.run, found), lambda: provenance(_writes(site, seen), patch, read.files), KEPT_S
    )
    split = asked.query.get("view") == "split"
    number, step = asked.number("file", 0), asked.number("step", 0)
    if number > len(read.files):
        raise NotFoundFault(f"the patch has no file {number}", hint=f"it has {len(read.files)}")
    shown: list[ShownFile] = []
    if number:
        file = read.files[number - 1]
        part = diffs.window(patch, file, (asked.page() - 1) * ROWS)
        slice = cut(part.total, asked, ROWS if part.raw is None else RAW_BYTES)
        if part.raw is not None:
            part = diffs.window(patch, file, slice.start)
        shown.append(_file(seen, part, made_by, split))
    else:
        slice = cut(len(read.files), asked, FILES_SHOWN)
        room, allowance = ROWS, Allowance()
        for file in read.files[slice.start : slice.stop]:
            one = _whole(diffs.window(patch, file, 0, room, allowance)) if room else None
            shown.append(_file(seen, one or Window(file), made_by, split, folded=one is None))
            if one is not None:
                room -= min(room, one.total if one.raw is None else len(one.raw) // RAW_ROW)
    made = [hunk for hunk in made_by.made_by(step) if step]
    return Diff(
        head=seen.head,
        why="",
        patch=found,
        size=len(patch),
        submodules=seen.view.run.sealed.artifacts.get(SUBMODULES, "") if seen.view.run.sealed is not None else "",
        layout="split" if split else "unified",
        read=Patch(read.size, (), read.more_files, read.added, read.removed),
        files=shown,
        slice=slice,
        file=number,
        step=step,
        made=[
            Made(one.path, one.hunk, _to(asked, patch, read.files[one.file], one.hunk)) for one in made[:FILES_SHOWN]
        ],
        more_made=max(0, len(made) - FILES_SHOWN),
        steps_unread=max(0, sum(row.wrote for row in seen.read.index.rows) - WRITES_MAX),
    )


def _file(seen: Seen, part: Window, made_by: Provenance, split: bool, folded: bool = False) -> ShownFile:
    hunks = []
    for hunk in part.hunks:
        origin = made_by.of(part.file, hunk.number)
        pairs = diffs.pairs(hunk.rows) if split else None
        hunks.append(ShownHunk(_id(part.file, hunk.number), hunk, origin, _step(seen, origin), pairs))
    by_file = part.file.binary or part.file.body == part.file.stop
    origin = made_by.of(part.file, 0) if by_file else None
    return ShownFile(part.file, None if folded else part, hunks, origin, _step(seen, origin))


def _whole(part: Window) -> Window | None:
    """A file that the page of all files has room for, and that a person can read."""
    if part.file.binary or part.stop < part.total or (part.raw is not None and part.total > RAW_BYTES // 8):
        return None
    return part


def _id(file: FileChange, hunk: int) -> str:
    return f"f{file.number + 1}-h{hunk + 1}"


def _step(seen: Seen, origin: Origin | None) -> str:
    row = None if origin is None else seen.read.index.row(origin.step)
    return "" if row is None else place(row)


def _to(asked: Asked, patch: bytes, file: FileChange, hunk: int) -> str:
    """Where a hunk is shown."""
    places = diffs.hunks(patch, file) or ()
    before = sum(one.lines for one in places[:hunk])
    query = {"file": str(file.number + 1), "page": str(before // ROWS + 1)}
    to = address("/runs/{run}/diff", query=query, run=asked.path["run"])
    return f"{to}#{_id(file, hunk)}" if places else to


def _writes(site: Site, seen: Seen) -> Iterator[Record]:
    """The records of the steps that changed files: the index knows which, so that no other is read."""
    index = seen.read.index
    rows = [row for row in index.rows if row.wrote][-WRITES_MAX:]

    def fetch(row: StepRow) -> list[Record] | None:
        try:
            return list(stepbody.records(site.archive, index.run.id, row))
        except IntegrityFault:  # the page says that the journal is damaged; a patch can be read all the same
            return None

    with ThreadPoolExecutor(READERS) as pool:
        for start in range(0, len(rows), 2 * READERS):
            for records in pool.map(fetch, rows[start : start + 2 * READERS]):
                yield from records or ()


WAYS: Final = (Way("/runs/{run}/diff", diff), Way("/runs/{run}/diff/raw", raw))
