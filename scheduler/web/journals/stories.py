"""Owns which of a batch's runs are shown in time (timeline.py). Refuses to show more runs than a page can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scheduler.web.journals.timeline import Story
from scheduler.web.site import Site

RUNS_SHOWN: Final = 1_000


@dataclass(frozen=True)
class Stories:
    """left: runs that are not shown, since there are too many. unread: those that cannot be read."""

    told: tuple[Story, ...]
    left: int = 0
    unread: int = 0

    @property
    def notes(self) -> list[str]:
        """What a picture of them has to say of itself."""
        more = [f"of the first {len(self.told):,} runs; {self.left:,} more are not looked at"] if self.left else []
        return more + ([f"{self.unread:,} runs cannot be read"] if self.unread else [])


def stories(site: Site, batch: str) -> Stories:
    """Of the first RUNS_SHOWN runs of a batch, in its order. Raises NotFoundFault, IntegrityFault, StoreFault."""
    named = site.seen.members(batch)
    told = site.seen.stories(batch, RUNS_SHOWN)
    return Stories(tuple(told), max(0, len(named) - RUNS_SHOWN), min(len(named), RUNS_SHOWN) - len(told))
