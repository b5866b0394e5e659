"""Owns how a model is named: `none`, `scripted:FILE`, `replay:RUN`, `anthropic/NAME`, `openai/NAME`, and the
deployment's own: `command:PROGRAM` and `python:ENTRY`, each perhaps with `/MODEL` behind it.

Refuses to know what stands behind a name: whether a key is set or a file exists is found out by who opens it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, get_args

from worker.contract.errors import InvalidFault

Provider = Literal["none", "scripted", "replay", "anthropic", "openai", "command", "python"]

FORMS: Final = "none, scripted:FILE, replay:RUN, anthropic/NAME, openai/NAME, command:PROGRAM, python:ENTRY"
ASKED: Final[tuple[Provider, ...]] = ("anthropic", "openai", "command", "python")
"""Providers that are asked, and may be away or want money; the others play what is written."""
MAX_CHARS: Final = 300
_SEPARATORS: Final = {
    "scripted": ":", "replay": ":", "anthropic": "/", "openai": "/", "command": ":", "python": ":",
}  # fmt: skip


@dataclass(frozen=True)
class ModelName:
    """provider and what it calls the model; name is "" for none, and may hold slashes (`openai/meta/llama`)."""

    provider: Provider
    name: str = ""

    def __str__(self) -> str:
        return self.provider + _SEPARATORS.get(self.provider, "") + self.name

    @property
    def account(self) -> str:
        """What settings call the account that it is asked through (`DAWN_RATES__NAME`), "" where none is asked."""
        if self.provider in ("anthropic", "openai"):
            return self.provider
        return self.name.partition("/")[0] if self.provider in ASKED else ""


def parse_model_name(text: str) -> ModelName:
    """Raises InvalidFault that lists the known forms."""
    if text == "none":
        return ModelName("none")
    for provider in get_args(Provider):
        separator = _SEPARATORS.get(provider)
        if separator and text.startswith(provider + separator):
            name = text[len(provider) + 1 :]
            if name and len(text) <= MAX_CHARS and name == name.strip() and name.isprintable():
                return ModelName(provider, name)
    raise InvalidFault(f"unknown model {text[:MAX_CHARS]!r}", hint=f"known are {FORMS}")


@cache
def account_of(text: str) -> str:
    """ModelName.account, of any text: "" also for a name that only an older archive may hold."""
    try:
        return parse_model_name(text).account
    except InvalidFault:
        return ""
