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
REPOS_SHOWN = 5


class Out(StrEnum):
    """What an export is written as."""

    SWEBENCH = "swebench"
    ATIF = "atif"
    JUNIT = "junit"
    JSONL = "jsonl"
    CSV = "csv"
    PATCHES = "patches"
    BUNDLE = "bundle"


class In(StrEnum):
    """What an import is read as."""

    BUNDLE = "bundle"
    SWEBENCH = "swebench"
    ISSUES = "issues"


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
    file: Annotated[Path, typer.Argument(metavar="FILE|DIR", help="What was exported, here or by others.")],
    format: Annotated[In, typer.Option("--format", help="What it is.")] = In.BUNDLE,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR|NAME.yaml", help="Where the manifest that is made goes.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Of the manifest: who works on it.")] = None,
    repo: Annotated[str | None, typer.Option(help="Of issues: their repository, where they do not tell.")] = None,
    json: AsJson = False,
) -> None:
    """Bring runs into the archive, or tasks into a manifest.

    bundle: all of it is proven first; what is there already stays, and where it differs nothing is written. swebench,
    issues: makes a manifest, and shows the agent nothing but what is wrong; the rest of each instance goes into a
    file for whoever judges afterwards.
    """
    from worker.contract.errors import UsageFault

    if format is In.BUNDLE:
        if out or model or repo:
            raise UsageFault("--out, --model and --repo are for tasks", hint="name a --format, such as swebench")
        _bring_bundle(file, json=json)
        return
    if out is None or model is None:
        raise UsageFault("a manifest needs --out and --model", hint="--out fleet --model anthropic/NAME")
    _bring_tasks(file, format, out, model, repo, json=json)


def _bring_bundle(file: Path, *, json: bool) -> None:
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
    terminal.say("note: later runs of the same repository, commit and setup start from the environments that came in")


def _bring_tasks(file: Path, format: In, out: Path, model: str, repo: str | None, *, json: bool) -> None:
    from scheduler.imports import fleet, issues, swebench
    from scheduler.manifests.targets import SCP
    from worker.contract.errors import UsageFault
    from worker.contract.model_name import parse_model_name

    parse_model_name(model)
    evaluation = None
    if format is In.SWEBENCH:
        if repo is not None:
            raise UsageFault("--repo is for issues: instances name theirs")
        instances = swebench.read(file)
        wanted, evaluation = instances.wanted, instances.evaluation
    else:
        there = repo if repo is None or "://" in repo or SCP.match(repo) else str(Path(repo).absolute())
        wanted = issues.read(file, there)
    written = fleet.write(out, fleet.batch_name(file), model, wanted, evaluation)
    repos = sorted({one.repo for one in wanted})
    if json:
        paths = [str(path) for path in written]
        terminal.emit_json("dawn.tasks/1", manifest=paths[0], files=paths, tasks=len(wanted), repositories=repos)
        return
    for path in written:
        terminal.emit(str(path))
    shown = ", ".join(repos[:REPOS_SHOWN]) + (f" and {len(repos) - REPOS_SHOWN} more" if repos[REPOS_SHOWN:] else "")
    terminal.say(f"{len(wanted)} tasks, on {shown}")
    if evaluation is not None:
        terminal.say(f"{written[-1]} holds gold patches and tests: it is for judging afterwards, keep it from agents")


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
