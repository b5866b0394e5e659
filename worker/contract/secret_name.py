"""Owns what a secret is called where something asks for it. Refuses values: they stand in the environment of a
worker or scheduler, as `DAWN_SECRET_<NAME>`, and nowhere else.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field

PATTERN: Final = r"^[A-Z][A-Z0-9_]{0,63}$"
"""Capitals, so that most values that somebody writes here by mistake are no names."""
RULE: Final = "the NAME of a secret, in capitals, never its value"
ADVICE: Final = "set DAWN_SECRET_NAME in the worker's environment"


def is_secret_name(text: str) -> bool:
    """Whether it may be one."""
    return re.fullmatch(PATTERN, text) is not None


def _named(text: str) -> str:
    if not is_secret_name(text):
        raise ValueError(f"must be {RULE}: {ADVICE}")  # without the text, which may be one
    return text


SecretName = Annotated[str, Field(json_schema_extra={"pattern": PATTERN}), AfterValidator(_named)]
SecretNames = Annotated[tuple[SecretName, ...], Field(max_length=16)]
"""Of what one program is handed."""
