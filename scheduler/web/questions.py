"""Owns what runs ask people: what exactly would run, and what a person needs to decide. Refuses to decide, and to
shorten what would run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from scheduler import approvals
from scheduler.runs import View
from scheduler.web.exact import Exact, exact
from worker.contract.errors import IntegrityFault, NotFoundFault
from worker.contract.events import Asked, Observed, Record, Replied, ToolCall, canonical, digest
from worker.contract.pattern import found
from worker.contract.task import OwnTool, PolicyRule, Task
from worker.store import keys
from worker.store.archive import Archive
from worker.store.journal import SEGMENT_BYTES

SEGMENTS_BACK: Final = 40
"""Of a journal, read from its end for the step before: a step has few."""
WORDS_CHARS: Final = 4_000
OUTPUT_CHARS: Final = 2_000
"""The end of what the step before printed."""
SHORT_CHARS: Final = 200
LONG_CHARS: Final = 1_000

Effect = Literal["inside", "outside"]


@dataclass(frozen=True)
class Argument:
    """One argument as the tool gets it. is_text: it is the text itself; else JSON."""

    name: str
    value: Exact
    is_text: bool = True


@dataclass(frozen=True)
class Done:
    """A call of the step before, and what came of it."""

    tool: str
    line: Exact
    status: str
    exit_code: int | None
    output: str


@dataclass(frozen=True)
class Context:
    """What a run said and did before it asked. words: with the call itself. step: its number."""

    step: int = 0
    words: str = ""
    done: tuple[Done, ...] = ()


@dataclass(frozen=True)
class Question:
    """kind: approval or question. binding: the digest of tool, arguments and workspace that a decision names.
    command: the whole text that a shell would run, None for a tool that runs none. script: of a tool that the task
    brings, which gets the arguments. effect_why: what makes it so. rule: what of the task's policy asked, "" where it
    was the written list or the deployment's hook. since, until: UTC. unread: what could not be read of the context.
    same: what asks exactly the same has the same, "" for what stands alone.
    """

    run: str
    batch: str
    target: str
    place: str
    repo: str
    folder: str
    image: str
    model: str
    kind: Literal["approval", "question"]
    asks: Exact
    call: str
    binding: str
    tool: str
    command: Exact | None
    arguments: tuple[Argument, ...]
    script: Exact | None
    effect: Effect
    effect_why: str
    rule: str
    since: str
    until: str
    context: Context
    commands: tuple[str, ...]
    paused: bool = False
    unread: str = ""
    same: str = ""
    cost: tuple[int, int, str] = field(default=(0, 0, ""), compare=False)
    """What it costs a person, the cheapest least: see `cheapest`."""

    @property
    def hidden(self) -> int:
        """Characters of what would run that would not show."""
        shown = [self.command, self.script, self.asks, *(one.value for one in self.arguments)]
        return sum(one.hidden for one in shown if one is not None)


def is_asking(view: View) -> bool:
    """Whether a person is waited for, and can still decide."""
    run = view.run
    return run.sealed is None and run.asked is not None and view.decision is None and view.mail.cancel is None


def question(archive: Archive, view: View) -> Question:
    """What the run asks; is_asking must say so. Raises StoreFault."""
    task, run = view.task, view.run
    assert run.asked is not None, "is_asking says so"
    asked = run.asked
    call = next(
        (one for one in run.pending if one.id == asked.call_id), ToolCall(id=asked.call_id, name="", arguments="")
    )
    own = next((tool for tool in task.tools if tool.name == call.name), None)
    effect, why = _effect(task, call, own)
    arguments = _arguments(call)
    command = None
    if call.name == "run_command":
        command = next((one.value for one in arguments if one.name == "command" and one.is_text), None)
    try:
        context, unread = _context(archive, run.id, run.last_seq, asked.call_id), ""
    except (IntegrityFault, NotFoundFault) as fault:
        context, unread = Context(), fault.message
    rest = tuple(one for one in arguments if command is None or one.name != "command")
    rule = _rule(task, call, asked.question)
    size = len(call.arguments) + (len(own.command) if own is not None else 0)
    return Question(
        run=run.id,
        batch=task.batch,
        target=task.target,
        place=view.place,
        repo=task.repo.url or f"packed {task.repo.source_kind}",
        folder=task.repo.path or ".",
        image=task.environment.image or "",
        model=task.model,
        kind=asked.kind,
        asks=exact(asked.question),
        call=asked.call_id,
        binding=asked.binding,
        tool=call.name,
        command=command,
        arguments=() if asked.kind == "question" else rest,
        script=None if own is None else exact(own.command),
        effect=effect,
        effect_why=why,
        rule=rule,
        since=run.updated_at,
        until=(run.waiting.until if run.waiting is not None else None) or "",
        context=context,
        commands=tuple(approvals.commands(run.id, asked)),
        paused=bool(view.mail.paused_by),
        unread=unread,
        same=_same(task, call, asked, own, (effect, why, rule)),
        cost=(_rank(asked.kind, effect), _length(size), run.updated_at),
    )


def _same(task: Task, call: ToolCall, asked: Asked, own: OwnTool | None, told: tuple[str, ...]) -> str:
    """A digest of all that a page says once of equal calls, and of what their tasks add to what would run; arguments
    to the byte, since nothing may be approved that was not shown. An answer in words is to one run: "" for these."""
    if asked.kind != "approval" or not call.name:
        return ""
    adds = [own.command] if own is not None else []
    if call.name == "run_checks":
        adds = [word for check in task.checks for word in (check.name, check.command)]
    without_model = task.model == "none"  # a denial ends such a run
    return digest(canonical([call.name, call.arguments, asked.question, told, without_model, adds]))


def cheapest(questions: list[Question]) -> list[Question]:
    """The cheapest decision first: a yes or no about what stays inside, then about what reaches outside, then what
    wants words; of these the shorter to read, then who waits longest."""
    return sorted(questions, key=lambda one: (*one.cost, one.run))


def _rank(kind: str, effect: Effect) -> int:
    if kind == "question":
        return 2
    return 1 if effect == "outside" else 0


def _length(chars: int) -> int:
    return (chars > SHORT_CHARS) + (chars > LONG_CHARS)


def _effect(task: Task, call: ToolCall, own: OwnTool | None) -> tuple[Effect, str]:
    """As the sandbox has it: whether more than the container's own loopback can be reached."""
    if own is not None and own.effect == "outside":
        held = f", and holds {', '.join(own.secrets)}" if own.secrets else ""
        return "outside", f"the task's tool {own.name} has the network{held}"
    if own is None and call.name in ("run_command", "run_checks") and task.environment.networked:
        return "outside", "the task gives its commands the network"
    if own is not None and own.effect == "read":
        return "inside", "it only reads, without network"
    return "inside", "a new container without network and without secrets; its changes stay in this run's workspace"


def _rule(task: Task, call: ToolCall, asks: str) -> str:
    """The rule of the task whose words these are, as its manifest has it."""
    for number, rule in enumerate(task.policy, start=1):
        if rule.action == "ask" and rule.tool in ("*", call.name) and _says(rule, call, asks):
            pattern = f" that fits {rule.pattern!r}" if rule.pattern else ""
            return f"rule {number} of the task's policy asks before {rule.tool}{pattern}"
    return ""


def _says(rule: PolicyRule, call: ToolCall, asks: str) -> bool:
    if (rule.reason or f"a rule of this task says ask for {call.name}") != asks:
        return False
    told = _read(call)
    command = told.get("command") if isinstance(told, dict) else None
    return found(rule.pattern, command if isinstance(command, str) else call.arguments)


def _read(call: ToolCall) -> object:
    try:
        return json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None


def _arguments(call: ToolCall) -> tuple[Argument, ...]:
    """Each as the tool gets it; all as they were written where they cannot be told apart."""
    told = _read(call)
    if not isinstance(told, dict):
        return (Argument("arguments", exact(call.arguments)),) if call.arguments else ()
    return tuple(
        Argument(name, exact(value))
        if isinstance(value, str)
        else Argument(name, exact(json.dumps(value, ensure_ascii=False)), is_text=False)
        for name, value in told.items()
    )


def _context(archive: Archive, run: str, last: int, call: str) -> Context:
    """Read from the end: the reply with the call, and the step before it."""
    words, step, calls, seen = "", 0, tuple[ToolCall, ...](), dict[str, Observed]()
    has_call = False
    for record in _backwards(archive, run, last):
        event = record.event
        if isinstance(event, Observed):
            seen.setdefault(event.observation.call_id, event)
        if not isinstance(event, Replied):
            continue
        if not has_call and any(one.id == call for one in event.reply.calls):
            has_call, words, step = True, event.reply.text[-WORDS_CHARS:], event.step
            calls = tuple(one for one in event.reply.calls if one.id in seen)
            if calls:
                break  # of its own reply something ran already: that came before
        elif has_call:
            words, calls = words or event.reply.text[-WORDS_CHARS:], event.reply.calls
            break
    return Context(step, words, tuple(_done(one, seen[one.id]) for one in calls if one.id in seen))


def _done(call: ToolCall, event: Observed) -> Done:
    told, seen = _read(call), event.observation
    line = told.get("command") if isinstance(told, dict) else None
    shown = line if isinstance(line, str) else call.arguments
    return Done(call.name, exact(shown[:OUTPUT_CHARS]), seen.status, seen.exit_code, seen.output[-OUTPUT_CHARS:])


def _backwards(archive: Archive, run: str, last: int) -> Iterator[Record]:
    """Lines that the fold has proven already, the last first."""
    for seq in range(last, max(-1, last - SEGMENTS_BACK), -1):
        key = keys.segment(run, seq)
        for line in reversed(archive.get(key, max_bytes=SEGMENT_BYTES)[:-1].split(b"\n")):
            try:
                yield Record.parse(line)
            except ValueError as error:
                raise IntegrityFault(f"{key} is not what was written") from error
