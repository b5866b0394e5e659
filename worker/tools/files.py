"""Owns the file tools as the model knows them. Refuses to touch a file: a program in the toolbox container does.

They work on the same workspace for any task image, because the toolbox brings its own Python and ripgrep.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from worker.sandbox.protocol import Command
from worker.tools.tool import ToolArguments, ToolContext

Path = Annotated[
    str,
    Field(
        min_length=1,
        max_length=4_096,
        description="relative to the folder you start in, or absolute inside /workspace/repo",
    ),
]
Line = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class FileTool:
    """A tool whose arguments go as they are to the program files.py."""

    name: str
    description: str
    Arguments: type[ToolArguments]
    effect: Literal["read", "write"]

    def command(self, arguments: Any, context: ToolContext) -> list[Command]:
        request = {"tool": self.name, "folder": context.path, "arguments": arguments.model_dump()}
        return [
            Command(
                payload=json.dumps(request).encode(),
                kind="toolbox",
                program="files",
                writes=self.effect == "write",
                timeout_s=context.limits.call_timeout_s,
            )
        ]


class ListFiles(ToolArguments):
    path: Path = "."
    depth: Annotated[int, Field(ge=1, le=10, description="how many levels of folders")] = 2


class ReadFile(ToolArguments):
    path: Path
    start_line: Line = 1
    end_line: Annotated[Line | None, Field(description="the last line shown; null: as many as fit")] = None
    start_column: Annotated[Line, Field(description="first character shown of a line that is very long")] = 1


class Search(ToolArguments):
    pattern: Annotated[str, Field(min_length=1, description="a regular expression as ripgrep reads it")]
    path: Path = "."
    glob: Annotated[str | None, Field(description="only files whose name matches, such as *.py")] = None
    ignore_case: bool = False
    literal: Annotated[bool, Field(description="pattern is plain text, not a regular expression")] = False


class WriteFile(ToolArguments):
    path: Path
    content: Annotated[str, Field(description="the whole file, exactly")]


class EditFile(ToolArguments):
    path: Path
    old_text: Annotated[str, Field(min_length=1, description="must be in the file exactly once; no line numbers")]
    new_text: str


FILE_TOOLS = (
    FileTool("list_files", "List the files and folders below a folder, one path a line.", ListFiles, "read"),
    FileTool(
        "read_file",
        "Read lines of a text file; each is shown as its number, a tab, and its text.",
        ReadFile,
        "read",
    ),
    FileTool(
        "search",
        "Search file contents; shows path:line:text. Files that .gitignore names are left out.",
        Search,
        "read",
    ),
    FileTool("write_file", "Write a whole file: make it, or replace what it held.", WriteFile, "write"),
    FileTool(
        "edit_file",
        "Replace one exact piece of text in a file; every other byte stays as it is.",
        EditFile,
        "write",
    ),
)
