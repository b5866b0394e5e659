"""Owns a list of models of which the first that can be had answers. Refuses to remember which that was: each reply
begins with the first again, so that a takeover asks as the attempt before it would have.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from worker.contract.cancel import Cancel
from worker.contract.errors import PacedFault, ProviderFault
from worker.contract.events import Reply
from worker.models.protocol import Model, ModelRequest

LOG = structlog.get_logger(__name__)


@dataclass(frozen=True)
class FallbackModel:
    """models: two or more, the preferred one first. They share the time of a call in equal parts."""

    name: str
    models: tuple[Model, ...]

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        """One answer. Raises ProviderFault: at once one that another model would not help against, and the wait for
        the rate of the first, which is no trouble; else the one with the shortest wait."""
        faults: list[ProviderFault] = []
        for model in self.models:
            try:
                return model.reply(request, timeout_s=timeout_s / len(self.models), cancel=cancel)
            except ProviderFault as fault:
                waits = isinstance(fault, PacedFault) and not faults
                if waits or not fault.retryable:
                    raise
                faults.append(fault)
                LOG.warning("model_passed_over", model=model.name, fault=str(fault))
        raise min(faults, key=lambda fault: fault.retry_after_s or 0.0)
