"""Owns playing a run's record once more: the same harness on the recorded replies, in real containers, up to the
first act that is not the recorded one. Refuses to write to the archive, to ask a provider, and to repeat what reached
outside.

`python -m worker.replay RUN` prints one JSON object; `dawn replay` starts it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from worker import context, phases, verdict
from worker.before_call import Hook, open_hook
from worker.contract.cancel import Cancel
from worker.contract.errors import ConflictFault, ExitCode, Fault, InvalidFault
from worker.contract.events import (
    Asked,
    Called,
    Claimed,
    Compacted,
    Delegated,
    Event,
    FedBack,
    Finished,
    Observed,
    Parked,
    Prepared,
    Replied,
    Reply,
    ToolCall,
    Verdict,
)
from worker.contract.redact import Redactor, redactor_from_env, without_passwords
from worker.contract.run import Run, fold
from worker.contract.settings import Settings
from worker.contract.task import Task
from worker.delegate import RunHost
from worker.environments import recorded, restore_chain
from worker.host import Stopped
from worker.ledger import Ledger
from worker.mailbox import Mailbox
from worker.main import archive_id
from worker.models.protocol import Model, ModelRequest, cancelled_fault
from worker.recording import OURS, Diverged, Recording, by_itself, summary_reply
from worker.sandbox.protocol import Owner, Sandbox
from worker.station import Station, utc_now
from worker.store import keys
from worker.store.archive import Archive, open_archive
from worker.store.hints import Hints
from worker.store.journal import Journal, Line
from worker.store.local import LocalArchive
from worker.store.overlay import Overlay
from worker.tools.notes import Delegate
from worker.tools.tool import Answer, Tool
from worker.tools.toolset import toolset


@dataclass(frozen=True)
class Replayed:
    """steps, calls: how many were done again. alike: outputs that differ only in numbers and filling. outside: calls
    that reached outside and were taken from the record. diverged: None when all that is on record came again."""

    run: str
    steps: int
    calls: int
    alike: int
    outside: int
    diverged: dict[str, Any] | None


class Unending:
    """The term of who writes where nobody else can."""

    def wait_current(self) -> bool:
        return True


@dataclass(frozen=True)
class RecordedModel:
    """Says what the model said, and throws the switch where the record has nothing more of it."""

    name: str
    recording: Recording

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        """Raises Diverged, and ProviderFault at the end."""
        said = self.recording.reply(request.step, request.purpose)
        if said is None:
            cancel.set("the record ends here")
            raise cancelled_fault(cancel)
        return said


@dataclass(frozen=True)
class DelegatesModel:
    """Says what the model said as a delegate, each reply in its place."""

    name: str
    events: Sequence[Event]

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        """Raises InvalidFault where the record has no more of it."""
        said = {
            "reply": [event.reply for event in self.events if isinstance(event, Replied)],
            "summary": [summary_reply(event) for event in self.events if isinstance(event, Compacted)],
        }[request.purpose]
        if request.reply_index >= len(said):
            raise InvalidFault("the record of this delegate ends here")
        return said[request.reply_index]


class ReplayHost(RunHost):
    """A run's host that holds each act against the record."""

    def __init__(
        self, recording: Recording, delegates: Mapping[str, Sequence[Line]], say: Callable[[str], None], *attempt: Any
    ) -> None:
        """delegates: call -> the record of its delegate. attempt: what an AttemptHost is made of."""
        super().__init__(*attempt)
        self.recording, self._delegates, self._say = recording, delegates, say
        self.calls = self.outside = 0

    def inbox(self) -> None:
        """What people said comes where it came then."""
        for event in self.recording.outside():
            super().commit(event)

    def commit(self, *events: Event) -> None:
        super().commit(*events)
        for record in self.records()[-len(events) :]:
            self.recording.met(record.event)

    def ask(self, asked: Asked) -> Parked:
        """Nobody is asked again: the recorded answer is taken in, if one came."""
        self.commit(asked)
        self.inbox()
        return Parked(waiting=asked.kind, detail=asked.question)

    def observe(self, call: ToolCall, tool: Tool, arguments: Any) -> Parked | Stopped | None:
        work = tool.command(arguments, self._context())
        if not isinstance(work, Answer) and any(command.outside for command in work):
            self.commit(Called(call_id=call.id))
            return self._taken()
        lines = self._delegates.get(call.id, [])
        if isinstance(tool, Delegate):
            self.inbox()  # a reply that was lost with a worker
            if not self._comes_again(lines):
                return self._taken()
        if (ended := super().observe(call, tool, arguments)) is not None:
            return ended
        self.settle()
        if lines:
            self._compare(call, lines)
        self.calls += 1
        self._say(f"step {self.run.steps}: {call.name}")
        self.recording.met(self.records()[-1].event)
        return None

    def _comes_again(self, lines: Sequence[Line]) -> bool:
        """Whether a delegate ended by itself, and so did its call. Of one that could not begin there is no record."""
        ended = fold(lines).finished
        sound = not lines or (ended is not None and by_itself(ended.failure))
        return sound and isinstance(self.recording.next, Observed)

    def _compare(self, call: ToolCall, lines: Sequence[Line]) -> None:
        """What a delegate did now with what is on record. Raises Diverged."""
        recorded = Recording(Run(), lines)
        try:
            for record, _ in Journal(self._station.archive, keys.delegate(self.run.id, call.id)).read():
                if isinstance(record.event, OURS):
                    recorded.met(record.event)
        except Diverged as now:
            raise Diverged(self.run.steps, f"delegate of {call.id}: {now.what}", now.recorded, now.now) from None
        self.recording.alike += recorded.alike

    def _taken(self) -> Stopped | None:
        """A call that is not repeated: its result and what it left in the workspace are the recorded ones."""
        seen = self.recording.next
        if not isinstance(seen, Observed):
            self.cancel.set("the record ends here")
            return Stopped(self.cancel.reason)
        self.outside += 1
        then = self.recording.met(seen)
        self._workspace.restore(restore_chain(self._station.archive, self._prepared, then))
        snapshot, _ = self._saved(0, full=True)
        super().commit(seen.model_copy(update={"snapshot": snapshot}))
        return None


@dataclass(frozen=True)
class Replay:
    """What a replay is made of. before_call: the deployment's hook. say: hears of each call, one line."""

    archive: Archive
    sandbox: Sandbox
    settings: Settings
    redactor: Redactor
    before_call: Hook
    say: Callable[[str], None]

    def of(self, run: str) -> Replayed:
        """Raises ConflictFault for a run that has not ended or was never prepared, and what restoring raises."""
        journal = Journal(self.archive, run)
        task, lines = journal.task(), list(journal.read())
        ended = fold(lines)
        if ended.sealed is None:
            raise ConflictFault(f"run {run} has not ended", hint=f"wait for it: dawn logs {run} -f")
        opening, later = [line for line in lines if line[0].seq == 0], [line for line in lines if line[0].seq > 0]
        prepared = next((record.event for record, _ in later if isinstance(record.event, Prepared)), None)
        if prepared is None:
            raise ConflictFault(f"run {run} ended before its repository was there")
        # A claim that nobody made, so no janitor takes it for an attempt that ended; `dawn diff` uses the one before.
        owner = Owner(archive_id(self.archive), run, ended.last_seq + 2, "agent")
        for left, resource in self.sandbox.owned(owner.archive):
            if (left.run, left.claim) == (owner.run, owner.claim):
                self.sandbox.remove(resource)
        with tempfile.TemporaryDirectory(prefix="dawn-replay-") as folder:
            above = LocalArchive(Path(folder).as_uri())
            above.create(keys.segment(run, 0), self.archive.get(keys.segment(run, 0)))
            calls = {record.event.call_id for record, _ in later if isinstance(record.event, Delegated)}
            delegates = {call: list(Journal(self.archive, keys.delegate(run, call)).read()) for call in calls}
            fresh = (keys.journal(run), *(keys.journal(keys.delegate(run, call)) for call in calls))
            station = self._station(Overlay(self.archive, above, fresh=fresh), owner.archive)
            return self._played(task, Recording(fold(opening), later), delegates, prepared, station, owner)

    def _delegates_model(self, task: Task) -> Model:
        return DelegatesModel(task.model, [record.event for record, _ in Journal(self.archive, task.run).read()])

    def _station(self, archive: Archive, name: str) -> Station:
        """Of a worker that nobody hears of: no command is ever sent to its Redis."""
        return Station(
            name="replay",
            lane="main",
            settings=self.settings,
            archive=archive,
            archive_id=name,
            hints=Hints("unix:///nowhere"),
            sandbox=self.sandbox,
            redactor=self.redactor,
            secrets={},
            open_model=self._delegates_model,
            before_call=self.before_call,
        )

    def _played(
        self,
        task: Task,
        recording: Recording,
        delegates: Mapping[str, Sequence[Line]],
        prepared: Prepared,
        station: Station,
        owner: Owner,
    ) -> Replayed:
        cancel = Cancel()
        ledger = Ledger(Journal(station.archive, task.run), Unending(), cancel, self.redactor, utc_now)
        ledger.claim(Claimed(worker=station.name, engine=self.sandbox.engine_id, lane=station.lane))
        ledger.commit(prepared)
        environment = recorded(station.archive, self.sandbox, prepared)
        mailbox = Mailbox(station, ledger, cancel, task.batch)

        def measured() -> Verdict:
            return verdict.of_workspace(
                task,
                ledger.run,
                workspace,
                environment,
                archive=station.archive,
                sandbox=self.sandbox,
                owner=owner,
                put_blob=ledger.put_blob,
                redactor=self.redactor,
                cancel=cancel,
            )[1]

        with (
            self.sandbox.workspace(owner, environment.image, task.limits) as workspace,
            ReplayHost(
                recording, delegates, self.say, task, station, ledger, workspace, environment, cancel, mailbox
            ) as host,
        ):
            host.restore()
            diverged = _first_divergence(host, recording, measured)
            told = None if diverged is None else vars(diverged)
            return Replayed(task.run, host.run.steps, host.calls, recording.alike, host.outside, told)


def _first_divergence(host: ReplayHost, recording: Recording, measured: Callable[[], Verdict]) -> Diverged | None:
    """The first act that is not the recorded one, None when all of them came, up to where the run was cancelled,
    waited for good, or lost its provider."""
    task = host.task
    model = None if task.model == "none" else RecordedModel(task.model, recording)
    try:
        while True:
            if host.run.turn != "verdict":
                ended = phases.work(host, model, toolset(task))
                if isinstance(ended, Parked) and host.run.asked is None:
                    continue  # it was answered
                if not isinstance(ended, Finished):
                    return None
            host.inbox()  # words that came as it finished give the model its turn again
            if host.run.turn != "verdict":
                continue
            if not isinstance(recording.next, Verdict | FedBack):
                return None
            seen = measured()
            told = context.feedback(seen, host.run)
            if isinstance(recording.next, Verdict) or told is None:
                host.commit(seen)
                return None
            host.commit(told)
    except Diverged as diverged:
        return diverged


def main() -> int:
    """The process. Exit code 0 when all came again, 4 when something did not, or a fault's own."""
    from worker.sandbox.sandbox import DockerSandbox

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    try:
        settings = Settings()
        hook = open_hook(settings.before_call, settings.before_call_timeout_s)
        sandbox = DockerSandbox(settings)
        try:
            archive = open_archive(settings.archive_url, settings)
            replay = Replay(archive, sandbox, settings, redactor_from_env(os.environ), hook, say)
            replayed = replay.of(sys.argv[1])
        finally:
            sandbox.close()
    except Fault as fault:
        print(f"error: {without_passwords(str(fault))}", file=sys.stderr)
        return int(fault.exit_code)
    print(json.dumps(asdict(replayed)))
    return int(ExitCode.OK if replayed.diverged is None else ExitCode.SOME_FAILED)


if __name__ == "__main__":
    sys.exit(main())
