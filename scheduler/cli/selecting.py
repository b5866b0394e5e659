"""Owns the options by which commands select runs. Refuses to look for them (scheduler/selection.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from scheduler.selection import Selection

Names = Annotated[
    list[str] | None, typer.Argument(metavar="[RUN|BATCH]...", help="Ids, or their first letters; or select below.")
]
Batches = Annotated[
    list[str] | None, typer.Option("--batch", metavar="BATCH", help="Batches whose id begins so; may be repeated.")
]
States = Annotated[
    list[str] | None,
    typer.Option("--state", help="As dawn status has it: running, waiting, failed, still_failing, ...; any of them."),
]
Classes = Annotated[
    list[str] | None,
    typer.Option("--class", help="Failed with this class: infra, agent, limit, env, provider, refused; any of them."),
]
Repos = Annotated[
    list[str] | None, typer.Option("--repo", metavar="GLOB", help="Name, URL or target is like this; any of them.")
]
Labels = Annotated[list[str] | None, typer.Option("--label", help="Has this label of its manifest; all of them.")]
Limit = Annotated[int | None, typer.Option(min=1, help="So many at most, in the order of their manifests.")]


def selection(
    batch: list[str] | None,
    state: list[str] | None,
    cls: list[str] | None,
    repo: list[str] | None,
    label: list[str] | None,
    limit: int | None,
) -> Selection:
    """What the options say. Raises UsageFault."""
    from scheduler.selection import Selection

    return Selection(
        tuple(batch or ()), tuple(state or ()), tuple(cls or ()), tuple(repo or ()), tuple(label or ()), limit
    )
