"""Owns the Tool shape. Refuses to know containers: a tool maps arguments to a Command or answers at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from worker.contract.events import PlanItem
from worker.contract.task import Check, Limits
from worker.sandbox.protocol import Command

ARGUMENTS_BYTES_MAX: Final = 4 * 2**20
"""Arguments of one call past this are refused unread; a model's longest reply is far below it."""


class ToolArguments(BaseModel):
    """What every tool's arguments derive from: nothing is converted, nothing unknown is taken."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


@dataclass(frozen=True)
class ToolContext:
    """What a tool may look at: the run's limits and checks, the folder it starts in (relative to the repository),
    its plan, and a reader of kept outputs by call id (returns None for an unknown id). network: commands have it.
    secrets: NAME -> value, the worker's; none in a replay, which runs no call that holds one."""

    limits: Limits
    checks: tuple[Check, ...]
    path: str
    plan: tuple[PlanItem, ...]
    read_output: Callable[[str], bytes | None]
    network: bool = False
    secrets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """A tool that needs no container answers with text; plan replaces the run's plan when given."""

    text: str
    ok: bool = True
    plan: tuple[PlanItem, ...] | None = None


class ArgumentsShape(Protocol):
    """What the model reads of a tool's arguments, and its text made into them: a type of ToolArguments, or what acts
    like one."""

    def model_json_schema(self) -> dict[str, Any]: ...

    def model_validate_json(self, text: str, /) -> BaseModel:
        """Raises ValidationError with everything that does not fit."""
        ...


class Tool(Protocol):
    """name, description (one line), Arguments, effect.

    effect: read (workspace mounted read-only), write, or none (no container).
    """

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def Arguments(self) -> ArgumentsShape: ...

    @property
    def effect(self) -> Literal["read", "write", "none"]: ...

    def command(self, arguments: Any, context: ToolContext) -> list[Command] | Answer:
        """What the call runs: usually one Command; run_checks gives one a check; Answer when no container."""
        ...
