"""Owns what a page may use: the archive as it was read, the deployment around it where there is one, and its access.
Refuses to hold what a visitor did: all that is stored is in the archive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from scheduler.web.door.access import Access
from scheduler.web.door.news import News
from scheduler.web.seen import Seen
from worker.store.archive import Archive

if TYPE_CHECKING:
    from worker.contract.settings import Settings
    from worker.store.hints import Hints


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Site:
    """settings: of the deployment whose pages these are, None where an archive is read alone: then nothing can be
    decided. hints: gives its Redis, None where no stack runs at this moment: what is decided is found in the
    archive when one starts. news: who listens for changes."""

    archive: Archive
    seen: Seen
    access: Access
    settings: Settings | None = None
    hints: Callable[[], Hints | None] = lambda: None
    now: Callable[[], datetime] = utc_now
    news: News = field(default_factory=News)

    @property
    def decides(self) -> bool:
        """Whether anything can be decided here at all."""
        return self.settings is not None

    def stamp(self) -> str:
        """Now, as the archive writes times: UTC, ISO 8601 with milliseconds."""
        return self.now().isoformat(timespec="milliseconds")
