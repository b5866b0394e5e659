"""Owns what a model answered, as a journal keeps it. Refuses to know a provider's shapes: `native` is opaque."""

from __future__ import annotations

from typing import Any, Literal

from worker.contract.task import Frozen


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
