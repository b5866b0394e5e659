"""Owns the commands with which a person has a say in runs: approve, deny, answer, steer, cancel, pause, unpause,
budget.
Refuses to act on them: what is said is in the archive when the command returns, and the run or the scheduler reads it
there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.cli import terminal

if TYPE_CHECKING:
    from scheduler.approvals import Answer
    from scheduler.runs import Found
    from worker.contract.events import MessageKind
    from worker.contract.settings import Settings
    from worker.store.archive import Archive

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or its first letters.")]
EitherArgument = Annotated[str, typer.Argument(metavar="RUN|BATCH", help="An id, or its first letters.")]
CallArgument = Annotated[str | None, typer.Argument(help="The call that asked. Default: whatever the run asks.")]
Binding = Annotated[
    str, typer.Option(help="Only for this digest of the call, as dawn show has it; its first digits do.")
]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    for command in (approve, deny, answer, steer, cancel, pause, unpause, budget):
        app.command(command.__name__)(command)


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
    from scheduler.runs import find
    from worker.contract.errors import ConflictFault
    from worker.store.journal import Journal

    where, archive = _place()
    found = find(archive, run, kinds=("run",))
    if Journal(archive, found.id).task().model == "none":
        raise ConflictFault(f"run {found.id} has no model that could read it")
    _tell(archive, where, found, "message", text=message, then="the model reads it before its next step")
    terminal.emit(found.id)


def cancel(name: EitherArgument) -> None:
    """Stop a run, or every run of a batch. What it has done is kept."""
    _switch(name, "cancel", "what runs is stopped within seconds; dawn diff RUN has what it did")


def pause(name: EitherArgument) -> None:
    """Let a run, or every run of a batch, wait.

    It waits from its next call on; a call in hand is ended when it takes too long (DAWN_DRAIN_SOFT_S).
    """
    _switch(name, "pause", "a run waits from its next call on, see dawn status; dawn unpause lets it go on")


def unpause(name: EitherArgument) -> None:
    """Let what was paused go on."""
    _switch(name, "unpause", "what was paused goes on as soon as a worker is free")


def budget(
    name: EitherArgument,
    usd: Annotated[str, typer.Argument(metavar="USD", help="What the whole batch may spend, in all.")],
) -> None:
    """Say what a batch may spend in all.

    Runs that wait for its budget go on where it is more than they have spent.
    """
    from scheduler import budget as budgets
    from scheduler.runs import Found, find
    from worker.contract.errors import UsageFault
    from worker.contract.task import budget_microusd, budget_text
    from worker.store.journal import Journal

    allowed = budget_microusd(usd)
    if allowed is None:
        raise UsageFault(f"{usd!r} is no sum of money", hint="dollars, like 20 or 0.50")
    where, archive = _place()
    found = find(archive, name)
    if found.kind == "run":
        found = Found("batch", Journal(archive, found.id).task().batch)
    left = _left(archive, found)
    task = Journal(archive, left[0]).task()
    text = budget_text(allowed)
    _tell(archive, where, found, "budget", text=text, then=f"batch {found.id} may spend {text} in all")
    money = budgets.spending(archive, task)
    if money is not None and money.used_up:
        terminal.say(f"note: {money.text} already, so nothing goes on")
    else:
        terminal.say("what waits for it goes on")
    for run in left:
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


def _switch(name: str, kind: MessageKind, then: str) -> None:
    """Print the runs it concerns: those that have not ended."""
    from scheduler.runs import find

    where, archive = _place()
    found = find(archive, name)
    left = _left(archive, found)
    _tell(archive, where, found, kind, then=then)
    for run in left:
        terminal.emit(run)


def _left(archive: Archive, found: Found) -> list[str]:
    """Those that have not ended. Raises ConflictFault when all have."""
    from scheduler import runs
    from worker.contract.errors import ConflictFault

    marked = {key.removeprefix("open/") for key in archive.list("open/")}
    left = [run for run in runs.runs_in(archive, found) if run in marked]
    if not left:
        raise ConflictFault(f"{found.kind} {found.id} has ended", hint=f"see it: dawn status {found.id}")
    return left


def _tell(archive: Archive, where: Settings, to: Found, kind: MessageKind, *, then: str, text: str = "") -> None:
    """then: what comes of it, for the person."""
    from scheduler import control
    from scheduler.cli import edge

    hints = edge.hints(where)
    control.tell(archive, hints, to, kind, by=edge.actor(), at=edge.stamp(), text=text)
    terminal.say(then)
    if hints is None:
        terminal.say("note: no stack is running; it counts when one starts")


def _place() -> tuple[Settings, Archive]:
    from scheduler.cli import edge

    where = edge.settings()
    return where, edge.archive(where)
