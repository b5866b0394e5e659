"""Owns the holds of provider accounts: who is told to wait makes every worker wait. Refuses to try again: whoever
asks decides that.

A hold lives in Redis until it ends. Without Redis nobody is slowed, and each worker meets the provider by itself.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from worker.contract.cancel import Cancel
from worker.contract.errors import HintsFault, ProviderFault
from worker.contract.events import Reply
from worker.models.protocol import Model, ModelRequest

LOG = structlog.get_logger(__name__)

HOLD_S: Final = 5.0
"""Where a provider does not say how long: a short breath for all; whoever met it waits longer and longer."""
SPREAD_S: Final = 1.0
"""After a hold, requests begin within this time, not all at once."""
LOOK_S: Final = 1.0
"""Limit of one try to reach Redis: four of them fit between an attempt's own deadline and the end of its lease."""


class Holds(Protocol):
    """Shared by all workers. Both raise HintsFault."""

    def hold(self, account: str, for_s: float) -> None:
        """Let nobody ask for so long; a longer hold stays."""
        ...

    def held_s(self, account: str) -> float:
        """Seconds until requests may be sent again, 0 for at once."""
        ...


@dataclass(frozen=True)
class HeldModel:
    """A model behind an account: it is not asked while the account is held, and holds it when it is told to wait."""

    model: Model
    account: str
    holds: Holds

    @property
    def name(self) -> str:
        return self.model.name

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        """As the model; while the account is held, a ProviderFault that says how long."""
        if (held_s := self._held_s()) > 0:
            wait_s = held_s + random.uniform(0, SPREAD_S)
            raise ProviderFault("unavailable", f"{self.account} is held", retryable=True, retry_after_s=wait_s)
        try:
            return self.model.reply(request, timeout_s=timeout_s, cancel=cancel)
        except ProviderFault as fault:
            if fault.shared:
                self._hold(HOLD_S if fault.retry_after_s is None else fault.retry_after_s)
            raise

    def _held_s(self) -> float:
        try:
            return self.holds.held_s(self.account)
        except HintsFault as fault:
            LOG.warning("hold_unknown", account=self.account, fault=str(fault), next="asks without it")
            return 0.0

    def _hold(self, for_s: float) -> None:
        try:
            self.holds.hold(self.account, for_s)
        except HintsFault as fault:
            LOG.warning("hold_not_shared", account=self.account, fault=str(fault), next="waits alone")
