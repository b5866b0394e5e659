"""Budgets as people set and read them, by the command line and without a stack."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from runs_made import AT, claimed, replied

from scheduler.budget import spending
from scheduler.cli import transcript
from scheduler.cli.main import run as dawn
from scheduler.runs import Found, runs_in, view, views
from worker.contract.errors import ExitCode
from worker.contract.events import Compacted, Event, Parked, Unrecorded
from worker.contract.task import Budget, budget_microusd
from worker.store.archive import Archive
from worker.store.counters import Counters, Part
from worker.store.hints import Hints
from worker.store.inbox import Control
from worker.store.journal import Journal

pytestmark = pytest.mark.usefixtures("without_stack")

MANIFEST = """\
version: 1
name: night
targets: [{repo: https://git.example.org/a}, {repo: https://git.example.org/b}, {repo: https://git.example.org/c}]
task: {prompt: fix it, model: openai/gpt-5}
budget: {usd: 1, on_limit: %s}
"""
PARKED = Parked(waiting="budget", detail="$1.00 of $1.00 spent")


class Night:
    """A submitted batch of three runs."""

    def __init__(self, archive: Archive, batch: str) -> None:
        self.archive, self.batch = archive, batch
        self.runs = runs_in(archive, Found("batch", batch))

    def append(self, number: int, *events: Event) -> str:
        """What a worker would have written."""
        journal = Journal(self.archive, self.runs[number])
        run = journal.load()
        for event in events:
            run = journal.append(run, [event], attempt=run.attempt, at=AT)
        return self.runs[number]

    def told(self) -> list[tuple[str, str]]:
        return [(message.kind, message.text) for message in Control(self.archive, self.batch).read()]


def submitted(archive: Archive, capsys: pytest.CaptureFixture[str], on_limit: str = "pause") -> Night:
    Path("night.yaml").write_text(MANIFEST % on_limit)
    assert dawn(["submit", "night.yaml", "--detach"]) == 0
    return Night(archive, capsys.readouterr().out.strip())


@pytest.fixture
def night(archive: Archive, capsys: pytest.CaptureFixture[str]) -> Night:
    return submitted(archive, capsys)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert dawn([*words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_a_batch_spent_what_all_its_runs_cost(night: Night) -> None:
    """Replies, lost ones and summaries, of runs that ended and of those that go on."""
    night.append(0, claimed(), replied(cost_microusd=300_000), Unrecorded(cost_microusd=20_000))
    night.append(1, claimed(), Compacted(through=1, summary="", cost_microusd=4_000), replied(cost_microusd=None))
    found = views(night.archive, night.runs).found
    money = spending(night.archive, found[0].task, found)
    assert money is not None
    assert (money.text, money.used_up) == ("$0.32 of $1.00 spent", False)
    assert spending(night.archive, found[2].task) == money


def test_a_batch_without_a_budget_has_no_spending(archive: Archive, make_run: Callable[..., Any]) -> None:
    """Its runs have limits of their own only."""
    make_run("a", claimed(), replied(cost_microusd=300_000))
    assert spending(archive, view(archive, "a").task, []) is None


def test_a_raise_is_in_the_archive_when_the_command_returns(night: Night, capsys: pytest.CaptureFixture[str]) -> None:
    """By the batch's name or that of one of its runs; the runs it concerns are named, and what comes next is said."""
    for name, sum_ in ((night.batch, "2.5"), (night.runs[1], "$0.004")):
        assert dawn(["budget", name, sum_]) == 0
        said = capsys.readouterr()
        assert said.out.split() == night.runs
        assert "what waits for it goes on" in said.err
    assert night.told() == [("budget", "$2.50"), ("budget", "$0.0040")]


@pytest.mark.parametrize("microusd", [1, 40, 4_001, 999_999, 2_504_000, 10**15 - 1, 10**15])
def test_a_budget_is_told_to_the_last_micro_dollar(night: Night, microusd: int) -> None:
    """What is shown to people may be rounded; what counts is not."""
    assert dawn(["budget", night.batch, f"{microusd / 1e6:.6f}"]) == 0
    [(_, text)] = night.told()
    assert budget_microusd(text) == microusd


@pytest.mark.parametrize("usd", ["0", "much", "nan", "1e99", ""])
def test_what_is_no_sum_is_usage(night: Night, usd: str) -> None:
    """Nothing is written."""
    assert dawn(["budget", night.batch, usd]) == ExitCode.USAGE
    assert night.told() == []


def test_a_batch_that_has_ended_takes_no_budget(night: Night) -> None:
    """Nobody would go on with it."""
    night.archive.delete(list(night.archive.list("open/")))
    assert dawn(["budget", night.batch, "2"]) == ExitCode.CONFLICT


def test_a_budget_below_what_is_spent_is_said_to_be(night: Night, capsys: pytest.CaptureFixture[str]) -> None:
    """Who raises it by too little would wait in vain."""
    night.append(0, claimed(), replied(cost_microusd=1_000_000), PARKED)
    assert dawn(["budget", night.batch, "0.5"]) == 0
    said = capsys.readouterr().err
    assert f"batch {night.batch} may spend $0.50 in all" in said
    assert "$1.00 of $0.50 spent already, so nothing goes on" in said
    assert "what waits" not in said


def test_the_audit_says_who_raised_it(night: Night, capsys: pytest.CaptureFixture[str]) -> None:
    """Before and after the run has read it."""
    assert dawn(["budget", night.batch, "2"]) == 0
    capsys.readouterr()
    acts = printed(capsys, "show", night.runs[0], "--audit")["acts"]
    assert [(act["did"], act["what"], act["seq"]) for act in acts][1:] == [("budget", "$2.00", None)]
    assert acts[1]["who"] == acts[0]["who"]
    unread = view(night.archive, night.runs[0]).mail
    night.append(0, claimed(), *unread.steered())
    assert printed(capsys, "show", night.runs[0], "--audit")["acts"][1]["seq"] == 2


def test_status_shows_the_spending_and_how_to_raise_it(night: Night, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a parked run and of one that nobody began, which would otherwise look as if it waited for a worker."""
    night.append(0, claimed(), replied(cost_microusd=1_000_000), PARKED)
    document = printed(capsys, "status", night.batch)
    details = [row["detail"] for row in document["runs"]]
    assert details == ["budget: $1.00 of $1.00 spent"] * 3
    assert document["budgets"][night.batch] == {"spent_usd": 1.0, "limit_usd": 1.0, "on_limit": "pause"}
    assert dawn(["status", night.batch]) == 0
    said = capsys.readouterr().err
    assert said.count(f"waits for you: dawn budget {night.batch} USD") == 1
    assert f"budget of {night.batch}: $1.00 of $1.00 spent" in said
    assert dawn(["status"]) == 0
    assert "2 queued, 1 waiting; $1.00 of $1.00 spent" in capsys.readouterr().out


def test_show_tells_the_budget_of_the_whole_batch(night: Night, capsys: pytest.CaptureFixture[str]) -> None:
    """What the others spent too."""
    night.append(0, claimed(), replied(cost_microusd=250_000))
    night.append(1, claimed(), replied(cost_microusd=750_000), PARKED)
    assert dawn(["show", night.runs[1]]) == 0
    said = capsys.readouterr().out
    assert "budget: $1.00 of $1.00 spent, since" in said
    assert f"dawn budget {night.batch} USD" in said
    assert printed(capsys, "show", night.runs[0])["budget"]["spent_usd"] == 1.0
    assert [row["detail"] for row in printed(capsys, "status", night.runs[2])["runs"]] == [
        "budget: $1.00 of $1.00 spent"
    ]


def test_runs_that_will_be_skipped_wait_for_nobody(archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    """With `on_limit: stop` there is nothing to type."""
    night = submitted(archive, capsys, "stop")
    night.append(0, claimed(), replied(cost_microusd=1_000_000))
    assert dawn(["status", night.batch]) == 0
    assert "waits for you" not in capsys.readouterr().err


def test_a_run_that_waits_for_the_day_says_until_when(night: Night, capsys: pytest.CaptureFixture[str]) -> None:
    """No command of a batch can raise that."""
    until = "2026-12-01T00:00:00.000+00:00"
    night.append(0, claimed(), replied(), Parked(waiting="budget", until=until, detail="day: $5.00 of $5.00 spent"))
    assert dawn(["show", night.runs[0]]) == 0
    said = capsys.readouterr().out
    assert f"budget: day: $5.00 of $5.00 spent, since {AT}, until {until}" in said
    assert "dawn budget" not in said


def test_a_run_of_its_own_takes_a_budget(archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    """`dawn run --budget`."""
    words = ["run", "--repo", "https://git.example.org/a", "--command", "x", "--detach"]
    [batch] = printed(capsys, *words, "--budget", "2.5")["batches"]
    assert Journal(archive, batch["runs"][0]).task().budget == Budget(usd=2.5)
    assert dawn([*words, "--budget", "0"]) == ExitCode.INVALID
    assert "budget.usd must be greater than 0" in capsys.readouterr().err


def test_a_progress_line_of_a_parked_run_says_what_to_type(night: Night) -> None:
    """The id of the run will do, so nobody looks for that of its batch."""
    run = night.append(0, claimed(), PARKED)
    [*_, (last, _)] = Journal(night.archive, run).read()
    assert transcript.short(last) == f"waits: budget: $1.00 of $1.00 spent; type: dawn budget {run} USD"


def test_status_shows_the_day_of_a_deployment_that_has_a_budget_for_it(
    night: Night, redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It holds up runs whose own batch has money left."""
    monkeypatch.setenv("DAWN_REDIS_URL", redis_url)
    monkeypatch.setenv("DAWN_DAY_BUDGET_USD", "5")
    assert list(printed(capsys, "status", night.batch)["budgets"]) == [night.batch]
    day = f"day:{datetime.now(UTC).date().isoformat()}"
    counters = Counters(Hints(redis_url))
    assert counters.put(day, counters.begin(day), {"another": Part(5_000_000)})
    assert dawn(["status", night.batch]) == 0
    assert f"budget of {day}: $5.00 of $5.00 spent" in capsys.readouterr().err


def test_status_needs_no_redis(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive is enough for all but the day's budget."""
    monkeypatch.setenv("DAWN_REDIS_URL", "unix:///nowhere/valkey.sock")
    monkeypatch.setenv("DAWN_DAY_BUDGET_USD", "5")
    assert dawn(["status", night.batch]) == 0
