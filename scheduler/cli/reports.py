"""Owns the commands that tell of several runs: report, compare. Refuses to change what a run is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.cli import terminal

if TYPE_CHECKING:
    from worker.store.archive import Archive

COMPARED = 8
"""Runs side by side: a terminal is not wider."""


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("report")(report)
    app.command("compare")(compare)


def report(
    batch: Annotated[str, typer.Argument(metavar="BATCH", help="A batch's id, or its first letters.")],
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it there, as one HTML file.")] = None,
    static: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write its pages there, as files to open from disk.")
    ] = None,
    store: Annotated[bool, typer.Option("--store", help="Keep it in the archive, under the next number.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Check every byte first, as `dawn verify` does.")] = False,
    json: Annotated[bool, typer.Option("--json", help="As JSON on stdout.")] = False,
) -> None:
    """Tell what became of a batch, the honest line first.

    Then what needs a person, what was delivered, failures that are alike, and what changed since the night before.
    It is Markdown. A running scheduler keeps one in the archive by itself when the batch ends or stands still.
    --static makes a folder of all pages of the batch and its runs instead, which needs no server and no script; a
    folder that it made before is replaced.
    """
    from scheduler import runs
    from scheduler.cli import edge
    from scheduler.reports import kept, pages
    from worker.contract.errors import UsageFault

    where = edge.settings()
    archive = edge.archive(where)
    name = runs.find_newest(archive, batch, kinds=("batch",)).id
    if static is not None:
        if store or verify or html is not None:
            raise UsageFault("--static stands alone", hint=f"dawn report {batch} --static {static}")
        _static(archive, name, static, json)
        return
    made = kept.gather(archive, name, at=edge.stamp(), day=edge.spent_today(where), verify=verify)
    if store:
        stored = kept.store(archive, made)
        already = "" if stored.new else ", which was there already"
        terminal.say(f"report {stored.n} of {name}{already}")
    if html is not None:
        html.write_bytes(pages.html(made))
    if json:
        terminal.emit_json("dawn.report/1", archive=archive.url, report=made.model_dump(mode="json"))
    elif html is None:
        terminal.emit(pages.markdown(made).rstrip("\n"))
    if made.counts.get("damaged") or made.chain == "damaged":
        raise typer.Exit(11)


def _static(archive: Archive, batch: str, place: Path, json: bool) -> None:
    import secrets
    from dataclasses import asdict

    from scheduler.web.door.access import Access
    from scheduler.web.render import size
    from scheduler.web.seen import Seen
    from scheduler.web.site import Site
    from scheduler.web.static import Folder

    done = Folder(Site(archive, Seen(archive), Access(secrets.token_bytes(32))), batch).write(place)
    first = place.resolve() / "index.html"
    if json:
        terminal.emit_json("dawn.static/1", archive=archive.url, file=str(first), **asdict(done))
        return
    terminal.emit(str(first))
    terminal.say(f"{done.pages:,} pages, {size(done.bytes)}, as of now; open {first.as_uri()}")
    if done.left_out:
        rest = f", and {len(done.left_out) - 1} more named in left-out.html" if done.left_out[1:] else ""
        terminal.say(f"note: not all has room; the rest is in `{done.left_out[0]}`{rest}")


def compare(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN RUN...", help="Two to eight ids, or their first letters.")
    ],
    json: Annotated[bool, typer.Option("--json", help="As JSON on stdout.")] = False,
) -> None:
    """Set runs side by side: outcome, checks, cost, patches.

    Of each, where its way parts from that of the first, and what of its patch differs.
    """
    from dataclasses import asdict

    from scheduler.cli import edge
    from scheduler.reports import compare as comparing
    from scheduler.reports import rows
    from scheduler.runs import find
    from worker.contract.errors import UsageFault

    if not 2 <= len(runs) <= COMPARED:
        raise UsageFault(f"compare takes 2 to {COMPARED} runs", hint="dawn compare RUN RUN")
    archive = edge.archive(edge.settings())
    sides = [comparing.side(archive, find(archive, one, kinds=("run",)).id) for one in runs]
    first, *others = sides
    ways = [(side, comparing.parting(first, side), comparing.patches(first, side)) for side in others]
    if json:
        told = [{**rows.row(side.view), **comparing.as_json(side)} for side in sides]
        differs = [
            {"run": side.view.task.run, "parting": part and asdict(part), "same_patch": not lines, "patches": lines}
            for side, part, lines in ways
        ]
        terminal.emit_json("dawn.compare/1", archive=archive.url, runs=told, against_the_first=differs)
        return
    terminal.emit_table(("", *(side.view.task.run for side in sides)), comparing.table(sides))
    for side, part, lines in ways:
        terminal.emit(f"{side.view.task.run} against {first.view.task.run}")
        if part is None:
            terminal.emit("  did the same, step by step")
        else:
            terminal.emit(f"  their ways part at step {part.step}\n    first: {part.first}\n    other: {part.other}")
        terminal.emit("  their patches are equal" if not lines else "\n".join(lines))
