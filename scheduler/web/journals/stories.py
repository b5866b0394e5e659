"""Owns reading what a batch's runs tell of time (timeline.py), and keeping what can no longer change. Refuses to read
more runs than a page can show.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scheduler.runs import each
from scheduler.web.headline import KEPT_S
from scheduler.web.journals.timeline import Story, story
from scheduler.web.site import Site
from worker.contract.errors import IntegrityFault, NotFoundFault, VersionFault
from worker.store.journal import Journal
from worker.store.members import Member, members
from worker.store.skim import skimmed

RUNS_READ: Final = 1_000
FRESH_S: Final = 2.0


@dataclass(frozen=True)
class Stories:
    """left: runs that were not read, since there are too many. unread: those that cannot be."""

    told: tuple[Story, ...]
    left: int = 0
    unread: int = 0

    @property
    def notes(self) -> list[str]:
        """What a picture of them has to say of itself."""
        more = [f"of the first {len(self.told):,} runs; {self.left:,} more are not looked at"] if self.left else []
        return more + ([f"{self.unread:,} runs cannot be read"] if self.unread else [])


def stories(site: Site, batch: str) -> Stories:
    """Of the first RUNS_READ runs of a batch, in its order. Raises NotFoundFault, IntegrityFault, StoreFault."""
    return site.seen.answer(("stories", batch), lambda: _read(site, batch), FRESH_S)


def _read(site: Site, batch: str) -> Stories:
    kept: dict[str, Story] = site.seen.answer(("sealed stories", batch), dict, KEPT_S)
    named = members(site.archive, batch)

    def read(member: Member) -> Story | None:
        if (known := kept.get(member.run)) is not None:
            return known
        try:
            records = (record for record, _ in Journal(site.archive, member.run).read(parse=skimmed))
            made = story(member.run, member.target, records)
        except (NotFoundFault, IntegrityFault, VersionFault):
            return None
        if made.sealed:
            kept[member.run] = made
        return made

    found = each(site.archive, read, named[:RUNS_READ])
    told = tuple(one for one in found if one is not None)
    return Stories(told, max(0, len(named) - RUNS_READ), len(found) - len(told))
