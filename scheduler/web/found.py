"""Owns what a search of runs means: its words, and whether a run is meant by them. Refuses to read one: whoever has
folded runs, or their records, gives them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from typing import Final, get_args

from scheduler.runs import View
from scheduler.selection import STATES
from worker.contract.errors import UsageFault
from worker.contract.events import FailureClass, Observed, Record, Replied

WORDS: Final = ("repo", "target", "file", "error", "command", "model")
"""Fields that are texts: a part of it in any case, or a pattern with * and ?."""
CLASSES: Final[tuple[str, ...]] = get_args(FailureClass)
WORD_CHARS: Final = 500


@dataclass(frozen=True)
class Hit:
    """What of a run a word was found in. seq: the segment of a step, -1 for none."""

    where: str
    text: str
    seq: int = -1


@dataclass(frozen=True)
class Sought:
    """texts: of WORDS, what must be in each. state: one of STATES. since, until: UTC dates, of the submit, both
    included. cost: microdollars, least and most. deep: what must be in something that was said, called or printed.
    Raises UsageFault for a word that is none."""

    texts: Mapping[str, str]
    state: str = ""
    cls: str = ""
    since: str = ""
    until: str = ""
    cost_min: int | None = None
    cost_max: int | None = None
    deep: str = ""

    @property
    def says_something(self) -> bool:
        return bool(self.texts or self.deep or self.state or self.cls or self.since or self.until) or (
            self.cost_min is not None or self.cost_max is not None
        )

    def hits(self, view: View) -> list[Hit] | None:
        """Where the words were found, as far as the folded run says; None for a run that is not meant."""
        run, sealed = view.run, view.run.sealed
        states = {view.state, *((sealed.outcome, sealed.verdict) if sealed is not None else (run.status,))}
        cls = sealed.failure.cls if sealed is not None and sealed.failure is not None else ""
        day = run.submitted_at[:10]
        if (
            (self.state and self.state not in states)
            or (self.cls and self.cls != cls)
            or (self.since and day < self.since)
            or (self.until and day > self.until)
            or (self.cost_min is not None and run.spent_microusd < self.cost_min)
            or (self.cost_max is not None and run.spent_microusd > self.cost_max)
        ):
            return None
        found = []
        for name, wanted in self.texts.items():
            hit = next((text for text in TEXTS[name](view) if fits(wanted, text)), None)
            if hit is None:
                return None
            found.append(Hit(name, around(wanted, hit)))
        return found

    def deep_hit(self, records: Iterator[Record]) -> Hit | None:
        """The first step that has the words."""
        for record in records:
            event = record.event
            if isinstance(event, Replied):
                told = [event.reply.text, *(f"{call.name} {call.arguments}" for call in event.reply.calls)]
            elif isinstance(event, Observed):
                told = [event.observation.output]
            else:
                continue
            for text in told:
                if fits(self.deep, text):
                    return Hit("step", around(self.deep, text), record.seq)
        return None

    @property
    def command(self) -> str:
        """What lists the same in a terminal; "" where no command knows these words."""
        told = ["dawn", "ls", "--all"]
        if set(self.texts) - {"repo"} or self.since or self.until or self.deep:
            return ""
        if self.cost_min is not None or self.cost_max is not None:
            return ""
        if repo := self.texts.get("repo"):
            told += ["--repo", repo if _is_pattern(repo) else f"*{repo}*"]
        told += ["--state", self.state] if self.state else []
        told += ["--class", self.cls] if self.cls else []
        return shlex.join(told)


def sought(query: Mapping[str, str]) -> Sought:
    """What an address asks for. Raises UsageFault."""
    told = {name: value.strip()[:WORD_CHARS] for name, value in query.items()}
    state, cls = told.get("state", ""), told.get("class", "")
    if state and state not in STATES:
        raise UsageFault(f"there is no state {state!r}", hint=f"one of {', '.join(STATES)}")
    if cls and cls not in CLASSES:
        raise UsageFault(f"there is no class {cls!r}", hint=f"one of {', '.join(CLASSES)}")
    return Sought(
        texts={name: told[name] for name in WORDS if told.get(name)},
        state=state,
        cls=cls,
        since=_day(told.get("since", "")),
        until=_day(told.get("until", "")),
        cost_min=_microusd(told.get("cost_min", "")),
        cost_max=_microusd(told.get("cost_max", "")),
        deep=told.get("deep", ""),
    )


def fits(wanted: str, text: str) -> bool:
    """In any case: as a part, or as a pattern for all of it."""
    low, word = text.lower(), wanted.lower()
    return fnmatchcase(low, word) if _is_pattern(word) else word in low


def around(wanted: str, text: str, chars: int = 160) -> str:
    """The part of a text that has the word, on one line."""
    at = max(0, text.lower().find(wanted.lower()) - chars // 3)
    part = " ".join(text[at : at + chars].split())
    return f"{'…' if at else ''}{part}{'…' if at + chars < len(text) else ''}"


def _is_pattern(word: str) -> bool:
    return "*" in word or "?" in word


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat() if text else ""
    except ValueError:
        raise UsageFault(f"{text!r} is no date", hint="like 2026-11-30") from None


def _microusd(text: str) -> int | None:
    try:
        amount = float(text) if text else None
    except ValueError:
        amount = -1.0
    if amount is not None and not 0 <= amount <= 1e9:
        raise UsageFault(f"{text!r} is no amount of dollars", hint="like 0.50")
    return None if amount is None else round(amount * 1e6)


def _repo(view: View) -> Iterator[str]:
    repo = view.task.repo
    yield from filter(None, (repo.label, repo.url or "", view.task.target))


def _files(view: View) -> Iterator[str]:
    yield from view.run.files
    if view.run.verdict is not None:
        yield from view.run.verdict.patch.files


def _errors(view: View) -> Iterator[str]:
    run, sealed = view.run, view.run.sealed
    if sealed is not None:
        if sealed.failure is not None:
            yield f"{sealed.failure} {sealed.failure.detail}"
        yield sealed.detail
    yield from (end for _, end in run.failed_commands)
    if run.verdict is not None:
        yield from (check.tail for check in run.verdict.checks if check.status != "green")


def _commands(view: View) -> Iterator[str]:
    yield from view.task.commands
    yield from (check.command for check in view.task.checks)


TEXTS: Final[Mapping[str, Callable[[View], Iterator[str]]]] = {
    "repo": _repo,
    "target": lambda view: iter((view.task.target,)),
    "file": _files,
    "error": _errors,
    "command": _commands,
    "model": lambda view: iter((view.task.model, *view.task.fallbacks)),
}
