"""Delegates on the doubles: an agent of its own answers a call, whoever dies meanwhile, and its run pays for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from double_sandbox import MemorySandbox
from doubles import MemoryArchive, MemoryHints
from runs_made import audited
from world import ARCHIVE_ID, IMAGES, SOURCE, scripted
from world import task as sample

from scheduler.cli.transcript import full
from scheduler.gc import collect
from scheduler.runs import find_journal
from worker import attempt
from worker.contract.cancel import Cancel
from worker.contract.events import (
    Delegated,
    Event,
    Finished,
    Observation,
    Observed,
    Replied,
    Reply,
    digest,
)
from worker.contract.redact import Redactor
from worker.contract.run import Run
from worker.contract.settings import Settings
from worker.contract.task import Task
from worker.models.protocol import Model, ModelRequest
from worker.station import Station, utc_now
from worker.store import keys
from worker.store.inbox import Inbox
from worker.store.journal import Journal
from worker.store.local import LocalArchive

RUN, CALL = "run-0", "call_1_1"
CHILD = keys.delegate(RUN, CALL)
SCRIPT = """
- calls: [{tool: delegate, arguments: {goal: Where is it?}}]
  cost_usd: 0.01
  usage: {input_tokens: 100, output_tokens: 10}
- expect: It is in a[.]txt
  text: Done.
  cost_usd: 0.01
- delegate: Where
  replies:
    - calls:
        - {tool: run_command, arguments: {command: cat a.txt}}
        - {tool: run_command, arguments: {command: echo seen}}
      cost_usd: 0.02
      usage: {input_tokens: 200, output_tokens: 20}
    - expect: start
      calls: [{tool: read_output, arguments: {call_id: call_1_1}}]
      cost_usd: 0.02
    - text: It is in a.txt.
      cost_usd: 0.02
"""
SPENT_MICROUSD = 80_000
"""By the run and its delegate together, when each reply is paid for once."""


class Died(BaseException):
    """The end of a worker."""


class DyingArchive(MemoryArchive):
    """Whoever makes the write that `dies` says is dead, before it or right after, and so is all that it does then."""

    def __init__(self) -> None:
        super().__init__()
        self.created: list[str] = []
        self.dies: Callable[[str], str] = lambda key: ""
        self._dead = False

    def revive(self) -> None:
        self._dead, self.dies = False, lambda key: ""

    def create(self, key: str, data: bytes | Path) -> bool:
        when = self.dies(key)
        self._dead = self._dead or when == "before"
        if self._dead:
            raise Died
        made = super().create(key, data)
        if made:
            self.created.append(key)
        self._dead = when == "after"
        if self._dead:
            raise Died
        return made


@dataclass
class Place:
    """A worker's station on the doubles, and one submitted run. asked: (run, step) of each reply, in order; whoever
    asks for one that is committed fails. before: called with each request first."""

    folder: Path
    archive: DyingArchive = field(default_factory=DyingArchive)
    asked: list[tuple[str, int]] = field(default_factory=list)
    before: Callable[[Task, ModelRequest], None] = lambda task, request: None

    def __post_init__(self) -> None:
        self.archive.create(keys.source(digest(SOURCE)), SOURCE)
        self.station = Station(
            name="worker",
            lane="main",
            settings=Settings(hint_poll_s=0.02),
            archive=self.archive,
            archive_id=ARCHIVE_ID,
            hints=MemoryHints(time.monotonic),  # type: ignore[arg-type]
            sandbox=MemorySandbox("engine", self.folder, IMAGES),  # type: ignore[arg-type]
            redactor=Redactor({"TOKEN": "sesame-open"}),
            secrets={},
            open_model=self.open_model,
        )

    def open_model(self, task: Task) -> Model:
        return Asked(self, task, scripted(task.model, task.script or ""))

    def submit(self, script: str = SCRIPT, **fields: Any) -> None:
        plain = {"model": "scripted:x", "script": script, "checks": ()} | fields
        self.journal().submit(sample(0, "repair").model_copy(update=plain), by="ann", at=utc_now())

    def work(self, **changes: Any) -> str:
        return attempt.run(RUN, replace(self.station, **changes))

    def journal(self, run: str = RUN) -> Journal:
        return Journal(self.archive, run)

    def events(self, *kinds: type[Event], run: str = RUN) -> list[Any]:
        return [record.event for record, _ in self.journal(run).read() if isinstance(record.event, kinds)]

    def run(self, run: str = RUN) -> Run:
        return self.journal(run).load()

    def answer(self) -> Observation:
        """Of the call that was delegated."""
        [seen] = [event.observation for event in self.events(Observed) if event.observation.call_id == CALL]
        assert isinstance(seen, Observation)
        return seen


@dataclass
class Asked:
    """A model that tells its place what it is asked."""

    place: Place
    task: Task
    model: Model

    @property
    def name(self) -> str:
        return self.model.name

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        known = [event.step for event in self.place.events(Replied, run=self.task.run)]
        assert request.step not in known, "a reply that was paid for is asked for again"
        self.place.asked.append((self.task.run, request.step))
        self.place.before(self.task, request)
        return self.model.reply(request, timeout_s=timeout_s, cancel=cancel)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def costs(place: Place) -> int:
    """What all committed replies of the run and its delegate cost."""
    replies = [*place.events(Replied), *place.events(Replied, run=CHILD)]
    return sum(event.reply.cost_microusd or 0 for event in replies)


# What a delegate is, and what its run knows of it


def test_a_delegate_answers_a_call(place: Place) -> None:
    """Its last words are the observation; the rest stands in a journal of its own."""
    place.submit()
    assert place.work() == "sealed"
    seen = place.answer()
    assert (seen.tool, seen.status, seen.output) == ("delegate", "ok", "It is in a.txt.")
    child = place.run(CHILD)
    assert (child.steps, child.finished and child.finished.text) == (3, "It is in a.txt.")
    assert "Where is it?" in place.journal(CHILD).task().prompt
    assert place.asked == [(RUN, 1), (CHILD, 1), (CHILD, 2), (CHILD, 3), (RUN, 2)]
    assert list(place.archive.list("open/")) == []
    assert list(place.archive.folders("runs/")) == [RUN]


def test_the_run_pays_for_its_delegate_once(place: Place) -> None:
    """Reply by reply, so that the totals are right at any moment, and bound to the delegate's lines."""
    place.submit()
    place.work()
    run, told = place.run(), place.events(Delegated)
    assert (run.cost_microusd, run.tokens, run.steps) == (SPENT_MICROUSD, 330, 2)
    assert [event.cost_microusd for event in told] == [20_000] * 3
    lines = {record.seq: line_hash for record, line_hash in place.journal(CHILD).read()}
    assert all(lines[event.seq] == event.hash for event in told)
    assert told[-1].seq == place.run(CHILD).last_seq


@pytest.mark.parametrize("when", ["before", "after"])
def test_whoever_dies_at_any_write_of_a_delegate_is_followed(tmp_path: Path, when: str) -> None:
    """The next attempt goes on: the same answer, no reply that was committed is paid for again, and none is lost."""
    calm = Place(tmp_path)
    calm.submit()
    calm.work()
    begun = calm.archive.created.index(keys.task(CHILD))
    ended = max(n for n, key in enumerate(calm.archive.created) if CHILD in key) + 3
    assert ended - begun > 15
    for fatal in calm.archive.created[begun:ended]:
        place = Place(tmp_path)
        place.submit()
        place.archive.dies = lambda key, fatal=fatal: when if key == fatal else ""  # type: ignore[misc]
        with pytest.raises(Died):
            place.work()
        place.archive.revive()
        assert place.work() == "sealed", fatal
        run = place.run()
        assert place.answer().output == "It is in a.txt.", fatal
        assert (run.cost_microusd, costs(place)) == (SPENT_MICROUSD, SPENT_MICROUSD), fatal
        assert run.finished == Finished(text="Done."), fatal
        assert place.journal().verify() == [], fatal


def test_a_run_that_is_cancelled_at_its_takeover_has_paid_for_its_delegate(place: Place) -> None:
    """Also for the reply that nobody had told of when the worker died."""
    place.submit()
    committed = [0]

    def dies(key: str) -> str:
        committed[0] += key.startswith(keys.journal(CHILD))
        return "before" if key.startswith(keys.journal(RUN)) and committed[0] == 4 else ""

    place.archive.dies = dies
    with pytest.raises(Died):
        place.work()
    place.archive.revive()
    assert place.run().cost_microusd < costs(place) == 30_000
    Inbox(place.station.archive, RUN).put("cancel", by="ann", at=utc_now())
    assert place.work() == "sealed"
    assert place.run().cost_microusd == 30_000
    assert (place.run().sealed or Run()).outcome == "cancelled"  # type: ignore[union-attr]


# Its evidence


def test_verify_follows_the_run_into_its_delegates(place: Place) -> None:
    """Whatever is damaged there is named: a line, the task, an output, or all of it gone."""
    place.submit()
    place.work()
    assert place.journal().verify() == []
    blob = place.events(Observed, run=CHILD)[0].observation.blob
    last = place.events(Delegated)[-1].seq
    for key in (keys.segment(CHILD, 3), keys.segment(CHILD, last), keys.task(CHILD), keys.blob(CHILD, blob)):
        whole = place.archive.get(key)
        place.archive.overwrite(key, whole.replace(b"a", b"o", 1))
        assert any(key in problem for problem in place.journal().verify()), key
        place.archive.overwrite(key, whole)
    place.archive.delete([*place.archive.list(f"runs/{CHILD}/")])
    assert f"there is no run {CHILD}" in place.journal().verify()


def test_a_delegates_journal_that_was_replaced_is_noticed(place: Place) -> None:
    """Sound in itself, but not the one that the run has paid for."""
    place.submit()
    place.work()
    task = place.journal(CHILD).task()
    place.archive.delete([*place.archive.list(f"runs/{CHILD}/")])
    place.journal(CHILD).submit(task, by="mallory", at=utc_now())
    place.journal(CHILD).append(place.run(CHILD), [Finished(text="It is nowhere.")], attempt=None, at=utc_now())
    assert place.journal(CHILD).verify() == []
    assert any(keys.segment(CHILD, 3) in problem for problem in place.journal().verify())


def test_the_auditors_program_follows_the_run_into_its_delegates(place: Place, tmp_path: Path) -> None:
    """The one printed in FORMAT.md, on a copy of the archive."""
    place.submit()
    place.work()
    copy = LocalArchive((tmp_path / "copy").as_uri())
    for key in place.archive.list(""):
        copy.create(key, place.archive.get(key))
    assert audited(copy, RUN) == (0, "")
    segment = tmp_path / "copy" / keys.segment(CHILD, 3)
    segment.chmod(0o600)
    segment.write_bytes(segment.read_bytes().replace(b"a", b"o", 1))
    code, complaint = audited(copy, RUN)
    assert (code, CHILD in complaint) == (1, True)


def test_gc_takes_a_delegate_with_its_run_and_not_before(place: Place) -> None:
    """What its journal names is kept as long as the run is."""
    place.submit()
    place.work()
    mine = [key for key in place.archive.list("runs/") if key.startswith(f"runs/{CHILD}/")]
    now = datetime.now(UTC)
    collect(place.station.archive, keep_s=3600, now=now, dry_run=False)
    assert [key for key in place.archive.list("runs/") if key.startswith(f"runs/{CHILD}/")] == mine
    collect(place.station.archive, keep_s=0, now=now + timedelta(seconds=60), dry_run=False)
    assert list(place.archive.list("runs/")) == []


def test_people_read_of_a_delegate(place: Place) -> None:
    """In its run's log with what it cost, and its own journal by the name that is told there."""
    place.submit()
    place.work()
    records = [record for record, _ in place.journal().read()]
    told = [full(record) for record in records if isinstance(record.event, Delegated)]
    assert told[0].startswith(
        "its delegate goes on: 220 tokens, $0.02; segment 3 of run-0/delegates/call_1_1 ends in"
    )
    assert find_journal(place.station.archive, "run-0/delegates/call_1_1") == CHILD
    assert find_journal(place.station.archive, "run-") == RUN
