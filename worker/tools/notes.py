"""Owns the tools that need no container: update_plan, read_output, ask_person and delegate. Refuses to keep anything
itself."""

from __future__ import annotations

import io
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from worker.contract.events import PlanItem
from worker.tools.output import clip, lines
from worker.tools.tool import Answer, ToolArguments, ToolContext

LINE_MAX = 10**9
"""No output has more lines: 64 MiB are kept of it."""


class Item(ToolArguments):
    text: Annotated[str, Field(min_length=1, max_length=500)]
    status: Literal["todo", "doing", "done"] = "todo"


class UpdatePlanArguments(ToolArguments):
    items: Annotated[list[Item], Field(max_length=50, description="the whole plan, in order")]


class UpdatePlan:
    """The agent's plan, which its people read too."""

    name = "update_plan"
    description = "Replace your plan: short items, each todo, doing or done."
    Arguments = UpdatePlanArguments
    effect: ClassVar[Literal["none"]] = "none"

    def command(self, arguments: Any, context: ToolContext) -> Answer:
        plan = tuple(PlanItem(text=item.text, status=item.status) for item in arguments.items)
        return Answer(
            "\n".join(f"[{item.status}] {item.text}" for item in plan) or "the plan is empty now", plan=plan
        )


class ReadOutputArguments(ToolArguments):
    call_id: Annotated[str, Field(min_length=1, description="the tool_call_id of an earlier result")]
    start_line: Annotated[int, Field(ge=1, le=LINE_MAX)] = 1
    end_line: Annotated[int | None, Field(ge=1, le=LINE_MAX, description="null: as many lines as fit")] = None
    start_column: Annotated[int, Field(ge=1, description="first character shown of a very long line")] = 1


class ReadOutput:
    """The parts of an earlier output that were cut from its result."""

    name = "read_output"
    description = "Read lines of an earlier call's whole output, by its tool_call_id."
    Arguments = ReadOutputArguments
    effect: ClassVar[Literal["none"]] = "none"

    def command(self, arguments: Any, context: ToolContext) -> Answer:
        data = context.read_output(arguments.call_id)
        if data is None:
            return Answer(f"no output is kept for call {arguments.call_id!r}; give a tool_call_id you saw", ok=False)
        first = arguments.start_line
        last = arguments.end_line or first + context.limits.output_shown_lines - 2
        left = context.limits.output_shown_bytes - 200
        picked: list[str] = []
        for line in islice(lines(io.BytesIO(data)), first - 1, last):
            part = clip(line[arguments.start_column - 1 :], left)
            picked.append(part)
            left -= len(part.encode()) + 1
            if arguments.start_column - 1 + len(part) < len(line):
                column = arguments.start_column + len(part)
                at = first + len(picked) - 1
                picked.append(f"[... cut here; go on with start_line={at}, start_column={column}]")
                break
            if left <= 0:
                picked.append(f"[... go on with start_line={first + len(picked)}]")
                break
        if not picked:
            total = sum(1 for _ in lines(io.BytesIO(data)))
            return Answer(f"that output has {total} lines; line {first} is no part of it", ok=False)
        return Answer("\n".join(picked))


class AskPersonArguments(ToolArguments):
    question: Annotated[str, Field(min_length=1, max_length=4_000, description="all a person needs to decide")]


class AskPerson:
    """A question to a person; policy.py parks the run for it, so that a call which gets here found nobody."""

    name = "ask_person"
    description = "Ask a person; the answer may take hours. Only where a wrong guess would be worse than waiting."
    Arguments = AskPersonArguments
    effect: ClassVar[Literal["none"]] = "none"

    def command(self, arguments: Any, context: ToolContext) -> Answer:
        return Answer("nobody can be asked here; decide from what you find", ok=False)


class DelegateArguments(ToolArguments):
    goal: Annotated[
        str,
        Field(min_length=1, max_length=8_000, description="all it needs to know: it cannot see your conversation"),
    ]


class Delegate:
    """A question to an agent of its own; worker/delegate.py has it answered, so that a call which gets here is one's
    who may not ask another."""

    name = "delegate"
    description = "Let another agent find something out in this repository; it only reads, and answers shortly."
    Arguments = DelegateArguments
    effect: ClassVar[Literal["read"]] = "read"

    def command(self, arguments: Any, context: ToolContext) -> Answer:
        return Answer("nobody can be sent from here; look for yourself", ok=False)
