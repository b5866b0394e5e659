"""Owns the commands that run a deployment: up, worker, scheduler, doctor, images. Refuses to touch an engine:
whatever needs one is started as a process of the data plane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.cli import terminal

if TYPE_CHECKING:
    import socket

    from scheduler.stack import Stack
    from worker.contract.settings import Settings

TEND_S = 0.5
IMAGES_PROGRAM = ("-m", "worker.sandbox.images")

images = typer.Typer(help="The images that tasks run in: build, save, load, list.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("up")(up)
    app.command("worker")(worker)
    app.command("scheduler")(scheduler)
    app.command("doctor")(doctor)
    app.add_typer(images, name="images")


def up(
    workers: Annotated[int, typer.Option(min=1, max=64, help="Worker processes.")] = 1,
    pages: Annotated[bool, typer.Option(help="Also show the archive in a browser, as dawn web does.")] = True,
) -> None:
    """Run the whole stack in the foreground until Ctrl-C.

    That is a Redis if none is set, a scheduler, workers, and the pages.
    """
    from scheduler.cli import edge
    from scheduler.launch import interrupts
    from scheduler.stack import Stack
    from worker.contract.errors import ConflictFault
    from worker.contract.redact import without_passwords

    where = edge.settings()
    with interrupts() as pressed, Stack(where, say=terminal.say, workers=workers) as stack:
        if not stack.owned:
            raise ConflictFault("a stack runs here already", hint="use it, or set DAWN_STATE_DIR to another folder")
        redis = without_passwords(str(stack.settings.redis_url))
        terminal.say(f"ready: archive {where.archive_url}, Redis {redis}; Ctrl-C ends it")
        _listening = _pages(where, stack) if pages else None  # it is closed when nobody holds it
        while not pressed.count:
            stack.tend()
            pressed.wake.wait(TEND_S)
        terminal.say("ending: runs in hand are given back (Ctrl-C again: at once)")


def _pages(where: Settings, stack: Stack) -> socket.socket | None:
    """Beside the stack, which runs with or without them. Their socket is ours: it outlives their process."""
    import sys

    from scheduler.cli import edge, web
    from scheduler.web.door import server
    from scheduler.web.door.tokens import access_of
    from worker.contract.errors import Fault

    try:
        keys = server.kept_keys(where.state_dir)
        access_of(where, keys, edge.actor())
        listening = web.listen(where, None)
        stack.add("pages", web.command(listening), needed=False, inherits=(listening.fileno(),))
    except (Fault, OSError) as fault:
        terminal.say(f"note: the stack runs without pages: {fault}")
        return None
    if sys.stdout.isatty():
        web.announce(where, listening, ("to read", keys.viewer), ("to decide", keys.reviewer))
    else:  # a log, where no token belongs
        terminal.say(f"pages at {web.address_of(where, listening)}; dawn web prints addresses that sign in")
    return listening


def worker(
    lanes: Annotated[
        str | None,
        typer.Option(help="What it serves, separated by commas: interactive, batch, deliver; or solo."),
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Runs at the same time; default: DAWN_WORKER_SLOTS.")
    ] = None,
) -> None:
    """Run one worker process.

    It works for the Redis of DAWN_REDIS_URL, or of the running stack.
    """
    import os
    import sys

    from scheduler.cli import edge

    os.environ.update(_environment(edge.settings()))
    chosen = [*([] if lanes is None else ["--lanes", lanes]), *([] if slots is None else ["--slots", str(slots)])]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "worker.main", *chosen])


def scheduler() -> None:
    """Run one scheduler process.

    A second one waits until the first is gone.
    """
    from scheduler.cli import edge
    from scheduler.service import serve

    serve(_connected(edge.settings()))


def doctor(json: Annotated[bool, typer.Option("--json", help="As JSON on stdout.")] = False) -> None:
    """Check everything a run needs, and say what to do.

    Engine, images, Redis, archive, clock, and keys.
    """
    from scheduler.cli import checkup, edge

    found = checkup.examine(edge.settings())
    if json:
        terminal.emit_json("dawn.doctor/1", checks=[finding.as_json() for finding in found])
    else:
        table = [(("ok" if f.ok else "FAIL"), f.name, f.detail, f.hint) for f in found]
        terminal.emit_table(("", "what", "found", "hint"), table)
    raise typer.Exit(checkup.exit_code(found))


@images.command("build")
def build(
    names: Annotated[list[str] | None, typer.Argument(help="Default: all.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Build anew, the base included: security updates.")] = False,
) -> None:
    """Build the images that the engine lacks."""
    _images("build", *(names or []), *(["--force"] if force else []))


@images.command("save")
def save(path: Annotated[str, typer.Argument(help="The tar file to write.")]) -> None:
    """Write all images into one file, for hosts without network."""
    _images("save", path)


@images.command("load")
def load(path: Annotated[str, typer.Argument(help="What `save` wrote.")]) -> None:
    """Bring the engine what `save` wrote."""
    _images("load", path)


@images.command("list")
def list_images(json: Annotated[bool, typer.Option("--json", help="As JSON on stdout.")] = False) -> None:
    """Name, reference, whether the engine holds it, what is inside."""
    import subprocess
    import sys

    if not json:
        _images("list")
    done = subprocess.run(
        [sys.executable, "-P", *IMAGES_PROGRAM, "list"], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.returncode)
    fields = ("name", "reference", "state", "summary")
    rows = [dict(zip(fields, line.split("\t"), strict=False)) for line in done.stdout.splitlines()]
    terminal.emit_json("dawn.images/1", images=rows)


def _images(*arguments: str) -> None:
    import os
    import sys

    os.execv(sys.executable, [sys.executable, "-P", *IMAGES_PROGRAM, *arguments])


def _connected(where: Settings) -> Settings:
    from scheduler.stack import connected
    from worker.contract.errors import UsageFault

    found = connected(where)
    if found.redis_url is None:
        raise UsageFault("there is no Redis to listen to", hint="set DAWN_REDIS_URL, or start `dawn up`")
    return found


def _environment(where: Settings) -> dict[str, str]:
    found = _connected(where)
    return {"DAWN_REDIS_URL": str(found.redis_url), "DAWN_ARCHIVE": found.archive_url}
