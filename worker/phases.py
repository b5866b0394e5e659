"""Owns the order of an agent's work: the task's commands, then its model. Refuses to measure what came of it."""

from __future__ import annotations

from worker import loop, meter
from worker.contract.events import Finished, Parked
from worker.host import Host, Stopped, Tools
from worker.models.commands import CommandsModel
from worker.models.protocol import Model


def work(host: Host, model: Model | None, tools: Tools) -> Finished | Parked | Stopped:
    """Go on from wherever the journal stands until an outcome, which is committed, but for Stopped. model: None where
    the task has none."""
    commands, run = host.task.commands, host.run
    in_hand = bool(run.pending) and run.steps == run.command_steps  # a command whose call has no result yet
    if run.command_steps < len(commands) or in_hand:
        ended = loop.work(host, CommandsModel(commands), tools, phase="commands")
        if ended is not None:
            return ended
    if model is not None:
        ended = loop.work(host, model, tools)
        assert ended is not None, "the model phase ends with an outcome"
        return ended
    broken = meter.broken_command(host.records(), host.task.limits)
    said = f"All commands were started; {broken.detail}." if broken else "All commands were run."
    finished = Finished(text=said, failure=broken)
    host.commit(finished)
    return finished
