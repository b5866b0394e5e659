"""Owns the registry of tools: what the model reads of them, and a call's text made into a tool with its arguments.

Refuses to guess: arguments that do not fit come back as a text that says what is wrong, with the schema.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from pydantic import ValidationError

from worker.contract.events import ToolCall
from worker.contract.task import Task
from worker.models.protocol import ToolSpec
from worker.tools.files import FILE_TOOLS
from worker.tools.notes import AskPerson, Delegate, ReadOutput, UpdatePlan
from worker.tools.own import CommandTool
from worker.tools.shell import LOOK_COMMAND, RunChecks, RunCommand
from worker.tools.tool import ARGUMENTS_BYTES_MAX, ArgumentsShape, Tool, ToolArguments

OWN_TOOLS = (RunCommand(), RunChecks(), ReadOutput(), UpdatePlan(), AskPerson(), Delegate())
TOOLS: tuple[Tool, ...] = (*FILE_TOOLS, *OWN_TOOLS)
ERRORS_SHOWN = 10


def toolset(task: Task) -> Toolset:
    """What a task offers: ours but for those it withholds, and its own."""
    return Toolset((*TOOLS, *map(CommandTool, task.tools)), without=withheld(task))


def delegates_toolset(task: Task) -> Toolset:
    """What a task offers to a delegate: what only reads, and nobody to delegate to."""
    known: tuple[Tool, ...] = (*FILE_TOOLS, LOOK_COMMAND, ReadOutput(), *map(CommandTool, task.tools))
    return Toolset([tool for tool in known if tool.effect != "write"], without=task.without_tools)


def withheld(task: Task) -> tuple[str, ...]:
    """Names of the tools that a task does not offer: a person can be asked only where the run would wait for one."""
    return task.without_tools if task.on_ask == "park" else (*task.without_tools, AskPerson.name)


class Toolset:
    """The tools on offer, in a fixed order, so that a provider's cache of them hits."""

    def __init__(self, tools: Sequence[Tool] = TOOLS, *, without: Sequence[str] = ()) -> None:
        """without: names of tools that are not offered."""
        tools = [tool for tool in tools if tool.name not in without]
        self._tools = {tool.name: tool for tool in tools}
        self.specs = tuple(ToolSpec(tool.name, tool.description, _shown(tool.Arguments)) for tool in tools)

    def parse(self, call: ToolCall) -> tuple[Tool, Any] | str:
        """The tool and its validated arguments, or the text that tells the model what is wrong with the call."""
        tool = self._tools.get(call.name)
        if tool is None:
            return f"there is no tool {_quoted(call.name)}; the tools are: {', '.join(self._tools)}"
        if len(call.arguments) > ARGUMENTS_BYTES_MAX:
            size, most = len(call.arguments) / 2**20, ARGUMENTS_BYTES_MAX // 2**20
            return f"{tool.name}: the arguments are {size:.1f} MiB, more than {most} MiB; send them in smaller parts"
        try:
            # An empty text is how some providers send a call without arguments.
            return tool, tool.Arguments.model_validate_json(call.arguments.strip() or "{}")
        except ValidationError as error:
            return _explained(tool, error)


def _explained(tool: Tool, error: ValidationError) -> str:
    """Every fault with its path, then the schema; for text that is no JSON only where it breaks."""
    faults = error.errors(include_url=False, include_input=False)
    if faults[0]["type"] in ("json_invalid", "string_unicode") and not faults[0]["loc"]:
        return f"{tool.name}: the arguments are not valid JSON, so nothing was run: {faults[0]['msg']}"
    told = [f"- {'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}" for fault in faults[:ERRORS_SHOWN]]
    if len(faults) > ERRORS_SHOWN:
        told.append(f"- and {len(faults) - ERRORS_SHOWN} more")
    schema = json.dumps(_shown(tool.Arguments))
    return "\n".join(
        [f"{tool.name}: the arguments do not fit, so nothing was run:", *told, f"They must fit: {schema}"]
    )


def _quoted(name: str) -> str:
    return json.dumps(name if len(name) <= 100 else name[:100] + "...")


def _shown(arguments: ArgumentsShape) -> dict[str, Any]:
    """JSON Schema of the arguments as the model reads it."""
    return _schema(arguments) if isinstance(arguments, type) else arguments.model_json_schema()


@cache
def _schema(arguments: type[ToolArguments]) -> dict[str, Any]:
    """JSON Schema of the arguments, made once (7 ms for all tools, which each attempt would pay). pydantic's titles
    only repeat the names, and are paid for in every request."""
    schema = arguments.model_json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        part.pop("title", None)
        for field in part["properties"].values():
            field.pop("title", None)
    return schema
