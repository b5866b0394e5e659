"""Candidates that share what their commands do: when those that wait for the first one begin, and as what, in the
scheduler's loop on a real Redis and a real archive."""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from doubles import Died
from runs_made import AT, audited, claimed, ended
from test_fork import LIMIT, PREPARED
from test_tick import World

from scheduler.cli.main import run as dawn
from scheduler.control import announce, tell
from scheduler.enqueue import Batch, freeze, submit
from scheduler.fork import Wish, fork
from scheduler.manifests.reading import ManifestFault, parse
from scheduler.planning.followers import AT_FAULT
from scheduler.planning.forecast import forecast
from scheduler.reports.rows import detail
from scheduler.retry import retry, wishes
from scheduler.runs import Found, standing, views
from scheduler.schedules import stored
from scheduler.schedules.cron import Schedule
from scheduler.selection import Selection
from scheduler.watch import Watch
from worker.contract.errors import InvalidFault
from worker.contract.events import (
    Event,
    Failure,
    Finished,
    Observation,
    Observed,
    Replied,
    Reply,
    Sealed,
    SnapshotRef,
    Steered,
    ToolCall,
    Usage,
    digest,
)
from worker.contract.fork import commands_end
from worker.contract.run import Run
from worker.contract.settings import Settings
from worker.contract.task import Limits, Repo
from worker.store import keys
from worker.store.archive import Archive, open_archive
from worker.store.inbox import Inbox
from worker.store.journal import Journal

TEXT = """\
version: 1
name: night
targets: [{repo: https://git.example.org/a}]
task: {commands: [one, two], model: anthropic/x, prompt: Fix it.}
candidates: {count: 3, after: commands}
"""
SETUP = Failure(cls="env", reason="setup", detail="it ended with 1")


def batch(text: str = TEXT, key: str = "") -> Batch:
    loaded = parse(text, "m", Path("/"), Limits())
    repos = [Repo(url=one.target.repo, label=one.id, commit="c" * 40) for one in loaded.targets]
    return freeze(loaded, repos, key=key)


def command(step: int) -> list[Event]:
    """One of the task's commands and what came of it."""
    call = ToolCall(id=f"c{step}", name="run_command", arguments='{"command": "x"}')
    reply = Reply(calls=(call,), usage=Usage(), cost_microusd=0)
    seen = Observation(call_id=f"c{step}", tool="run_command", status="ok", exit_code=0, output=f"out {step}")
    taken = SnapshotRef(listing=digest(b"l"), tree=digest(b"t"), object=digest(b"s%d" % step), level=step - 1)
    return [Replied(step=step, phase="commands", reply=reply), Observed(observation=seen, snapshot=taken)]


def asked(step: int = 3) -> Replied:
    """The model's first reply."""
    usage = Usage(input_tokens=100, output_tokens=10)
    return Replied(step=step, phase="model", reply=Reply(text="done", usage=usage, cost_microusd=10))


class Night(World):
    """A batch of three candidates, the first of which the test works on."""

    def begin(self, text: str = TEXT, *, submitted: bool = True) -> None:
        self.batch = batch(text)
        self.first, *self.others = [task.run for task in self.batch.tasks]
        self.offer(4)
        if submitted:
            submit(self.batch, self.archive, by="me", at=AT)
            announce(self.hints)

    def works(self, *events: Event) -> Run:
        """The first candidate, after these of its attempt."""
        journal = Journal(self.archive, self.first)
        run = journal.load()
        for event in events:
            run = journal.append(run, [event], attempt=run.attempt, at=AT)
        return run

    def told(self, run: str) -> list[str]:
        return [record.event.type for record, _ in Journal(self.archive, run).read()]


@pytest.fixture
def night(archive: Archive, redis_url: str) -> Night:
    """Submitted, and its first candidate rung."""
    made = Night(archive, redis_url)
    made.begin()
    assert made.tick() == [(made.first, "batch")]
    return made


BEGUN = (claimed(), PREPARED)
COPIED = ["submitted", "prepared", "replied", "observed", "replied", "observed"]


def test_the_others_wait_until_the_commands_are_done(night: Night) -> None:
    """Neither a step of the first nor the first half of its last command is enough; the end of that is, before the
    model has said a word. Then they are rung side by side."""
    first, last = command(1), command(2)
    night.works(*BEGUN, *first, last[0])
    assert night.tick(60) == []
    assert [night.told(run) for run in night.others] == [[], []]
    night.works(last[1])
    assert sorted(night.tick(6)) == sorted((run, "batch") for run in night.others)
    assert [night.told(run) for run in night.others] == [COPIED, COPIED]


def test_they_are_forks_of_the_first(night: Night, archive: Archive) -> None:
    """Segment 0 names parent, segment and hash; files are the first one's, and so is what was spent on them. What the
    model did there since is not theirs."""
    night.works(*BEGUN, *command(1), *command(2), asked())
    night.tick(6)
    run = Journal(archive, night.others[0]).load()
    assert (run.parent, run.snapshots_of, run.steps, run.command_steps) == (night.first, night.first, 2, 2)
    assert (run.inherited_steps, run.spent_microusd, run.turn, run.submitted_by) == (2, 0, "model", "me")


def test_what_was_told_to_the_first_is_told_to_it_alone(night: Night) -> None:
    """Words are no part of what is shared, though a fork that a person makes takes them along."""
    night.works(*BEGUN, *command(1), Steered(n=0, kind="message", by="boss", text="hurry"), *command(2))
    night.tick(6)
    assert night.told(night.others[0]) == COPIED


def test_their_journals_are_sound_and_audited(night: Night, archive: Archive) -> None:
    """What they copied is looked for with the first one, by us and by the program of FORMAT.md."""
    for step in (1, 2):
        Journal(archive, night.first).put_snapshot(b"s%d" % step)
    night.works(*BEGUN, *command(1), *command(2))
    night.tick(6)
    for run in night.others:
        assert [one for one in Journal(archive, run).verify() if "environments/" not in one] == []
        assert audited(archive, run) == (0, "")


@pytest.mark.parametrize("failure", [SETUP, LIMIT, Failure(cls="agent", reason="failing_calls")])
def test_what_failed_before_is_not_done_again(night: Night, archive: Archive, failure: Failure) -> None:
    """The same commands would fail the same way: the others are skipped and say why, and the target has failed."""
    assert failure.cls in AT_FAULT
    night.works(claimed(), Finished(failure=failure), Sealed(outcome="failed", failure=failure))
    assert night.tick(6) == []
    why = f"candidate 1 ended before its commands were done: {failure}"
    for run in night.others:
        sealed = Journal(archive, run).load().sealed
        assert sealed is not None
        assert (sealed.outcome, sealed.detail) == ("skipped", why)
        assert audited(archive, run) == (0, "")
    assert list(archive.list("open/")) == [keys.open_marker(night.first)]  # until its attempt, which is the test's
    [counts] = standing(views(archive, [night.first, *night.others]).found)
    assert counts.task.run == night.first


@pytest.mark.parametrize(
    "end",
    [
        Sealed(outcome="failed", failure=Failure(cls="infra", reason="engine")),
        Sealed(outcome="cancelled"),
    ],
)
def test_what_says_nothing_of_the_commands_lets_the_others_begin_alone(night: Night, end: Sealed) -> None:
    """A first candidate that our machinery lost, or that a person cancelled."""
    night.works(claimed(), end)
    assert sorted(night.tick(6)) == sorted((run, "batch") for run in night.others)
    assert [night.told(run) for run in night.others] == [["submitted"]] * 2


def test_a_command_that_may_not_run_is_no_end(night: Night, archive: Archive) -> None:
    """It is refused together with its result; whoever went on behind it would have passed the refusal."""
    replied, seen = command(2)
    refused = Failure(cls="refused", reason="guard", detail="git push")
    run = night.works(*BEGUN, *command(1), replied)
    Journal(archive, night.first).append(run, [seen, Finished(failure=refused)], attempt=1, at=AT)
    assert night.tick(60) == []
    night.works(Sealed(outcome="failed", failure=refused))
    night.tick(60)
    assert night.told(night.others[0]) == ["submitted", "sealed"]


def test_a_first_one_that_has_ended_long_ago_is_forked_all_the_same(night: Night) -> None:
    """A scheduler that was away finds the end of the commands in the journal of a sealed run."""
    night.works(*BEGUN, *command(1), *command(2), asked(), *ended(verdict="verified"))
    night.hints.release("scheduler", night.scheduler._token)
    night.scheduler = night.another()
    night.tick(3600)
    assert [night.told(run) for run in night.others] == [COPIED, COPIED]


def test_commands_that_said_too_much_are_run_by_each(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a segment cannot hold is not begun as a copy."""
    night.works(*BEGUN, *command(1), *command(2))
    monkeypatch.setattr("worker.store.journal.SEGMENT_BYTES", 2_000)
    assert sorted(night.tick(6)) == sorted((run, "batch") for run in night.others)
    assert night.told(night.others[0]) == ["submitted"]


@pytest.mark.parametrize("to", ["run", "batch"])
@pytest.mark.parametrize("hint", [True, False])
def test_one_that_waits_can_be_cancelled(night: Night, archive: Archive, to: Any, hint: bool) -> None:
    """By itself or with its batch, with a hint or without; the cancelled one is not begun, and its journal says by
    whom."""
    one, other = night.others
    night.works(*BEGUN)
    night.hints.claim(f"run:{night.first}", "token", 600)
    found = Found(to, one if to == "run" else night.batch.id)
    tell(archive, night.hints if hint else None, found, "cancel", by="boss", at=AT)
    assert night.tick(16) == []
    sealed = Journal(archive, one).load().sealed
    assert sealed is not None
    assert (sealed.outcome, sealed.detail) == ("cancelled", "cancelled by boss")
    assert (archive.size(keys.open_marker(other)) is None) == (to == "batch")


def test_a_cancel_and_a_failure_at_once_are_a_cancel(night: Night, archive: Archive) -> None:
    """Whoever reads the inbox last, as it is closed."""
    one = night.others[0]
    night.works(claimed(), Sealed(outcome="failed", failure=SETUP))
    followers = night.scheduler._register.followers
    Inbox(archive, one).put("cancel", by="boss", at=AT)
    followers.begin((), ())
    sealed = Journal(archive, one).load().sealed
    assert sealed is not None
    assert (sealed.outcome, sealed.detail) == ("cancelled", "cancelled by boss")


def test_one_that_is_paused_while_it_waits_is_paused_when_it_has_begun(night: Night, archive: Archive) -> None:
    """It goes on from the commands when a person lets it."""
    one, other = night.others
    tell(archive, night.hints, Found("run", one), "pause", by="boss", at=AT)
    night.works(*BEGUN, *command(1), *command(2))
    assert night.tick(6) == [(other, "batch")]
    tell(archive, night.hints, Found("run", one), "unpause", by="boss", at=AT)
    assert night.tick(1) == [(one, "batch")]
    assert night.told(one) == COPIED


def test_a_first_one_that_nobody_can_read_yet_stops_nobody(night: Night, archive: Archive) -> None:
    """A damaged journal, which is ended in sight: others of its target wait for that, and then begin alone, or from
    the end of the commands where that is sound."""
    night.works(*BEGUN, *command(1))
    key = keys.segment(night.first, 4)
    whole = archive.get(key)
    archive.delete([key])
    archive.create(key, whole[:9])
    night.hints.claim(f"run:{night.first}", "token", 600)
    night.hints.release("scheduler", night.scheduler._token)
    night.scheduler = night.another()
    assert night.tick(60) == []
    assert night.tick(1) == []
    assert [night.told(run) for run in night.others] == [[], []]
    night.hints.release(f"run:{night.first}", "token")
    assert sorted(night.tick(60)) == sorted((run, "batch") for run in night.others)


def test_waves_count_those_that_wait(archive: Archive, redis_url: str) -> None:
    """The second target begins when all candidates of the first have ended, and not before its others began."""
    night = Night(archive, redis_url)
    night.begin(TEXT.replace("targets: [{", "targets: [{repo: https://git.example.org/b}, {") + "waves: [1, rest]\n")
    assert night.tick() == [(night.first, "batch")]
    night.works(*BEGUN, *command(1), *command(2), asked(), *ended(verdict="verified"))
    assert len(night.tick(60)) == 2
    others = night.others[:2]
    for run in others:
        journal = Journal(archive, run)
        folded = journal.load()
        for event in (claimed(), *ended(verdict="verified")):
            folded = journal.append(folded, [event], attempt=folded.attempt, at=AT)
        night.hints.answered(run)
    assert night.tick(60) == []
    assert night.tick(1) == [(night.others[2], "batch")]


def test_two_schedulers_begin_each_once(night: Night, archive: Archive) -> None:
    """One that still believes it leads writes nothing more."""
    late = night.another()
    late._register.update([night.first, *night.others], anew=True)
    night.works(*BEGUN, *command(1), *command(2))
    night.tick(6)
    before = {key: archive.get(key) for key in archive.list("runs/")}
    late._register.follow(())
    assert {key: archive.get(key) for key in archive.list("runs/")} == before
    assert night.others[0] in late._register


@pytest.mark.full
@pytest.mark.parametrize("end", ["commands", "failed"])
def test_whoever_dies_at_any_write_is_completed(archive: Archive, redis_url: str, end: str, tmp_path: Path) -> None:
    """The submit dies before any of its writes, and is made again; schedulers die before any of theirs, and the next
    goes on. Each time the archive is, in the end, what it is when nobody dies."""
    whole = _played(archive, redis_url, end, 0, 0)
    assert whole["others"] == ([COPIED] * 2 if end == "commands" else [["submitted", "sealed"]] * 2)
    for who in ("submit", "scheduler"):
        writes = whole[who]
        assert writes >= 4
        for number in range(1, writes + 1):
            other = open_archive(f"file://{tmp_path / who / str(number)}", Settings())
            dies = (number, 0) if who == "submit" else (0, number)
            told = _played(other, redis_url, end, *dies)
            assert {name: told[name] for name in ("others", "keys")} == {
                name: whole[name] for name in ("others", "keys")
            }, (who, number)


def _played(archive: Archive, url: str, end: str, submit_dies: int, scheduler_dies: int) -> dict[str, Any]:
    """A night in which somebody dies before a write of that number (0: nobody). What is left of it, and how many
    writes there were."""
    night = Night(archive, url)
    night.begin(submitted=False)
    dying = Counted(archive, submit_dies)
    with suppress(Died):
        submit(night.batch, dying, by="me", at=AT)
    assert submit(night.batch, archive, by="me", at=AT) == 0 or submit_dies
    announce(night.hints)
    night.tick()
    ends = [Sealed(outcome="failed", failure=SETUP)] if end == "failed" else [PREPARED, *command(1), *command(2)]
    night.works(claimed(), *ends)
    counted = Counted(archive, scheduler_dies)
    for through in (counted, archive):
        night.hints.release("scheduler", night.scheduler._token)
        night.archive = through
        night.scheduler = night.another()
        with suppress(Died):
            night.tick(60)
    night.hints.release("scheduler", night.scheduler._token)
    for run in [task.run for task in night.batch.tasks]:
        night.hints.answered(run)
    return {
        "others": [night.told(run) for run in night.others],
        "keys": sorted(key for prefix in ("runs/", "open/", "work/") for key in archive.list(prefix)),
        "submit": dying.writes,
        "scheduler": counted.writes,
    }


class Counted:
    """An archive, whose user dies before the write of that number."""

    def __init__(self, archive: Any, dies: int) -> None:
        self._archive, self._dies, self.writes = archive, dies, 0
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive, name)

    def create(self, key: str, data: bytes | Path) -> bool:
        self._write()
        return bool(self._archive.create(key, data))

    def delete(self, names: Any) -> None:
        self._write()
        self._archive.delete(names)

    def _write(self) -> None:
        with self._lock:
            self.writes += 1
            if self._dies and self.writes >= self._dies:  # and does nothing more
                raise Died


def test_a_repeated_submit_changes_nothing_while_they_wait(night: Night, archive: Archive) -> None:
    """And counts none as new; a plan says that they are there."""
    before = {key: archive.get(key) for prefix in ("batches/", "runs/", "open/") for key in archive.list(prefix)}
    assert submit(night.batch, archive, by="other", at=AT) == 0
    after = {key: archive.get(key) for prefix in ("batches/", "runs/", "open/") for key in archive.list(prefix)}
    assert before == after
    manifest = parse(TEXT, "m", Path("/"), Limits()).manifest
    told = forecast(archive, manifest, night.batch, unreachable={}, excluded=(), now=datetime.now(UTC))
    assert [line.state for line in told.lines] == ["there"] * 3


def test_work_that_was_verified_before_begins_none_of_them(night: Night, archive: Archive) -> None:
    """All three are reused when the same is asked in another batch."""
    night.works(*BEGUN, *command(1), *command(2), asked(), *ended(verdict="verified"))
    made = batch(key="again")
    submit(Batch(made.id, made.manifest, made.targets, made.tasks, reuse=True), archive, by="me", at=AT)
    assert [Journal(archive, task.run).load().sealed is not None for task in made.tasks] == [True] * 3


def test_a_retry_does_its_own_commands(night: Night, archive: Archive) -> None:
    """It is asked what the first candidate was asked."""
    night.works(claimed(), Sealed(outcome="failed", failure=SETUP))
    night.tick(6)
    [again] = retry(archive, night.batch.id, wishes(archive, [night.batch.id], Selection()), by="me", at=AT)
    assert (Journal(archive, again.run).task().prefix_of, night.told(again.run)) == (None, ["submitted"])


def test_a_person_may_fork_one_of_them(night: Night, archive: Archive) -> None:
    """At a step that it copied: from the first one, which holds its files."""
    night.works(*BEGUN, *command(1), *command(2))
    night.tick(6)
    made = fork(archive, night.others[0], Wish(step=2, message="go on"), key="k").batch.tasks[0]
    assert made.fork is not None
    assert (made.fork.run, made.prefix_of) == (night.first, None)


def test_each_due_time_has_a_first_one_of_its_own(archive: Archive) -> None:
    """The batches of a schedule name runs of their own."""
    made = batch()
    schedule = Schedule(cron="0 2 * * *", zone="UTC")
    state, _ = stored.put(archive, "night", schedule, made, by="me", at=AT)
    fired = stored.batch_of(archive, state.name, state.template, datetime(2026, 12, 1, 2, tzinfo=UTC))
    first, *others = fired.tasks
    assert {task.prefix_of for task in others} == {first.run}
    assert first.run != made.tasks[0].run


def test_status_show_and_watch_say_what_is_waited_for(
    night: Night, archive: Archive, capsys: pytest.CaptureFixture[str], without_stack: None
) -> None:
    """By the name of the first candidate; also what is paused, or being cancelled."""
    one, other = night.others
    night.works(claimed())
    tell(archive, None, Found("run", other), "cancel", by="boss", at=AT)
    dawn(["status", night.batch.id])
    told = capsys.readouterr().out
    assert f"the commands of candidate 1: {night.first}" in told
    assert "cancelling" in told
    dawn(["show", one])
    assert f"the commands of candidate 1: {night.first}" in capsys.readouterr().out
    found = views(archive, [one]).found
    assert detail(found[0], {}) == f"the commands of candidate 1: {night.first}"
    watch = Watch(archive, night.hints, Settings(), [night.batch.id])
    watch.look()
    [board] = watch.boards
    assert f"  2 wait: the commands of candidate 1: {night.first} (a, a)" in board.lines
    assert not watch.ended


def test_ends_are_found_in_a_journal_alone(night: Night, archive: Archive) -> None:
    """Pure: the number, step and hash of the line that ends the last command."""
    task = night.batch.tasks[0]
    lines = list(Journal(archive, night.first).read())
    assert commands_end(lines, task) is None
    night.works(*BEGUN, *command(1), *command(2), asked())
    lines = list(Journal(archive, night.first).read())
    end = commands_end(lines, task)
    assert end is not None
    assert (end.run, end.step, end.seq, end.hash) == (night.first, 2, 6, lines[6][1])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("commands: [one, two], ", ""), "needs commands"),
        (("model: anthropic/x, prompt: Fix it.", "model: none"), "a model"),
        (("count: 3", "count: 1"), "count"),
        (("after: commands", "after: lunch"), "after"),
        (("count: 3, ", ""), "count"),
    ],
)
def test_what_cannot_be_shared_is_refused(change: tuple[str, str], told: str) -> None:
    """With the word that is wrong."""
    with pytest.raises((ManifestFault, InvalidFault)) as caught:
        batch(TEXT.replace(*change))
    assert told in "\n".join(map(str, getattr(caught.value, "problems", [caught.value])))


def test_a_number_alone_shares_nothing() -> None:
    """And is the batch that it was; so is a count without a word."""
    plain = batch(TEXT.replace("{count: 3, after: commands}", "3"))
    counted = batch(TEXT.replace(", after: commands", ""))
    assert {task.prefix_of for task in (*plain.tasks, *counted.tasks)} == {None}
    assert [task.candidates for task in counted.tasks] == [3, 3, 3]
