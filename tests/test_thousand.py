"""A thousand runs of one batch on two worker processes, with a scripted model and engines in memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import wait_for
from fleets import SOURCE, Fleet

from scheduler.control import announce
from scheduler.enqueue import freeze, submit
from scheduler.manifests.reading import parse
from scheduler.planning.ended import Ended
from scheduler.runs import Found, runs_in, views
from worker.contract.events import digest
from worker.contract.task import Limits, Repo
from worker.station import utc_now
from worker.store.journal import Journal
from worker.store.members import members

COUNT, WORKERS, SLOTS = 1_000, 2, 4
SCRIPT = """
- calls: [{tool: run_command, arguments: {command: echo done >> a.txt}}]
- text: It is done.
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.full
@pytest.mark.timeout(3_600)
def test_a_thousand_runs_end_in_their_waves_on_two_workers(fleet: Fleet) -> None:
    """Each is claimed once and changed, no wave begins before those before it have ended, doorbells stay within the
    slots, and the scheduler keeps little of them."""
    (fleet.folder / "script.yaml").write_text(SCRIPT)
    task = {"model": f"scripted:{fleet.folder / 'script.yaml'}", "prompt": "Do it."}
    targets = [{"repo": f"https://git.example.org/r{n}"} for n in range(COUNT)]
    begin = {"waves": [3, "25%", "rest"], "breaker": {}}
    text = json.dumps({"version": 1, "name": "thousand", "targets": targets, "task": task} | begin)
    repos = [Repo(source=digest(SOURCE), source_kind="folder", label=f"r{n}") for n in range(COUNT)]
    batch = freeze(parse(text, "thousand", fleet.folder, Limits()), repos)
    scheduler = fleet.scheduler()
    fleet.workers(WORKERS, slots=SLOTS)
    fleet.ended(fleet.submit())
    before = memory_kib(scheduler.pid)
    submit(batch, fleet.archive, by="ann", at=utc_now())
    announce(fleet.hints)
    unanswered = 0

    def all_ended() -> bool:
        nonlocal unanswered
        unanswered = max(unanswered, len(fleet.hints.outstanding()))
        return not list(fleet.archive.list("open/"))

    wait_for(all_ended, timeout_s=3_000)
    found = views(fleet.archive, runs_in(fleet.archive, Found("batch", batch.id))).found
    assert Counter(view.state for view in found) == {"changed": COUNT}
    assert {view.run.claims for view in found} == {1}
    assert 0 < unanswered <= WORKERS * SLOTS + 2
    assert memory_kib(scheduler.pid) - before < 48 * 2**10
    ended = Ended(found[0].task, members(fleet.archive, batch.id))
    spans: dict[int, list[tuple[str, str]]] = {}
    for view in found:
        records = [record for record, _ in Journal(fleet.archive, view.task.run).read()]
        began = next(record.at for record in records if record.event.type == "claimed")
        spans.setdefault(ended.wave(view.task.target), []).append((began, view.run.updated_at))
    assert {wave: len(runs) for wave, runs in spans.items()} == {1: 3, 2: 250, 3: 747}
    for wave in (2, 3):
        assert min(began for began, _ in spans[wave]) >= max(over for _, over in spans[wave - 1])


def memory_kib(pid: int) -> int:
    """Resident, of a living process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))
