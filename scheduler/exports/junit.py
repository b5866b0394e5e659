"""Owns JUnit XML: a suite for each run, a case for its outcome, each of its checks and each of their tests. Refuses
to read any XML, and to write a character that XML cannot hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from scheduler.exports.chosen import Chosen
from scheduler.runs import View
from worker.contract.errors import IntegrityFault, NotFoundFault
from worker.contract.events import CheckResult, read_json
from worker.store.archive import Archive
from worker.store.journal import Journal

NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, not even written out: most control characters, half surrogate pairs."""


@dataclass(frozen=True)
class Case:
    """of: the check that a test belongs to, "" for none. kind: failure, error or skipped, "" for one that passed.
    what: one word for it; said: the details."""

    name: str
    time_s: float
    kind: str = ""
    what: str = ""
    message: str = ""
    said: str = ""
    of: str = ""


def lines(chosen: Chosen) -> Iterator[bytes]:
    """The document, for the runs that have ended."""
    suites = [(view, list(_cases(chosen.archive, view))) for view in chosen.ended]
    counts = _counts([case for _, cases in suites for case in cases])
    yield f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name="dawnfleet"{counts}>\n'.encode()
    for view, cases in suites:
        yield from (line.encode() for line in _suite(view, cases))
    yield b"</testsuites>\n"


def _suite(view: View, cases: list[Case]) -> Iterator[str]:
    task, run = view.task, view.run
    yield f"  <testsuite name={_quoted(task.target)}{_counts(cases)} timestamp={_quoted(run.submitted_at)}>\n"
    yield "    <properties>\n"
    told = {"run": task.run, "batch": task.batch, "model": task.model, "last_hash": run.last_hash}
    for name, value in told.items():
        yield f"      <property name={_quoted(name)} value={_quoted(value)}/>\n"
    yield "    </properties>\n"
    for case in cases:
        folder = f"{task.target}.{case.of}" if case.of else task.target
        named = f"classname={_quoted(folder)} name={_quoted(case.name)}"
        head = f"    <testcase {named} time={_quoted(_s(case.time_s))}"
        if not case.kind:
            yield f"{head}/>\n"
            continue
        why = f"{case.kind} type={_quoted(case.what)} message={_quoted(case.message)}"
        yield f"{head}>\n      <{why}>{escape(_clean(case.said))}</{case.kind}>\n    </testcase>\n"
    yield "  </testsuite>\n"


def _cases(archive: Archive, view: View) -> Iterator[Case]:
    sealed, verdict = view.run.sealed, view.run.verdict
    assert sealed is not None, "only of runs that have ended"
    if sealed.failure is not None:
        yield Case("outcome", view.run.working_s, "error", str(sealed.failure), sealed.failure.detail)
    elif sealed.outcome in ("skipped", "cancelled"):
        yield Case("outcome", view.run.working_s, "skipped", sealed.outcome, sealed.detail)
    else:
        yield Case("outcome", view.run.working_s)
    if verdict is None:
        return
    for name in dict.fromkeys(check.name for check in verdict.checks):
        now = [check for check in verdict.checks if check.name == name]
        yield _check(name, now, [check for check in verdict.baseline if check.name == name])
    if verdict.matrix is not None:
        yield from _tests(archive, view.task.run, verdict.matrix)


def _tests(archive: Archive, run: str, matrix: str) -> Iterator[Case]:
    """Of every test that the checks' reports tell of."""
    try:
        stored = read_json(Journal(archive, run).get_blob(matrix))
    except NotFoundFault as fault:
        raise IntegrityFault(fault.message) from fault
    for check, tests in stored["checks"].items():
        for name, told in tests.items():
            ends = " and ".join(dict.fromkeys(told[room] for room in ("after", "again") if room in told))
            message = f"{ends or 'not there'}; before: {told.get('before', 'not there')}"
            failed = told["kind"] == "flaky" or told.get("after") == "failed"
            kind = "failure" if failed else "" if told.get("after") == "passed" else "skipped"
            yield Case(name, 0, kind, told["kind"], message, of=check)


def _check(name: str, now: list[CheckResult], before: list[CheckResult]) -> Case:
    """One that is green and red in turn counts as failed: it proves nothing."""
    time_s = sum(check.duration_ms for check in now) / 1000
    ends = list(dict.fromkeys(check.status for check in now))
    if ends == ["green"]:
        return Case(name, time_s)
    kind = "failure" if set(ends) <= {"green", "red"} else "error"
    seen = " and ".join(dict.fromkeys(check.status for check in before)) or "not measured"
    message = f"{' and '.join(ends)}; before: {seen}"
    last = [check for check in now if check.status != "green"][-1]
    return Case(name, time_s, kind, "flaky" if "green" in ends else last.status, message, last.tail)


def _counts(cases: list[Case]) -> str:
    kinds = [case.kind for case in cases]
    said = {"tests": len(cases), "failures": kinds.count("failure"), "errors": kinds.count("error")}
    said["skipped"] = kinds.count("skipped")
    time_s = sum(case.time_s for case in cases)
    return "".join(f" {name}={_quoted(str(value))}" for name, value in (said | {"time": _s(time_s)}).items())


def _s(seconds: float) -> str:
    return f"{seconds:.3f}"


def _quoted(text: str) -> str:
    return quoteattr(_clean(text), {"\n": "&#10;", "\t": "&#9;", "\r": "&#13;"})


def _clean(text: str) -> str:
    return NOT_XML.sub("\ufffd", text)
