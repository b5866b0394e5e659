"""Owns the pages of a run's trajectory: its steps, one step, and what a call wrote. Refuses to read a step that
nobody opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, cast

from markupsafe import Markup

from scheduler.web import charts
from scheduler.web.journals import blobs, runhead, stepbody, steps
from scheduler.web.journals.blobs import Blob, Part
from scheduler.web.journals.runhead import Head, Seen
from scheduler.web.journals.stepbody import Body
from scheduler.web.journals.steps import FILTERS, Bounds, Filter, Index, Row
from scheduler.web.page import Asked, File, Page, Slice, Way, address, cut
from scheduler.web.site import Site
from worker.contract.errors import NotFoundFault
from worker.store import keys

KINDS: Final = ("failed", "crash", "nudge", "write", "compaction", "command", "read")
"""Colours of the minimap, the most telling first."""


@dataclass(frozen=True)
class Choice:
    """A filter as the page offers it. count: how many steps it takes. query: turns it on or off."""

    name: Filter
    told: str
    count: int
    on: bool
    query: dict[str, str]


@dataclass(frozen=True)
class Shown:
    """A row with where its page is. context: its size as a bar, None where nothing was asked."""

    row: Row
    seq: str
    context: Markup | None


@dataclass(frozen=True)
class Steps:
    """context_max: the largest context, which the bars are measured by. before, after: the nearest problem on another
    page of this list, "" for none."""

    head: Head
    rows: list[Shown]
    slice: Slice
    choices: list[Choice]
    steps: int
    context_max: int
    minimap: Markup
    before: str = ""
    after: str = ""


def trajectory(site: Site, asked: Asked) -> Page:
    seen = runhead.look(site, asked)
    index = seen.read.index
    at = steps.bounds(index.rows)
    chosen = [one for one in FILTERS if one in asked.query.get("only", "").split(",")]
    kept = steps.kept(index.rows, chosen, at)
    slice = cut(len(kept), asked)
    shown = kept[slice.start : slice.stop]
    before = next((row for row in reversed(kept[: slice.start]) if row.is_problem), None)
    after = next((row for row in kept[slice.stop :] if row.is_problem), None)
    context_max = max((row.context_tokens for row in index.rows), default=0)
    data = Steps(
        head=seen.head,
        rows=[Shown(row, place(row), _bar(row, context_max)) for row in shown],
        slice=slice,
        choices=[_choice(asked, index, one, chosen, at) for one in FILTERS],
        steps=index.run.steps,
        context_max=context_max,
        minimap=_minimap(seen, index),
        before="" if before is None else _in_list(asked, kept, before),
        after="" if after is None else _in_list(asked, kept, after),
    )
    command = f"dawn logs {seen.head.name}"
    return Page("run_steps.html", f"Steps of {seen.head.name}", data, command, seen.follows, "Steps")


def place(row: Row) -> str:
    """How a step is called in addresses: by the segment of its reply, or by its number where others stand there."""
    return f"s{row.number}" if row.copied or row.number == 0 else str(row.first)


def _bar(row: Row, most: int) -> Markup | None:
    return charts.gauge(row.context_tokens, most, f"{row.context_tokens:,}") if row.context_tokens else None


def _choice(asked: Asked, index: Index, one: Filter, chosen: Sequence[Filter], at: Bounds) -> Choice:
    on = one in chosen
    others = [name for name in FILTERS if (name in chosen) != (name == one)]
    limits = {
        "slow": f"at least {(at.slow_ms or 0) / 1000:.1f} s",
        "costly": f"at least {at.costly_tokens:,} tokens" if at.costly_tokens is not None else "the dearest tenth",
    }
    count = sum(steps.fits(row, one, at) for row in index.rows)
    return Choice(one, limits.get(one, ""), count, on, asked.with_query(only=",".join(others)))


def _in_list(asked: Asked, kept: Sequence[Row], row: Row) -> str:
    """Where a row stands in the list as it is filtered now."""
    number = next(n for n, one in enumerate(kept) if one is row)
    query = asked.with_query(page=str(number // 100 + 1))
    return f"{address(asked.way, query=query, **asked.path)}#step-{row.number}"


def _minimap(seen: Seen, index: Index) -> Markup:
    cells = [
        charts.Cell(_kind(row), _label(row), _address(seen.head, "/steps/{seq}", seq=place(row)))
        for row in index.rows
    ]
    return charts.strip("minimap", "Every step", cells, KINDS)


def _kind(row: Row) -> str:
    kinds = {mark.kind for mark in row.marks}
    if row.failed or "failure" in kinds:
        return "failed"
    for kind in ("crash", "nudge"):
        if kind in kinds:
            return kind
    if row.wrote:
        return "write"
    return "compaction" if "compaction" in kinds else "command" if row.phase == "commands" else "read"


def _label(row: Row) -> str:
    names = ", ".join(call.name for call in row.calls[:3]) or (
        "before the first reply" if not row.number else row.said
    )
    return f"step {row.number}: {names}" if row.number else "start"


def _address(head: Head, end: str, seq: str) -> str:
    base = "/runs/{run}/delegates/{call}" if head.call else "/runs/{run}"
    return address(base + end, run=head.run, call=head.call, seq=seq)


@dataclass(frozen=True)
class Step:
    """previous, next: places of the steps beside it; before, after: of the nearest problems; "" for none. page: of
    the list that it stands on. fork: what goes on from here, "" where nothing can."""

    head: Head
    row: Row
    body: Body
    seq: str
    page: int
    previous: str
    next: str
    before: str
    after: str
    fork: str
    raw_bytes: int


def step(site: Site, asked: Asked) -> Page:
    seen, row = _step(site, asked)
    index = seen.read.index
    number = index.place(row.number)
    rows = index.rows
    problems_before = [one for one in rows[:number] if one.is_problem]
    problems_after = [one for one in rows[number + 1 :] if one.is_problem]
    data = Step(
        head=seen.head,
        row=row,
        body=stepbody.body(site.archive, seen.read, row),
        seq=place(row),
        page=number // 100 + 1,
        previous=place(rows[number - 1]) if number else "",
        next=place(rows[number + 1]) if number + 1 < len(rows) else "",
        before=place(problems_before[-1]) if problems_before else "",
        after=place(problems_after[0]) if problems_after else "",
        fork="" if seen.head.call or index.run.prepared is None else f"dawn fork {seen.head.run} --at {row.number}",
        raw_bytes=sum(site.archive.size(key) or 0 for key in _keys(index, row)),
    )
    title = f"Step {row.number} of {seen.head.name}"
    follows = seen.follows if row is rows[-1] else ""
    return Page("run_step.html", title, data, f"dawn logs {seen.head.name}", follows, "Steps")


def _step(site: Site, asked: Asked) -> tuple[Seen, Row]:
    seen = runhead.look(site, asked)
    index, name = seen.read.index, asked.path["seq"]
    row: Row | None = None
    if name[:1] == "s" and name[1:].isdecimal() and len(name) < 12:
        row = index.row(int(name[1:]))
    elif name.isascii() and name.isdecimal() and len(name) < 12:
        row = index.at_segment(int(name))
    if row is None:
        raise NotFoundFault(f"there is no step at {name} of {seen.head.name}", hint=f"dawn logs {seen.head.name}")
    return seen, row


def _keys(index: Index, row: Row) -> list[str]:
    return [keys.segment(index.run.id, seq) for seq in stepbody.segments(row)]


def raw(site: Site, asked: Asked) -> File:
    """The segments of a step as they stand in the archive."""
    seen, row = _step(site, asked)
    names = _keys(seen.read.index, row)

    def chunks() -> Iterator[bytes]:
        for key in names:
            yield from site.archive.chunks(key)

    size = sum(site.archive.size(key) or 0 for key in names)
    return File(f"{seen.head.run}-step-{row.number}.jsonl", chunks(), size)


@dataclass(frozen=True)
class Output:
    """A page of what a command wrote."""

    head: Head
    blob: Blob
    part: Part
    slice: Slice


def output(site: Site, asked: Asked) -> Page:
    seen, blob = _blob(site, asked)
    slice = cut(blob.size, asked, blobs.PAGE_BYTES)
    shown = blobs.part(site.archive, blob, slice.start, slice.stop)
    title = f"Output {blob.digest[:12]} of {seen.head.name}"
    return Page("run_output.html", title, Output(seen.head, blob, shown, slice), tab="Steps")


def output_raw(site: Site, asked: Asked) -> File:
    seen, blob = _blob(site, asked)
    return File(f"{seen.head.run}-{blob.digest[:12]}.bin", blobs.whole(site.archive, blob), blob.size)


def _blob(site: Site, asked: Asked) -> tuple[Seen, Blob]:
    seen = runhead.look(site, asked)
    return seen, blobs.find(site.archive, seen.read.index.run, asked.path["digest"])


def _ways(base: str) -> Iterator[Way]:
    yield Way(f"{base}/steps", trajectory)
    yield Way(f"{base}/steps/{{seq}}", step)
    yield Way(f"{base}/steps/{{seq}}/raw", raw)
    yield Way(f"{base}/blobs/{{digest}}", output)
    yield Way(f"{base}/blobs/{{digest}}/raw", output_raw)


WAYS: Final = cast("tuple[Way, ...]", (*_ways("/runs/{run}"), *_ways("/runs/{run}/delegates/{call}")))
