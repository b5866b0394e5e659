"""Owns what is asked of one repository: Task and its parts. Refuses to say how it went (that is run.py).

A Task is written once, at submit, as `runs/<run>/task.json`, and never changes afterwards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, JsonValue, field_validator, model_validator

from worker.contract.delivery import Deliver
from worker.contract.filekinds import Glob
from worker.contract.frozen import Frozen as Frozen
from worker.contract.frozen import later as later
from worker.contract.guards import Guards
from worker.contract.notify import Notify
from worker.contract.secret_name import SecretNames
from worker.contract.surroundings import AUTO
from worker.contract.surroundings import Environment as Environment
from worker.contract.waves import WEIGHT_MAX, Breaker, Waves
from worker.contract.window import Window
from worker.contract.zones import Moment

TASK_VERSION: Final = 3
ADDED: Final[dict[int, frozenset[str]]] = {
    2: frozenset({"tools", "fallbacks", "budget"}),
    3: frozenset({"deliver", "labels", "candidates", "window", "start_at", "notify", "vars"})
    | {"waves", "breaker", "weight", "parallel", "max_per_repo", "guards", "baseline", "prefix_of"},
}
"""The fields that a version of the task added. One without any is still written as the version before, so that an
older worker can read it."""

TOOL_NAMES: Final = frozenset(
    {
        *("list_files", "read_file", "search", "write_file", "edit_file"),
        *("run_command", "run_checks", "read_output", "update_plan", "ask_person", "delegate"),
    }
)
"""Of our own tools (worker/tools/toolset.py)."""
SCHEMA_CHARS_MAX: Final = 32 * 2**10


Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]


USD_MAX: Final = 1e9
"""Of a budget: its micro-dollars are exact wherever they are counted (below 2 to the power of 53)."""
SECONDS_MAX: Final = 30 * 86400
COUNT_MAX: Final = 2**53 - 1
"""Of limits that people ask for: any number is one that JSON and a clock can hold."""
CANDIDATES_MAX: Final = 8


class Limits(Frozen):
    """Every bound of one run, explained in README.md; the defaults are the plan's. cost_usd None means no bound."""

    steps: Count = 100
    tokens: Count = 2_000_000
    cost_usd: Annotated[float, Field(gt=0)] | None = 3.0
    working_time_s: Seconds = 45 * 60
    call_timeout_s: Annotated[float, Field(gt=0, le=600)] = 120
    setup_timeout_s: Seconds = 15 * 60
    check_timeout_s: Seconds = 10 * 60
    model_timeout_s: Seconds = 5 * 60
    failing_calls_nudge: Count = 5
    failing_calls: Count = 8
    empty_replies: Count = 3
    malformed_replies: Count = 3
    repeats: Count = 10
    feedbacks: Annotated[int, Field(ge=0)] = 2
    memory_bytes: Annotated[int, Field(ge=6 * 2**20)] = 2 * 2**30
    pids: Annotated[int, Field(ge=4)] = 256
    cpus: Annotated[float, Field(gt=0)] = 1.0
    tmpfs_bytes: Count = 256 * 2**20
    tmpfs_inodes: Count = 100_000
    workspace_bytes: Count = 5 * 2**30
    workspace_files: Count = 200_000
    snapshot_bytes: Count = 512 * 2**20
    output_kept_bytes: Count = 64 * 2**20
    output_shown_bytes: Count = 50_000
    output_shown_lines: Count = 2_000
    patch_bytes: Count = 20 * 2**20
    patch_file_bytes: Count = 2**20
    context_tokens: Count = 200_000

    @model_validator(mode="after")
    def _agree(self) -> Limits:
        if self.call_timeout_s > self.working_time_s:
            raise ValueError(
                f"call_timeout_s={self.call_timeout_s:g} is longer than working_time_s={self.working_time_s:g}"
            )
        if self.failing_calls_nudge > self.failing_calls:
            raise ValueError("failing_calls_nudge is above failing_calls, so it would never be said")
        if self.patch_file_bytes > self.patch_bytes:
            raise ValueError("patch_file_bytes is above patch_bytes")
        return self


def beyond(limits: Limits) -> Iterator[tuple[str, float]]:
    """(name, the most that may be asked for) of each limit that is above it.

    For what people ask now, and not of the stored class: whoever wanted no bound wrote 1e9 seconds or `.inf`, and
    what the archive holds of that is read for ever.
    """
    for name, value in limits:
        most = SECONDS_MAX if name.endswith("_s") else USD_MAX if name.endswith("_usd") else COUNT_MAX
        if value is not None and value > most:
            yield name, most


def version_of(fields: Mapping[str, Any]) -> int:
    """The lowest version of a task that has all of these fields, one that says nothing left aside."""
    said = {name for name, field in Task.model_fields.items() if fields.get(name, field.default) != field.default}
    locked = isinstance(repo := fields.get("repo"), Repo) and repo.commit is not None
    environment = fields.get("environment", Environment())
    within = (
        any(check.junit for check in fields.get("checks", ()))
        or any(tool.secrets for tool in fields.get("tools", ()))
        or environment != Environment(image=environment.image, setup=environment.setup)
        or environment.image == AUTO
    )
    return max([3 if locked or within else 1, *(version for version, added in ADDED.items() if said & added)])


class Repo(Frozen):
    """Where the code comes from: exactly one of url (git) or source (digest of a packed local path).

    ref: branch, tag or commit; None means the remote's HEAD. path: the folder inside the repository that the
    agent starts in and checks run in, relative, "" for the root. secret: NAME of the secret that opens a
    private repository (its value is `DAWN_SECRET_<NAME>` in the worker's environment, never here). commit, branch:
    what a lock says that ref was ("" for no branch); None to ask when it is fetched.
    """

    url: str | None = None
    source: str | None = None
    source_kind: Literal["git", "folder", "tarball"] | None = None
    label: str = ""
    ref: str | None = None
    path: str = ""
    secret: str | None = None
    commit: Annotated[str, Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")] | None = later(None)
    branch: str = later("")

    @model_validator(mode="after")
    def _one_origin(self) -> Repo:
        if (self.url is None) == (self.source is None):
            raise ValueError("a repository needs either url or source")
        if (self.source is None) != (self.source_kind is None):
            raise ValueError("source and source_kind go together")
        parts = self.path.split("/")
        if self.path and (self.path.startswith("/") or ".." in parts or "" in parts or "." in parts):
            raise ValueError(f"path {self.path!r} must be a plain relative folder")
        return self


class Check(Frozen):
    """A command whose exit code 0 means green; name is unique in its task. junit: path or glob, from where the check
    runs, of the JUnit XML that it writes."""

    name: str
    command: str
    junit: Glob | None = later(None)


class ForkPoint(Frozen):
    """Where a fork begins: after `step` of `run`, whose line with this hash stands in segment `seq`.

    message: what a person says to the model there, "" for nothing.
    """

    run: str
    step: Annotated[int, Field(ge=0)]
    seq: Annotated[int, Field(ge=0)]
    hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    message: str = ""


class OwnTool(Frozen):
    """A tool that a task brings for its model.

    description: one line, for the model. arguments: JSON Schema (2020-12) of the arguments object. command: a script
    for the shell of the task's image, run in the folder the run starts in, with the arguments as one JSON document on
    its standard input. effect: read (the workspace is mounted read-only), write, or outside: it writes and has the
    network, is on record before it starts, and is not run again when its worker dies. secrets: NAMES of what it finds
    as files `/run/secrets/<NAME>`.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
    description: Annotated[str, Field(pattern=r"^\S.*$", max_length=1_024)]
    arguments: dict[str, JsonValue]
    command: Annotated[str, Field(min_length=1, max_length=64 * 2**10)]
    effect: Literal["read", "write", "outside"] = "write"
    secrets: SecretNames = later(())

    @model_validator(mode="after")
    def _held_outside(self) -> OwnTool:
        if self.secrets and self.effect != "outside":
            raise ValueError("a tool that is handed secrets needs `effect: outside`")
        return self

    @field_validator("name")
    @classmethod
    def _free(cls, name: str) -> str:
        if name in TOOL_NAMES:
            raise ValueError(f"{name} is a tool of Dawnfleet's own; take another name")
        return name

    @field_validator("command")
    @classmethod
    def _no_nul(cls, command: str) -> str:
        if "\0" in command:
            raise ValueError("a shell script cannot hold a NUL character")
        return command

    @field_validator("arguments")
    @classmethod
    def _schema(cls, arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
        from worker.contract.schema import matcher

        if arguments.get("type") != "object":
            raise ValueError("must describe an object: begin with `type: object`")
        if len(json.dumps(arguments, allow_nan=False)) > SCHEMA_CHARS_MAX:
            raise ValueError(f"is longer than {SCHEMA_CHARS_MAX} characters as JSON, and the model pays for each")
        matcher(arguments)
        return arguments


def distinct_tools(tools: tuple[OwnTool, ...]) -> tuple[OwnTool, ...]:
    """The tools, or ValueError that names those of one name."""
    names = [tool.name for tool in tools]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"tool names must differ: {', '.join(twice)}")
    return tools


OwnTools = Annotated[tuple[OwnTool, ...], Field(max_length=32), AfterValidator(distinct_tools)]


class PolicyRule(Frozen):
    """What becomes of a call of `tool` (`*`: of any) in which `pattern` is found.

    pattern: a Python regular expression, searched in the command of a shell call and in the arguments, as JSON, of
    any other; "" is found in all. reason: what a person reads of an ask, and the model of a deny.
    """

    tool: Annotated[str, Field(min_length=1)] = "run_command"
    pattern: str = ""
    action: Literal["allow", "ask", "deny"]
    reason: str = ""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"is not a regular expression: {error}") from error
        return pattern


def usd_text(microusd: int) -> str:
    """`$0.12`; below a cent `$0.0012`."""
    return f"${microusd / 1e6:.{4 if 0 < microusd < 10_000 else 2}f}"


OnAsk = Literal["park", "deny", "fail"]
BaselinePolicy = Literal["required", "record", "off"]
"""Of the checks on the untouched start: all must be green there (required), they are measured and may be red
(record), or they are not run."""


class Budget(Frozen):
    """What all runs of a batch may spend together. on_limit: where it is used up, runs wait until somebody raises it
    (pause), or end with what they have (stop)."""

    usd: Annotated[float, Field(gt=0, le=USD_MAX)]
    on_limit: Literal["pause", "stop"] = "pause"

    @property
    def microusd(self) -> int:
        return max(1, round(self.usd * 1e6))


def budget_microusd(text: str) -> int | None:
    """A budget as a person writes it, `20` or `$0.50`, in micro-dollars; None for what is none."""
    try:
        return Budget(usd=float(text.strip().removeprefix("$"))).microusd
    except ValueError:
        return None


def budget_text(microusd: int) -> str:
    """Exactly what `budget_microusd` reads: with all six decimals where fewer would round it."""
    short = usd_text(microusd)
    return short if budget_microusd(short) == microusd else f"${microusd / 1e6:.6f}"


class Task(Frozen):
    """What is asked of one repository.

    run: id of the run this task belongs to. ordinal: among the runs of its target: candidates first, retries count
    on. candidates: how many runs of a target begin side by side.
    commands: plain shell commands run before any model. model: `none`, `scripted:NAME`, `replay:RUN`,
    `anthropic/NAME`, `openai/NAME`. script: text of the script when model is scripted. without_tools: names of tools
    that the model is not offered. fork: where it begins, None for the start commit. policy: rules over calls, the
    first that matches counts. on_ask: what a call that needs a person does: wait for one, be denied, or fail the run.
    tools: the task's own, beside ours. fallbacks: models that answer where the first cannot be had, in this order.
    budget: of the whole batch, the same in each of its tasks; None for no bound. vars: the target's own
    texts, which prompt and commands hold already. labels: words of the manifest that
    people select runs by. deliver: what becomes of the patch; None for nothing but keeping it. window: the hours in
    which the batch may work, None for all. start_at: before when it does not begin. notify: who
    hears of the batch. waves, breaker: how it begins, and when no more of it does. weight: how many turns it has at
    slots for one of another batch. parallel: how many of its runs are worked on at a time; max_per_repo: how many,
    of any batch, on a repository when one of these begins there; None for any number. guards: what the patch may
    not do; None for the usual ones where a model works. baseline: None for record. prefix_of: the candidate whose
    commands it takes over, as its fork, when they are done; None for a run that does its own.
    """

    v: Literal[1, 2, 3] = 1
    run: str
    batch: str
    target: str
    ordinal: int = 0
    lane: Literal["interactive", "batch"] = "batch"
    repo: Repo
    environment: Environment = Environment()
    prompt: str = ""
    commands: tuple[str, ...] = ()
    model: str = "none"
    script: str | None = None
    checks: tuple[Check, ...] = ()
    limits: Limits = Limits()
    without_tools: tuple[str, ...] = ()
    fork: ForkPoint | None = None
    policy: tuple[PolicyRule, ...] = ()
    on_ask: OnAsk = "park"
    tools: OwnTools = later(())
    fallbacks: tuple[str, ...] = later(())
    budget: Budget | None = later(None)
    labels: tuple[str, ...] = later(())
    vars: dict[str, str] = later({})
    deliver: Deliver | None = later(None)
    notify: Notify | None = later(None)
    candidates: Annotated[int, Field(ge=1, le=CANDIDATES_MAX)] = later(1)
    window: Window | None = later(None)
    start_at: Moment | None = later(None)
    waves: Waves = later(None)
    breaker: Breaker | None = later(None)
    weight: Annotated[int, Field(ge=1, le=WEIGHT_MAX)] = later(1)
    parallel: Count | None = later(None)
    max_per_repo: Count | None = later(None)
    guards: Guards | None = later(None)
    baseline: BaselinePolicy | None = later(None)
    prefix_of: str | None = later(None)

    @property
    def parent(self) -> str | None:
        """The run that segment 0 may be copied from."""
        return self.prefix_of if self.fork is None else self.fork.run

    @model_validator(mode="after")
    def _has_work(self) -> Task:
        if self.model == "none" and not self.commands:
            raise ValueError("nothing to do: give commands, or a model (such as anthropic/NAME) to read the prompt")
        if self.model != "none" and not self.prompt:
            raise ValueError("a model needs a prompt")
        if self.model.startswith("scripted:") and self.script is None:
            raise ValueError("a scripted model needs its script")
        names = [check.name for check in self.checks]
        if len(set(names)) != len(names):
            raise ValueError("check names must differ")
        return self
