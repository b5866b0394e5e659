"""Owns the commands that begin work: run, submit, demo. Refuses to do it: launch.py writes and watches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from scheduler.cli import terminal

if TYPE_CHECKING:
    from scheduler.enqueue import Batch
    from scheduler.launch import Watched
    from scheduler.manifests.reading import Loaded
    from worker.contract.events import Record
    from worker.contract.run import FailOn, Run
    from worker.contract.settings import Settings
    from worker.store.archive import Archive

AsJson = Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")]
Detach = Annotated[bool, typer.Option("--detach", help="Submit and leave; a running stack does the work.")]
NoWait = Annotated[
    bool,
    typer.Option("--no-wait", help="Leave when all that is left waits for a person (exit code 9) or for budget (6)."),
]


FailOnOption = Annotated[
    str,
    typer.Option(
        metavar="any|all|infra|never",
        help="Which failed runs make it exit with 4 or 5: any, only all of them, those of class infra.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("run")(run)
    app.command("submit")(submit)
    app.command("demo")(demo)


def run(
    repo: Annotated[str, typer.Option(help="URL, folder, git repository, or archive file (tar, zip).")],
    prompt: Annotated[str, typer.Argument(help="What the model is asked to do.")] = "",
    ref: Annotated[str | None, typer.Option(help="Branch, tag or commit; default: the repository's HEAD.")] = None,
    path: Annotated[str, typer.Option(help="Folder inside the repository to work in.")] = "",
    image: Annotated[str, typer.Option(help="One of ours, any that the engine has, or auto.")] = "python",
    setup: Annotated[str | None, typer.Option(help="Script run as root with network, once.")] = None,
    check: Annotated[
        list[str] | None, typer.Option(metavar="[NAME=]COMMAND", help="Must exit 0 when done; may be repeated.")
    ] = None,
    command: Annotated[
        list[str] | None, typer.Option(metavar="COMMAND", help="Runs before any model; may be repeated.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="none, scripted:FILE, replay:RUN, anthropic/NAME, openai/NAME.")
    ] = "none",
    limit: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="As in a manifest's limits; may be repeated.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Same key and same task: same run. Default: random.")] = None,
    secret: Annotated[str | None, typer.Option(metavar="NAME", help="DAWN_SECRET_NAME opens the repository.")] = None,
    on_ask: Annotated[
        str, typer.Option(metavar="park|deny|fail", help="What a call that needs a person does.")
    ] = "park",
    budget: Annotated[float | None, typer.Option(metavar="USD", help="What it may spend; then it waits.")] = None,
    no_wait: NoWait = False,
    detach: Detach = False,
    json: AsJson = False,
) -> None:
    """Run one task on one repository, to its end."""
    import json as encoder
    import secrets
    from pathlib import Path

    from scheduler.cli import edge
    from scheduler.launch import batch_of
    from scheduler.manifests.reading import COMMAND_LINE, load_tools, parse

    where = edge.settings()
    given = {"repo": repo, "path": path, "ref": ref, "secret": _secret(secret)}
    target = {name: value for name, value in given.items() if value is not None}
    data: dict[str, Any] = {
        "version": 1,
        "name": "run",
        "targets": [target],
        "task": {"prompt": prompt, "commands": command or [], "model": model},
        "environment": {"image": image, **({} if setup is None else {"setup": setup})},
        "checks": check or [],
        "limits": dict(limit_of(text) for text in limit or []),
        "on_ask": on_ask,
        **({} if budget is None else {"budget": {"usd": budget}}),
    }
    loaded = parse(
        encoder.dumps(data, indent=2) + "\n", COMMAND_LINE, Path.cwd(), where.limits, load_tools(where.tools)
    )
    archive = edge.archive(where)
    batch = batch_of(
        loaded,
        archive,
        say=terminal.say,
        key=key if key is not None else secrets.token_hex(8),
        lane="interactive",
    )
    go([batch], archive, where, detach=detach, wait=not no_wait, as_json=json)


def submit(
    file: Annotated[str, typer.Argument(help="A manifest in YAML.")],
    again: Annotated[
        bool, typer.Option("--again", help="A new batch, and nothing of earlier ones is reused.")
    ] = False,
    start_at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="Not before: '2026-12-01T02:00 Europe/Berlin'.")
    ] = None,
    fail_on: FailOnOption = "any",
    no_wait: NoWait = False,
    detach: Detach = False,
    json: AsJson = False,
) -> None:
    """Run a manifest's task on all its targets, to their end.

    The same again completes what is missing, and changes nothing else. A lock that dawn plan left says the commits.

    Work that was done before and verified is not done again: such a run ends at once as reused and names the other.
    """
    import secrets
    from pathlib import Path

    from scheduler.cli import edge
    from scheduler.launch import batch_of
    from scheduler.lock import beside
    from scheduler.manifests.reading import load, load_tools

    counted = _fail_on(fail_on)
    where = edge.settings()
    loaded = _at(load(Path(file), where.limits, load_tools(where.tools)), start_at)
    archive = edge.archive(where)
    key = secrets.token_hex(8) if again else ""
    batch = batch_of(loaded, archive, say=terminal.say, key=key, reuse=not again, lock=beside(Path(file)))
    if earlier := [one for one in archive.folders("batches/") if _name(one) == _name(batch.id) and one != batch.id]:
        terminal.say(
            f"note: {batch.id} differs from {earlier[-1]}, which has the same name; it is a batch of its own"
        )
    go([batch], archive, where, detach=detach, wait=not no_wait, as_json=json, fail_on=counted)


def _at(loaded: Loaded, start_at: str | None) -> Loaded:
    """The manifest with the time at which it shall start, which is told. Raises InvalidFault for one without a zone,
    and for a manifest that is submitted by its schedule."""
    from dataclasses import replace
    from datetime import UTC, datetime

    from worker.contract.errors import InvalidFault
    from worker.contract.zones import moment, told, utc_text

    if loaded.manifest.schedule is not None:
        raise InvalidFault(
            f"{loaded.name} has a schedule, by which it is submitted",
            hint=f"dawn schedule add {loaded.name}; then dawn schedule run-now {loaded.manifest.name} for one now",
        )
    if start_at is not None:
        at = moment(start_at).isoformat(timespec="milliseconds")
        loaded = replace(loaded, manifest=loaded.manifest.model_copy(update={"start_at": at}))
    if loaded.manifest.start_at is not None:
        terminal.say(f"its runs begin at {utc_text(datetime.fromisoformat(loaded.manifest.start_at))} or later")
    if (window := loaded.manifest.window) is not None and (until := window.closed_until(datetime.now(UTC))):
        terminal.say(f"its window is closed until {told(until, window.zone)}")
    return loaded


def demo() -> None:
    """Show everything once, with small repairs and no key.

    Five scripted models work on five repositories, with the real queue and in real containers.
    """
    import os
    import secrets

    from scheduler.cli import edge
    from scheduler.demo import scenarios
    from scheduler.launch import batch_of

    os.environ.setdefault("DAWN_STORE_IMAGES", "false")  # ours can be built anywhere, and a demonstration is brief
    where = edge.settings()
    archive = edge.archive(where)
    key = secrets.token_hex(8)
    batches = [
        batch_of(scenarios.load(name, where.limits), archive, say=lambda _: None, key=key)
        for name in scenarios.FORETOLD
    ]
    seen = _watch(batches, archive, where, wait=True)
    views = _tell(list(seen.runs), archive, as_json=False)
    for view in views:
        terminal.emit(f"\n{view.task.run} ({view.task.batch})")
        terminal.emit(scenarios.diff(archive, view) or scenarios.last_words(view))
    terminal.emit(
        f"\nThe archive lies in {archive.url}; read on with: dawn show {views[0].task.run}" if views else ""
    )
    wrong = scenarios.surprises(views)
    for line in wrong:
        terminal.say(f"not as foretold: {line}")
    raise typer.Exit(130 if seen.interrupted else 1 if wrong or len(views) < len(batches) else 0)


def go(
    batches: list[Batch],
    archive: Archive,
    where: Settings,
    *,
    detach: bool,
    as_json: bool,
    wait: bool = True,
    fail_on: FailOn = "any",
) -> None:
    """Submit the batches and end the command: at once, or when their runs have ended. fail_on: see exit_code."""
    from scheduler import launch
    from scheduler.cli import edge
    from worker.contract.errors import ExitCode
    from worker.contract.run import exit_code

    if detach:
        launch.detach(batches, archive, where, by=edge.actor(), at=edge.stamp(), say=terminal.say)
        names = [{"id": batch.id, "runs": [task.run for task in batch.tasks]} for batch in batches]
        if as_json:
            terminal.emit_json("dawn.submitted/1", batches=names)
        else:
            for batch in batches:
                terminal.emit(batch.id)
        raise typer.Exit(0)
    seen = _watch(batches, archive, where, wait=wait)
    _tell(list(seen.runs), archive, as_json=as_json)
    code = exit_code(seen.standing, held=seen.held, fail_on=fail_on)
    raise typer.Exit(int(ExitCode.INTERRUPTED if seen.interrupted else code))


def _watch(batches: list[Batch], archive: Archive, where: Settings, *, wait: bool) -> Watched:
    from scheduler import launch
    from scheduler.cli import edge, transcript

    def heard(record: Record, run: Run) -> None:
        text = transcript.short(record)
        if text:
            terminal.say(f"{record.run}  {text}")

    return launch.attend(
        batches, archive, where, by=edge.actor(), stamp=edge.stamp, say=terminal.say, heard=heard, wait=wait
    )


def _tell(runs: list[str], archive: Archive, *, as_json: bool) -> list[Any]:
    from scheduler.budget import spendings
    from scheduler.cli import read
    from scheduler.runs import views

    found = views(archive, runs).found
    read.tell(found, spendings(archive, found), archive, as_json=as_json)
    if not as_json:
        for view in found:
            terminal.say(f"see it: dawn show {view.task.run}")
    return found


def _name(batch: str) -> str:
    """A batch's name without the digest of what it asks."""
    return batch.rpartition("-")[0]


def limit_of(text: str) -> tuple[str, Any]:
    """Name and value of `name=value`. Raises UsageFault."""
    import json

    from worker.contract.errors import UsageFault

    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UsageFault(f"--limit {text!r} is not name=value", hint="like --limit steps=20")
    try:
        return name, json.loads(value.lower() if value.lower() in ("none", "null") else value)
    except ValueError:
        return name, None if value.lower() == "none" else value


def _fail_on(word: str) -> FailOn:
    from typing import get_args

    from worker.contract.errors import UsageFault
    from worker.contract.run import FailOn

    known: tuple[FailOn, ...] = get_args(FailOn)
    if found := [one for one in known if one == word]:
        return found[0]
    raise UsageFault(f"--fail-on takes {', '.join(known)}, not {word!r}")


def _secret(name: str | None) -> str | None:
    from worker.contract.errors import UsageFault
    from worker.contract.secret_name import ADVICE, RULE, is_secret_name

    if name is not None and not is_secret_name(name):
        raise UsageFault(f"--secret takes {RULE}", hint=f"{ADVICE} and pass --secret NAME")
    return name
