"""Owns the verdict: checks in a clean room, base plus patch, against the baseline of the untouched base. Refuses to
read what the agent said.

The rerun rule: a check that ends in another colour than its baseline, or of whose tests one does, is run once more in
a clean room of its own. When the two runs differ the check is unstable (flaky), and so is a test. Without a patch
another colour than the baseline's is unstable by itself, because nothing differs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

from worker.checks import Ran
from worker.contract.cancel import Cancel
from worker.contract.difftext import files_of
from worker.contract.environment import Baseline
from worker.contract.events import CheckResult, Compared, Verdict, VerdictName, canonical
from worker.contract.guards import Guards, Seen, hits
from worker.contract.matrix import Tests, changed_colour, compare, compared, matrix
from worker.contract.redact import Redactor
from worker.contract.results import Kind
from worker.contract.run import Run
from worker.contract.task import Task
from worker.environments import Prepared
from worker.publish import Patch, make_patch
from worker.room import PutData, Room
from worker.sandbox.protocol import Owner, Sandbox, Workspace
from worker.store.archive import Archive

WORST_FIRST: Final[tuple[VerdictName, ...]] = ("broke", "flaky", "still_failing", "verified")
_OF_TESTS: Final[tuple[Literal["broke", "flaky"], ...]] = ("broke", "flaky")
"""Kinds of a test that are the verdict's own words, and count as much there."""


def measure(
    task: Task,
    prepared: Prepared,
    patch: Patch,
    *,
    archive: Archive,
    sandbox: Sandbox,
    owner: Owner,
    put_blob: PutData,
    redactor: Redactor,
    cancel: Cancel,
) -> Verdict:
    """Run the task's checks on base plus patch, in a fresh workspace that shares nothing with the agent's.

    The answer's checks are one result each, then the second results of those that were run again. Where reports were
    written on the start and with the patch, their tests are compared, and all of them stored as one blob. Its patch
    also carries the environment's notes, so that a submodule nobody could fetch is said where the result is read.
    owner: of the attempt; its role is replaced. put_blob: stores the masked outputs with the run. Raises Cancelled,
    EngineFault, and IntegrityFault when the patch does not apply to its own base.
    """
    began = time.monotonic()
    room = Room(task, prepared, patch, archive, sandbox, replace(owner, role="verdict"), put_blob, redactor, cancel)
    baseline = prepared.baseline or Baseline(checks=())
    first = room.run([check.name for check in task.checks])
    second = () if patch.empty else room.run(unlike(baseline, first))
    before, after, again = baseline.checks, _results(first), _results(second)
    rows = _compared(baseline, first, second, patch_empty=patch.empty)
    tests = tuple(compared(name, kinds) for name, (kinds, _) in rows.items())
    return Verdict(
        verdict=classify(before, after, again, patch_empty=patch.empty, tests=tests),
        guards=_guarded(task, patch, _seen(baseline, first, rows), redactor),
        checks=(*after, *again),
        baseline=before,
        tests=tests,
        matrix=put_blob(canonical(matrix(rows))) if rows else None,
        patch=patch.stat.model_copy(update={"notes": (*prepared.environment.notes, *patch.stat.notes, *room.notes)}),
        duration_ms=round((time.monotonic() - began) * 1000),
    )


def of_workspace(
    task: Task,
    run: Run,
    workspace: Workspace,
    prepared: Prepared,
    *,
    archive: Archive,
    sandbox: Sandbox,
    owner: Owner,
    put_blob: PutData,
    redactor: Redactor,
    cancel: Cancel,
) -> tuple[Patch, Verdict]:
    """The patch of the agent's workspace as it lies, and what the clean room says of it. Of a run that failed and
    changed nothing, nothing is measured. Raises what make_patch and measure raise."""
    patch = make_patch(workspace, task, put_blob=put_blob, redactor=redactor, cancel=cancel)
    if run.finished is not None and run.finished.failure is not None and patch.empty:
        return patch, Verdict(verdict=None, patch=patch.stat)
    measured = measure(
        task,
        prepared,
        patch,
        archive=archive,
        sandbox=sandbox,
        owner=owner,
        put_blob=put_blob,
        redactor=redactor,
        cancel=cancel,
    )
    return patch, measured


def classify(
    before: Sequence[CheckResult],
    after: Sequence[CheckResult],
    again: Sequence[CheckResult],
    *,
    patch_empty: bool,
    tests: Sequence[Compared] = (),
) -> VerdictName:
    """The verdict of all checks together: the worst of broke, flaky, still_failing, verified.

    before: the baseline, empty when there is none. again: second results of checks that were run again. tests: a test
    that broke, or is flaky, counts even where its check has the colour it had; tests that only got better make no red
    check green.
    """
    if not after:
        return "unverified"
    baseline, second = _by_name(before), _by_name(again)
    verdicts = {_one(baseline.get(one.name), one, second.get(one.name), patch_empty) for one in after}
    verdicts |= {name for one in tests for name in _OF_TESTS if name in one.counts}
    return next(verdict for verdict in WORST_FIRST if verdict in verdicts)


def differing(before: Sequence[CheckResult], after: Sequence[CheckResult]) -> list[str]:
    """Names of the checks that ended in another colour than their baseline."""
    baseline = _by_name(before)
    return [one.name for one in after if one.name in baseline and _green(baseline[one.name]) != _green(one)]


def unlike(baseline: Baseline, first: Sequence[Ran]) -> list[str]:
    """Names of the checks that are to be run again: `differing`, and those of whose tests one has another colour."""
    names = differing(baseline.checks, _results(first))
    for one in first:
        name = one.result.name
        known = one.tests is not None and name in baseline.tests
        if known and name not in names and changed_colour(baseline.tests[name], one.tests or {}):
            names.append(name)
    return names


def _compared(
    baseline: Baseline, first: Sequence[Ran], second: Sequence[Ran], *, patch_empty: bool
) -> dict[str, tuple[Mapping[str, Kind], Sequence[Tests]]]:
    """Of each check with a report on the start and one with the patch: its kinds, and the reports of the rooms.

    A report that could not be read to its end, or of a check that did not end by itself, takes no test away."""
    earlier, again = _by_name(baseline.checks), {one.result.name: one.tests or {} for one in second}
    rows: dict[str, tuple[Mapping[str, Kind], Sequence[Tests]]] = {}
    for one in first:
        name = one.result.name
        if one.tests is None or name not in baseline.tests:
            continue
        both = (earlier[name], one.result)
        whole = all(part.status in ("green", "red") and part.reported and not part.reported.notes for part in both)
        reports = (baseline.tests[name], one.tests, again.get(name, {}))
        rows[name] = compare(*reports, patch_empty=patch_empty, whole=whole), reports
    return rows


def _seen(
    baseline: Baseline, first: Sequence[Ran], rows: Mapping[str, tuple[Mapping[str, Kind], Sequence[Tests]]]
) -> list[Seen]:
    seen = []
    for one in first:
        name = one.result.name
        kinds = rows[name][0] if name in rows else None
        lost = bool(baseline.tests.get(name)) and one.tests is None
        seen.append(Seen(name, kinds, green=_green(one.result), lost=lost))
    return seen


def _guarded(task: Task, patch: Patch, seen: Sequence[Seen], redactor: Redactor) -> tuple[str, ...]:
    """What the patch does that the task forbids. Without a word about it, a model is bound by the usual guards, and
    commands, which a person wrote, by none."""
    guards = task.guards or (Guards() if task.model != "none" else None)
    if guards is None:
        return ()
    files = [file for data in patch.files.values() for file in files_of(data)]
    return tuple(map(redactor.text, hits(guards, files, seen)))


def _results(ran: Sequence[Ran]) -> tuple[CheckResult, ...]:
    return tuple(one.result for one in ran)


def _one(before: CheckResult | None, after: CheckResult, again: CheckResult | None, patch_empty: bool) -> VerdictName:
    if again is not None and _green(again) != _green(after):
        return "flaky"
    if patch_empty and before is not None and _green(before) != _green(after):
        return "flaky"
    if _green(after):
        return "verified"
    return "broke" if before is not None and _green(before) else "still_failing"


def _green(result: CheckResult) -> bool:
    return result.status == "green"


def _by_name(results: Sequence[CheckResult]) -> Mapping[str, CheckResult]:
    return {result.name: result for result in results}
