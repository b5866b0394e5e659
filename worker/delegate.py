"""Owns delegates: a call of the tool `delegate` is answered by the same loop, in a journal of its own below the run's
and with tools that only read. Refuses to let a delegate have one.

Whoever holds the run's claim writes the delegate's journal too: an attempt that takes the run over runs the call
again as any other, claims the delegate's journal, and goes on from its last reply. After each reply the run's own
journal says how far the delegate has come and what that cost (`delegated`), so that money and evidence are right
wherever somebody dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from worker import loop, meter
from worker.contract.errors import IntegrityFault, InvalidFault, NotFoundFault, ProviderFault, VersionFault
from worker.contract.events import (
    Claimed,
    Delegated,
    Event,
    Failure,
    Finished,
    Observation,
    Observed,
    Parked,
    Prepared,
    Record,
    Replied,
    ToolCall,
)
from worker.contract.model_name import parse_model_name
from worker.contract.run import Run, fold
from worker.contract.script import delegate_script
from worker.contract.task import Limits, Task
from worker.host import Stopped
from worker.hosting import AttemptHost
from worker.ledger import Ledger
from worker.lost_reply import lost_reply
from worker.mailbox import Mailbox
from worker.prompts import text
from worker.rendering import valid
from worker.station import Station
from worker.store import keys
from worker.store.journal import Journal
from worker.tools import observe
from worker.tools.notes import Delegate, DelegateArguments
from worker.tools.output import clip
from worker.tools.tool import Answer, Tool
from worker.tools.toolset import delegates_toolset

STEPS: Final = 30
"""Replies of one delegate, at most."""
PART: Final = 4
"""Of the tokens, money and working time that the run has left, a delegate gets one part of so many."""
ANSWER_BYTES: Final = 4_096
"""Shown of its last words; its journal has all of them."""


class RunHost(AttemptHost):
    """A run's Host: an AttemptHost whose calls may have a delegate."""

    def observe(self, call: ToolCall, tool: Tool, arguments: Any) -> Parked | Stopped | None:
        if not isinstance(tool, Delegate):
            return super().observe(call, tool, arguments)
        assert isinstance(arguments, DelegateArguments), "the toolset parsed them"
        self.settle()
        journal = Journal(self._station.archive, keys.delegate(self.run.id, call.id))
        try:
            task = self._asked(journal, call, arguments.goal)
            child = self._pen(journal)
        except (IntegrityFault, InvalidFault, VersionFault) as fault:
            self._ledger.commit(
                Observed(observation=observe.answered(call, Answer(f"no delegate: {fault}", ok=False)))
            )
            return None
        if child.run.finished is None and (left := self._work(call, task, child)) is not None:
            if isinstance(left, Parked):
                self._ledger.commit(left)
            return left
        _tell(self._ledger, call, child.records, child.run)
        self._ledger.commit(Observed(observation=_answer(call, child)))
        return None

    def _asked(self, journal: Journal, call: ToolCall, goal: str) -> Task:
        """What the delegate is asked, written by the first attempt that comes here. Raises InvalidFault when nothing
        is left for it, or a script has no words for it."""
        try:
            task = journal.task()
        except NotFoundFault:
            task = _task(self._task, self.run, self.working_s(), call, goal)
        by, at = f"the run, {call.id}", self._station.now()
        self._ledger.patiently(lambda: journal.submit(task, by, at))
        return task

    def _pen(self, journal: Journal) -> Ledger:
        station = self._station
        return Ledger(journal, _Within(self._ledger), self._cancel, station.redactor, station.now, station.spool)

    def _work(self, call: ToolCall, task: Task, child: Ledger) -> Parked | Stopped | None:
        """Go on with the delegate until it has finished; else what ends the attempt before that."""
        station, prepared = self._station, child.run.prepared
        child.claim(Claimed(worker=station.name, engine=station.sandbox.engine_id, lane=station.lane))
        mailbox = Mailbox(station, child, self._cancel, task.batch)
        attempt = (task, station, child, self._workspace, self._prepared, self._cancel, mailbox)
        with DelegateHost(self._ledger, call, *attempt) as host:
            if prepared is None:
                host.commit(self._prepared_event)
            try:
                model = station.open_model(task)
            except (InvalidFault, ProviderFault) as fault:
                host.commit(Finished(failure=_unopened(fault)))
                return None
            ended = loop.work(host, model, delegates_toolset(task))
            return ended if isinstance(ended, Parked | Stopped) else None

    @property
    def _prepared_event(self) -> Prepared:
        """Where the delegate works, and what the repository tells agents."""
        prepared = self.run.prepared
        assert prepared is not None, "calls run in a prepared environment"
        return prepared.model_copy(update={"snapshot": None})


class DelegateHost(AttemptHost):
    """The Host of a delegate, in its run's workspace. People speak to the run, which listens between its calls."""

    def __init__(self, ledger: Ledger, call: ToolCall, *attempt: Any) -> None:
        """ledger: the run's. attempt: what an AttemptHost is made of."""
        super().__init__(*attempt)
        self._runs_ledger, self._call = ledger, call

    def commit(self, *events: Event) -> None:
        super().commit(*events)
        _tell(self._runs_ledger, self._call, self._ledger.records, self._ledger.run)

    def _waited(self, seconds: float) -> None:
        super()._waited(seconds)
        self._runs_ledger.waited(seconds)

    def inbox(self) -> Stopped | None:
        if self._station.drain.is_set():
            return Stopped("drain")
        self._ledger.check()
        return None


@dataclass(frozen=True)
class _Within:
    """The term of a delegate's pen: the run's, whose journal nobody else may have gone on with."""

    ledger: Ledger

    def wait_current(self) -> bool:
        self.ledger.check()
        return True


def take_stock(before: Run, ledger: Ledger, station: Station) -> None:
    """After an attempt that died while a delegate was at work: count what that did and nobody told of, and the reply
    that may have been on its way. before: the run as that attempt left it."""
    call = before.pending[0] if before.status == "running" and before.pending else None
    if call is None or call.name != Delegate.name:
        return
    journal = Journal(station.archive, keys.delegate(before.id, call.id))
    try:  # patiently: an attempt that gave up here would leave a run that nobody takes stock of any more
        task, lines = ledger.patiently(lambda: (journal.task(), list(journal.read())))
    except (IntegrityFault, NotFoundFault, VersionFault):
        return  # it had not begun, or is for the call to complain of
    records, child = [record for record, _ in lines], fold(lines)
    _tell(ledger, call, records, child)
    lost = lost_reply(task, child, records, delegates_toolset(task).specs, station.prices)
    if lost is not None:
        ledger.commit(lost)


def _tell(ledger: Ledger, call: ToolCall, records: Sequence[Record], child: Run) -> None:
    """Say in the run's journal how far its delegate has come, where a reply or the end is not told of yet."""
    events = [record.event for record in ledger.records]
    told = [event.seq for event in events if isinstance(event, Delegated) and event.call_id == call.id]
    new = fold((record, "") for record in records if record.seq > max(told, default=-1))
    spent = new.usage.total or new.cost_microusd or new.unpriced_replies
    if not (new.steps or new.compactions or spent or new.finished):
        return
    cost_microusd = None if new.unpriced_replies else new.cost_microusd
    seq, line_hash = child.last_seq, child.last_hash
    ledger.commit(Delegated(call_id=call.id, seq=seq, hash=line_hash, usage=new.usage, cost_microusd=cost_microusd))


def _task(task: Task, run: Run, working_s: float, call: ToolCall, goal: str) -> Task:
    names = [parse_model_name(name) for name in (task.model, *task.fallbacks)]
    models = [f"replay:{keys.delegate(n.name, call.id)}" if n.provider == "replay" else str(n) for n in names]
    prompt = text("delegate", goal=goal, bytes=ANSWER_BYTES)
    script = None if task.script is None else delegate_script(task.script, names[0].name, goal)
    asked = {
        "run": keys.delegate(task.run, call.id),
        "prompt": prompt,
        "commands": (),
        "model": models[0],
        "fallbacks": tuple(models[1:]),
        "script": script,
        "checks": (),
        "limits": _limits(task.limits, run, working_s),
        "on_ask": "deny",
        "fork": None,
    }
    return task.model_copy(update=asked)


def _limits(limits: Limits, run: Run, working_s: float) -> Limits:
    """A part of what is left to the run. Raises InvalidFault when there is nothing to divide."""
    tokens = (limits.tokens - run.tokens) // PART
    left_usd = None if limits.cost_usd is None else (limits.cost_usd - run.cost_microusd / 1e6) / PART
    left_s = (limits.working_time_s - working_s) / PART
    if tokens < 1 or left_s <= 0 or (left_usd is not None and left_usd <= 0):
        raise InvalidFault("what this run may spend is used up")
    part = {
        "steps": min(STEPS, limits.steps),
        "tokens": tokens,
        "cost_usd": left_usd,
        "working_time_s": left_s,
        "call_timeout_s": min(limits.call_timeout_s, left_s),
    }
    return limits.model_copy(update=part)


def _unopened(fault: InvalidFault | ProviderFault) -> Failure:
    if isinstance(fault, ProviderFault):
        return meter.provider_failure(fault)
    return Failure(cls="provider", reason="bad_request", detail=str(fault))


def _answer(call: ToolCall, child: Ledger) -> Observation:
    """What the run's model is told of a delegate that has finished: its answer, or why there is none, and what it had
    said before."""
    finished = child.run.finished
    assert finished is not None, "it was worked on until then"
    said = finished.text
    if finished.failure is not None:
        words = [record.event.reply.text for record in child.records if isinstance(record.event, Replied)]
        told = "\n".join(part for part in words if part)
        said = f"it ended as {finished.failure}: {finished.failure.detail}\n{told}".rstrip()
    said = valid(said)
    shown = clip(said, ANSWER_BYTES)
    if shown != said:
        shown += f"\n[cut here, of {len(said.encode())} bytes]"
    answered = observe.answered(call, Answer(shown, ok=finished.failure is None))
    return answered.model_copy(update={"duration_ms": round(child.run.working_s * 1000)})
