"""Owns playing the recorded replies of another run as a model. Refuses to read an archive: replies are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker.contract.cancel import Cancel
from worker.contract.errors import InvalidFault
from worker.contract.events import Reply
from worker.models.protocol import ModelRequest, call_id


@dataclass(frozen=True)
class ReplayModel:
    """replies: those of the other run's model phase, in order. Nobody is paid again, so the cost is 0."""

    name: str
    replies: Sequence[Reply]

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        """The recorded reply at reply_index, its calls under ids of this run. Raises InvalidFault past the end."""
        if request.reply_index >= len(self.replies):
            raise InvalidFault(
                f"{self.name} has only {len(self.replies)} recorded replies",
                hint="this run went another way than the recorded one",
            )
        recorded = self.replies[request.reply_index]
        calls = tuple(
            call.model_copy(
                update={"id": call_id(request.step, position), "original_id": call.original_id or call.id}
            )
            for position, call in enumerate(recorded.calls, start=1)
        )
        return recorded.model_copy(
            update={"calls": calls, "cost_microusd": 0, "price_source": "replay", "model": self.name}
        )
