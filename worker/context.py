"""Owns what the model sees: task and records become a ModelRequest. Pure; refuses to rewrite history while there is
room for it.

Append-only: the messages of a longer journal start with those of a shorter one, so that provider caches hit, and a
step costs what it adds. Where the context is full, old outputs give way to pointers, and when that is not enough, all
but the last part to a summary (compaction.py). Every text is valid UTF-8, whatever a file, a command or a model put
into the journal.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from worker import compaction, meter, rendering
from worker.contract.events import (
    Compacted,
    Decided,
    FedBack,
    Observation,
    Observed,
    Prepared,
    Record,
    Replied,
    Reply,
    Steered,
    ToolCall,
    Verdict,
)
from worker.contract.matrix import named_lines
from worker.contract.nudges import REPEAT_NUDGES
from worker.contract.run import FAILED_VERDICTS, Run
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

COMMAND_TAIL_CHARS = 4_000
"""Shown of what a command before the model's turn wrote; read_output has all of it."""

RESTATED_STEPS = 15
"""After so many steps of the model the task and its plan are said again."""

GOAL_CHARS = 8_000
"""Of a task that is said again; the first message has all of it."""

FILES_SHOWN = 100

TOLD_SHARE = 0.75
"""Of the room: what a summary is made from at most, beside task and earlier notes."""


@dataclass(frozen=True)
class Summary:
    """A summary that is to be asked for. through: the step that begins what stays."""

    through: int
    request: ModelRequest


def feedback(measured: Verdict, run: Run) -> FedBack | None:
    """What returns the turn to the model: the checks that are not green, each with the tail of its output, and what
    the patch does that the task forbids, which is said once. None where neither is anything to tell."""
    checks = measured.checks if measured.verdict in FAILED_VERDICTS else ()
    guards = () if run.guards_told else measured.guards
    red = [check for check in checks if check.status != "green"]
    parts = [f"{check.name}: {check.status}, exit code {check.exit_code}\n{check.tail}".rstrip() for check in red]
    named = [
        f"{tests.check}: {line}" for tests in measured.tests for line in named_lines(tests) if "fixed:" not in line
    ]
    told = [text("feedback", checks="\n\n".join((*parts, *named)))] if checks else []
    told += [text("guarded", hits="\n".join(f"- {hit}" for hit in guards))] if guards else []
    return FedBack(text="\n\n".join(told), checks=checks, guards=guards) if told else None


def interrupted() -> str:
    """What the model reads of an outside call that was begun and whose result nobody knows."""
    return text("interrupted")


class Transcript:
    """A run's records as the messages of a request, kept up to date by `follow`.

    What was shown depends on the records alone: one that has followed a run all along and a fresh one make the same
    requests. Results of one reply are held back until all are there, and so is what comes meanwhile. Time is what
    records tell of it: up to the last reply, and how long its calls took.
    repeats: see meter.Repeats. full: old outputs are gone, and there is little room still: time for a summary.
    """

    def __init__(self, task: Task, tools: tuple[ToolSpec, ...]) -> None:
        self._task = task
        self._tools = tools
        self._overhead_bytes = len(text("system").encode()) + sum(
            len(json.dumps([spec.name, spec.description, spec.schema])) for spec in tools
        )
        self._begin()

    def _begin(self) -> None:
        self._run = self._before = Run()
        self._taken = 0
        self._last: Record | None = None
        self._messages: list[Message] = []
        self._bytes = self._overhead_bytes
        self._uncounted_tokens = 0
        self.full = False
        self.repeats = meter.Repeats()
        self._commands: dict[str, str] = {}
        self._calls: tuple[ToolCall, ...] = ()
        self._results: dict[str, ToolResult] = {}
        self._held: list[str] = []
        self._starts: dict[int, int] = {}
        self._notes = ""
        self._words: list[tuple[int, str]] = []
        self._restated = 0
        self._warned: set[str] = set()
        self._turned = 0
        self._worked_s = 0.0
        self._head = 1
        self._append(UserMessage(rendering.valid(rendering.opening(self._task))))

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
            tokens=self.tokens,
        )

    @property
    def tokens(self) -> int:
        """About how many tokens the request has: estimated, and what the provider counted above that last time."""
        return round(self._bytes / compaction.BYTES_PER_TOKEN) + self._uncounted_tokens

    def summary(self, tries: int) -> Summary | None:
        """What to ask for to make room, None when nothing can give way. tries: how often it was tried in vain: each
        time less is kept, and less is shown to whoever makes the summary."""
        keep_bytes = min(self._keep_bytes, (self._bytes - self._overhead_bytes) // 2) >> tries
        through = compaction.first_kept(self._messages, self._starts, keep_bytes) or self._run.steps + 1
        part = self._messages[self._head + bool(self._notes) : self._start(through)]
        if not part:
            return None
        told = compaction.told(part, round(self._room_tokens * TOLD_SHARE * compaction.BYTES_PER_TOKEN))
        told = compaction.clipped(told, len(told) >> tries)
        asked = text("summarize", task=self._goal, notes=self._notes or "none", part=told)
        request = replace(
            self.request("model"),
            system=text("summarizer"),
            messages=(UserMessage(rendering.valid(asked)),),
            tools=(),
            purpose="summary",
            reply_index=self._run.compactions,
            tokens=round(len(asked.encode()) / compaction.BYTES_PER_TOKEN),
        )
        return Summary(through, request)

    def compacted(self, asked: Summary, reply: Reply) -> Compacted:
        """The event of a summary that was made. One that is cut, refused, or that fills more than half of what would
        be gained without it, is of no use."""
        before = self._messages[self._head : self._start(asked.through)]
        beside = (self._summarized(asked.through, ""), self._reminder())
        gained_bytes = sum(map(compaction.size_bytes, before)) - sum(map(compaction.size_bytes, beside))
        made = rendering.valid(reply.text.strip()) if reply.stop in ("end", "calls") else ""
        useful = 0 < 2 * len(made.encode()) <= gained_bytes
        return Compacted(
            through=asked.through if useful else 0,
            summary=made if useful else "",
            usage=reply.usage,
            cost_microusd=reply.cost_microusd,
            price_source=reply.price_source,
        )

    def _same(self, now: Record | None) -> bool:
        if now is None or self._last is None:
            return False
        match self._last.event, now.event:
            case Observed() as shown, Observed() as committed if shown.observation == committed.observation:
                self.repeats.look(committed)
                self._run = self._before.after(now, "")
                self._last = now
                return True
        return False

    def _add(self, record: Record) -> None:
        self._before, self._run = self._run, self._run.after(record, "")
        self.repeats.see(record)
        match record.event:
            case Prepared(instructions=files) if files:
                told = "\n".join(json.dumps(file.model_dump(), ensure_ascii=False) for file in files)
                self._append(UserMessage(rendering.valid(text("instructions", files=told))))
                self._head += 1
            case Replied() as replied:
                self._worked_s = self._run.working_s
                self._reply(replied)
            case Observed(observation=observation):
                self._worked_s += observation.duration_ms / 1000
                self._observe(observation)
            case FedBack(text=words) if words:
                self._held.append(words)
            case Steered(kind="message", by=by, text=words):
                self._held.append(text("steered", by=by, text=words))
                self._words.append((self._run.steps, f"{by}: {words}"))
            case Decided(decision=decision, by=by, reason=words) if words:
                self._words.append((self._run.steps, f"{by} ({decision}): {words}"))
            case Compacted(through=through, summary=summary) if summary:
                self._compact(through, summary)
            case Compacted():
                self.full = self.tokens > self._room_tokens
        if not self._run.pending:
            self._turn()

    def _append(self, message: Message) -> None:
        self._messages.append(message)
        self._bytes += compaction.size_bytes(message)

    def _turn(self) -> None:
        """It is the model's turn: what waited for the results is said, and what has no room gives way."""
        self._flush()
        self._warn()
        steps = self._run.steps - self._run.command_steps
        if steps % RESTATED_STEPS == 0 and steps > self._restated:
            self._restate()
        if self.tokens > self._room_tokens:
            self._replace(compaction.pruned(self._messages, self._keep_bytes))
            # Nearly as full as before: what is next would have to be pruned at each step, and no cache would hit.
            self.full = self.tokens > self._room_tokens - self._keep_bytes / compaction.BYTES_PER_TOKEN

    def _warn(self) -> None:
        """Once for each budget that is nearly used up."""
        used = self._used()
        near = [name for name in used if used[name][0] >= meter.WRAP_UP_SHARE and name not in self._warned]
        if near:
            self._warned.update(near)
            self._append(UserMessage(text("wrap_up", used=", ".join(used[name][1] for name in near))))

    def _used(self) -> dict[str, tuple[float, str]]:
        return meter.used(self._run, self._task.limits, self._worked_s)

    def _compact(self, through: int, summary: str) -> None:
        start = self._start(through)
        message, kept = self._summarized(through, summary), self._messages[start:]
        moved = self._head + 1 - start
        self._starts = {step: index + moved for step, index in self._starts.items() if index >= start}
        self._notes, self.full = summary, False
        self._replace([*self._messages[: self._head], message, *kept])
        self._restate()

    def _replace(self, messages: list[Message]) -> None:
        self._messages, self._bytes, self._uncounted_tokens = [], self._overhead_bytes, 0
        for message in messages:
            self._append(message)

    def _start(self, through: int) -> int:
        """Where the reply of that step stands, the end when it is yet to come."""
        return self._starts.get(through, len(self._messages))

    def _summarized(self, through: int, summary: str) -> UserMessage:
        """What stands for all that was before a step."""
        words = [f"- {words}" for step, words in self._words if step < through]
        files = [f"- {path}" for path in self._run.files[-FILES_SHOWN:]]
        if (more := len(self._run.files) - len(files)) > 0:
            files.insert(0, f"- {more} more")
        told = text(
            "compacted",
            summary=summary,
            words="\n".join(words) or "- nothing",
            files="\n".join(files) or "- none",
        )
        return UserMessage(rendering.valid(told))

    def _restate(self) -> None:
        """Say task and plan again."""
        self._restated = self._run.steps - self._run.command_steps
        self._append(self._reminder())

    def _reminder(self) -> UserMessage:
        used = ", ".join(words for _, words in self._used().values())
        told = text("restated", task=self._goal, plan="\n".join(meter.plan_lines(self._run)), used=used)
        return UserMessage(rendering.valid(told))

    @property
    def _goal(self) -> str:
        return compaction.clipped(self._task.prompt, GOAL_CHARS)

    @property
    def _room_tokens(self) -> int:
        return max(0, self._task.limits.context_tokens - meter.RESERVE_TOKENS)

    @property
    def _keep_bytes(self) -> int:
        """How much of the last part stays: a third of what there is room for, where that is little."""
        return round(min(compaction.KEEP_TOKENS, self._room_tokens // 3) * compaction.BYTES_PER_TOKEN)

    def _reply(self, event: Replied) -> None:
        reply = event.reply
        self._flush()
        if event.phase == "commands":
            self._commands = {call.id: call.arguments for call in reply.calls}
            return
        self._calls = reply.calls
        self._starts[event.step] = len(self._messages)
        self._append(AssistantMessage(rendering.sendable(reply)))
        counted = event.context_tokens + reply.usage.output_tokens
        self._uncounted_tokens = max(0, counted - round(self._bytes / compaction.BYTES_PER_TOKEN))
        self._notice_turns()
        if reply.stop == "length":
            cut = text("cut", limit=self._task.limits.malformed_replies)
            for call in reply.calls:
                self._results[call.id] = rendering.result(
                    Observation(call_id=call.id, tool="", status="error", output=cut)
                )
            if not reply.calls:
                self._held.append(cut)
        elif not reply.calls and not reply.text.strip():
            self._held.append(text("empty", limit=self._task.limits.empty_replies))

    def _notice_turns(self) -> None:
        """Told with the results of the next reply: the tree of a call is known after the model has read of it."""
        turns = self.repeats.turns
        if any(self._turned < nudge <= turns for nudge in REPEAT_NUDGES):
            self._held.append(text("alternating", times=turns, limit=self._task.limits.repeats))
        self._turned = turns

    def _observe(self, observation: Observation) -> None:
        command = self._commands.get(observation.call_id)
        if command is not None:
            tail = observation.model_copy(update={"output": observation.output[-COMMAND_TAIL_CHARS:]})
            self._held.append(text("command", command=command, observation=rendering.as_json(tail)))
            return
        self._results[observation.call_id] = rendering.result(observation)
        limits, repeats, failing = self._task.limits, self.repeats.last, self._run.failing_calls
        if repeats in REPEAT_NUDGES:
            self._held.append(text("repeated", tool=observation.tool, times=repeats, limit=limits.repeats))
        if failing == limits.failing_calls_nudge:
            self._held.append(text("failing", times=failing, limit=limits.failing_calls))

    def _flush(self) -> None:
        if self._calls:
            results = (self._results.get(call.id) or rendering.not_run(call) for call in self._calls)
            self._append(ToolResults(tuple(results)))
        for words in self._held:
            self._append(UserMessage(rendering.valid(words)))
        self._calls, self._results, self._held = (), {}, []
