"""Owns the tools that run the repository's programs: run_command and run_checks. Refuses to judge them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from worker.sandbox.protocol import REPO, Command
from worker.tools.tool import Answer, ToolArguments, ToolContext


def shell(script: str, path: str, timeout_s: float) -> Command:
    """A script for the task image's shell, in the folder the run starts in (path: relative to the repository)."""
    cwd = f"{REPO}/{path}" if path else REPO
    return Command(payload=script.encode(), cwd=cwd, timeout_s=timeout_s)


class RunCommandArguments(ToolArguments):
    command: Annotated[str, Field(min_length=1, description="a script for the shell; it may have many lines")]
    timeout_s: Annotated[int | None, Field(ge=1, le=600, description="null: the usual limit of a call")] = None

    @field_validator("command")
    @classmethod
    def _no_nul(cls, command: str) -> str:
        if "\0" in command:
            raise ValueError("a shell script cannot hold a NUL character; write the bytes with printf '\\000'")
        return command


@dataclass(frozen=True)
class RunCommand:
    """Any shell command, in a container of its own. effect read: on a workspace that is mounted read-only."""

    effect: Literal["read", "write"] = "write"
    description: str = "Run a shell command in a new container and return its exit code and output."
    name: ClassVar[str] = "run_command"
    Arguments: ClassVar[type[ToolArguments]] = RunCommandArguments

    def command(self, arguments: Any, context: ToolContext) -> list[Command] | Answer:
        timeout_s = arguments.timeout_s or context.limits.call_timeout_s
        writes = self.effect == "write"
        made = shell(arguments.command, context.path, timeout_s)
        return [replace(made, writes=writes, network=writes and context.network)]


LOOK_COMMAND = RunCommand("read", "Run a shell command in a new container. It can read the workspace, not change it.")


class RunChecksArguments(ToolArguments):
    names: Annotated[list[str] | None, Field(min_length=1, description="null: all checks")] = None


class RunChecks:
    """The task's checks, each in a container of its own, on the workspace as it is now."""

    name = "run_checks"
    description = "Run the checks of the task, all or those named, and return their exit codes and output."
    Arguments = RunChecksArguments
    effect: ClassVar[Literal["write"]] = "write"

    def command(self, arguments: Any, context: ToolContext) -> list[Command] | Answer:
        known = {check.name: check for check in context.checks}
        if not known:
            return Answer("this task has no checks; verify your work with run_command", ok=False)
        names = list(known) if arguments.names is None else list(dict.fromkeys(arguments.names))
        unknown = [name for name in names if name not in known]
        if unknown:
            return Answer(f"no check is named {', '.join(unknown)}; there are: {', '.join(known)}", ok=False)
        timeout_s, network = context.limits.check_timeout_s, context.network
        return [replace(shell(known[name].command, context.path, timeout_s), network=network) for name in names]
