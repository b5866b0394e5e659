"""Owns the commands for what an archive keeps: verify, fork, rebuild, gc. Refuses to change a run that is there: a
fork is a new one, and gc removes whole what has expired.
"""

from __future__ import annotations

from typing import Annotated

import typer

from scheduler.cli import terminal
from scheduler.cli.start import AsJson, Detach

DAY_S = 86400
ANSWER_S = 15.0
ANSWER_POLL_S = 0.1
PROBLEMS_SHOWN = 50


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("verify")(verify)
    app.command("fork")(fork)
    app.command("rebuild")(rebuild)
    app.command("gc")(gc)


def verify(
    name: Annotated[
        str, typer.Argument(metavar="RUN|BATCH|FILE", help="An id, or its first letters; or a bundle's file.")
    ],
    json: AsJson = False,
) -> None:
    """Recompute every hash of a run, a batch or a bundle.

    What is wrong is named, and the exit code is 11.
    """
    from scheduler.cli import edge
    from scheduler.imports.bundle import prove
    from scheduler.runs import find
    from scheduler.verify import check
    from worker.contract.errors import ExitCode
    from worker.store import bundle
    from worker.store.archive import Archive

    sealed = bundle.opened(name)
    archive: Archive = sealed or edge.archive(edge.settings())
    if sealed is not None:
        what, checked = {"bundle": str(sealed.path)}, prove(sealed)
    else:
        found = find(archive, name)
        what, checked = {found.kind: found.id}, check(archive, found)
    tally = checked.tally
    if json:
        tails = {run: {"seq": seq, "hash": line_hash} for run, (seq, line_hash) in tally.tails.items()}
        counts = {"segments": tally.segments, "events": tally.records, "objects": len(tally.said)}
        terminal.emit_json(
            "dawn.verify/1",
            archive=archive.url,
            **what,
            **counts,
            bytes=tally.bytes,
            tails=tails,
            problems=checked.problems,
        )
    else:
        for run, (seq, line_hash) in tally.tails.items():
            terminal.emit(f"{run}  {seq + 1} segments, the last line has the hash {line_hash or 'of nothing sound'}")
        terminal.emit(
            f"checked {len(checked.runs)} runs: {tally.segments} segments with {tally.records} events, "
            f"{len(tally.said)} objects of {tally.bytes:,} bytes"
        )
        for problem in checked.problems[:PROBLEMS_SHOWN]:
            terminal.emit(f"WRONG  {problem}")
        if len(checked.problems) > PROBLEMS_SHOWN:
            terminal.emit(f"and {len(checked.problems) - PROBLEMS_SHOWN} more")
        for key, _ in sealed.index.left_out if sealed is not None else ():
            terminal.say(f"note: {key} was left out, and is not checked")
        terminal.emit("damaged" if checked.problems else "sound")
    raise typer.Exit(int(ExitCode.INTEGRITY if checked.problems else ExitCode.OK))


def fork(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or its first letters.")],
    at: Annotated[int | None, typer.Option(metavar="STEP", min=0, help="Default: the last step.")] = None,
    message: Annotated[str, typer.Option(help="What you say to the model there.")] = "",
    limit: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="As in a manifest's limits; may be repeated.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Another model; needs --allow model.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Another task text; needs --allow prompt.")] = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="TOOL", help="A tool not to offer; needs --allow tools.")
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="model|prompt|tools", help="Accept this difference; may be repeated.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Same key and same fork: same run. Default: random.")] = None,
    repo: Annotated[str | None, typer.Option(hidden=True)] = None,
    ref: Annotated[str | None, typer.Option(hidden=True)] = None,
    image: Annotated[str | None, typer.Option(hidden=True)] = None,
    setup: Annotated[str | None, typer.Option(hidden=True)] = None,
    detach: Detach = False,
    json: AsJson = False,
) -> None:
    """Go on from a step of a run, as a new run.

    The old one stays as it is. Limits count its steps too.
    """
    import secrets
    from pathlib import Path

    from scheduler import fork as forks
    from scheduler.cli import edge, start
    from scheduler.manifests.reading import script_of
    from scheduler.runs import find
    from worker.contract.errors import UsageFault
    from worker.contract.fork import LAST

    for option, value in (("repo", repo), ("ref", ref), ("image", image), ("setup", setup)):
        if value is not None:
            raise UsageFault(f"with another {option} it is not a fork", hint="begin anew: dawn run, dawn submit")
    unknown = sorted({*(allow or ())} - {*forks.ALLOWABLE})
    if unknown:
        raise UsageFault(f"--allow {unknown[0]!r} is unknown", hint=f"known are {', '.join(forks.ALLOWABLE)}")
    where = edge.settings()
    archive = edge.archive(where)
    wish = forks.Wish(
        step=LAST if at is None else at,
        message=message,
        limits=dict(start.limit_of(text) for text in limit or []),
        model=model,
        script=None if model is None else script_of(model, Path.cwd()),
        prompt=prompt,
        without_tools=tuple(without or ()),
        allowed=frozenset(allow or ()),
    )
    parent = find(archive, run, kinds=("run",)).id
    made = forks.fork(archive, parent, wish, key=key if key is not None else secrets.token_hex(8))
    for note in made.notes:
        terminal.say(f"note: {note}")
    terminal.say(f"{made.batch.tasks[0].run} goes on from step {made.step} of {parent}")
    start.go([made.batch], archive, where, detach=detach, as_json=json)


def rebuild() -> None:
    """Have the scheduler read the archive anew.

    It does so by itself when Redis is empty.
    """
    import time

    from scheduler.cli import edge
    from worker.contract.errors import ConflictFault, HintsFault

    hints = edge.hints(edge.settings())
    if hints is None:
        raise ConflictFault("no stack is running", hint="one that starts reads the archive anew: dawn up")
    hints.forget()
    deadline = time.monotonic() + ANSWER_S
    while hints.epoch() is None:
        if time.monotonic() > deadline:
            raise HintsFault(
                "Redis was cleared, but no scheduler took note of it", hint="is one running? dawn doctor"
            )
        time.sleep(ANSWER_POLL_S)
    terminal.say("the scheduler reads the archive anew; living attempts have one lease time to report")


def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    older_than: Annotated[
        float | None, typer.Option(metavar="DAYS", min=0, help="Batches that ended so long ago; default: 90.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Remove what has expired; kept runs lose nothing.

    Batches that ended long ago, objects that nothing names, and unfinished uploads.
    """
    from datetime import UTC, datetime

    from scheduler.cli import edge
    from scheduler.gc import KINDS, collect

    where = edge.settings()
    archive = edge.archive(where)
    days = where.retention_days if older_than is None else older_than
    garbage = collect(archive, keep_s=days * DAY_S, now=datetime.now(UTC), dry_run=dry_run)
    if json:
        terminal.emit_json(
            "dawn.gc/1",
            archive=archive.url,
            dry_run=dry_run,
            removed=garbage.found,
            uploads=garbage.uploads,
            notes=garbage.notes,
        )
        return
    for note in garbage.notes:
        terminal.say(f"note: {note}")
    if dry_run:
        for name in (name for kind in KINDS for name in garbage.found[kind]):
            terminal.emit(name)
        if not any(garbage.found.values()):
            terminal.say("nothing would go")
        return
    rows = [(kind, str(len(garbage.found[kind]))) for kind in KINDS]
    terminal.emit_table(("what", "removed"), [*rows, ("unfinished uploads", str(garbage.uploads))])
