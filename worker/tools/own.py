"""Owns the tools that a task brings (OwnTool of worker/contract/task.py): arguments by JSON Schema, a command that
finds them on its standard input. Refuses to put an argument into the command's text.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Literal

from pydantic import ConfigDict, JsonValue, RootModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from worker.contract.schema import Misfit, matcher
from worker.contract.task import OwnTool
from worker.sandbox.protocol import Command
from worker.tools.shell import shell
from worker.tools.tool import ToolContext


class OwnArguments(RootModel[dict[str, JsonValue]]):
    """An object of JSON; what fits is for the schema to say."""

    model_config = ConfigDict(frozen=True, strict=True)


class OwnShape:
    """What OwnArguments must fit: looks like the pydantic model of any other tool's arguments."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._misfits = matcher(schema)

    def model_json_schema(self) -> dict[str, Any]:
        """As the task has it."""
        return self._schema

    def model_validate_json(self, text: str) -> OwnArguments:
        """Raises ValidationError with everything that does not fit."""
        arguments = OwnArguments.model_validate_json(text)
        if faults := self._faults(arguments.root):
            raise ValidationError.from_exception_data("arguments", [_details(*fault) for fault in faults])
        return arguments

    def _faults(self, value: dict[str, JsonValue]) -> list[Misfit]:
        try:
            json.dumps(value, allow_nan=False)
        except ValueError:
            return [((), "JSON has no number that is not finite")]
        return self._misfits(value)


class CommandTool:
    """One tool of the task; a Tool."""

    def __init__(self, own: OwnTool) -> None:
        self.name = own.name
        self.description = own.description
        self.effect: Literal["read", "write"] = "read" if own.effect == "read" else "write"
        self.Arguments = OwnShape(own.arguments)
        self._own = own

    def command(self, arguments: OwnArguments, context: ToolContext) -> list[Command]:
        """The task's command as it stands there, with the arguments beside it."""
        return [
            replace(
                shell(self._own.command, context.path, context.limits.call_timeout_s),
                stdin=arguments.model_dump_json().encode(),
                writes=self._own.effect != "read",
                network=self._own.effect == "outside",
                secret_files={name: context.secrets.get(name, "") for name in self._own.secrets},
            )
        ]


def _details(where: tuple[str | int, ...], what: str) -> InitErrorDetails:
    return InitErrorDetails(type=PydanticCustomError("misfit", "{what}", {"what": what}), loc=where, input=None)
