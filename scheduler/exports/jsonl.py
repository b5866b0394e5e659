"""Owns the export for programs, JSON Lines: one `RunLine` a run. Refuses to let a field's meaning change: `schema`
names the version of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from scheduler.exports.chosen import PATCH, Chosen
from scheduler.exports.words import encoded
from scheduler.reports import rows
from scheduler.runs import View
from worker.contract.task import Frozen

SCHEMA: Final = "dawn.export.run/1"


class CheckLine(Frozen):
    """Every way a check ended, reruns together: before, on the untouched start commit (none without a baseline), and
    now, with the patch. Of green, red, timeout, oom, not_found."""

    name: str
    before: tuple[str, ...]
    now: tuple[str, ...]


class PatchLine(Frozen):
    """sha256: names the blob `runs/<run>/blobs/<sha256>`. added, removed: lines, of files that are text."""

    sha256: str
    files: int
    added: int
    removed: int


class RunLine(Frozen):
    """One run, under the schema `dawn.export.run/1`. Fields without a comment are those of `dawn status --json`.

    url: null for a packed local repository, whose digest is `source` then. commit: null before it was prepared.
    last_words: what the agent said, a claim and no evidence. last_hash: SHA-256 of the last line of the journal,
    which proves all of it. Times are UTC, ISO 8601.
    """

    run: str
    batch: str
    target: str
    url: str | None
    source: str | None
    ref: str | None
    path: str
    commit: str | None
    model: str
    labels: tuple[str, ...]
    status: str
    outcome: str | None
    verdict: str | None
    failure: str | None
    detail: str
    reused: str | None
    checks: tuple[CheckLine, ...]
    patch: PatchLine | None
    steps: int
    tokens: int
    cost_usd: float | None
    cost_known: bool
    working_s: float
    submitted_at: str
    updated_at: str
    last_words: str
    last_hash: str


def line_of(view: View) -> RunLine:
    """All that is told of a run."""
    task, run, row = view.task, view.run, rows.row(view)
    told: dict[str, Any] = {name: row[name] for name in row.keys() & RunLine.model_fields.keys()}
    return RunLine(
        **told,
        url=task.repo.url,
        source=task.repo.source,
        ref=task.repo.ref,
        path=task.repo.path,
        commit=run.prepared.commit if run.prepared else None,
        model=task.model,
        labels=task.labels,
        reused=(run.sealed.reused or None) if run.sealed else None,
        checks=tuple(_checks(view)),
        patch=_patch(view),
        last_words=run.finished.text if run.finished else "",
        last_hash=run.last_hash,
    )


def lines(chosen: Chosen) -> Iterator[bytes]:
    """One line a run, also of those that have not ended."""
    for view in chosen.views:
        yield encoded({"schema": SCHEMA} | line_of(view).model_dump()) + b"\n"


def _checks(view: View) -> Iterator[CheckLine]:
    verdict = view.run.verdict
    if verdict is None:
        return
    for name in dict.fromkeys(check.name for check in verdict.checks):
        before = tuple(check.status for check in verdict.baseline if check.name == name)
        yield CheckLine(
            name=name, before=before, now=tuple(check.status for check in verdict.checks if check.name == name)
        )


def _patch(view: View) -> PatchLine | None:
    verdict, sealed = view.run.verdict, view.run.sealed
    if verdict is None or sealed is None or PATCH not in sealed.artifacts:
        return None
    return PatchLine(
        sha256=sealed.artifacts[PATCH],
        files=len(verdict.patch.files),
        added=verdict.patch.added,
        removed=verdict.patch.removed,
    )
