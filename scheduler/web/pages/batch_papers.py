"""Owns what a batch was asked and what people did about it: its manifest beside the one before, its activity, and its
report to keep. Refuses to show a report as a page of ours: it is a file of its own.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from scheduler.audit import Act
from scheduler.reports import kept, pages
from scheduler.runs import View
from scheduler.web.headline import KEPT_S, Head, head
from scheduler.web.journals.stories import stories
from scheduler.web.journals.timeline import ACT_CHARS
from scheduler.web.page import Asked, File, Page, Slice, Way, cut
from scheduler.web.site import Site
from worker.contract.errors import IntegrityFault, NotFoundFault
from worker.store import keys
from worker.store.inbox import Control
from worker.store.members import retries

MANIFEST_BYTES: Final = 4 * 2**20
"""As much as one may have when it is submitted."""
TEXT_SHOWN: Final = 200_000
COMPARED_LINES: Final = 2_000
"""Of each side: comparing takes time that grows with its square."""
TARGETS_SHOWN: Final = 100
ACTS_SHOWN: Final = 10_000
REPORTS_TOLD: Final = 20


@dataclass(frozen=True)
class Line:
    """sign: `+`, `-`, `@` for where, or a space."""

    sign: str
    text: str


@dataclass(frozen=True)
class Papers:
    """text: the manifest; cut: it is longer. before: the last batch of that name, "" for the first. lines: what
    differs from its manifest. added, gone: targets, TARGETS_SHOWN at most of each; more_added, more_gone: how many
    else."""

    head: Head
    text: str
    cut: bool
    before: str
    lines: tuple[Line, ...]
    note: str
    added: tuple[str, ...]
    gone: tuple[str, ...]
    more_added: int
    more_gone: int


def manifest(site: Site, asked: Asked) -> Page:
    batch = asked.path["batch"]
    top, text = head(site, batch), _text(site, batch)
    before = _before(site, batch)
    lines: tuple[Line, ...] = ()
    note, added, gone = "", [], []
    if before:
        lines, note = _differences(_text(site, before), text)
        then, now = ([member.target for member in site.seen.named(one)] for one in (before, batch))
        added = [target for target in dict.fromkeys(now) if target not in set(then)]
        gone = [target for target in dict.fromkeys(then) if target not in set(now)]
    data = Papers(
        top,
        text[:TEXT_SHOWN],
        len(text) > TEXT_SHOWN,
        before,
        lines,
        note,
        tuple(added[:TARGETS_SHOWN]),
        tuple(gone[:TARGETS_SHOWN]),
        max(0, len(added) - TARGETS_SHOWN),
        max(0, len(gone) - TARGETS_SHOWN),
    )
    return Page("batch_manifest.html", f"Manifest of {batch}", data, tab="Manifest")


def _text(site: Site, batch: str) -> str:
    """ "" where none is stored: a fork has none."""

    def read() -> str:
        try:
            return site.archive.get(keys.batch_manifest(batch), max_bytes=MANIFEST_BYTES).decode("utf-8", "replace")
        except NotFoundFault:
            return ""

    return site.seen.answer(("manifest", batch), read, KEPT_S)


def _before(site: Site, batch: str) -> str:
    """The newest of its name that was submitted before it and named its runs, "" for none."""
    alike = [one for one in site.seen.batches() if one.batch.rpartition("-")[0] == batch.rpartition("-")[0]]
    place = next((n for n, one in enumerate(alike) if one.batch == batch), 0)
    return next((one.batch for one in reversed(alike[:place]) if one.runs), "")


def _differences(before: str, now: str) -> tuple[tuple[Line, ...], str]:
    sides = before.splitlines(), now.splitlines()
    if max(map(len, sides)) > COMPARED_LINES:
        return (), "too long to be compared here"
    found = list(difflib.unified_diff(*sides, lineterm="", n=3))[2:]
    return tuple(Line(text[:1], text if text.startswith("@") else text[1:]) for text in found), ""


@dataclass(frozen=True)
class Done:
    """What somebody did. on: the target, "" for the whole batch; times: to so many runs at once."""

    at: str
    who: str
    did: str
    what: str
    run: str = ""
    on: str = ""
    times: int = 1


@dataclass(frozen=True)
class Activity:
    """done: the newest first, ACTS_SHOWN at most."""

    head: Head
    done: tuple[Done, ...]
    slice: Slice
    notes: tuple[str, ...]


def activity(site: Site, asked: Asked) -> Page:
    batch = asked.path["batch"]
    site.seen.named(batch)  # raises for a batch that is not there
    seen, told, top = site.seen.batch(batch), stories(site, batch), head(site, batch)
    acts = [*_by_batch(site, batch, top)]
    acts += _together((act, one.run, one.target) for one in told.told for act in one.acts)
    for view in seen.found:
        acts += _beside(view)
    acts.sort(key=lambda one: one.at, reverse=True)
    notes = [
        *told.notes,
        *([f"{len(acts) - ACTS_SHOWN:,} older ones are left out"] if len(acts) > ACTS_SHOWN else []),
    ]
    acts = acts[:ACTS_SHOWN]
    part = cut(len(acts), asked)
    data = Activity(top, tuple(acts[part.start : part.stop]), part, tuple(notes))
    return Page("batch_activity.html", f"Activity in {batch}", data, follows=f"batch:{batch}", tab="Activity")


def _by_batch(site: Site, batch: str, top: Head) -> Iterator[Done]:
    """What was done to all of it."""
    for message in Control(site.archive, batch).read():
        yield Done(message.at, message.by, message.kind, message.text[:ACT_CHARS])
    for added in retries(site.archive, batch):
        yield Done(added.at, added.by, "asked for retries", "", times=len(added.runs))
    for n in range(max(0, top.report + 1 - REPORTS_TOLD), top.report + 1):
        at = site.seen.answer(("reported", batch, n), partial(_reported, site, batch, n), KEPT_S)
        yield Done(at, "the scheduler", "reported", f"report {n}")


def _reported(site: Site, batch: str, n: int) -> str:
    try:
        return kept.read(site.archive, batch, n).at
    except (IntegrityFault, NotFoundFault):
        return ""


def _together(acts: Iterable[tuple[Act, str, str]]) -> Iterator[Done]:
    """What one person did to many runs in one second is one line: a submit, a retry."""
    found: dict[tuple[str, str, str, str], list[tuple[Act, str, str]]] = {}
    for act, run, target in acts:
        found.setdefault((act.at[:19], act.who, act.did, act.what), []).append((act, run, target))
    for alike in found.values():
        act, run, target = alike[0]
        alone = len(alike) == 1
        yield Done(act.at, act.who, act.did, act.what, run if alone else "", target if alone else "", len(alike))


def _beside(view: View) -> Iterator[Done]:
    """What lies beside its journal: words that it has not read, what people said of its patch, what became of it."""
    run, target = view.task.run, view.task.target
    for message in view.mail.inbox:
        if message.kind != "closed":
            yield Done(message.at, message.by, message.kind, message.text[:ACT_CHARS], run, target)
    if (made := view.decision) is not None:
        yield Done(made.at, made.by, made.decision, made.reason[:ACT_CHARS], run, target)
    for review in view.after.reviews if view.after is not None else ():
        yield Done(review.at, review.by, f"{review.decision} the patch", review.comment[:ACT_CHARS], run, target)
    yield from _told(view)


def _told(view: View) -> Iterator[Done]:
    run, target = view.task.run, view.task.target
    for one in view.after.deliveries if view.after is not None else ():
        if one.act == "asked":
            yield Done(one.at, one.by, "asked for its delivery", one.detail[:ACT_CHARS], run, target)
        elif one.step == "done":
            yield Done(one.at, one.by, f"delivery: {one.state}", (one.url or one.detail)[:ACT_CHARS], run, target)


def report(site: Site, asked: Asked) -> File:
    """The last one that is stored; where there is none, what it would say now."""
    batch = asked.path["batch"]
    site.seen.named(batch)  # raises for a batch that is not there
    last = kept.last_number(site.archive, batch)
    if last < 0:
        made = pages.html(kept.gather(site.archive, batch, at=site.stamp()))
    else:
        try:
            made = site.archive.get(keys.batch_report(batch, last, "report.html"), max_bytes=kept.REPORT_BYTES)
        except NotFoundFault:  # whoever wrote it died before that file
            made = pages.html(kept.read(site.archive, batch, last))
    return File(f"{batch}.html", iter([made]), len(made))


WAYS: Final = (
    Way("/batches/{batch}/manifest", manifest),
    Way("/batches/{batch}/activity", activity),
    Way("/batches/{batch}/report", report),
)
