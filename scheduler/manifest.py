"""Owns the manifest: what a user asks of many repositories, version 1. Refuses to look at the repositories.

Every mistake is reported at once, each with file, line and column.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from worker.contract.errors import InvalidFault
from worker.contract.model_name import ASKED, parse_model_name
from worker.contract.pattern import searchable
from worker.contract.places import Document, Problem, read
from worker.contract.task import (
    TOOL_NAMES,
    Budget,
    Check,
    Environment,
    Frozen,
    Limits,
    OnAsk,
    OwnTool,
    OwnTools,
    PolicyRule,
    Repo,
    beyond,
    later,
)

CHECK_NAME = re.compile(r"^(?P<name>[a-z][a-z0-9_-]*)=(?P<command>.+)$", re.DOTALL)
"""`name=command`; lower case only, so that `FOO=1 pytest` stays a command."""

WORDS: Final = {
    "missing": "is required",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "string_type": "must be text (put a number in quotes)",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
}
"""What pydantic's kinds of errors say of a document."""

COMMAND_LINE: Final = "command line"
"""Name of a manifest that was made of options: its lines and columns mean nothing to anybody."""


Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._=/-]{0,62}$")]
"""A word that runs are selected by, such as `team=web`."""


class Target(Frozen):
    """One repository. repo: URL or local path. image: overrides environment.image."""

    repo: Annotated[str, Field(min_length=1)]
    ref: Annotated[str, Field(min_length=1)] | None = None
    path: str = ""
    image: Annotated[str, Field(min_length=1)] | None = None

    @field_validator("path")
    @classmethod
    def _plain(cls, path: str) -> str:
        try:
            Repo(url="-", path=path)
        except ValidationError as error:
            raise ValueError(_message(error.errors()[0])) from None
        return path


class Work(Frozen):
    """What is asked: commands run first, then the model (`none` for commands only). fallbacks: models that answer
    where it cannot be had, in this order. without_tools: names of ours that it is not offered."""

    prompt: str = ""
    commands: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    model: str = "none"
    fallbacks: tuple[str, ...] = later(())
    without_tools: tuple[str, ...] = later(())

    @field_validator("without_tools")
    @classmethod
    def _tools_of_ours(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := sorted(set(names) - TOOL_NAMES):
            raise ValueError(f"no tool {', '.join(unknown)}; there are {', '.join(sorted(TOOL_NAMES))}")
        return names

    @field_validator("fallbacks")
    @classmethod
    def _can_be_had(cls, fallbacks: tuple[str, ...]) -> tuple[str, ...]:
        for name in fallbacks:
            try:
                provider = parse_model_name(name).provider
            except InvalidFault as fault:
                raise ValueError(str(fault)) from None
            if provider not in ASKED:
                raise ValueError(f"{name} cannot be a fallback")
        return fallbacks

    @model_validator(mode="after")
    def _something(self) -> Work:
        if self.model == "none" and not self.commands:
            raise ValueError("nothing to do: give commands, or a model (such as anthropic/NAME) to read the prompt")
        if self.model != "none" and not self.prompt.strip():
            raise ValueError(f"model {self.model} needs a prompt")
        models = (self.model, *self.fallbacks)
        if self.fallbacks and self.model.startswith(("none", "scripted:", "replay:")):
            raise ValueError(f"model {self.model} has no fallbacks")
        if len(set(models)) < len(models):
            raise ValueError("a model stands twice in model and fallbacks")
        return self


def _searchable(rule: PolicyRule) -> PolicyRule:
    """Of what is submitted: tasks of older archives may have patterns that take longer."""
    try:
        searchable(rule.pattern)
    except ValueError as error:
        raise ValueError(f"pattern {rule.pattern!r}: {error}") from error
    return rule


class Manifest(Frozen):
    """Version 1: a batch is `task` asked of every target, measured by `checks`, bounded by `limits` and `policy`,
    and all of it together by `budget`."""

    version: Literal[1]
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
    targets: Annotated[tuple[Target, ...], Field(min_length=1)]
    task: Work
    environment: Environment = Environment()
    checks: Annotated[tuple[Check, ...], BeforeValidator(lambda value: named_checks(value))] = ()
    limits: Limits = Limits()
    policy: tuple[Annotated[PolicyRule, AfterValidator(_searchable)], ...] = ()
    on_ask: OnAsk = "park"
    tools: OwnTools = later(())
    budget: Budget | None = later(None)
    labels: Annotated[tuple[Label, ...], Field(max_length=20)] = later(())

    @field_validator("checks")
    @classmethod
    def _distinct(cls, checks: tuple[Check, ...]) -> tuple[Check, ...]:
        names = [check.name for check in checks]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"check names must differ: {', '.join(twice)}")
        return checks


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


def named_checks(value: Any) -> Any:
    """Give each check written as a plain string its name: `name=command`, or the command's own words."""
    if not isinstance(value, (list, tuple)):
        return value
    return [_named(check) if isinstance(check, str) else check for check in value]


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
        problems += [_problem(document, details, known=OwnTool) for details in error.errors()]
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
            problems += [_problem(document, details) for details in error.errors()]
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


def _named(check: str) -> dict[str, str]:
    match = CHECK_NAME.match(check)
    if match:
        return {"name": match["name"], "command": match["command"]}
    return {"name": " ".join(check.split())[:60] or "check", "command": check}


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


def _message(details: Mapping[str, Any]) -> str:
    """In the words of YAML, not of Python."""
    said = str(details["msg"]).removeprefix("Value error, ")
    return WORDS.get(details["type"]) or re.sub(r"^(Input|String|Tuple|List|Value) should ", "must ", said)


def _problem(document: Document, details: Mapping[str, Any], known: type[Frozen] | None = None) -> Problem:
    """known: whose keys may stand where an unknown one stands, None to find out by the path of a manifest."""
    path = tuple(part for part in details["loc"])
    if details["type"] != "extra_forbidden":
        return document.problem(path, _message(details))
    parts: dict[str | int, type[Frozen]] = {
        "targets": Target, "task": Work, "environment": Environment, "checks": Check, "limits": Limits,
        "policy": PolicyRule, "tools": OwnTool, "budget": Budget,
    }  # fmt: skip
    keys = list((known or (parts[path[0]] if len(path) > 1 else Manifest)).model_fields)
    near = difflib.get_close_matches(str(path[-1]), keys, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(keys)}"
    return document.problem(path, f"unknown key; {hint}", at_key=True)
