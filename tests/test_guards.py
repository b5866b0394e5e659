"""The guards of the protocol, each alone on the doubles: fast, so that `mutate.py` can ask them first. What they hold
together, the histories play; what they hold on real parts, the tests of their modules say.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from double_sandbox import MemorySandbox
from doubles import MemoryArchive, MemoryHints
from pydantic import BaseModel
from world import ARCHIVE_ID, IMAGES, SOURCE, scripted
from world import task as sample

from scheduler.planning.plan import Close, Ring, Seen, Slots, plan
from scheduler.seal import seal
from worker import attempt
from worker.contract.cancel import Cancel
from worker.contract.errors import ConflictFault, FencedFault, IntegrityFault, StoreFault
from worker.contract.events import (
    Asked,
    Called,
    Claimed,
    Decided,
    Event,
    Observed,
    Replied,
    Reply,
    Sealed,
    ToolCall,
    digest,
)
from worker.contract.redact import Redactor
from worker.contract.settings import Settings
from worker.contract.task import Limits, PolicyRule
from worker.host import Stopped
from worker.hosting import AttemptHost
from worker.janitor import sweep
from worker.lease import Lease
from worker.ledger import Ledger
from worker.mailbox import Mailbox
from worker.policy import ALLOW, Ruling
from worker.prepare import prepare
from worker.sandbox import shape
from worker.sandbox.protocol import Command, Owner
from worker.sandbox.sandbox import DockerSandbox
from worker.station import Station, utc_now
from worker.store import keys
from worker.store.decisions import decide
from worker.store.inbox import Inbox
from worker.store.journal import Journal
from worker.store.s3 import S3Archive
from worker.tools.tool import Answer, ToolContext

RUN = "run-0"
WRITES = """
- calls: [{tool: run_command, arguments: {command: "echo one >> a.txt; cat a.txt"}}]
- calls: [{tool: run_command, arguments: {command: "echo two >> a.txt"}}]
- text: Done.
"""
TWO_CALLS = """
- calls:
    - {tool: run_command, arguments: {command: "echo one >> a.txt"}}
    - {tool: run_command, arguments: {command: "echo two >> a.txt"}}
- text: Done.
"""


class Died(BaseException):
    """The end of a worker."""


class Fetches:
    """A tool whose one command has network."""

    name, description, effect = "fetch", "Fetch it.", "write"
    Arguments = BaseModel

    def command(self, arguments: Any, context: ToolContext) -> list[Command] | Answer:
        return [Command(payload=b"echo fetched", network=True)]


class HonestArchive(MemoryArchive):
    """Notes what a segment names and is not there yet. losing: the next answer to a create of a segment is lost.
    before: called with each key first."""

    def __init__(self) -> None:
        super().__init__()
        self.holes: list[str] = []
        self.losing = False
        self.before: Callable[[str], None] = lambda key: None

    def create(self, key: str, data: bytes | Path) -> bool:
        self.before(key)
        made = super().create(key, data)
        if "/journal/" in key:
            lines = Journal(self, RUN)._segment(keys.segment_seq(key), None)  # type: ignore[arg-type]
            observed = [record.event for record, _ in lines if isinstance(record.event, Observed)]
            named = [keys.blob(RUN, event.observation.blob) for event in observed if event.observation.blob]
            named += [keys.snapshot(RUN, e.snapshot.object) for e in observed if e.snapshot and e.snapshot.object]
            self.holes += [name for name in named if self.size(name) is None]
            if self.losing:
                self.losing = False
                raise StoreFault("the answer was lost")
        return made


@dataclass
class Lent:
    """A lease in any state. current: what `wait_current` says."""

    current: bool = True

    def wait_current(self) -> bool:
        return self.current


@dataclass
class Place:
    """A worker's station on the doubles, and one submitted run."""

    folder: Path
    archive: HonestArchive = field(default_factory=HonestArchive)

    def __post_init__(self) -> None:
        self.hints = MemoryHints(time.monotonic)
        self.engine = MemorySandbox("engine", self.folder, IMAGES)
        self.archive.create(keys.source(digest(SOURCE)), SOURCE)
        self.journal = Journal(self.archive, RUN)  # type: ignore[arg-type]
        self.station = Station(
            name="worker",
            lane="main",
            settings=Settings(hint_poll_s=0.02),
            archive=self.archive,  # type: ignore[arg-type]
            archive_id=ARCHIVE_ID,
            hints=self.hints,  # type: ignore[arg-type]
            sandbox=self.engine,  # type: ignore[arg-type]
            redactor=Redactor({}),
            secrets={},
            open_model=lambda asked: scripted(asked.model, asked.script or ""),
        )

    def submit(self, **fields: Any) -> None:
        plain = {"model": "scripted:x", "script": WRITES, "checks": ()} | fields
        self.journal.submit(sample(0, "repair").model_copy(update=plain), by="ann", at=utc_now())

    def ledger(self, lease: Lent | None = None) -> Ledger:
        """The pen of an attempt that has read the run and not claimed it yet."""
        return Ledger(self.journal, cast(Lease, lease or Lent()), Cancel(), Redactor({}), utc_now)

    def work(self, **changes: Any) -> str:
        return attempt.run(RUN, replace(self.station, **changes))

    @contextmanager
    def host(self) -> Iterator[AttemptHost]:
        """An attempt on the run, ready for its first call."""
        station, cancel = self.station, Cancel()
        ledger = Ledger(self.journal, cast(Lease, Lent()), cancel, station.redactor, utc_now, station.spool)
        ledger.claim(CLAIM)
        task = self.journal.task()
        owner = Owner(ARCHIVE_ID, RUN, ledger.run.attempt or 0, "agent")
        prepared = prepare(
            task,
            archive=station.archive,
            sandbox=station.sandbox,
            owner=owner,
            redactor=station.redactor,
            secrets={},
            cancel=cancel,
        )
        ledger.commit(prepared.event())
        mailbox = Mailbox(station, ledger, cancel, task.batch)
        with (
            station.sandbox.workspace(owner, prepared.image, task.limits) as workspace,
            AttemptHost(task, station, ledger, workspace, prepared, cancel, mailbox) as host,
        ):
            host.restore()
            yield host

    def patch(self) -> Any:
        """What the sealed run changed: path -> text."""
        sealed = self.journal.load().sealed
        assert sealed is not None
        return json.loads(self.journal.get_blob(sealed.artifacts["patch.diff"]))

    def opened(self, claim: int, archive: str = ARCHIVE_ID) -> set[str]:
        """What that claim has on the engine from now on."""
        before = set(self.engine.things)
        self.engine.open(Owner(archive, RUN, claim, "agent"), "python", Limits())
        return set(self.engine.things) - before

    def events(self, *kinds: type[Event]) -> list[Any]:
        return [record.event for record, _ in self.journal.read() if isinstance(record.event, kinds)]


CLAIM = Claimed(worker="w", engine="e", lane="main")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# Claims


def test_of_two_that_saw_the_run_free_one_claims(place: Place) -> None:
    """Whoever meets a claim under its number leaves the run to it."""
    place.submit()
    first, second = place.ledger(), place.ledger()
    first.claim(CLAIM)
    with pytest.raises(FencedFault):
        second.claim(CLAIM)
    assert len(place.events(Claimed)) == 1


def test_a_claim_that_meets_the_seal_is_not_made(place: Place) -> None:
    """The attempt before ended the run while the claimer made ready: nothing follows."""
    place.submit()
    first, second = place.ledger(), place.ledger()
    place.journal.append(first.run, [Sealed(outcome="cancelled")], attempt=None, at=utc_now())
    with pytest.raises((FencedFault, ConflictFault)):
        second.claim(CLAIM)
    assert isinstance([record for record, _ in place.journal.read()][-1].event, Sealed)


def test_a_scheduler_that_meets_the_seal_leaves_it(place: Place) -> None:
    """The attempt ended the run while the scheduler closed its inbox: there is one seal, the attempt's."""
    place.submit()
    run = place.journal.load()

    def first(key: str) -> None:
        place.archive.before = lambda key: None
        place.journal.append(run, [Sealed(outcome="no_change")], attempt=None, at=utc_now())

    place.archive.before = first
    ended = seal(place.station.archive, run, Close(RUN, "cancelled"), at=utc_now())
    assert ended.sealed is not None
    assert [event.outcome for event in place.events(Sealed)] == ["no_change"]


def test_an_answer_that_was_lost_is_known_by_its_nonce(place: Place) -> None:
    """The commit took place, its answer was lost: tried again, it is found to be one's own, and stands once."""
    place.submit()
    ledger = place.ledger()
    ledger.claim(CLAIM)
    place.archive.losing = True
    ledger.commit(Sealed(outcome="cancelled"))
    assert len(place.events(Sealed)) == 1


def test_after_a_regained_lease_the_journals_tail_is_looked_at(place: Place) -> None:
    """The run went on elsewhere while Redis was out of reach: no call begins."""
    place.submit()
    lease = Lent()
    ledger = place.ledger(lease)
    ledger.claim(CLAIM)
    place.ledger().claim(CLAIM)
    lease.current = False
    with pytest.raises(FencedFault, match="elsewhere"):
        ledger.check()


def test_a_paid_reply_waits_for_the_store_also_after_a_regained_lease(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look at the journal's tail is tried again as the append is: else nobody would know what was paid."""
    place.submit()
    lease = Lent()
    ledger = place.ledger(lease)
    ledger.claim(CLAIM)
    lease.current = False
    tail, asked = place.archive.list, []

    def away_once(prefix: str, *, after: str = "") -> Iterator[str]:
        asked.append(prefix)
        if len(asked) == 1:
            raise StoreFault("the store is away")
        return tail(prefix, after=after)

    monkeypatch.setattr(place.archive, "list", away_once)
    ledger.commit(Replied(step=1, phase="model", reply=Reply(text="Done.", cost_microusd=5)))
    assert ledger.run.spent_microusd == 5
    assert len(asked) > 1


def test_a_large_object_that_came_first_stays(moto: Settings, tmp_path: Path) -> None:
    """Both writers saw the key free; whose last request comes second is told so."""
    archive = S3Archive(f"s3://dawn/{uuid.uuid4().hex}", moto.model_copy(update={"s3_part_bytes": 5 * 2**20}))
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"1" * 6 * 2**20)
    second.write_bytes(b"2" * 6 * 2**20)
    archive.create("images/x.tar", first)
    archive.size = lambda key: None  # type: ignore[method-assign]  # as it was before the first ended
    assert not archive.create("images/x.tar", second)
    assert archive.get("images/x.tar") == first.read_bytes()


# Calls


def test_what_a_segment_names_is_stored_before_it(place: Place) -> None:
    """Outputs and snapshots first: a crash in between leaves garbage, never a hole."""
    place.submit()
    assert place.work() == "sealed"
    assert len(place.events(Observed)) == 2
    assert place.archive.holes == []


def test_a_call_begins_when_the_spool_has_room(place: Place) -> None:
    """With another attempt's output waiting for the store, it waits outside, and a cancel ends that."""
    place.submit()
    with place.host() as host, place.station.spool.hold(2**30):
        host.cancel.set("cancel")
        call = ToolCall(id="call_1_1", name="fetch", arguments="{}")
        assert host.observe(call, Fetches(), None) == Stopped("cancel")
    assert place.events(Called, Observed) == []


def test_what_waits_for_the_store_is_counted(place: Place) -> None:
    """An output from when it is there until it is stored."""
    place.submit()
    held: list[tuple[str, int]] = []
    with place.host() as host:
        place.archive.before = lambda key: held.append((key.split("/")[2], place.station.spool.held))
        host.observe(ToolCall(id="call_1_1", name="fetch", arguments="{}"), Fetches(), None)
        assert host.settle()
    assert held[1] == ("blobs", len("fetched\n"))
    assert held[-1] == ("journal", 0)


def test_an_outside_call_is_recorded_before_it_starts(place: Place) -> None:
    """It cannot be rolled back, so whoever comes later must know of it."""
    place.submit()
    seen: list[str] = []
    with place.host() as host:
        call = ToolCall(id="call_1_1", name="fetch", arguments="{}")
        host.commit(Replied(step=1, phase="model", reply=Reply(calls=(call,), stop="calls")))
        run = host._workspace.run

        def noted(command: Command, *, cancel: Cancel) -> Any:
            seen.extend(event.call_id for event in place.events(Called))
            return run(command, cancel=cancel)

        host._workspace.run = noted  # type: ignore[method-assign]
        assert host.observe(call, Fetches(), None) is None
        assert host.settle()
        assert host.run.called == ""
    assert seen == ["call_1_1"]


def test_an_outside_call_is_not_repeated_by_a_takeover(place: Place) -> None:
    """T45: of two calls the second had begun when its worker died: neither runs again, and the model reads why."""
    place.submit(script=TWO_CALLS)
    ruled: list[str] = []

    def dies_at_the_second(asked: Any) -> Ruling:
        ruled.append(asked["call"]["id"])
        if len(ruled) == 2:
            raise Died
        return ALLOW

    with pytest.raises(Died):
        place.work(before_call=dies_at_the_second)
    dead = place.journal.load()
    place.journal.append(dead, [Called(call_id=ruled[1])], attempt=dead.attempt, at=utc_now())
    assert place.work() == "sealed"
    first, second = (event.observation for event in place.events(Observed))
    assert (first.call_id, first.status) == (ruled[0], "ok")
    assert (second.call_id, second.status) == (ruled[1], "interrupted")
    assert "look before you repeat" in second.output
    assert place.patch() == {"a.txt": "start\none\n"}


# Decisions


def test_an_approval_of_something_else_runs_nothing(place: Place) -> None:
    """Its digest is not that of the pending call on these files."""
    place.submit(policy=(PolicyRule(tool="run_command", pattern="two", action="ask"),))
    assert place.work() == "parked"
    asked = place.journal.load().asked
    assert isinstance(asked, Asked)
    other = asked.model_copy(update={"binding": "0" * 64})
    decide(place.station.archive, RUN, other, "approved", by="ann", at=utc_now())
    assert place.work() == "sealed"
    assert [event.decision for event in place.events(Decided)] == ["denied"]
    assert [event.observation.status for event in place.events(Observed)] == ["ok", "denied"]


# The end


def test_the_inbox_is_closed_before_the_seal(place: Place) -> None:
    """Whoever writes to a run that has ended is told so, and not left to hope."""
    place.submit()
    assert place.work() == "sealed"
    with pytest.raises(ConflictFault):
        Inbox(place.station.archive, RUN).put("message", by="ann", at=utc_now(), text="Hurry.")


# The plan

NOW = datetime(2026, 11, 30, 2, 0, tzinfo=UTC)


def rung(runs: list[Seen], slots: Slots) -> int:
    return sum(isinstance(decision, Ring) for decision in plan(NOW, runs, {"main": slots}))


def test_a_doorbell_is_rung_for_a_free_slot_alone() -> None:
    """Of four places one is free: one of three runs is rung."""
    assert rung([Seen(name, "queued") for name in "abc"], Slots(total=4, free=1)) == 1


def test_doorbells_that_nobody_answers_do_not_pile_up() -> None:
    """With one place, free for ever, two more may be under way; a fourth would be one too many."""
    waiting = [Seen(name, "queued") for name in "xyz"]
    assert rung([Seen("a", "queued", rung_age_s=20), *waiting], Slots(total=1, free=1)) == 1
    lost = [Seen(name, "queued", rung_age_s=20) for name in "abc"]
    assert rung([*lost, *waiting], Slots(total=1, free=1)) == 0


# What is left on an engine


def test_the_claimer_removes_what_earlier_claims_left(place: Place) -> None:
    """Before it works, so that nothing of a dead attempt works beside it."""
    place.submit()
    place.ledger().claim(CLAIM)
    left = place.opened(1)
    seen: list[set[str]] = []

    def opened(asked: Any) -> Any:
        seen.append(left & set(place.engine.things))
        return scripted(asked.model, asked.script or "")

    assert place.work(open_model=opened) == "sealed"
    assert seen == [set()]


def test_the_janitor_spares_the_current_attempt_alone(place: Place) -> None:
    """What belongs to an earlier claim, or to one that has ended, goes; another archive's is not looked at."""
    place.submit()
    place.ledger().claim(CLAIM)
    now = place.ledger()
    now.claim(CLAIM)
    place.opened(1)
    current, another = place.opened(2), place.opened(1, "another")
    sweep(place.station.archive, ARCHIVE_ID, place.station.sandbox)
    assert set(place.engine.things) == current | another
    now.commit(Sealed(outcome="cancelled"))
    sweep(place.station.archive, ARCHIVE_ID, place.station.sandbox)
    assert set(place.engine.things) == another


@pytest.mark.docker
def test_the_janitor_is_told_of_its_own_archive_alone(sandbox: DockerSandbox) -> None:
    """Two deployments on one engine do not clear up after each other."""
    mine, another = (Owner(archive, RUN, 1, "agent") for archive in ("guards-mine", "guards-another"))
    names = {owner: f"dawnfleet-test-{owner.archive}" for owner in (mine, another)}
    for owner, name in names.items():
        sandbox._engine.create_volume(name, shape.labels(owner))
    try:
        assert sandbox.owned("guards-mine") == [(mine, f"volume:{names[mine]}")]
    finally:
        for name in names.values():
            sandbox._engine.remove_volume(name)


def test_damaged_mail_is_met_between_two_calls(place: Place) -> None:
    """The attempt's ear outlives it, and the loop ends the run in sight."""
    place.submit()
    station, cancel = place.station, Cancel()
    ledger = Ledger(place.journal, cast(Lease, Lent()), cancel, station.redactor, utc_now, station.spool)
    ledger.claim(CLAIM)
    mailbox = Mailbox(station, ledger, cancel, place.journal.task().batch)
    assert mailbox.take() is None
    station.archive.create(keys.inbox(RUN, 0), b"garbage")
    mailbox.beat()
    with pytest.raises(IntegrityFault):
        mailbox.take()
