"""What goes on, as a person sees it: boards, `dawn watch`, `dawn queue` and `dawn compare`, without an engine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from runs_made import checked, claimed, ended, name_runs, replied

from scheduler.budget import spendings
from scheduler.cli.main import run as dawn
from scheduler.control import tell
from scheduler.planning.plan import Slots
from scheduler.planning.why import Now, why
from scheduler.reports import compare
from scheduler.reports.board import Board, board
from scheduler.runs import Found, view, views
from scheduler.watch import Watch
from worker.contract.events import (
    Asked,
    CheckResult,
    Event,
    Failure,
    Finished,
    Observation,
    Observed,
    Parked,
    PatchStat,
    Sealed,
    Verdict,
)
from worker.contract.run import Run
from worker.contract.settings import Settings
from worker.contract.task import Budget
from worker.contract.window import Window
from worker.store.archive import Archive
from worker.store.hints import Hints, WorkerOffer
from worker.store.inbox import Control
from worker.store.journal import Journal

Make = Callable[..., Run]
Night = Callable[..., Board]

NIGHT = "night-0123456789ab"
BEGAN = datetime(2026, 11, 30, 2, 0, tzinfo=UTC)
ASKED = Asked(call_id="c1", kind="approval", binding="0" * 64, question="push?")

pytestmark = pytest.mark.usefixtures("without_stack")


@pytest.fixture
def night(archive: Archive, make_run: Make) -> Night:
    """night({target: events}, now=..., free=..., **task changes): the board of a batch of these."""

    def made(runs: dict[str, list[Event]], *, now: datetime = BEGAN, free: int = 0, **changes: Any) -> Board:
        for name, events in runs.items():
            make_run(name, *events, target=name, **changes)
        name_runs(archive, {name: name for name in runs})
        return shown(archive, list(runs), now, free=free)

    return made


def shown(archive: Archive, runs: Sequence[str], now: datetime = BEGAN, *, free: int = 0) -> Board:
    """The board of these runs, with a stack that has so many free slots."""
    seen = views(archive, runs).found
    control = Control(archive, NIGHT).read()
    decisions = why(seen, control, Now(slots={"main": Slots(4, free)}), Settings(), now)
    return board(NIGHT, seen, now, budget=spendings(archive, seen).get(NIGHT), decisions=decisions)


def worked(archive: Archive, run: str, *events: Event, for_s: float) -> None:
    """The attempt of the run goes on and appends these so much later."""
    journal = Journal(archive, run)
    folded = journal.load()
    at = (datetime.fromisoformat(folded.updated_at) + timedelta(seconds=for_s)).isoformat(timespec="milliseconds")
    journal.append(folded, list(events), attempt=folded.attempt, at=at)


def test_progress_counts_and_says_what_each_running_task_is_at(night: Night) -> None:
    """T55: counts by status and, for each running task, its step and age; also of one that never answers."""
    told = night(
        {
            "a": [claimed(), *ended("changed", verdict="verified")],
            "frozen": [claimed(), replied(3)],
            "silent": [claimed(), replied(1), Observed(observation=Observation(call_id="c1", tool="x", status="ok"))],
            "prepares": [claimed()],
            "later": [],
        },
        now=BEGAN + timedelta(seconds=25),
    )
    assert told.counts == {"verified": 1, "still running": 3, "not reached": 1}
    assert {one.target: (one.step, one.doing, one.age_s) for one in told.working} == {
        "frozen": (3, "run_command", 25.0),
        "silent": (1, "asks the model", 25.0),
        "prepares": (0, "prepares", 25.0),
    }


def test_who_waits_says_why(night: Night, archive: Archive) -> None:
    """A person, money, a provider, a closed window, a pause, a place."""
    runs: dict[str, list[Event]] = {
        "asks": [claimed(), replied(cost_microusd=0), ASKED, Parked(waiting="approval", detail="push?")],
        "provider": [claimed(), Parked(waiting="provider", until="2026-11-30T02:05:00+00:00", detail="429")],
        "money": [claimed(), Parked(waiting="budget", detail="$1.00 of $1.00")],
        "new": [],
    }
    told = night(runs, budget=Budget(usd=1))
    assert {one.why: one.targets for one in told.waiting} == {
        "approval: push?": ("asks",),
        "provider: 429": ("provider",),
        "budget: $0.00 of $1.00 spent": ("money",),
        "a free slot": ("new",),
    }
    tell(archive, None, Found("batch", NIGHT), "pause", by="ann", at="2026-11-30T02:00:00.000+00:00")
    assert [one.why for one in shown(archive, ["new"], free=3).waiting] == ["paused by ann"]


@pytest.mark.parametrize(("free", "told"), [(0, "a free slot"), (2, "about to begin")])
def test_a_run_that_nobody_holds_up_waits_for_a_place(night: Night, free: int, told: str) -> None:
    """By the scheduler's own plan."""
    assert [one.why for one in night({"a": []}, free=free).waiting] == [told]


def test_a_run_of_a_later_wave_says_how_many_go_before(night: Night) -> None:
    """The others of its batch, not a worker, are what it waits for."""
    waits = night({"a": [claimed()], "b": []}, free=2, waves=(1, "rest")).waiting
    assert [(one.why, one.targets) for one in waits] == [("an earlier wave: 1 run left", ("b",))]


def test_a_window_says_how_long_it_is_open(night: Night) -> None:
    """And a closed one until when it is not."""
    window = Window(open="01:00", close="03:00", zone="UTC")
    told = night({"a": []}, window=window)
    assert told.window_s == 3600.0
    assert "window closes in 1 h 0 min" in told.first


def test_a_closed_window_says_when_it_opens(night: Night) -> None:
    """A run that waits for it is not waiting for a worker."""
    told = night({"a": []}, window=Window(open="03:00", close="04:00", zone="UTC"))
    assert told.window_s is None
    assert "window until" in told.waiting[0].why


def test_time_left_is_reckoned_from_those_that_ended(night: Night, archive: Archive) -> None:
    """Three took 60 s each; one has worked for 20 s, two wait for it: 40 s, and twice 60 s."""
    runs: dict[str, list[Event]] = {name: [claimed()] for name in "abcd"}
    night({**runs, "e": [], "f": []})
    for name in "abc":
        worked(archive, name, *ended("changed", verdict="verified"), for_s=60)
    told = shown(archive, "abcdef", BEGAN + timedelta(seconds=20))
    assert told.eta_s == 160.0
    assert "about 2 min 40 s left" in told.first


@pytest.mark.parametrize("runs", [{"a": [claimed()], "b": []}, {"a": [claimed(), *ended()], "b": []}])
def test_time_left_that_nobody_can_know_is_called_unknown(night: Night, runs: dict[str, list[Event]]) -> None:
    """Before the first has ended, and while nobody works."""
    told = night(runs)
    assert told.eta_s is None
    assert "time left unknown" in told.first


def test_the_first_line_of_a_board_has_the_money(night: Night) -> None:
    """Spent of the budget; what has no price is at least that."""
    runs: dict[str, list[Event]] = {"a": [claimed(), replied(cost_microusd=120_000), *ended()]}
    assert night(runs, budget=Budget(usd=20)).first == f"{NIGHT}: 1 unverified; $0.12 of $20.00"
    more: list[Event] = [claimed(), replied(cost_microusd=None), *ended()]
    assert night({"b": more}).first == f"{NIGHT}: 1 unverified; at least $0.00"


def test_watch_once_shows_and_leaves(night: Night, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0 whatever there is to see; the same as JSON."""
    night({"a": [claimed(), replied()], "b": []})
    assert dawn(["watch", "night", "--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{NIGHT}: 1 still running, 1 not reached; ")
    assert lines[1].startswith("  a (a): step 1, run_command, for ")
    assert lines[2] == "  1 wait: no stack is running (b)"
    assert dawn(["watch", "--once", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["batches"][0]["working"][0]["step"]) == ("dawn.watch/1", 1)


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ([*ended("changed", verdict="verified")], 0),
        ([*ended("changed", verdict="broke")], 4),
        ([Sealed(outcome="cancelled")], 8),
    ],
)
def test_watch_ends_with_the_batch_and_its_exit_code(
    last: list[Event],
    code: int,
    night: Night,
    archive: Archive,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a pipe: a line for each change, and the numbers whenever they are others."""
    night({"a": [claimed()], "b": [claimed(), *ended("changed", verdict="verified")]})
    looked = Watch.pause_s

    def meanwhile(self: Watch, shortest_s: float) -> float:
        if not self.ended and view(archive, "a").run.sealed is None:
            worked(archive, "a", *last, for_s=1)
        return min(0.01, looked(self, shortest_s))

    monkeypatch.setattr(Watch, "pause_s", meanwhile)
    assert dawn(["watch", "night"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert "1 verified, 1 still running" in lines[0]
    assert any(line.startswith("a  ") for line in lines)
    assert lines[-1].startswith(f"{NIGHT}: ")
    assert "still running" not in lines[-1]
    assert len(lines) == len(set(lines)) <= 2 + len(last)


def test_watch_takes_in_what_a_retry_adds(night: Night, archive: Archive, make_run: Make) -> None:
    """The batch is open again, and watched to its end."""
    from worker.store.members import Member, announce

    night({"a": [claimed(), *ended("changed", verdict="broke")]})
    seen = Watch(archive, None, Settings(), [NIGHT])
    seen.look()
    assert (seen.ended, int(seen.exit_code)) == (True, 4)
    added = Member(target="a", ordinal=1, run="again")
    announce(archive, NIGHT, [added], number=0, by="ann", at="2026-11-30T02:00:00.000+00:00")
    make_run("again", claimed(), target="a", ordinal=1)
    seen.look()
    assert not seen.ended
    worked(archive, "again", *ended("changed", verdict="verified"), for_s=1)
    seen.look()
    assert (seen.ended, int(seen.exit_code)) == (True, 0)


def test_watch_of_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 10."""
    assert dawn(["watch"]) == 10
    assert "no batch is open" in capsys.readouterr().err


def test_hostile_names_are_harmless_on_a_board(night: Night, capsys: pytest.CaptureFixture[str]) -> None:
    """What a repository or a model wrote draws nothing on the terminal."""
    asks = [claimed(), replied(), ASKED, Parked(waiting="approval", detail="\x1b[2J\u202egone")]
    night({"a": asks})
    assert dawn(["watch", "night", "--once"]) == 0
    assert "\\x1b[2J\\u202egone" in capsys.readouterr().out


def test_the_queue_shows_lanes_workers_leases_and_holds(
    night: Night, redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Redis has it now; a run in hand of a worker that offers nothing more is told apart."""
    night({"a": [claimed()], "b": [claimed()], "c": []})
    monkeypatch.setenv("DAWN_REDIS_URL", redis_url)
    hints = Hints(redis_url)
    hints.offer(WorkerOffer("host-1", ("interactive", "batch"), 4, 3), 60)
    hints.rung("c", "batch", 60)
    for lease in ("run:a", "run:b", "scheduler"):
        hints.claim(lease, "token", 60)
    hints.hold("anthropic:0a1b", 90)
    assert dawn(["queue", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["open_runs"], told["leases"], told["leaving"], told["scheduler"]) == (3, ["a", "b"], 1, True)
    assert told["lanes"][1] == {"lane": "batch", "doorbells": 1, "slots": 4, "free": 3}
    assert 80 < told["holds_s"]["anthropic:0a1b"] <= 90
    assert dawn(["queue"]) == 0
    said = capsys.readouterr().out
    assert "3 open runs, 2 in hand; a scheduler leads" in said
    assert "1 of them at workers that take nothing more" in said


def test_a_queue_without_a_stack_is_try_later(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 75, and how to start one."""
    assert dawn(["queue"]) == 75
    assert "dawn up" in capsys.readouterr().err


PATCH = b"diff --git a/%s b/%s\nindex 1..2 100644\n--- a/%s\n+++ b/%s\n@@ -1 +1 @@\n-41\n+%s\n"


@pytest.fixture
def pair(archive: Archive, make_run: Make) -> tuple[str, str]:
    """Two runs of one task that did the same in step 1 and not in step 2, and left other patches."""
    for name, command, wrote in (("one", "sed -i 1d x", b"42"), ("two", "rm x", b"43")):
        journal = Journal(archive, name)
        patch = PATCH % (b"x", b"x", b"x", b"x", wrote)
        steps = [claimed(), replied(1), _seen("c1", "a.py"), replied(2, command=command), _seen("c2", "")]
        make_run(name, *steps, target=name)
        digest = journal.put_blob(patch)
        made = checked("verified", files={"x": (1, 1)}, digest=digest, bytes=len(patch))
        worked(archive, name, Finished(text="done"), made, for_s=5)
        worked(
            archive, name, Sealed(outcome="changed", verdict="verified", artifacts={"patch.diff": digest}), for_s=1
        )
    return "one", "two"


def _seen(call: str, output: str) -> Observed:
    return Observed(
        observation=Observation(call_id=call, tool="run_command", status="ok", exit_code=0, output=output)
    )


def test_compare_says_where_two_ways_part(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The first act that is not the same, and what of the patches differs, file by file."""
    assert dawn(["compare", *pair, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (against,) = told["against_the_first"]
    assert against["parting"] == {
        "step": 2,
        "first": 'calls run_command {"command": "sed -i 1d x"}',
        "other": 'calls run_command {"command": "rm x"}',
        "first_seq": 4,
        "other_seq": 4,
    }
    assert (against["same_patch"], against["patches"][-2:]) == (False, ["-+42", "++43"])
    assert [run["checks"] for run in told["runs"]] == [[{"name": "tests", "status": "green", "exit_code": 0}]] * 2


def test_compare_sets_runs_side_by_side(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """For a person: a column a run; the same run twice differs in nothing."""
    assert dawn(["compare", "one", "one"]) == 0
    said = capsys.readouterr().out
    assert "did the same, step by step" in said
    assert "their patches are equal" in said
    assert "1 file, +1 -1" in said


def test_compare_has_a_line_for_each_check(make_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """The words for one stand in a row of their own."""
    checks = tuple(CheckResult(name=name, status="green", exit_code=0) for name in ("tests", "lint"))
    make_run("one", claimed(), Verdict(verdict="verified", checks=checks, patch=PatchStat()), *ended())
    assert dawn(["compare", "one", "one"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "before, green now" in line]
    assert [line.count("tests: ") + 10 * line.count("lint: ") for line in lines] == [2, 20]


def test_long_patches_are_told_to_differ(archive: Archive, make_run: Make) -> None:
    """Lines that repeat themselves are compared in time that grows with their cube: too many of them are counted."""
    sides = []
    for name, step in (("one", 1), ("two", 7)):
        lines = b"".join(b"+%d\n" % (n * step % 150) for n in range(compare.FILE_LINES + 1))
        patch = PATCH % (b"x", b"x", b"x", b"x", b"42") + b"diff --git a/long b/long\n" + lines
        digest = Journal(archive, name).put_blob(patch)
        make_run(name, claimed(), *ended(artifacts={"patch.diff": digest}), target=name)
        sides.append(compare.side(archive, name))
    assert compare.patches(*sides) == [
        "a/long b/long: 2,001 and 2,001 lines differ, and are too many to compare here"
    ]


@pytest.mark.parametrize("runs", [["one"], ["one"] * 9])
def test_compare_takes_two_to_eight(runs: list[str]) -> None:
    """Exit code 2."""
    assert dawn(["compare", *runs]) == 2


def test_a_run_that_failed_is_compared_too(pair: tuple[str, str], make_run: Make, capsys: Any) -> None:
    """Without a patch or a verdict."""
    failure = Failure(cls="env", reason="image", detail="none")
    make_run("three", claimed(), Finished(failure=failure), Sealed(outcome="failed", failure=failure))
    assert dawn(["compare", "one", "three", "two"]) == 0
    assert "env/image" in capsys.readouterr().out


def test_on_a_terminal_the_board_is_drawn_in_place(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last picture stays; what a model wrote cannot move the cursor."""
    asks = [claimed(), replied(), ASKED, Parked(waiting="approval", detail="\x1b[2Jgone")]
    night({"a": [claimed(), *ended("changed", verdict="broke")], "b": asks})
    monkeypatch.setattr(Watch, "ended", True)
    main, side = os.openpty()
    with os.fdopen(main, "rb", buffering=0) as screen, os.fdopen(side, "w") as terminal:
        monkeypatch.setattr("sys.stdout", terminal)
        assert dawn(["watch", "night"]) == 9
        terminal.flush()
        drawn = screen.read(65_536).decode()
    assert "1 failed, 1 waiting for you" in drawn
    assert "\\x1b[2Jgone" in drawn
    assert "\x1b[2J" not in drawn
