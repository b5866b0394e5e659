"""Runs that wait for their provider, on the real engine and Redis, with a provider on loopback that says no."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from model_server import ModelServer
from nights import Night, types

from worker import loop
from worker.contract.events import Observed, Parked
from worker.contract.settings import Rate
from worker.contract.task import Task
from worker.models.call import Account
from worker.models.held import HeldModel
from worker.models.openai import OpenAIModel
from worker.models.paced import PacedModel
from worker.models.protocol import Model
from worker.station import utc_now
from worker.store.inbox import Inbox
from worker.store.pace import Pace

pytestmark = pytest.mark.docker


def says(command: str = "") -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "Done."}
    if command:
        function = {"name": "run_command", "arguments": json.dumps({"command": command})}
        message = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    return {"choices": [{"message": message}], "usage": {"prompt_tokens": 100, "completion_tokens": 10}}


def work(
    night: Night, server: ModelServer, run: str, *, rate: Rate | None = None, pace: type[Pace] = Pace, **changes: Any
) -> str:
    account = Account("openai", "key", "KEY", server.url)

    def opened(task: Task) -> Model:
        model: Model = OpenAIModel(task.model, "m", account)
        if rate is not None:
            model = PacedModel(model, account.id, task.batch, rate, pace(night.station.hints))
        return HeldModel(model, account.id, night.station.hints)

    return night.work(run, open_model=opened, **changes)


class Busy(Pace):
    """Another batch takes all that an account's rate allows just before the run asks for the first time."""

    def take(self, account: str, batch: str, rate: Rate, tokens: int) -> float:
        if not self.hints.script("return redis.call('EXISTS', KEYS[1])", f"rate:{account}"):
            while super().take(account, "other", rate, 0) == 0:
                pass
        return super().take(account, batch, rate, tokens)


def later(hours: float) -> str:
    return (datetime.fromisoformat(utc_now()) + timedelta(hours=hours)).isoformat(timespec="milliseconds")


def test_an_outage_parks_the_run_and_it_goes_on_where_it_was(
    night: Night, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T10: no step is paid or run again; meanwhile it has no container, no lease and no slot."""
    monkeypatch.setattr(loop, "RETRY_DELAYS_S", (0.0, 0.0, 0.0))
    journal = night.submit(model="openai/m", script=None, checks=())
    model_server.will_answer(says("echo once >> log"))
    for _ in range(4):
        model_server.will_answer({"error": {"message": "broken"}}, 500)
    assert work(night, model_server, "run-1") == "parked"
    run = journal.load()
    assert run.waiting is not None
    assert (run.waiting.waiting, run.steps, run.tokens) == ("provider", 1, 110)
    assert night.leftovers() == []
    assert night.station.hints.held(["run:run-1"]) == set()
    assert work(night, model_server, "run-1") == "not_due"
    model_server.will_answer(says())
    assert work(night, model_server, "run-1", now=lambda: later(1)) == "sealed"
    assert len(model_server.bodies) == 6
    assert types(journal).count("observed") == 1
    assert journal.load().tokens == 220


def test_a_quota_parks_every_run_of_the_account_and_flushes_none(night: Night, model_server: ModelServer) -> None:
    """T09: with `Retry-After: 7200` the second run is parked without a request, until the same time."""
    first = night.submit("run-1", model="openai/m", script=None, checks=())
    second = night.submit("run-2", model="openai/m", script=None, checks=())
    model_server.will_answer({"error": {"message": "rate limit"}}, 429, retry_after="7200")
    assert work(night, model_server, "run-1") == "parked"
    assert work(night, model_server, "run-2") == "parked"
    assert len(model_server.bodies) == 1
    for journal in (first, second):
        waiting = journal.load().waiting
        assert isinstance(waiting, Parked)
        assert later(1.9) < str(waiting.until) < later(2.1)
        assert not [record for record, _ in journal.read() if isinstance(record.event, Observed)]


def test_a_short_wait_for_the_account_s_turn_keeps_the_worker(night: Night, model_server: ModelServer) -> None:
    """The reply comes a little later, and what was waited is no working time."""
    rate = Rate(requests_per_min=120)
    journal = night.submit(model="openai/m", script=None, checks=())
    model_server.will_answer(says())
    assert work(night, model_server, "run-1", rate=rate, pace=Busy) == "sealed"
    assert sum(record.waited_ms for record, _ in journal.read()) > 0
    assert "parked" not in types(journal)
    assert journal.verify() == []


def test_a_longer_wait_for_the_account_s_turn_parks_the_run(
    night: Night, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says for what it waits, nothing was sent meanwhile, and it goes on where it was."""
    monkeypatch.setattr(loop, "TURN_MAX_S", 0.5)
    rate = Rate(requests_per_min=1)
    journal = night.submit(model="openai/m", script=None, checks=())
    model_server.will_answer(says("echo once >> log"))
    assert work(night, model_server, "run-1", rate=rate) == "parked"
    run = journal.load()
    assert run.waiting is not None
    assert (run.waiting.waiting, run.waiting.paced, run.provider_parks, run.steps) == ("provider", True, 0, 1)
    assert "is used up for now (requests_per_min 1)" in run.waiting.detail
    assert (night.leftovers(), night.station.hints.held(["run:run-1"])) == ([], set())
    assert len(model_server.bodies) == 1
    night.station.hints.forget()
    model_server.will_answer(says())
    assert work(night, model_server, "run-1", rate=rate, now=lambda: later(1)) == "sealed"
    assert (types(journal).count("observed"), journal.load().tokens) == (1, 220)


def test_a_cancel_ends_the_wait_for_the_account_s_turn(
    night: Night, model_server: ModelServer, redis_url: str, wait_until: Callable[..., Any]
) -> None:
    """At once, and nothing was sent."""
    rate = Rate(requests_per_min=1)
    journal = night.submit(model="openai/m", script=None, checks=())
    key = f"dawn:rate:{Account('openai', 'key', 'KEY', model_server.url).id}"
    with ThreadPoolExecutor(1) as pool, redis.Redis.from_url(redis_url) as raw:
        working = pool.submit(work, night, model_server, "run-1", rate=rate, pace=Busy)
        wait_until(lambda: raw.hexists(key, "wanted:batch-1"))
        Inbox(night.archive, "run-1").put("cancel", by="ann", at=utc_now())
        assert working.result(timeout=60) == "sealed"
    sealed = journal.load().sealed
    assert sealed is not None
    assert (sealed.outcome, len(model_server.bodies)) == ("cancelled", 0)
