"""Owns the page of what a run came to, and its artifacts. Refuses to mix what was said with what was measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, cast

from scheduler.reports.rows import duration, ways_on
from scheduler.runs import View
from scheduler.web.journals import blobs, runhead
from scheduler.web.journals.advice import advice
from scheduler.web.journals.runhead import Head
from scheduler.web.journals.stepbody import Text
from scheduler.web.page import Asked, File, Page, Way
from scheduler.web.pages import measured
from scheduler.web.site import Site
from worker.contract.errors import IntegrityFault, NotFoundFault
from worker.contract.events import Contradiction, Verdict, read_json
from worker.store import keys
from worker.store.members import members

FORKS_SEEN: Final = 300
"""Of an archive's batches of forks, the last by name."""
FORKS_FRESH_S: Final = 30.0


@dataclass(frozen=True)
class Sibling:
    """Another run that has to do with this one. how: retry 1, candidate 2 of 3, fork."""

    run: str
    how: str


@dataclass(frozen=True)
class Changed:
    """A file of the patch. lines: None for a binary one."""

    path: str
    lines: tuple[int, int] | None


@dataclass(frozen=True)
class Summary:
    """facts: (heading, text). said: the agent's last words. measured: None while nothing was. artifacts: name ->
    digest. go_on: commands. asked: the exact call that waits for a person."""

    head: Head
    facts: list[tuple[str, str]]
    prompt: str
    commands: list[tuple[str, str]]
    said: Text | None
    measured: Verdict | None
    contradictions: tuple[Contradiction, ...]
    files: list[Changed]
    left_out: dict[str, str]
    artifacts: dict[str, str]
    failure: str
    failure_detail: str
    advice: str
    retry: str
    go_on: list[str]
    asked: list[tuple[str, str]]
    parent: str
    parent_step: int
    told: str
    siblings: list[Sibling]
    forks: list[str]
    delegates: tuple[str, ...]
    links: list[tuple[str, str]] = field(default_factory=list)
    plan: list[tuple[str, str]] = field(default_factory=list)


def summary(site: Site, asked: Asked) -> Page:
    seen = runhead.look(site, asked)
    task, run, head = seen.view.task, seen.view.run, seen.head
    sealed, verdict = run.sealed, run.verdict
    failure = sealed.failure if sealed is not None else None
    ends = dict(run.failed_commands)
    waiting = [(call.name, call.arguments) for call in run.pending if run.asked and call.id == run.asked.call_id]
    after = seen.view.after
    data = Summary(
        head=head,
        facts=_facts(seen.view),
        prompt=task.prompt,
        commands=[(line, ends.get(n, "")) for n, line in enumerate(task.commands, start=1)],
        said=Text(run.finished.text[:20_000], max(0, len(run.finished.text) - 20_000))
        if run.finished is not None and run.finished.text
        else None,
        measured=verdict,
        contradictions=sealed.contradictions if sealed is not None else (),
        files=[] if verdict is None else [Changed(path, lines) for path, lines in verdict.patch.files.items()],
        left_out={} if verdict is None else verdict.patch.left_out,
        artifacts={} if sealed is None else dict(sorted(sealed.artifacts.items())),
        failure=str(failure or ""),
        failure_detail=failure.detail if failure is not None else "",
        advice=advice(failure) if failure is not None else "",
        retry=f"dawn retry {task.run}" if failure is not None and not head.call else "",
        go_on=[] if head.call or head.damage else ways_on(seen.view),
        asked=[("asked", run.asked.question), *waiting] if run.asked is not None else [],
        parent="" if task.fork is None else task.fork.run,
        parent_step=0 if task.fork is None else task.fork.step,
        told="" if task.fork is None else task.fork.message,
        siblings=[] if head.call else _siblings(site, seen.view),
        forks=[] if head.call else forks(site, task.run),
        delegates=run.delegates,
        links=[] if after is None or not after.delivery.url else [(after.delivery.state, after.delivery.url)],
        plan=[(item.status, item.text) for item in run.plan],
    )
    return Page("run_summary.html", head.target, data, f"dawn show {head.name}", seen.follows, "Summary")


def _facts(view: View) -> list[tuple[str, str]]:
    task, run = view.task, view.run
    repo = task.repo
    prepared = run.prepared
    facts = [
        ("Run", run.id),
        ("Repository", repo.url or f"packed {repo.source_kind}"),
        ("Ref", repo.ref or ""),
        ("Commit", prepared.commit if prepared is not None else ""),
        ("Model", task.model if task.model != "none" else "none, commands only"),
        ("Submitted", f"by {run.submitted_by} at {run.submitted_at[:19].replace('T', ' ')} UTC"),
        ("Worked", f"{duration(run.working_s)} in {run.claims} attempt{'s' if run.claims != 1 else ''}"),
        ("Spent", f"{run.steps} step{'' if run.steps == 1 else 's'}, {run.tokens:,} tokens, {run.cost_text}"),
        ("Reused", run.sealed.reused if run.sealed is not None and run.sealed.reused else ""),
        ("Review", view.after.review if view.after is not None else ""),
        ("Labels", ", ".join(task.labels)),
    ]
    return [(name, text) for name, text in facts if text]


def _siblings(site: Site, view: View) -> list[Sibling]:
    """Other runs of its target in its batch."""
    task = view.task

    def look() -> list[Sibling]:
        try:
            named = members(site.archive, task.batch)
        except (NotFoundFault, IntegrityFault):
            return []
        return [Sibling(one.run, _how(one.ordinal, task.candidates)) for one in named if one.target == task.target]

    found = site.seen.answer(("siblings", task.batch, task.target), look)
    return [one for one in found if one.run != task.run]


def _how(ordinal: int, candidates: int) -> str:
    if ordinal >= candidates:
        return f"retry {ordinal - candidates + 1}"
    return f"candidate {ordinal + 1} of {candidates}" if candidates > 1 else "the first run"


def forks(site: Site, run: str) -> list[str]:
    """The runs that were forked from it."""

    def look() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        named = sorted(name for name in site.archive.folders("batches/") if name.startswith("fork-"))
        for batch in named[-FORKS_SEEN:]:
            try:
                asked = read_json(site.archive.get(keys.batch_manifest(batch)))["fork"]["run"]
                found.setdefault(asked, []).extend(member.run for member in members(site.archive, batch))
            except (NotFoundFault, IntegrityFault, ValueError, KeyError, TypeError):
                continue
        return found

    return site.seen.answer("forks", look, FORKS_FRESH_S).get(run, [])


def artifact(site: Site, asked: Asked) -> File:
    """An artifact of a run under its own name, to be kept."""
    seen = runhead.look(site, asked)
    sealed = seen.view.run.sealed
    name = asked.path["name"]
    if sealed is None or name not in sealed.artifacts:
        raise NotFoundFault(f"run {seen.head.name} has no artifact {name}")
    blob = blobs.find(site.archive, seen.view.run, sealed.artifacts[name])
    return File(name, blobs.whole(site.archive, blob), blob.size)


WAYS: Final = cast(
    "tuple[Way, ...]",
    (
        Way("/runs/{run}", summary),
        *measured.WAYS,
        Way("/runs/{run}/artifacts/{name}", artifact),
        Way("/runs/{run}/delegates/{call}", summary),
    ),
)
