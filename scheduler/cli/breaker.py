"""Owns the command that shows a batch's breaker, and lets it count anew. Refuses to begin what it ended: that is what
`dawn retry` is for.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from scheduler.cli import terminal


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("breaker")(breaker)


def breaker(
    batch: Annotated[str, typer.Argument(metavar="BATCH", help="Its id, or its first letters.")],
    reset: Annotated[bool, typer.Option("--reset", help="Count only what ends from now on.")] = False,
    json: Annotated[bool, typer.Option("--json", help="As JSON on stdout.")] = False,
) -> None:
    """Tell whether too many targets of a batch have failed.

    Then nothing more of it is begun, and what was skipped stays so: after a reset, dawn retry --state skipped begins
    it anew. Exit code 7 while it is tripped.
    """
    from scheduler import runs
    from scheduler.cli import edge
    from scheduler.control import tell
    from scheduler.planning import why
    from worker.contract.errors import ConflictFault, ExitCode
    from worker.store.inbox import Control

    where = edge.settings()
    archive = edge.archive(where)
    found = runs.find(archive, batch, kinds=("batch",))
    views = runs.views(archive, runs.runs_in(archive, found)).found
    if not views or views[0].task.breaker is None:
        raise ConflictFault(f"batch {found.id} has no breaker", hint="its manifest gives it one: breaker: {}")
    if reset:
        tell(archive, edge.hints(where), found, "breaker", by=edge.actor(), at=edge.stamp())
    state = why.breaker_of(views, Control(archive, found.id).read())
    assert state is not None, "it has one"
    if json:
        terminal.emit_json("dawn.breaker/1", batch=found.id, **asdict(state))
    else:
        terminal.emit(state.text)
    if state.tripped:
        raise typer.Exit(ExitCode.BREAKER)
