"""What a reply costs (T70, T71)."""

from __future__ import annotations

from decimal import Decimal
from types import SimpleNamespace

import pytest

from worker.contract.events import Usage
from worker.models.anthropic import _tokens as anthropic_tokens
from worker.models.openai import _tokens as openai_tokens
from worker.models.prices import price


def test_cached_tokens_cost_the_same_in_both_styles_of_usage() -> None:
    """$0.0159 at 3 / 0.30 / 15 a million, not $0.0399 (T71)."""
    theirs = anthropic_tokens({"input_tokens": 2000, "cache_read_input_tokens": 8000, "output_tokens": 500})
    others = openai_tokens(
        {"prompt_tokens": 10000, "prompt_tokens_details": {"cached_tokens": 8000}, "completion_tokens": 500}
    )
    assert theirs == others
    cost, source = price("claude-sonnet-4-5", others, "anthropic")
    assert cost == 15_900
    assert source.startswith("genai-prices 0.")


@pytest.mark.parametrize(
    ("model", "base_url"),
    [("acme-1", None), ("gpt-4o", "http://127.0.0.1:8080/v1"), ("", None)],
)
def test_an_unknown_price_is_none(model: str, base_url: str | None) -> None:
    """Neither an unknown model nor a known name on a server of one's own has a price (T70)."""
    assert price(model, Usage(input_tokens=10), "openai", base_url)[0] is None


def test_a_known_seller_is_known_by_its_address() -> None:
    """A compatible server of another company has that company's price."""
    cost, _ = price("deepseek-chat", Usage(output_tokens=1_000_000), "openai", "https://api.deepseek.com/v1")
    assert cost is not None
    assert cost > 0


def test_a_part_of_a_micro_dollar_counts_as_a_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets hold only when rounding never loses money."""
    import genai_prices

    monkeypatch.setattr(genai_prices, "calc_price", lambda *_, **__: SimpleNamespace(total_price=Decimal("1.2e-6")))
    assert price("any", Usage(), "openai")[0] == 2
