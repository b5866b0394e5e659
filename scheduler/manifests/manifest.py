"""Owns the nouns of a manifest: what a user asks of many repositories, version 1. Refuses to read files and to look
at the repositories.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from scheduler.manifests.sources import Source
from scheduler.schedules.cron import Schedule
from worker.contract.delivery import Deliver
from worker.contract.errors import InvalidFault
from worker.contract.guards import Guards
from worker.contract.model_name import ASKED, parse_model_name
from worker.contract.notify import Notify
from worker.contract.pattern import searchable
from worker.contract.surroundings import Surroundings
from worker.contract.task import (
    CANDIDATES_MAX,
    TOOL_NAMES,
    BaselinePolicy,
    Budget,
    Check,
    Frozen,
    Limits,
    OnAsk,
    OwnTools,
    PolicyRule,
    later,
)
from worker.contract.waves import WEIGHT_MAX, Breaker, Waves
from worker.contract.window import Window
from worker.contract.zones import moment

CHECK_NAME = re.compile(r"^(?P<name>[a-z][a-z0-9_-]*)=(?P<command>.+)$", re.DOTALL)
"""`name=command`; lower case only, so that `FOO=1 pytest` stays a command."""

TARGETS_MAX: Final = 100_000

Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._=/-]{0,62}$")]
"""A word that runs are selected by, such as `team=web`."""


class Work(Frozen):
    """What is asked: commands run first, then the model. prompt: text for the model; {{ vars.NAME }} in it and in
    commands is filled for each target. prompt_file: a file that holds it, relative to the manifest. model: `none` for
    commands only. fallbacks: models that answer where it cannot be had, in this order. without_tools: names of ours
    that it is not offered."""

    prompt: str = ""
    prompt_file: Annotated[str, Field(min_length=1)] | None = later(None)
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
        if self.prompt and self.prompt_file:
            raise ValueError("has both prompt and prompt_file")
        if self.model != "none" and not self.prompt.strip() and not self.prompt_file:
            raise ValueError(f"model {self.model} needs a prompt")
        models = (self.model, *self.fallbacks)
        if self.fallbacks and self.model.startswith(("none", "scripted:", "replay:")):
            raise ValueError(f"model {self.model} has no fallbacks")
        if len(set(models)) < len(models):
            raise ValueError("a model stands twice in model and fallbacks")
        return self


class FromDockerfile(Frozen):
    """An image that is built once on each worker host. dockerfile: its path, relative to the manifest. The text is
    all that is sent: no file to ADD or COPY, no secret. FROM names python, node or base, or any image that the engine
    has or a registry gives."""

    dockerfile: Annotated[str, Field(min_length=1)]


class Workplace(Surroundings):
    __doc__ = (
        "image: python, node, base, or any image that the engine can run. `auto` for the one that fits what lies in "
        "the folder that the work starts in, else in those above it (pyproject.toml, setup.py, setup.cfg, "
        "requirements.txt or Pipfile: python; package.json: node; both in one folder: python; nothing of it: base). "
        f"`{{dockerfile: PATH}}` for one that is built of that file, with nothing beside it. {Surroundings.__doc__}"
    )

    image: Annotated[
        Annotated[str, Tag("name")] | Annotated[FromDockerfile, Tag("dockerfile")],
        Discriminator(lambda value: "dockerfile" if isinstance(value, dict | FromDockerfile) else "name"),
    ] = "python"


def _searchable(rule: PolicyRule) -> PolicyRule:
    """Of what is submitted: tasks of older archives may have patterns that take longer."""
    try:
        searchable(rule.pattern)
    except ValueError as error:
        raise ValueError(f"pattern {rule.pattern!r}: {error}") from error
    return rule


Checks = Annotated[tuple[Check, ...], BeforeValidator(lambda value: named_checks(value), tuple[Check | str, ...])]
_Listed = Annotated[tuple[Source, ...], Field(min_length=1)]
Targets = Annotated[
    _Listed, BeforeValidator(lambda value: [value] if isinstance(value, dict) else value, Source | _Listed)
]


def _start(text: str) -> str:
    try:
        return moment(text).isoformat(timespec="milliseconds")
    except InvalidFault as fault:
        raise ValueError(f"{fault.message}; {fault.hint}") from None


class Candidates(Frozen):
    """How many runs of each target begin, and after what they part: each does the commands for itself, or all go on
    from where the first one had done them."""

    count: Annotated[int, Field(ge=2, le=CANDIDATES_MAX)]
    after: Literal["commands"] | None = None


class Manifest(Frozen):
    """Version 1: a batch is `task` asked of every target, measured by `checks`, bounded by `limits` and `policy`,
    and all of it together by `budget`.

    version: of what may stand in a manifest. name: what its batches are called. targets: repositories, and files,
    folders and earlier batches that list them. exclude: patterns such as `*/legacy-*`; a target whose repository or
    id one fits is left out. max_targets: more than so many are refused. task: what is asked of each. environment:
    where it is done. checks: commands that exit with 0 when it is done, as a command or `name=command`. baseline:
    whether they must be green on the untouched start (required), may be red there (record), or are not run there
    (off). guards: what a patch may not do. limits: of one run. budget: of all runs together. policy: calls that are
    allowed, asked about or denied. on_ask: what a call that needs a person does. tools: the task's own, beside ours.
    labels: words to select runs by. deliver: how far a patch goes: kept, to a branch, or to a pull request.
    candidates: how many runs of each target begin, of which the best stands; `{count: 3, after: commands}` where all
    go on from what the commands of the first one left. window: the hours in which it may work.
    schedule: when a batch of it is submitted (dawn schedule add). start_at: before when no run begins, with its zone.
    notify: who hears of it. waves: how many targets begin first, and then, as numbers, shares like 25%, and rest;
    true for the usual ones. breaker: when no more of them begin. weight: turns at free slots for one of another
    batch. parallel, max_per_repo: how many runs are worked on at a time, of the batch and of one repository.
    """

    version: Literal[1]
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
    targets: Targets
    exclude: tuple[Annotated[str, Field(min_length=1)], ...] = later(())
    max_targets: Annotated[int, Field(ge=1, le=TARGETS_MAX)] = later(1_000)
    task: Work
    environment: Workplace = Workplace()
    checks: Checks = ()
    limits: Limits = Limits()
    policy: tuple[Annotated[PolicyRule, AfterValidator(_searchable)], ...] = ()
    on_ask: OnAsk = "park"
    tools: OwnTools = later(())
    budget: Budget | None = later(None)
    labels: Annotated[tuple[Label, ...], Field(max_length=20)] = later(())
    notify: Notify | None = later(None)
    deliver: Deliver | None = later(None)
    window: Window | None = later(None)
    schedule: Schedule | None = later(None)
    start_at: Annotated[str, AfterValidator(_start)] | None = later(None)
    candidates: Annotated[
        Annotated[int, Field(ge=1, le=CANDIDATES_MAX), Tag("number")] | Annotated[Candidates, Tag("more")],
        Discriminator(lambda value: "more" if isinstance(value, dict | Candidates) else "number"),
    ] = later(1)
    waves: Waves = later(None)
    breaker: Breaker | None = later(None)
    weight: Annotated[int, Field(ge=1, le=WEIGHT_MAX)] = later(1)
    parallel: Annotated[int, Field(ge=1)] | None = later(None)
    max_per_repo: Annotated[int, Field(ge=1)] | None = later(None)
    guards: Guards | None = later(None)
    baseline: BaselinePolicy | None = later(None)

    @field_validator("candidates")
    @classmethod
    def _share(cls, candidates: int | Candidates, info: ValidationInfo) -> int | Candidates:
        task = info.data.get("task")
        shares = isinstance(candidates, Candidates) and candidates.after == "commands"
        if shares and task is not None and (task.model == "none" or not task.commands):
            raise ValueError("`after: commands` needs commands, and a model that goes on from them")
        return candidates

    @property
    def prefix(self) -> bool:
        """Candidates share what their commands do."""
        return isinstance(self.candidates, Candidates) and self.candidates.after == "commands"

    @property
    def count(self) -> int:
        """Of the candidates."""
        return self.candidates.count if isinstance(self.candidates, Candidates) else self.candidates

    @field_validator("checks")
    @classmethod
    def _distinct(cls, checks: tuple[Check, ...]) -> tuple[Check, ...]:
        names = [check.name for check in checks]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"check names must differ: {', '.join(twice)}")
        return checks


def named_checks(value: Any) -> Any:
    """Give each check written as a plain string its name: `name=command`, or the command's own words."""
    if not isinstance(value, (list, tuple)):
        return value
    return [_named(check) if isinstance(check, str) else check for check in value]


def _named(check: str) -> dict[str, str]:
    match = CHECK_NAME.match(check)
    if match:
        return {"name": match["name"], "command": match["command"]}
    return {"name": " ".join(check.split())[:60] or "check", "command": check}
