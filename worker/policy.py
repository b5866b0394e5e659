"""Owns the short written list of acts that are refused or need a person. Pure; refuses to be the wall.

The wall against irreversible acts is that a call has no network and no credentials. This list saves the agent a
pointless try and a person a surprise; it looks at what a command *runs*, not at the text it mentions.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from worker.contract.events import Asked, Decided, Record, ToolCall, canonical, digest
from worker.contract.run import Run


@dataclass(frozen=True)
class Ruling:
    """action: allow, deny (the model reads reason) or ask (a person reads reason)."""

    action: Literal["allow", "deny", "ask"]
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
HEREDOC = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1([^\n]*)\n.*?^\t*\2$", re.DOTALL | re.MULTILINE)


def judge(call: ToolCall, arguments: Any, records: Iterable[Record]) -> Ruling:
    """The ruling over one parsed call. A person's decision on it, when the records hold one, settles an ask."""
    command = getattr(arguments, "command", None)
    ruling = command_ruling(command) if isinstance(command, str) else ALLOW
    if ruling.action != "ask":
        return ruling
    decided = [r.event for r in records if isinstance(r.event, Decided) and r.event.call_id == call.id]
    if not decided:
        return ruling
    if decided[-1].decision == "approved":
        return ALLOW
    return Ruling("deny", decided[-1].reason or "nobody approved it; go on without it")


def question(call: ToolCall, ruling: Ruling, run: Run) -> Asked:
    """The question to a person, bound to tool, arguments and the workspace it was asked about."""
    workspace = run.snapshot.listing if run.snapshot else ""
    return Asked(
        call_id=call.id,
        question=ruling.reason,
        binding=digest(canonical([call.name, call.arguments, workspace])),
    )


def command_ruling(command: str) -> Ruling:
    """The strictest ruling over the programs that a shell script starts."""
    found = [rule.ruling for words in _programs(command) for rule in RULES if _matches(rule, words)]
    return next((ruling for action in ("deny", "ask") for ruling in found if ruling.action == action), ALLOW)


def _matches(rule: Rule, words: Sequence[str]) -> bool:
    if words[0].rsplit("/", 1)[-1] != rule.program:
        return False
    if rule.subcommand and _subcommand(words) != rule.subcommand:
        return False
    return not rule.text or any(re.search(rule.text, word) for word in words[1:])


def _subcommand(words: Sequence[str]) -> str:
    plain = (word for before, word in pairwise(words) if not word.startswith("-") and before not in VALUE_OPTIONS)
    return next(plain, "")


def _programs(script: str) -> list[list[str]]:
    """The simple commands of a script as words, quotes taken off; [] for text that does not lex as shell."""
    lexer = shlex.shlex(HEREDOC.sub(r"\3", script).replace("\n", " ; "), posix=True, punctuation_chars=";&|()")
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
