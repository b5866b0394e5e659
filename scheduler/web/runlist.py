"""Owns a batch's runs as rows: which of them an address asks for, in which order, and the command that asks for the
same. Pure. Refuses to read: whoever has the runs gives them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from scheduler.reports import rows
from scheduler.reports.rows import Budgets
from scheduler.runs import View
from scheduler.selection import Selection
from worker.contract.errors import UsageFault

FILTERS: Final = ("state", "class", "repo", "label")
"""Names of an address's words, as the commands have them."""


@dataclass(frozen=True)
class RunRow:
    """One run. place: which of its target's runs it is, "" for the only one. state: what it does or how it ended;
    damaged and not_written of one that cannot be read. reason: class and reason of its failure. added, removed: lines
    of its patch, None where nothing was measured. waits: what for; until: UTC, "" where nobody knows."""

    run: str
    target: str
    place: str = ""
    state: str = ""
    verdict: str = ""
    cls: str = ""
    reason: str = ""
    added: int | None = None
    removed: int | None = None
    files: int = 0
    steps: int = 0
    cost_microusd: int = 0
    cost_text: str = ""
    working_s: float = 0.0
    waits: str = ""
    until: str = ""
    detail: str = ""

    @property
    def changed(self) -> int | None:
        return None if self.added is None else self.added + (self.removed or 0)


def row(view: View, budgets: Budgets) -> RunRow:
    """How a run stands in the table."""
    task, run = view.task, view.run
    sealed, verdict = run.sealed, run.verdict
    waits = "" if sealed is not None else rows.waits_for(view, budgets)
    return RunRow(
        run=task.run,
        target=task.target,
        place=view.place,
        state=view.state,
        verdict=(sealed.verdict if sealed is not None else None) or "",
        cls=sealed.failure.cls if sealed is not None and sealed.failure is not None else "",
        reason=str(sealed.failure) if sealed is not None and sealed.failure is not None else "",
        added=None if verdict is None else verdict.patch.added,
        removed=None if verdict is None else verdict.patch.removed,
        files=0 if verdict is None else len(verdict.patch.files),
        steps=run.steps,
        cost_microusd=run.spent_microusd,
        cost_text=run.cost_text,
        working_s=round(run.working_s, 3),
        waits=rows.brief(waits),
        until=_until(view),
        detail="" if waits else rows.brief(rows.detail(view, budgets)),
    )


def _until(view: View) -> str:
    if view.run.sealed is not None:
        return ""
    if view.shut is not None:
        return view.shut.until.isoformat()
    waiting = view.run.waiting
    return (waiting.until if waiting is not None else None) or view.run.not_before or ""


Key = Callable[[RunRow], Any]
SORTS: Final[Mapping[str, Key]] = {
    "target": lambda one: (one.target, one.place),
    "state": lambda one: one.state,
    "verdict": lambda one: one.verdict or None,
    "class": lambda one: one.reason or None,
    "diff": lambda one: one.changed,
    "steps": lambda one: one.steps,
    "cost": lambda one: one.cost_microusd,
    "time": lambda one: one.working_s,
    "until": lambda one: one.until or None,
}
"""By what the table can be sorted; None stands last, whichever way."""


@dataclass(frozen=True)
class Wanted:
    """What an address asks for. sort: of SORTS, "" for the manifest's order. down: the largest first. every: also
    runs that do not count for their target."""

    selection: Selection = field(default_factory=Selection)
    sort: str = ""
    down: bool = False
    every: bool = False

    @property
    def plain(self) -> bool:
        """Whether it is the manifest's order of all that count: then only the rows that are shown need be read."""
        return not (self.selection.narrows or self.sort or self.every)

    def of(self, views: Iterable[View], budgets: Budgets) -> list[RunRow]:
        """The rows that are meant. views: those that count for their target, or all where `every` is said."""
        return self.arranged(row(view, budgets) for view in views if self.selection.matches(view))

    def arranged(self, found: Iterable[RunRow]) -> list[RunRow]:
        """In the order that is asked for; equal ones stay as they come."""
        if not self.sort:
            return list(found)
        key = SORTS[self.sort]
        keyed = [(key(one), one) for one in found]
        with_key = sorted(
            (pair for pair in keyed if pair[0] is not None), key=lambda pair: pair[0], reverse=self.down
        )
        return [one for _, one in with_key] + [one for value, one in keyed if value is None]

    def query(self) -> dict[str, str]:
        """The same as words of an address."""
        chosen = self.selection
        told = {
            "state": " ".join(chosen.states),
            "class": " ".join(chosen.classes),
            "repo": " ".join(chosen.repos),
            "label": " ".join(chosen.labels),
            "sort": ("-" if self.down else "") + self.sort if self.sort else "",
            "all": "1" if self.every else "",
        }
        return {name: value for name, value in told.items() if value}

    def options(self) -> list[str]:
        """The same as options of `dawn ls` and `dawn retry`, quoted for a shell."""
        chosen = self.selection
        pairs = [
            ("state", chosen.states),
            ("class", chosen.classes),
            ("repo", chosen.repos),
            ("label", chosen.labels),
        ]
        return [f"--{option}={shlex.quote(word)}" for option, words in pairs for word in words]

    def command(self, batch: str) -> str:
        """What lists the same runs in a terminal, in the manifest's order."""
        return " ".join(["dawn ls", shlex.quote(batch), *self.options(), *(["--all"] if self.every else [])])


def wanted(query: Mapping[str, str]) -> Wanted:
    """What the words of an address ask for: several of one kind with spaces between. Raises UsageFault for a word
    that is not known."""
    states, classes, repos, labels = (_words(query.get(name, "")) for name in FILTERS)
    sort = query.get("sort", "")
    name = sort.removeprefix("-")
    if sort and name not in SORTS:
        raise UsageFault(f"the table cannot be sorted by {name!r}", hint=f"by one of {', '.join(SORTS)}")
    selection = Selection(states=states, classes=classes, repos=repos, labels=labels)
    return Wanted(selection, name, sort.startswith("-"), query.get("all", "") == "1")


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(re.findall(r"\S+", text)))


def counted(found: Sequence[RunRow]) -> dict[str, int]:
    """How many rows have each state, verdict or class of failure that any has: what a filter would leave."""
    told: dict[str, int] = {}
    for one in found:
        for word in filter(None, (one.state, one.verdict, one.cls)):
            told[word] = told.get(word, 0) + 1
    return told
