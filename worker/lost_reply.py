"""Owns what a reply that was lost with its worker may have cost: it counts against the budgets though nobody knows.
Refuses to be cheap: what it counts is the most that it can have been.
"""

from __future__ import annotations

from collections.abc import Sequence

from worker import context, meter
from worker.contract.events import Record, Unrecorded, Usage
from worker.contract.model_name import ASKED, parse_model_name
from worker.contract.run import Run
from worker.contract.task import Task
from worker.models.prices import Prices
from worker.models.protocol import ToolSpec
from worker.tools.notes import Delegate


def lost_reply(
    task: Task, before: Run, records: Sequence[Record], tools: tuple[ToolSpec, ...], prices: Prices
) -> Unrecorded | None:
    """The reply that may have been on its way when the attempt before died, None when none can have been.

    before: the run as that attempt left it; records: its journal. The request is rendered as the loop does, because a
    first one was never measured by a provider.
    """
    if parse_model_name(task.model).provider not in ASKED or not _may_have_asked(task, before):
        return None
    asked = context.Transcript(task, tools)
    asked.follow(records)
    usage = Usage(input_tokens=max(before.context_tokens, asked.tokens), output_tokens=meter.RESERVE_TOKENS)
    cost = prices.bound((task.model, *task.fallbacks), usage.input_tokens, usage.output_tokens)
    return Unrecorded(cost_microusd=cost, tokens=usage.total, detail="a reply may have been lost with its worker")


def _may_have_asked(task: Task, before: Run) -> bool:
    """Whether it was the model's turn, or all was shown to it but the last observation was not committed yet."""
    commands = before.command_steps < len(task.commands) or (before.pending and before.steps == before.command_steps)
    shown = len(before.pending) == 1 and before.pending[0].name != Delegate.name  # its answer is committed at once
    return before.status == "running" and not commands and (before.turn == "model" or shown)
