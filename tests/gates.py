"""Owns the way of a process to the outside world, on which the weather acts: it may kill, freeze or slow the process,
refuse what it asks, lose the answer, or do what it asked much later. Refuses to do anything itself (doubles.py does).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from double_sandbox import MemorySandbox, MemoryWorkspace
from doubles import MemoryArchive, MemoryHints
from simulation import Process, Simulation
from weather import FAULTS_S, HINTS_STUCK_S, STUCK_S, Weather

from worker.contract.cancel import Cancel
from worker.contract.errors import EngineFault, HintsFault, KeeperFault, ProviderFault, StoreFault
from worker.contract.events import Reply
from worker.contract.task import Limits
from worker.models.protocol import Model, ModelRequest
from worker.sandbox.protocol import Owner
from worker.store.journal import Journal

T = TypeVar("T")


class Gate:
    """The way of one process to the outside. Each act may end it before and after what it does. network: what carries
    a write on when its writer has given up."""

    def __init__(self, room: Simulation, weather: Weather, process: Process, network: Process) -> None:
        self.room, self.weather, self.process, self._network = room, weather, process, network

    def chance(self, share: float) -> bool:
        """Whether something of that share goes wrong now."""
        return share > 0 and self.room.now < FAULTS_S and self.room.random.random() < share

    def _bad(self, spans: Sequence[tuple[float, float]]) -> bool:
        return any(begins <= self.room.now < ends for begins, ends in spans)

    def lag(self, stuck_s: float) -> None:
        """As long as the network takes, or now and then as long as a client waits for an answer at most."""
        random, weather = self.room.random, self.weather
        if self.chance(weather.stuck):
            self.room.sleep(random.uniform(5, stuck_s))
        elif weather.slow_s and random.random() < 0.5:
            self.room.sleep(random.expovariate(1 / weather.slow_s))

    def store(self, what: str, act: Callable[[], T], *, writes: bool) -> T:
        room, weather = self.room, self.weather
        room.act(what)
        self.lag(STUCK_S)
        refused = self._bad(weather.store_away) or self.chance(weather.store_faults)
        how = room.random.choice(["refused", "answer lost", "late"]) if refused and writes else "refused"
        if refused and how != "answer lost":
            if how == "late":
                room.spawn(self._network, lambda: (room.sleep(room.random.uniform(0, STUCK_S)), act()), "late write")  # type: ignore[arg-type,return-value]
            room.sleep(room.random.uniform(0, 3))
            raise StoreFault(f"{what}: no answer")
        answer = act()
        if writes:
            room.act(f"{what}: done")
        self.lag(STUCK_S)
        if refused:
            raise StoreFault(f"{what}: the answer was lost")
        return answer

    def hints(self, what: str, act: Callable[[], T]) -> T:
        room, weather = self.room, self.weather
        room.act(what)
        away = self._bad(weather.hints_away)
        refused = away or self.chance(weather.hints_faults)
        if refused and (away or room.random.random() < 0.5):
            room.sleep(room.random.uniform(0, 10))
            raise HintsFault(f"{what}: no answer")
        if room.random.random() < 0.2:
            self.lag(HINTS_STUCK_S)
        answer = act()
        if refused:
            raise HintsFault(f"{what}: the answer was lost")
        return answer

    def engine(self, what: str, act: Callable[[], T]) -> T:
        room, weather = self.room, self.weather
        room.act(what)
        if self._bad(weather.engine_away) or self.chance(weather.engine_faults):
            raise EngineFault(f"{what}: the engine does not answer")
        answer = act()
        room.act(f"{what}: done")
        if self.chance(weather.engine_faults):
            raise KeeperFault(f"{what}: the keeper died")
        return answer


class Provider:
    """Whom all models of a deployment ask. busy_until: when it takes questions again. paid: run -> replies that came
    to a worker."""

    def __init__(self) -> None:
        self.busy_until = 0.0
        self.paid: Counter[str] = Counter()
        self._asked = 0

    def ask(self, gate: Gate, run: str, what: str, answer: Callable[[], Reply]) -> Reply:
        room, weather = gate.room, gate.weather
        room.act(what)
        self._asked += 1
        for number, seconds in weather.provider_busy:
            if number == self._asked:
                self.busy_until = room.now + seconds
        if (left_s := self.busy_until - room.now) > 0:
            asked_s = 2 * left_s if weather.provider_tells else None
            raise ProviderFault("unavailable", f"{what}: overloaded", retryable=True, retry_after_s=asked_s)
        reply = answer()
        if gate.chance(weather.replies_lost):
            raise ProviderFault("connection", f"{what}: the answer was lost", retryable=True)
        self.paid[run] += 1
        room.act(f"{what}: done")
        return reply


class StormyArchive:
    """The archive as one process reaches it."""

    def __init__(self, gate: Gate, archive: MemoryArchive) -> None:
        self._gate, self._archive = gate, archive
        self.url = self._archive.url

    def create(self, key: str, data: bytes | Path) -> bool:
        content = data.read_bytes() if isinstance(data, Path) else data
        return self._gate.store(f"create {_short(key)}", lambda: self._archive.create(key, content), writes=True)

    def get(self, key: str, *, max_bytes: int = 256 * 2**20) -> bytes:
        return self._gate.store(
            f"get {_short(key)}", lambda: self._archive.get(key, max_bytes=max_bytes), writes=False
        )

    def chunks(self, key: str, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        yield self.get(key)

    def size(self, key: str) -> int | None:
        return self._gate.store(f"size {_short(key)}", lambda: self._archive.size(key), writes=False)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        return self._gate.store(f"list {prefix}", lambda: self._archive.list(prefix, after=after), writes=False)

    def overwrite(self, key: str, data: bytes) -> None:
        self._gate.store(f"overwrite {_short(key)}", lambda: self._archive.overwrite(key, data), writes=True)

    def folders(self, prefix: str) -> Iterator[str]:
        return self._gate.store(f"folders {prefix}", lambda: self._archive.folders(prefix), writes=False)

    def delete(self, keys: Iterable[str]) -> None:
        wanted = list(keys)
        self._gate.store("delete", lambda: self._archive.delete(wanted), writes=True)


class StormyHints:
    """Redis as one process reaches it."""

    def __init__(self, gate: Gate, hints: MemoryHints) -> None:
        self._gate, self._hints = gate, hints

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._hints, name)
        return lambda *args, **kwargs: self._gate.hints(name, lambda: method(*args, **kwargs))


class StormySandbox:
    """An engine as one process reaches it."""

    def __init__(self, gate: Gate, engine: MemorySandbox, archive: MemoryArchive) -> None:
        self._gate, self._engine, self._archive = gate, engine, archive
        self.engine_id = engine.engine_id

    def remove(self, resource: str) -> None:
        """Noticing a janitor that goes too far."""
        owner = self._engine.things.get(resource)
        if owner is not None:
            run = Journal(self._archive, owner.run).load()  # type: ignore[arg-type]
            if run.status == "running" and run.attempt == owner.claim:
                self._gate.room.surprises.append(f"{resource} of the living claim {owner.claim} was removed")
        self._gate.engine("remove", lambda: self._engine.remove(resource))

    @contextmanager
    def workspace(self, owner: Owner, image: str, limits: Limits) -> Iterator[StormyWorkspace]:
        opened = self._gate.engine(f"open {owner.role}", lambda: self._engine.open(owner, image, limits))
        try:
            yield StormyWorkspace(self._gate, opened)
        finally:
            self._gate.engine(f"close {owner.role}", opened.close)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._engine, name)
        return lambda *args: self._gate.engine(name, lambda: method(*args))


class StormyWorkspace:
    """A workspace as its process reaches it."""

    def __init__(self, gate: Gate, workspace: MemoryWorkspace) -> None:
        self._gate, self._workspace = gate, workspace

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._workspace, name)
        return lambda *args, **kwargs: self._gate.engine(name, lambda: method(*args, **kwargs))


@dataclass(frozen=True)
class SlowModel:
    """The model of a run, whose every question is an act, for which its provider wants money."""

    gate: Gate
    provider: Provider
    run: str
    model: Model

    @property
    def name(self) -> str:
        return self.model.name

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        return self.provider.ask(
            self.gate,
            self.run,
            f"ask the model for step {request.step}",
            lambda: self.model.reply(request, timeout_s=timeout_s, cancel=cancel),
        )


def _short(key: str) -> str:
    """A key without what differs from history to history of one seed (nonces make digests of segments)."""
    return key if len(key) < 60 else f"{key[:48]}..."
