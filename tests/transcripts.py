"""Owns a journal in memory for tests of the pure parts: events in, records and their fold out."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from worker.contract.events import (
    Claimed,
    Event,
    Observation,
    Observed,
    Prepared,
    Record,
    Replied,
    Reply,
    SnapshotRef,
    Submitted,
    ToolCall,
    digest,
)
from worker.contract.run import Run
from worker.contract.task import Check, Limits, Repo, Task
from worker.models.protocol import AssistantMessage, Message, ToolResults, UserMessage

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

    def __init__(self, task: Task) -> None:
        self.task = task
        self.run = Run()
        self.segments: list[list[Record]] = []
        self.commit(Submitted(by="test"))
        self.commit(Claimed(worker="w", engine="e", lane="batch"))
        self.commit(Prepared(environment_key="k", environment="a" * 64, commit="c", image="i", reused=False))

    def records(self) -> list[Record]:
        return [record for segment in self.segments for record in segment]

    def commit(self, *events: Event) -> None:
        """Append the events as one segment, written and read back as a journal does."""
        seq = len(self.segments)
        at = (START + timedelta(seconds=seq)).isoformat(timespec="milliseconds")
        attempt = None if seq == 0 else 1
        segment = []
        for event in events:
            record = Record(run="r1", seq=seq, at=at, attempt=attempt, nonce="n", prev="0" * 64, event=event)
            line = record.line()
            record = Record.parse(line)
            self.run = self.run.after(record, digest(line))
            segment.append(record)
        self.segments.append(segment)

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
