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
    - delegate: 'where .* version'
      replies:
        - text: In setup.py, line 3.

`expect` is a Python regular expression that must be found in what came since the reply before: the results of
its calls and people's messages. Its groups become variables, ${name} or ${1}, for the texts and arguments of
this reply and all later ones. Only names that some `expect` of the script captures are variables; any other
${...} stays as it stands, so that shell commands need no quoting.

An entry with `delegate` is no reply of the model: it holds what the model says as the delegate of a call whose goal
has that regular expression in it, a script of its own. The first that is found counts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from worker.contract.errors import InvalidFault
from worker.contract.places import Document, Path, Problem, read
from worker.contract.reply import ToldUsage, ToldUsd, Usage
from worker.contract.task import Frozen

REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*|[1-9][0-9]?)\}")

_NO_YAML: Final = re.compile("[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
"""What JSON may hold as it stands and YAML not, or as the end of a line; escaped it is the same in both. ASCII
alone would not do: YAML reads an escaped pair of surrogates as two characters."""


def _compiles(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from error
    return value


Pattern = Annotated[str, AfterValidator(_compiles)]


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

    expect: Pattern | None = None
    text: str = ""
    reasoning: str = ""
    calls: tuple[ScriptCall, ...] = ()
    stop: Literal["end", "calls", "length", "refusal", "content_filter"] | None = None
    usage: ToldUsage = Usage()
    cost_usd: ToldUsd | None = 0
    delay_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 0

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


class ScriptDelegate(Frozen):
    """replies: a script, of whoever is delegate of a call in whose goal `delegate` is found."""

    delegate: Pattern
    replies: Annotated[tuple[Any, ...], Field(min_length=1)]


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
    entries = [] if problems or not isinstance(document.data, list) else document.data
    turns, faults = _turns(document, {(n,): entry for n, entry in enumerate(entries) if not _of_delegate(entry)})
    if not turns and not problems and not faults:
        problems.append(document.problem((), "a script is a list of at least one reply"))
    problems += faults
    for index, entry in enumerate(entries):
        if _of_delegate(entry):
            problems += _delegate_problems(document, index, entry)
    if problems:
        lines = [f"{source}:{p.line}:{p.column}: {p.where} {p.message}".replace("  ", " ") for p in problems]
        raise InvalidFault("; ".join(lines))
    return Script(source=source, turns=turns, variables=_captured(turns))


def delegate_script(text: str, source: str, goal: str) -> str:
    """The script of a delegate with that goal, out of one that parses. Raises InvalidFault when there is none."""
    for entry in read(text).data:
        if _of_delegate(entry) and re.search(entry["delegate"], goal):
            replies = json.dumps(entry["replies"], ensure_ascii=False)
            return _NO_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", replies)
    raise InvalidFault(f"script {source}: no `delegate` is found in the goal {goal[:200]!r}")


def _of_delegate(entry: object) -> bool:
    return isinstance(entry, dict) and "delegate" in entry


def _delegate_problems(document: Document, index: int, entry: object) -> list[Problem]:
    try:
        replies = ScriptDelegate.model_validate(entry).replies
    except ValidationError as error:
        return [_problem(document, (index,), details) for details in error.errors()]
    return _turns(document, {(index, "replies", n): reply for n, reply in enumerate(replies)})[1]


def _turns(
    document: Document, entries: Mapping[Path, object]
) -> tuple[tuple[tuple[ScriptReply, ...], ...], list[Problem]]:
    """The turns of one script and what is wrong with it. entries: its replies by their place in the document."""
    turns: dict[Path, tuple[ScriptReply, ...]] = {}
    problems: list[Problem] = []
    for where, entry in entries.items():
        try:
            turns[where] = _turn(entry)
        except ValidationError as error:
            problems += [_problem(document, where, details) for details in error.errors()]
    if not problems:
        problems += _early_references(document, turns)
    return tuple(turns.values()), problems


def _turn(entry: object) -> tuple[ScriptReply, ...]:
    if isinstance(entry, dict) and "cases" in entry:
        return ScriptCases.model_validate(entry).cases
    return (ScriptReply.model_validate(entry),)


def _problem(document: Document, where: Path, details: Any) -> Problem:
    message = str(details["msg"]).removeprefix("Value error, ")
    return document.problem((*where, *details["loc"]), message, at_key=True)


def _captured(turns: Iterable[tuple[ScriptReply, ...]]) -> frozenset[str]:
    return frozenset(name for turn in turns for reply in turn for name in reply.captures)


def _early_references(document: Document, turns: Mapping[Path, tuple[ScriptReply, ...]]) -> Iterator[Problem]:
    """A variable that only a later reply captures is a slip of the pen, found before anything runs."""
    captured, known = _captured(turns.values()), set[str]()
    for where, turn in turns.items():
        known |= _captured([turn])
        for name in sorted({name for reply in turn for name in reply.references & captured} - known):
            yield document.problem(where, f"uses ${{{name}}} before an expect captures it")


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
