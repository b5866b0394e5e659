"""Owns the commands over many runs that are there: ls, retry. Refuses to change what has ended: a retry is a new run
beside it.
"""

from __future__ import annotations

from typing import Annotated

import typer

from scheduler.cli import terminal
from scheduler.cli.selecting import Batches, Classes, Labels, Limit, Names, Repos, States, selection

AsJson = Annotated[bool, typer.Option("--json", help="As JSON on stdout.")]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("ls")(ls)
    app.command("retry")(retry)


def ls(
    name: Names = None,
    batch: Batches = None,
    state: States = None,
    cls: Classes = None,
    repo: Repos = None,
    label: Labels = None,
    limit: Limit = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Every batch, not only the newest and the open; also what a retry or a better candidate stands for.",
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """List runs of any batches, by what they are.

    Of each target the run that counts. With nothing selected the exit code is 10.
    """
    from scheduler import budget
    from scheduler.cli import edge, read
    from scheduler.runs import recent
    from scheduler.selection import select
    from worker.contract.errors import NotFoundFault

    archive = edge.archive(edge.settings())
    chosen = selection(batch, state, cls, repo, label, limit)
    newest, others = ([], 0) if name or batch or everything else recent(archive)
    within = None if everything else [entry.batch for entry in newest]
    found = select(archive, chosen, name or [], every=everything, within=within)
    if others:
        terminal.say(
            f"note: batches that are older and have ended were left out ({others}); with them: dawn ls --all"
        )
    if not found:
        raise NotFoundFault("no run is selected", hint="list all: dawn ls --all")
    asked = {view.task.batch: view.task for view in found}
    budgets = {of: money for of, task in asked.items() if (money := budget.spending(archive, task)) is not None}
    read.tell(found, budgets, archive, as_json=json)


def retry(
    name: Names = None,
    batch: Batches = None,
    state: States = None,
    cls: Classes = None,
    repo: Repos = None,
    label: Labels = None,
    limit: Limit = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Those that failed; so without --state and --class.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Do the work of runs that have ended once more.

    Each becomes a new run of the same target in the same batch; the old one is kept. Nothing is reused.

    Of a batch those that failed are meant, if nothing else is said. A run that is named is meant however it ended.
    """
    from scheduler import retry as retries
    from scheduler.cli import edge
    from worker.contract.errors import UsageFault

    if failed and (state or cls):
        raise UsageFault("--failed says what --state and --class say", hint="give one of them")
    where = edge.settings()
    archive, hints = edge.archive(where), edge.hints(where)
    chosen = selection(batch, state, cls, repo, label, limit)
    made = retries.again(archive, hints, name or [], chosen, by=edge.actor(), at=edge.stamp())
    if hints is None:
        terminal.say("note: no stack is running; the runs start with `dawn up`")
    if json:
        rows = [{"batch": one, **member.model_dump(mode="json")} for one, new in made.items() for member in new]
        terminal.emit_json("dawn.retried/1", archive=archive.url, runs=rows)
        return
    for member in (member for new in made.values() for member in new):
        terminal.emit(member.run)
