"""Owns what becomes of a fork when it is worked on, on the real engine: the parent's files, a level 0 of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sandboxes import ARCHIVE
from test_attempt import LIMITS, Night

from scheduler.enqueue import submit
from scheduler.fork import Wish, fork
from worker.contract.errors import IntegrityFault
from worker.contract.events import Observed, Prepared, Sealed
from worker.contract.task import Check
from worker.sandbox.protocol import Owner
from worker.sandbox.sandbox import DockerSandbox
from worker.station import utc_now
from worker.store import keys
from worker.store.journal import Journal

pytestmark = pytest.mark.docker

TWO = (Check(name="both", command="cat one two; test -f two"),)
STEPS = """
- calls: [{tool: run_command, arguments: {command: 'echo 1 >one; seq 20000'}}]
- calls: [{tool: run_command, arguments: {command: 'mv one two'}}]
- calls: [{tool: run_command, arguments: {command: 'ls'}}]
  expect: ""
- calls: [{tool: run_command, arguments: {command: 'ls; cat two'}}]
  expect: "two"
- text: Done.
  expect: "1"
"""


@pytest.fixture
def night(tmp_path: Path, sandbox: DockerSandbox, redis_url: str) -> Iterator[Night]:
    """A run that its limit stopped after two of its steps."""
    night = Night(tmp_path / "archive", sandbox, redis_url)
    night.submit(script=STEPS, checks=TWO, limits=LIMITS.model_copy(update={"steps": 2}))
    assert night.work() == "sealed"
    yield night
    night.station.hints.close()


def forked(night: Night, wish: Wish) -> Journal:
    """A fork of it, worked on to its end."""
    made = fork(night.archive, "run-1", wish, key="")
    submit(made.batch, night.archive, by="me", at=utc_now())
    run = made.batch.tasks[0].run
    assert night.work(run) == "sealed"
    assert not [name for owner, name in night.station.sandbox.owned(ARCHIVE) if owner.run == run]
    return Journal(night.archive, run)


def sealed(journal: Journal) -> Sealed:
    found = journal.load().sealed
    assert found is not None
    return found


def test_an_exhausted_run_is_continued_to_its_end(night: Night) -> None:
    """With more steps the fork sees the parent's files, asks for the step after the last, and ends verified."""
    assert str(sealed(Journal(night.archive, "run-1")).failure) == "limit/steps"
    before = {key: night.archive.get(key) for key in night.archive.list("runs/run-1/")}
    journal = forked(night, Wish(limits={"steps": 40}))
    assert (sealed(journal).outcome, sealed(journal).verdict) == ("changed", "verified")
    assert journal.load().steps == 5
    assert journal.verify() == []
    assert {key: night.archive.get(key) for key in night.archive.list("runs/run-1/")} == before


def test_its_first_act_is_a_level_0_of_its_own(night: Night) -> None:
    """The first thing that the fork's attempt commits after its claim is a full snapshot, and it restores without the
    parent: an attempt that follows needs nothing of it."""
    journal = forked(night, Wish(limits={"steps": 40}))
    claim, first = [record.event for record, _ in journal.read() if record.seq in (1, 2)]
    assert claim.type == "claimed"
    assert isinstance(first, Prepared)
    assert first.snapshot is not None
    assert first.snapshot.level == 0
    night.archive.delete(list(night.archive.list("runs/run-1/snapshots/")))
    sandbox = night.station.sandbox
    with sandbox.workspace(Owner(ARCHIVE, journal.run, 9, "agent"), "python", LIMITS) as workspace:
        laid = workspace.restore([journal.get_snapshot(str(first.snapshot.object))])
        assert laid.tree == first.snapshot.tree


def test_an_earlier_step_has_the_files_of_that_step(night: Night) -> None:
    """Forked after the first step, `one` is there and `two` is not; what followed never happened."""
    journal = forked(night, Wish(step=1))
    seen = [record.event for record, _ in journal.read() if isinstance(record.event, Observed)]
    assert len(seen) == 2  # the copied one, and the parent's second step made again under its own limit
    assert journal.load().inherited_steps == 1
    assert str(sealed(journal).failure) == "limit/steps"
    assert b"b/two" in journal.get_blob(sealed(journal).artifacts["patch.diff"])


def test_the_fork_reads_outputs_of_its_parent(night: Night) -> None:
    """An output that was shown cut can be read on: it lies with the run whose call it was."""
    from worker.store.lineage import inherited_blob

    journal = forked(night, Wish(limits={"steps": 40}))
    first = next(record.event for record, _ in journal.read() if isinstance(record.event, Observed))
    assert first.observation.blob is not None
    data = inherited_blob(night.archive, journal.run, first.observation.blob)
    assert data.splitlines()[-1] == b"20000"


def test_a_message_reaches_the_model(night: Night) -> None:
    """What the person said at the fork stands in the conversation that the model answers."""
    script = STEPS.replace('  expect: ""\n', '  expect: "look around"\n')
    wish = Wish(limits={"steps": 40}, message="look around", model="scripted:fix", script=script)
    journal = forked(night, Wish(**{**wish.__dict__, "allowed": frozenset({"model"})}))
    assert sealed(journal).verdict == "verified"


def test_a_torn_run_ends_and_its_fork_goes_on(night: Night) -> None:
    """The newest segment is cut: the attempt that meets it seals the run as infra/store, verify names it, and the
    fork at the last sound step ends as the run would have (T46)."""
    parent = night.submit("run-2", script=STEPS, checks=TWO)
    run = parent.load()
    lines = [record for record, _ in Journal(night.archive, "run-1").read()]
    for record in lines[1:6]:
        run = parent.append(run, [record.event], attempt=1, at=utc_now())
    key = keys.segment("run-2", run.last_seq)
    whole = night.archive.get(key)
    night.archive.delete([key])
    night.archive.create(key, whole[:-10])
    with pytest.raises(IntegrityFault):
        parent.load()
    assert night.work("run-2") == "damaged"
    assert str(sealed(parent).failure) == "infra/store"
    assert key in parent.verify()[0]
    assert night.archive.size(keys.open_marker("run-2")) is None
    assert night.work("run-2") == "not_due"
