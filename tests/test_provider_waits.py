"""Runs that wait for their provider, on the real engine and Redis, with a provider on loopback that says no."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from model_server import ModelServer
from nights import Night, types

from worker import loop
from worker.contract.events import Observed, Parked
from worker.models.call import Account
from worker.models.held import HeldModel
from worker.models.openai import OpenAIModel
from worker.station import utc_now

pytestmark = pytest.mark.docker


def says(command: str = "") -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "Done."}
    if command:
        function = {"name": "run_command", "arguments": json.dumps({"command": command})}
        message = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    return {"choices": [{"message": message}], "usage": {"prompt_tokens": 100, "completion_tokens": 10}}


def work(night: Night, server: ModelServer, run: str, **changes: Any) -> str:
    account = Account("openai", "key", "KEY", server.url)
    model = HeldModel(OpenAIModel("openai/m", "m", account), account.id, night.station.hints)
    return night.work(run, open_model=lambda _: model, **changes)


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
