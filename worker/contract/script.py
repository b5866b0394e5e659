"""Owns the grammar of scripted models: a YAML list of replies. Refuses to play one (worker/models/scripted.py).

    - text: I look at the tests first.
      calls:
        - tool: run_command
          arguments: {command: npm test}
    - expect: 'expected (?P<want>\\d+), got (\\d+)'
      text: It should be ${want}, not ${1}.
      calls: [...]
    - cases:
        - expect: '# fail 0'
          text: All tests pass.
        - text: One more try.
          calls: [...]

`expect` is a Python regular expression that must be found in what came since the reply before: the results of
its calls and people's messages. Its groups become variables, ${name} or ${1}, for the texts and arguments of
this reply and all later ones. Only names that some `expect` of the script captures are variables; any other
${...} stays as it stands, so that shell commands need no quoting.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from worker.contract.errors import InvalidFault
from worker.contract.events import Usage
from worker.contract.places import Document, Problem, read
from worker.contract.task import Frozen

REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*|[1-9][0-9]?)\}")


class ScriptCall(Frozen):
    """arguments: a mapping, or a string that is sent as it is (which need not be JSON). id: as a provider's."""

    tool: str
    arguments: dict[str, Any] | str = {}
    id: str = ""

    @field_validator("arguments", mode="before")
    @classmethod
    def _json(cls, value: object) -> object:
        if not isinstance(value, dict | str):
            raise ValueError("should be a mapping or a string")
        for leaf in leaves(value):
            if isinstance(leaf, float) and not math.isfinite(leaf):
                raise ValueError(f"{leaf} has no JSON form")
            if leaf is not None and not isinstance(leaf, bool | int | float | str):
                raise ValueError(f"{leaf} was read as a {type(leaf).__name__}: put it in quotes")
        return value


class ScriptReply(Frozen):
    """One reply. stop defaults to calls or end. delay_s: how long it takes. cost_usd: null means unknown."""

    expect: str | None = None
    text: str = ""
    reasoning: str = ""
    calls: tuple[ScriptCall, ...] = ()
    stop: Literal["end", "calls", "length", "refusal", "content_filter"] | None = None
    usage: Usage = Usage()
    cost_usd: Annotated[float, Field(ge=0)] | None = 0
    delay_s: Annotated[float, Field(ge=0, le=3600)] = 0

    @field_validator("expect")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"is not a regular expression: {error}") from error
        return value

    @property
    def captures(self) -> frozenset[str]:
        """Names of the variables that `expect` sets."""
        pattern = re.compile(self.expect or "")
        return frozenset(pattern.groupindex) | {str(n + 1) for n in range(pattern.groups)}

    @property
    def references(self) -> frozenset[str]:
        """Every name that stands as ${name} in what the reply says or calls."""
        said = [self.text, self.reasoning, [call.arguments for call in self.calls]]
        return frozenset(name for leaf in leaves(said) if isinstance(leaf, str) for name in REFERENCE.findall(leaf))


class ScriptCases(Frozen):
    """Alternatives: the first whose `expect` is found is the reply; one without `expect` always fits."""

    cases: Annotated[tuple[ScriptReply, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _reachable(self) -> ScriptCases:
        if any(case.expect is None for case in self.cases[:-1]):
            raise ValueError("a case without expect always fits, so it must be the last one")
        return self


class Script(Frozen):
    """turns[i] holds the alternatives for the model's i-th reply. variables: every name that is captured."""

    source: str
    turns: tuple[tuple[ScriptReply, ...], ...]
    variables: frozenset[str]

    def fill(self, text: str, values: dict[str, str]) -> str:
        """text with its ${name} replaced. Raises InvalidFault for a variable that has no value yet."""

        def value_of(match: re.Match[str]) -> str:
            name = match[1]
            if name not in self.variables:
                return match[0]
            if name not in values:
                raise InvalidFault(f"script {self.source}: ${{{name}}} is used before an expect captured it")
            return values[name]

        return REFERENCE.sub(value_of, text)


def parse_script(text: str, source: str) -> Script:
    """Parse a script. source names it in messages. Raises InvalidFault with `source:line:column` of each fault."""
    document = read(text)
    problems = list(document.problems)
    turns: list[tuple[ScriptReply, ...]] = []
    if not problems and (not isinstance(document.data, list) or not document.data):
        problems.append(document.problem((), "a script is a list of at least one reply"))
    for index, entry in enumerate([] if problems else document.data):
        try:
            turns.append(_turn(entry))
        except ValidationError as error:
            problems += [_problem(document, index, details) for details in error.errors()]
    captured = frozenset(name for turn in turns for reply in turn for name in reply.captures)
    if not problems:
        problems += _early_references(document, turns, captured)
    if problems:
        lines = [f"{source}:{p.line}:{p.column}: {p.where} {p.message}".replace("  ", " ") for p in problems]
        raise InvalidFault("; ".join(lines))
    return Script(source=source, turns=tuple(turns), variables=captured)


def _turn(entry: object) -> tuple[ScriptReply, ...]:
    if isinstance(entry, dict) and "cases" in entry:
        return ScriptCases.model_validate(entry).cases
    return (ScriptReply.model_validate(entry),)


def _problem(document: Document, index: int, details: Any) -> Problem:
    message = str(details["msg"]).removeprefix("Value error, ")
    return document.problem((index, *details["loc"]), message, at_key=True)


def _early_references(
    document: Document, turns: list[tuple[ScriptReply, ...]], captured: frozenset[str]
) -> Iterator[Problem]:
    """A variable that only a later reply captures is a slip of the pen, found before anything runs."""
    known: set[str] = set()
    for index, turn in enumerate(turns):
        known.update(name for reply in turn for name in reply.captures)
        for name in sorted({name for reply in turn for name in reply.references & captured} - known):
            yield document.problem((index,), f"uses ${{{name}}} before an expect captures it")


def leaves(value: Any) -> Iterator[Any]:
    """Every scalar inside nested mappings (their values) and lists."""
    match value:
        case dict():
            for item in value.values():
                yield from leaves(item)
        case list():
            for item in value:
                yield from leaves(item)
        case _:
            yield value
