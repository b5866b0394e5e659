"""Owns when a model is told that it goes in circles or nears a limit. Pure; refuses to say it (that is context.py)
and to stop a run for it (meter.py).
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Final

from worker.contract.canonical import canonical, digest
from worker.contract.events import Observed, Record, Replied, Steered, ToolCall
from worker.contract.run import Run
from worker.contract.task import Limits

REPEAT_NUDGES: Final = (3, 5, 8)
"""How often the same call must have had the same result, or the files have gone back and forth, before the model is
told (plan, section 6)."""

WRAP_UP_SHARE: Final = 0.8
"""Of a budget: when so much of it is used, the model is told to come to an end."""


def used(run: Run, limits: Limits, working_s: float) -> dict[str, tuple[float, str]]:
    """Of each budget the share that is used, and the same in words. Money is left out while none is known."""
    parts = {
        "steps": (run.steps / limits.steps, f"{run.steps} of {limits.steps} steps"),
        "tokens": (run.tokens / limits.tokens, f"{run.tokens:,} of {limits.tokens:,} tokens"),
        "wall": (
            working_s / limits.working_time_s,
            f"{working_s / 60:.1f} of {limits.working_time_s / 60:.1f} minutes",
        ),
    }
    if limits.cost_usd is not None and run.cost_microusd:
        share = run.cost_microusd / (limits.cost_usd * 1_000_000)
        parts["cost"] = (share, f"${run.cost_microusd / 1_000_000:.2f} of ${limits.cost_usd:.2f}")
    return parts


class Repeats:
    """How often the same call was made on the same work tree with the same result, and how often the work tree went
    back to what it was before.

    An edit changes the tree, new output changes the result: both are progress. Times are counted over the whole
    run, so that two calls taking turns are seen too.

    last: the count of the last record's observation, 0 for another event. turns: changes in a row that led from one
    tree to another and back (A, B, A, B are three), whatever ran between them; a person's words begin anew.
    """

    def __init__(self) -> None:
        self._calls: dict[str, ToolCall] = {}
        self._tree = self._tree_before = ""
        self._seen: Counter[tuple[object, ...]] = Counter()
        self.last = self.turns = 0

    def see(self, record: Record) -> None:
        """Take in one more record."""
        event = record.event
        self.last = 0
        if isinstance(event, Replied):
            self._calls = {call.id: call for call in event.reply.calls}
        elif isinstance(event, Steered):
            self.turns = 0
        elif isinstance(event, Observed):
            self.last = self._count(event)
            self.look(event)

    def look(self, event: Observed) -> None:
        """Know the tree that the next call starts on. Again for an observation whose snapshot came later."""
        if event.snapshot is None or event.snapshot.tree == self._tree:
            return
        self.turns = self.turns + 1 if event.snapshot.tree == self._tree_before else 1
        self._tree_before, self._tree = self._tree, event.snapshot.tree

    def _count(self, event: Observed) -> int:
        seen = event.observation
        call = self._calls.get(seen.call_id)
        arguments = "" if call is None else _same_arguments(call.arguments)
        # By digest: a run of thousands of calls must not stay in memory.
        said = seen.blob or _digest(seen.output)
        key = (seen.tool, _digest(arguments), self._tree, seen.status, seen.exit_code, said)
        self._seen[key] += 1
        return self._seen[key]


def _same_arguments(raw: str) -> str:
    """Arguments that differ only in spacing or order of keys are the same."""
    try:
        return canonical(json.loads(raw)).decode()
    except ValueError:
        return raw


def _digest(text: str) -> str:
    return digest(text.encode("utf-8", "surrogatepass"))
