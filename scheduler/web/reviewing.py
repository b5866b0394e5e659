"""Owns which patches wait for a person, and what must have been opened before several are decided at once. Refuses to
decide, and to take a form's word for what its sender has seen.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from scheduler.runs import BATCHES_SHOWN, READERS, UNREADABLE, VERDICTS, View, Views, standing
from scheduler.web.patches import groups
from scheduler.web.patches.groups import Member, gathered, grouped, opened_as
from scheduler.web.site import Site
from worker.contract.delivered import Review, patch_of, review_state
from worker.contract.errors import NotFoundFault
from worker.store.deliveries import read_reviews

FRESH_S: Final = 60.0
"""For how long the queue takes a patch as not reviewed; a word that is said here counts at once, and the page of a
patch looks for itself."""
KEPT_S: Final = 86_400.0
KEPT_MAX: Final = 20_000
RUNS_MAX: Final = 5_000
"""Whose reviews are looked for, the newest batches first."""
GROUPED_MAX: Final = 1_000
"""Patches of a batch that are compared for the queue; its own page compares more."""


@dataclass(frozen=True)
class Waiting:
    """A patch that waits for a person. wanted: its task delivers what is approved, so that nothing happens before.
    contradicted: claims of its agent that the evidence speaks against. alike: patches of its group, itself included,
    0 for none; group: that group's id."""

    run: str
    batch: str
    target: str
    place: str
    verdict: str
    wanted: bool
    stale: bool
    guards: int
    contradicted: int
    files: int
    added: int
    removed: int
    left_out: int
    ended_at: str
    patch: str
    alike: int = 0
    group: str = ""


def queue(site: Site, batch: str = "") -> list[Waiting]:
    """What waits for a review: what a delivery waits for first, then the newest batches; of one batch the best
    verdict first, then the least to read. batch: only its runs, "" for those of recent and open ones."""
    names = [batch] if batch else _recent(site)
    found: list[Waiting] = []
    left = RUNS_MAX
    for place, name in enumerate(names):
        try:
            views = [view for view in standing(_first(site, name).found) if _may_wait(view)][:left]
        except (NotFoundFault, *UNREADABLE):  # its list of runs says so on its own page
            continue
        left -= len(views)
        found += sorted(_unreviewed(site, views), key=lambda one: _order(one, place))
    return sorted(found, key=lambda one: not one.wanted)


def _first(site: Site, batch: str) -> Views:
    """Of a batch that names more runs than are looked for, the first ones."""
    return site.seen.views(site.seen.members(batch)[:RUNS_MAX])


def with_groups(site: Site, rows: Sequence[Waiting]) -> list[Waiting]:
    """The same rows, each with its group where its batch is not too large to be compared for a list."""
    known = {}
    for batch in {one.batch for one in rows}:
        if len(site.seen.members(batch)) <= GROUPED_MAX:
            known[batch] = groups.of_batch(site, batch)
    told = []
    for one in rows:
        group = known[one.batch].group_of(one.run) if one.batch in known else None
        told.append(one if group is None else replace(one, alike=len(group.members), group=group.id))
    return told


def reviews_of(site: Site, run: str) -> list[Review]:
    """As the queue knows them. Raises StoreFault, IntegrityFault."""
    known = _known(site)
    kept = known.get(run)
    if kept is None or time.monotonic() >= kept[0]:
        if len(known) > KEPT_MAX:
            known.clear()
        kept = known[run] = time.monotonic() + FRESH_S, read_reviews(site.archive, run)
    return kept[1]


def forget_reviews(site: Site, runs: Iterable[str]) -> None:
    """Somebody has just said something of these."""
    for run in runs:
        _known(site).pop(run, None)


def _known(site: Site) -> dict[str, tuple[float, list[Review]]]:
    """By run, until when, the reviews that were read. One answer, so that a long queue drives out no other."""
    return site.seen.answer("reviews", dict, KEPT_S)


def to_open(site: Site, batch: str, group: str, meant: Collection[str], views: Iterable[View]) -> list[Member]:
    """Of which runs the patches must have been opened before all that are meant are decided on at once: one of each
    form. group: the id that its page showed; where the group is another one now, forms are found anew among the runs
    that are meant. views: theirs."""
    shown = groups.of_batch(site, batch).group(group)
    if shown is not None and set(meant) <= {one.run for one in shown.members}:
        return list(shown.to_open)
    found = grouped(gathered(site.archive, views))
    return [*(one.member for one in found.alone), *(one for each in found.groups for one in each.to_open)]


def unopened(needed: Iterable[Member], opened: Collection[str]) -> list[Member]:
    """Those that this visitor has not opened."""
    return [one for one in needed if opened_as(one.run, one.patch) not in opened]


def _recent(site: Site) -> list[str]:
    """The newest batches and the open ones, newest first."""
    known, still_open = site.seen.batches()[::-1], site.seen.open_batches()
    return [one.batch for place, one in enumerate(known) if place < BATCHES_SHOWN or one.batch in still_open]


def _may_wait(view: View) -> bool:
    """What reached a forge is reviewed there."""
    sealed, after = view.run.sealed, view.after
    if sealed is None or sealed.outcome != "changed" or patch_of(view.run) is None:
        return False
    return after is None or (after.review in ("pending", "stale") and after.delivery.state == "none")


def _unreviewed(site: Site, views: Sequence[View]) -> list[Waiting]:
    with ThreadPoolExecutor(READERS) as pool:
        said = list(pool.map(lambda view: _said(site, view), views))
    return [_row(view, state) for view, state in zip(views, said, strict=True) if state in ("pending", "stale")]


def _said(site: Site, view: View) -> str:
    if view.after is not None:
        return view.after.review
    return review_state(view.run, reviews_of(site, view.task.run))


def _row(view: View, state: str) -> Waiting:
    task, run = view.task, view.run
    assert run.sealed is not None, "_may_wait says so"
    verdict, patch = run.verdict, patch_of(run)
    return Waiting(
        run=task.run,
        batch=task.batch,
        target=task.target,
        place=view.place,
        verdict=run.sealed.verdict or "",
        wanted=view.awaits_review,
        stale=state == "stale",
        guards=len(verdict.guards) if verdict else 0,
        contradicted=len(run.sealed.contradictions),
        files=len(verdict.patch.files) if verdict else 0,
        added=verdict.patch.added if verdict else 0,
        removed=verdict.patch.removed if verdict else 0,
        left_out=len(verdict.patch.left_out) if verdict else 0,
        ended_at=run.updated_at,
        patch=patch or "",
    )


def _order(one: Waiting, place: int) -> tuple[int, int, int, str, str]:
    rank = VERDICTS.index(one.verdict) if one.verdict in VERDICTS else len(VERDICTS)
    return place, rank, one.added + one.removed, one.target, one.run
