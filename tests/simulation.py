"""Owns a simulated machine room: actors that take turns, processes that can die or freeze, and a clock that moves
only when everybody waits. Refuses to know Dawnfleet: what is random comes from one seed, so a history is its number.

Actors are threads, but exactly one runs at any time, and it hands on the baton only where the code under test waits
or meets the outside world (stands.py brings it there).
"""

from __future__ import annotations

import heapq
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

EPOCH_S = 1_796_000_000.0
"""UTC seconds when a simulation starts."""

REAL_LIMIT_S = 60.0
"""No history takes so long: an actor that does not hand on the baton within it is caught in a loop."""


class Crash(BaseException):
    """Ends an actor of a dead process. No `except Exception` of the product sees it, and whatever its `finally`
    blocks try to do outside of the process raises it again: a killed process cleans nothing up."""


@dataclass
class Trap:
    """Waits in a process for the nth act whose name holds word: then the process dies, or freezes for pause_s, or is
    told error. alone: only the actor that acts is held up, by an answer that does not come."""

    word: str
    nth: int
    pause_s: float | None = None
    alone: bool = False
    error: Exception | None = None

    def springs(self, what: str) -> bool:
        if self.word not in what:
            return False
        self.nth -= 1
        return self.nth == 0


class Process:
    """What dies at once, and has a clock that may be wrong by skew_s."""

    def __init__(self, name: str, *, skew_s: float = 0.0) -> None:
        self.name = name
        self.skew_s = skew_s
        self.alive = True
        self.frozen_until = 0.0
        self.traps: list[Trap] = []
        self.actors: set[Actor] = set()


class Actor:
    """One flow of control. idle: what it does by routine springs no trap. ticket: grows with each resumption, so that
    older wake-ups are known to be stale."""

    def __init__(self, process: Process, act: Callable[[], None], name: str, idle: bool = False) -> None:
        self.process, self.act, self.name, self.idle = process, act, name, idle
        self.ticket = 0
        self.ended = Event()
        self.body: _Body | None = None


class _Body(threading.Thread):
    """A thread that plays one actor after the other; starting one costs more than a whole history may."""

    spare: list[_Body] = []

    def __init__(self) -> None:
        super().__init__(daemon=True, name="actor")
        self.baton = threading.Lock()
        self.baton.acquire()
        self.play: Callable[[], None] | None = None
        self.start()

    def run(self) -> None:
        while True:
            self.baton.acquire()
            assert self.play is not None
            self.play()


class Simulation:
    """One history. The thread that makes it is its director, an actor like the others.

    random: what happens. nonces: what nobody may guess, so that other names do not make another history.
    blows: when which process died or stood still, "" for a blow to all. surprises: what actors raised.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.nonces = Random(f"nonces {seed}")
        self.now = 0.0
        self.blows: list[tuple[float, str]] = []
        self.surprises: list[str] = []
        self.trace: list[str] = []
        self._heap: list[tuple[float, float, int, Actor, int]] = []
        self._count = 0
        self._living: set[Actor] = set()
        self._director = Actor(Process("director"), lambda: None, "director")
        self._director_baton = threading.Lock()
        self._director_baton.acquire()
        self.current = self._director

    def spawn(self, process: Process, act: Callable[[], None], name: str, *, idle: bool = False) -> Actor:
        """Begin an actor; it runs when the current one waits."""
        actor = Actor(process, act, name, idle)
        process.actors.add(actor)
        self._living.add(actor)
        self.wake(actor, self.now)
        return actor

    def wake(self, actor: Actor, at: float) -> None:
        """Let it go on at that time, if nothing else wakes it before."""
        self._count += 1
        heapq.heappush(self._heap, (at, self.random.random(), self._count, actor, actor.ticket))

    def sleep(self, seconds: float) -> None:
        """The current actor waits. Raises Crash when its process died meanwhile."""
        self.check()
        self.wake(self.current, self.now + seconds)
        self.wait()

    def wait(self) -> None:
        """The current actor waits until woken."""
        me = self.current
        following = self._pop()
        if following is not me:
            self._hand_over(following)
            baton = self._director_baton if me is self._director else me.body.baton  # type: ignore[union-attr]
            if not baton.acquire(timeout=REAL_LIMIT_S):
                raise TimeoutError(f"{self.current.name} never waits")
        me.ticket += 1
        self.check()

    def check(self) -> None:
        if not self.current.process.alive:
            raise Crash

    def act(self, what: str) -> None:
        """The current process is about to do something that others can see, or has just done it: here it may die,
        freeze or be slow."""
        self.check()
        process = self.current.process
        self.trace.append(f"{self.now:9.3f} {process.name} {self.current.name}: {what}")
        for trap in () if self.current.idle else process.traps:
            if trap.springs(what):
                self._spring(process, trap)

    def _spring(self, process: Process, trap: Trap) -> None:
        if trap.error is not None:
            raise trap.error
        if trap.pause_s is None:
            self.kill(process)
            raise Crash
        if trap.alone:
            self.sleep(trap.pause_s)
            return
        self.trace.append(f"{self.now:9.3f} {process.name} freezes for {trap.pause_s:.0f} s")
        self.blows.append((self.now, process.name))
        process.frozen_until = self.now + trap.pause_s
        self.sleep(0)

    def kill(self, process: Process) -> None:
        """As SIGKILL: none of its actors does another thing."""
        if process.alive:
            self.trace.append(f"{self.now:9.3f} {process.name} dies")
            process.alive = False
            self.blows.append((self.now, process.name))
            for actor in sorted(process.actors, key=lambda actor: actor.name):
                self.wake(actor, self.now)

    def close(self, processes: Iterable[Process]) -> None:
        """Kill what is left and wait until every actor is gone."""
        for process in processes:
            self.kill(process)
        while self._living:
            for actor in self._living:
                actor.process.alive = False
                self.wake(actor, self.now)
            self.sleep(1)

    def _pop(self) -> Actor:
        while True:
            at, tie, count, actor, ticket = heapq.heappop(self._heap)
            if ticket != actor.ticket or actor.ended.is_set():
                continue
            if actor.process.alive and actor.process.frozen_until > at:
                heapq.heappush(self._heap, (actor.process.frozen_until, tie, count, actor, ticket))
                continue
            self.now = max(self.now, at)
            return actor

    def _hand_over(self, actor: Actor) -> None:
        self.current = actor
        if actor is self._director:
            self._director_baton.release()
            return
        if actor.body is None:
            actor.body = _Body.spare.pop() if _Body.spare else _Body()
            actor.body.play = lambda: self._play(actor)
        actor.body.baton.release()

    def _play(self, actor: Actor) -> None:
        try:
            self.check()
            actor.act()
        except Crash:
            pass
        except BaseException as error:
            self.surprises.append(f"{actor.process.name} {actor.name}: {error!r}\n{traceback.format_exc()}")
        actor.ended.set()
        actor.process.actors.discard(actor)
        self._living.discard(actor)
        following = self._pop()
        assert actor.body is not None
        _Body.spare.append(actor.body)
        self._hand_over(following)


class Event:
    """threading.Event in the room."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[tuple[Actor, int]] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for actor, ticket in self._waiting:
            if actor.ticket == ticket:
                room().wake(actor, room().now)
        self._waiting.clear()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        now = room()
        now.check()
        if not self._is_set:
            self._waiting.append((now.current, now.current.ticket))
            if timeout is not None:
                now.wake(now.current, now.now + max(0.0, timeout))
            now.wait()
        return self._is_set


_ROOMS: list[Simulation] = []


def room() -> Simulation:
    """The simulation that runs now."""
    return _ROOMS[-1]


@contextmanager
def simulation(seed: int) -> Iterator[Simulation]:
    """The room of one history, empty again when the block ends."""
    made = Simulation(seed)
    _ROOMS.append(made)
    try:
        yield made
    finally:
        made.close([])
        _ROOMS.pop()
