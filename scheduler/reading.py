"""Owns reading a manifest: every mistake is reported at once, each with file, line and column. Refuses to look at the
repositories that it names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from scheduler.complaints import complaint
from scheduler.manifest import Manifest
from worker.contract.errors import InvalidFault
from worker.contract.model_name import parse_model_name
from worker.contract.places import Document, Problem, read
from worker.contract.task import Limits, OwnTool, OwnTools, beyond

COMMAND_LINE: Final = "command line"
"""Name of a manifest that was made of options: its lines and columns mean nothing to anybody."""


@dataclass(frozen=True)
class Loaded:
    """A valid manifest. text: the file as written. folder: what relative paths are relative to.

    script: text of the script when the model is scripted. document: where each value stands.
    """

    manifest: Manifest
    text: str
    name: str
    folder: Path
    script: str | None
    document: Document


class ManifestFault(InvalidFault):
    """problems: every mistake, in the order of the file; `lines` renders them for a terminal."""

    def __init__(self, name: str, problems: list[Problem], *, hint: str = "") -> None:
        count = f"{len(problems)} problems" if len(problems) > 1 else "1 problem"
        super().__init__(f"{name} has {count}", hint=hint)
        self.name = name
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.line, problem.column)))

    def lines(self) -> list[str]:
        """`file:line:col path message`, one each; without place when it was written on the command line."""
        return [
            ("" if self.name == COMMAND_LINE else f"{self.name}:{problem.line}:{problem.column} ")
            + f"{problem.where or '(document)'} {problem.message}"
            for problem in self.problems
        ]


def load(path: Path, defaults: Limits, tools: Sequence[OwnTool] = ()) -> Loaded:
    """Read and validate a manifest file. Raises ManifestFault with every mistake, InvalidFault when unreadable."""
    return parse(_text(path, "a manifest"), str(path), path.resolve().parent, defaults, tools)


def load_tools(path: Path | None) -> tuple[OwnTool, ...]:
    """The deployment's tools: a YAML list, as `tools` of a manifest. Raises like load."""
    if path is None:
        return ()
    document = read(_text(path, "a list of tools"))
    problems = list(document.problems)
    try:
        tools = TypeAdapter(OwnTools).validate_python(document.data)
    except ValidationError as error:
        problems += [complaint(document, details, OwnTools) for details in error.errors()]
    if problems:
        raise ManifestFault(str(path), problems)
    return tools


def parse(text: str, name: str, folder: Path, defaults: Limits, tools: Sequence[OwnTool] = ()) -> Loaded:
    """Validate a manifest's text; limits it does not give come from defaults, and tools are beside its own. Raises
    ManifestFault."""
    document = read(text)
    problems = list(document.problems)
    manifest: Manifest | None = None
    if not isinstance(document.data, dict):
        if not problems:
            problems.append(document.problem((), "must be a mapping with version, name, targets and task"))
    else:
        try:
            manifest = Manifest.model_validate(_with_limits(_with_tools(document.data, tools), defaults))
        except ValidationError as error:
            problems += [complaint(document, details, Manifest) for details in error.errors()]
    if manifest is not None:
        told = ((("limits", name), f"must be at most {most:.0f}") for name, most in beyond(manifest.limits))
        problems += [document.problem(path, message) for path, message in told]
    script: str | None = None
    if isinstance(document.data, dict) and isinstance(document.data.get("task"), dict):
        model = document.data["task"].get("model", "none")
        if isinstance(model, str):
            try:
                script = script_of(model, folder)
            except InvalidFault as fault:
                problems.append(document.problem(("task", "model"), str(fault)))
    if problems or manifest is None:
        raise ManifestFault(name, problems)
    return Loaded(manifest, text, name, folder, script, document)


def script_of(model: str, folder: Path) -> str | None:
    """The text of `scripted:FILE` (relative to folder), None for every other model.

    Raises InvalidFault when the model's name has no known form, or its script is missing or does not parse.
    """
    from worker.contract.script import parse_script

    name = parse_model_name(model)
    if name.provider != "scripted":
        return None
    path = folder / name.name
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise InvalidFault(f"cannot read the script {name.name}: {error}") from error
    parse_script(text, name.name)
    return text


def _with_limits(data: Mapping[str, Any], defaults: Limits) -> dict[str, Any]:
    given = data.get("limits", {})
    limits = {**defaults.model_dump(), **given} if isinstance(given, dict) else given
    return {**data, "limits": limits}


def _with_tools(data: Mapping[str, Any], tools: Sequence[OwnTool]) -> dict[str, Any]:
    """The manifest's own first, so that a complaint about one finds its place."""
    given = data.get("tools", [])
    return {**data, "tools": [*given, *tools] if isinstance(given, list) else given}


def _text(path: Path, what: str) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise InvalidFault(f"cannot read {path}: {error}", hint=f"name {what} in YAML, UTF-8") from error
