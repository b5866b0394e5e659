"""Owns playing the recorded replies of another run as a model. Refuses to read an archive: replies are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from worker.contract.cancel import Cancel
from worker.contract.errors import InvalidFault
from worker.contract.events import Reply
from worker.models.protocol import ModelRequest, under_our_ids

SUMMARY: Final = "A replay keeps no notes."


@dataclass(frozen=True)
class ReplayModel:
    """replies: those of the other run's model phase, in order. Nobody is paid again, so the cost is 0. A summary is
    none of them, and none of the recorded: what they say does not depend on it."""

    name: str
    replies: Sequence[Reply]

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        """The recorded reply at reply_index, its calls under ids of this run. Raises InvalidFault past the end."""
        if request.purpose == "summary":
            return Reply(text=SUMMARY, cost_microusd=0, price_source="replay", model=self.name)
        if request.reply_index >= len(self.replies):
            raise InvalidFault(
                f"{self.name} has only {len(self.replies)} recorded replies",
                hint="this run went another way than the recorded one",
            )
        recorded = under_our_ids(self.replies[request.reply_index], request.step)
        return recorded.model_copy(update={"cost_microusd": 0, "price_source": "replay", "model": self.name})
