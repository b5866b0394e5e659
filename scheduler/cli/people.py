"""Owns the commands with which a person has a say in runs: approve, deny, answer, steer, cancel, pause, unpause,
budget.
Refuses to act on them: what is said is in the archive when the command returns, and the run or the scheduler reads it
there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.cli import terminal
from scheduler.cli.selecting import Batches, Labels, Limit, Names, Repos, States, selection

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler.approvals import Answer
    from scheduler.selection import Selection
    from worker.contract.events import MessageKind
    from worker.contract.settings import Settings
    from worker.store.archive import Archive

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or its first letters.")]
EitherArgument = Annotated[str, typer.Argument(metavar="RUN|BATCH", help="An id, or its first letters.")]
CallArgument = Annotated[str | None, typer.Argument(help="The call that asked. Default: whatever the run asks.")]
Binding = Annotated[
    str, typer.Option(help="Only for this digest of the call, as dawn show has it; its first digits do.")
]


SWITCHES: dict[MessageKind, tuple[str, str]] = {
    "cancel": (
        "Stop runs, or every run of a batch. What they have done is kept.",
        "what runs is stopped within seconds; dawn diff RUN has what it did",
    ),
    "pause": (
        "Let runs, or every run of a batch, wait.\n\nA run waits from its next call on; a call in hand is ended when "
        "it takes too long (DAWN_DRAIN_SOFT_S).",
        "a run waits from its next call on, see dawn status; dawn unpause lets it go on",
    ),
    "unpause": ("Let what was paused go on.", "what was paused goes on as soon as a worker is free"),
}
"""What each tells runs: its help, and what comes of it."""


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    for command in (approve, deny, answer, steer, budget):
        app.command(command.__name__)(command)
    for kind, (text, then) in SWITCHES.items():
        app.command(kind, help=text)(_switch(kind, then))


def approve(run: RunArgument, call: CallArgument = None, binding: Binding = "") -> None:
    """Let the call that a run asked about happen."""
    _answer(run, "approved", call=call, binding=binding)


def deny(
    run: RunArgument,
    call: CallArgument = None,
    reason: Annotated[str, typer.Option(help="What the model reads.")] = "",
    binding: Binding = "",
) -> None:
    """Refuse the call, or the question, that a run waits with.

    The run goes on without it.
    """
    _answer(run, "denied", call=call, binding=binding, reason=reason)


def answer(run: RunArgument, words: Annotated[str, typer.Argument(help="What the model reads.")]) -> None:
    """Answer the question of a run."""
    _answer(run, "answered", reason=words)


def steer(run: RunArgument, message: Annotated[str, typer.Argument(help="What the model reads next.")]) -> None:
    """Tell the model of a run something, before its next step."""
    from scheduler import control
    from scheduler.cli import edge
    from scheduler.runs import find

    where, archive = _place()
    found = find(archive, run, kinds=("run",))
    control.steer(archive, edge.hints(where), found.id, message, by=edge.actor(), at=edge.stamp())
    _follow(where, "the model reads it before its next step")
    terminal.emit(found.id)


def budget(
    name: EitherArgument,
    usd: Annotated[str, typer.Argument(metavar="USD", help="What the whole batch may spend, in all.")],
) -> None:
    """Say what a batch may spend in all.

    Runs that wait for its budget go on where it is more than they have spent.
    """
    from scheduler import budget as budgets
    from scheduler.cli import edge
    from scheduler.runs import find
    from worker.contract.errors import UsageFault
    from worker.contract.task import budget_microusd
    from worker.store.journal import Journal

    if budget_microusd(usd) is None:
        raise UsageFault(f"{usd!r} is no sum of money", hint="dollars, like 20 or 0.50")
    where, archive = _place()
    found = find(archive, name)
    batch = found.id if found.kind == "batch" else Journal(archive, found.id).task().batch
    made = budgets.allow(archive, edge.hints(where), batch, usd, by=edge.actor(), at=edge.stamp())
    terminal.say(f"batch {batch} may spend {made.text} in all")
    if made.spending is not None and made.spending.used_up:
        terminal.say(f"note: {made.spending.text} already, so nothing goes on")
    else:
        _follow(where, "what waits for it goes on")
    for run in made.runs:
        terminal.emit(run)


def _answer(run: str, given: Answer, *, call: str | None = None, binding: str = "", reason: str = "") -> None:
    from scheduler import approvals
    from scheduler.cli import edge
    from scheduler.runs import find

    where, archive = _place()
    found = find(archive, run, kinds=("run",))
    hints = edge.hints(where)
    made = approvals.answer(
        archive,
        hints,
        found.id,
        given,
        by=edge.actor(),
        at=edge.stamp(),
        call=call,
        binding=binding,
        reason=reason,
    )
    if hints is None:
        terminal.say("note: no stack is running; the run goes on when one starts")
    terminal.emit(f"{found.id} {made.call} {made.decision}")


def _switch(kind: MessageKind, then: str) -> Callable[..., None]:
    def switch(
        name: Names = None,
        batch: Batches = None,
        state: States = None,
        repo: Repos = None,
        label: Labels = None,
        limit: Limit = None,
    ) -> None:
        chosen = selection(batch, state, None, repo, label, limit)
        for run in _switched(name or [], chosen, kind, then):
            terminal.emit(run)

    return switch


def _switched(names: list[str], chosen: Selection, kind: MessageKind, then: str) -> list[str]:
    """The runs it concerns: those that have not ended."""
    from scheduler import control
    from scheduler.cli import edge
    from scheduler.runs import Found, find
    from scheduler.selection import in_batches, select
    from worker.contract.errors import ConflictFault, UsageFault

    if not names and not chosen.batches and not chosen.narrows:
        raise UsageFault(
            f"{kind} what?", hint="name runs or batches, or select some, such as with --batch or --label"
        )
    where, archive = _place()
    if chosen.narrows:
        told = [Found("run", view.task.run) for view in select(archive, chosen, names, only_open=True)]
    else:
        told = [find(archive, name) for name in names]
        told += [Found("batch", one) for one in in_batches(archive, chosen.batches) if chosen.batches]
    left = control.switch(archive, edge.hints(where), told, kind, by=edge.actor(), at=edge.stamp())
    if not left:
        which = f"{told[0].kind} {told[0].id} has ended" if len(told) == 1 else "nothing that has not ended is meant"
        raise ConflictFault(which, hint="see what there is: dawn ls")
    _follow(where, then)
    return left


def _follow(where: Settings, then: str) -> None:
    """then: what comes of it, for the person."""
    from scheduler.cli import edge

    terminal.say(then if edge.hints(where) is not None else f"no stack is running; when one starts, {then}")


def _place() -> tuple[Settings, Archive]:
    from scheduler.cli import edge

    where = edge.settings()
    return where, edge.archive(where)
