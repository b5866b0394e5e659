"""Owns what the model sees: task and records become a ModelRequest. Pure; refuses to drop or rewrite history.

Append-only: between compactions the messages of a longer journal start with those of a shorter one, so that
provider caches hit, and a step costs what it adds. Every text is valid UTF-8, whatever a file, a command or a model
put into the journal.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from worker import meter
from worker.contract.events import (
    CheckResult,
    Compacted,
    FedBack,
    Observation,
    Observed,
    Prepared,
    Record,
    Replied,
    Reply,
    Steered,
    ToolCall,
)
from worker.contract.run import Run
from worker.contract.task import Task
from worker.models.protocol import (
    AssistantMessage,
    Message,
    ModelRequest,
    ToolResult,
    ToolResults,
    ToolSpec,
    UserMessage,
)
from worker.prompts import text
from worker.tools.tool import ARGUMENTS_BYTES_MAX

REPEAT_NUDGES = (3, 5, 8)
"""How often the same call must have had the same result before the model is told (plan, section 6)."""

COMMAND_TAIL_CHARS = 4_000
"""Shown of what a command before the model's turn wrote; read_output has all of it."""

BYTES_PER_TOKEN = 3.5
"""A cautious average: English and code have about 4 bytes a token, other scripts fewer."""


def feedback(checks: Sequence[CheckResult]) -> str:
    """The text of a `fed_back` event: the checks that are not green, each with the tail of its output."""
    red = (check for check in checks if check.status != "green")
    parts = [f"{check.name}: {check.status}, exit code {check.exit_code}\n{check.tail}".rstrip() for check in red]
    return text("feedback", checks="\n\n".join(parts))


def interrupted() -> str:
    """What the model reads of an outside call that was begun and whose result nobody knows."""
    return text("interrupted")


class Transcript:
    """A run's records as the messages of a request, kept up to date by `follow`.

    What was shown depends on the records alone: one that has followed a run all along and a fresh one make the same
    requests. Results of one reply are held back until all are there, and so is what comes meanwhile.
    repeats: see meter.Repeats.
    """

    def __init__(self, task: Task, tools: tuple[ToolSpec, ...]) -> None:
        self._task = task
        self._tools = tools
        self._overhead_bytes = len(text("system").encode()) + sum(
            len(json.dumps([spec.name, spec.description, spec.schema])) for spec in tools
        )
        self._begin()

    def _begin(self) -> None:
        self._run = Run()
        self._taken = 0
        self._last: Record | None = None
        self._messages: list[Message] = []
        self._bytes = self._overhead_bytes
        self.repeats = meter.Repeats()
        self._commands: dict[str, str] = {}
        self._calls: tuple[ToolCall, ...] = ()
        self._results: dict[str, ToolResult] = {}
        self._held: list[str] = []
        self._starts: dict[int, int] = {}
        self._head = 1
        self._append(UserMessage(valid(_opening(self._task))))

    def follow(self, records: Sequence[Record]) -> None:
        """Take in what is new in the whole journal of the run, oldest record first.

        The last record of the time before may have been shown ahead of its commit. Committed, it has its snapshot;
        if it says anything else, all is built again.
        """
        if self._taken:
            now = records[self._taken - 1] if self._taken <= len(records) else None
            if now is not self._last and not self._same(now):
                self._begin()
        for record in records[self._taken :]:
            self._add(record)
            self._taken, self._last = self._taken + 1, record

    def request(self, phase: Literal["commands", "model"]) -> ModelRequest:
        """What to ask for the next reply."""
        run = self._run
        return ModelRequest(
            system=text("system"),
            messages=tuple(self._messages),
            tools=self._tools,
            step=run.steps + 1,
            reply_index=run.command_steps if phase == "commands" else run.steps - run.command_steps,
        )

    @property
    def tokens(self) -> int:
        """About how many tokens the request has, before a provider has counted them."""
        return round(self._bytes / BYTES_PER_TOKEN)

    def _same(self, now: Record | None) -> bool:
        if now is None or self._last is None:
            return False
        match self._last.event, now.event:
            case Observed() as shown, Observed() as committed if shown.observation == committed.observation:
                self.repeats.look(committed)
                self._last = now
                return True
        return False

    def _add(self, record: Record) -> None:
        self._run = self._run.after(record, "")
        self.repeats.see(record)
        match record.event:
            case Prepared(instructions=files) if files:
                told = "\n".join(json.dumps(file.model_dump(), ensure_ascii=False) for file in files)
                self._append(UserMessage(valid(text("instructions", files=told))))
                self._head += 1
            case Replied() as replied:
                self._starts[replied.step] = len(self._messages)
                self._reply(replied)
            case Observed(observation=observation):
                self._observe(observation)
            case FedBack(text=words):
                self._say(words)
            case Steered(kind="message", by=by, text=words):
                self._say(text("steered", by=by, text=words))
            case Compacted(through=through, summary=summary):
                self._compact(through, summary)

    def _append(self, message: Message) -> None:
        self._messages.append(message)
        self._bytes += _size(message)

    def _compact(self, through: int, summary: str) -> None:
        head, kept = self._messages[: self._head], self._messages[self._starts.get(through, len(self._messages)) :]
        self._messages, self._bytes, self._starts = [], self._overhead_bytes, {}
        for message in (*head, UserMessage(valid(summary)), *kept):
            self._append(message)

    def _reply(self, event: Replied) -> None:
        reply = event.reply
        self._flush()
        if event.phase == "commands":
            self._commands = {call.id: call.arguments for call in reply.calls}
            return
        self._calls = reply.calls
        self._append(AssistantMessage(sendable(reply)))
        if reply.stop == "length":
            cut = text("cut", limit=self._task.limits.malformed_replies)
            for call in reply.calls:
                self._results[call.id] = _result(Observation(call_id=call.id, tool="", status="error", output=cut))
            self._flush()
            if not reply.calls:
                self._say(cut)
        elif not reply.calls and not reply.text.strip():
            self._say(text("empty", limit=self._task.limits.empty_replies))

    def _observe(self, observation: Observation) -> None:
        command = self._commands.get(observation.call_id)
        if command is not None:
            tail = observation.model_copy(update={"output": observation.output[-COMMAND_TAIL_CHARS:]})
            self._say(text("command", command=command, observation=_json(tail)))
            return
        self._results[observation.call_id] = _result(observation)
        limits, repeats, failing = self._task.limits, self.repeats.last, self._run.failing_calls
        if repeats in REPEAT_NUDGES:
            self._held.append(text("repeated", tool=observation.tool, times=repeats, limit=limits.repeats))
        if failing == limits.failing_calls_nudge:
            self._held.append(text("failing", times=failing, limit=limits.failing_calls))
        if not self._run.pending:
            self._flush()

    def _say(self, words: str) -> None:
        if words:
            self._held.append(words)
        if not self._run.pending:
            self._flush()

    def _flush(self) -> None:
        if self._calls:
            results = (self._results.get(call.id) or _not_run(call) for call in self._calls)
            self._append(ToolResults(tuple(results)))
        for words in self._held:
            self._append(UserMessage(valid(words)))
        self._calls, self._results, self._held = (), {}, []


def _opening(task: Task) -> str:
    limits = task.limits
    checks = "\n".join(f"- {check.name}: {check.command}" for check in task.checks)
    return text(
        "task",
        prompt=task.prompt,
        folder="/workspace/repo" + (f"/{task.repo.path}" if task.repo.path else ""),
        checks=checks or "- none was given; verify your work yourself",
        steps=limits.steps,
        minutes=round(limits.working_time_s / 60, 1),
        call_timeout_s=round(limits.call_timeout_s, 1),
        memory_mib=limits.memory_bytes // 2**20,
        tokens=limits.tokens,
    )


def _result(observation: Observation) -> ToolResult:
    return ToolResult(call_id=observation.call_id, content=_json(observation), is_error=meter.failed(observation))


def _not_run(call: ToolCall) -> ToolResult:
    return _result(Observation(call_id=call.id, tool=call.name, status="interrupted", output="this call was not run"))


def _json(observation: Observation) -> str:
    """The observation as the model reads it."""
    shown = {
        "tool_call_id": observation.call_id,
        "status": observation.status,
        "exit_code": observation.exit_code,
        "output": observation.output,
    }
    return valid(json.dumps(shown, ensure_ascii=False))


def sendable(reply: Reply) -> Reply:
    """The reply as it may be sent back: value-identical, but for text no provider could take.

    Half surrogate pairs become U+FFFD. Arguments too large to have been executed are left out.
    """
    if any(len(call.arguments) > ARGUMENTS_BYTES_MAX for call in reply.calls):
        calls = [
            call.model_copy(update={"arguments": "{}"}) if len(call.arguments) > ARGUMENTS_BYTES_MAX else call
            for call in reply.calls
        ]
        reply = reply.model_copy(update={"calls": tuple(calls), "native": None})
    plain = reply.model_dump()
    cleaned = _cleaned(plain)
    return reply if cleaned == plain else Reply.model_validate(cleaned)


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return valid(value)
    if isinstance(value, dict):
        return {valid(key): _cleaned(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_cleaned(item) for item in value)
    return value


def valid(words: str) -> str:
    """The text with every half surrogate pair replaced, so that it encodes as UTF-8."""
    try:
        words.encode()
    except UnicodeEncodeError:
        return words.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return words


def _size(message: Message) -> int:
    match message:
        case UserMessage(text=words):
            return len(words.encode())
        case ToolResults(results=results):
            return sum(len(result.content.encode()) for result in results)
        case AssistantMessage(reply=reply):
            calls = sum(len(call.name) + len(call.arguments.encode()) for call in reply.calls)
            return calls + len(reply.text.encode()) + len(reply.reasoning.encode())
