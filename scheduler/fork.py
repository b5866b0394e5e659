"""Owns what a fork is asked to be: the parent's task with the changes a person named, begun at one of its steps.
Refuses a change that nobody allowed by name, and never writes to the parent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from scheduler.enqueue import ID_DIGITS, Batch, run_id, targets_json
from worker.contract.errors import IntegrityFault, InvalidFault
from worker.contract.events import Replied, canonical, digest
from worker.contract.fork import LAST, Line, step_end
from worker.contract.run import Run, fold
from worker.contract.task import ForkPoint, Limits, Task, beyond
from worker.store.archive import Archive
from worker.store.journal import Journal

ALLOWABLE: Final = ("model", "prompt", "tools")
"""What a conversation was made with, and can only be changed in the middle of it on purpose."""

SHOWN_CHARS: Final = 60


@dataclass(frozen=True)
class Wish:
    """What a person asked for. step: LAST for the last sound one. limits: name -> value, as in a manifest. model,
    prompt: None to keep the parent's; script: text of the script when model is scripted. allowed: of ALLOWABLE."""

    step: int = LAST
    message: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    script: str | None = None
    prompt: str | None = None
    without_tools: tuple[str, ...] = ()
    allowed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Fork:
    """A batch of one run, ready to be submitted. notes: what a person should know, one line each."""

    batch: Batch
    step: int
    notes: tuple[str, ...]


class ForkRefused(InvalidFault):
    """The fork would differ from its parent in more than was allowed."""

    def __init__(self, differences: Mapping[str, tuple[str, str]]) -> None:
        names = ", ".join(differences)
        hint = " ".join(f"--allow {name}" for name in differences)
        super().__init__(f"the fork would change {names} in the middle of a conversation", hint=f"if so: {hint}")
        self._differences = differences

    def lines(self) -> list[str]:
        """Each difference, for a person."""
        return [f"{name}: {before} -> {after}" for name, (before, after) in self._differences.items()]


def fork(archive: Archive, parent: str, wish: Wish, *, key: str) -> Fork:
    """The run that goes on from a step of `parent`. key: what makes it differ from an equal fork before.

    Raises NotFoundFault when there is no such step, ForkRefused, InvalidFault when it could not go on or its limits
    make no sense, IntegrityFault when what is to be copied is damaged, StoreFault.
    """
    task = Journal(archive, parent).task()
    lines, damage = _sound(archive, parent)
    step, end = step_end(lines, wish.step)
    notes = [f"{damage}; forking at step {step}, the last one before it" for damage in damage if wish.step == LAST]
    origin, written_by = parent, task
    while end[0].seq == 0 and written_by.parent is not None:
        # Copied itself: take it from the run whose step it was, which holds the snapshots.
        origin = written_by.parent
        written_by = Journal(archive, origin).task()
        lines, _ = _sound(archive, origin)
        _, end = step_end(lines, step)
    point = ForkPoint(run=origin, step=step, seq=end[0].seq, hash=end[1], message=wish.message)
    changed = _changed(task, point, wish)
    _must_go_on(fold(lines[: lines.index(end) + 1]), end, changed)
    return Fork(_batch(changed, key), step, tuple(notes))


def _sound(archive: Archive, run: str) -> tuple[list[Line], list[str]]:
    """The lines of a journal up to its first damage, and what that is, if anything."""
    lines: list[Line] = []
    try:
        lines.extend(Journal(archive, run).read())
    except IntegrityFault as fault:
        return lines, [fault.message]
    sealed = fold(lines).sealed
    if sealed is not None and sealed.damaged is not None and sealed.failure is not None:
        return lines[:-1], [sealed.failure.detail]
    return lines, []


def _changed(task: Task, point: ForkPoint, wish: Wish) -> Task:
    """The parent's task with the wish in it, still under the parent's id."""
    fields: dict[str, Any] = {"fork": point, "lane": "interactive", "ordinal": 0, "candidates": 1, "prefix_of": None}
    if wish.model is not None:
        fields |= {"model": wish.model, "script": wish.script, "fallbacks": ()}
    if wish.prompt is not None:
        fields["prompt"] = wish.prompt
    fields["without_tools"] = tuple(dict.fromkeys((*task.without_tools, *wish.without_tools)))
    try:
        fields["limits"] = Limits.model_validate(task.limits.model_dump() | dict(wish.limits))
        changed = Task.model_validate(dict(task) | fields)
    except ValidationError as error:
        raise InvalidFault("; ".join(_told(details) for details in error.errors(include_url=False))) from None
    if above := [
        f"{name}: must be at most {most:.0f}" for name, most in beyond(changed.limits) if name in wish.limits
    ]:
        raise InvalidFault("; ".join(above))
    refused = {name: pair for name, pair in _differences(task, changed).items() if name not in wish.allowed}
    if refused:
        raise ForkRefused(refused)
    return changed


def _differences(before: Task, after: Task) -> dict[str, tuple[str, str]]:
    """Of ALLOWABLE, what is not the same: name -> (before, after), to be read by a person."""
    found = {}
    if (before.model, before.script) != (after.model, after.script):
        same = before.model == after.model
        found["model"] = (before.model, f"{after.model} with another script" if same else after.model)
    if before.prompt != after.prompt:
        found["prompt"] = (_short(before.prompt), _short(after.prompt))
    if before.without_tools != after.without_tools:
        found["tools"] = (_tools(before.without_tools), _tools(after.without_tools))
    return found


def _must_go_on(run: Run, end: Line, task: Task) -> None:
    """Refuse a fork that would have nothing to do, or be stopped at its first look at the meter."""
    assert task.fork is not None, "made by _changed"
    event = end[0].event
    if task.model == "none" and task.fork.message:
        raise InvalidFault("the run has no model that could read a message")
    said_all = isinstance(event, Replied) and event.reply.stop == "end" and event.reply.text.strip()
    if said_all and not run.pending and not task.fork.message:
        raise InvalidFault(
            f"step {run.steps} was the agent's last word", hint="say what comes next with --message, or name a step"
        )
    limits = task.limits
    spent: list[tuple[str, float, float | None]] = [
        ("steps", run.steps, limits.steps),
        ("tokens", run.tokens, limits.tokens),
        ("cost_usd", run.cost_microusd / 1e6, limits.cost_usd),
    ]
    for name, used, limit in spent:
        if limit is not None and used >= limit:
            raise InvalidFault(
                f"the fork would stop at once: it begins with {used:g} {name}, and its limit is {limit:g}",
                hint=f"raise it with --limit {name}=...",
            )


def _batch(task: Task, key: str) -> Batch:
    """A batch of its own, whose id is a digest of all that was asked."""
    assert task.fork is not None, "made by _changed"
    asked = task.model_dump(mode="json", exclude={"run", "batch"})
    name = f"fork-{digest(canonical([asked, key]))[:ID_DIGITS]}"
    named = Task.model_validate(dict(task) | {"batch": name, "run": run_id(name, task.repo, task.target, 0)})
    manifest = canonical({"version": 1, "name": "fork", "fork": task.fork.model_dump(mode="json")}) + b"\n"
    return Batch(name, manifest, targets_json(name, [named], manifest), (named,))


def _told(details: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in details["loc"])
    what = (
        "is no limit that is known"
        if details["type"] == "extra_forbidden"
        else str(details["msg"]).removeprefix("Value error, ")
    )
    return f"{where}: {what}" if where else what


def _tools(without: Sequence[str]) -> str:
    return f"all but {', '.join(without)}" if without else "all"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= SHOWN_CHARS else line[: SHOWN_CHARS - 3] + "...")
