"""Owns the first page: what happened last night, what needs a person, what goes on, what comes next. Refuses to
decide anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scheduler.reports.board import Board
from scheduler.runs import UNREADABLE, Listed
from scheduler.web import headline, now
from scheduler.web.headline import Head
from scheduler.web.now import Need
from scheduler.web.page import Asked, Page, Way
from scheduler.web.pages.schedules import Planned, planned
from scheduler.web.site import Site
from worker.contract.errors import NotFoundFault

NEWEST: Final = 10
NEEDS_SHOWN: Final = 12
NEXT_SHOWN: Final = 5


@dataclass(frozen=True)
class Recent:
    """A batch of the list. head: None for one that cannot be read; why says so."""

    batch: str
    at: str
    head: Head | None
    why: str = ""


@dataclass(frozen=True)
class Home:
    """last: the newest batch that has ended, None for none. waiting: by kind, how many runs wait for a person. needs:
    the cheapest decision first, needs_left more of them are not shown. running: of batches with open runs; left_out:
    of these the ones that were not looked at. next: of schedules, the next first. holds: of accounts, seconds left;
    None where no stack runs. recent: the newest first."""

    archive: str
    last: Recent | None
    waiting: dict[str, int]
    needs: tuple[Need, ...]
    needs_left: int
    running: tuple[Board, ...]
    left_out: tuple[str, ...]
    next: tuple[Planned, ...]
    holds: dict[str, float] | None
    recent: tuple[Recent, ...]
    decides: bool


def home(site: Site, asked: Asked) -> Page:
    newest = [_recent(site, one) for one in site.seen.batches()[: -NEWEST - 1 : -1]]
    standing = now.standing(site)
    going_on = {*(board.batch for board in standing.boards), *standing.left_out}
    ended = next((one for one in newest if one.head is not None and one.batch not in going_on), None)
    waiting: dict[str, int] = {}
    for need in standing.needs:
        waiting[need.kind] = waiting.get(need.kind, 0) + need.count
    coming = sorted((one for one in planned(site) if one.next), key=lambda one: one.next[0].utc)
    data = Home(
        archive=site.archive.url,
        last=ended,
        waiting=waiting,
        needs=standing.needs[:NEEDS_SHOWN],
        needs_left=max(0, len(standing.needs) - NEEDS_SHOWN),
        running=standing.boards,
        left_out=standing.left_out,
        next=tuple(coming[:NEXT_SHOWN]),
        holds=now.holds(site),
        recent=tuple(newest),
        decides=site.decides,
    )
    return Page("home.html", "Home", data, "dawn status", follows="all")


def _recent(site: Site, listed: Listed) -> Recent:
    try:
        return Recent(listed.batch, listed.at, headline.head(site, listed.batch))
    except (NotFoundFault, *UNREADABLE) as fault:
        return Recent(listed.batch, listed.at, None, fault.message)


WAYS: Final = (Way("/", home),)
