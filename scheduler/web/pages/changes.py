"""Owns what people change on pages of runs and batches: each handler reads a form, does one deed of the control
plane, and says what came of it. Refuses to hold a deed itself, and to decide on anything else than its page showed.
"""

from __future__ import annotations

from typing import Final

from scheduler import approvals, budget, control, retry
from scheduler.approvals import Answer as Given
from scheduler.reports.fingerprints import failed, fingerprint
from scheduler.runs import Found, View, standing
from scheduler.selection import Selection
from scheduler.web.page import Answer, Asked, Handler, Way, Went, address, is_ours
from scheduler.web.site import Site
from worker.contract.errors import ConflictFault, NotFoundFault, UsageFault
from worker.contract.events import MessageKind
from worker.contract.task import budget_microusd
from worker.store import keys
from worker.store.inbox import Control

DIGEST_CHARS: Final = 64
AGAIN: Final = "load the page again, look, and decide then"
LATER: Final = "no stack is running; when one starts, "


def changed(handler: Handler) -> Handler:
    """A handler after which everything is looked at again: whoever decided shall see it."""

    def handled(site: Site, asked: Asked) -> Answer:
        try:
            return handler(site, asked)
        finally:
            site.seen.expire()

    return handled


def back(asked: Asked, to: str) -> str:
    """The page that the form was on, where it says so; only ever one of ours."""
    said = asked.form.get("to", "")
    return said if is_ours(said) else to


def then(site: Site, told: str) -> str:
    """What comes of it, as far as it can come now."""
    return told if site.hints() is not None else LATER + told


def run_of(site: Site, asked: Asked) -> View:
    """The run that the address names, as it is now. Raises NotFoundFault."""
    run = asked.path["run"]
    if keys.is_delegate(run):
        raise NotFoundFault(f"there is no run {run}")
    site.seen.expire()
    return site.seen.view(run)


def batch_of(site: Site, asked: Asked) -> list[str]:
    """The runs of the batch that the address names. Raises NotFoundFault."""
    site.seen.expire()
    return site.seen.members(asked.path["batch"])


def _answer(given: Given) -> Handler:
    def answer(site: Site, asked: Asked) -> Went:
        view = run_of(site, asked)
        call, binding = asked.form.get("call", ""), asked.form.get("binding", "")
        if not call or len(binding) != DIGEST_CHARS:
            raise ConflictFault("this form does not say which call it was about", hint=AGAIN)
        words = asked.words("reason")
        if given == "answered" and not words:
            raise UsageFault("an answer has words", hint="write one; or decline to answer")
        made = approvals.answer(
            site.archive,
            site.hints(),
            view.task.run,
            given,
            by=asked.visitor.name,
            at=site.stamp(),
            call=call,
            binding=binding,
            reason="" if given == "approved" else words,
        )
        does = "ends with it" if given == "denied" and view.task.model == "none" else "goes on with it"
        said = then(site, f"{view.task.run} {does}")
        return Went(back(asked, "/approvals"), f"{made.call} {made.decision}: {said}")

    return changed(answer)


def _steer(site: Site, asked: Asked) -> Went:
    view = run_of(site, asked)
    words = asked.words("message")
    if not words:
        raise UsageFault("a message has words", hint="write what the model shall read")
    seen = asked.form.get("unseen", "")
    control.steer(
        site.archive,
        site.hints(),
        view.task.run,
        words,
        by=asked.visitor.name,
        at=site.stamp(),
        unseen=int(seen) if seen.isdecimal() and len(seen) < 9 else None,
    )
    return Went(
        back(asked, address("/runs/{run}", run=view.task.run)), then(site, "the model reads it before its next step")
    )


SAID: Final[dict[MessageKind, str]] = {
    "cancel": "what runs is stopped within seconds, and what it has done is kept",
    "pause": "it waits from its next call on",
    "unpause": "it goes on as soon as a worker is free",
}


def _switch_run(kind: MessageKind) -> Handler:
    def switch(site: Site, asked: Asked) -> Went:
        view = run_of(site, asked)
        run, to = view.task.run, back(asked, address("/runs/{run}", run=view.task.run))
        if view.run.sealed is None and (said := _is_so(view, kind)):
            return Went(to, said)
        if not control.switch(
            site.archive, site.hints(), [Found("run", run)], kind, by=asked.visitor.name, at=site.stamp()
        ):
            raise ConflictFault(f"run {run} has ended", hint="nothing is left to stop")
        return Went(to, then(site, SAID[kind]))

    return changed(switch)


def _is_so(view: View, kind: MessageKind) -> str:
    """Says that the run was told so already: a form that is sent twice says nothing new."""
    if kind == "cancel" and view.mail.cancel is not None:
        return f"it was cancelled by {view.mail.cancel.by} already"
    paused_by = view.mail.paused_by
    if kind == "pause" and paused_by:
        return f"it was paused by {paused_by} already"
    if kind == "unpause" and not paused_by:
        return "it is not paused"
    return ""


def _switch_batch(kind: MessageKind) -> Handler:
    def switch(site: Site, asked: Asked) -> Went:
        batch_of(site, asked)
        batch = asked.path["batch"]
        to = back(asked, address("/batches/{batch}", batch=batch))
        last = next((one for one in reversed(Control(site.archive, batch).read()) if one.kind in SAID), None)
        if last is not None and last.kind == kind and control.open_runs(site.archive, Found("batch", batch)):
            return Went(to, f"{last.by} said so already")
        if not control.switch(
            site.archive, site.hints(), [Found("batch", batch)], kind, by=asked.visitor.name, at=site.stamp()
        ):
            raise ConflictFault(f"batch {batch} has ended", hint="nothing is left to stop")
        return Went(to, then(site, SAID[kind]))

    return changed(switch)


def _budget(site: Site, asked: Asked) -> Went:
    batch_of(site, asked)
    batch, usd = asked.path["batch"], asked.form.get("usd", "").strip().removeprefix("$")
    to = back(asked, address("/batches/{batch}/spend", batch=batch))
    told = [one for one in Control(site.archive, batch).read() if one.kind == "budget"]
    if told and budget_microusd(told[-1].text) == budget_microusd(usd) is not None:
        return Went(to, f"{told[-1].by} said so already")
    made = budget.allow(site.archive, site.hints(), batch, usd, by=asked.visitor.name, at=site.stamp())
    if made.spending is not None and made.spending.used_up:
        return Went(to, f"the batch may spend {made.text} in all; {made.spending.text} already, so nothing goes on")
    return Went(to, f"the batch may spend {made.text} in all; " + then(site, "what waits for it goes on"))


def _retry(site: Site, asked: Asked) -> Went:
    """Of the batch: the runs that are named, those of a class, those that failed alike, or all that failed."""
    members = batch_of(site, asked)
    batch, shown = asked.path["batch"], asked.form.get("runs", "")
    if shown and shown != str(len(members)):
        raise ConflictFault("this batch has other runs now: somebody retried some", hint=AGAIN)
    named = [run for run in asked.form.get("run[]", "").split("\n") if run]
    if stranger := next((run for run in named if run not in members), None):
        raise NotFoundFault(f"batch {batch} has no run {stranger}")
    current = {view.task.run: view for view in standing(site.seen.batch(batch).found)}
    if print := asked.form.get("fingerprint", ""):
        named = [run for run, view in current.items() if failed(view.run) and fingerprint(view.run) == print]
        if not named:
            raise ConflictFault("no run failed like that any more", hint=AGAIN)
    if again := next((run for run in named if run not in current), None):
        raise ConflictFault(f"run {again} was repeated already", hint=AGAIN)
    classes = tuple(word for word in asked.form.get("class[]", "").split("\n") if word)
    made = retry.again(
        site.archive,
        site.hints(),
        named or [batch],
        Selection(classes=() if named else classes),
        by=asked.visitor.name,
        at=site.stamp(),
    )
    runs = [member.run for new in made.values() for member in new]
    said = f"{len(runs)} new run{'s' if len(runs) != 1 else ''}; " + then(site, "they start as workers are free")
    return Went(back(asked, address("/batches/{batch}", batch=batch)), said)


WAYS: Final = (
    Way("/runs/{run}/approve", _answer("approved"), changes=True),
    Way("/runs/{run}/deny", _answer("denied"), changes=True),
    Way("/runs/{run}/answer", _answer("answered"), changes=True),
    Way("/runs/{run}/steer", changed(_steer), changes=True),
    Way("/runs/{run}/cancel", _switch_run("cancel"), changes=True),
    Way("/runs/{run}/pause", _switch_run("pause"), changes=True),
    Way("/runs/{run}/unpause", _switch_run("unpause"), changes=True),
    Way("/batches/{batch}/cancel", _switch_batch("cancel"), changes=True),
    Way("/batches/{batch}/pause", _switch_batch("pause"), changes=True),
    Way("/batches/{batch}/unpause", _switch_batch("unpause"), changes=True),
    Way("/batches/{batch}/budget", changed(_budget), changes=True),
    Way("/batches/{batch}/retry", changed(_retry), changes=True),
)
