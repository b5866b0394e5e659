"""Owns a whole deployment in a simulated machine room: real workers and schedulers on the doubles, and the weather
over them. Refuses to judge (histories.py does) and to invent protocol: what runs here is the product's own code.

One process is a worker, a scheduler or a client. Every act that others can see goes through its gate (gates.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from double_sandbox import MemorySandbox
from doubles import MemoryArchive, MemoryHints
from gates import Gate, Provider, SlowModel, StormyArchive, StormyHints, StormySandbox
from simulation import EPOCH_S, Event, Process, Simulation
from weather import EXPIRY_S, FAULTS_S, SKEW_S, STUCK_S, Weather, drawn_trap

from scheduler.approvals import answer
from scheduler.control import SUBMITTED, tell
from scheduler.enqueue import Batch, submit
from scheduler.fork import Wish, fork
from scheduler.runs import Found
from scheduler.tick import Scheduler
from worker import tasks
from worker.contract.errors import ConflictFault, HintsFault, InvalidFault, NotFoundFault, StoreFault
from worker.contract.events import canonical, digest
from worker.contract.redact import Redactor
from worker.contract.run import Run
from worker.contract.script import parse_script
from worker.contract.settings import Settings
from worker.contract.task import Check, Environment, Limits, PolicyRule, Repo, Task
from worker.janitor import Janitor
from worker.meter import RESERVE_TOKENS
from worker.models.scripted import ScriptedModel
from worker.slots import Slots
from worker.spool import Spool
from worker.station import Station
from worker.store import keys
from worker.store.inbox import Inbox
from worker.store.journal import Journal

ARCHIVE_ID = "simulated"
IMAGES = {"python": "sha256:python"}
SOURCE = canonical({"a.txt": "start\n", "b.txt": "remove me\n"})
SETTINGS = Settings(
    state_dir=Path("/nonexistent"),
    hint_poll_s=2,
    tick_s=2,
    infra_backoff_s=(5, 15, 30),
    drain_soft_s=20,
    decision_expiry_s=EXPIRY_S,
)
RESTART_S = 15.0
"""The longest that a dead process stays away."""

REPAIR = """
- text: I look at it.
  delay_s: 9
  calls:
    - {tool: run_command, arguments: {command: "cat a.txt; echo one >> a.txt; sleep 9; echo two >> a.txt"}}
    - {tool: run_command, arguments: {command: "test -f b.txt && rm b.txt"}}
- delay_s: 9
  calls:
    - {tool: update_plan, arguments: {items: [{text: repair, status: doing}]}}
    - {tool: delegate, arguments: {goal: What is in a.txt?}}
- text: Done, I think.
- delay_s: 5
  calls:
    - {tool: write_file, arguments: {path: answer, content: "42\\n"}}
    - {tool: run_checks, arguments: {}}
- text: Done now.
- delegate: What
  replies:
    - delay_s: 4
      calls:
        - {tool: run_command, arguments: {command: "sleep 2; cat a.txt"}}
        - {tool: run_command, arguments: {command: "echo spoilt > a.txt"}}
    - delay_s: 4
      expect: one
      text: One and two.
"""
ASK = """
- calls:
    - {tool: run_command, arguments: {command: "echo one >> a.txt"}}
    - {tool: run_command, arguments: {command: "echo two >> a.txt; sleep 3"}}
- delay_s: 3
  calls:
    - {tool: ask_person, arguments: {question: "Which one?"}}
    - {tool: run_command, arguments: {command: "mv b.txt c.txt"}}
- text: Done.
"""
LONG = f"""
- text: {"word " * 1_200}
  calls:
    - {{tool: run_command, arguments: {{command: "echo one >> a.txt"}}}}
- text: {"word " * 1_200}
  delay_s: 5
  calls:
    - {{tool: run_command, arguments: {{command: "echo two >> a.txt; sleep 3"}}}}
- expect: 'the answer is (?P<answer>[0-9]+)'
  calls:
    - {{tool: write_file, arguments: {{path: answer, content: "${{answer}}\n"}}}}
- text: Done.
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
    "ask": {
        "prompt": "Ask.",
        "model": "openai/simulated",
        "script": ASK,
        "checks": CHECKS[1:],
        "policy": (PolicyRule(pattern="two", action="ask"),),
    },
    "long": {
        "prompt": "Write it down: the answer is 42.",
        "model": "openai/simulated",
        "script": LONG,
        "checks": CHECKS,
        "limits": Limits(context_tokens=RESERVE_TOKENS + 5_100),
    },
}
"""What runs do: the first sends a delegate and is fed red checks once, the third asks for leave and then for words,
the last has room for two steps and must then find its task in what a summary leaves. Their commands would show if one
counted twice."""


ANSWERS: dict[str, tuple[str, Any]] = {
    "approve": ("approval", "approved"),
    "deny": ("approval", "denied"),
    "answer": ("question", "answered"),
    "refuse": ("question", "denied"),
}
"""What somebody says -> kind of the question, and the decision."""


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
    """A deployment: two engines with a worker each, a solo worker, schedulers, a client and people.

    scenarios: run -> what it does, forks included. forks: run -> its parent. answered: (run, call, answer) of whoever
    was told that the answer counts. unsaid: how many people still have something to say.
    """

    def __init__(self, room: Simulation, folder: Path, weather: Weather, *, create_only: bool = True) -> None:
        self.room, self.weather = room, weather
        self.archive = MemoryArchive(create_only=create_only)
        self.hints = MemoryHints(lambda: room.now)
        self.engines = [MemorySandbox(name, folder, IMAGES) for name in ("engine-a", "engine-b")]
        self.bells = Bells()
        self.processes: list[Process] = []
        self.outside = Process("outside")
        self.tasks = [task(number, name) for number, name in enumerate(weather.scenarios)]
        self.scenarios = {task.run: name for task, name in zip(self.tasks, weather.scenarios, strict=True)}
        self.forks: dict[str, str] = {}
        self._forked: dict[str, Batch] = {}
        self.answered: list[tuple[str, str, str]] = []
        self.provider = Provider()
        self.unsaid = len(weather.people)
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
            asked = self.tasks[number % len(self.tasks)]
            self._later(at, lambda what=what, asked=asked: self._person(what, asked), what)  # type: ignore[misc]
        for after_s, what, number in self.weather.answers:
            run = self.tasks[number].run
            self._later(0, lambda after=after_s, what=what, run=run: self._answer(after, what, run), what)  # type: ignore[misc]
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
        blows = (at + RESTART_S for at, _ in self.room.blows)  # a trap may spring late
        freezes = (process.frozen_until for process in self.processes if process.alive)
        return max([FAULTS_S + STUCK_S, self.provider.busy_until, *blows, *freezes])

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
                self.room.sleep(self.room.random.uniform(1, RESTART_S))

        self.room.spawn(self.outside, keep, f"keeper of {name}")

    def _gate(self, process: Process) -> Gate:
        return Gate(self.room, self.weather, process, self.outside)

    def _process(self, name: str) -> Process:
        random = self.room.random
        process = Process(name, skew_s=random.uniform(-SKEW_S / 2, SKEW_S / 2) if self.weather.slow_s else 0.0)
        bad = self._gate(process).chance
        share = 0.8 if name.startswith("worker") else 0.25
        if self._kills and bad(share):
            self._kills -= 1
            process.traps.append(drawn_trap(random, name))
        if self._freezes and bad(share):
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
        gate = self._gate(process)
        archive, hints = StormyArchive(gate, self.archive), StormyHints(gate, self.hints)
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
        gate = self._gate(process)
        station = Station(
            name=process.name,
            lane="solo" if lanes == ("solo",) else "main",
            settings=SETTINGS,
            archive=StormyArchive(gate, self.archive),  # type: ignore[arg-type]
            archive_id=ARCHIVE_ID,
            hints=StormyHints(gate, self.hints),  # type: ignore[arg-type]
            sandbox=StormySandbox(gate, engine, self.archive),  # type: ignore[arg-type]
            redactor=Redactor({}),
            secrets={},
            open_model=lambda asked: SlowModel(
                gate, self.provider, asked.run, scripted(asked.model, asked.script or "")
            ),
            spool=Spool(self.weather.spool_bytes),
            now=lambda: self.stamp(process),
        )
        slots = Slots(station.hints, process.name, lanes, count, SETTINGS.heartbeat_s)
        slots.consume(True)
        janitor = Janitor(
            station.archive,
            ARCHIVE_ID,
            station.sandbox,
            SETTINGS.janitor_interval_s,
            SETTINGS.prepared_images_bytes,
        )
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
        if self._drains and gate.chance(0.5):
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
        gate = self._gate(process)

        def ring(run: str, lane: str) -> None:
            gate.hints("ring", lambda: None)
            if not gate.chance(self.weather.bells_lost):
                for _ in range(2 if gate.chance(self.weather.bells_doubled) else 1):
                    self.bells.put(lane, run)

        scheduler = Scheduler(
            StormyArchive(gate, self.archive),  # type: ignore[arg-type]
            StormyHints(gate, self.hints),  # type: ignore[arg-type]
            ring,
            SETTINGS,
            now=lambda: self.clock(process),
        )
        scheduler.run(Event())  # type: ignore[arg-type]

    def _person(self, what: str, asked: Task) -> None:
        """Somebody wants something of a run, as often as the store needs it."""
        process = Process(f"person who sends a {what}")
        gate = self._gate(process)
        archive, hints = StormyArchive(gate, self.archive), StormyHints(gate, self.hints)
        while self.archive.size(keys.segment(asked.run, 0)) is None:
            self.room.sleep(1)
        kind, _, all_of_it = what.partition(" ")
        told = Found("batch", asked.batch) if all_of_it else Found("run", asked.run)
        while True:
            try:
                match kind:
                    case "fork":
                        self._fork(archive, asked, self.stamp(process))
                    case "message":  # without a hint
                        Inbox(archive, asked.run).put("message", by="ann", at=self.stamp(process), text="Hurry.")  # type: ignore[arg-type]
                    case _:
                        tell(archive, hints, told, kind, by="ann", at=self.stamp(process))  # type: ignore[arg-type]
                break
            except (ConflictFault, NotFoundFault):  # it has ended, or cannot be forked yet
                break
            except StoreFault:
                self.room.sleep(1)
        self.unsaid -= 1

    def _fork(self, archive: StormyArchive, parent: Task, at: str) -> None:
        """From its last step, or from the first where that was its last word. One that could not be written whole is
        written again."""
        if parent.run not in self._forked:
            try:
                made = fork(archive, parent.run, Wish(), key="fork")  # type: ignore[arg-type]
            except InvalidFault:
                made = fork(archive, parent.run, Wish(step=1), key="fork")  # type: ignore[arg-type]
            self._forked[parent.run] = made.batch
        [child] = self._forked[parent.run].tasks
        self.forks[child.run], self.scenarios[child.run] = parent.run, self.scenarios[parent.run]
        submit(self._forked[parent.run], archive, by="ann", at=at)  # type: ignore[arg-type]

    def _answer(self, after_s: float, given: Any, run: str) -> None:
        """Somebody waits until the run asks what this answers, thinks about it, and says so once."""
        process = Process(f"person who says {given}")
        gate = self._gate(process)
        archive, hints = StormyArchive(gate, self.archive), StormyHints(gate, self.hints)
        kind, decision = ANSWERS[given]
        journal = Journal(self.archive, run)  # type: ignore[arg-type]
        found = Run(id=run)
        while found.status != "waiting" or found.asked is None or found.asked.kind != kind:
            self.room.sleep(5)
            if self.archive.size(keys.segment(run, found.last_seq + 1)) is not None:
                found = journal.load(since=found)
            if found.sealed is not None:
                return
        self.room.sleep(after_s)
        call, at = found.asked.call_id, self.stamp(process)
        while True:
            try:
                answer(archive, hints, run, decision, by=given, at=at, call=call, reason=given)  # type: ignore[arg-type]
                self.answered.append((run, call, decision))
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
        return lambda function: setattr(self, function.__name__, function)


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
