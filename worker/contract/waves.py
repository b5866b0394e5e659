"""Owns the words for how a batch begins: a few of its runs first, and no more of them once too many have failed.
Pure; refuses to count runs (scheduler/planning/ended.py does).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field

from worker.contract.frozen import Frozen

WEIGHT_MAX: Final = 100
WAVES_MAX: Final = 20
SHARE: Final = re.compile(r"100%|[1-9][0-9]?%")


def _size(size: int | str) -> int | str:
    if size == "rest" or (size >= 1 if isinstance(size, int) else SHARE.fullmatch(size)):
        return size
    raise ValueError("must be a number of targets, a share of all like 25%, or rest")


Size = Annotated[int | str, AfterValidator(_size)]
"""Of a wave: targets, a share of all of them, rounded up, or all that are left."""


def _to_the_end(sizes: tuple[int | str, ...]) -> tuple[int | str, ...]:
    if "rest" in sizes[:-1]:
        raise ValueError("rest takes all that are left, so it comes last")
    return sizes if sizes[-1] == "rest" else (*sizes, "rest")


Sizes = Annotated[tuple[Size, ...], Field(min_length=1, max_length=WAVES_MAX), AfterValidator(_to_the_end)]
USUAL: Final = (3, "25%", "rest")
"""Enough to see that a task is asked wrongly, then enough to see how often it fails: a quarter is what rolling
updates commonly change at once (Kubernetes)."""


def _usual(value: Any) -> Any:
    return {True: USUAL, False: None}.get(value, value) if isinstance(value, bool) else value


Waves = Annotated[Sizes | None, BeforeValidator(_usual, json_schema_input_type=Sizes | bool | None)]
"""`true` for the usual ones; None, and `false`, to begin with all at once."""


class Breaker(Frozen):
    """Nothing more of a batch is begun once at least `min_runs` of its targets have ended and this share of them or
    more has failed. The defaults are ours, between a night that ends by two failures and one that fails whole;
    that the rate itself counts, and only from a number on, is how circuit breakers are commonly built (resilience4j).
    """

    failure_rate: Annotated[float, Field(gt=0, le=1)] = 0.3
    min_runs: Annotated[int, Field(ge=1)] = 5

    def tripped(self, ended: int, failed: int) -> bool:
        """Whether it is, after so many targets have ended and so many of these failed."""
        return ended >= self.min_runs and failed >= self.failure_rate * ended


def wave_of(sizes: tuple[int | str, ...] | None, position: int, targets: int) -> int:
    """Number, from 1, of the wave that a target belongs to. position: its place among all targets, from 0."""
    end = 0
    for number, size in enumerate(sizes or ("rest",), start=1):
        if isinstance(size, int):
            end += size
        else:
            end += targets if size == "rest" else -(-targets * int(size[:-1]) // 100)
        if position < end:
            return number
    return len(sizes or ("rest",))
