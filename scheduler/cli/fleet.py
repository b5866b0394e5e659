"""Owns the commands about a manifest as a file: validate, schema, init. Refuses to look at archive, Redis or engine:
all three work offline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from scheduler.cli import terminal

if TYPE_CHECKING:
    from scheduler.manifests.reading import ManifestFault


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("init")(init)
    app.command("validate")(validate)
    app.command("schema")(schema)


def init(
    origins: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="URL|FOLDER", help="A repository, or a folder of clones; may be repeated."),
    ] = None,
) -> None:
    """Write fleet.yaml, a manifest to start from, with comments."""
    from pathlib import Path

    from scheduler.manifests.starting import starting_manifest
    from worker.contract.errors import ConflictFault

    text = starting_manifest(origins or [], Path.cwd())
    try:
        with Path("fleet.yaml").open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConflictFault("fleet.yaml is there already", hint="move it away first") from None
    terminal.say("wrote fleet.yaml; next: dawn validate fleet.yaml")


def validate(
    file: Annotated[str, typer.Argument(help="A manifest in YAML.")],
    json: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")] = False,
) -> None:
    """Tell every mistake of a manifest at once, offline.

    Exit code 3 when there is one.
    """
    from pathlib import Path

    from scheduler.cli import edge
    from scheduler.manifests.reading import ManifestFault, load, load_tools

    where = edge.settings()
    try:
        loaded = load(Path(file), where.limits, load_tools(where.tools))
    except ManifestFault as fault:
        if not json:
            raise
        terminal.emit_json("dawn.validated/1", file=file, valid=False, problems=_problems(fault))
        raise typer.Exit(int(fault.exit_code)) from None
    targets = [one.id for one in loaded.targets]
    awaited = [one.told for one in loaded.awaited]
    if json:
        terminal.emit_json("dawn.validated/1", file=file, valid=True, problems=[], targets=targets, awaited=awaited)
        return
    count = f"{len(targets)} target{'s' if len(targets) != 1 else ''}"
    later = f", and those of {', '.join(awaited)}, where nobody looked" if awaited else ""
    terminal.emit(f"{file} is valid: {count}{later}")


def schema() -> None:
    """Print the JSON Schema of manifests, for editors."""
    import json

    from scheduler.manifests.schema import manifest_schema

    terminal.emit(json.dumps(manifest_schema(), indent=2, ensure_ascii=False))


def _problems(fault: ManifestFault) -> list[dict[str, Any]]:
    return [
        {
            "file": fault.file_of(one),
            "line": one.line,
            "column": one.column,
            "code": one.code,
            "path": one.where,
            "message": one.message,
            "hint": one.hint,
        }
        for one in fault.problems
    ]
