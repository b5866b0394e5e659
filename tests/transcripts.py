"""Owns a journal in memory, and a Host on it, for tests of the pure parts: events in, records and their fold out.
Refuses to wait: what a real host does in the background happens when it is waited for."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from worker.contract.cancel import Cancel
from worker.contract.events import (
    Asked,
    Claimed,
    Event,
    Instruction,
    Observation,
    Observed,
    Parked,
    Prepared,
    Record,
    Replied,
    Reply,
    SnapshotRef,
    Steered,
    Submitted,
    ToolCall,
    digest,
)
from worker.contract.run import Run
from worker.contract.task import Check, Limits, Repo, Task
from worker.host import Stopped
from worker.models.protocol import AssistantMessage, Message, ToolResults, UserMessage
from worker.policy import ALLOW, Ruling
from worker.tools.tool import Tool

START = datetime(2026, 11, 1, tzinfo=UTC)


def task(commands: tuple[str, ...] = (), **limits: Any) -> Task:
    """A task with one check; limits as keywords."""
    return Task(
        run="r1",
        batch="b1",
        target="t1",
        repo=Repo(url="https://example.org/r.git", path="pkg"),
        prompt="Fix the sum.",
        model="scripted:x",
        script="",
        commands=commands,
        checks=(Check(name="tests", command="pytest -q"),),
        limits=Limits(**limits),
    )


class Transcript:
    """One run's journal. Every append is one second after the one before."""

    def __init__(self, task: Task, *, instructions: tuple[Instruction, ...] = ()) -> None:
        self.task = task
        self.run = Run()
        self.segments: list[list[Record]] = []
        self._records: list[Record] = []
        self.commit(Submitted(by="test"))
        self.commit(Claimed(worker="w", engine="e", lane="batch"))
        self.commit(
            Prepared(
                environment_key="k",
                environment="a" * 64,
                commit="c",
                image="i",
                reused=False,
                instructions=instructions,
            )
        )

    def records(self) -> Sequence[Record]:
        return self._records

    def commit(self, *events: Event) -> None:
        """Append the events as one segment, written and read back as a journal does."""
        segment = []
        for event in events:
            line = self._record(event).line()
            record = Record.parse(line)
            self.run = self.run.after(record, digest(line))
            segment.append(record)
        self.segments.append(segment)
        self._records += segment

    def _record(self, event: Event) -> Record:
        seq = len(self.segments)
        at = (START + timedelta(seconds=seq)).isoformat(timespec="milliseconds")
        attempt = None if seq == 0 else 1
        return Record(run="r1", seq=seq, at=at, attempt=attempt, nonce="n", prev="0" * 64, event=event)

    def reply(self, *calls: ToolCall, **fields: Any) -> None:
        """The next model reply; text makes it a final one."""
        reply = Reply(calls=calls, stop=fields.pop("stop", "calls" if calls else "end"), **fields)
        self.commit(Replied(step=self.run.steps + 1, phase="model", reply=reply))

    def observe(self, call: ToolCall, output: str = "", *, tree: str | None = None, **fields: Any) -> None:
        """The observation of a call; tree: one letter that stands for the work tree after it."""
        snapshot = None if tree is None else SnapshotRef(listing=tree * 64, tree=tree * 64, object=tree * 64)
        seen = {"status": "ok", "exit_code": 0} | fields
        self.commit(
            Observed(
                observation=Observation(call_id=call.id, tool=call.name, output=output, **seen), snapshot=snapshot
            )
        )

    def step(self, command: str, output: str = "", *, tree: str | None = None, **fields: Any) -> None:
        """A reply with one run_command call, and its observation."""
        call = shell(command, self.run.steps + 1)
        self.reply(call)
        self.observe(call, output, tree=tree, **fields)


class Patience(Cancel):
    """A switch whose waits take no time and are remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_s: list[float] = []

    def wait(self, timeout_s: float) -> bool:
        self.waits_s.append(timeout_s)
        return self.is_set()


def in_s(pause_s: float) -> str:
    """When a pause ends for a host whose clock does not go on."""
    return (datetime(2026, 11, 30, tzinfo=UTC) + timedelta(seconds=pause_s)).isoformat()


class MemoryHost(Transcript):
    """A Host whose calls are answered by a function of the command: (exit code, output, tree).

    keep: what is committed of what was shown and got its snapshot; may raise as a real commit does. hook: the
    deployment's ruling over every call.
    """

    def __init__(self, task: Task, shell: Callable[[str], tuple[int, str, str]] = lambda _: (0, "", "a")) -> None:
        self.cancel = Patience()
        self.ran: list[str] = []
        self.now_s = 0.0
        self.mail: list[Any] = []
        self.shell = shell
        self.hook = ALLOW
        self.keep: Callable[[Observed], Observed] = lambda observed: observed
        self._shown: tuple[Run, Observed] | None = None
        super().__init__(task)

    def working_s(self) -> float:
        return self.now_s

    def inbox(self) -> Parked | Stopped | None:
        while self.mail:
            message = self.mail.pop(0)
            if not isinstance(message, Steered):
                return message
            self.commit(message)
        return None

    def before_call(self, call: ToolCall, arguments: Any) -> Ruling:
        return self.hook

    def ask(self, asked: Asked) -> Parked:
        parked = Parked(waiting=asked.kind, detail=asked.question)
        self.commit(asked, parked)
        return parked

    def wait_turn(self, wait_s: float) -> bool:
        return self.cancel.wait(wait_s)

    def wait_for_provider(self, pause_s: float, detail: str, *, paced: bool = False) -> Parked:
        parked = Parked(waiting="provider", until=in_s(pause_s), detail=detail, paced=paced)
        self.commit(parked)
        return parked

    def wait_for_budget(self, until: str | None, detail: str) -> Parked:
        parked = Parked(waiting="budget", until=until, detail=detail)
        self.commit(parked)
        return parked

    def commit(self, *events: Event) -> None:
        self.settle()
        super().commit(*events)

    def observe(self, call: ToolCall, tool: Tool, arguments: Any) -> Stopped | None:
        self.settle()
        command = getattr(arguments, "command", tool.name)
        self.ran.append(command)
        code, output, tree = self.shell(command)
        if self.cancel.is_set():
            return Stopped(self.cancel.reason)
        seen = Observation(
            call_id=call.id, tool=call.name, status="ok" if code == 0 else "error", exit_code=code, output=output
        )
        record = self._record(Observed(observation=seen))
        snapshot = SnapshotRef(listing=tree * 64, tree=tree * 64)
        self._shown = self.run, Observed(observation=seen, snapshot=snapshot)
        self.run = self.run.after(record, "")
        self._records.append(record)
        return None

    def settle(self) -> bool:
        if self._shown is None:
            return True
        (self.run, shown), self._shown = self._shown, None
        self._records.pop()
        committed = self.keep(shown)
        self.commit(committed)
        return committed.observation == shown.observation


def shell(command: str, step: int, position: int = 1) -> ToolCall:
    """A run_command call."""
    return ToolCall(id=f"call_{step}_{position}", name="run_command", arguments=json.dumps({"command": command}))


def body(messages: tuple[Message, ...]) -> str:
    """All that a request's messages hold as one JSON text, unescaped, as an SDK would encode it."""
    parts: list[Any] = []
    for message in messages:
        match message:
            case UserMessage(text=text):
                parts.append(text)
            case AssistantMessage(reply=reply):
                parts.append(reply.model_dump())
            case ToolResults(results=results):
                parts += [[result.call_id, result.content] for result in results]
    return json.dumps(parts, ensure_ascii=False)
