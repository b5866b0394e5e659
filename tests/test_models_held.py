"""Holds of provider accounts: one no slows everybody, and nobody asks while it lasts."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from doubles import MemoryHints
from model_server import ModelServer

from worker.contract.cancel import Cancel
from worker.contract.errors import HintsFault, ProviderFault
from worker.contract.events import Reply
from worker.models.call import Account
from worker.models.held import HeldModel, Holds
from worker.models.openai import OpenAIModel
from worker.models.protocol import Model, ModelRequest, UserMessage


class Says:
    """A model with one answer."""

    name = "openai/m"

    def __init__(self, answer: Reply | ProviderFault) -> None:
        self._answer = answer

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        if isinstance(self._answer, ProviderFault):
            raise self._answer
        return self._answer


@pytest.fixture
def holds() -> MemoryHints:
    return MemoryHints(time.monotonic)


def ask(model: Model, holds: Holds) -> Reply:
    request = ModelRequest("", (UserMessage("go"),), (), step=1, reply_index=0)
    return HeldModel(model, "account", holds).reply(request, timeout_s=30, cancel=Cancel())


def fault_of(model: Model, holds: Holds) -> ProviderFault:
    with pytest.raises(ProviderFault) as caught:
        ask(model, holds)
    return caught.value


def test_one_worker_s_no_makes_the_others_wait(holds: MemoryHints, model_server: ModelServer) -> None:
    """T09: whoever asks next is told to wait as long, and the provider is not asked."""
    account = Account("openai", "key", "KEY", model_server.url)
    one, other = OpenAIModel("openai/m", "m", account), OpenAIModel("openai/m", "m", account)
    model_server.will_answer({"error": {"message": "slow down"}}, 429, retry_after="60")
    assert fault_of(one, holds).retry_after_s == 60
    fault = fault_of(other, holds)
    assert (fault.reason, fault.retryable) == ("unavailable", True)
    assert fault.retry_after_s == pytest.approx(60, abs=30)
    assert len(model_server.bodies) == 1


def test_after_the_hold_the_model_is_asked(holds: MemoryHints, wait_until: Callable[..., object]) -> None:
    """Nobody has to lift it."""
    holds.hold("account", 0.05)
    wait_until(lambda: not holds.held_s("account"))
    assert ask(Says(Reply(text="Done.")), holds).text == "Done."


@pytest.mark.parametrize(
    ("fault", "held_s"),
    [
        (ProviderFault("unavailable", "busy", retryable=True, shared=True), 5),
        (ProviderFault("unavailable", "quota", retryable=True, retry_after_s=300), 300),
        (ProviderFault("unavailable", "broken", retryable=True), 0),
        (ProviderFault("connection", "reset", retryable=True, cut=True), 0),
        (ProviderFault("bad_request", "no such model"), 0),
    ],
)
def test_only_what_is_about_the_account_holds_it(holds: MemoryHints, fault: ProviderFault, held_s: float) -> None:
    """One broken request slows nobody else."""
    assert fault_of(Says(fault), holds) is fault
    assert holds.held_s("account") == pytest.approx(held_s, abs=2)


class Away:
    """A Redis that is not there."""

    def hold(self, account: str, for_s: float) -> None:
        raise HintsFault("away")

    def held_s(self, account: str) -> float:
        raise HintsFault("away")


def test_without_redis_the_provider_s_own_word_counts() -> None:
    """Nobody is slowed, and nothing fails because of it."""
    busy = ProviderFault("unavailable", "busy", retryable=True, retry_after_s=3)
    assert ask(Says(Reply(text="Done.")), Away()).text == "Done."
    assert fault_of(Says(busy), Away()) is busy


def test_an_account_is_known_by_provider_address_and_key() -> None:
    """And shows none of its key: the name stands in Redis."""
    accounts = [
        Account("openai", "key-one", "KEY"),
        Account("openai", "key-two", "KEY"),
        Account("openai", "key-one", "KEY", "https://other.example/v1"),
        Account("anthropic", "key-one", "KEY"),
    ]
    assert len({account.id for account in accounts}) == 4
    assert accounts[0].id == Account("openai", "key-one", "OTHER_NAME").id
    assert all("key" not in account.id for account in accounts)
