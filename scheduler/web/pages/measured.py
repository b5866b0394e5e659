"""Owns the pages of what was measured of a run, and of where it was done: checks and environment. Refuses to take a
word of the agent for a measurement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from scheduler.runs import View
from scheduler.web.journals import blobs, runhead
from scheduler.web.journals.runhead import Head
from scheduler.web.journals.stepbody import Text
from scheduler.web.page import Asked, Page, Slice, Way, cut
from scheduler.web.site import Site
from worker.contract.environment import Baseline, PreparedEnvironment
from worker.contract.errors import IntegrityFault, NotFoundFault
from worker.contract.events import CheckResult, Prepared, Verdict, digest, read_json
from worker.contract.matrix import told
from worker.store import keys
from worker.store.content import get_content, parsed

MATRIX_BYTES: Final = 64 * 2**20
NOTABLE: Final = ("broke", "flaky", "removed", "skipped_now", "new_failing", "still_failing", "fixed", "new_passing")
"""Kinds of tests that the matrix shows first."""


@dataclass(frozen=True)
class Room:
    """A check as it ended in one room. where: before, now, again."""

    where: str
    result: CheckResult


@dataclass(frozen=True)
class Checked:
    """A check. tests: one line on its tests, "" without reports."""

    name: str
    command: str
    rooms: list[Room]
    tests: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Test:
    """A line of the matrix."""

    check: str
    name: str
    kind: str
    before: str
    after: str
    again: str


@dataclass(frozen=True)
class Checks:
    """tests: a page of the matrix; kinds: how many there are of each; why: why there is no matrix, "" where there is
    one."""

    head: Head
    verdict: str
    duration_ms: int
    checks: list[Checked]
    guards: tuple[str, ...]
    tests: list[Test]
    slice: Slice
    kinds: dict[str, int]
    wanted: str
    why: str


def checks(site: Site, asked: Asked) -> Page:
    seen = runhead.look(site, asked)
    verdict = seen.view.run.verdict
    commands = {check.name: check.command for check in seen.view.task.checks}
    tests, why = _matrix(site, seen.view, verdict)
    kinds = {kind: sum(one.kind == kind for one in tests) for kind in (*NOTABLE, "passing", "skipped")}
    wanted = asked.query.get("kind", "")
    kept = [one for one in tests if not wanted or one.kind == wanted]
    slice = cut(len(kept), asked)
    data = Checks(
        head=seen.head,
        verdict=(verdict.verdict if verdict is not None else None) or "",
        duration_ms=verdict.duration_ms if verdict is not None else 0,
        checks=[] if verdict is None else _checked(verdict, commands),
        guards=() if verdict is None else verdict.guards,
        tests=kept[slice.start : slice.stop],
        slice=slice,
        kinds={kind: count for kind, count in kinds.items() if count},
        wanted=wanted,
        why=why,
    )
    return Page(
        "run_checks.html", f"Checks of {seen.head.name}", data, f"dawn show {seen.head.name}", seen.follows, "Checks"
    )


def _checked(verdict: Verdict, commands: Mapping[str, str]) -> list[Checked]:
    lines = {one.check: told(one) for one in verdict.tests}
    found = []
    for name in dict.fromkeys(check.name for check in (*verdict.baseline, *verdict.checks)):
        before = [Room("before", one) for one in verdict.baseline if one.name == name]
        now = [one for one in verdict.checks if one.name == name]
        rooms = [*before, *(Room("again" if n else "now", one) for n, one in enumerate(now))]
        notes = tuple(note for one in now if one.reported is not None for note in one.reported.notes)
        found.append(Checked(name, commands.get(name, ""), rooms, lines.get(name, ""), notes))
    return found


def _matrix(site: Site, view: View, verdict: Verdict | None) -> tuple[list[Test], str]:
    """Every test of every check, those first that a person should see."""
    if verdict is None or verdict.matrix is None:
        return [], "no check wrote a report of its tests"
    try:
        blob = blobs.find(site.archive, view.run, verdict.matrix)
        told_all: Any = read_json(get_content(site.archive, blob.key, blob.digest, max_bytes=MATRIX_BYTES))
        tests = [
            Test(check, name, *(str(row.get(part, "")) for part in ("kind", "before", "after", "again")))
            for check, rows in told_all["checks"].items()
            for name, row in rows.items()
        ]
    except NotFoundFault as fault:
        return [], fault.message
    except (IntegrityFault, ValueError, KeyError, TypeError, AttributeError) as error:
        return [], f"the matrix cannot be read: {error}"
    order = {kind: n for n, kind in enumerate(NOTABLE)}
    return sorted(tests, key=lambda test: order.get(test.kind, len(order))), ""


@dataclass(frozen=True)
class Surrounded:
    """prepared: the event, None while nothing is. stored: env.json, None where it cannot be read, for `why`.
    baseline: of its checks. secrets: names, and what each is for. setup_said: what setup printed, where it failed."""

    head: Head
    prepared: Prepared | None
    stored: PreparedEnvironment | None
    baseline: Baseline | None
    why: str
    setup: str
    asked: list[tuple[str, str]]
    secrets: list[tuple[str, str]]
    setup_said: Text | None
    digests: list[tuple[str, str]]


def environment(site: Site, asked: Asked) -> Page:
    seen = runhead.look(site, asked)
    task, run = seen.view.task, seen.view.run
    surroundings, prepared = task.environment, run.prepared
    stored, baseline, why = _stored(site, prepared)
    failure = run.sealed.failure if run.sealed is not None else None
    failed = failure is not None and failure.cls == "env" and run.finished is not None
    secrets = [("opens the repository", task.repo.secret)] if task.repo.secret else []
    secrets += [("handed to setup", name) for name in surroundings.setup_secrets]
    secrets += [(f"handed to the tool {tool.name}", name) for tool in task.tools for name in tool.secrets]
    asked_for = [
        ("Image", surroundings.image),
        ("Network of calls and checks", surroundings.network),
        ("Setup again where lists of dependencies change", surroundings.resetup),
        ("Kept under the words", ", ".join(surroundings.cache_keys)),
    ]
    data = Surrounded(
        head=seen.head,
        prepared=prepared,
        stored=stored,
        baseline=baseline,
        why=why,
        setup=surroundings.setup or "",
        asked=[(name, text) for name, text in asked_for if text],
        secrets=[(name, use) for use, name in secrets],
        setup_said=Text(run.finished.text[-64_000:]) if failed and run.finished and run.finished.text else None,
        digests=_digests(prepared, stored),
    )
    title = f"Environment of {seen.head.name}"
    return Page(
        "run_environment.html", title, data, f"dawn show {seen.head.name} --json", seen.follows, "Environment"
    )


def _stored(site: Site, prepared: Prepared | None) -> tuple[PreparedEnvironment | None, Baseline | None, str]:
    if prepared is None:
        return None, None, ""
    key = keys.environment(prepared.environment_key)
    try:
        data = get_content(site.archive, key, prepared.environment)
        stored = parsed(PreparedEnvironment, data, key)
    except (NotFoundFault, IntegrityFault) as fault:
        return None, None, fault.message
    try:
        return stored, _baseline(site, prepared), ""
    except (NotFoundFault, IntegrityFault) as fault:
        return stored, None, fault.message


def _baseline(site: Site, prepared: Prepared) -> Baseline | None:
    if prepared.baseline is None:
        return None
    for key in site.archive.list(keys.baseline_folder(prepared.environment_key)):
        data = site.archive.get(key)
        if digest(data) == prepared.baseline:
            return parsed(Baseline, data, key)
    raise NotFoundFault(f"the baseline {prepared.baseline} is not in the archive")


def _digests(prepared: Prepared | None, stored: PreparedEnvironment | None) -> list[tuple[str, str]]:
    if prepared is None:
        return []
    named = [
        ("Environment's key", prepared.environment_key),
        ("env.json", prepared.environment),
        ("Baseline", prepared.baseline or ""),
        ("Image it ran in", stored.image if stored is not None else prepared.image),
    ]
    if stored is not None:
        named += [
            ("Image as it is stored", stored.stored_image or ""),
            ("Workspace, level 0", stored.snapshot),
            ("Listing", stored.listing),
            ("Work tree", stored.tree),
        ]
    return [(name, text) for name, text in named if text]


WAYS: Final = cast(
    "tuple[Way, ...]",
    (
        Way("/runs/{run}/checks", checks),
        Way("/runs/{run}/environment", environment),
    ),
)
