"""Owns Run, the fold over a journal's events: status, counters, what is left to do. Refuses to read a journal.

Everything the house knows about a run is derived here; nothing is stored twice. `Run.after(record)` is pure:
the same records give the same Run on any machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from worker.contract.errors import ExitCode
from worker.contract.events import (
    Asked,
    Called,
    Claimed,
    Compacted,
    Decided,
    Delegated,
    FedBack,
    Finished,
    Observed,
    Parked,
    PlanItem,
    Prepared,
    Record,
    Replied,
    Sealed,
    SnapshotRef,
    Steered,
    Submitted,
    ToolCall,
    Unrecorded,
    Usage,
    Verdict,
    Yielded,
)
from worker.contract.task import Frozen, Task, budget_microusd, usd_text

Status = Literal["queued", "running", "waiting", "sealed"]
Turn = Literal["prepare", "model", "calls", "verdict", "seal", "none"]
"""Whose move is next: prepare the environment, ask the model, run pending calls, measure, seal, nothing."""

FAILED_VERDICTS = ("still_failing", "broke")
BUDGETS = ("batch_budget", "day_budget")
"""Reasons of class `limit` that are not the run's own."""


class Run(Frozen):
    """The state of one run after its last committed event.

    last_seq: number of the last segment, -1 before the first. last_hash: SHA-256 of the last line.
    attempt: seq of the current claim, None when nobody ever claimed. barren_claims: claims in a row that ended
    without a step and without parking or yielding. infra_yields: infra yields in a row without a step.
    provider_parks: waits for a provider in a row without a step; those for the rate of its account are no trouble.
    chain: stored snapshots to restore, last full one first, on top of the environment's when it starts with a
    change. snapshot: the last one, stored or not. pending: calls of the last reply not yet observed.
    called: id of the outside call that was begun and has no result yet, "" for none. delegates: ids of the calls that
    delegates answered, or do.
    failed_commands: of the task's commands those that did not end with 0: number, from 1, and how each ended.
    working_s: time spent under claims, waiting excluded. inbox_seen, control_seen: messages read of the run's inbox
    and of its batch's control. paused_by, batch_paused_by: who paused the run, and its batch, "" when neither.
    guards_told: the model knows what its patch may not do.
    batch_budget_microusd: what a person last allowed the batch, None for what its task says.
    unrecorded_microusd: the part of the cost that was counted for replies which nobody kept.
    unheard: a message was read after the model had finished, and the model had no turn since.

    A fork carries on its parent's counts: steps, tokens and cost are the conversation's. inherited_steps,
    inherited_cost_microusd: the parent's part of them. snapshots_of: the run that stored `chain`, "" for this one.
    """

    id: str = ""
    last_seq: int = -1
    last_hash: str = ""
    submitted_by: str = ""
    submitted_at: str = ""
    parent: str = ""
    inherited_steps: int = 0
    inherited_cost_microusd: int = 0
    updated_at: str = ""
    status: Status = "queued"
    turn: Turn = "prepare"
    attempt: int | None = None
    worker: str = ""
    lane: str = ""
    claims: int = 0
    barren_claims: int = 0
    infra_yields: int = 0
    provider_parks: int = 0
    waiting: Parked | None = None
    not_before: str | None = None
    prepared: Prepared | None = None
    steps: int = 0
    command_steps: int = 0
    usage: Usage = Usage()
    cost_microusd: int = 0
    unrecorded_microusd: int = 0
    unpriced_replies: int = 0
    failed_commands: tuple[tuple[int, str], ...] = ()
    working_s: float = 0.0
    failing_calls: int = 0
    empty_replies: int = 0
    malformed_replies: int = 0
    feedbacks: int = 0
    guards_told: bool = False
    compactions: int = 0
    compactions_in_row: int = 0
    context_tokens: int = 0
    pending: tuple[ToolCall, ...] = ()
    called: str = ""
    chain: tuple[SnapshotRef, ...] = ()
    snapshots_of: str = ""
    snapshot: SnapshotRef | None = None
    delegates: tuple[str, ...] = ()
    plan: tuple[PlanItem, ...] = ()
    files: tuple[str, ...] = ()
    inbox_seen: int = 0
    control_seen: int = 0
    paused_by: str = ""
    batch_paused_by: str = ""
    batch_budget_microusd: int | None = None
    unheard: bool = False
    asked: Asked | None = None
    finished: Finished | None = None
    verdict: Verdict | None = None
    sealed: Sealed | None = None

    @property
    def tokens(self) -> int:
        """All tokens of all replies."""
        return self.usage.total

    @property
    def cost_known(self) -> bool:
        """False when a reply had no price: totals then say 'at least'."""
        return self.unpriced_replies == 0

    @property
    def cost_text(self) -> str:
        """What the run itself spent: `$0.12`, `at least $0.12` when a reply had no price, `unknown` when none had."""
        amount = usd_text(self.spent_microusd)
        if self.cost_known:
            return amount
        return f"at least {amount}" if self.spent_microusd else "unknown"

    @property
    def spent_microusd(self) -> int:
        """What this run itself cost: a fork's parent paid for what was copied."""
        return self.cost_microusd - self.inherited_cost_microusd

    def budget_microusd(self, task: Task) -> int | None:
        """What the run's batch may spend, as far as the run has read; None for no bound."""
        if self.batch_budget_microusd is not None:
            return self.batch_budget_microusd
        return None if task.budget is None else task.budget.microusd

    def after(self, record: Record, line_hash: str) -> Run:
        """The run after one more record. line_hash: SHA-256 of that record's line."""
        working_s = self.working_s
        if self.status == "running" and not isinstance(record.event, Claimed):
            # Up to the next claim nobody worked: the attempt before had died.
            worked_s = _elapsed_s(self.updated_at, record.at) - record.waited_ms / 1000
            working_s = max(0.0, working_s + worked_s)
        run = self._with(
            last_seq=record.seq, last_hash=line_hash, updated_at=record.at, id=record.run, working_s=working_s
        )
        run = run._apply(record)
        return run._inherited() if record.seq == 0 else run

    def _inherited(self) -> Run:
        """Segment 0 holds no event of this run but `submitted`: the rest is a parent's, and so are its snapshots and
        the numbers of the messages it read."""
        return self._with(
            inherited_steps=self.steps,
            inherited_cost_microusd=self.cost_microusd,
            snapshots_of=self.parent,
            inbox_seen=0,
        )

    def _with(self, **changes: object) -> Run:
        return self.model_copy(update=changes)

    def _apply(self, record: Record) -> Run:
        event = record.event
        match event:
            case Submitted():
                return self._with(submitted_by=event.by, submitted_at=record.at, parent=event.parent or "")
            case Claimed():
                return self._with(
                    status="running",
                    attempt=record.seq,
                    worker=event.worker,
                    lane=event.lane,
                    claims=self.claims + 1,
                    barren_claims=self.barren_claims + 1,
                    waiting=None,
                    not_before=None,
                )
            case Prepared():
                run = self._with(prepared=event, turn="model" if self.turn == "prepare" else self.turn)
                if event.snapshot is not None:
                    run = run._with(chain=(event.snapshot,), snapshot=event.snapshot, snapshots_of="")
                return run
            case Replied():
                return self._replied(event)
            case Called():
                return self._with(called=event.call_id)
            case Observed():
                return self._observed(event)
            case Delegated():
                spent = self._spend(event.usage, event.cost_microusd)
                delegates = tuple(dict.fromkeys((*self.delegates, event.call_id)))
                return spent._with(delegates=delegates, barren_claims=0, infra_yields=0, provider_parks=0)
            case Asked():
                return self._with(asked=event)
            case Decided():
                return self._with(asked=None)
            case Steered():
                return self.steered(event)
            case Parked():
                not_before = None if event.waiting in ("approval", "question") else event.until
                parks = self.provider_parks + (event.waiting == "provider" and not event.paced)
                return self._with(
                    status="waiting", waiting=event, not_before=not_before, barren_claims=0, provider_parks=parks
                )
            case Yielded():
                infra = self.infra_yields + 1 if event.why == "infra" else self.infra_yields
                return self._with(status="queued", not_before=event.not_before, barren_claims=0, infra_yields=infra)
            case Unrecorded():
                spent = self._spend(Usage(input_tokens=event.tokens), event.cost_microusd)
                return spent._with(unrecorded_microusd=self.unrecorded_microusd + (event.cost_microusd or 0))
            case Compacted():
                return self._spend(event.usage, event.cost_microusd)._with(
                    compactions=self.compactions + 1, compactions_in_row=self.compactions_in_row + 1
                )
            case FedBack():
                feedbacks = self.feedbacks + bool(event.checks or event.guards)
                told = self.guards_told or bool(event.guards)
                run = self._with(turn="model", finished=None, verdict=None, unheard=False)
                return run._with(feedbacks=feedbacks, guards_told=told)
            case Finished():
                return self._with(finished=event, turn="verdict", pending=())
            case Verdict():
                return self._with(verdict=event, turn="seal")
            case Sealed():
                return self._with(status="sealed", sealed=event, turn="none", waiting=None, pending=())
            case _:
                return self

    def _spend(self, usage: Usage, cost_microusd: int | None) -> Run:
        total = Usage(
            input_tokens=self.usage.input_tokens + usage.input_tokens,
            cache_read_tokens=self.usage.cache_read_tokens + usage.cache_read_tokens,
            cache_write_tokens=self.usage.cache_write_tokens + usage.cache_write_tokens,
            output_tokens=self.usage.output_tokens + usage.output_tokens,
        )
        return self._with(
            usage=total,
            cost_microusd=self.cost_microusd + (cost_microusd or 0),
            unpriced_replies=self.unpriced_replies + (cost_microusd is None),
        )

    def _replied(self, event: Replied) -> Run:
        reply = event.reply
        empty = not reply.calls and not reply.text.strip() and reply.stop in ("end", "calls")
        executable = reply.calls if reply.stop in ("end", "calls") else ()
        cut = reply.stop == "length"
        return self._spend(reply.usage, reply.cost_microusd)._with(
            steps=event.step,
            compactions_in_row=0,
            command_steps=event.step if event.phase == "commands" else self.command_steps,
            context_tokens=event.context_tokens,
            pending=executable,
            turn="calls" if executable else "model",
            # Only what can be executed, or ends the turn, is a good reply: bad ones of two kinds may take turns too.
            empty_replies=self.empty_replies + empty if empty or cut or executable else 0,
            malformed_replies=self.malformed_replies + cut if empty or cut or executable else 0,
            barren_claims=0,
            infra_yields=0,
            provider_parks=0,
        )

    def steered(self, event: Steered) -> Run:
        """The run after a message was consumed."""
        run, switched = self, {"pause": event.by, "unpause": ""}
        if event.scope == "run":
            unheard = run.unheard or (event.kind == "message" and run.finished is not None)
            run = run._with(inbox_seen=max(run.inbox_seen, event.n + 1), unheard=unheard)
            return run._with(paused_by=switched.get(event.kind, run.paused_by))
        run = run._with(control_seen=max(run.control_seen, event.n + 1))
        if event.kind == "budget" and (allowed := budget_microusd(event.text)) is not None:
            return run._with(batch_budget_microusd=allowed)
        return run._with(batch_paused_by=switched.get(event.kind, run.batch_paused_by))

    def _observed(self, event: Observed) -> Run:
        observation = event.observation
        pending = tuple(call for call in self.pending if call.id != observation.call_id)
        failed = observation.status != "ok" or observation.exit_code not in (0, None)
        # An error without an exit code never ran: its arguments made no sense. Counted once a reply, at its end.
        malformed = observation.status == "error" and observation.exit_code is None
        chain = self.chain
        if event.snapshot is not None and event.snapshot.object is not None:
            chain = (event.snapshot,) if event.snapshot.level == 0 else (*chain, event.snapshot)
        files = tuple(dict.fromkeys((*self.files, *event.files)))
        failed_commands = self.failed_commands
        if failed and self.steps == self.command_steps:
            told = observation.status in ("ok", "error") and observation.exit_code is not None
            end = f"exit code {observation.exit_code}" if told else observation.status
            failed_commands = (*failed_commands, (self.steps, end))
        return self._with(
            failed_commands=failed_commands,
            pending=pending,
            called="",
            turn="calls" if pending else "model",
            failing_calls=self.failing_calls + 1 if failed else 0,
            empty_replies=self.empty_replies if malformed else 0,
            malformed_replies=self.malformed_replies + (not pending) if malformed else 0,
            chain=chain,
            snapshot=event.snapshot or self.snapshot,
            files=files,
            plan=self.plan if event.plan is None else event.plan,
            barren_claims=0,
            infra_yields=0,
        )


def fold(records: Iterable[tuple[Record, str]], start: Run | None = None) -> Run:
    """Fold (record, hash of its line) pairs, oldest first, onto start (a fresh Run by default)."""
    run = start or Run()
    for record, line_hash in records:
        run = run.after(record, line_hash)
    return run


FailOn = Literal["any", "all", "infra", "never"]


def exit_code(runs: Iterable[Run], *, held: bool = False, fail_on: FailOn = "any") -> ExitCode:
    """The exit code of a set of sealed or waiting runs, by the plan's precedence 8, 7, 6, 9, 5, 4, 0.

    Skipped, stopped or waiting for a budget of the batch or the day: 6. Skipped by breaker: 7. Waiting for a person:
    9. One run that failed: 4, never 5. held: some were not begun, because a budget is used up. fail_on: failed runs
    count where there are any, where all failed, where one failed for our own machinery (class infra), or never.
    """
    found: set[ExitCode] = {ExitCode.BUDGET} if held else set()
    failed = infra = total = 0
    for run in runs:
        total += 1
        sealed = run.sealed
        if sealed is None:
            waits = run.waiting.waiting if run.waiting is not None else ""
            if waits in ("approval", "question"):
                found.add(ExitCode.PERSON_NEEDED)
            elif waits == "budget":
                found.add(ExitCode.BUDGET)
            continue
        if sealed.outcome == "cancelled":
            found.add(ExitCode.CANCELLED)
        elif sealed.outcome == "skipped" and sealed.detail in ("budget", "breaker"):
            found.add(ExitCode.BUDGET if sealed.detail == "budget" else ExitCode.BREAKER)
        elif sealed.outcome == "failed" or sealed.verdict in FAILED_VERDICTS:
            failed += 1
            infra += sealed.failure is not None and sealed.failure.cls == "infra"
            if sealed.failure is not None and sealed.failure.cls == "limit" and sealed.failure.reason in BUDGETS:
                found.add(ExitCode.BUDGET)
    counts = {"any": failed > 0, "all": 0 < failed == total, "infra": infra > 0, "never": False}
    if counts[fail_on]:
        found.add(ExitCode.ALL_FAILED if failed == total and total > 1 else ExitCode.SOME_FAILED)
    order = (
        ExitCode.CANCELLED,
        ExitCode.BREAKER,
        ExitCode.BUDGET,
        ExitCode.PERSON_NEEDED,
        ExitCode.ALL_FAILED,
        ExitCode.SOME_FAILED,
    )
    return next((code for code in order if code in found), ExitCode.OK)


def _elapsed_s(before: str, after: str) -> float:
    return max(0.0, (datetime.fromisoformat(after) - datetime.fromisoformat(before)).total_seconds())
