"""Owns what a reply costs: a deployment's own prices, then the table of the genai-prices package. Refuses to guess: a
model without a known price costs None, never 0.

A file of prices is YAML (or JSON): what a model costs, as a task names it, in dollars for a million tokens. A kind of
cached tokens that is left out costs what input does.

    openai/acme-large: {input: 3, output: 15, cache_read: 0.30, cache_write: 3.75}
    command:local: {input: 0, output: 0}
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_UP, Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, TypeAdapter, ValidationError

from worker.contract.errors import InvalidFault, UsageFault
from worker.contract.events import Usage
from worker.contract.model_name import parse_model_name
from worker.contract.places import read
from worker.contract.reply import MICROUSD_MAX
from worker.contract.settings import Settings
from worker.contract.task import Frozen

SELLERS: Final = ("anthropic", "openai")
"""Providers whose models the table knows by name; what stands behind the others only the deployment knows."""

DOLLARS_MAX: Final = 1_000_000
"""For a million tokens: a dollar each is more than anybody asks, and what it adds up to can be counted."""

Dollars = Annotated[Decimal, Field(ge=0, le=DOLLARS_MAX, allow_inf_nan=False)]


class Price(Frozen):
    """Dollars for a million tokens. cache_read, cache_write: None for the price of input."""

    input: Dollars
    output: Dollars
    cache_read: Dollars | None = None
    cache_write: Dollars | None = None

    def of(self, usage: Usage) -> Decimal:
        """Dollars."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        return (
            usage.input_tokens * self.input
            + usage.cache_read_tokens * read
            + usage.cache_write_tokens * write
            + usage.output_tokens * self.output
        ) / 1_000_000


@dataclass(frozen=True)
class Prices:
    """own: the deployment's, by the names of models. source: the file they are from. base_urls: provider -> address
    of another server than its own; one that is no known seller has no known price, whatever its models are called.
    """

    own: Mapping[str, Price] = field(default_factory=dict)
    source: str = ""
    base_urls: Mapping[str, str | None] = field(default_factory=dict)

    def price(self, name: str, usage: Usage, base_url: str | None = None) -> tuple[int | None, str]:
        """(micro-dollars rounded up, or None when the price is unknown; where the price is from, with its version).

        name: of the model, as a task has it. base_url: where not the deployment's is meant.
        """
        if (own := self.own.get(name)) is not None:
            return _microusd(own.of(usage)), self.source
        provider, _, model = name.partition("/")
        if provider not in SELLERS:
            return None, ""
        return _from_table(provider, model, usage, base_url or self.base_urls.get(provider))

    def most(self, names: Iterable[str], usages: Iterable[Usage]) -> tuple[int | None, str]:
        """The highest of the prices that any of the models has for any of the usages, and its source; None when one
        of the models has no known price."""
        usages = list(usages)
        found = [self.price(name, usage) for name in names for usage in usages]
        known = [(cost, source) for cost, source in found if cost is not None]
        return max(known) if len(known) == len(found) else (None, "")

    def bound(self, names: Iterable[str], context_tokens: int, output_tokens: int) -> int | None:
        """The most that one answer of any of the models can cost, None when it is unknown: nothing of the request was
        in a cache, or all of it is put into one, which may cost more."""
        sent = (Usage(input_tokens=context_tokens), Usage(cache_write_tokens=context_tokens))
        usages = (usage.model_copy(update={"output_tokens": output_tokens}) for usage in sent)
        return self.most(names, usages)[0]


TABLE_ALONE: Final = Prices()


def open_prices(settings: Settings) -> Prices:
    """The deployment's. Raises UsageFault for a file that cannot be read or is not what it should be."""
    urls = {"anthropic": settings.anthropic_base_url, "openai": settings.openai_base_url}
    path = settings.prices
    return Prices(base_urls=urls) if path is None else Prices(*_read(path), urls)


def _read(path: Path) -> tuple[Mapping[str, Price], str]:
    def fault(why: str) -> UsageFault:
        hint = "write one line a model: openai/NAME: {input: 3, output: 15}, in dollars for a million tokens"
        return UsageFault(f"DAWN_PRICES: {path}: {why}", hint=hint)

    try:
        data = path.read_bytes()
        document = read(data.decode())
    except (OSError, UnicodeDecodeError) as error:
        raise fault(f"cannot be read: {error}") from error
    if problems := document.problems:
        raise fault(f"line {problems[0].line}: {problems[0].message}")
    try:
        own = TypeAdapter(dict[str, Price]).validate_python(document.data)
        for name in own:
            parse_model_name(name)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        raise fault(f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}".removeprefix(": ")) from None
    except InvalidFault as error:
        raise fault(str(error)) from None
    return own, f"{path.name} sha256:{hashlib.sha256(data).hexdigest()[:12]}"


def _from_table(provider: str, model: str, usage: Usage, base_url: str | None) -> tuple[int | None, str]:
    """From the package's own table, without network."""
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
    return _microusd(found.total_price), source


def _microusd(dollars: Decimal) -> int:
    return min(int((dollars * 1_000_000).to_integral_value(ROUND_UP)), MICROUSD_MAX)
