"""What a reply costs (T70, T71)."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest

from worker.contract.errors import UsageFault
from worker.contract.events import Usage
from worker.contract.settings import Settings
from worker.models.anthropic import _tokens as anthropic_tokens
from worker.models.openai import _tokens as openai_tokens
from worker.models.prices import TABLE_ALONE, Prices, open_prices

OWN = "openai/acme: {input: 3, output: 15, cache_read: 0.30}\ncommand:mine: {input: 0.1, output: 0.1}\n"
CACHED = Usage(input_tokens=2_000, cache_read_tokens=8_000, output_tokens=500)

Written = Callable[[str], Prices]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """The prices of a deployment whose file says that."""

    def make(text: str) -> Prices:
        (tmp_path / "prices.yaml").write_text(text)
        return open_prices(Settings(prices=tmp_path / "prices.yaml"))

    return make


def test_cached_tokens_cost_the_same_in_both_styles_of_usage(written: Written) -> None:
    """$0.0159 at 3 / 0.30 / 15 a million, not $0.0399, by the table and by a price of one's own (T71)."""
    theirs = anthropic_tokens({"input_tokens": 2000, "cache_read_input_tokens": 8000, "output_tokens": 500})
    others = openai_tokens(
        {"prompt_tokens": 10000, "prompt_tokens_details": {"cached_tokens": 8000}, "completion_tokens": 500}
    )
    assert theirs == others == CACHED
    cost, source = TABLE_ALONE.price("anthropic/claude-sonnet-4-5", others)
    assert cost == 15_900
    assert source.startswith("genai-prices 0.")
    assert written(OWN).price("openai/acme", others)[0] == 15_900


@pytest.mark.parametrize(
    ("model", "base_url"),
    [
        ("openai/acme-1", None),
        ("openai/gpt-4o", "http://127.0.0.1:8080/v1"),
        ("openai/", None),
        ("command:mine", None),
        ("python:gpt-4o", None),
    ],
)
def test_an_unknown_price_is_none(model: str, base_url: str | None) -> None:
    """Neither an unknown model nor a known name on a server or in a program of one's own has a price (T70)."""
    assert TABLE_ALONE.price(model, Usage(input_tokens=10), base_url)[0] is None


def test_a_server_of_ones_own_is_known_without_being_named() -> None:
    """An estimate made before the request is about the same server."""
    prices = open_prices(Settings(openai_base_url="http://127.0.0.1:8080/v1"))
    assert prices.price("openai/gpt-4o", CACHED)[0] is None
    assert prices.price("anthropic/claude-sonnet-4-5", CACHED)[0] == 15_900


def test_a_known_seller_is_known_by_its_address() -> None:
    """A compatible server of another company has that company's price."""
    cost, _ = TABLE_ALONE.price("openai/deepseek-chat", Usage(output_tokens=1_000_000), "https://api.deepseek.com/v1")
    assert cost is not None
    assert cost > 0


def test_a_part_of_a_micro_dollar_counts_as_a_whole_one(monkeypatch: pytest.MonkeyPatch, written: Written) -> None:
    """Budgets hold only when rounding never loses money."""
    import genai_prices

    monkeypatch.setattr(genai_prices, "calc_price", lambda *_, **__: SimpleNamespace(total_price=Decimal("1.2e-6")))
    assert TABLE_ALONE.price("openai/any", Usage())[0] == 2
    assert written(OWN).price("command:mine", Usage(input_tokens=1))[0] == 1


def test_a_price_of_ones_own_goes_first_and_is_named_with_its_version(written: Written) -> None:
    """Also on another server; the source tells two versions of a file apart."""
    ours = written("openai/gpt-4o: {input: 1, output: 2}")
    cost, source = ours.price("openai/gpt-4o", Usage(input_tokens=10, output_tokens=1), "http://127.0.0.1:8080/v1")
    assert cost == 12
    assert source.startswith("prices.yaml sha256:")
    assert source != written("openai/gpt-4o: {input: 1, output: 3}").source
    assert ours.price("openai/gpt-4o-mini", CACHED)[1].startswith("genai-prices ")


def test_cached_tokens_without_a_price_cost_what_input_does(written: Written) -> None:
    """They are never free because somebody left them out."""
    usage = Usage(cache_read_tokens=1_000, cache_write_tokens=1_000)
    assert written("openai/acme: {input: 3, output: 15}").price("openai/acme", usage)[0] == 6_000
    assert written("openai/acme: {input: 3, output: 15, cache_write: 6}").price("openai/acme", usage)[0] == 9_000


def test_free_is_a_price(written: Written) -> None:
    """A server of one's own may be told to cost nothing, which is not unknown."""
    assert written("openai/local: {input: 0, output: 0}").price("openai/local", CACHED)[0] == 0


def test_the_most_of_several_is_unknown_with_one_of_them(written: Written) -> None:
    """A bound that leaves one model out is none."""
    prices = written(OWN)
    usages = [Usage(input_tokens=100), Usage(cache_read_tokens=100)]
    assert prices.most(["openai/acme", "command:mine"], usages)[0] == 300
    assert prices.most(["openai/acme", "openai/other"], usages) == (None, "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "dictionary"),
        ("openai/a: {input: 1", "line 1"),
        ("openai/a: {input: 1, output: 2}\nopenai/a: {input: 1, output: 2}", "is given twice"),
        ("openai/a: {input: 1}", "openai/a.output"),
        ("openai/a: {input: -1, output: 1}", "openai/a.input"),
        ("openai/a: {input: .nan, output: 1}", "openai/a.input"),
        ("openai/a: {input: 1, output: 1000001}", "openai/a.output"),
        ("openai/a: {input: 1, output: 2, cached: 3}", "openai/a.cached"),
        ("gpt-4o: {input: 1, output: 2}", "known are"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(written: Written, text: str, said: str) -> None:
    """At the start of a worker, with the setting and the place."""
    with pytest.raises(UsageFault, match=r"DAWN_PRICES: .*prices\.yaml") as caught:
        written(text)
    assert said in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """It is not taken for an empty one."""
    with pytest.raises(UsageFault, match="cannot be read"):
        open_prices(Settings(prices=tmp_path / "none.yaml"))
