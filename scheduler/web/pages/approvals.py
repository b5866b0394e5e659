"""Owns the page of all questions to people. Refuses to answer them (changes.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from scheduler.runs import View
from scheduler.web.page import Asked, Page, Slice, Way, cut
from scheduler.web.questions import Question, cheapest, is_asking, question
from scheduler.web.site import Site

CARDS: Final = 25
"""Of one page: each is read before it is decided on."""
KEPT_S: Final = 3_600.0


@dataclass(frozen=True)
class Approvals:
    """questions: those of this page, the cheapest decision first."""

    questions: tuple[Question, ...]
    slice: Slice
    batches: int


def approvals(site: Site, asked: Asked) -> Page:
    found = open_questions(site)
    part = cut(len(found), asked, CARDS)
    batches = len({one.batch for one in found})
    data = Approvals(tuple(found[part.start : part.stop]), part, batches)
    title = f"{len(found)} to decide" if found else "Nothing to decide"
    return Page("approvals.html", title, data, "dawn ls --state waiting")


def open_questions(site: Site) -> list[Question]:
    """Of every run that has not ended: what asks has its marker."""
    marked = site.seen.marked()
    return cheapest([_kept(site, view) for view in site.seen.views(sorted(marked)).found if is_asking(view)])


def _kept(site: Site, view: View) -> Question:
    """A question stays as it is until its journal goes on, or somebody pauses the run."""
    name = ("question", view.task.run, view.run.last_hash, view.mail.paused_by)
    make: Callable[[], Question] = lambda: question(site.archive, view)  # noqa: E731
    return site.seen.answer(name, make, KEPT_S)


WAYS: Final = (Way("/approvals", approvals),)
