"""Owns what the index of a run's steps says: the same as the fold, in one small row a step."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import long_runs
import pytest
from runs_made import Make, claimed, replied

from scheduler.web.journals import marks, steps
from scheduler.web.journals.reading import Journals
from scheduler.web.journals.steps import Index, Row
from worker.context import Transcript
from worker.contract import events as e
from worker.contract.events import Event, Record, digest
from worker.contract.run import Run, fold
from worker.contract.task import Limits, Task
from worker.models.protocol import UserMessage
from worker.store import keys
from worker.store.archive import Archive
from worker.store.journal import Journal
from worker.store.local import LocalArchive

GOLDEN = sorted(Path(__file__).with_name("golden").glob("v*"))
MODEL = {"model": "anthropic/x", "prompt": "Fix it."}
SECOND = {name: digest(name.encode()) for name in "abcd"}


def observed(step: int, status: str = "ok", output: str = "", tree: str = "", **more: object) -> e.Observed:
    """The result of that step's call, on a work tree of that name."""
    seen = e.Observation.model_validate(
        {"call_id": f"c{step}", "tool": "run_command", "status": status, "exit_code": 0, "output": output} | more
    )
    snapshot = e.SnapshotRef(listing=SECOND[tree], tree=SECOND[tree]) if tree else None
    return e.Observed(observation=seen, snapshot=snapshot)


def index(archive: Archive, run: str) -> Index:
    read = Journals(archive).read(run)
    assert read.damage == ""
    return read.index


def totals(rows: Iterable[Row]) -> tuple[int, int, int, int, int, int]:
    """Steps, the four kinds of tokens, and micro-dollars, added up row by row."""
    found = list(rows)
    spent = [[value for _, value in usage] for row in found for usage in (row.usage, row.beside)]
    tokens = [sum(column) for column in zip(*spent, strict=True)]
    return len([row for row in found if row.number]), *tokens, sum(row.spent_microusd for row in found)


def of_run(run: Run) -> tuple[int, int, int, int, int, int]:
    return run.steps, *(value for _, value in run.usage), run.cost_microusd


@pytest.fixture
def busy(archive: Archive, make_run: Make) -> str:
    """A run with a delegate, a summary, a lost reply, a takeover, a person's words and a failing call."""
    spent = e.Usage(input_tokens=5, cache_read_tokens=6, cache_write_tokens=7, output_tokens=8)
    events: list[Event] = [
        claimed(),
        replied(1, cost_microusd=1_000, reasoning="hm"),
        observed(1, tree="a"),
        replied(2, cost_microusd=None),
        e.Delegated(call_id="c2", seq=1, hash="0" * 64, usage=spent, cost_microusd=50),
        e.Delegated(call_id="c2", seq=2, hash="0" * 64, usage=spent, cost_microusd=None),
        observed(2, tree="b"),
        claimed("host-2"),
        e.Unrecorded(cost_microusd=7, tokens=70, detail="lost with its worker"),
        e.Steered(n=0, kind="message", by="ann", text="look at the tests"),
        replied(3, cost_microusd=3_000),
        observed(3, "error", exit_code=2, tree="b"),
        e.Compacted(through=2, summary="all before", usage=spent, cost_microusd=9),
        replied(4, cost_microusd=4_000),
    ]
    make_run("busy", *events, **MODEL)
    return "busy"


def test_rows_add_up_to_the_run(archive: Archive, busy: str) -> None:
    """Steps, tokens and cost of all rows are those of the fold, whatever spent them."""
    run = Journal(archive, busy).load()
    found = index(archive, busy)
    assert totals(found.rows) == of_run(run)
    assert found.run == run


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda path: path.name)
def test_golden_rows_add_up(folder: Path) -> None:
    """So are those of every journal that an earlier version wrote."""
    lines = [(Record.parse(line), digest(line)) for line in (folder / "journal.jsonl").read_bytes().splitlines()]
    found = Index(Task.model_validate_json((folder / "task.json").read_bytes()), "r1")
    found.take(lines)
    assert found.run == fold(lines, Run(id="r1"))
    assert sum(row.spent_microusd for row in found.rows) == found.run.cost_microusd
    assert sum(row.tokens for row in found.rows) == found.run.tokens


def test_a_row_tells_its_step(archive: Archive, busy: str) -> None:
    """Calls with their results, what it wrote, whether it failed, its segments, and who answered."""
    rows = index(archive, busy).rows
    assert [row.number for row in rows] == [0, 1, 2, 3, 4]
    assert [row.wrote for row in rows] == [False, False, True, False, False]
    assert [row.failed for row in rows] == [False, False, False, True, False]
    assert [row.calls[0].delegate for row in rows[1:]] == [False, True, False, False]
    assert (rows[3].calls[0].status, rows[3].calls[0].exit_code, rows[3].calls[0].line) == ("error", 2, "ls")
    assert [(row.first, row.last) for row in rows] == [(0, 1), (2, 3), (4, 10), (11, 13), (14, 14)]
    assert [mark.kind for mark in rows[2].marks] == ["delegate", "crash", "unrecorded", "message"]
    assert [mark.kind for mark in rows[3].marks] == ["compaction"]


def test_read_on_it_is_the_same(archive: Archive, busy: str) -> None:
    """An index that was kept up one record at a time is that which was made at once."""
    whole = index(archive, busy)
    part = Index(whole.task, busy)
    for line in Journal(archive, busy).read():
        part.take([line])
    assert part.rows == whole.rows


class Counting(LocalArchive):
    """A folder that remembers what was read of it."""

    reads: list[str]

    def get(self, key: str, *, max_bytes: int = 256 * 2**20) -> bytes:
        self.reads.append(key)
        return super().get(key, max_bytes=max_bytes)


def test_only_the_tail_is_read_again(archive: Archive, busy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a run went on, the next look reads what is new and nothing else; of one that ended, nothing."""
    counting = Counting(archive.url)
    counting.reads = []
    monkeypatch.setattr("scheduler.web.journals.reading.FRESH_S", 0.0)
    journals = Journals(counting)
    assert len(journals.read(busy).index.rows) == 5
    counting.reads.clear()
    journal = Journal(archive, busy)
    run = journal.append(journal.load(), [observed(4, tree="c")], attempt=1, at=long_runs.AT % (0, 0, 0))
    assert journals.read(busy).index.rows[-1].wrote
    assert counting.reads == [keys.segment(busy, run.last_seq)]
    journal.append(run, [e.Sealed(outcome="cancelled")], attempt=1, at=long_runs.AT % (0, 0, 0))
    journals.read(busy)
    counting.reads.clear()
    assert journals.read(busy).index.run.sealed is not None
    assert counting.reads == []


def test_damage_hides_nothing_before_it(archive: Archive, busy: str) -> None:
    """The steps before a damaged segment are shown, and the damage is named."""
    key = keys.segment(busy, 12)
    archive.overwrite(key, archive.get(key).replace(b"run_command", b"run_commanD"))
    read = Journals(archive).read(busy)
    assert [row.number for row in read.index.rows] == [0, 1, 2, 3]
    assert key in read.damage


def test_what_was_asked_longest_ago_is_let_go(
    archive: Archive, make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the rows that are kept in memory, an older index is read anew when it is asked for."""
    monkeypatch.setattr("scheduler.web.journals.reading.ROWS_KEPT", 3)
    journals = Journals(archive)
    for name in ("one", "two", "three"):
        make_run(name, claimed(), replied(1), observed(1))
        journals.read(name)
    assert list(journals._held) == ["three"]


def test_nudges_are_those_the_model_read(archive: Archive, make_run: Make) -> None:
    """Each mark of a nudge stands for one text of ours in the next request, and no such text is without one."""
    events: list[Event] = [claimed()]
    for step in range(1, 7):  # the same call on the same tree with the same result, which fails
        events += [replied(step), observed(step, "error", "no such file", "a", exit_code=1)]
    for step, tree in enumerate("babababa", start=7):  # to and fro
        events += [replied(step, command=f"step {step}"), observed(step, tree=tree)]
    make_run("r", *events, limits=Limits(steps=16), **MODEL)
    found = index(archive, "r")
    transcript = Transcript(found.task, ())
    records = [record for record, _ in Journal(archive, "r").read()]
    transcript.follow(records)
    told = [message.text for message in transcript.request("model").messages if isinstance(message, UserMessage)]
    said = [mark.text for row in found.rows for mark in row.marks if mark.kind == "nudge"]
    # The first message is the task; the one that says it again after 15 steps is no nudge.
    assert len(said) == len(told) - 1
    assert said == [
        "told that run_command gave the same 3 times",
        "told that 5 calls in a row failed",
        "told that run_command gave the same 5 times",
        "told that its files went back and forth 3 times",
        "told that its files went back and forth 5 times",
        "told to wrap up: 13 of 16 steps are used",
    ]


def test_filters(archive: Archive, make_run: Make) -> None:
    """Errors, writes and marks by what happened; slow and costly are the upper tenth of this run."""
    events: list[Event] = [claimed()]
    for step in range(1, 41):
        slow = observed(step, "error" if step == 7 else "ok", tree="ab"[step > 20], duration_ms=100 * step)
        events += [replied(step, command=f"step {step}", cost_microusd=1_000 * step), slow]
    events.insert(21, e.Steered(n=0, kind="message", by="ann", text="hello"))
    make_run("r", *events, **MODEL)
    rows = index(archive, "r").rows
    at = steps.bounds(rows)

    def numbers(*chosen: steps.Filter) -> list[int]:
        return [row.number for row in steps.kept(rows, chosen, at)]

    assert numbers("errors") == [7]
    assert numbers("writes") == [21]
    assert numbers("slow") == numbers("costly") == [36, 37, 38, 39, 40]
    assert numbers("marks") == [10]
    assert numbers("errors", "writes") == [7, 21]
    assert len(numbers()) == 41


def test_a_run_without_prices_has_costly_steps(archive: Archive, make_run: Make) -> None:
    """They are those with the most tokens; a run in which nothing was spent has none."""
    make_run("r", claimed(), *(replied(step) for step in range(1, 21)), **MODEL)
    rows = index(archive, "r").rows
    assert steps.bounds(rows).costly_tokens == 110
    make_run("free", claimed())
    free = index(archive, "free").rows
    assert steps.kept(free, ["slow", "costly"], steps.bounds(free)) == []


def test_every_kind_of_mark_is_known() -> None:
    """What records are marked as stands in the closed list, which colours and legends are made of."""
    told = []
    for folder in GOLDEN:
        task = Task.model_validate_json((folder / "task.json").read_bytes())
        for line in (folder / "journal.jsonl").read_bytes().splitlines():
            told += [mark.kind for mark in marks.of(Record.parse(line), Run(), Run(), task)]
    assert set(told) <= set(marks.KINDS)
    assert {"delegate", "approval", "message", "wait", "compaction", "feedback", "failure"} <= set(told)
