"""Owns playing one history from its number and judging it: what must hold whatever went wrong. Refuses to know how
the protocol works: it reads journals, inboxes and engines as an auditor would.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import structlog
from simulation import EPOCH_S, simulation
from stands import installed
from weather import EXPIRY_S, SKEW_S, STUCK_S, Weather
from world import ARCHIVE_ID, SETTINGS, World

from worker.contract.errors import Fault
from worker.contract.events import (
    Claimed,
    Compacted,
    Decided,
    Delegated,
    Observed,
    Parked,
    Record,
    Replied,
    Sealed,
    Steered,
    Unrecorded,
    Yielded,
)
from worker.contract.run import Run, fold
from worker.meter import PROVIDER_PAUSES_S
from worker.store.decisions import read_decision
from worker.store.inbox import Control, Inbox
from worker.store.journal import Journal

BOUND_S = 210.0
"""How long after the last fault every run must have ended, or wait for a person who paused it: a lease, a doorbell
rung again, a back-off, and 75 s of work, some of it in turns."""
ASKED_S = 2 * (EXPIRY_S + SETTINGS.decision_poll_s)
"""How much longer where two questions may have to expire."""
WAITED_S = PROVIDER_PAUSES_S[1]
"""How much longer where a provider says no: nothing goes wrong for so long that a run waits a third time."""

TIDY_S = 60.0
"""How long after its end nothing of a run may be left (plan, section 7)."""

OURS = ("worker.", "scheduler.")
POISON = 3
"""Claims, or infra faults, in a row without a step after which a run may be given up (plan, section 5)."""

JOURNAL_FIELDS = frozenset(["last_seq", "last_hash", "submitted_by", "submitted_at", "updated_at"])
CLAIM_FIELDS = frozenset(["attempt", "worker", "lane", "claims", "barren_claims", "infra_yields", "not_before"])
FREE = JOURNAL_FIELDS | CLAIM_FIELDS | {"working_s", "context_tokens", "inbox_seen", "control_seen"}
"""Fields of Run that count claims, times and messages: they may differ from the undisturbed run's."""
SPOKEN = frozenset(["steps", "usage", "feedbacks"])
"""A late message gives the model another turn, which may find what red checks would have told it."""
FORKED = frozenset(["parent", "inherited_steps", "inherited_cost_microusd", "chain", "prepared", "delegates"])
"""A fork begins elsewhere, with a level 0 of its own; delegates before it are its parent's."""
UNTIMED = frozenset(["duration_ms", "reused", "summary.md"])


Result = dict[str, Any]
"""What a run came to: the fields of its fold that no disturbance may change."""


@dataclass(frozen=True)
class Played:
    """problems: one line each, none when all invariants held. trace: every act, in order."""

    seed: int
    problems: list[str]
    trace: list[str]
    results: dict[str, Result]

    def __str__(self) -> str:
        return f"seed {self.seed}:\n  " + "\n  ".join(self.problems)


def play(seed: int, folder: Path, *, weather: Weather | None = None, create_only: bool = True) -> Played:
    """One history, always the same one for the same seed."""
    wanted = weather or Weather.drawn(Random(f"weather {seed}"))
    errors: list[str] = []

    def keep(_: Any, method: str, event: dict[str, Any]) -> Any:
        errors.append(f"logged {method}: {event}")
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.processors.format_exc_info, keep], wrapper_class=LOUD)
    with installed(OURS):
        with simulation(seed) as room:
            world = World(room, folder, wanted, create_only=create_only)
            world.start()
            bound_s = BOUND_S + ASKED_S * ("ask" in wanted.scenarios)
            bound_s += WAITED_S * bool(wanted.provider_busy or wanted.replies_lost)
            while room.now < world.quiet_s() + bound_s and (
                room.now < _ends(wanted) or world.unsaid or _unfinished(world)
            ):
                room.sleep(5)
            problems = [f"{run} has not ended {bound_s:.0f} s after the faults" for run in _unfinished(world)]
            ended = room.now
            while room.now < max(ended, world.quiet_s()) + TIDY_S and _left(world):
                room.sleep(5)
            problems += _left(world)
            problems += [f"surprise: {surprise}" for surprise in room.surprises]
        structlog.reset_defaults()
        problems += errors
        ended_as: dict[str, _End] = {}
        for run in world.scenarios:
            problems += _judge(world, run, ended_as)
    for run, end in ended_as.items():
        if _must_be_the_same(world, end):
            asked = (world.scenarios[run], end.decisions)
            problems += _compare(world, run, end, {} if wanted == _calm_weather(*asked) else calm(folder, *asked))
    return Played(seed, problems, room.trace, {run: end.result for run, end in ended_as.items()})


LOUD = structlog.make_filtering_bound_logger(40)
"""Errors are what a correct program never logs here; warnings tell of the weather."""

Decisions = tuple[str, ...]
"""What was decided, question by question."""

_CALM: dict[tuple[str, Decisions], Result] = {}
SAID = ({"approved": "approve", "denied": "deny"}, {"answered": "answer", "denied": "refuse"})
"""decision -> what somebody says, of the first and of the second question."""


def calm(folder: Path, scenario: str, decisions: Decisions) -> Result:
    """What the run of a scenario comes to when nothing goes wrong and people decide so."""
    if (scenario, decisions) not in _CALM:
        played = play(0, folder, weather=_calm_weather(scenario, decisions))
        assert not played.problems, played
        _CALM[scenario, decisions] = played.results["run-0"]
    return _CALM[scenario, decisions]


def _calm_weather(scenario: str, decisions: Decisions) -> Weather:
    """A day on which everything works."""
    answers = tuple((1.0, said[made], 0) for said, made in zip(SAID, decisions, strict=False) if made in said)
    return Weather(scenarios=(scenario,), answers=answers)


@dataclass(frozen=True)
class _End:
    """How a run ended, or where it waits."""

    records: list[Record]
    result: Result
    decisions: Decisions


def _ends(weather: Weather) -> float:
    """When the last planned event of the weather is over."""
    spans = (*weather.store_away, *weather.hints_away, *weather.engine_away)
    moments = (*weather.wipes, *weather.leases_lost, *weather.hosts_lost)
    return max([0.0, *(ends for _, ends in spans), *moments])


def _unfinished(world: World) -> list[str]:
    """Runs that are not there yet, or still marked as open; but for those that a person paused, once their attempt
    has said so."""
    missing = [run for run in world.scenarios if world.archive.size(f"runs/{run}/journal/{0:09d}.jsonl") is None]
    marked = [key.removeprefix("open/") for key in world.archive.list("open/")]
    return missing + [run for run in marked if not _is_paused(world, run)]


def _is_paused(world: World, run: str) -> bool:
    """Whether the run rests because the last word about it, or about its batch, was a pause."""
    if not world.weather.pauses:
        return False
    journal = Journal(world.archive, run)  # type: ignore[arg-type]
    inbox, control = Inbox(world.archive, run), Control(world.archive, journal.task().batch)  # type: ignore[arg-type]
    last = [
        next((one.kind for one in reversed(folder.read()) if one.kind in ("pause", "unpause")), "")
        for folder in (inbox, control)
    ]
    return "pause" in last and journal.load().status in ("queued", "waiting")


def _left(world: World) -> list[str]:
    return [
        f"{name} of {owner.run} claim {owner.claim} ({owner.role}) is left on {engine.engine_id}"
        for engine in world.engines
        for owner, name in engine.owned(ARCHIVE_ID)
    ]


def _judge(world: World, run: str, ends: dict[str, _End]) -> Iterator[str]:
    """What must hold of a run; how it ended is kept."""
    journal = Journal(world.archive, run)  # type: ignore[arg-type]
    try:
        yield from (f"{run}: {problem}" for problem in journal.verify())
        lines = list(journal.read())
    except Fault as fault:
        yield f"{run} cannot be read: {fault}"
        return
    records = [record for record, _ in lines]
    sealed = [record.seq for record in records if isinstance(record.event, Sealed)]
    paused = not sealed and _is_paused(world, run)
    if not paused and (len(sealed) != 1 or not isinstance(records[-1].event, Sealed)):
        yield f"{run} has {len(sealed)} sealed events in {[record.event.type for record in records]}"
        return
    yield from _fenced(run, records)
    yield from _once(run, records)
    yield from _listened(world, run, records, paused=paused)
    yield from _heard(world, run, records)
    yield from _rested(world, run, records)
    yield from _waited(world, run, records)
    yield from _paid_for(world, run, records)
    yield from _decided(world, run, records)
    yield from _claimed_for_a_reason(world, run, records)
    if not paused:
        decisions = tuple(record.event.decision for record in records if isinstance(record.event, Decided))
        ends[run] = _End(records, _result(lines), decisions)


def _fenced(run: str, records: list[Record]) -> Iterator[str]:
    """Nobody commits under a claim after a later one; without a claim only the first and the last segment."""
    claim = None
    for record in records:
        if isinstance(record.event, Claimed):
            claim = record.seq
        by_scheduler = record.attempt is None and record.seq in (0, records[-1].seq)
        if record.attempt != claim and not by_scheduler:
            yield f"{run}: segment {record.seq} is of attempt {record.attempt} after claim {claim}"


def _once(run: str, records: list[Record]) -> Iterator[str]:
    """Each call has one result, and each step one reply."""
    calls = [call.id for record in records if isinstance(record.event, Replied) for call in record.event.reply.calls]
    seen = [record.event.observation.call_id for record in records if isinstance(record.event, Observed)]
    steps = [record.event.step for record in records if isinstance(record.event, Replied)]
    if len(set(calls)) != len(calls) or steps != list(range(1, len(steps) + 1)):
        yield f"{run} has a reply twice: {steps}, {calls}"
    if seen != calls[: len(seen)]:
        yield f"{run}: calls {calls} have the results {seen}"


def _claimed_for_a_reason(world: World, run: str, records: list[Record]) -> Iterator[str]:
    """Nobody takes a run over, or seals it, while its attempt is alive: leases waste no work."""
    claimed: Record | None = None
    for record in records:
        if isinstance(record.event, Yielded | Parked):
            claimed = None
        elif isinstance(record.event, Claimed):
            if claimed is not None and not _struck(world, claimed, record):
                yield f"{run} was claimed in {record.seq} while its attempt {claimed.seq} was well"
            claimed = record
    sealed = records[-1]
    if claimed is not None and sealed.attempt is None and not _struck(world, claimed, sealed):
        alive = [record for record in records if record.seq < sealed.seq][-1]
        silent = datetime.fromisoformat(sealed.at) - datetime.fromisoformat(alive.at)
        if silent.total_seconds() < SETTINGS.lease_ttl_s - SETTINGS.heartbeat_s - SKEW_S:
            yield f"{run} was sealed by the scheduler {silent} after a sign of life"


def _struck(world: World, claimed: Record, until: Record) -> bool:
    """Whether something befell the claimer, Redis or an engine between its lease, which comes some time before the
    claim, and then."""
    assert isinstance(claimed.event, Claimed)
    names = ("", claimed.event.worker)
    begins, ends = (datetime.fromisoformat(record.at).timestamp() - EPOCH_S for record in (claimed, until))
    begins, ends = begins - STUCK_S - SKEW_S, ends + SKEW_S
    return any(begins <= at <= ends and name in names for at, name in world.room.blows)


def _listened(world: World, run: str, records: list[Record], *, paused: bool) -> Iterator[str]:
    """The inbox is closed, and whatever won a number before that was taken in, a cancel as the outcome."""
    messages = Inbox(world.archive, run).read()  # type: ignore[arg-type]
    if not paused and (not messages or messages[-1].kind != "closed"):
        yield f"{run}: the inbox ends with {[message.kind for message in messages]}"
    # What stands in segment 0 of a fork was read by its parent.
    steered = [record.event for record in records if isinstance(record.event, Steered) and record.seq > 0]
    for scope in ("run", "batch"):
        taken = [event.n for event in steered if event.scope == scope]
        if taken != sorted(set(taken)):
            yield f"{run} took messages of its {scope} in out of order or twice: {taken}"
        for message in messages if scope == "run" and not paused else ():
            if message.n not in taken and message.kind != "closed":
                yield f"{run}: message {message.n} ({message.kind}) was accepted and never read"
    last = records[-1].event
    cancelled = isinstance(last, Sealed) and last.outcome == "cancelled"
    asked = any(message.kind == "cancel" for message in messages)
    batch = Journal(world.archive, run).task().batch  # type: ignore[arg-type]
    control = Control(world.archive, batch).read()  # type: ignore[arg-type]
    all_asked = any(message.kind == "cancel" for message in control)  # which may have come after the end
    if not paused and not _gave_up(world, records) and (cancelled < asked or cancelled > asked + all_asked):
        yield f"{run}: cancel asked: {asked} or {all_asked}, cancelled: {cancelled}"


def _heard(world: World, run: str, records: list[Record]) -> Iterator[str]:
    """Whatever somebody said to a model, it had a turn after it was read; but for runs that were ended."""
    last = records[-1].event
    if not isinstance(last, Sealed) or last.outcome in ("failed", "cancelled") or world.scenarios[run] == "commands":
        return
    replies = [record.seq for record in records if isinstance(record.event, Replied)]
    for record in records:
        if isinstance(record.event, Steered) and record.event.kind == "message" and record.seq > max(replies):
            yield f"{run}: message {record.event.n} was read in {record.seq}, after the model's last turn"


def _rested(world: World, run: str, records: list[Record]) -> Iterator[str]:
    """A run that was paused is not claimed before somebody unpaused it."""
    parked: Record | None = None
    for record in records:
        if isinstance(record.event, Parked):
            parked = record if record.event.waiting == "paused" else None
        elif isinstance(record.event, Claimed) and parked is not None:
            batch = Journal(world.archive, run).task().batch  # type: ignore[arg-type]
            folders = (Inbox(world.archive, run), Control(world.archive, batch))  # type: ignore[arg-type]
            until = datetime.fromisoformat(record.at) + timedelta(seconds=SKEW_S)
            if not any(
                one.kind in ("unpause", "cancel") and datetime.fromisoformat(one.at) < until
                for folder in folders
                for one in folder.read()
            ):
                yield f"{run} was claimed in {record.seq} while it was paused"
            parked = None


def _waited(world: World, run: str, records: list[Record]) -> Iterator[str]:
    """A run that waits for its provider is not claimed before its time."""
    for parked, after in itertools.pairwise(records):
        event = parked.event
        if isinstance(event, Parked) and event.waiting == "provider" and isinstance(after.event, Claimed):
            until = datetime.fromisoformat(str(event.until)) - timedelta(seconds=SKEW_S)
            if datetime.fromisoformat(after.at) < until:
                yield f"{run} was claimed in {after.seq} and should wait for its provider until {event.until}"


def _paid_for(world: World, run: str, records: list[Record]) -> Iterator[str]:
    """Each reply that came to a worker is on record, or counted as one that was lost; but for what a scheduler cannot
    know that seals over a dead attempt."""
    own = [record.event for record in records if record.seq > 0]
    told = [
        event
        for event in own
        if isinstance(event, Compacted | Delegated | Unrecorded)
        or (isinstance(event, Replied) and event.phase == "model")
    ]
    by_scheduler = records[-1].attempt is None
    paid = sum(count for name, count in world.provider.paid.items() if name.partition("/")[0] == run)
    if len(told) + by_scheduler < paid:
        yield f"{run}: {paid} replies came, {len(told)} are on record"


def _decided(world: World, run: str, records: list[Record]) -> Iterator[str]:
    """Of each question one answer counts, the journal has that one, and whoever was told so had given it."""
    for record in records:
        if isinstance(event := record.event, Decided) and record.seq > 0:
            made = read_decision(world.archive, run, event.call_id)  # type: ignore[arg-type]
            if made is None or (made.decision, made.by) != (event.decision, event.by):
                yield f"{run}: {event.call_id} was {event.decision} by {event.by}, and decided: {made}"
    for name, call, decision in world.answered:
        made = read_decision(world.archive, run, call) if name == run else None  # type: ignore[arg-type]
        if name == run and (made is None or made.decision != decision):
            yield f"{run}: somebody was told that {call} is {decision}, and decided: {made}"


def _result(lines: list[tuple[Record, str]]) -> Result:
    """What a run came to, without what may differ: claims, times, messages and money for lost replies."""
    left_out = (Claimed, Yielded, Parked, Unrecorded, Steered)
    kept = [line for line in lines if not isinstance(line[0].event, left_out)]
    return {name: _untimed(value) for name, value in fold(kept, Run()).model_dump().items() if name not in FREE}


def _untimed(value: Any) -> Any:
    match value:
        case dict():
            return {name: _untimed(item) for name, item in value.items() if name not in UNTIMED}
        case tuple() | list():
            return [_untimed(item) for item in value]
    return value


def _must_be_the_same(world: World, end: _End) -> bool:
    """All but runs that were cancelled, or given up for a written reason."""
    last = end.records[-1].event
    assert isinstance(last, Sealed)
    return last.outcome != "cancelled" and not (last.failure is not None and _gave_up(world, end.records))


def _compare(world: World, run: str, end: _End, expected: Result) -> Iterator[str]:
    """The result is the undisturbed run's."""
    spoken = any(isinstance(record.event, Steered) and record.event.kind == "message" for record in end.records)
    free = {"id"} | (SPOKEN if spoken else frozenset()) | (FORKED if run in world.forks else frozenset())
    for name in sorted(expected.keys() - free):
        found, wanted = end.result[name], expected[name]
        if name == "snapshot" and run in world.forks:
            found, wanted = found["listing"], wanted["listing"]
        if found != wanted:
            yield f"{run}: {name} is {found}, undisturbed {wanted}"


def _gave_up(world: World, records: list[Record]) -> bool:
    """Whether the run was ended as poison, and rightly so: three times in a row an attempt ended without a step, and
    not because Redis or the store was away, which never counts."""
    last = records[-1].event
    if not (isinstance(last, Sealed) and last.failure is not None and last.failure.cls == "infra"):
        return False
    claims = yields = 0
    for record in records:
        match record.event:
            case Claimed():
                claims += 1
            case Yielded(why="infra"):
                yields += 1
            case Replied() | Observed():
                claims = yields = 0
    if last.failure.reason == "worker_lost":
        return claims >= POISON and len(world.room.blows) >= POISON
    return last.failure.reason in ("engine", "keeper") and yields >= POISON - 1
