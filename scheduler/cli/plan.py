"""Owns the command plan. Refuses to submit: it leaves a lock beside the manifest, and nothing anywhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from scheduler.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker.contract.task import Repo

AsJson = Annotated[bool, typer.Option("--json", help="As JSON on stdout.")]
RESOLVE_PROGRAM = "worker.resolve"
"""Of the data plane, which this package never imports."""


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("plan")(plan)


def plan(
    file: Annotated[str, typer.Argument(help="A manifest in YAML.")],
    again: Annotated[bool, typer.Option("--again", help="As for submit --again: nothing is reused.")] = False,
    json: AsJson = False,
) -> None:
    """Tell what a submit would do, and lock what the targets are now.

    Refs are asked, and the commits go into a lock beside the manifest: fleet.lock for fleet.yaml.

    Nothing is submitted.

    Exit code 4 when some repository could not be asked: such a target is in the plan, without its commit.
    """
    from dataclasses import replace
    from datetime import UTC, datetime
    from pathlib import Path

    from scheduler import lock
    from scheduler.cli import edge
    from scheduler.enqueue import freeze
    from scheduler.launch import located
    from scheduler.manifests.reading import load, load_tools
    from scheduler.planning.forecast import forecast
    from worker.contract.errors import ExitCode

    where = edge.settings()
    path = lock.path_of(Path(file))
    loaded = load(Path(file), where.limits, load_tools(where.tools))
    archive = edge.archive(where)
    loaded, repos = located(loaded, archive, store=False, say=terminal.say)
    answers = _asked(repos)
    repos = [repo.model_copy(update=answer) if "commit" in answer else repo for repo, answer in answers]
    unreachable = {
        one.id: answer["message"]
        for one, (_, answer) in zip(loaded.targets, answers, strict=True)
        if "message" in answer
    }
    made = lock.lock_of(loaded, repos)
    batch = replace(freeze(loaded, repos), reuse=not again)
    seen = forecast(
        archive,
        loaded.manifest,
        batch,
        unreachable=unreachable,
        excluded=loaded.excluded,
        now=datetime.now(UTC),
    )
    lock.write(path, made)
    if json:
        name = None if again else batch.id
        terminal.emit_json("dawn.plan/1", archive=archive.url, lock=str(path), batch=name, **seen.as_json())
    else:
        terminal.emit_table(("target", "ref", "commit/pack", "state", "why"), [line.cells() for line in seen.lines])
        counted = {line.state: seen.count(line.state) for line in seen.lines}
        terminal.emit(", ".join(f"{number} {state}" for state, number in sorted(counted.items())))
        terminal.emit(f"cost: {seen.cost.text}")
        if commands := batch.tasks[0].commands:
            terminal.emit(f"commands of {batch.tasks[0].target}:")
            terminal.emit("\n".join(f"  {line}" for command in commands for line in command.splitlines()))
        if seen.window:
            terminal.emit(f"window: {seen.window}")
        terminal.say(f"locked in {path}; dawn submit {file} takes these commits")
    raise typer.Exit(int(ExitCode.SOME_FAILED if unreachable else ExitCode.OK))


def _asked(repos: Sequence[Repo]) -> list[tuple[Repo, dict[str, Any]]]:
    """Each with what became of its ref: commit and branch, or message and hint; nothing for a local one."""
    import json

    wanted = dict.fromkeys((repo.url, repo.ref, repo.secret) for repo in repos if repo.url is not None)
    answers: list[dict[str, Any]] = []
    if wanted:
        terminal.say(f"asking {len(wanted)} refs")
        request = {"repos": [{"url": url, "ref": ref, "secret": secret} for url, ref, secret in wanted]}
        code, resolved = terminal.beside(RESOLVE_PROGRAM, asked=json.dumps(request).encode())
        if code:
            raise typer.Exit(code)
        answers = json.loads(resolved)["resolved"]
    told = dict(zip(wanted, answers, strict=True))
    return [(repo, told[repo.url, repo.ref, repo.secret] if repo.url is not None else {}) for repo in repos]
