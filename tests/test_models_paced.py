"""The rate of provider accounts, as their models keep it, on a real Valkey."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from doubles import FreePacing
from model_server import ModelServer
from structlog.testing import capture_logs

from worker.contract.cancel import Cancel
from worker.contract.errors import HintsFault, PacedFault, ProviderFault, UsageFault
from worker.contract.events import Reply, Usage
from worker.contract.settings import Rate, Settings
from worker.models.call import Account
from worker.models.fallback import FallbackModel
from worker.models.held import HeldModel
from worker.models.open import check_rates
from worker.models.openai import OpenAIModel
from worker.models.paced import PacedModel, Pacing
from worker.models.protocol import AssistantMessage, Message, Model, ModelRequest, UserMessage
from worker.store.hints import Hints
from worker.store.pace import Pace

TOKENS = Rate(tokens_per_min=60_000)
ONE = Rate(requests_per_min=1)


class Says:
    """A model with one answer."""

    name = "openai/m"

    def __init__(self, answer: Reply | ProviderFault) -> None:
        self._answer = answer
        self.asked = 0

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        self.asked += 1
        if isinstance(self._answer, ProviderFault):
            raise self._answer
        return self._answer


DONE = Reply(text="Done.", usage=Usage(input_tokens=900, output_tokens=100))


class Away:
    """A Redis that is not there, or not any more."""

    def __init__(self, waits_s: list[float]) -> None:
        self._waits_s = waits_s

    def take(self, account: str, batch: str, rate: Rate, tokens: int) -> float:
        if self._waits_s:
            return self._waits_s.pop()
        raise HintsFault("away")

    def settle(self, account: str, batch: str, rate: Rate, tokens: int) -> None:
        raise HintsFault("away")


@pytest.fixture
def hints(redis_url: str) -> Iterator[Hints]:
    hints = Hints(redis_url)
    yield hints
    hints.close()


@pytest.fixture
def pace(hints: Hints) -> Pace:
    return Pace(hints)


def request(tokens: int = 0, *replies: Reply) -> ModelRequest:
    messages: tuple[Message, ...] = (UserMessage("go"), *(AssistantMessage(reply) for reply in replies))
    return ModelRequest("", messages, (), step=1, reply_index=0, max_output_tokens=1_000, tokens=tokens)


def ask(model: Model, pacing: Pacing, rate: Rate = ONE, *, batch: str = "b", **fields: Any) -> Reply:
    paced = PacedModel(model, "account", batch, rate, pacing, **fields)
    return paced.reply(request(), timeout_s=30, cancel=Cancel())


def told_s(pacing: Pacing, rate: Rate) -> float:
    """How long the next request is told to wait."""
    model = Says(DONE)
    try:
        ask(model, pacing, rate, batch="next")
    except PacedFault as fault:
        assert model.asked == 0
        return fault.retry_after_s or 0.0
    return 0.0


def test_nothing_is_sent_before_the_account_s_rate_allows_it(pace: Pace) -> None:
    """The fault says when to ask again and why, and that others need not wait because of it."""
    assert ask(Says(DONE), pace).text == "Done."
    model = Says(DONE)
    with pytest.raises(PacedFault, match=r"the rate of account is used up for now \(requests_per_min 1\)") as caught:
        ask(model, pace)
    assert model.asked == 0
    assert (caught.value.reason, caught.value.retryable, caught.value.shared) == ("unavailable", True, False)
    assert 50 < (caught.value.retry_after_s or 0) < 60


def test_an_answer_that_says_it_used_less_than_nothing_frees_no_more_than_its_own() -> None:
    """Tokens that other requests of the batch took stay counted."""
    pacing = FreePacing()
    ask(Says(Reply(usage=Usage(input_tokens=-(10**9)))), pacing, TOKENS)
    assert [tokens for _, _, tokens in pacing.asked] == [1_000, -1_000]


def test_whoever_waits_for_a_rate_holds_nobody(pace: Pace, hints: Hints) -> None:
    """A hold is the provider's own no."""
    ask(Says(DONE), pace)
    with pytest.raises(PacedFault):
        HeldModel(PacedModel(Says(DONE), "account", "b", ONE, pace), "account", hints).reply(
            request(), timeout_s=30, cancel=Cancel()
        )
    assert hints.held_s("account") == 0


def test_nobody_asks_for_a_turn_while_the_account_is_held(pace: Pace, hints: Hints) -> None:
    """What is not sent is not counted."""
    hints.hold("account", 60)
    with pytest.raises(ProviderFault, match="held"):
        HeldModel(PacedModel(Says(DONE), "account", "b", ONE, pace), "account", hints).reply(
            request(), timeout_s=30, cancel=Cancel()
        )
    assert told_s(pace, ONE) == 0


def test_workers_together_send_no_more_than_the_rate(pace: Pace, model_server: ModelServer) -> None:
    """Sixteen runs of four batches ask a provider at once, and one request reaches it."""
    model = OpenAIModel("openai/m", "m", Account("openai", "key", "KEY", model_server.url))
    model_server.will_answer({"choices": [{"message": {"role": "assistant", "content": "Done."}}]})

    def one(number: int) -> str:
        try:
            return ask(model, pace, batch=f"batch-{number % 4}").text
        except PacedFault:
            return "waits"

    with ThreadPoolExecutor(16) as pool:
        said = list(pool.map(one, range(16)))
    assert (said.count("Done."), said.count("waits"), len(model_server.bodies)) == (1, 15, 1)


@pytest.mark.parametrize(
    ("answer", "owed"),
    [
        (DONE, 1_000),
        (Reply(text="Done.", usage=Usage(input_tokens=70_000)), 70_000),
        (Reply(text="Done."), 30_000),
        (ProviderFault("unavailable", "busy", retryable=True, shared=True), 0),
        (ProviderFault("bad_request", "no such model"), 0),
        (ProviderFault("connection", "late", retryable=True, unheard=True), 30_000),
        (ProviderFault("connection", "reset", retryable=True, cut=True), 30_000),
    ],
)
def test_what_a_request_came_to_is_counted(answer: Reply | ProviderFault, owed: int) -> None:
    """Before: the most that it may come to. After: what the provider says; all of that where nobody knows, and
    nothing where it refused. Above the estimate too."""
    free = FreePacing()
    paced = PacedModel(Says(answer), "account", "b", TOKENS, free)
    with suppress(ProviderFault):
        paced.reply(request(29_000), timeout_s=30, cancel=Cancel())
    counted = [tokens for _, _, tokens in free.asked]
    assert counted[0] == 30_000
    assert sum(counted) == owed


def test_a_refused_request_is_still_one(pace: Pace) -> None:
    """Its tokens are free again, its place in the minute is not."""
    with pytest.raises(ProviderFault, match="busy"):
        ask(Says(ProviderFault("unavailable", "busy", retryable=True)), pace)
    assert told_s(pace, ONE) > 50


def test_what_a_provider_reads_from_its_cache_counts_where_it_counts_it() -> None:
    """One that leaves it out is asked for what is new since the reply before."""
    usage = Usage(input_tokens=100, cache_read_tokens=20_000, cache_write_tokens=5_000, output_tokens=400)
    reply = Reply(text="Done.", usage=usage)
    for cache_is_free, told in ((False, [30_000, -4_500]), (True, [5_000, 500])):
        free = FreePacing()
        paced = PacedModel(Says(reply), "account", "b", TOKENS, free, cache_is_free=cache_is_free)
        paced.reply(request(29_000, Reply(text="Before.", usage=usage)), timeout_s=30, cancel=Cancel())
        assert free.asked == [("account", "b", tokens) for tokens in told]


def test_without_redis_nobody_is_slowed() -> None:
    """It is told once for each request, whenever Redis goes."""
    for waits_s, told in (([], "rate_unknown"), ([0.0], "rate_not_settled")):
        with capture_logs() as logs:
            assert ask(Says(DONE), Away(waits_s), TOKENS).text == "Done."
        assert [line["event"] for line in logs] == [told]
    busy = ProviderFault("unavailable", "busy", retryable=True)
    with pytest.raises(ProviderFault) as caught:
        ask(Says(busy), Away([]), TOKENS)
    assert caught.value is busy


def test_a_rate_is_no_reason_to_ask_another_model(pace: Pace) -> None:
    """A fallback is for trouble; one that waits for its own rate is passed on to whoever retries."""
    ask(Says(DONE), pace)
    paced = PacedModel(Says(DONE), "account", "b", ONE, pace)
    other = Says(DONE)
    with pytest.raises(PacedFault):
        FallbackModel("m", (paced, other)).reply(request(), timeout_s=30, cancel=Cancel())
    assert other.asked == 0
    broken = ProviderFault("unavailable", "broken", retryable=True)
    with pytest.raises(ProviderFault) as caught:
        FallbackModel("m", (Says(broken), paced)).reply(request(), timeout_s=30, cancel=Cancel())
    assert caught.value is broken  # which is waited for longer and longer


def test_a_rate_is_named_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """One variable each, as other nested settings."""
    monkeypatch.setenv("DAWN_RATES__OPENAI__REQUESTS_PER_MIN", "60")
    monkeypatch.setenv("DAWN_RATES__OPENAI__TOKENS_PER_MIN", "100000")
    monkeypatch.setenv("DAWN_RATES__MINE__TOKENS_PER_MIN", "7")
    assert Settings().rates == {
        "openai": Rate(requests_per_min=60, tokens_per_min=100_000),
        "mine": Rate(tokens_per_min=7),
    }


@pytest.mark.parametrize(
    "rates", [{"openai": {}}, {"openai": {"requests_per_min": 0}}, {"openai": {"requests": 60}}, {"openai": 60}]
)
def test_a_rate_that_bounds_nothing_is_refused(rates: dict[str, Any]) -> None:
    """Nobody believes in a limit that is not there."""
    with pytest.raises(ValueError, match="rates"):
        Settings(rates=rates)


def test_a_rate_of_nothing_known_is_refused_when_the_worker_starts() -> None:
    """With the names that there are."""
    check_rates(Settings(rates={"openai": ONE, "mine": ONE}, model_programs={"mine": "/bin/cat"}))
    with pytest.raises(UsageFault, match="called openia") as caught:
        check_rates(Settings(rates={"openia": ONE}, model_programs={"mine": "/bin/cat"}))
    assert "anthropic, mine, openai" in caught.value.hint
