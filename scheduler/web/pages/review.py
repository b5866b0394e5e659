"""Owns reviewing patches: the queue across batches, one patch with its evidence, and a person's word on one or on a
group. Refuses a word on another patch than was shown, and one for many whose forms were not all opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, cast

from scheduler.deliveries import reviews
from scheduler.reports.measured import measured
from scheduler.runs import READERS, View, standing
from scheduler.web.journals import runhead
from scheduler.web.page import Asked, Page, Slice, Way, Went, address, cut
from scheduler.web.pages import diff, runs
from scheduler.web.pages.changes import AGAIN, DIGEST_CHARS, back, batch_of, changed, run_of, then
from scheduler.web.pages.diff import Diff
from scheduler.web.pages.forking import new_key, prepared, start
from scheduler.web.patches import groups
from scheduler.web.reviewing import Waiting, forget_reviews, queue, to_open, unopened, with_groups
from scheduler.web.site import Site
from worker.contract.delivered import Review, patch_of, review_state
from worker.contract.errors import ConflictFault, NotFoundFault, UsageFault
from worker.contract.fork import LAST
from worker.store.deliveries import read_reviews

ROWS: Final = 50
NAMED: Final = 8
"""Runs that one line of words names."""
WORDS_CHARS: Final = 20_000
Word = Literal["approved", "rejected"]


@dataclass(frozen=True)
class Queue:
    """batch: the only one it shows, "" for all. wanted: how many a delivery waits for."""

    rows: tuple[Waiting, ...]
    slice: Slice
    wanted: int
    batch: str


def listing(site: Site, asked: Asked) -> Page:
    batch = asked.query.get("batch", "")
    if batch:
        site.seen.members(batch)
    found = queue(site, batch)
    part = cut(len(found), asked, ROWS)
    rows = with_groups(site, found[part.start : part.stop])
    data = Queue(tuple(rows), part, sum(one.wanted for one in found), batch)
    title = f"{len(found)} to review" if found else "Nothing to review"
    return Page("review.html", title, data, "dawn ls --state changed")


@dataclass(frozen=True)
class Reviewed(Diff):
    """A patch with its evidence. asked: what the task is. evidence: what was measured, (heading, text). said: the
    agent's last words. contradicted: (claim, evidence). state: of the reviews. waits: what happens when it is
    approved. seen: how many reviews this page shows. previous, next: of the queue. alike: patches of its group; left:
    of those that must be opened, how many are not. forks: what goes on from it. can_ask: a model can be asked for
    changes."""

    run: str = ""
    batch: str = ""
    task: str = ""
    evidence: tuple[tuple[str, str], ...] = ()
    said: str = ""
    said_more: int = 0
    contradicted: tuple[tuple[str, str], ...] = ()
    reviews: tuple[Review, ...] = ()
    state: str = ""
    waits: str = ""
    seen: int = 0
    previous: str = ""
    next: str = ""
    place: int = 0
    total: int = 0
    alike: int = 0
    left: int = 0
    forks: tuple[str, ...] = ()
    can_ask: bool = False
    key: str = ""


def one(site: Site, asked: Asked) -> Page:
    shown = diff.diff(site, asked)
    base = cast(Diff, shown.data)
    view = runhead.look(site, asked).view
    task, run = view.task, view.run
    said = read_reviews(site.archive, task.run)
    waiting = queue(site)
    places = {row.run: at for at, row in enumerate(waiting)}
    at = places.get(task.run)
    words = run.finished.text.strip() if run.finished is not None else ""
    more: dict[str, Any] = {
        "run": task.run,
        "batch": task.batch,
        "task": task.prompt.strip() or "\n".join(task.commands),
        "evidence": _evidence(view),
        "said": words[:WORDS_CHARS],
        "said_more": max(0, len(words) - WORDS_CHARS),
        "contradicted": tuple((c.claim, c.evidence) for c in run.sealed.contradictions) if run.sealed else (),
        "reviews": tuple(said),
        "state": review_state(run, said) if base.patch else "",
        "waits": _waits(view),
        "seen": len(said),
        "previous": waiting[at - 1].run if at else "",
        "next": waiting[(-1 if at is None else at) + 1].run if len(waiting) > (-1 if at is None else at) + 1 else "",
        "place": 0 if at is None else at + 1,
        "total": len(waiting),
        "forks": tuple(runs.forks(site, task.run)),
        "can_ask": task.model != "none" and run.prepared is not None,
        "key": new_key(),
    }
    if base.patch and (group := groups.of_batch(site, task.batch).group_of(task.run)) is not None:
        opened = {*asked.opened, groups.opened_as(task.run, base.patch)}
        more |= {"alike": len(group.members), "left": len(unopened(group.to_open, opened))}
    data = Reviewed(**{field.name: getattr(base, field.name) for field in fields(Diff)}, **more)
    command = f"dawn review {task.run} --approve --patch {base.patch[:16]}" if base.patch else f"dawn show {task.run}"
    return replace(
        shown, template="review_run.html", title=f"Review {task.target}", data=data, command=command, tab=""
    )


def _evidence(view: View) -> tuple[tuple[str, str], ...]:
    verdict = view.run.verdict
    return tuple(pair for pair in measured(verdict) if pair[1]) if verdict is not None else ()


def _waits(view: View) -> str:
    deliver, after = view.task.deliver, view.after
    if deliver is None or deliver.kind == "patch" or after is None:
        return "Its task asks for no delivery: an approval is on record, and changes nothing else."
    if after.delivery.state != "none":
        return f"It was delivered already: {after.delivery.state}."
    if deliver.when == "approved":
        return (
            f"When it is approved, it is delivered as {'a pull request' if deliver.kind == 'pr' else deliver.kind}."
        )
    return f"Its task delivers what is {deliver.when}; an approval has it delivered too."


def decide(site: Site, asked: Asked) -> Went:
    """Approve, reject, or ask for changes: then a new run goes on from its last step with the comment."""
    view = run_of(site, asked)
    word, patch, seen = (asked.form.get(name, "") for name in ("decision", "patch", "seen"))
    if word not in ("approved", "rejected", "changes"):
        raise UsageFault("say approved, rejected or changes")
    if len(patch) != DIGEST_CHARS or not (seen.isdecimal() and len(seen) < 9):
        raise ConflictFault("this form does not say which patch it was about", hint=AGAIN)
    comment = asked.words("comment")
    made = None
    if word == "changes":
        if not comment:
            raise UsageFault("a wish for changes has words", hint="write what the model shall do")
        made = prepared(site, view.task, asked, comment, LAST)
    on = "" if made is None else made.batch.tasks[0].run
    reviews.review(
        site.archive,
        site.hints(),
        view.run,
        "approved" if word == "approved" else "rejected",
        by=asked.visitor.name,
        at=site.stamp(),
        comment=f"{comment}\n\nChanges were asked for: {on} goes on from here." if on else comment,
        patch=patch,
        seen=int(seen),
    )
    forget_reviews(site, [view.task.run])
    if made is not None:
        start(site, made, asked)
        return Went(address("/review/{run}", run=view.task.run), then(site, f"{on} goes on with what you said"))
    site.seen.expire()
    waiting = queue(site)
    to = address("/review/{run}", run=waiting[0].run) if waiting else address("/review")
    if (chosen := asked.form.get("next", "")) and any(chosen == one.run for one in waiting):
        to = address("/review/{run}", run=chosen)
    return Went(back(asked, to), f"{view.task.target}: {word}")


def decide_group(site: Site, asked: Asked) -> Went:
    """One word on all members that the page showed, each bound to the patch that it showed."""
    members = set(batch_of(site, asked))
    batch, word = asked.path["batch"], asked.form.get("decision", "")
    if word not in ("approved", "rejected"):
        raise UsageFault("say approved or rejected")
    shown = _shown(asked.form.get("member[]", ""))
    if stranger := next((run for run in shown if run not in members), None):
        raise NotFoundFault(f"batch {batch} has no run {stranger}")
    views = {view.task.run: view for view in standing(site.seen.batch(batch).found)}
    same = {run: views[run] for run, patch in shown.items() if run in views and patch_of(views[run].run) == patch}
    left_out = {run: _why_not(views.get(run)) for run in shown if run not in same}
    if not same:
        raise ConflictFault("none of these patches is what was shown", hint=AGAIN)
    needed = to_open(site, batch, asked.form.get("group", ""), same, same.values())
    if left := unopened(needed, asked.opened):
        raise ConflictFault(
            f"{len(left)} patch{'es' if len(left) != 1 else ''} must be opened before all of these are {word}: "
            f"{_named([one.target for one in left])}",
            hint="open them on the page of the groups, then decide",
        )
    comment = asked.words("comment")

    def say(run: str) -> str:
        """Why it is left out; "" where it was said, now or before."""
        before = read_reviews(site.archive, run)
        if before and before[-1].patch == shown[run]:
            return "" if before[-1].decision == word else f"was {before[-1].decision} by {before[-1].by}"
        try:
            reviews.review(
                site.archive,
                site.hints(),
                same[run].run,
                cast(Word, word),
                by=asked.visitor.name,
                at=site.stamp(),
                comment=comment,
                patch=shown[run],
                seen=len(before),
            )
        except ConflictFault as fault:
            return fault.message
        return ""

    with ThreadPoolExecutor(READERS) as pool:
        said = dict(zip(same, pool.map(say, same), strict=True))
    forget_reviews(site, same)
    left_out |= {run: why for run, why in said.items() if why}
    done = len(shown) - len(left_out)
    if not done:
        raise ConflictFault(f"none was {word}: {_told(left_out)}", hint=AGAIN)
    told = f"{done} {word}" + (f"; left out: {_told(left_out)}" if left_out else "")
    return Went(back(asked, address("/batches/{batch}/groups", batch=batch)), told)


def _shown(lines: str) -> dict[str, str]:
    """Run and digest of each member, as the page had them."""
    told: dict[str, str] = {}
    for line in lines.split("\n"):
        run, _, patch = line.partition(" ")
        if run and len(patch) == DIGEST_CHARS:
            told[run] = patch
        elif line:
            raise ConflictFault("this form does not say which patches it was about", hint=AGAIN)
    if not told:
        raise ConflictFault("this form names no patch", hint=AGAIN)
    return told


def _why_not(view: View | None) -> str:
    return "was repeated" if view is None else "has another patch now"


def _told(left_out: Mapping[str, str]) -> str:
    return _named([f"{run} ({why})" for run, why in left_out.items()])


def _named(words: Sequence[str]) -> str:
    more = f" and {len(words) - NAMED} more" if len(words) > NAMED else ""
    return ", ".join(words[:NAMED]) + more


WAYS: Final = (
    Way("/review", listing),
    Way("/review/{run}", one),
    Way("/runs/{run}/review", changed(decide), changes=True),
    Way("/batches/{batch}/review-group", changed(decide_group), changes=True),
)
