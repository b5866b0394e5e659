"""Owns what stands over each page of a run: what came of it in one sentence, and where its pages are. Refuses to
fold: it asks the index that is kept (reading.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from scheduler.reports.rows import duration, waits_for
from scheduler.runs import View
from scheduler.web.journals.reading import Read, view
from scheduler.web.page import Asked
from scheduler.web.site import Site
from worker.contract.errors import NotFoundFault
from worker.contract.run import Run
from worker.store import keys

CALL: Final = re.compile(r"\w{1,100}")


@dataclass(frozen=True)
class Head:
    """call: the one that this delegate answered, "" for the run itself. damage: what of the journal cannot be read,
    "" for nothing."""

    run: str
    call: str
    batch: str
    target: str
    place: str
    state: str
    verdict: str
    sentence: str
    damage: str

    @property
    def name(self) -> str:
        return f"{self.run}/delegates/{self.call}" if self.call else self.run


@dataclass(frozen=True)
class Seen:
    """A run's journal as it is shown."""

    head: Head
    read: Read
    view: View

    @property
    def follows(self) -> str:
        """What makes its pages old: nothing, once it has ended."""
        return "" if self.head.call or self.view.run.sealed is not None else f"run:{self.head.run}"


def look(site: Site, asked: Asked) -> Seen:
    """The run that an address names. Raises NotFoundFault, and as Journals.read."""
    run, call = asked.path["run"], asked.path.get("call", "")
    if keys.is_delegate(run) or (call and not CALL.fullmatch(call)):
        raise NotFoundFault(f"there is no run {run}", hint="see all batches")
    name = keys.delegate(run, call) if call else run
    read = site.seen.journals.read(name)
    seen = view(site.archive, read)
    return Seen(_head(seen, run, call, read.damage), read, seen)


def _head(seen: View, run: str, call: str, damage: str) -> Head:
    sealed = seen.run.sealed
    return Head(
        run=run,
        call=call,
        batch=seen.task.batch,
        target=seen.task.target,
        place=seen.place,
        state="damaged" if damage else seen.state,
        verdict=(sealed.verdict if sealed is not None else None) or "",
        sentence=_sentence(seen, damage),
        damage=damage,
    )


def _sentence(seen: View, damage: str) -> str:
    """`Changed 2 files, +10 -3, and every check is green; 12 steps, 3 min 5 s, $0.12.`"""
    run, sealed = seen.run, seen.run.sealed
    spent = f"{run.steps} step{'' if run.steps == 1 else 's'}, {duration(run.working_s)}, {run.cost_text}"
    if damage:
        return f"Its journal is damaged behind step {run.steps}; what stands before that is shown."
    if sealed is None:
        waits = waits_for(seen, {})
        return f"{seen.state.capitalize()}{': ' + waits if waits else ''}; {spent} so far."
    if sealed.reused:
        return f"The same work was done and verified by {sealed.reused}; nothing was spent."
    if sealed.failure is not None:
        return f"Failed, {sealed.failure}: {sealed.failure.detail or 'nothing more is known'}; {spent}."
    told = {"changed": _changed(run), "no_change": "Changed nothing"}.get(sealed.outcome, sealed.outcome.capitalize())
    detail = f" ({sealed.detail})" if sealed.detail else ""
    return f"{told}{detail}{_MEASURED.get(sealed.verdict or '', '')}; {spent}."


_MEASURED: Final = {
    "verified": ", and every check is green",
    "unverified": ", and no check was given",
    "still_failing": ", and checks are as red as before",
    "broke": ", and broke checks that were green",
    "flaky": ", and its checks do not end the same way twice",
}


def _changed(run: Run) -> str:
    patch = run.verdict.patch if run.verdict is not None else None
    if patch is None:
        return "Changed"
    return f"Changed {len(patch.files)} file{'s' if len(patch.files) != 1 else ''}, +{patch.added} -{patch.removed}"
