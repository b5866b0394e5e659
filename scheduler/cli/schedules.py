"""Owns the commands that keep schedules: add, ls, next, run-now, pause, unpause, rm. Refuses to fire one: whoever
leads the schedulers does, also what a person wants now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from scheduler.cli import terminal

if TYPE_CHECKING:
    from datetime import datetime

    from scheduler.schedules.stored import Kind, State
    from worker.contract.settings import Settings
    from worker.store.archive import Archive

AsJson = Annotated[bool, typer.Option("--json", help="As JSON on stdout.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the schedule: its manifest's name.")]
NEXT_SHOWN = 5

schedule = typer.Typer(help="Batches that are submitted by the clock.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.add_typer(schedule, name="schedule")


@schedule.command("add")
def add(
    file: Annotated[str, typer.Argument(help="A manifest in YAML that has a schedule.")], json: AsJson = False
) -> None:
    """Register a manifest's schedule, or replace the one of its name.

    Repositories and scripts on this machine are packed now, and earlier batches and forges are asked for their
    targets now: each batch is made of that. Branches of others are looked up whenever a batch begins.

    What was done before and verified is reused, if not `reuse: false`; of a branch that is looked up nothing is.
    """
    from datetime import UTC, datetime
    from pathlib import Path

    from scheduler.cli import edge
    from scheduler.launch import batch_of
    from scheduler.manifests.reading import load, load_tools
    from scheduler.schedules import stored
    from worker.contract.errors import InvalidFault

    where = edge.settings()
    loaded = load(Path(file), where.limits, load_tools(where.tools))
    asked, name = loaded.manifest.schedule, loaded.manifest.name
    if asked is None:
        raise InvalidFault(f"{file} has no schedule", hint="like schedule: {cron: '30 1 * * *', zone: Europe/Berlin}")
    if loaded.manifest.start_at is not None:
        raise InvalidFault(f"{file} has start_at beside its schedule", hint="take one of them out")
    archive = edge.archive(where)
    batch = batch_of(loaded, archive, say=terminal.say)
    state, changed = stored.put(archive, name, asked, batch, by=edge.actor(), at=edge.stamp())
    if any(task.repo.source for task in batch.tasks):
        terminal.say("note: what lies on this machine was packed now; add it again for what changes there")
    if loaded.awaited:
        told = ", ".join(one.told for one in loaded.awaited)
        terminal.say(f"note: {told} named its targets now; add it again for what is new there")
    _announce(where)
    now = datetime.now(UTC)
    times = _next(state, now, 1)
    if json:
        terminal.emit_json("dawn.schedule/1", **_as_json(state, archive, now))
        return
    terminal.say(f"{'registered' if changed else 'there already'}: due next {times[0] if times else 'never'}")
    terminal.emit(name)


@schedule.command("ls")
def ls(json: AsJson = False) -> None:
    """List schedules: what became of the last due time, the next one, and how many were missed or left out."""
    from datetime import UTC, datetime

    from scheduler.cli import edge
    from scheduler.schedules import stored

    archive, now = edge.archive(edge.settings()), datetime.now(UTC)
    states = [state for name in stored.names(archive) if (state := stored.read(archive, name)).schedule]
    rows = [_as_json(state, archive, now) for state in states]
    if json:
        terminal.emit_json("dawn.schedules/1", archive=archive.url, schedules=rows)
        return
    if not rows:
        terminal.say("there is no schedule; register one with dawn schedule add FILE")
    table = [
        (
            row["name"],
            row["cron"],
            f"paused by {row['paused_by']}" if row["paused_by"] else "active",
            f"{row['last']['told']}: {row['last']['what']} {row['last']['batch']}".rstrip() if row["last"] else "-",
            row["next"][0]["told"] if row["next"] else "-",
            str(row["missed"]),
            str(row["overlapped"]),
        )
        for row in rows
    ]
    terminal.emit_table(("schedule", "cron", "state", "last", "next", "missed", "left out"), table)


@schedule.command("next")
def next_times(
    name: Name,
    number: Annotated[int, typer.Option("-n", min=1, max=1_000, help="How many.")] = NEXT_SHOWN,
    json: AsJson = False,
) -> None:
    """Say when a schedule is due next, in its zone and in UTC."""
    from datetime import UTC, datetime

    from scheduler.cli import edge
    from scheduler.schedules import stored

    state, now = stored.existing(edge.archive(edge.settings()), name), datetime.now(UTC)
    if json:
        terminal.emit_json("dawn.schedule.next/1", name=name, next=_next_json(state, now, number))
        return
    if state.paused_by:
        terminal.say(f"note: it is paused by {state.paused_by}; dawn schedule unpause {name}")
    for told in _next(state, now, number):
        terminal.emit(told)


@schedule.command("run-now")
def run_now(name: Name) -> None:
    """Have a batch submitted now, beside the due times, also of a paused schedule."""
    from scheduler.schedules import stored

    state = _tell(name, "run", "submitted as soon as a scheduler runs, and the batch before it has ended")
    at, _ = state.requests[-1]
    terminal.emit(stored.batch_id(name, state.template, at))


@schedule.command("pause")
def pause(name: Name) -> None:
    """Let no more batches be submitted; what was goes on."""
    _tell(name, "pause", "nothing is submitted until dawn schedule unpause, and nothing of that made up for")
    terminal.emit(name)


@schedule.command("unpause")
def unpause(name: Name) -> None:
    """Let a paused schedule go on, from now."""
    from datetime import UTC, datetime

    state = _tell(name, "unpause", "")
    terminal.say(f"due next {' '.join(_next(state, datetime.now(UTC), 1)) or 'never'}")
    terminal.emit(name)


@schedule.command("rm")
def rm(name: Name) -> None:
    """Remove a schedule. Its batches stay."""
    _tell(name, "remove", "removed; its batches stay")
    terminal.emit(name)


def _tell(name: str, kind: Kind, then: str) -> State:
    from scheduler.cli import edge
    from scheduler.schedules import stored

    where = edge.settings()
    archive = edge.archive(where)
    state = stored.existing(archive, name)
    told = stored.tell(archive, state, kind, by=edge.actor(), at=edge.stamp())
    if then:
        terminal.say(then)
    _announce(where)
    return told


def _announce(where: Settings) -> None:
    from scheduler import control
    from scheduler.cli import edge

    hints = edge.hints(where)
    control.poke(hints, control.SCHEDULES)
    if hints is None:
        terminal.say("note: no stack is running; schedules are kept while a scheduler runs")


def _next(state: State, now: datetime, number: int) -> list[str]:
    return [one["told"] for one in _next_json(state, now, number)]


def _next_json(state: State, now: datetime, number: int) -> list[dict[str, str]]:
    from itertools import islice

    asked = state.schedule
    found = [] if asked is None else list(islice(asked.due_after(now), number))
    return [_time(at, state) for at in found]


def _time(at: datetime, state: State) -> dict[str, str]:
    """A moment in the schedule's zone and in UTC."""
    from zoneinfo import ZoneInfo

    from worker.contract.zones import told, utc_text

    zone = state.schedule.zone if state.schedule is not None else "UTC"
    return {"utc": utc_text(at), "local": at.astimezone(ZoneInfo(zone)).isoformat(), "told": told(at, zone)}


def _as_json(state: State, archive: Archive, now: datetime) -> dict[str, Any]:
    from datetime import datetime

    from scheduler.schedules import stored

    found, asked = stored.history(archive, state.name, now), state.schedule
    last = found[-1] if found else None
    return {
        "name": state.name,
        **({} if asked is None else asked.model_dump(mode="json")),
        "paused_by": state.paused_by,
        "set_by": state.set_by,
        "template": state.template,
        "last": None
        if last is None
        else {**_time(datetime.fromisoformat(last.due), state), "what": last.what, "batch": last.batch},
        "next": [] if state.paused_by else _next_json(state, now, 1),
        "missed": sum(one.missed for one in found),
        "overlapped": sum(one.what == "overlap" for one in found),
    }
