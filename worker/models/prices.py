"""Owns what a reply costs. Refuses to guess: a model without a known price costs None, never 0."""

from __future__ import annotations

from decimal import ROUND_UP
from importlib.metadata import version

from worker.contract.events import Usage


def price(model: str, usage: Usage, provider: str, base_url: str | None = None) -> tuple[int | None, str]:
    """(micro-dollars rounded up, or None when the price is unknown; where the price is from).

    provider: `anthropic` or `openai`, the seller unless base_url names another server: one that is no known
    seller has no known price, whatever its models are called. Source: the genai-prices package's own table,
    without network.
    """
    from genai_prices import Usage as Tokens
    from genai_prices import calc_price

    source = f"genai-prices {version('genai-prices')}"
    tokens = Tokens(
        # Theirs counts cached tokens as input, ours does not.
        input_tokens=usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        output_tokens=usage.output_tokens,
    )
    try:
        if base_url is None:
            found = calc_price(tokens, model, provider_id=provider)
        else:
            found = calc_price(tokens, model, provider_api_url=base_url)
    except (LookupError, ValueError):
        return None, source
    return int((found.total_price * 1_000_000).to_integral_value(ROUND_UP)), source
