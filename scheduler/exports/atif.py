"""Owns trajectories in the Agent Trajectory Interchange Format, version 1.8, one document a run. Refuses to make up
what no journal holds: the texts around a task that a model reads besides are the program's, not the run's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Any, Final

from scheduler.exports.chosen import Chosen
from scheduler.runs import View
from worker.contract.events import (
    Compacted,
    Decided,
    FedBack,
    Observed,
    Record,
    Replied,
    Reply,
    Steered,
    ToolCall,
    Usage,
)
from worker.contract.run import Run, fold
from worker.contract.task import Task
from worker.store import keys
from worker.store.journal import Journal

SCHEMA: Final = "ATIF-v1.8"
LEVELS_MAX: Final = 100
"""Of arguments within each other that are written as JSON."""
NOTES: Final = (
    "Metrics of steps are those of the replies. The total cost counts besides what summaries, delegates and replies "
    "that nobody kept cost. Steps of the source agent without a model call are plain commands of the task."
)


def documents(chosen: Chosen) -> Iterator[tuple[str, dict[str, Any]]]:
    """(run, its trajectory), also of runs that have not ended. Raises IntegrityFault, StoreFault."""
    for view in chosen.views:
        yield view.task.run, of_run(chosen, view)


def of_run(chosen: Chosen, view: View) -> dict[str, Any]:
    """The trajectory of a run with those of its delegates in it."""
    run = view.task.run
    subs = {}
    for call in view.run.delegates:
        name = keys.delegate(run, call)
        journal = Journal(chosen.archive, name)
        lines = list(journal.read())
        subs[call] = trajectory(name, journal.task(), [record for record, _ in lines], fold(lines), {})
    records = [record for record, _ in Journal(chosen.archive, run).read()]
    return trajectory(run, view.task, records, view.run, subs)


def trajectory(
    name: str, task: Task, records: Iterable[Record], run: Run, delegates: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """Pure. delegates: call -> the trajectory of the agent that answered it."""
    steps = _Steps(task, delegates)
    for record in records:
        steps.add(record)
    sealed = run.sealed
    document: dict[str, Any] = {
        "schema_version": SCHEMA,
        "session_id": name.partition("/")[0],
        "trajectory_id": name,
        "agent": {"name": "dawnfleet", "version": version("dawnfleet"), "model_name": task.model},
        "steps": steps.made,
        "notes": NOTES,
        "final_metrics": _totals(steps, run),
        "extra": {
            "run": name,
            "batch": task.batch,
            "target": task.target,
            "commit": run.prepared.commit if run.prepared else None,
            "outcome": sealed.outcome if sealed else None,
            "verdict": sealed.verdict if sealed else None,
            "failure": str(sealed.failure) if sealed and sealed.failure else None,
            "last_hash": run.last_hash,
        },
    }
    if delegates:
        document["subagent_trajectories"] = list(delegates.values())
    return document


class _Steps:
    """What of a journal is a step, in its order. made: the steps; usage: of all replies in them."""

    def __init__(self, task: Task, delegates: Mapping[str, dict[str, Any]]) -> None:
        self.made: list[dict[str, Any]] = []
        self.usage = Usage()
        self._delegates = delegates
        self._asked_by: dict[str, dict[str, Any]] = {}
        self._prompt = task.prompt

    def add(self, record: Record) -> None:
        if not self.made:
            self._step(record, "user", self._prompt)
        match record.event:
            case Replied() as event:
                self._replied(record, event)
            case Observed(observation=seen):
                extra = seen.model_dump(include={"status", "exit_code", "blob", "total_bytes", "duration_ms"})
                result: dict[str, Any] = {"source_call_id": seen.call_id, "content": seen.output, "extra": extra}
                if seen.call_id in self._delegates:
                    name = self._delegates[seen.call_id]["trajectory_id"]
                    result["subagent_trajectory_ref"] = [{"trajectory_id": name}]
                step = self._asked_by.get(seen.call_id) or self._step(record, "system", "")
                step.setdefault("observation", {"results": []})["results"].append(result)
            case Steered(kind="message") as event:
                self._step(record, "user", event.text, by=event.by)
            case Decided() as event:
                told = event.model_dump(include={"call_id", "decision", "by", "reason"})
                self._step(record, "system", f"{event.decision} by {event.by}: {event.reason}".rstrip(": "), **told)
            case FedBack() as event:
                self._step(record, "system", event.text)
            case Compacted() as event if event.summary:
                self._step(record, "system", event.summary, stands_for_steps_before=event.through)
            case _:
                pass

    def _replied(self, record: Record, event: Replied) -> None:
        reply = event.reply
        step = self._step(record, "agent", reply.text, stop=reply.stop)
        if event.phase == "commands":
            step["llm_call_count"] = 0
        else:
            step |= {"llm_call_count": 1, "model_name": reply.model or None, "metrics": _metrics(reply)}
            if reply.reasoning:
                step["reasoning_content"] = reply.reasoning
            self.usage = _sum(self.usage, reply.usage)
        if reply.calls:
            step["tool_calls"] = [_call(call) for call in reply.calls]
            self._asked_by |= dict.fromkeys((call.id for call in reply.calls), step)

    def _step(self, record: Record, source: str, message: str, **extra: Any) -> dict[str, Any]:
        step: dict[str, Any] = {
            "step_id": len(self.made) + 1,
            "timestamp": record.at,
            "source": source,
            "message": message,
            "extra": {"event": record.event.type, "segment": record.seq, **extra},
        }
        if record.seq == 0 and record.event.type != "submitted":
            step["is_copied_context"] = True  # by a fork, from its parent
        self.made.append(step)
        return step


def _call(call: ToolCall) -> dict[str, Any]:
    """Arguments that are no JSON object are kept beside, as they came."""
    made: dict[str, Any] = {"tool_call_id": call.id, "function_name": call.name, "arguments": {}}
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = None
    if isinstance(arguments, dict) and _portable(arguments):
        return made | {"arguments": arguments}
    return made | {"extra": {"arguments_as_text": call.arguments}}


def _portable(value: Any, levels: int = LEVELS_MAX) -> bool:
    """Whether any program's JSON can hold it."""
    if isinstance(value, float):
        return math.isfinite(value)
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_portable(item, levels - 1) for item in inside)


def _metrics(reply: Reply) -> dict[str, Any]:
    metrics: dict[str, Any] = _tokens(reply.usage)
    if reply.cost_microusd is not None:
        metrics["cost_usd"] = reply.cost_microusd / 1e6
    return metrics | {"extra": {"cache_write_tokens": reply.usage.cache_write_tokens, "price": reply.price_source}}


def _tokens(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens,
        "completion_tokens": usage.output_tokens,
        "cached_tokens": usage.cache_read_tokens,
    }


def _totals(steps: _Steps, run: Run) -> dict[str, Any]:
    totals: dict[str, Any] = {f"total_{name}": count for name, count in _tokens(steps.usage).items()}
    if run.cost_known or run.cost_microusd:
        totals["total_cost_usd"] = run.cost_microusd / 1e6
    extra = {"cost_known": run.cost_known, "own_cost_usd": run.spent_microusd / 1e6, "working_s": run.working_s}
    return totals | {"total_steps": len(steps.made), "extra": extra}


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(**{kind: count + getattr(other, kind) for kind, count in one})
