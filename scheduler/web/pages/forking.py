"""Owns the page on which somebody goes on from a step of a run, and beginning that. Refuses a model that is a file of
this machine: whoever may read pages must not read files.
"""

from __future__ import annotations

import re
import secrets
import shlex
from dataclasses import dataclass
from typing import Final

from scheduler import control, enqueue
from scheduler.fork import Fork, Wish, fork
from scheduler.web.journals import runhead
from scheduler.web.journals.runhead import Head
from scheduler.web.page import Asked, Page, Way, Went, address
from scheduler.web.pages.changes import changed, run_of, then
from scheduler.web.site import Site
from worker.contract.errors import UsageFault
from worker.contract.fork import LAST
from worker.contract.model_name import ASKED, parse_model_name
from worker.contract.task import Task

KEY: Final = re.compile(r"[0-9a-f]{16,64}")
LIMIT: Final = re.compile(r"([a-z_]{1,40})=([0-9.]{1,20})")
"""Of a form: NAME=NUMBER, several between blanks."""


@dataclass(frozen=True)
class Forking:
    """step: where it would begin, None for the last. steps: how many there are. key: of this form, so that one which
    is sent twice makes one run. can_say: there is a model that reads a message."""

    head: Head
    step: int | None
    steps: int
    message: str
    model: str
    limits: str
    key: str
    can_say: bool


def page(site: Site, asked: Asked) -> Page:
    seen = runhead.look(site, asked)
    step = asked.number("step", LAST) if "step" in asked.query else LAST
    message = asked.query.get("message", "")
    data = Forking(
        head=seen.head,
        step=None if step == LAST else step,
        steps=seen.view.run.steps,
        message=message,
        model=seen.view.task.model,
        limits="",
        key=new_key(),
        can_say=seen.view.task.model != "none",
    )
    words = ["dawn", "fork", seen.head.run, *([] if step == LAST else ["--at", str(step)])]
    command = shlex.join([*words, "--message", message or "..."]) if data.can_say else shlex.join(words)
    return Page("fork.html", f"Go on from {seen.head.target}", data, command)


def new_key() -> str:
    return secrets.token_hex(8)


def begin(site: Site, asked: Asked) -> Went:
    view = run_of(site, asked)
    made = prepared(site, view.task, asked, asked.words("message"))
    start(site, made, asked)
    run = made.batch.tasks[0].run
    said = then(site, f"it goes on from step {made.step} of {view.task.run} as soon as a worker is free")
    return Went(address("/runs/{run}", run=run), "; ".join([*made.notes, said]))


def prepared(site: Site, task: Task, asked: Asked, message: str, step: int | None = None) -> Fork:
    """What a form asks for, and nothing is written. step: that, None for the form's own. Raises as fork;
    UsageFault."""
    told, model, key = (asked.form.get(name, "").strip() for name in ("step", "model", "key"))
    if told and not (told.isdecimal() and len(told) < 9):
        raise UsageFault(f"{told!r} is no step", hint="a number, or nothing for the last one")
    limits = {}
    for word in asked.form.get("limits", "").split():
        found = LIMIT.fullmatch(word)
        if found is None:
            raise UsageFault(f"{word!r} is no limit", hint="NAME=NUMBER, like steps=200")
        limits[found[1]] = float(found[2]) if "." in found[2] else int(found[2])
    other = model if model and model != task.model else None
    if other is not None and parse_model_name(other).provider not in ASKED:
        raise UsageFault(f"{other} cannot be chosen on a page", hint=f"dawn fork {task.run} --model {other}")
    wish = Wish(
        step=step if step is not None else int(told) if told else LAST,
        message=control.bounded(message),
        limits=limits,
        model=other,
        allowed=frozenset({"model"} if other is not None else ()),
    )
    return fork(site.archive, task.run, wish, key=key if KEY.fullmatch(key) else new_key())


def start(site: Site, made: Fork, asked: Asked) -> None:
    """Write it, or what of it is missing. Raises HintsFault before anything is written, StoreFault."""
    hints = site.hints()
    if hints is not None:
        control.admit(hints)
    enqueue.submit(made.batch, site.archive, by=asked.visitor.name, at=site.stamp())
    if hints is not None:
        control.announce(hints)


WAYS: Final = (Way("/runs/{run}/fork", page), Way("/runs/{run}/fork", changed(begin), changes=True))
