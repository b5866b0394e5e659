"""Owns the weather over a deployment: what goes wrong in one history, and when. Refuses to make it happen (gates.py
and world.py do).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from simulation import Trap

T = TypeVar("T")

FAULTS_S = 120.0
"""How long the weather is bad."""
SKEW_S = 4.0
"""How far two clocks are apart at most."""
STUCK_S = 90.0
"""The longest that an answer of the store, or a write on its way, may take: two leases."""
HINTS_STUCK_S = 20.0
"""The longest that an answer of Redis may take: then Hints gives up (hints.py)."""

EXPIRY_S = 30.0
"""How long a question waits for its answer."""

BUSY_S = (3.0, 30.0, 60.0)
"""How long a provider may take nothing: one short wait of the loop, all of them, and as long as a run then waits."""

SCENARIOS = [
    ("repair",),
    ("commands",),
    ("repair", "commands"),
    ("repair", "repair"),
    ("ask",),
    ("repair", "ask"),
    ("long",),
    ("repair", "long"),
]
ANSWERS = [
    (),
    ("answer",),
    ("approve", "answer"),
    ("deny",),
    ("approve", "deny", "refuse"),
    ("approve", "approve", "answer"),
]
"""What people have to say to a run that asks twice: for leave (approve, deny), then for words (answer, refuse)."""

DECISIVE = ["create runs", "create runs", "create runs", "snapshots", "/inbox/", "took", "extend", "open", "close"]
"""Words of a worker's acts at which it is bad to die or to stand still."""


@dataclass(frozen=True)
class Weather:
    """All that goes wrong in one history; the default is a calm day. Times in seconds from its start, spans as
    (from, to), shares of acts between 0 and 1, people as (when, what, run), traps as (process, trap). answers: people
    who wait for a run's question, as (seconds after it, what, run). spool_bytes: what a worker keeps for the archive.
    provider_busy: from its nth question on the provider takes none for so long, as (n, seconds); provider_tells: and
    asks to be left alone, for twice as long.
    """

    kills: int = 0
    freezes: int = 0
    slow_s: float = 0.0
    stuck: float = 0.0
    store_faults: float = 0.0
    hints_faults: float = 0.0
    engine_faults: float = 0.0
    replies_lost: float = 0.0
    bells_lost: float = 0.0
    bells_doubled: float = 0.0
    store_away: tuple[tuple[float, float], ...] = ()
    hints_away: tuple[tuple[float, float], ...] = ()
    engine_away: tuple[tuple[float, float], ...] = ()
    provider_busy: tuple[tuple[int, float], ...] = ()
    provider_tells: bool = False
    wipes: tuple[float, ...] = ()
    leases_lost: tuple[float, ...] = ()
    hosts_lost: tuple[float, ...] = ()
    drains: int = 0
    people: tuple[tuple[float, str, int], ...] = ()
    answers: tuple[tuple[float, str, int], ...] = ()
    spool_bytes: int = 2**30
    traps: tuple[tuple[str, Trap], ...] = ()
    scenarios: tuple[str, ...] = ("repair",)
    schedulers: int = 1
    slots: int = 1

    @property
    def pauses(self) -> bool:
        """Whether somebody pauses a run or its batch."""
        return any(what.startswith("pause") for _, what, _ in self.people)

    @staticmethod
    def drawn(random: Random) -> Weather:
        """The weather of a seed: each kind of trouble in some histories only, so that they meet in all pairs."""

        def sometimes(share: float, value: Callable[[], T], otherwise: T) -> T:
            return value() if random.random() < share else otherwise

        def when() -> float:
            return random.uniform(1, FAULTS_S * 0.7)

        def spans() -> tuple[tuple[float, float], ...]:
            begins = when()
            return ((begins, begins + random.choice([3, 20, 60])),)

        def busy() -> tuple[tuple[int, float], ...]:
            return ((random.randint(1, 8), random.choice(BUSY_S)),)

        def times() -> tuple[float, ...]:
            return tuple(when() for _ in range(random.randint(1, 3)))

        scenarios = random.choice(SCENARIOS)
        people = []
        if random.random() < 0.3:
            what = random.choice(["cancel", "cancel", "cancel all"])
            people.append((random.uniform(0, random.choice([8, 90])), what, random.randrange(2)))
        if random.random() < 0.3:
            people.append((random.uniform(0, 90), "message", random.randrange(2)))
        if random.random() < 0.25:
            begins, scope, run = random.uniform(0, 80), random.choice(["", "", " all"]), random.randrange(2)
            people.append((begins, f"pause{scope}", run))
            if random.random() < 0.8:
                people.append((begins + random.choice([5, 20, 60]), f"unpause{scope}", run))
        if random.random() < 0.2:
            people.append((random.uniform(10, 90), "fork", scenarios.index(scenarios[-1])))
        answers = [
            (random.choice([0, 1, 15, EXPIRY_S, EXPIRY_S + 15]), what, number)
            for number, scenario in enumerate(scenarios)
            for what in (random.choice(ANSWERS) if scenario == "ask" else ())
        ]
        return Weather(
            kills=random.choice([0, 1, 2, 3, 5]),
            freezes=random.choice([0, 1, 1, 3]),
            slow_s=random.choice([0.01, 0.05, 0.3]),
            stuck=random.choice([0, 0, 0.01, 0.03]),
            store_faults=random.choice([0, 0, 0.05, 0.25]),
            hints_faults=random.choice([0, 0, 0.05]),
            engine_faults=random.choice([0, 0, 0.01]),
            replies_lost=random.choice([0, 0, 0.2]),
            bells_lost=random.choice([0, 0, 0.3]),
            bells_doubled=random.choice([0, 0.3]),
            store_away=sometimes(0.2, spans, ()),
            hints_away=sometimes(0.2, spans, ()),
            engine_away=sometimes(0.1, spans, ()),
            provider_busy=sometimes(0.25, busy, ()),
            provider_tells=random.random() < 0.5,
            wipes=sometimes(0.25, times, ()),
            leases_lost=sometimes(0.4, times, ()),
            hosts_lost=sometimes(0.1, times, ()),
            drains=random.choice([0, 0, 1]),
            people=tuple(people),
            answers=tuple(answers),
            spool_bytes=random.choice([1, 2**30]),
            scenarios=scenarios,
            schedulers=random.choice([1, 2]),
            slots=random.choice([1, 2]),
        )


def drawn_trap(random: Random, name: str) -> Trap:
    """At any act of that process, or at one of the few that decide."""
    words = ["ring", "/inbox/", "create", "/journal/"] if name.startswith("scheduler") else DECISIVE
    word = random.choice(["", "", *words])
    return Trap(word, random.randint(1, random.choice([30, 120]) if word == "" else random.choice([2, 6, 15])))
