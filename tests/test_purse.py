"""Budgets that many runs share, shown on whole attempts: a real Redis, a model that costs money, and the doubles of
archive and engine. What the counters do by themselves is in test_counters.py.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from double_sandbox import MemorySandbox
from doubles import MemoryArchive
from runs_made import claimed, replied
from structlog.testing import capture_logs
from transcripts import shell
from world import IMAGES, SOURCE

from scheduler.control import tell
from scheduler.runs import Found
from worker import attempt, spending
from worker.contract.cancel import Cancel
from worker.contract.errors import HintsFault, ProviderFault
from worker.contract.events import (
    Event,
    Finished,
    Parked,
    Prepared,
    Replied,
    Reply,
    ToolCall,
    Unrecorded,
    Usage,
    digest,
)
from worker.contract.redact import Redactor
from worker.contract.settings import Settings
from worker.contract.task import Budget, Check, Environment, Limits, Repo, Task
from worker.models.prices import Price, Prices
from worker.models.protocol import ModelRequest, call_id, late_fault
from worker.sandbox.protocol import Sandbox
from worker.station import Station
from worker.store import keys
from worker.store.archive import Archive
from worker.store.counters import Counters
from worker.store.hints import Hints
from worker.store.inbox import Control
from worker.store.journal import Journal

NAME = "openai/acme"
BATCH = "night-0123456789ab"
CALL_MICROUSD = 100_000
STEPS = 4
PRICES = Prices(own={NAME: Price(input=Decimal(0), output=Decimal(7)), "openai/free": Price(input=0, output=0)})
"""The longest answer, 16,384 tokens, is estimated with $0.114688; each costs $0.10."""
ESTIMATE_MICROUSD = 114_688


class Died(BaseException):
    """The end of a worker."""


@dataclass
class Paid:
    """Three replies with a call, then words, $0.10 each. before: called with the number of the reply of all runs; it
    may raise, or answer instead."""

    name: str = NAME
    before: Callable[[int], Reply | None] = lambda n: None
    asked: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        with self.lock:
            self.asked += 1
            n = self.asked
        if (other := self.before(n)) is not None:
            return other
        if request.step >= STEPS:
            return Reply(text="Done.", cost_microusd=CALL_MICROUSD, usage=Usage(output_tokens=1))
        call = shell("echo more >> a.txt", request.step).model_copy(update={"id": call_id(request.step, 1)})
        return Reply(calls=(call,), stop="calls", cost_microusd=CALL_MICROUSD, usage=Usage(output_tokens=1))


class Deployment:
    """Runs of one batch, and a worker's station whose clock stands still."""

    def __init__(self, folder: Path, url: str) -> None:
        self.archive, self.hints, self.model = MemoryArchive(), Hints(url), Paid()
        self.counters = Counters(self.hints)
        self.now = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
        self.archive.create(keys.source(digest(SOURCE)), SOURCE)
        self.runs: list[str] = []
        self.station = Station(
            name="worker",
            lane="main",
            settings=Settings(hint_poll_s=0.02, inbox_poll_s=0.02),
            archive=cast(Archive, self.archive),
            archive_id="purse",
            hints=self.hints,
            sandbox=cast(Sandbox, MemorySandbox("engine", folder, IMAGES)),
            redactor=Redactor({}),
            secrets={},
            open_model=lambda task: self.model,
            prices=PRICES,
            now=lambda: self.now.isoformat(timespec="milliseconds"),
        )

    def submit(self, *runs: str, **changes: Any) -> None:
        """Runs of the batch, which has a budget of $1 if nothing else is said."""
        self.runs += runs
        targets = {"targets": [{"target": run, "run": run} for run in self.runs]}
        self.archive.overwrite(keys.batch_targets(BATCH), json.dumps(targets).encode())
        for run in runs:
            asked: dict[str, Any] = {
                "v": 2,
                "run": run,
                "batch": BATCH,
                "target": run,
                "repo": Repo(source=digest(SOURCE), source_kind="folder", label="sample"),
                "environment": Environment(image="python"),
                "prompt": "Make it better.",
                "model": NAME,
                "checks": (Check(name="more", command="grep -q more a.txt"),),
                "limits": Limits(feedbacks=0, cost_usd=None),
                "budget": Budget(usd=1),
            }
            self.journal(run).submit(Task(**(asked | changes)), by="ann", at=self.station.now())

    def journal(self, run: str) -> Journal:
        return Journal(cast(Archive, self.archive), run)

    def work(self, run: str, **changes: Any) -> str:
        """One attempt."""
        return attempt.run(run, replace(self.station, **changes))

    def raise_budget(self, text: str) -> None:
        """As `dawn budget`."""
        batch = Found("batch", BATCH)
        tell(cast(Archive, self.archive), None, batch, "budget", by="me", at=self.station.now(), text=text)

    def day(self, usd: float) -> Settings:
        """The settings with a budget for each day."""
        return self.station.settings.model_copy(update={"day_budget_usd": usd})

    def events(self, run: str, kind: type[Event]) -> list[Any]:
        return [record.event for record, _ in self.journal(run).read() if isinstance(record.event, kind)]

    def waits(self, run: str) -> tuple[str, str | None, str] | None:
        parked = self.journal(run).load().waiting
        return None if parked is None else (parked.waiting, parked.until, parked.detail)

    @property
    def spent(self) -> int:
        """As the journals say."""
        return sum(self.journal(run).load().spent_microusd for run in self.runs)

    @property
    def counted(self) -> int | None:
        return self.counters.spent(f"batch:{BATCH}")


@pytest.fixture
def deployment(tmp_path: Path, redis_url: str) -> Iterator[Deployment]:
    made = Deployment(tmp_path, redis_url)
    yield made
    made.hints.close()


def test_twenty_runs_at_once_pass_their_budget_by_one_call_at_most(deployment: Deployment) -> None:
    """They want $8 together and may spend $1: each stops after the step it had paid for, and waits (T72)."""
    runs = [f"r{n}" for n in range(20)]
    deployment.submit(*runs)
    with ThreadPoolExecutor(20) as pool:
        ends = list(pool.map(deployment.work, runs))
    assert deployment.spent == deployment.counted
    assert 1_000_000 <= deployment.spent < 1_000_000 + CALL_MICROUSD
    assert deployment.model.asked == deployment.spent // CALL_MICROUSD
    waiting = [deployment.waits(run) for run, end in zip(runs, ends, strict=True) if end == "parked"]
    assert set(waiting) == {("budget", None, "$1.00 of $1.00 spent")}


def test_a_wipe_in_the_middle_lets_no_more_through(deployment: Deployment, redis_url: str) -> None:
    """Calls are in flight when Redis forgets what was spent and reserved: it is folded before the next one begins."""
    runs = [f"r{n}" for n in range(8)]
    deployment.submit(*runs)
    in_flight, go_on = threading.Barrier(2), threading.Event()

    def before(n: int) -> None:
        if n == 3:
            in_flight.wait(30)
            go_on.wait(30)

    deployment.model.before = before
    with ThreadPoolExecutor(8) as pool, redis.Redis.from_url(redis_url) as raw:
        work = [pool.submit(deployment.work, run) for run in runs]
        in_flight.wait(30)
        raw.flushall()
        go_on.set()
        ends = [one.result() for one in work]
    assert ends.count("parked") > 0
    assert 1_000_000 <= deployment.spent < 1_000_000 + CALL_MICROUSD
    assert deployment.spent == deployment.counted


def test_a_takeover_counts_the_lost_call_once(deployment: Deployment) -> None:
    """It may have been paid for: the most that it can have cost stands in the journal, and in the counter."""
    deployment.submit("r0", budget=Budget(usd=0.15))

    def dies(n: int) -> None:
        if n == 2:
            raise Died

    deployment.model.before = dies
    with pytest.raises(Died):
        deployment.work("r0")
    assert deployment.counters.reserve("r1", 1, 1, 60, {f"batch:{BATCH}": 200_000}, {f"batch:{BATCH}": 0}) is not None
    assert deployment.work("r0") == "parked"
    [lost] = deployment.events("r0", Unrecorded)
    assert lost.cost_microusd == ESTIMATE_MICROUSD
    assert deployment.spent == deployment.counted == CALL_MICROUSD + ESTIMATE_MICROUSD
    assert deployment.waits("r0") == ("budget", None, "$0.21 of $0.15 spent")


def test_a_raised_budget_lets_a_run_go_on(deployment: Deployment) -> None:
    """From where it stood: nothing is paid for twice."""
    deployment.submit("r0", budget=Budget(usd=0.15))
    assert deployment.work("r0") == "parked"
    assert deployment.work("r0") == "not_due"
    deployment.raise_budget("$5")
    assert deployment.work("r0") == "sealed"
    assert (deployment.model.asked, deployment.spent, deployment.counted) == (STEPS, 400_000, 400_000)
    assert len(Control(cast(Archive, deployment.archive), BATCH).read()) == 1


def test_a_run_may_end_with_what_it_has_instead(deployment: Deployment) -> None:
    """Its patch is measured, as with any limit (T72)."""
    deployment.submit("r0", budget=Budget(usd=0.15, on_limit="stop"))
    assert deployment.work("r0") == "sealed"
    run = deployment.journal("r0").load()
    assert run.sealed is not None
    assert (run.sealed.outcome, str(run.sealed.failure), run.sealed.verdict) == (
        "failed",
        "limit/batch_budget",
        "verified",
    )
    assert run.sealed.failure is not None
    assert run.sealed.failure.detail == "$0.20 of $0.15 spent"
    assert "patch.diff" in run.sealed.artifacts


def test_the_next_day_has_a_budget_of_its_own(deployment: Deployment) -> None:
    """A run waits, an hour at a time, until midnight, and what it spends then is another day's (T72)."""
    deployment.submit("r0", "r1", budget=None)
    settings = deployment.day(0.15)
    assert deployment.work("r0", settings=settings) == "parked"
    hour = (deployment.now + timedelta(hours=1)).isoformat(timespec="milliseconds")
    waits = ("budget", hour, "$0.20 of $0.15 spent on 2026-11-30")
    assert deployment.waits("r0") == waits
    assert deployment.work("r1", settings=settings) == "parked"
    assert deployment.work("r0", settings=settings) == "not_due"
    deployment.now += timedelta(hours=12)
    assert deployment.work("r0", settings=settings) == "sealed"
    assert [deployment.counters.spent(f"day:{day}") for day in ("2026-11-30", "2026-12-01")] == [200_000, 200_000]
    assert sorted(deployment.archive.list("days/")) == [
        "days/2026-11-30/r0",
        "days/2026-11-30/r1",
        "days/2026-12-01/r0",
    ]


def test_a_call_that_may_end_after_midnight_is_both_days(deployment: Deployment) -> None:
    """Whichever it is committed on had room for it, and both have the run's marker."""
    deployment.submit("r0", budget=None)
    deployment.now = datetime(2026, 11, 30, 23, 58, tzinfo=UTC)

    tomorrow = {"day:2026-12-01": ESTIMATE_MICROUSD}

    def late(n: int) -> None:
        if n == 2:
            refused = deployment.counters.reserve("another", 1, 1, 60, tomorrow, dict.fromkeys(tomorrow, 0))
            assert refused is not None
            assert refused.why == "busy"
            deployment.now += timedelta(minutes=4)

    deployment.model.before = late
    assert deployment.work("r0", settings=deployment.day(9)) == "sealed"
    assert [deployment.counters.spent(f"day:{day}") for day in ("2026-11-30", "2026-12-01")] == [100_000, 300_000]
    assert list(deployment.archive.list("days/")) == ["days/2026-11-30/r0", "days/2026-12-01/r0"]


def test_a_budget_needs_a_price(deployment: Deployment) -> None:
    """A run whose model has none fails before its first call, and before anything is prepared for it (T70)."""
    deployment.submit("r0", model="openai/unheard-of")
    assert deployment.work("r0") == "sealed"
    failure = deployment.events("r0", Finished)[0].failure
    assert str(failure) == "provider/bad_request"
    assert "DAWN_PRICES" in failure.detail
    assert (deployment.model.asked, deployment.events("r0", Prepared)) == (0, [])


def test_without_a_budget_no_price_is_needed(deployment: Deployment) -> None:
    """An unknown cost stays unknown, and only the day's marker tells that there may be one (T70)."""
    deployment.submit("r0", model="openai/unheard-of", budget=None)
    deployment.model.before = lambda n: Reply(text="Done.")
    assert deployment.work("r0") == "sealed"
    run = deployment.journal("r0").load()
    assert (run.cost_known, run.spent_microusd, deployment.counted) == (False, 0, None)
    assert list(deployment.archive.list("days/")) == ["days/2026-11-30/r0"]


def test_what_costs_nothing_is_asked_whatever_was_spent(deployment: Deployment) -> None:
    """A model of one's own, told to be free, is not held up by what others cost."""
    deployment.submit("r0", "r1", budget=Budget(usd=0.05))
    assert deployment.work("r0") == "parked"
    deployment.submit("free", model="openai/free", budget=Budget(usd=0.05))
    deployment.model.before = lambda n: Reply(text="Done.", cost_microusd=0)
    assert deployment.work("free") == "sealed"
    assert deployment.work("r1") == "parked"


def test_an_answer_without_a_cost_counts_with_its_estimate(deployment: Deployment) -> None:
    """Unknown is not nothing: its source says what the number is (T70)."""
    deployment.submit("r0")
    deployment.model.before = lambda n: Reply(text="Done.")
    assert deployment.work("r0") == "sealed"
    [replied] = deployment.events("r0", Replied)
    assert (replied.reply.cost_microusd, replied.reply.price_source) == (ESTIMATE_MICROUSD, "estimate")
    assert deployment.spent == deployment.counted == ESTIMATE_MICROUSD


def test_an_answer_that_nobody_heard_may_have_been_paid_for(deployment: Deployment) -> None:
    """A call that ran out of time stands in the journal with the most that it can have cost (F48)."""
    deployment.submit("r0")

    def late(n: int) -> Reply:
        if n == 1:
            raise late_fault(300)
        return Reply(text="Done.", cost_microusd=CALL_MICROUSD)

    deployment.model.before = late
    assert deployment.work("r0") == "sealed"
    assert [lost.cost_microusd for lost in deployment.events("r0", Unrecorded)] == [ESTIMATE_MICROUSD]
    assert deployment.spent == deployment.counted == ESTIMATE_MICROUSD + CALL_MICROUSD


def deep(n: int) -> Reply:
    """A reply that no journal can hold."""
    nested: Any = 1
    for _ in range(300):
        nested = [nested]
    return Reply(text="Done.", cost_microusd=CALL_MICROUSD, native=nested)


def breaks(n: int) -> Reply:
    raise KeyError("a bug of an adapter")


@pytest.mark.parametrize("before", [deep, breaks])
def test_an_answer_that_an_error_of_ours_lost_is_counted(
    deployment: Deployment, before: Callable[[int], Reply]
) -> None:
    """Each attempt stands in the journal with the most that its call can have cost, the last one too (F48)."""
    deployment.submit("r0")
    deployment.model.before = before
    ends = []
    with capture_logs():  # a console shows every local of a traceback, which takes a minute of such a reply
        for _ in range(3):
            ends.append(deployment.work("r0"))
            deployment.now += timedelta(hours=1)
    assert ends == ["yielded", "yielded", "sealed"]
    assert deployment.model.asked == 3
    assert deployment.spent == deployment.counted == 3 * ESTIMATE_MICROUSD


def test_a_call_that_was_refused_cost_nothing(deployment: Deployment) -> None:
    """What was reserved for it is free for others at once (F48)."""
    deployment.submit("r0", budget=Budget(usd=0.11))

    def refused(n: int) -> Reply:
        if n == 1:
            raise ProviderFault("unavailable", "overloaded", retryable=True)
        limits = {f"batch:{BATCH}": 110_000}
        assert deployment.counters.reserve("another", 1, 1, 60, limits, dict.fromkeys(limits, 0)) is not None
        return Reply(text="Done.", cost_microusd=CALL_MICROUSD)

    deployment.model.before = refused
    assert deployment.work("r0") == "sealed"
    assert (deployment.spent, deployment.counted, deployment.events("r0", Unrecorded)) == (100_000, 100_000, [])


def test_a_call_waits_for_those_that_hold_the_rest(deployment: Deployment) -> None:
    """The money that is left may be enough for it, when another call costs less than was reserved."""
    deployment.submit("r0")
    level = f"batch:{BATCH}"
    deployment.counters.put(level, deployment.counters.begin(level), {})
    assert deployment.counters.reserve("other", 1, 1_000_000, 600, {level: 1_000_000}, {level: 0}) is None
    looked = threading.Event()
    reserve = Counters.reserve

    def watched(counters: Counters, *asked: Any) -> Any:
        refused = reserve(counters, *asked)
        if refused is not None and refused.why == "busy":
            looked.set()
        return refused

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as pool:
        patch.setattr(Counters, "reserve", watched)
        end = pool.submit(deployment.work, "r0")
        assert looked.wait(30)
        assert deployment.model.asked == 0
        deployment.counters.settle("other", 1, {level: 5})
        assert end.result() == "sealed"
    assert deployment.counted == 400_005


def test_without_redis_no_model_is_asked(deployment: Deployment, tmp_path: Path) -> None:
    """Where a budget is in force nobody could say what is left of it: the run is given back."""
    deployment.submit("r0")

    class Away(Hints):
        def script(self, text: str, name: str, *arguments: str | int) -> Any:
            raise HintsFault("Redis is away")

    away = Away(f"unix://{tmp_path}/none.sock")
    claims = deployment.hints
    for method in ("claim", "extend", "release", "poked"):
        setattr(away, method, getattr(claims, method))
    assert deployment.work("r0", hints=away) == "yielded"
    assert deployment.model.asked == 0


def test_redis_away_after_an_answer_loses_no_answer(deployment: Deployment) -> None:
    """It is committed, and told to the counters with the next call."""
    deployment.submit("r0")
    settle, told = Counters.settle, []

    def fails_once(counters: Counters, *said: Any) -> None:
        told.append(said)
        if len(told) == 1:
            raise HintsFault("Redis is away")
        settle(counters, *said)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Counters, "settle", fails_once)
        assert deployment.work("r0") == "sealed"
    assert deployment.spent == deployment.counted == 400_000


def delegates(n: int) -> Reply | None:
    """The first reply asks a delegate, who looks once before it answers; all cost the same."""
    if n == 1:
        call = ToolCall(id=call_id(1, 1), name="delegate", arguments=json.dumps({"goal": "Look at it."}))
        return Reply(calls=(call,), stop="calls", cost_microusd=CALL_MICROUSD)
    if n == 2:
        call = shell("cat a.txt", 1)
        return Reply(calls=(call,), stop="calls", cost_microusd=CALL_MICROUSD)
    return Reply(text="Done.", cost_microusd=CALL_MICROUSD)


def test_a_delegate_spends_its_runs_budget(deployment: Deployment) -> None:
    """It meets the limit itself, and its run waits with it."""
    deployment.submit("r0", budget=Budget(usd=0.15))
    deployment.model.before = delegates
    assert deployment.work("r0") == "parked"
    assert deployment.waits("r0") == ("budget", None, "$0.20 of $0.15 spent")
    assert deployment.spent == deployment.counted == 200_000
    deployment.raise_budget("$0.25")
    assert deployment.work("r0") == "parked"
    assert deployment.spent == deployment.counted == 300_000
    deployment.raise_budget("$5")
    assert deployment.work("r0") == "sealed"
    assert deployment.spent == deployment.counted == 400_000


def test_a_fold_counts_a_delegates_call_in_flight(deployment: Deployment) -> None:
    """Its request is in a journal of its own; it is never larger than the context."""
    deployment.submit("r0")

    def dies(n: int) -> Reply | None:
        if n == 2:
            raise Died
        return delegates(n)

    deployment.model.before = dies
    with pytest.raises(Died):
        deployment.work("r0")
    parts = spending.fold(cast(Archive, deployment.archive), f"batch:{BATCH}", PRICES, beside_s=45)
    assert parts["r0"].estimate_microusd == ESTIMATE_MICROUSD


SCRIPT = """
- calls: [{tool: run_command, arguments: {command: "echo more >> a.txt"}}]
  cost_usd: 0.10
- text: Done.
  cost_usd: 0.10
"""


def test_a_script_may_say_what_its_model_would_have_cost(deployment: Deployment) -> None:
    """So budgets can be tried without a key; it is estimated with its dearest reply."""
    from world import scripted

    deployment.submit("r0", model="scripted:x", script=SCRIPT, budget=Budget(usd=0.05))
    assert deployment.work("r0", open_model=lambda task: scripted(task.model, task.script or "")) == "parked"
    assert deployment.waits("r0") == ("budget", None, "$0.10 of $0.05 spent")


def test_a_script_uses_up_nobodys_day(deployment: Deployment) -> None:
    """It costs nothing real: counted or folded, the day of the deployment is left to those who pay."""
    from world import scripted

    deployment.submit("r0", model="scripted:x", script=SCRIPT, budget=Budget(usd=5))
    settings = deployment.day(0.05)
    assert deployment.work("r0", settings=settings, open_model=lambda _: scripted("scripted:x", SCRIPT)) == "sealed"
    assert (deployment.counted, list(deployment.archive.list("days/"))) == (200_000, [])
    deployment.submit("paid", budget=None)
    assert deployment.work("paid", settings=settings) == "parked"
    assert deployment.waits("paid")[2] == "$0.10 of $0.05 spent on 2026-11-30"


def test_what_a_fork_copied_is_its_parents(deployment: Deployment) -> None:
    """And a day has what was committed on it."""
    deployment.submit("r0")
    deployment.work("r0")
    records = [record for record, _ in deployment.journal("r0").read()]
    assert spending.spent_microusd("batch:x", records) == 400_000
    assert spending.spent_microusd("day:2026-11-30", records) == 400_000
    assert spending.spent_microusd("day:2026-12-01", records) == 0
    copied = [record.model_copy(update={"seq": 0}) for record in records]
    assert spending.spent_microusd("batch:x", copied) == 0


def test_a_fold_reads_what_can_be_read(deployment: Deployment) -> None:
    """A run that is not written yet spent nothing, a damaged one what stands before the damage, and one at work may
    have a call in flight."""
    deployment.submit("whole", "damaged", "begun")
    for run in ("whole", "damaged"):
        deployment.work(run)
    torn = keys.segment("damaged", 5)
    deployment.archive.overwrite(torn, deployment.archive.get(torn)[:-2])
    deployment.archive.delete([keys.rollup("damaged", 0)])

    def dies(n: int) -> None:
        raise Died

    deployment.model.before = dies
    with pytest.raises(Died):
        deployment.work("begun")
    deployment.runs.append("named")
    deployment.submit()
    parts = spending.fold(cast(Archive, deployment.archive), f"batch:{BATCH}", PRICES, beside_s=45)
    spent = {run: part.spent_microusd for run, part in parts.items()}
    assert spent == {"whole": 400_000, "damaged": 100_000, "begun": 0, "named": 0}
    asking = {run: part.estimate_microusd for run, part in parts.items() if part.estimate_microusd}
    assert asking == {"begun": ESTIMATE_MICROUSD}
    assert parts["begun"].for_s == Limits().model_timeout_s + 45
    assert parts["begun"].attempt == deployment.journal("begun").load().attempt
    assert set(spending.fold(cast(Archive, deployment.archive), "day:2026-11-30", PRICES, beside_s=45)) == {
        "whole",
        "damaged",
        "begun",
    }
    assert Parked not in {type(record.event) for record, _ in deployment.journal("whole").read()}


@pytest.mark.parametrize(
    "odd",
    [
        {"model": "newprovider/x"},
        {"limits": Limits(cost_usd=None, model_timeout_s=float("inf"), working_time_s=float("inf"))},
        {"limits": Limits(cost_usd=None, context_tokens=10**400)},
    ],
    ids=["unknown model", "endless call", "endless context"],
)
def test_one_odd_task_holds_up_no_fold(deployment: Deployment, odd: dict[str, Any]) -> None:
    """What its call in flight can cost nobody knows; what it spent counts, and another run is asked."""
    deployment.submit("odd", **odd)
    journal = deployment.journal("odd")
    run = journal.append(journal.load(), [claimed()], attempt=None, at=deployment.station.now())
    paid = replied(cost_microusd=CALL_MICROUSD)
    journal.append(run, [paid], attempt=run.attempt, at=deployment.station.now())
    deployment.submit("r0")
    assert deployment.work("r0") == "sealed"
    assert deployment.spent == 500_000
