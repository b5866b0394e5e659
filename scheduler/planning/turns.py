"""Owns whose turn it is where many want slots: weighted deficit round robin, counted in seconds of slots. Pure;
refuses to know what wants them (plan.py does).

Each share (a batch, or a person) has an account of the seconds that its runs held slots, divided by its weight.
Whoever wants a slot and is the furthest behind gets the next. Who wants none is brought up to whoever is furthest
behind of those that do, and so is a newcomer: nobody saves up, and nobody who waits is passed by one that slept.
Where nobody wants anything there is nothing to remember.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

START_S: Final = 60.0
"""What a run counts from its start on, beside the time that it holds its slot: so many slots that become free
together are shared too, and slots are held in the ratio of the weights, not only used so over time."""
PASSED_MAX: Final = 20
"""So many slots in a row go to those who go first, while others wait for one (plan: nobody starves)."""


@dataclass(frozen=True)
class Turns:
    """served: share -> seconds of slots by its weight, above those of whoever is the furthest behind. passed: slots
    in a row that others, who go first, took while somebody here waited for one."""

    served: Mapping[str, float] = field(default_factory=dict)
    passed: int = 0

    def after(
        self, seconds: float, using: Mapping[str, float], wanting: Collection[str], passed: int | None = None
    ) -> Turns:
        """So much later. using: share -> slots that it held meanwhile, by its weight. wanting: who could have used
        one more. passed: what is added to it, None where nobody waits."""
        if not wanting:
            return Turns()
        floor = min(self.served.get(share, 0.0) for share in wanting)
        return Turns(
            {
                share: max(self.served.get(share, 0.0) - floor, 0.0) + seconds * using.get(share, 0.0)
                for share in sorted({*using, *wanting})
            },
            0 if passed is None else min(PASSED_MAX, max(0, self.passed + passed)),
        )

    def behind(self, share: str, using: float) -> float:
        """The less, the sooner it is its turn. using: slots that it holds now, by its weight."""
        return self.served.get(share, 0.0) + START_S * using
