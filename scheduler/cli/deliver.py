"""Owns the commands with which a person has a say in what becomes of a patch: review, deliver. Refuses to push: a
worker that holds the token does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.cli import terminal

if TYPE_CHECKING:
    from scheduler.runs import View

AsJson = Annotated[bool, typer.Option("--json", help="As JSON on stdout.")]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("review")(review)
    app.command("deliver")(deliver)


def review(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or its first letters.")],
    approve: Annotated[
        bool | None,
        typer.Option("--approve/--reject", help="Whether its patch may be delivered.", show_default=False),
    ] = None,
    comment: Annotated[str, typer.Option(help="Why, for whoever reads the audit.")] = "",
    patch: Annotated[
        str, typer.Option(help="Only if it is the patch with this digest, as dawn show has it; first digits do.")
    ] = "",
    json: AsJson = False,
) -> None:
    """Approve or reject the patch of a run that has ended.

    A batch with `when: approved` delivers what is approved; what is rejected is never delivered.
    """
    from scheduler import runs
    from scheduler.cli import edge
    from scheduler.deliveries import reviews
    from worker.contract.errors import UsageFault
    from worker.store.journal import Journal

    if approve is None:
        raise UsageFault("say --approve or --reject")
    where = edge.settings()
    archive = edge.archive(where)
    name = runs.find(archive, run, kinds=("run",)).id
    made = reviews.review(
        archive,
        edge.hints(where),
        Journal(archive, name).load(),
        "approved" if approve else "rejected",
        by=edge.actor(),
        at=edge.stamp(),
        comment=comment,
        patch=patch,
    )
    if json:
        terminal.emit_json("dawn.review/1", run=name, review=made.model_dump(mode="json"))
    else:
        terminal.emit(f"{name} {made.decision} patch {made.patch[:12]}")


def deliver(
    word: Annotated[str, typer.Argument(metavar="RUN|BATCH", help="An id, or its first letters.")],
    json: AsJson = False,
) -> None:
    """Deliver the patch of a run now, or those of a batch.

    Whatever its verdict is: only a rejected patch is not. Once more, where a delivery failed or its pull request was
    closed. Of a batch it is the runs that stand for their targets.
    """
    from scheduler import runs
    from scheduler.cli import edge
    from scheduler.deliveries import reviews
    from worker.contract.delivered import patch_of
    from worker.contract.errors import ConflictFault

    where = edge.settings()
    archive, hints = edge.archive(where), edge.hints(where)
    found = runs.find(archive, word)
    views = runs.views(archive, runs.runs_in(archive, found)).found
    if found.kind == "batch":
        views = [view for view in runs.standing(views) if patch_of(view.run) is not None and not _is_there(view)]
        if not views:
            raise ConflictFault(f"batch {found.id} has nothing left to deliver", hint=f"dawn status {found.id}")
    refused: list[ConflictFault] = []
    asked: list[str] = []
    for view in views:
        try:
            reviews.ask(archive, hints, view.task, view.run, by=edge.actor(), at=edge.stamp())
            asked.append(view.task.run)
        except ConflictFault as fault:
            refused.append(fault)
    if refused and not asked:
        raise refused[0]
    for why in refused:
        terminal.say(f"note: {why}")
    if hints is None:
        terminal.say("note: no stack is running; it happens when one starts, with DAWN_DELIVER and the token")
    if json:
        terminal.emit_json("dawn.deliver/1", runs=asked)
        return
    for run in asked:
        terminal.emit(run)


def _is_there(view: View) -> bool:
    """Whether its pull request is open or merged already."""
    return view.after is not None and view.after.delivery.state in ("draft", "pr", "merged")
