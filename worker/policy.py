"""Owns the ruling over each call: the short written list of acts that are refused or need a person, the task's own
rules, what a person decided. Pure; refuses to be the wall.

The wall against irreversible acts is that a call has no credentials, and no network unless its task asks for it. The
list saves the agent a pointless try and a person a surprise; it looks at what a command *runs*, not at the text it
mentions.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pydantic import BaseModel

from worker.contract.events import Asked, Decided, Record, ToolCall, canonical, digest
from worker.contract.pattern import found
from worker.contract.run import Run
from worker.contract.task import Task

HookAction = Literal["allow", "deny", "ask"]
ASK_PERSON = "ask_person"
"""The tool whose every call is a question."""


@dataclass(frozen=True)
class Ruling:
    """action: allow; deny or answer (the model reads reason); ask (a person reads reason); fail (the run ends)."""

    action: Literal["allow", "deny", "ask", "answer", "fail"]
    reason: str = ""


ALLOW = Ruling("allow")


@dataclass(frozen=True)
class Rule:
    """program: name without folder. subcommand: its first word that is no option. text: found in some argument."""

    program: str
    ruling: Ruling
    subcommand: str = ""
    text: str = ""


def _publishes(program: str, subcommand: str) -> Rule:
    reason = f"`{program} {subcommand}` publishes outside of the workspace; leave your changes in the files instead"
    return Rule(program, Ruling("deny", reason), subcommand)


def _destroys(program: str, subcommand: str = "", text: str = "") -> Rule:
    return Rule(program, Ruling("ask", f"{program} would destroy what cannot be restored"), subcommand, text)


DROPS = r"(?i)\b(drop|truncate)\s+(table|database|schema)\b"

RULES = (
    _publishes("git", "push"),
    _publishes("npm", "publish"),
    _publishes("yarn", "publish"),
    _publishes("pnpm", "publish"),
    _publishes("twine", "upload"),
    _publishes("cargo", "publish"),
    _publishes("gem", "push"),
    _publishes("docker", "push"),
    _destroys("terraform", "apply"),
    _destroys("terraform", "destroy"),
    _destroys("kubectl", "delete"),
    _destroys("psql", text=DROPS),
    _destroys("mysql", text=DROPS),
    _destroys("dropdb"),
)

VALUE_OPTIONS = frozenset({"-C", "-c", "-n", "--git-dir", "--work-tree", "--context", "--namespace", "--prefix"})
"""Options of the programs above whose next word is their value, not the subcommand."""

BEFORE_PROGRAM = frozenset(
    [
        "sudo",
        "env",
        "command",
        "exec",
        "nohup",
        "time",
        "xargs",
        "if",
        "then",
        "else",
        "do",
        "while",
        "until",
        "!",
        "{",
    ]
)
OPERATORS = frozenset(";&|()")
HEREDOC = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1")


def judge(
    task: Task, call: ToolCall, arguments: BaseModel, records: Iterable[Record], hook: Callable[[], Ruling]
) -> Ruling:
    """The ruling over one parsed call: the strictest of the written list, the task's rules and the deployment's hook,
    which is asked of what the others let through. A person's decision, when the records hold one, settles an ask."""
    ruling = _written(task, call, arguments)
    if ruling.action != "deny":
        ruling = _strictest([ruling, hook()])
    if ruling.action != "ask":
        return ruling
    for record in records:
        if isinstance(record.event, Decided) and record.event.call_id == call.id:
            return _decided(record.event)
    if task.on_ask == "park":
        return ruling
    unasked = f"{ruling.reason}; in this run nobody can be asked"
    return Ruling("fail", unasked) if task.on_ask == "fail" else Ruling("deny", unasked)


def question(call: ToolCall, ruling: Ruling, run: Run) -> Asked:
    """The question to a person, bound to tool, arguments and the workspace it was asked about."""
    kind: Literal["question", "approval"] = "question" if call.name == ASK_PERSON else "approval"
    return Asked(call_id=call.id, kind=kind, question=ruling.reason, binding=binding(call, run))


def binding(call: ToolCall, run: Run) -> str:
    """What a decision on the call is bound to: digest of tool, arguments and the workspace as last committed."""
    start = run.prepared.environment if run.prepared else ""
    return digest(canonical([call.name, call.arguments, run.snapshot.listing if run.snapshot else start]))


def _written(task: Task, call: ToolCall, arguments: BaseModel) -> Ruling:
    """The task's first rule that matches, but for what nobody may allow; else the list's."""
    command = getattr(arguments, "command", None)
    listed = command_ruling(command) if isinstance(command, str) else ALLOW
    if call.name == ASK_PERSON:
        listed = Ruling("ask", str(getattr(arguments, "question", "")))
    if listed.action == "deny":
        return listed
    subject = command if isinstance(command, str) else arguments.model_dump_json()
    for rule in task.policy:
        if rule.tool in ("*", call.name) and found(rule.pattern, subject):
            return Ruling(rule.action, rule.reason or f"a rule of this task says {rule.action} for {call.name}")
    return listed


def _decided(decided: Decided) -> Ruling:
    match decided.decision:
        case "approved":
            return ALLOW
        case "answered":
            return Ruling("answer", decided.reason)
        case "expired":
            return Ruling("deny", "nobody answered in time; go on without it")
        case _:
            return Ruling("deny", decided.reason or "a person said no; go on without it")


def _strictest(rulings: Sequence[Ruling]) -> Ruling:
    return next((one for action in ("deny", "ask") for one in rulings if one.action == action), ALLOW)


def command_ruling(command: str) -> Ruling:
    """The strictest ruling over the programs that a shell script starts."""
    return _strictest([rule.ruling for words in _programs(command) for rule in RULES if _matches(rule, words)])


def _matches(rule: Rule, words: Sequence[str]) -> bool:
    if words[0].rsplit("/", 1)[-1] != rule.program:
        return False
    if rule.subcommand and _subcommand(words) != rule.subcommand:
        return False
    return not rule.text or any(re.search(rule.text, word) for word in words[1:])


def _subcommand(words: Sequence[str]) -> str:
    plain = (word for before, word in pairwise(words) if not word.startswith("-") and before not in VALUE_OPTIONS)
    return next(plain, "")


def _without_heredocs(script: str) -> list[str]:
    """The lines of a script, but for those that are given to a program. One look at each line: a text that opens
    thousands and ends none must not hold the worker."""
    lines, kept, at = script.split("\n"), list[str](), 0
    last = {line.lstrip("\t"): number for number, line in enumerate(lines)}
    while at < len(lines):
        line, at = lines[at], at + 1
        opened = next((found for found in HEREDOC.finditer(line) if last.get(found[2], 0) >= at), None)
        if opened is not None:
            line = line[: opened.start()] + line[opened.end() :]
            while lines[at].lstrip("\t") != opened[2]:
                at += 1
            at += 1
        kept.append(line)
    return kept


def _programs(script: str) -> list[list[str]]:
    """The simple commands of a script as words, quotes taken off; [] for text that does not lex as shell."""
    lexer = shlex.shlex(" ; ".join(_without_heredocs(script)), posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split = True
    lexer.commenters = ""
    commands: list[list[str]] = [[]]
    try:
        for word in lexer:
            if set(word) <= OPERATORS:
                commands.append([])
            elif commands[-1] or not (word in BEFORE_PROGRAM or re.match(r"[A-Za-z_]\w*=", word)):
                commands[-1].append(word)
    except ValueError:
        return []
    return [words for words in commands if words]
