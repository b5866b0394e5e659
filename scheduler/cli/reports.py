"""Owns the commands that tell of many runs: report. Refuses to change what a run is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scheduler.cli import terminal


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("report")(report)


def report(
    batch: Annotated[str, typer.Argument(metavar="BATCH", help="A batch's id, or its first letters.")],
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it there, as one HTML file.")] = None,
    store: Annotated[bool, typer.Option("--store", help="Keep it in the archive, under the next number.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Check every byte first, as `dawn verify` does.")] = False,
    json: Annotated[bool, typer.Option("--json", help="As JSON on stdout.")] = False,
) -> None:
    """Tell what became of a batch, the honest line first.

    Then what needs a person, what was delivered, failures that are alike, and what changed since the night before.
    It is Markdown. A running scheduler keeps one in the archive by itself when the batch ends or stands still.
    """
    from scheduler import pages, reports, runs
    from scheduler.cli import edge

    where = edge.settings()
    archive = edge.archive(where)
    name = runs.find(archive, batch, kinds=("batch",)).id
    made = reports.gather(archive, name, at=edge.stamp(), day=edge.spent_today(where), verify=verify)
    if store:
        kept = reports.store(archive, made)
        already = "" if kept.new else ", which was there already"
        terminal.say(f"report {kept.n} of {name}{already}")
    if html is not None:
        html.write_bytes(pages.html(made))
    if json:
        terminal.emit_json("dawn.report/1", archive=archive.url, report=made.model_dump(mode="json"))
    elif html is None:
        terminal.emit(pages.markdown(made).rstrip("\n"))
    if made.counts.get("damaged") or made.chain == "damaged":
        raise typer.Exit(11)
