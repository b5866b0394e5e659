"""Owns what the morning report says of a batch, from its folded runs. Pure: refuses to read, to write, and to look at
the clock.

Each target is counted once, by its standing run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from scheduler.budget import Spending
from scheduler.reports import harmless, rows
from scheduler.reports.fingerprints import failed, fingerprint, kind, sample
from scheduler.reports.reported import (
    SAID,
    Changes,
    Delivered,
    Group,
    Left,
    Morning,
    Need,
    Row,
    Spend,
    State,
    Warned,
    headline,
)
from scheduler.runs import View, Views, standing
from worker.contract.delivered import PATCH, Readiness, readiness
from worker.contract.run import FAILED_VERDICTS, Run
from worker.store.deliveries import After

SAMPLE_CHARS: Final = 1_200
"""Of a failure, its end; `dawn show` has the rest."""
RUNS_NAMED: Final = 8
"""In one command; of more alike the class is retried, and what else is in it."""


@dataclass(frozen=True)
class Facts:
    """What a report is made of. at: UTC, ISO 8601. members: the target of every run that the batch names. seen: those
    that can be read. budget, day: None without. before: the batch of the same name before, and its runs. after: what
    the patches of runs came to that are to go further than the archive."""

    batch: str
    at: str
    members: Mapping[str, str]
    seen: Views
    budget: Spending | None = None
    day: Spending | None = None
    before: tuple[str, Sequence[View]] | None = None
    after: Mapping[str, After] = field(default_factory=dict)
    chain: Literal["verified", "not checked", "damaged"] = "not checked"
    note: str = ""


def morning(facts: Facts) -> Morning:
    """The report. Every text of it is harmless to print."""
    views = facts.seen.found
    targets = standing(views)
    budgets = {} if facts.budget is None else {facts.batch: facts.budget}
    rows = [*(_row(view, budgets) for view in targets), *unread(facts.members, facts.seen)]
    counts = Counter(row.state for row in rows)
    spend = _spend(views, facts.budget, facts.day)
    sealed = sum(view.run.sealed is not None for view in views)
    made: dict[str, Any] = {
        "batch": facts.batch,
        "at": facts.at,
        "submitted_at": min(filter(None, (view.run.submitted_at for view in views)), default=""),
        "headline": headline(counts, spend),
        "ended": sealed == len(views),
        "delivering": sum(_on_its_way(view, facts.after.get(view.task.run)) for view in targets),
        "note": facts.note,
        "counts": {state: counts[state] for state in SAID if counts[state]},
        "reused": sum(row.outcome == "reused" for row in rows),
        "needs": tuple(_needs(facts, targets, budgets)),
        "delivered": tuple(_delivered(facts, targets)),
        "failures": tuple(failures(facts.batch, targets)),
        "changes": None if facts.before is None else _changes(facts.before, targets),
        "not_reached": tuple(_not_reached(targets, budgets)),
        "spend": spend,
        "warnings": tuple(_warnings(targets)),
        "runs": len(facts.members),
        "sealed": sealed,
        "chain": facts.chain,
        "rows": tuple(rows),
    }
    return Morning.model_validate(harmless.nested(Morning(**made).model_dump(mode="json")))


def state_of(view: View) -> State:
    """What became of a target whose standing run this is."""
    run, sealed = view.run, view.run.sealed
    if sealed is None:
        if run.waiting is not None:
            asks = run.waiting.waiting in ("approval", "question", "paused") and view.decision is None
            return "waits_for_you" if asks else "waits"
        return "working" if run.claims else "not_reached"
    if failed(run):
        return "failed"
    if sealed.outcome in ("cancelled", "skipped"):
        return "cancelled" if sealed.outcome == "cancelled" else "not_reached"
    if sealed.verdict == "verified":
        return "verified"
    return "flaky" if sealed.verdict == "flaky" else "unverified"


def _row(view: View, budgets: Mapping[str, Spending]) -> Row:
    run, sealed = view.run, view.run.sealed
    return Row(
        target=view.task.target,
        run=view.task.run,
        state=state_of(view),
        outcome=sealed.outcome if sealed else None,
        verdict=sealed.verdict if sealed else None,
        steps=run.steps,
        cost_microusd=run.spent_microusd,
        cost_known=run.cost_known,
        detail=rows.brief(rows.detail(view, budgets)),
    )


def unread(members: Mapping[str, str], seen: Views) -> Iterator[Row]:
    """Targets of which no run can be read. members: the target of every run that the batch names."""
    left = set(members.values()) - {view.task.target for view in seen.found}
    damaged = {members[run]: run for run in seen.damaged}
    for target in dict.fromkeys(members.values()):
        if target in left:
            state: State = "damaged" if target in damaged else "not_written"
            yield Row(target=target, run=damaged.get(target, ""), state=state)


def first_line(members: Mapping[str, str], seen: Views, budget: Spending | None) -> str:
    """The headline of the report, without the rest of it. members: as for `unread`."""
    counts = Counter(state_of(view) for view in standing(seen.found))
    counts.update(row.state for row in unread(members, seen))
    return headline(counts, _spend(seen.found, budget, None))


def _needs(facts: Facts, views: Iterable[View], budgets: Mapping[str, Spending]) -> Iterator[Need]:
    """What the same words would help is told once."""
    found: dict[tuple[str, ...], tuple[str, list[str]]] = {}
    for view in views:
        why, commands = _need(view, facts.after.get(view.task.run), budgets)
        if commands:
            found.setdefault(commands, (why, []))[1].append(view.task.target)
    for commands, (why, targets) in found.items():
        yield Need(why=why, targets=tuple(targets), commands=commands)
    for run, why in facts.seen.damaged.items():
        yield Need(why=f"damaged: {why}", targets=(facts.members[run],), commands=(f"dawn verify {run}",))
    if facts.seen.unwritten:
        why = f"{facts.seen.unwritten} runs were never written, because the submit was cut off; submit it again"
        yield Need(why=why, targets=(), commands=(f"dawn status {facts.batch}",))


def _need(view: View, after: After | None, budgets: Mapping[str, Spending]) -> tuple[str, tuple[str, ...]]:
    run, failure = view.task.run, view.run.sealed and view.run.sealed.failure
    if after is not None and after.delivery.state == "error":
        return f"it could not be delivered: {after.delivery.detail}".rstrip(": "), (f"dawn deliver {run}",)
    if after is not None and after.delivery.state == "none" and _readiness(view, after) == "review":
        words = ("approve", "reject")
        return "its patch waits for a review", (
            f"dawn diff {run}",
            *(f"dawn review {run} --{word}" for word in words),
        )
    if failure and str(failure) in _FOR_A_PERSON:
        return f"{failure}: {failure.detail}".rstrip(": "), (_FOR_A_PERSON[str(failure)].format(run=run),)
    return rows.waits_for(view, budgets), tuple(rows.ways_on(view, budgets))


_FOR_A_PERSON: Final = {"refused/guard": "dawn diff {run}", "provider/auth": "dawn doctor"}
"""Failures that no retry ends before a person has acted."""


def _delivered(facts: Facts, views: Iterable[View]) -> Iterator[Delivered]:
    for view in views:
        run, sealed, after = view.task.run, view.run.sealed, facts.after.get(view.task.run)
        state, get = "patch", f"dawn diff {run} | git apply --index"
        if after is not None and after.delivery.state not in ("none", "error"):
            state, get = after.delivery.state, after.delivery.url or f"branch {after.delivery.branch}"
        elif sealed is None or sealed.outcome != "changed" or PATCH not in sealed.artifacts:
            continue
        elif sealed.verdict in FAILED_VERDICTS:
            continue  # told among the failures; `dawn show` has its patch
        elif _on_its_way(view, after):
            state = "on its way"
        yield Delivered(target=view.task.target, run=run, state=state, get=get)


def _readiness(view: View, after: After | None) -> Readiness:
    if after is None:
        return "never"
    return readiness(view.task, view.run, after.review, asked=after.delivery.asked)


def _on_its_way(view: View, after: After | None) -> bool:
    """A worker will deliver it, or goes on with that."""
    deliver = view.task.deliver
    if deliver is None or after is None or _readiness(view, after) != "ready":
        return False
    return not after.delivery.ends(deliver.kind)


def failures(batch: str, views: Iterable[View]) -> Iterator[Group]:
    """Of these runs, which count for their targets, those that failed alike together; the largest group first."""
    alike: dict[str, list[View]] = {}
    for view in views:
        if failed(view.run):
            alike.setdefault(fingerprint(view.run), []).append(view)
    shared = Counter(_which(group[0].run) for group in alike.values())
    for name, group in sorted(alike.items(), key=lambda entry: (-len(entry[1]), entry[0])):
        first, runs = group[0].run, tuple(view.task.run for view in group)
        alone = shared[_which(first)] == 1 or len(runs) > RUNS_NAMED
        yield Group(
            fingerprint=name,
            kind=kind(first),
            targets=tuple(view.task.target for view in group),
            runs=runs,
            sample=sample(first)[-SAMPLE_CHARS:],
            retry=f"dawn retry {batch} {_which(first)}" if alone else f"dawn retry {' '.join(runs)}",
        )


def _which(run: Run) -> str:
    """The option that selects failures like this one, and perhaps others."""
    failure = run.sealed and run.sealed.failure
    return f"--class {failure.cls}" if failure else f"--state {kind(run)}"


def _changes(before: tuple[str, Sequence[View]], targets: Iterable[View]) -> Changes:
    batch, views = before
    then = {view.task.target: state_of(view) for view in standing(views)}
    now = {view.task.target: state_of(view) for view in targets}
    both = [name for name in now if name in then]
    changed = [name for name in both if now[name] != then[name]]
    return Changes(
        since=batch,
        newly_verified=tuple(name for name in changed if now[name] == "verified"),
        newly_failing=tuple(name for name in changed if now[name] == "failed"),
        otherwise=tuple(
            f"{name}: {SAID[then[name]]}, now {SAID[now[name]]}"
            for name in changed
            if now[name] not in ("verified", "failed")
        ),
        same=len(both) - len(changed),
        only_now=tuple(name for name in now if name not in then),
    )


def _not_reached(views: Iterable[View], budgets: Mapping[str, Spending]) -> Iterator[Left]:
    left: dict[str, list[str]] = {}
    for view in views:
        if state_of(view) == "not_reached":
            sealed = view.run.sealed
            waits = rows.waits_for(view, budgets) or "no worker has begun it"
            left.setdefault(sealed.detail or sealed.outcome if sealed else waits, []).append(view.task.target)
    for why, targets in sorted(left.items(), key=lambda entry: (-len(entry[1]), entry[0])):
        yield Left(why=why, targets=tuple(targets))


def _spend(views: Sequence[View], budget: Spending | None, day: Spending | None) -> Spend:
    return Spend(
        batch_microusd=sum(view.run.spent_microusd for view in views),
        known=all(view.run.cost_known for view in views),
        limit_microusd=None if budget is None else budget.limit_microusd,
        unrecorded_microusd=sum(view.run.unrecorded_microusd for view in views),
        day_microusd=None if day is None else day.spent_microusd,
        day_limit_microusd=None if day is None else day.limit_microusd,
    )


def _warnings(views: Iterable[View]) -> Iterator[Warned]:
    for view in views:
        for text in _warned(view):
            yield Warned(target=view.task.target, run=view.task.run, text=text)


def _warned(view: View) -> Iterator[str]:
    run, sealed = view.run, view.run.sealed
    for said in () if sealed is None else sealed.contradictions:
        yield f'it says "{said.claim}", but {said.evidence}'
    if sealed is not None and sealed.damaged is not None:
        yield f"its journal is damaged from segment {sealed.damaged} on"
    if sealed is not None and sealed.verdict == "flaky":
        yield "flaky: a check ended in another colour when it was run again"
    for hit in () if run.verdict is None else run.verdict.guards:
        yield f"a guard was hit: {hit}"
    for number, end in run.failed_commands:
        yield f"its command {number} ended with {end}"
    if run.verdict is not None:
        yield from run.verdict.patch.notes
        if left_out := [path for path, why in run.verdict.patch.left_out.items() if why != "ignored"]:
            yield f"{len(left_out)} changed files are not in the patch, the first is {left_out[0]}"
    if "[secret " in _words_of(view):
        yield "a secret was masked in what it said or printed"


def _words_of(view: View) -> str:
    run = view.run
    checks = run.verdict.checks if run.verdict else ()
    failure = run.sealed.failure if run.sealed else None
    return "\n".join(
        [
            run.finished.text if run.finished else "",
            failure.detail if failure else "",
            *(check.tail for check in checks),
            *(item.text for item in run.plan),
        ]
    )
