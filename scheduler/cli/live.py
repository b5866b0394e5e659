"""Owns the commands that show what goes on at this moment: watch, queue. Refuses to change anything."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.cli import terminal

if TYPE_CHECKING:
    from scheduler.reports.board import Board
    from scheduler.watch import Watch

POLL_S = 1.0


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("watch")(watch)
    app.command("queue")(queue)


def watch(
    batch: Annotated[
        str | None,
        typer.Argument(metavar="[BATCH]", help="Its id, or its first letters; default: all that are open."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Show it as it is now, and leave.")] = False,
    json: Annotated[bool, typer.Option("--json", help="With --once: as JSON on stdout.")] = False,
) -> None:
    """Watch batches until they end, and leave with their exit code.

    Counts, money, time left, what each running task is at, and why others wait. In a pipe: a line for each change.
    """
    from scheduler import runs
    from scheduler.cli import edge
    from scheduler.watch import Watch
    from worker.contract.errors import NotFoundFault, UsageFault

    if json and not once:
        raise UsageFault("--json needs --once", hint="dawn logs RUN -f --json follows a run")
    where = edge.settings()
    archive = edge.archive(where)
    if batch is not None:
        batches = [runs.find_newest(archive, batch, kinds=("batch",)).id]
    elif not (batches := sorted(runs.open_batches(archive))):
        raise NotFoundFault("no batch is open", hint="see what there was: dawn status")
    seen = Watch(archive, edge.hints(where), where, batches)
    seen.look()
    if json:
        terminal.emit_json("dawn.watch/1", archive=archive.url, batches=[one.as_json() for one in seen.boards])
    elif once:
        terminal.emit("\n".join(_lines(seen.boards)))
    if not once:
        (_live if sys.stdout.isatty() else _piped)(seen)
        raise typer.Exit(seen.exit_code)


def queue(json: Annotated[bool, typer.Option("--json", help="As JSON on stdout.")] = False) -> None:
    """Tell what stands between runs and workers.

    Lanes and their doorbells, workers and their slots, leases, and accounts that a provider told to wait.
    """
    from scheduler import queues
    from scheduler.cli import edge
    from scheduler.reports.rows import duration
    from worker.contract.errors import HintsFault

    where = edge.settings()
    hints = edge.hints(where)
    if hints is None:
        raise HintsFault("no stack is running here", hint="start one: dawn up; or set DAWN_REDIS_URL")
    found = queues.queues(edge.archive(where), hints)
    if json:
        terminal.emit_json("dawn.queue/1", **found.as_json())
        return
    terminal.emit_table(("lane", "doorbells", "slots", "free"), [tuple(map(str, row)) for row in found.lanes])
    rows = [(one.name, ", ".join(one.lanes), str(one.slots), str(one.free)) for one in found.workers]
    terminal.emit_table(("worker", "lanes", "slots", "free"), rows)
    led = "a scheduler leads" if found.scheduler else "no scheduler leads: nothing is rung"
    terminal.emit(f"{found.open} open runs, {len(found.leases)} in hand; {led}")
    if found.leaving:
        terminal.emit(f"{found.leaving} of them at workers that take nothing more: they drain, or have died")
    for account, left_s in found.holds.items():
        terminal.emit(f"account {account} waits for {duration(left_s)}, as its provider said")


def _lines(boards: list[Board]) -> list[str]:
    return [line for board in boards for line in board.lines]


def _live(seen: Watch) -> None:
    """Drawn again in place, as high as the terminal; the last picture stays."""
    import time

    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(markup=False, highlight=False, emoji=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            picture = "\n".join(terminal.plain(line) for line in _lines(seen.boards))
            live.update(Text(picture, no_wrap=True, overflow="ellipsis"), refresh=True)
            if seen.ended:
                return
            time.sleep(seen.pause_s(POLL_S))
            for _ in seen.look():
                pass


def _piped(seen: Watch) -> None:
    import time

    from scheduler.cli import transcript

    told: list[object] = []
    while True:
        if (now := [(board.counts, board.spent_usd, board.limit_usd, board.ended) for board in seen.boards]) != told:
            terminal.emit("; ".join(board.first for board in seen.boards))
            told = list(now)  # not the time that is left: it is another one with each look
        if seen.ended:
            return
        time.sleep(seen.pause_s(POLL_S))
        for record in seen.look():
            if text := transcript.short(record):
                terminal.emit(f"{record.run}  {text}")
