"""Owns the commands that read an archive: status, show, logs, diff. Refuses to change anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.cli import terminal
from scheduler.cli.selecting import Classes, Labels, Limit, Repos, States, selection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scheduler.budget import Spending
    from scheduler.runs import Listed, View, Views
    from worker.store.archive import Archive

AsJson = Annotated[bool, typer.Option("--json", help="As JSON on stdout.")]
ArchiveOption = Annotated[
    str | None, typer.Option("--archive", metavar="ADDRESS", help="Read this one, such as bundle:FILE.")
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or its first letters.")]

LOG_POLL_S = 0.5
PARTIAL_PROGRAM = "worker.partial"
REPLAY_PROGRAM = "worker.replay"
"""Of the data plane, which this package never imports."""


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("status")(status)
    app.command("show")(show)
    app.command("logs")(logs)
    app.command("diff")(diff)
    app.command("replay")(replay)


def status(
    name: Annotated[str | None, typer.Argument(metavar="[BATCH|RUN]", help="An id, or its first letters.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every batch, not only the newest and the open.")] = False,
    state: States = None,
    cls: Classes = None,
    repo: Repos = None,
    label: Labels = None,
    limit: Limit = None,
    source: ArchiveOption = None,
    json: AsJson = False,
) -> None:
    """List batches, or the runs of one.

    With a selection, batches that hold such a run, or such runs of one; with nothing selected the exit code is 10.
    """
    from scheduler import budget, runs
    from scheduler.cli import edge
    from scheduler.planning import why
    from scheduler.reports import rows
    from worker.contract.errors import NotFoundFault
    from worker.store.inbox import Control

    chosen = selection(None, state, cls, repo, label, limit)
    where = edge.settings(source)
    archive = edge.archive(where)
    if name is not None:
        found = runs.find_newest(archive, name)
        named = runs.runs_in(archive, found)
        views = runs.views(archive, named)
        if views.unwritten:
            terminal.say(
                f"note: {views.unwritten} of its {len(named)} runs were never written; submit or retry it again"
            )
        if found.kind == "batch":
            budgets = budget.spendings(archive, views.found)
        else:
            asked = [budget.spending(archive, view.task) for view in views.found]
            budgets = {money.of: money for money in asked if money is not None}
        today = edge.spent_today(where)
        shown = [view for view in views.found if chosen.matches(view)][: chosen.limit]
        if chosen.narrows and not shown:
            raise NotFoundFault(f"no run of {found.id} is selected", hint=f"see all: dawn status {found.id}")
        tell(shown, budgets | ({} if today is None else {today.of: today}), archive, as_json=json)
        if not json:
            for line in dict.fromkeys(line for view in shown for line in rows.ways_on(view, budgets)):
                terminal.say(f"waits for you: {line}")
            if (
                found.kind == "batch"
                and (breaker := why.breaker_of(views.found, Control(archive, found.id).read())) is not None
            ):
                terminal.say(breaker.text)
        _end_if_damaged(views)
        return
    known = runs.batches(archive) if everything else runs.recent(archive)[0]
    listed = [(entry, runs.views(archive, entry.runs)) for entry in known]
    if chosen.narrows:
        listed = [one for one in listed if any(chosen.matches(view) for view in one[1].found)][: chosen.limit]
        if not listed:
            raise NotFoundFault(
                "no batch holds a run that is selected", hint="look at all of them: dawn status --all"
            )
    budgets = budget.spendings(archive, [view for _, views in listed for view in views.found])
    if json:
        listing = [
            {
                "batch": entry.batch,
                "submitted_at": entry.at,
                "runs": [rows.row(view, budgets) for view in views.found],
                "budget": budgets[entry.batch].as_json() if entry.batch in budgets else None,
                "runs_damaged": views.damaged,
                "runs_not_written": views.unwritten,
            }
            for entry, views in listed
        ]
        terminal.emit_json("dawn.batches/1", archive=archive.url, batches=listing)
        _end_if_damaged(*(views for _, views in listed), lists=known)
        return
    if not listed:
        terminal.say(f"the archive {archive.url} holds no batch yet; begin with `dawn demo`")
    table = [
        (entry.batch, entry.at[:19].replace("T", " "), str(len(entry.runs)), rows.counts(views, budgets))
        for entry, views in listed
    ]
    terminal.emit_table(("batch", "submitted (UTC)", "runs", "state"), table)
    _end_if_damaged(*(views for _, views in listed), lists=known)


def tell(found: Sequence[View], budgets: Mapping[str, Spending], archive: Archive, *, as_json: bool) -> None:
    """Print runs, and what was spent of budgets. budgets: by batch, of those that have one, and the day's."""
    from scheduler.reports import rows

    if as_json:
        told = [rows.row(view, budgets) for view in found]
        money = {of: budget.as_json() for of, budget in budgets.items()}
        terminal.emit_json("dawn.runs/1", archive=archive.url, runs=told, budgets=money)
        return
    terminal.emit_table(rows.HEADINGS, [rows.cells(view, budgets) for view in found], cut=rows.CUT)
    for budget in budgets.values():
        terminal.say(f"budget of {budget.of}: {budget.text}")


def _end_if_damaged(*listed: Views, lists: Sequence[Listed] = ()) -> None:
    """Name what could not be read, after all that could, and end with the code for it."""
    damaged = {run: why for views in listed for run, why in views.damaged.items()}
    for run, why in damaged.items():
        terminal.say(f"run {run} is damaged: {why}; look: dawn verify {run}")
    wrong = {one.batch: one.wrong for one in lists if one.wrong}
    for batch, why in wrong.items():
        terminal.say(f"the runs of batch {batch} cannot be named: {why}; look: dawn verify {batch}")
    if damaged or wrong:
        raise typer.Exit(11)


def show(
    run: RunArgument,
    audit: Annotated[bool, typer.Option("--audit", help="Who did what to it, and when.")] = False,
    source: ArchiveOption = None,
    json: AsJson = False,
) -> None:
    """Tell all about one run.

    Its outcome, checks, files and cost, what it waits for, and the agent's last words.
    """
    from datetime import UTC, datetime

    from scheduler import runs
    from scheduler.audit import audit_of
    from scheduler.budget import spending
    from scheduler.cli import edge
    from scheduler.reports import rows

    archive = edge.archive(edge.settings(source))
    view = runs.view(archive, runs.find(archive, run, kinds=("run",)).id)
    if audit:
        acts = audit_of(archive, view)
        if json:
            terminal.emit_json("dawn.audit/1", run=view.task.run, acts=[act.as_json() for act in acts])
        else:
            terminal.emit_table(("at (UTC)", "who", "did", "what", "segment"), [act.cells() for act in acts])
        return
    budget = spending(archive, view.task)
    if json:
        terminal.emit_json(
            "dawn.run/1",
            archive=archive.url,
            run=rows.row(view, {} if budget is None else {budget.of: budget}),
            budget=None if budget is None else budget.as_json(),
            task=view.task.model_dump(mode="json"),
            fold=view.run.model_dump(mode="json"),
        )
        return
    terminal.emit_summary(rows.summary(view, datetime.now(UTC), budget))


def logs(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's id, or its first letters; of a delegate RUN/delegates/CALL.")
    ],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the run is sealed.")] = False,
    source: ArchiveOption = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document a line.")] = False,
) -> None:
    """Print every event as it was appended.

    Beside it stands the size of the context, in tokens.
    """
    import json as encoder
    import time

    from scheduler.cli import edge, transcript
    from scheduler.follow import Follower
    from scheduler.runs import find_journal

    archive = edge.archive(edge.settings(source))
    name = find_journal(archive, run)
    follower = Follower(archive, [name])
    while True:
        for record in follower.poll():
            tokens = follower.runs[name].context_tokens
            if json:
                document = {
                    "schema": "dawn.event/1",
                    "context_tokens": tokens,
                    "record": record.model_dump(mode="json"),
                }
                print(encoder.dumps(document), flush=True)
                continue
            first, *rest = transcript.full(record).split("\n")
            terminal.emit(
                f"{record.seq:>5}  {record.at[11:23]}  {tokens:>9,} tokens  {record.event.type:<10} {first}"
            )
            if rest:
                terminal.emit("\n".join(f"{'':<8}{line}" for line in rest))
        if not follow or not follower.open:
            return
        time.sleep(LOG_POLL_S)


def diff(
    run: RunArgument,
    source: ArchiveOption = None,
    mailbox: Annotated[bool, typer.Option("--mailbox", help="As a letter for git am, with trailers.")] = False,
) -> None:
    """Print the patch of a run.

    It is exact bytes in a pipe or file, harmless text on a terminal.

    Of a run that ended before one was made, it is made now, in containers, from the last snapshot.
    """
    from scheduler import runs
    from scheduler.cli import edge
    from worker.contract.commit import letter
    from worker.contract.errors import ConflictFault
    from worker.store.journal import Journal

    archive = edge.archive(edge.settings(source))
    name = runs.find(archive, run, kinds=("run",)).id
    journal = Journal(archive, name)
    ended = journal.load()
    if ended.sealed is None:
        raise ConflictFault(f"run {name} has not ended", hint=f"wait for it: dawn logs {name} -f")
    if ended.sealed.reused:
        terminal.say(f"run {name} reused the work of {ended.sealed.reused}; this is its patch")
        diff(ended.sealed.reused, source, mailbox)
        return
    patch = ended.sealed.artifacts.get("patch.diff")
    if patch is not None:
        text = journal.get_blob(patch)
        terminal.emit_raw(letter(journal.task(), ended, text) if mailbox else text)
        return
    if ended.verdict is not None or not ended.chain:
        terminal.say(f"run {name} ended as {ended.sealed.outcome} and changed nothing")
        return
    terminal.say(f"run {name} ended as {ended.sealed.outcome}; this patch is made of its last snapshot")
    code, made = terminal.beside(PARTIAL_PROGRAM, name, DAWN_ARCHIVE=archive.url)
    if code:
        raise typer.Exit(code)
    terminal.emit_raw(letter(journal.task(), ended, made) if mailbox and made else made)


def replay(run: RunArgument, json: AsJson = False) -> None:
    """Play a run's record once more and tell what differs first.

    It is played on the recorded replies and in real containers; nothing is paid, written, or sent out again. Exit
    code 0: all of it came again; 4: something differs.
    """
    import json as encoder

    from scheduler import runs
    from scheduler.cli import edge
    from worker.contract.errors import ExitCode

    name = runs.find(edge.archive(edge.settings()), run, kinds=("run",)).id
    code, played = terminal.beside(REPLAY_PROGRAM, name)
    if code not in (ExitCode.OK, ExitCode.SOME_FAILED):
        raise typer.Exit(code)
    told = encoder.loads(played)
    if json:
        terminal.emit_json("dawn.replay/1", **told)
        raise typer.Exit(code)
    again = [f"{told['steps']} steps and {told['calls']} calls came again"]
    if told["alike"]:
        again.append(f"{told['alike']} outputs with other numbers in them")
    if told["outside"]:
        again.append(f"{told['outside']} calls that reach outside were not repeated")
    terminal.emit("; ".join(again))
    if (differs := told["diverged"]) is not None:
        terminal.emit(f"step {differs['step']}: {differs['what']}")
        terminal.emit(f"  recorded: {differs['recorded']}")
        terminal.emit(f"  now:      {differs['now']}")
    raise typer.Exit(code)
