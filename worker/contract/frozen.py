"""Owns what every stored noun is: Frozen, and a field that came later. Refuses to be one."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Frozen(BaseModel):
    """Every stored noun: immutable, unknown fields refused (a newer writer must bump the version)."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def later(default: Any) -> Any:
    """A field that an earlier version did not have: written only where it says something, so that what was written
    then stays the same bytes."""
    return Field(default=default, exclude_if=lambda value: value == default)
