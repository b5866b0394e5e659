"""Owns what a run leaves for people: the patch, what is not in it, and a summary. Refuses to mix the agent's words
with what was measured: they stand beside each other under their own headings."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from worker.contract.cancel import Cancel
from worker.contract.errors import EngineFault
from worker.contract.events import CheckResult, Contradiction, Digest, Failure, OutcomeName, PatchStat, Verdict
from worker.contract.matrix import named_lines, told
from worker.contract.redact import Redactor
from worker.contract.run import Run
from worker.contract.task import Task
from worker.sandbox.protocol import Workspace
from worker.toolbox import ToolboxProblem, ask

PATCH: Final = "patch.diff"
SUBMODULES: Final = "submodules.diff"
SUMMARY: Final = "summary.md"
LEFT_OUT: Final = "left_out.txt"
MATRIX: Final = "tests.json"
PATCH_TIMEOUT_S: Final = 300
FILES_SHOWN: Final = 50
PROMPT_CHARS: Final = 4_000

PutBytes = Callable[[bytes], Digest]


@dataclass(frozen=True)
class Patch:
    """files: `patch.diff` and, for changes below submodules, `submodules.diff`; only those that are not empty.

    stat.digest: of the first of files, None when there is none.
    """

    files: Mapping[str, bytes]
    stat: PatchStat

    @property
    def empty(self) -> bool:
        return not self.files


def make_patch(workspace: Workspace, task: Task, *, put_blob: PutBytes, redactor: Redactor, cancel: Cancel) -> Patch:
    """The agent's work tree as patches against its start commit, stored as blobs of the run.

    Applied to the base they give the same tree, apart from what `stat.left_out` names: files over a cap, ignored
    ones, and new ones that a check reports in. Raises Cancelled, EngineFault.
    """
    workspace.put("listing", [json.dumps(workspace.tree()).encode()])
    caps = {"file_bytes": task.limits.patch_file_bytes, "patch_bytes": task.limits.patch_bytes}
    reports = [(task.repo.path, check.junit) for check in task.checks if check.junit is not None]
    try:
        request = {"op": "make", **caps, "reports": reports}
        made = ask(workspace, "patch", request, timeout_s=PATCH_TIMEOUT_S, cancel=cancel)
    except ToolboxProblem as problem:
        raise EngineFault(f"the patch could not be made: {problem.message}") from None
    files = {name: b"".join(workspace.get(name)) for name, size in made["sizes"].items() if size}
    digests = [put_blob(data) for data in files.values()]
    ignored = {_shown(path): "ignored" for path in workspace.ignored()}
    stat = PatchStat(
        digest=digests[0] if digests else None,
        bytes=sum(map(len, files.values())),
        files=redactor.nested(made["files"]),
        left_out=redactor.nested({**ignored, **made["left_out"]}),
        notes=tuple(made["notes"]),
    )
    return Patch(files, stat)


def artifacts(
    task: Task,
    run: Run,
    outcome: OutcomeName,
    failure: Failure | None,
    patch: Patch,
    contradicted: Sequence[Contradiction] = (),
    *,
    put_blob: PutBytes,
    redactor: Redactor,
) -> dict[str, Digest]:
    """Store the run's artifacts and return name -> digest, for `sealed`. run: with its verdict, before the seal.
    contradicted: claims of its last words."""
    made = dict(patch.files)
    stat = run.verdict.patch if run.verdict else patch.stat
    page = summary(task, run, outcome, failure, stat, contradicted)
    made[SUMMARY] = redactor.text(page).encode("utf-8", "backslashreplace")
    if patch.stat.left_out:
        lines = [f"{path}: {reason}\n" for path, reason in sorted(patch.stat.left_out.items())]
        made[LEFT_OUT] = "".join(lines).encode("utf-8", "backslashreplace")
    stored = {name: put_blob(data) for name, data in made.items()}
    return stored | ({MATRIX: run.verdict.matrix} if run.verdict and run.verdict.matrix else {})


def summary(
    task: Task,
    run: Run,
    outcome: OutcomeName,
    failure: Failure | None,
    patch: PatchStat,
    contradicted: Sequence[Contradiction] = (),
) -> str:
    """The run on one page, Markdown: asked, measured, changed, said, used. Pure."""
    verdict = run.verdict.verdict if run.verdict else None
    title = f"# {task.repo.label or task.target}: {outcome}" + (f", {verdict}" if verdict else "")
    parts = [title, _facts(task, run, failure), _asked(task)]
    if run.verdict is not None and run.verdict.checks:
        parts.append(_measured(run.verdict))
    parts.append(_changed(patch))
    if run.verdict is not None and run.verdict.guards:
        parts.append(
            "## What the patch may not do\n\n" + "\n".join(f"- {_inline(hit)}" for hit in run.verdict.guards)
        )
    if run.finished is not None and run.finished.text.strip():
        heading = "## Progress when it stopped" if failure else "## What the agent says (a claim, not evidence)"
        parts.append(f"{heading}\n\n{_quoted(run.finished.text)}")
    if contradicted:
        rows = [f"- > {_inline(one.claim)}\n  - measured: {_inline(one.evidence)}" for one in contradicted]
        parts.append("## What of that the evidence contradicts\n\n" + "\n".join(rows))
    parts.append(_used(task, run))
    return "\n\n".join(parts) + "\n"


def _facts(task: Task, run: Run, failure: Failure | None) -> str:
    rows = {"run": task.run, "batch": task.batch, "target": task.target, "model": task.model}
    if run.prepared is not None:
        rows["start commit"] = run.prepared.commit
    if failure is not None:
        rows["failed"] = f"{failure}: {failure.detail}" if failure.detail else str(failure)
    return "\n".join(f"- {name}: `{_inline(value)}`" for name, value in rows.items())


def _asked(task: Task) -> str:
    lines = [_quoted(task.prompt[:PROMPT_CHARS])] if task.prompt else []
    lines += [f"- `{_inline(command)}`" for command in task.commands]
    return "## Task\n\n" + "\n".join(lines)


def _measured(verdict: Verdict) -> str:
    before = {result.name: result for result in verdict.baseline}
    rows = ["| check | on the start commit | with the patch | seconds |", "|---|---|---|---|"]
    rows += [
        f"| {_cell(result.name)} | {_colour(before.get(result.name))} | {_colour(result)} "
        f"| {result.duration_ms / 1000:.1f} |"
        for result in verdict.checks
    ]
    tests = [f"- {_inline(one.check)}: {told(one)}" for one in verdict.tests]
    named = [f"  - {_inline(line)}" for one in verdict.tests for line in named_lines(one)]
    parts = ["## Checks (measured in a clean room)", "\n".join(rows), "\n".join(tests + named)]
    return "\n\n".join(part for part in parts if part)


def _changed(patch: PatchStat) -> str:
    if not patch.files:
        body = "Nothing was changed."
    else:
        rows = [f"- `{_inline(path)}` {_lines(lines)}" for path, lines in list(patch.files.items())[:FILES_SHOWN]]
        if len(patch.files) > FILES_SHOWN:
            rows.append(f"- and {len(patch.files) - FILES_SHOWN} more")
        body = "\n".join(rows)
    notes = [f"Note: {note}." for note in patch.notes]
    if patch.left_out:
        notes.append(f"{len(patch.left_out)} paths are not in the patch, see {LEFT_OUT}.")
    return "\n\n".join(["## Changes", body, *notes])


def _used(task: Task, run: Run) -> str:
    limit = "none" if task.limits.cost_usd is None else f"${task.limits.cost_usd:g}"
    rows = (
        f"| steps | {run.steps} | {task.limits.steps} |",
        f"| tokens | {run.tokens:,} | {task.limits.tokens:,} |",
        f"| cost | {run.cost_text} | {limit} |",
        f"| working time | {run.working_s:.0f} s | {task.limits.working_time_s:.0f} s |",
    )
    return "## Used\n\n| | used | limit |\n|---|---|---|\n" + "\n".join(rows)


def _colour(result: CheckResult | None) -> str:
    if result is None:
        return "-"
    return result.status if result.exit_code in (0, None) else f"{result.status} (exit code {result.exit_code})"


def _lines(counts: Sequence[int] | None) -> str:
    return "binary" if counts is None else f"+{counts[0]} -{counts[1]}"


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.strip().splitlines())


def _inline(text: str) -> str:
    """Text inside backquotes, on one line."""
    return " ".join(text.replace("`", "'").split())


def _cell(text: str) -> str:
    return _inline(text).replace("|", "\\|")


def _shown(path: str) -> str:
    """A path of a work tree as text that every JSON can hold: escapes for bytes that are no UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
