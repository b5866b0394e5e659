"""Owns a whole deployment in a simulated machine room: real workers and schedulers on the doubles, and the weather
over them. Refuses to judge (histories.py does) and to invent protocol: what runs here is the product's own code.

One process is a worker, a scheduler or a client. Every act of one that others can see goes through `_Gate`, where the
weather may kill, freeze or slow it, refuse what it asks, lose the answer, or do what it asked much later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from doubles import MemoryArchive, MemoryHints, MemorySandbox, MemoryWorkspace
from simulation import EPOCH_S, Event, Process, Simulation, Trap

from scheduler.control import SUBMITTED, cancel
from scheduler.tick import Scheduler
from worker import tasks
from worker.contract.cancel import Cancel
from worker.contract.errors import ConflictFault, EngineFault, HintsFault, KeeperFault, StoreFault
from worker.contract.events import Reply, canonical, digest
from worker.contract.redact import Redactor
from worker.contract.script import parse_script
from worker.contract.settings import Settings
from worker.contract.task import Check, Environment, Limits, Repo, Task
from worker.janitor import Janitor
from worker.models.protocol import Model, ModelRequest
from worker.models.scripted import ScriptedModel
from worker.sandbox.protocol import Owner
from worker.slots import Slots
from worker.station import Station
from worker.store import keys
from worker.store.inbox import Inbox
from worker.store.journal import Journal

T = TypeVar("T")

ARCHIVE_ID = "simulated"
IMAGES = {"python": "sha256:python"}
SOURCE = canonical({"a.txt": "start\n", "b.txt": "remove me\n"})
SETTINGS = Settings(
    state_dir=Path("/nonexistent"), hint_poll_s=2, tick_s=2, infra_backoff_s=(5, 15, 30), drain_soft_s=20
)
FAULTS_S = 120.0
"""How long the weather is bad."""
SKEW_S = 4.0
"""How far two clocks are apart at most."""
STUCK_S = 90.0
"""The longest that an answer of the store, or a write on its way, may take: two leases."""
HINTS_STUCK_S = 20.0
"""The longest that an answer of Redis may take: then Hints gives up (hints.py)."""

REPAIR = """
- text: I look at it.
  delay_s: 9
  calls:
    - {tool: run_command, arguments: {command: "cat a.txt; echo one >> a.txt; sleep 9; echo two >> a.txt"}}
    - {tool: run_command, arguments: {command: "test -f b.txt && rm b.txt"}}
- delay_s: 9
  calls:
    - {tool: update_plan, arguments: {items: [{text: repair, status: doing}]}}
- text: Done, I think.
- delay_s: 5
  calls:
    - {tool: write_file, arguments: {path: answer, content: "42\\n"}}
    - {tool: run_checks, arguments: {}}
- text: Done now.
"""
CHECKS = (Check(name="answer", command="sleep 3; grep -q 42 answer"), Check(name="two", command="grep -q two a.txt"))
SCENARIOS: dict[str, dict[str, Any]] = {
    "repair": {"prompt": "Repair it.", "model": "openai/simulated", "script": REPAIR, "checks": CHECKS},
    "commands": {
        "commands": (
            "echo one >> a.txt; sleep 15; echo two >> a.txt",
            "mv b.txt c.txt",
            "sleep 9; echo end >> c.txt",
        ),
        "checks": CHECKS[1:],
        "lane": "interactive",
    },
}
"""What runs do: the first is fed red checks once, and its commands would show if one of them counted twice."""


@dataclass(frozen=True)
class Weather:
    """All that goes wrong in one history; the default is a calm day. Times in seconds from its start, spans as
    (from, to), shares of acts between 0 and 1, people as (when, what, run), traps as (process, trap)."""

    kills: int = 0
    freezes: int = 0
    slow_s: float = 0.0
    stuck: float = 0.0
    store_faults: float = 0.0
    hints_faults: float = 0.0
    engine_faults: float = 0.0
    bells_lost: float = 0.0
    bells_doubled: float = 0.0
    store_away: tuple[tuple[float, float], ...] = ()
    hints_away: tuple[tuple[float, float], ...] = ()
    engine_away: tuple[tuple[float, float], ...] = ()
    wipes: tuple[float, ...] = ()
    leases_lost: tuple[float, ...] = ()
    hosts_lost: tuple[float, ...] = ()
    drains: int = 0
    people: tuple[tuple[float, str, int], ...] = ()
    traps: tuple[tuple[str, Trap], ...] = ()
    scenarios: tuple[str, ...] = ("repair",)
    schedulers: int = 1
    slots: int = 1

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

        def times() -> tuple[float, ...]:
            return tuple(when() for _ in range(random.randint(1, 3)))

        people = []
        if random.random() < 0.3:
            people.append((random.uniform(0, random.choice([8, 90])), "cancel", random.randrange(2)))
        if random.random() < 0.3:
            people.append((random.uniform(0, 90), "message", random.randrange(2)))
        return Weather(
            kills=random.choice([0, 1, 2, 3, 5]),
            freezes=random.choice([0, 0, 1, 3]),
            slow_s=random.choice([0.01, 0.05, 0.3]),
            stuck=random.choice([0, 0, 0.01, 0.03]),
            store_faults=random.choice([0, 0, 0.05, 0.25]),
            hints_faults=random.choice([0, 0, 0.05]),
            engine_faults=random.choice([0, 0, 0.01]),
            bells_lost=random.choice([0, 0, 0.3]),
            bells_doubled=random.choice([0, 0.3]),
            store_away=sometimes(0.2, spans, ()),
            hints_away=sometimes(0.2, spans, ()),
            engine_away=sometimes(0.1, spans, ()),
            wipes=sometimes(0.25, times, ()),
            leases_lost=sometimes(0.4, times, ()),
            hosts_lost=sometimes(0.1, times, ()),
            drains=random.choice([0, 0, 1]),
            people=tuple(people),
            scenarios=random.choice([("repair",), ("commands",), ("repair", "commands"), ("repair", "repair")]),
            schedulers=random.choice([1, 2]),
            slots=random.choice([1, 2]),
        )


@dataclass
class Bells:
    """The doorbells in Redis: lane -> runs."""

    lanes: dict[str, list[str]] = field(default_factory=dict)
    changed: Event = field(default_factory=Event)

    def take(self, lanes: Sequence[str]) -> str:
        """The next run, waited for."""
        while True:
            for lane in lanes:
                if self.lanes.get(lane):
                    return self.lanes[lane].pop(0)
            self.changed.clear()
            self.changed.wait()

    def put(self, lane: str, run: str) -> None:
        self.lanes.setdefault(lane, []).append(run)
        self.changed.set()


class World:
    """A deployment: two engines with a worker each, a solo worker, schedulers, a client and people."""

    def __init__(self, room: Simulation, folder: Path, weather: Weather, *, create_only: bool = True) -> None:
        self.room, self.weather = room, weather
        self.archive = MemoryArchive(create_only=create_only)
        self.hints = MemoryHints(lambda: room.now)
        self.engines = [MemorySandbox(name, folder, IMAGES) for name in ("engine-a", "engine-b")]
        self.bells = Bells()
        self.processes: list[Process] = []
        self.outside = Process("outside")
        self.tasks = [task(number, name) for number, name in enumerate(weather.scenarios)]
        self._kills, self._freezes, self._drains = weather.kills, weather.freezes, weather.drains

    def start(self) -> None:
        """Begin everything."""
        self.archive.create(keys.source(digest(SOURCE)), SOURCE)
        first, second = self.engines
        slots = self.weather.slots
        self._keep("client", self._submit)
        self._keep("worker-a", lambda process: self._work(process, first, ("interactive", "batch"), slots))
        self._keep("worker-b", lambda process: self._work(process, second, ("interactive", "batch"), slots))
        self._keep("solo-a", lambda process: self._work(process, first, ("solo",), 1))
        for number in range(self.weather.schedulers):
            self._keep(f"scheduler-{number}", self._schedule)
        for at, what, number in self.weather.people:
            run = self.tasks[number % len(self.tasks)].run
            self._later(at, lambda what=what, run=run: self._person(what, run), what)  # type: ignore[misc]
        for at in self.weather.wipes:
            self._later(at, self._wipe, "wipe")
        for at in self.weather.leases_lost:
            self._later(at, self._lose_lease, "lease lost")
        for at in self.weather.hosts_lost:
            self._later(at, self._lose_host, "host lost")
        self.room.blows += [
            (at, "") for at in (*self.weather.wipes, *self.weather.leases_lost, *self.weather.hosts_lost)
        ]
        self.room.blows += [(at, "") for span in self.weather.hints_away for at in span]

    def quiet_s(self) -> float:
        """When the last fault, and all that it holds up, is over."""
        return max([FAULTS_S + STUCK_S, *(process.frozen_until for process in self.processes if process.alive)])

    def bad(self, spans: Sequence[tuple[float, float]]) -> bool:
        return any(begins <= self.room.now < ends for begins, ends in spans)

    def chance(self, share: float) -> bool:
        """Whether something of that share goes wrong now."""
        return share > 0 and self.room.now < FAULTS_S and self.room.random.random() < share

    def stamp(self, process: Process) -> str:
        return self.clock(process).isoformat(timespec="milliseconds")

    def clock(self, process: Process) -> datetime:
        """UTC as that process's machine has it."""
        return datetime.fromtimestamp(EPOCH_S + self.room.now + process.skew_s, UTC)

    def _keep(self, name: str, main: Callable[[Process], None]) -> None:
        """Run it as a process, and again some time after it died; one that returns is over."""

        def keep() -> None:
            number = 0
            while True:
                number += 1
                process = self._process(f"{name}.{number}")
                actor = self.room.spawn(process, lambda process=process: main(process), "main")  # type: ignore[misc]
                actor.ended.wait()
                if process.alive:
                    return
                self.room.sleep(self.room.random.uniform(1, 15))

        self.room.spawn(self.outside, keep, f"keeper of {name}")

    def _process(self, name: str) -> Process:
        random = self.room.random
        process = Process(name, skew_s=random.uniform(-SKEW_S / 2, SKEW_S / 2) if self.weather.slow_s else 0.0)
        share = 0.8 if name.startswith("worker") else 0.25
        if self._kills and self.chance(share):
            self._kills -= 1
            process.traps.append(drawn_trap(random, name))
        if self._freezes and self.chance(share):
            self._freezes -= 1
            process.traps.append(replace(drawn_trap(random, name), pause_s=random.choice([5, 40, 70, 120, 120])))
        process.traps += [replace(trap) for of, trap in self.weather.traps if of == name]
        self.processes.append(process)
        return process

    def _later(self, at: float, act: Callable[[], None], name: str) -> None:
        def later() -> None:
            self.room.sleep(at)
            self.room.trace.append(f"{self.room.now:9.3f} {name}")
            act()

        self.room.spawn(self.outside, later, name)

    def _submit(self, process: Process) -> None:
        gate = _Gate(self, process)
        archive, hints = StormyArchive(gate), StormyHints(gate)
        for asked in self.tasks:
            while True:
                try:
                    Journal(archive, asked.run).submit(asked, by="ann", at=self.stamp(process))  # type: ignore[arg-type]
                    break
                except StoreFault:
                    self.room.sleep(2)
        with suppress(HintsFault):
            hints.poke(SUBMITTED, round(self.room.now))

    def _work(self, process: Process, engine: MemorySandbox, lanes: tuple[str, ...], count: int) -> None:
        gate = _Gate(self, process)
        station = Station(
            name=process.name,
            lane="solo" if lanes == ("solo",) else "main",
            settings=SETTINGS,
            archive=StormyArchive(gate),  # type: ignore[arg-type]
            archive_id=ARCHIVE_ID,
            hints=StormyHints(gate),  # type: ignore[arg-type]
            sandbox=StormySandbox(gate, engine),  # type: ignore[arg-type]
            redactor=Redactor({}),
            secrets={},
            open_model=lambda asked: _SlowModel(gate, scripted(asked.model, asked.script or "")),
            now=lambda: self.stamp(process),
        )
        slots = Slots(station.hints, process.name, lanes, count, SETTINGS.heartbeat_s)
        janitor = Janitor(station.archive, ARCHIVE_ID, station.sandbox, SETTINGS.janitor_interval_s)
        app = _App()
        tasks.register(app, station, slots)

        def consume() -> None:
            while not station.drain.is_set():
                run = self.bells.take(lanes)
                with suppress(HintsFault):  # Celery logs what a task raises, and takes the next
                    gate.room.act(f"took the doorbell of {run}")
                    app.run(run)

        self.room.spawn(process, slots.run, "slots", idle=True)
        self.room.spawn(process, janitor.run, "janitor", idle=True)
        consumers = [self.room.spawn(process, consume, f"slot {number}") for number in range(count)]
        if self._drains and self.chance(0.5):
            self._drains -= 1
            self.room.sleep(self.room.random.uniform(3, 60))
            station.drain.set("drain")
            self.room.sleep(SETTINGS.drain_soft_s * 0.75)
            station.drain_now.set("drain")
            self.room.sleep(SETTINGS.drain_soft_s * 0.25)
            self.room.kill(process)  # the soft limit is over
        for consumer in consumers:
            consumer.ended.wait()

    def _schedule(self, process: Process) -> None:
        gate = _Gate(self, process)

        def ring(run: str, lane: str) -> None:
            gate.hints("ring", lambda: None)
            if not self.chance(self.weather.bells_lost):
                for _ in range(2 if self.chance(self.weather.bells_doubled) else 1):
                    self.bells.put(lane, run)

        scheduler = Scheduler(
            StormyArchive(gate),  # type: ignore[arg-type]
            StormyHints(gate),  # type: ignore[arg-type]
            ring,
            SETTINGS,
            now=lambda: self.clock(process),
        )
        scheduler.run(Event())  # type: ignore[arg-type]

    def _person(self, what: str, run: str) -> None:
        process = Process(f"person who sends a {what}")
        gate = _Gate(self, process)
        archive, hints = StormyArchive(gate), StormyHints(gate)
        while self.archive.size(keys.segment(run, 0)) is None:
            self.room.sleep(1)
        while True:
            try:
                if what == "cancel":
                    cancel(archive, hints, [run], by="ann", at=self.stamp(process))  # type: ignore[arg-type]
                else:
                    Inbox(archive, run).put("message", by="ann", at=self.stamp(process), text="Hurry.")  # type: ignore[arg-type]
                return
            except ConflictFault:
                return
            except StoreFault:
                self.room.sleep(1)

    def _wipe(self) -> None:
        self.hints.wipe()
        self.bells.lanes.clear()

    def _lose_lease(self) -> None:
        if leases := self.hints.leases():
            self.hints.drop_lease(self.room.random.choice(leases))

    def _lose_host(self) -> None:
        self.room.random.choice(self.engines).things.clear()


class _App:
    """As much of a Celery app as tasks.register needs."""

    run: Callable[[str], None]

    def task(self, **_: Any) -> Callable[[Callable[[str], None]], None]:
        return lambda function: setattr(self, "run", function)


class _Gate:
    """The way of one process to the outside. Each act may end it before and after what it does."""

    def __init__(self, world: World, process: Process) -> None:
        self.world, self.process, self.room = world, process, world.room

    def lag(self, stuck_s: float) -> None:
        """As long as the network takes, or now and then as long as a client waits for an answer at most."""
        random, weather = self.room.random, self.world.weather
        if self.world.chance(weather.stuck):
            self.room.sleep(random.uniform(5, stuck_s))
        elif weather.slow_s and random.random() < 0.5:
            self.room.sleep(random.expovariate(1 / weather.slow_s))

    def store(self, what: str, act: Callable[[], T], *, writes: bool) -> T:
        room, world, weather = self.room, self.world, self.world.weather
        room.act(what)
        self.lag(STUCK_S)
        refused = world.bad(weather.store_away) or world.chance(weather.store_faults)
        how = room.random.choice(["refused", "answer lost", "late"]) if refused and writes else "refused"
        if refused and how != "answer lost":
            if how == "late":
                room.spawn(world.outside, lambda: (room.sleep(room.random.uniform(0, STUCK_S)), act()), "late write")  # type: ignore[arg-type,return-value]
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
        room, world, weather = self.room, self.world, self.world.weather
        room.act(what)
        away = world.bad(weather.hints_away)
        refused = away or world.chance(weather.hints_faults)
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
        room, world, weather = self.room, self.world, self.world.weather
        room.act(what)
        if world.bad(weather.engine_away) or world.chance(weather.engine_faults):
            raise EngineFault(f"{what}: the engine does not answer")
        answer = act()
        room.act(f"{what}: done")
        if world.chance(weather.engine_faults):
            raise KeeperFault(f"{what}: the keeper died")
        return answer


class StormyArchive:
    """The archive as one process reaches it."""

    def __init__(self, gate: _Gate) -> None:
        self._gate, self._archive = gate, gate.world.archive
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

    def __init__(self, gate: _Gate) -> None:
        self._gate = gate

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._gate.world.hints, name)
        return lambda *args, **kwargs: self._gate.hints(name, lambda: method(*args, **kwargs))


class StormySandbox:
    """An engine as one process reaches it."""

    def __init__(self, gate: _Gate, engine: MemorySandbox) -> None:
        self._gate, self._engine = gate, engine
        self.engine_id = engine.engine_id

    def remove(self, resource: str) -> None:
        """Noticing a janitor that goes too far."""
        owner = self._engine.things.get(resource)
        if owner is not None:
            run = Journal(self._gate.world.archive, owner.run).load()  # type: ignore[arg-type]
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

    def __init__(self, gate: _Gate, workspace: MemoryWorkspace) -> None:
        self._gate, self._workspace = gate, workspace

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._workspace, name)
        return lambda *args, **kwargs: self._gate.engine(name, lambda: method(*args, **kwargs))


@dataclass(frozen=True)
class _SlowModel:
    """A model whose every question is an act, for which its provider wants money."""

    gate: _Gate
    model: Model

    @property
    def name(self) -> str:
        return self.model.name

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        self.gate.room.act(f"ask the model for step {request.step}")
        return self.model.reply(request, timeout_s=timeout_s, cancel=cancel)


def drawn_trap(random: Random, name: str) -> Trap:
    """At any act of that process, or at one of the few that decide."""
    words = ["ring", "/inbox/", "create", "/journal/"] if name.startswith("scheduler") else DECISIVE
    word = random.choice(["", "", *words])
    return Trap(word, random.randint(1, random.choice([30, 120]) if word == "" else random.choice([3, 10, 25])))


@cache
def scripted(name: str, script: str) -> ScriptedModel:
    return ScriptedModel(name, parse_script(script, name))


def task(number: int, scenario: str) -> Task:
    """The task of a run; its number makes equal scenarios differ."""
    plain: dict[str, Any] = {
        "run": f"run-{number}",
        "batch": "batch",
        "target": f"target-{number}",
        "repo": Repo(source=digest(SOURCE), source_kind="folder", label="sample"),
        "environment": Environment(image="python"),
    }
    return Task(**{**plain, **SCENARIOS[scenario]})


def _short(key: str) -> str:
    """A key without what differs from history to history of one seed (nonces make digests of segments)."""
    return key if len(key) < 60 else f"{key[:48]}..."


DECISIVE = ["create runs", "create runs", "create runs", "snapshots", "/inbox/", "took", "extend", "close"]
"""Words of a worker's acts at which it is bad to die or to stand still."""

CALM = replace(Weather(), scenarios=("repair", "commands"))
"""A day on which everything works: what a run's result is compared with."""
