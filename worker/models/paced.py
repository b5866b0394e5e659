"""Owns the rate at which an account is asked: a request goes when all workers together may send one more, and when it
is its batch's turn. Refuses to wait: whoever asks decides that.

The rate lives in Redis. Without it nobody is slowed, and the provider's own no holds the account.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from worker.contract.cancel import Cancel
from worker.contract.errors import HintsFault, PacedFault, ProviderFault
from worker.contract.events import Reply, Usage
from worker.contract.settings import Rate
from worker.models.protocol import AssistantMessage, Model, ModelRequest

LOG = structlog.get_logger(__name__)

SPREAD_S: Final = 0.5
"""Those that wait ask again within this time, not all at once."""


class Pacing(Protocol):
    """Shared by all workers. Both raise HintsFault."""

    def take(self, account: str, batch: str, rate: Rate, tokens: int) -> float:
        """Grant the batch one request of so many tokens (0.0), or say in how many seconds to ask again."""
        ...

    def settle(self, account: str, batch: str, rate: Rate, tokens: int) -> None:
        """Count so many tokens more for a request that was granted, or fewer where they are negative."""
        ...


@dataclass(frozen=True)
class PacedModel:
    """A model behind an account that is asked no faster than its rate.

    A request counts with what it may come to at most, until its reply says what it was. cache_is_free: the provider
    does not count what it reads from its cache.
    """

    model: Model
    account: str
    batch: str
    rate: Rate
    pacing: Pacing
    cache_is_free: bool = False

    @property
    def name(self) -> str:
        return self.model.name

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        """As the model; PacedFault while others come first."""
        tokens = self._at_most(request)
        counted = self._take(tokens)
        try:
            reply = self.model.reply(request, timeout_s=timeout_s, cancel=cancel)
        except ProviderFault as fault:
            if counted and not fault.unheard:
                self._settle(-tokens)
            raise
        if counted and reply.usage.total:
            self._settle(self._of(reply.usage) - tokens)
        return reply

    def _take(self, tokens: int) -> bool:
        """Whether the request was counted; nobody counts without Redis."""
        try:
            wait_s = self.pacing.take(self.account, self.batch, self.rate, tokens)
        except HintsFault as fault:
            LOG.warning("rate_unknown", account=self.account, fault=str(fault), next="asks without it")
            return False
        if wait_s > 0:
            raise PacedFault(self._told(), wait_s + random.uniform(0, SPREAD_S))
        return True

    def _settle(self, tokens: int) -> None:
        if self.rate.tokens_per_min is None:
            return
        try:
            self.pacing.settle(self.account, self.batch, self.rate, tokens)
        except HintsFault as fault:
            LOG.warning("rate_not_settled", account=self.account, fault=str(fault), next="the estimate counts")

    def _at_most(self, request: ModelRequest) -> int:
        return request.max_output_tokens + max(0, request.tokens - self._cached(request))

    def _cached(self, request: ModelRequest) -> int:
        """What the provider should have in its cache: all that it was sent for the reply before."""
        sent = (
            message.reply.usage for message in reversed(request.messages) if isinstance(message, AssistantMessage)
        )
        last = next(sent, None) if self.cache_is_free else None
        return 0 if last is None else max(0, last.cache_read_tokens + last.cache_write_tokens)

    def _of(self, usage: Usage) -> int:
        return max(0, usage.total - usage.cache_read_tokens * self.cache_is_free)

    def _told(self) -> str:
        rates = ", ".join(f"{name} {number}" for name, number in self.rate.model_dump(exclude_none=True).items())
        return f"the rate of {self.account} is used up for now ({rates})"
