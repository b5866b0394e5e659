"""Owns how runs are told: rows for machines, a table and a summary for people. Refuses to print (cli/terminal.py).

Every text here may hold what a repository or a model wrote; whoever prints it makes it harmless first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from scheduler.approvals import commands
from scheduler.budget import Spending
from scheduler.reports.measured import measured
from scheduler.runs import View, Views, standing
from worker.contract.delivered import readiness
from worker.contract.hours import not_before, until_text
from worker.contract.run import Run
from worker.contract.zones import utc_text
from worker.store import keys

HEADINGS: Final = ("run", "target", "outcome", "verdict", "steps", "time", "cost", "detail")
CUT: Final = ("target", "run")
"""What of it may lose its end in a narrow terminal: a target first, the first letters of an id do."""
FILES_SHOWN: Final = 20
DETAIL_CHARS: Final = 120


Budgets = Mapping[str, Spending]
"""By batch, of those that have one."""
NONE: Final[Budgets] = {}


def row(view: View, budgets: Budgets = NONE) -> dict[str, Any]:
    """One run as JSON: units stand last in the names; cost_usd is null when nothing is known of it. unread: kinds of
    messages that were sent to it and that it has not read."""
    task, run = view.task, view.run
    sealed = run.sealed
    return {
        "run": task.run,
        "batch": task.batch,
        "target": task.target,
        "ordinal": task.ordinal,
        "status": run.status,
        "outcome": sealed.outcome if sealed else None,
        "verdict": sealed.verdict if sealed else None,
        "failure": str(sealed.failure) if sealed and sealed.failure else None,
        "detail": detail(view, budgets),
        "unread": [one.kind for one in (*view.mail.control, *view.mail.inbox) if one.kind != "closed"],
        "waiting": run.waiting.waiting if run.waiting else None,
        "waiting_since": run.updated_at if run.waiting else None,
        "asked": run.asked.model_dump(mode="json") if run.asked else None,
        "decision": view.decision.model_dump(mode="json") if view.decision else None,
        "not_before": run.not_before,
        "steps": run.steps,
        "tokens": run.tokens,
        "cost_usd": run.cost_microusd / 1e6 if run.cost_known or run.cost_microusd else None,
        "cost_known": run.cost_known,
        "working_s": round(run.working_s, 3),
        "claims": run.claims,
        "worker": run.worker,
        "review": view.after.review if view.after else None,
        "delivery": view.after.delivery.model_dump(exclude={"tips", "seen"}) if view.after else None,
        "submitted_at": run.submitted_at,
        "updated_at": run.updated_at,
    }


def cells(view: View, budgets: Budgets = NONE) -> tuple[str, ...]:
    """One run as a line of the table (HEADINGS)."""
    task, run = view.task, view.run
    verdict = (run.sealed.verdict if run.sealed else None) or "-"
    spent = str(run.steps), duration(run.working_s), run.cost_text
    target = f"{task.target} ({view.place})" if view.place else task.target
    return task.run, target, view.state, verdict, *spent, brief(detail(view, budgets))


def brief(text: str) -> str:
    """For a cell: the first line, and not all of a long one; `dawn show` has the rest."""
    line, _, rest = text.strip().partition("\n")
    if len(line) > DETAIL_CHARS:
        return line[: DETAIL_CHARS - 1] + "…"
    return f"{line} …" if rest else line


def counts(views: Views, budgets: Budgets = NONE) -> str:
    """`2 changed/verified, 1 changed/still_failing, 1 failed, 2 running, 1 damaged, 3 not written`, of a batch with a
    budget `; $0.12 of $20.00 spent` behind it, of one that starts later when. Of each target the run that counts for
    it."""
    states = Counter(_ended(view.run) if view.run.sealed else view.state for view in standing(views.found))
    told = [*sorted(states.items()), ("damaged", len(views.damaged)), ("not written", views.unwritten)]
    money = {view.task.batch: budgets[view.task.batch].text for view in views.found if view.task.batch in budgets}
    starts = sorted({_starts(view) for view in views.found if view.task.start_at} - {""})[:1]
    return "; ".join([", ".join(f"{number} {state}" for state, number in told if number), *money.values(), *starts])


def duration(seconds: float) -> str:
    """`4.2 s`, `3 min 5 s`, `2 h 3 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def summary(view: View, now: datetime, budget: Spending | None = None) -> list[tuple[str, str]]:
    """What there is to know of one run: (heading, text) pairs, text may have several lines. budget: of its batch."""
    task, run = view.task, view.run
    budgets = NONE if budget is None else {task.batch: budget}
    lines = [("run", task.run), ("batch", task.batch), ("target", _target(view))]
    lines.append(("outcome", run.sealed.outcome if run.sealed else _state(view, now)))
    if run.sealed:
        lines.append(("verdict", run.sealed.verdict or "-"))
        if run.sealed.failure:
            lines.append(("failure", f"{run.sealed.failure}: {run.sealed.failure.detail}"))
        if run.sealed.detail:
            lines.append(("detail", run.sealed.detail))
    if task.fork:
        said = f", told: {task.fork.message}" if task.fork.message else ""
        lines.append(("forked", f"from {task.fork.run} at step {task.fork.step}{said}"))
    elif run.parent:
        lines.append(("forked", f"from {run.parent} when its commands were done"))
    lines += [*_waits(view, budgets), ("starts", _starts(view))]
    if task.prompt:
        lines.append(("asked", task.prompt.strip()))
    if task.commands:
        ends = dict(view.run.failed_commands)
        told = [f"{line}  ({ends[n]})" if n in ends else line for n, line in enumerate(task.commands, start=1)]
        lines.append(("commands", "\n".join(told)))
    lines += [("model", task.model), ("image", _image(view))]
    if run.verdict:
        lines += measured(run.verdict)
    tokens = f"{run.tokens:,} tokens" + (f", context {run.context_tokens:,}" if run.context_tokens else "")
    steps = f"{run.steps} step{'' if run.steps == 1 else 's'}"
    lines.append(("spent", f"{steps}, {duration(run.working_s)}, {tokens}, cost {run.cost_text}"))
    lines.append(("delegates", "\n".join(f"dawn logs {keys.delegate(task.run, call)}" for call in run.delegates)))
    if budget is not None:
        lines.append(("budget", f"{budget.text} by the whole batch; used up, it will {budget.on_limit}"))
    if run.plan:
        lines.append(("plan", "\n".join(f"[{_MARKS[item.status]}] {item.text}" for item in run.plan)))
    if view.after is not None:
        lines += [("review", view.after.review), ("delivery", delivery(view))]
    unborn = run.steps == 0 and run.sealed and run.sealed.failure and run.sealed.failure.cls == "env"
    if run.finished and run.finished.text and not unborn:  # the report of an agent that never worked says nothing
        lines.append(("last words", run.finished.text.strip()))
    if run.sealed:
        told = [f"{one.claim}\n  but {one.evidence}" for one in run.sealed.contradictions]
        lines.append(("contradicted", "\n".join(told)))
    if run.sealed and run.sealed.artifacts:
        named = sorted(run.sealed.artifacts.items())
        lines.append(("artifacts", "\n".join(f"{name}  runs/{task.run}/blobs/{digest}" for name, digest in named)))
    lines.append(("go on", "\n".join(_next(view, budgets))))
    return [(heading, text) for heading, text in lines if text]


def ways_on(view: View, budgets: Budgets = NONE) -> list[str]:
    """What a person types so that a waiting run goes on; nothing where no person is waited for."""
    run, waiting = view.run, view.run.waiting
    if _held(view, budgets) is not None:
        return [f"dawn budget {view.task.batch} USD"]
    if run.sealed is not None or waiting is None:
        return []
    if waiting.waiting == "paused":
        return [f"dawn unpause {view.task.run if run.paused_by else view.task.batch}"]
    return commands(view.task.run, run.asked) if run.asked and not view.decision else []


def _held(view: View, budgets: Budgets) -> Spending | None:
    """The budget that the run waits for."""
    money = budgets.get(view.task.batch)
    return money if money is not None and money.holds(view) else None


def _waits(view: View, budgets: Budgets) -> list[tuple[str, str]]:
    """What is waited for, since when and until when; of a call, what exactly would run."""
    run, waiting, asked = view.run, view.run.waiting, view.run.asked
    if run.sealed is not None or (waiting is None and view.shut is None and _held(view, budgets) is None):
        return [("waits", waits_for(view, budgets))] if view.follows else []
    until = f", until {waiting.until}" if waiting and waiting.until and view.shut is None else ""
    text = [f"{waits_for(view, budgets)}, since {run.updated_at}{until}"]
    if asked is not None:
        text += [f"{call.name} {call.arguments}" for call in run.pending if call.id == asked.call_id]
        text.append(f"call {asked.call_id}, binding {asked.binding}")
    return [("waits", "\n".join(text))]


def waits_for(view: View, budgets: Budgets) -> str:
    """Empty for a run that waits for nothing."""
    waiting = view.run.waiting
    if view.follows:
        return f"the commands of candidate 1: {view.task.prefix_of}"
    if (made := view.decision) is not None:
        return f"{made.decision} by {made.by}, waits for a worker"
    if view.shut is not None:
        return until_text(view.task, view.shut.until)
    if (money := _held(view, budgets)) is not None:
        return f"budget: {money.text}"
    if waiting is None:
        return ""
    return waiting.detail if waiting.waiting == "paused" else f"{waiting.waiting}: {waiting.detail}".rstrip(": ")


_MARKS: Final = {"todo": " ", "doing": ">", "done": "x"}


def _target(view: View) -> str:
    repo = view.task.repo
    parts = [
        view.task.target,
        view.place,
        repo.url or f"packed {repo.source_kind}",
        f"ref {repo.ref}" if repo.ref else "",
    ]
    if view.run.prepared:
        parts.append(f"commit {view.run.prepared.commit[:12]}")
    return ", ".join(part for part in parts if part)


def _image(view: View) -> str:
    """Which one it was given; where it was left to us, the one that was chosen."""
    environment, prepared = view.task.environment, view.run.prepared
    if environment.dockerfile is not None:
        return f"built of {environment.image}"
    chosen = f" ({environment.image})" if prepared and prepared.image_name else ""
    return (prepared.image_name if prepared and prepared.image_name else environment.image) + chosen


def _state(view: View, now: datetime) -> str:
    run = view.run
    age = duration(max(0.0, (now - datetime.fromisoformat(run.updated_at)).total_seconds())) if run.updated_at else ""
    waiting = f" for {run.waiting.waiting}" if run.waiting else ""
    return f"{view.state}{waiting}, step {run.steps}, last event {age} ago"


def _ended(run: Run) -> str:
    """Outcome and verdict, which both count: a change may be verified or break what was green. A refusal is told
    apart from other failures."""
    sealed = run.sealed
    assert sealed is not None, "the run has ended"
    if sealed.failure and sealed.failure.cls == "refused":
        return "refused"
    return f"{sealed.outcome}/{sealed.verdict}" if sealed.verdict and not sealed.failure else sealed.outcome


def detail(view: View, budgets: Budgets) -> str:
    run, sealed = view.run, view.run.sealed
    if sealed is None:
        return waits_for(view, budgets) or _starts(view)
    if sealed.failure:
        return f"{sealed.failure} {sealed.failure.detail}".strip()
    if told := sealed.detail or delivery(view):
        return told
    commands = dict(enumerate(view.task.commands, start=1))
    return "; ".join(f"{end}: {commands.get(number, '')}" for number, end in run.failed_commands)


def _starts(view: View) -> str:
    """`not before 2026-12-01T21:00:00Z`, of a run that waits for its time, or for a worker then."""
    waits = view.run.status == "queued" and view.mail.cancel is None
    at = not_before(view.task, view.run) if waits else None
    return "" if at is None else f"not before {utc_text(at)}"


def delivery(view: View) -> str:
    """What became of a patch that wants to be delivered, or what it waits for; empty where nothing will."""
    after, deliver = view.after, view.task.deliver
    if after is None or deliver is None:
        return ""
    came = after.delivery
    if came.state != "none" and not came.asked:
        told = f"{came.state} {came.url or came.branch}".rstrip()
        return f"{told}: {came.detail}" if came.detail else told
    if not after.waits:
        return ""
    ready = readiness(view.task, view.run, after.review, asked=came.asked)
    return {"ready": "waits to be delivered", "review": "waits for a review", "never": ""}[ready]


def _next(view: View, budgets: Budgets) -> list[str]:
    run = view.task.run
    if view.run.sealed is None:
        return [*ways_on(view, budgets), f"dawn logs {run} -f", f"dawn cancel {run}"]
    if "patch.diff" in view.run.sealed.artifacts:
        judged = view.after is None or view.after.review in ("approved", "rejected")
        review = [] if judged else [f"dawn review {run} --approve|--reject"]
        return [*review, f"dawn diff {run} | git apply --index", f"dawn logs {run}"]
    return [f"dawn logs {run}"]
