"""Owns playing a task's `commands` as a model, so that codemods run in the same loop and journal.
Refuses to judge: a command that fails is an observation, and the next one is run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

from worker.contract.cancel import Cancel
from worker.contract.events import Reply, ToolCall
from worker.models.protocol import ModelRequest, call_id


@dataclass(frozen=True)
class CommandsModel:
    """One run_command call a reply, then a reply without calls."""

    commands: tuple[str, ...]
    name: ClassVar[str] = "commands"

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        """The next command as a call; never fails and costs nothing."""
        if request.reply_index >= len(self.commands):
            return Reply(text="All commands were run.", cost_microusd=0, price_source=self.name, model=self.name)
        arguments = json.dumps({"command": self.commands[request.reply_index]}, ensure_ascii=False)
        call = ToolCall(id=call_id(request.step, 1), name="run_command", arguments=arguments)
        return Reply(calls=(call,), stop="calls", cost_microusd=0, price_source=self.name, model=self.name)
