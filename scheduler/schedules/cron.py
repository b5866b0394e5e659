"""Owns when a schedule is due: cron fields on the clocks of a zone, as moments. Pure; the one door to cronsim, and
refuses to know the time.

As Debian's cron does it: a time that clocks skip is the first moment after them, one that they show twice is its
first; where minutes or hours begin with `*`, each hour that passes counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Final, Literal
from zoneinfo import ZoneInfo

from pydantic import field_validator

from worker.contract.frozen import Frozen, later
from worker.contract.zones import Zone

OFTEN_S: Final = 10
"""A schedule is due at most so often: each time writes a batch."""
LOOKED_AT: Final = 70
"""Due times that are looked at for that: more than a minute has with seconds."""
BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC)


class Schedule(Frozen):
    """cron: five fields, or six with seconds in front. overlap: where the batch before has not ended, a due one is
    left out (skip), waits for it (queue), or has it cancelled first (cancel_previous). missed: of due times at which
    no scheduler was there none is made up for (skip), the last (run_once), or all, the last ten at most (run_all).
    reuse: a run whose work was done before and verified ends at once, and names the run that did it; of a repository
    on a server of which no commit is named nothing is reused, because nobody knows it before it is fetched."""

    cron: str
    zone: Zone
    overlap: Literal["skip", "queue", "cancel_previous"] = "skip"
    missed: Literal["skip", "run_once", "run_all"] = "skip"
    reuse: bool = later(True)

    @field_validator("cron")
    @classmethod
    def _is_due(cls, cron: str) -> str:
        fields = cron.split()
        if len(fields) == 6 and not (fields[1].startswith("*") and fields[2].startswith("*")):
            raise ValueError("with seconds, minutes and hours must begin with *; leave the seconds out")
        found = list(islice(_due(cron, ZoneInfo("UTC"), BEGAN), LOOKED_AT))
        if not found:
            raise ValueError(f"{cron!r} is never due")
        if any(later - one < timedelta(seconds=OFTEN_S) for one, later in pairwise(found)):
            raise ValueError(f"{cron!r} is due more often than every {OFTEN_S} seconds")
        return cron

    def due_after(self, moment: datetime) -> Iterator[datetime]:
        """Each time it is due later than a moment, in order: UTC, whole seconds."""
        return _due(self.cron, ZoneInfo(self.zone), moment)


def _due(cron: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Raises ValueError for what are no cron fields."""
    from cronsim import CronSim, CronSimError

    try:
        times = CronSim(cron, after.astimezone(zone))
    except CronSimError as error:
        raise ValueError(f"{cron!r} is no cron schedule: {error}; write one like '30 1 * * *'") from None
    last = after
    for time in times:
        # Around a change of clocks it may name a moment again, or one before the start.
        if (moment := time.astimezone(UTC)) > last:
            yield moment
            last = moment
