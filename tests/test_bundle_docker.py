"""An imported run goes on in containers as one of the archive's own does."""

from __future__ import annotations

from pathlib import Path

import pytest
from nights import LIMITS, Night

from scheduler.enqueue import submit
from scheduler.exports.bundle import index
from scheduler.fork import Wish, fork
from scheduler.imports.bundle import bring_in, prove
from worker.contract.task import Check
from worker.sandbox.sandbox import DockerSandbox
from worker.station import utc_now
from worker.store.bundle import SCHEME, Bundle, Root, write
from worker.store.journal import Journal

pytestmark = pytest.mark.docker

STEPS = """
- calls: [{tool: run_command, arguments: {command: 'echo 1 >one'}}]
- calls: [{tool: run_command, arguments: {command: 'mv one two'}}]
- calls: [{tool: run_command, arguments: {command: 'cat two answer.txt'}}]
- text: Done.
  expect: "1\\\\n41"
"""


def test_a_fork_of_an_imported_run_goes_on_from_its_files(
    tmp_path: Path, sandbox: DockerSandbox, redis_url: str
) -> None:
    """The run was made, sealed into a file and brought into an archive that never saw it; the fork finds the files of
    its last step and ends verified."""
    here, there = Night(tmp_path / "here", sandbox, redis_url), Night(tmp_path / "there", sandbox, redis_url)
    two = (Check(name="two", command="test -f two"),)
    here.submit(script=STEPS, checks=two, limits=LIMITS.model_copy(update={"steps": 2}))
    assert here.work() == "sealed"
    made = index(here.archive, [Root(kind="run", id="run-1")], ["run-1"], images=False)
    with (path := tmp_path / "run.tar").open("wb") as out:
        write(here.archive, made, out)
    bundle = Bundle(f"{SCHEME}{path}")
    assert prove(bundle).problems == []
    bring_in(bundle, there.archive)
    forked = fork(there.archive, "run-1", Wish(limits={"steps": 40}), key="").batch
    submit(forked, there.archive, by="me", at=utc_now())
    run = forked.tasks[0].run
    assert there.work(run) == "sealed"
    sealed = Journal(there.archive, run).load().sealed
    assert sealed is not None
    assert (sealed.outcome, sealed.verdict) == ("changed", "verified")
    assert Journal(there.archive, run).verify() == []
    for night in (here, there):
        night.station.hints.close()
