"""Delegates on the doubles: an agent of its own answers a call, whoever dies meanwhile, and its run pays for it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import double_sandbox
import pytest
from conftest import wait_for
from double_sandbox import MemorySandbox
from doubles import MemoryArchive, MemoryHints
from runs_made import audited
from world import ARCHIVE_ID, IMAGES, SOURCE, scripted
from world import task as sample

from scheduler.cli.transcript import full
from scheduler.gc import collect
from scheduler.reports.rows import summary
from scheduler.runs import find_journal, view
from worker import attempt, delegate, spending
from worker.before_call import no_hook
from worker.contract.cancel import Cancel
from worker.contract.errors import FencedFault, InvalidFault, ProviderFault, StoreFault
from worker.contract.events import (
    Claimed,
    Delegated,
    Event,
    Finished,
    Observation,
    Observed,
    Replied,
    Reply,
    Sealed,
    ToolCall,
    Unrecorded,
    canonical,
    digest,
)
from worker.contract.fork import step_end
from worker.contract.model_name import parse_model_name
from worker.contract.redact import Redactor
from worker.contract.run import Run
from worker.contract.script import delegate_script, parse_script
from worker.contract.settings import Settings
from worker.contract.task import Budget, ForkPoint, Limits, OwnTool, Task
from worker.ledger import Ledger
from worker.models.protocol import Model, ModelRequest, cancelled_fault
from worker.replay import Replay, Replayed
from worker.station import Station, utc_now
from worker.store import keys
from worker.store.counters import Counters, Part
from worker.store.hints import Hints
from worker.store.inbox import Control, Inbox
from worker.store.journal import Journal
from worker.store.local import LocalArchive
from worker.tools.toolset import delegates_toolset, toolset

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
    - text: I look.
      calls:
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
    asks for one that is committed fails. before: called with each request first. cancel: of the last one."""

    folder: Path
    archive: DyingArchive = field(default_factory=DyingArchive)
    asked: list[tuple[str, int]] = field(default_factory=list)
    before: Callable[[Task, ModelRequest], None] = lambda task, request: None
    cancel: Cancel = field(default_factory=Cancel)

    def __post_init__(self) -> None:
        self.hints = MemoryHints(time.monotonic)
        self.archive.create(keys.source(digest(SOURCE)), SOURCE)
        self.station = Station(
            name="worker",
            lane="main",
            settings=Settings(hint_poll_s=0.02),
            archive=self.archive,
            archive_id=ARCHIVE_ID,
            hints=self.hints,  # type: ignore[arg-type]
            sandbox=MemorySandbox("engine", self.folder, IMAGES),  # type: ignore[arg-type]
            redactor=Redactor({"TOKEN": "sesame-open"}),
            secrets={},
            open_model=self.open_model,
        )

    def open_model(self, task: Task) -> Model:
        return Asked(self, task, scripted(task.model, task.script or ""))

    def submit(self, script: str | None = SCRIPT, **fields: Any) -> None:
        plain = {"model": "scripted:x", "script": script, "checks": ()} | fields
        self.journal().submit(sample(0, "repair").model_copy(update=plain), by="ann", at=utc_now())

    def work(self, **changes: Any) -> str:
        return attempt.run(RUN, replace(self.station, **changes))

    def dies_at(self, reply: int) -> None:
        """An attempt whose worker dies as it asks for the reply after so many; whoever comes next lives."""

        def dies(task: Task, request: ModelRequest) -> None:
            if len(self.asked) == reply:
                raise Died

        self.before = dies
        with pytest.raises(Died):
            self.work()
        self.before = lambda task, request: None

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
        self.place.cancel = cancel
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


def test_a_fork_behind_a_delegate_needs_nothing_of_it(place: Place) -> None:
    """The answer is part of the conversation; what it cost is its parent's."""
    place.submit()
    place.work()
    _, (record, line_hash) = step_end(list(place.journal().read()), 1)
    point = ForkPoint(run=RUN, step=1, seq=record.seq, hash=line_hash)
    task = place.journal().task().model_copy(update={"run": "run-1", "fork": point})
    place.journal("run-1").submit(task, by="ann", at=utc_now())
    place.archive.delete([*place.archive.list(f"runs/{CHILD}/")])
    assert attempt.run("run-1", place.station) == "sealed"
    assert place.run("run-1").finished == Finished(text="Done.")
    assert place.journal("run-1").verify() == []
    assert place.run("run-1").spent_microusd == 10_000


def test_people_read_of_a_delegate(place: Place) -> None:
    """In its run's log with what it cost, and its own journal by the name that is told there."""
    place.submit()
    place.work()
    records = [record for record, _ in place.journal().read()]
    told = [full(record) for record in records if isinstance(record.event, Delegated)]
    assert told[0].startswith(
        "its delegate goes on: 220 tokens, $0.02; segment 3 of run-0/delegates/call_1_1 ends in"
    )
    shown = dict(summary(view(place.station.archive, RUN), datetime.now(UTC)))
    assert shown["delegates"] == f"dawn logs {CHILD}"
    assert find_journal(place.station.archive, "run-0/delegates/call_1_1") == CHILD
    assert find_journal(place.station.archive, "run-") == RUN


# A takeover, a wait, a limit


@pytest.mark.parametrize("away", [False, True], ids=["", "the store is away for a moment"])
def test_a_reply_that_was_lost_with_its_worker_is_counted(
    place: Place, away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, at the takeover, by what it can have cost at most."""
    place.submit(model="openai/simulated")

    place.dies_at(reply=3)
    get, troubles = place.archive.get, [StoreFault("away")] if away else []

    def gets(key: str, **bounds: Any) -> bytes:
        if key == keys.task(CHILD) and troubles:
            raise troubles.pop()
        return get(key, **bounds)

    monkeypatch.setattr(place.archive, "get", gets)
    assert place.work() == "sealed"
    assert troubles == []
    [lost] = place.events(Unrecorded)
    assert lost.tokens > 16_384
    assert place.run().tokens == 330 + lost.tokens
    assert place.events(Unrecorded, run=CHILD) == []


def test_a_fold_of_a_budget_knows_of_a_delegates_call_in_flight(place: Place) -> None:
    """By what it may cost, as of any run's; and of what a delegate has cost until then."""
    place.submit(model="openai/gpt-4o-mini")
    found: list[Part] = []

    def looks(task: Task, request: ModelRequest) -> None:
        if (task.run, request.step) == (CHILD, 2):
            found.append(spending._part(place.archive, "batch:batch", RUN, place.station.prices, 0.0))

    place.before = looks
    assert place.work() == "sealed"
    assert found[0].spent_microusd == 30_000
    assert found[0].estimate_microusd > 0
    ended = spending._part(place.archive, "batch:batch", RUN, place.station.prices, 0.0)
    assert (ended.spent_microusd, ended.estimate_microusd) == (SPENT_MICROUSD, 0)


def test_a_drain_stops_a_delegate_between_its_calls(place: Place) -> None:
    """The next attempt goes on where it stood, and nothing counts as lost."""
    place.submit(model="openai/simulated")
    drain = Cancel()
    place.before = lambda task, request: drain.set("drain") if (task.run, request.step) == (CHILD, 2) else None
    assert place.work(drain=drain) == "yielded"
    assert (place.run(CHILD).steps, len(place.run(CHILD).pending)) == (2, 1)
    assert place.work() == "sealed"
    assert place.events(Unrecorded) == []
    assert place.run().cost_microusd == SPENT_MICROUSD


def test_a_cancel_ends_a_delegate_in_the_middle_of_a_reply(place: Place) -> None:
    """What it spent until then is the run's."""
    place.submit()

    def cancels(task: Task, request: ModelRequest) -> None:
        if (task.run, request.step) == (CHILD, 3):
            Inbox(place.station.archive, RUN).put("cancel", by="ann", at=utc_now())
            place.hints.poke(f"run:{RUN}", 1)
            wait_for(lambda: place.cancel.is_set())
            raise cancelled_fault(place.cancel)

    place.before = cancels
    assert place.work() == "sealed"
    assert place.run().cost_microusd == costs(place) == 50_000


def test_a_delegate_whose_provider_is_away_parks_its_run(place: Place) -> None:
    """The worker is free meanwhile, and the delegate goes on from its last reply."""
    place.submit()

    def away(task: Task, request: ModelRequest) -> None:
        if (task.run, request.step) == (CHILD, 2):
            raise ProviderFault("unavailable", "no quota", retryable=True, retry_after_s=3600)

    place.before = away
    assert place.work() == "parked"
    run = place.run()
    assert run.waiting is not None
    assert (run.waiting.waiting, place.run(CHILD).provider_parks) == ("provider", 1)
    place.before = lambda task, request: None
    later = (datetime.now(UTC) + timedelta(seconds=3700)).isoformat(timespec="milliseconds")
    assert place.work(now=lambda: later) == "sealed"
    assert place.answer().output == "It is in a.txt."
    assert place.run().cost_microusd == SPENT_MICROUSD


def test_a_delegate_is_held_to_the_budget_of_its_batch(place: Place, redis_url: str) -> None:
    """Its run waits where the money is used up, and it goes on when somebody raises the budget."""
    hints = Hints(redis_url)
    place.archive.create(keys.batch_targets("batch"), canonical({"targets": [{"target": "t", "run": RUN}]}))
    place.submit(budget=Budget(usd=0.03))
    assert place.work(hints=hints) == "parked"
    run = place.run()
    assert run.waiting is not None
    assert (run.waiting.waiting, run.waiting.detail) == ("budget", "$0.03 of $0.03 spent")
    assert (run.cost_microusd, place.run(CHILD).steps) == (30_000, 1)
    Control(place.station.archive, "batch").put("budget", by="ann", at=utc_now(), text="1")
    assert place.work(hints=hints) == "sealed"
    assert place.run().cost_microusd == SPENT_MICROUSD
    assert Counters(hints).spent("batch:batch") == SPENT_MICROUSD
    hints.close()


def test_a_delegate_has_a_part_of_what_its_run_has_left(place: Place) -> None:
    """Of tokens, money and time a quarter; thirty replies; nobody to ask and nobody to send."""
    place.submit(limits=Limits(tokens=1_110, cost_usd=0.51, working_time_s=400))
    place.work()
    task = place.journal(CHILD).task()
    assert (task.limits.steps, task.limits.tokens, task.limits.cost_usd) == (30, 250, 0.125)
    assert 95 < task.limits.working_time_s <= 100
    assert (task.on_ask, task.commands, task.checks) == ("deny", (), ())


def test_a_delegate_that_has_used_its_part_is_an_observation(place: Place) -> None:
    """Its run goes on, and knows why."""
    script = SCRIPT.replace("expect: It is in a[.]txt", "expect: limit/cost")
    place.submit(script, limits=Limits(cost_usd=0.09))
    assert place.work() == "sealed"
    seen = place.answer()
    assert (seen.status, seen.exit_code) == ("error", 1)
    assert seen.output.startswith("it ended as limit/cost: ")
    assert seen.output.endswith("\nI look.")
    assert place.run().finished == Finished(text="Done.")


@pytest.mark.parametrize(
    ("limits", "script", "said"),
    [
        (Limits(tokens=112), SCRIPT, "what this run may spend is used up"),
        (Limits(), SCRIPT.replace("delegate: Where", "delegate: Why"), "no `delegate` is found in the goal"),
    ],
)
def test_a_delegate_that_cannot_begin_is_an_observation(place: Place, limits: Limits, script: str, said: str) -> None:
    """Nothing is written for it, and its run goes on."""
    place.submit(script.replace("expect: It is in a[.]txt", f"expect: {said[:10]}"), limits=limits)
    assert place.work() == "sealed"
    assert said in place.answer().output
    assert place.archive.size(keys.task(CHILD)) is None


def test_a_delegate_whose_journal_is_damaged_is_an_observation(place: Place) -> None:
    """It is not begun anew under the same name, and its run does not end for it."""
    place.submit(SCRIPT.replace("expect: It is in a[.]txt", "expect: no delegate"))

    place.dies_at(reply=3)
    place.archive.overwrite(keys.segment(CHILD, 1), b"{}\n")
    assert place.work() == "sealed"
    assert keys.segment(CHILD, 1) in place.answer().output
    assert place.run().cost_microusd == 40_000
    assert any(keys.segment(CHILD, 1) in problem for problem in place.journal().verify())


def test_a_long_answer_is_cut(place: Place) -> None:
    """The run's model reads its beginning; the delegate's journal has all of it."""
    said = "é" * 3_000
    script = SCRIPT.replace("text: It is in a.txt.", f"text: {said}")
    place.submit(script.replace("expect: It is in a[.]txt", "expect: é"))
    assert place.work() == "sealed"
    assert place.answer().output == "é" * 2_048 + "\n[cut here, of 6000 bytes]"
    assert place.run(CHILD).finished == Finished(text=said)


def test_an_answer_that_is_no_valid_text_is_told(place: Place) -> None:
    """Half of a character becomes a sign for it; the delegate's journal has it as it came."""

    @dataclass
    class Halved:
        name: str = "half"

        def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
            return Reply(text="It is in a.txt \ud83d", cost_microusd=0)

    place.submit()
    opened = place.open_model
    assert place.work(open_model=lambda task: Halved() if task.run == CHILD else opened(task)) == "sealed"
    assert place.answer().output == "It is in a.txt \ufffd"
    assert place.run(CHILD).finished == Finished(text="It is in a.txt \ud83d")


def test_secrets_are_masked_in_a_delegates_journal_too(place: Place) -> None:
    """Before the first write, as in any other."""
    place.submit(SCRIPT.replace("echo seen", "echo sesame-open"))
    assert place.work() == "sealed"
    assert not any(b"sesame-open" in place.archive.get(key) for key in place.archive.list(f"runs/{CHILD}/journal/"))


def test_a_worker_that_lost_its_run_writes_nothing_more_for_its_delegate(place: Place) -> None:
    """Whoever claimed the run meanwhile has the delegate's journal for itself."""
    place.submit()

    def stolen(task: Task, request: ModelRequest) -> None:
        if (task.run, request.step) == (CHILD, 2):
            place.before = lambda task, request: None
            place.hints.drop_lease(f"run:{RUN}")
            assert place.work() == "sealed"

    place.before = stolen
    assert place.work() == "fenced"
    assert place.run().cost_microusd == SPENT_MICROUSD
    assert place.journal().verify() == []


class Late:
    """A lease that had ended for a while."""

    def wait_current(self) -> bool:
        return False


def test_a_delegates_pen_has_its_runs_term(place: Place) -> None:
    """Nothing begins for a delegate whose run went on elsewhere."""
    place.submit()

    def claimed() -> Ledger:
        ledger = Ledger(place.journal(), Late(), Cancel(), place.station.redactor, utc_now)
        ledger.claim(Claimed(worker="w", engine="e", lane="main"))
        return ledger

    ours = claimed()
    assert delegate._Within(ours).wait_current()
    claimed()
    with pytest.raises(FencedFault):
        delegate._Within(ours).wait_current()


# What it may do


def test_a_delegate_is_offered_what_only_reads() -> None:
    """Its run's own reading tools too, what its run withholds not, and no delegate of its own."""
    looks, acts = (
        OwnTool(name=name, description="Do it.", arguments={"type": "object"}, command="true", effect=effect)
        for name, effect in (("look", "read"), ("act", "write"))
    )
    task = sample(0, "repair").model_copy(update={"tools": (looks, acts), "without_tools": ("search",)})
    assert [spec.name for spec in delegates_toolset(task).specs] == [
        "list_files", "read_file", "run_command", "read_output", "look",
    ]  # fmt: skip
    assert "delegate" in [spec.name for spec in toolset(task).specs]


def test_what_a_delegate_writes_is_not_there(place: Place) -> None:
    """Its commands see a workspace that they cannot change."""
    place.submit(SCRIPT.replace("echo seen", "echo spoilt > a.txt"))
    assert place.work() == "sealed"
    assert place.run().files == ()
    [sealed] = place.events(Sealed)
    assert sealed.outcome == "no_change"


def test_a_delegate_cannot_delegate(place: Place) -> None:
    """The tool is not there for it."""
    place.submit(
        SCRIPT.replace("run_command, arguments: {command: echo seen}", "delegate, arguments: {goal: Where?}")
    )
    assert place.work() == "sealed"
    told = place.events(Observed, run=CHILD)[1].observation
    assert told.output.startswith('there is no tool "delegate"')


# Its script, and its replay


@pytest.mark.parametrize("character", ["\x7f", "\x85", "\u2028", "\ufeff", "\ufffe", "\U0001f600", "\\\x7f"])
def test_a_delegate_says_every_character_that_its_script_holds(character: str) -> None:
    """Also one that YAML takes only escaped; half a character is refused as in any file (test_places.py)."""
    escaped = "".join(f"\\U{ord(part):08x}" for part in character)
    text = f'[{{text: x}}, {{delegate: go, replies: [{{text: "a{escaped}b"}}]}}]'
    parse_script(text, "s")
    assert parse_script(delegate_script(text, "s", "go"), "s").turns[0][0].text == f"a{character}b"


def test_a_script_says_what_a_delegate_says() -> None:
    """The first whose pattern is found in the goal."""
    text = "- text: Done.\n- {delegate: a, replies: [text: one]}\n- {delegate: '', replies: [text: two]}\n"
    assert len(parse_script(text, "s").turns) == 1
    assert parse_script(delegate_script(text, "s", "an a"), "s").turns[0][0].text == "one"
    assert parse_script(delegate_script(text, "s", "nothing"), "s").turns[0][0].text == "two"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{delegate: '(', replies: [text: x]}", "s:2:4: [1].delegate is not a regular expression"),
        ("{delegate: x, replies: []}", "s:2:17: [1].replies"),
        ("{delegate: x}", "[1].replies Field required"),
        ("{delegate: x, replies: [{txt: y}]}", "s:2:28: [1].replies[0].txt Extra inputs are not permitted"),
        ("{delegate: x, replies: [{text: y}, {delegate: x, replies: [text: z]}]}", "[1].replies[1].delegate Extra"),
    ],
)
def test_a_mistake_in_a_delegates_script_is_told_with_its_place(entry: str, said: str) -> None:
    """Before anything runs."""
    with pytest.raises(InvalidFault, match=re.escape(said)):
        parse_script(f"- text: Done.\n- {entry}\n", "s")


def test_a_run_with_a_delegate_can_be_the_model_of_another(place: Place) -> None:
    """`replay:RUN` has the delegate's words too, under the same call."""
    place.submit(model="replay:other", script=None)
    task = place.journal().task()
    made = delegate._task(task, Run(), 0.0, ToolCall(id=CALL, name="delegate", arguments="{}"), "Where?")
    assert made.model == "replay:other/delegates/call_1_1"
    assert parse_model_name(made.model).name == keys.delegate("other", CALL)


def replayed(place: Place) -> Replayed:
    sandbox, settings = place.station.sandbox, place.station.settings
    return Replay(place.station.archive, sandbox, settings, Redactor({}), no_hook, lambda line: None).of(RUN)


def test_a_delegate_comes_again_in_a_replay(place: Place) -> None:
    """Its calls are run again on its recorded replies, in nobody's archive."""
    place.submit()
    place.work()
    before = {key: place.archive.get(key) for key in place.archive.list("")}
    place.asked.clear()
    assert replayed(place) == Replayed(RUN, steps=2, calls=1, alike=0, outside=0, diverged=None)
    assert {key: place.archive.get(key) for key in place.archive.list("")} == before
    assert place.asked == []


def test_a_replay_tells_where_a_delegate_went_another_way(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first difference in its own journal."""
    place.submit()
    place.work()
    monkeypatch.setattr(double_sandbox._Shell, "_command", lambda self, words: (0, b"something else"))
    told = replayed(place).diverged
    assert told is not None
    assert (told["what"], told["now"]) == ("delegate of call_1_1: run_command (call_1_1): output", "something else")


def test_a_delegate_that_outlived_a_worker_comes_again_in_a_replay(place: Place) -> None:
    """The reply that was lost is in the record, and nothing else of it."""
    place.submit(model="openai/simulated")

    place.dies_at(reply=3)
    place.work()
    assert replayed(place).diverged is None


def test_a_delegate_that_lost_its_provider_is_not_asked_again_by_a_replay(place: Place) -> None:
    """Its recorded answer is taken, as that of a call that reached outside."""

    def refuses(task: Task, request: ModelRequest) -> None:
        if (task.run, request.step) == (CHILD, 2):
            raise ProviderFault("auth", "no such key")

    place.submit(SCRIPT.replace("expect: It is in a[.]txt", "expect: provider/auth"))
    place.before = refuses
    assert place.work() == "sealed"
    assert (replayed(place).diverged, replayed(place).outside) == (None, 1)
