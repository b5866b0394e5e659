"""Owns the commands that carry things out of an archive and into it: export, import. Refuses to send out what its
record does not prove.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.cli import terminal
from scheduler.cli.start import AsJson

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scheduler.exports.chosen import Chosen

STDOUT = "-"


class Out(StrEnum):
    """What an export is written as."""

    SWEBENCH = "swebench"
    ATIF = "atif"
    JUNIT = "junit"
    JSONL = "jsonl"
    CSV = "csv"
    PATCHES = "patches"
    BUNDLE = "bundle"


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("export")(export)
    app.command("import")(bring)


def export(
    names: Annotated[list[str], typer.Argument(metavar="RUN|BATCH...", help="Ids, or their first letters.")],
    format: Annotated[Out, typer.Option("--format", help="What to write.")],
    out: Annotated[
        str, typer.Option("--out", metavar="FILE|DIR|-", help="Where to. Default: stdout, where it is one file.")
    ] = STDOUT,
    images: Annotated[bool, typer.Option("--images", help="Of a bundle: with images that no registry has.")] = False,
    damaged: Annotated[bool, typer.Option("--damaged", help="Take what can be read of damaged runs.")] = False,
    json: AsJson = False,
) -> None:
    """Write runs in a format of others.

    swebench, jsonl, csv and junit are one file; atif is one for each run, patches a folder or, as NAME.tar, a tar;
    bundle is a tar with all of the runs, which verify, show and fork can go on with elsewhere.
    """
    from scheduler.cli import edge
    from scheduler.exports import chosen as choosing
    from scheduler.exports import jsonl, junit, patches, swebench, table
    from worker.contract.errors import UsageFault

    if images and format is not Out.BUNDLE:
        raise UsageFault(f"--images is for bundles, not for {format}")
    if json and out == STDOUT:
        raise UsageFault("--json tells about a file", hint="name one with --out")
    chosen = choosing.choose(edge.archive(edge.settings()), names, damaged=damaged)
    for note in chosen.notes:
        terminal.say(f"note: {note}")
    told: dict[str, object] = {"format": str(format), "out": out, "runs": [view.task.run for view in chosen.views]}
    match format:
        case Out.BUNDLE:
            told |= _bundle(chosen, out, images=images, damaged=damaged)
        case Out.ATIF:
            _files(_trajectories(chosen), out, one=len(chosen.views) == 1)
        case Out.PATCHES:
            _files(patches.files(chosen), out)
        case Out.SWEBENCH:
            _file(swebench.lines(chosen), out)
        case Out.JUNIT:
            _file(junit.lines(chosen), out)
        case Out.JSONL:
            _file(jsonl.lines(chosen), out)
        case Out.CSV:
            _file(table.lines(chosen), out)
    if json:
        terminal.emit_json("dawn.exported/1", **told)


def bring(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What was exported.")],
    json: AsJson = False,
) -> None:
    """Put the objects of a bundle into the archive.

    All of it is proven first. Objects that are there already stay as they are; where one differs, nothing is written.
    """
    from scheduler.cli import edge
    from scheduler.imports import bundle
    from worker.store.bundle import SCHEME, Bundle

    archive = edge.archive(edge.settings())
    imported = bundle.bring_in(Bundle(f"{SCHEME}{file}"), archive)
    if json:
        terminal.emit_json(
            "dawn.imported/1", archive=archive.url, new=imported.new, known=imported.known, runs=imported.runs
        )
        return
    terminal.emit(f"{imported.new} objects are new, {imported.known} were there")
    for run in imported.runs:
        terminal.emit(run)


def _file(parts: Iterable[bytes], out: str) -> None:
    from scheduler.exports import staged

    if out == STDOUT:
        terminal.emit_raw(b"".join(parts))
        return
    with staged.file(Path(out)) as file:
        for part in parts:
            file.write(part)


def _files(files: Iterable[tuple[str, bytes]], out: str, *, one: bool = False) -> None:
    """one: there is only one, and its name does not matter."""
    from scheduler.exports import staged
    from worker.contract.errors import UsageFault

    if one:
        _file((content for _, content in files), out)
    elif out == STDOUT:
        raise UsageFault("these are several files", hint="name a folder with --out, or NAME.tar")
    elif out.endswith(".tar"):
        with staged.file(Path(out)) as file:
            staged.tarball(files, file)
    else:
        staged.folder(Path(out), files)


def _trajectories(chosen: Chosen) -> Iterator[tuple[str, bytes]]:
    from scheduler.exports import atif
    from scheduler.exports.words import encoded

    for run, document in atif.documents(chosen):
        yield f"{run}.json", encoded(document, indent=2) + b"\n"


def _bundle(chosen: Chosen, out: str, *, images: bool, damaged: bool) -> dict[str, object]:
    """Write it, and tell what it is."""
    import shutil
    import sys
    import tempfile

    from scheduler.exports import bundle, staged
    from worker.contract.errors import UsageFault
    from worker.store.bundle import Root, write

    if out == STDOUT and sys.stdout.isatty():
        raise UsageFault("a bundle is no text for a terminal", hint="name a file with --out")
    if not damaged:
        _refuse_damage(chosen)
    roots = [Root(kind=root.kind, id=root.id) for root in chosen.roots]
    index = bundle.index(chosen.archive, roots, chosen.runs, images=images)
    if out == STDOUT:
        with tempfile.TemporaryFile() as aside:
            sha256 = write(chosen.archive, index, aside)
            aside.seek(0)
            shutil.copyfileobj(aside, sys.stdout.buffer)
    else:
        with staged.file(Path(out)) as file:
            sha256 = write(chosen.archive, index, file)
    for key, _ in index.left_out:
        terminal.say(f"note: {key} is not inside; it goes with --images")
    terminal.say(f"SHA-256 {sha256}; keep it elsewhere, it proves the whole file")
    return {"sha256": sha256, "objects": len(index.objects), "left_out": [key for key, _ in index.left_out]}


def _refuse_damage(chosen: Chosen) -> None:
    """Raises IntegrityFault where anything that the runs name is not what was written."""
    from scheduler.verify import check
    from worker.contract.errors import IntegrityFault
    from worker.store.evidence import Tally

    tally = Tally()
    checked = (check(chosen.archive, root, tally) for root in chosen.roots)
    if problems := list(dict.fromkeys(problem for one in checked for problem in one.problems)):
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise IntegrityFault(f"{problems[0]}{more}", hint="take it as it lies: --damaged")
