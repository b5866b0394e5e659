"""Owns the page of all questions to people, and one answer to all runs that ask exactly the same. Refuses to answer
one about anything else than the page showed of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Final, cast

from scheduler.approvals import Answer as Given
from scheduler.approvals import answer
from scheduler.control import bounded
from scheduler.runs import READERS, View
from scheduler.web.page import Answer, Asked, Page, Slice, Way, Went, cut
from scheduler.web.pages.changes import AGAIN, DIGEST_CHARS, back, changed, then
from scheduler.web.questions import Question, cheapest, is_asking, question
from scheduler.web.site import Site
from worker.contract.errors import ConflictFault, Fault, StoreFault, UsageFault
from worker.contract.events import read_json
from worker.store import keys

CARDS: Final = 25
"""Of one page: each is read before it is decided on."""
AT_ONCE: Final = 200
"""Runs that one form answers. With a reason of 20,000 characters of three bytes each, which are nine in a form, a run
has 400 of the bytes that a form may have (door/guard.py); it needs about 200."""
KEPT_S: Final = 3_600.0


@dataclass(frozen=True)
class Asker:
    """A run of a card, as its question has it."""

    run: str
    batch: str
    target: str
    place: str
    repo: str
    folder: str
    image: str
    call: str
    binding: str
    since: str
    until: str
    paused: bool
    commands: tuple[str, ...]

    @property
    def shown(self) -> str:
        """What a form carries of it: on which call of which run an answer is meant, and its digest."""
        return json.dumps([self.run, self.call, self.binding])


@dataclass(frozen=True)
class Card:
    """What one or more runs ask. question: of the one that waits longest; its context is its own. runs: all that its
    form answers, that one first. more: runs that ask the same, and have no place in the form."""

    question: Question
    runs: tuple[Asker, ...]
    more: int

    @property
    def commands(self) -> list[str]:
        """What a person types to decide: each a line for each run."""
        return ["\n".join(lines) for lines in zip(*(one.commands for one in self.runs), strict=True)]


@dataclass(frozen=True)
class Approvals:
    """cards: those of this page, the cheapest decision first. total: runs that ask."""

    cards: tuple[Card, ...]
    slice: Slice
    total: int
    batches: int


@dataclass(frozen=True)
class Answered:
    """What came of one answer to many. not_answered: run -> why not."""

    decision: str
    answered: int
    meant: int
    not_answered: dict[str, str]


def approvals(site: Site, asked: Asked) -> Page:
    found = open_questions(site)
    alike: dict[str, list[Question]] = {}
    for one in found:
        alike.setdefault(one.same or f"alone {one.run}", []).append(one)
    every = list(alike.values())
    part = cut(len(every), asked, CARDS)
    cards = tuple(_card(these) for these in every[part.start : part.stop])
    data = Approvals(cards, part, len(found), len({one.batch for one in found}))
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


def _card(these: list[Question]) -> Card:
    runs = (Asker(**{field.name: getattr(one, field.name) for field in fields(Asker)}) for one in these[:AT_ONCE])
    return Card(these[0], tuple(runs), max(0, len(these) - AT_ONCE))


def decide(site: Site, asked: Asked) -> Answer:
    """One word on all runs of a card, each bound to the call that the card showed; whatever keeps one from being
    answered, the others are, and it is named."""
    word = asked.form.get("decision", "")
    if word not in ("approved", "denied"):
        raise UsageFault("say approved or denied")
    shown = _shown(asked.form.get("member[]", ""))
    reason = bounded(asked.words("reason")) if word == "denied" else ""
    hints, by, given = site.hints(), asked.visitor.name, cast(Given, word)

    def say(run: str) -> str:
        """Why it is not answered, "" where it is."""
        call, binding = shown[run]
        if keys.is_delegate(run):
            return "there is no such run"
        try:
            answer(site.archive, hints, run, given, by=by, at=site.stamp(), call=call, binding=binding, reason=reason)
        except StoreFault as fault:
            return f"{fault.message}; it may have been stored all the same"
        except Fault as fault:
            return fault.message
        return ""

    with ThreadPoolExecutor(READERS) as pool:
        said = dict(zip(shown, pool.map(say, shown), strict=True))
    left_out = {run: why for run, why in said.items() if why}
    done = len(shown) - len(left_out)
    if left_out:
        told = Answered(word, done, len(shown), left_out)
        return Page("answered.html", f"{done} of {len(shown)} {word}", told, status=200 if done else 409)
    does = "each goes on with it" if word == "approved" else "each goes on with it, or ends where it has no model"
    return Went(back(asked, "/approvals"), f"{done} {word}: {then(site, does)}")


def _shown(lines: str) -> dict[str, tuple[str, str]]:
    """By run the call and its digest, as the page had them."""
    told: dict[str, tuple[str, str]] = {}
    for line in filter(None, lines.split("\n")):
        try:
            run, call, binding = (str(one) for one in read_json(line.encode()))
        except (ValueError, TypeError):
            run = call = binding = ""
        if not run or not call or len(binding) != DIGEST_CHARS or run in told:
            raise ConflictFault("this form does not say which calls it was about", hint=AGAIN)
        told[run] = call, binding
    if not told:
        raise ConflictFault("this form names no run", hint=AGAIN)
    if len(told) > AT_ONCE:
        raise UsageFault(f"one form answers {AT_ONCE} runs, and this one names {len(told)}", hint=AGAIN)
    return told


WAYS: Final = (Way("/approvals", approvals), Way("/approvals/decide", changed(decide), changes=True))
