"""Owns what a model answered, as a journal keeps it. Refuses to know a provider's shapes: `native` is opaque."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from worker.contract.task import USD_MAX, Frozen

TOKENS_MAX: Final = 2**53 - 1
"""Of one kind, in a reply that comes in: exact wherever it is counted."""
MICROUSD_MAX: Final = round(USD_MAX * 1_000_000)


class Usage(Frozen):
    """Tokens of one reply. input_tokens excludes what was read from or written to the provider's cache."""

    input_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0

    @property
    def total(self) -> int:
        """All tokens of the reply, in and out."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens + self.output_tokens

    @property
    def bounded(self) -> Usage:
        """The nearest to it that can be: fewer than no tokens would give back what others used."""
        return Usage(**{kind: min(max(0, count), TOKENS_MAX) for kind, count in self})


def _told(usage: Usage) -> Usage:
    if usage.bounded != usage:
        raise ValueError(f"counts tokens from 0 to {TOKENS_MAX}")
    return usage


ToldUsage = Annotated[Usage, AfterValidator(_told)]
"""Of a reply that comes in; what a journal holds is read as it stands."""
ToldUsd = Annotated[float, Field(ge=0, le=USD_MAX, allow_inf_nan=False)]
"""The cost of a reply that comes in, dollars."""


class ToolCall(Frozen):
    """id is ours and unique in the run; original_id is the provider's; arguments is the raw JSON text."""

    id: str
    original_id: str = ""
    name: str
    arguments: str


class Reply(Frozen):
    """What a model answered. native: the provider's content, value-identical, to be sent back as it came.

    stop: end (finished talking), calls, length (cut: nothing of it is executed), refusal, content_filter.
    cost_microusd: millionths of a US dollar, None when the price is unknown (never 0 for unknown).
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    stop: Literal["end", "calls", "length", "refusal", "content_filter"] = "end"
    usage: Usage = Usage()
    cost_microusd: int | None = None
    price_source: str = ""
    model: str = ""
    native: Any = None
