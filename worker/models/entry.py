"""Owns models that are Python of the deployment's own, `python:ENTRY`: an entry point of the group `dawnfleet.models`
in a package installed beside this one. Refuses to trust it with a run: late, wrong and failing answers become faults.

The entry point is a callable `(model: str, secrets: Mapping[str, str]) -> Model` (worker/models/protocol.py). model:
what stands behind the slash of `python:ENTRY/MODEL`, "" without one. secrets: the deployment's `DAWN_MODEL_SECRET_*`,
each without that prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from socket import gaierror
from threading import Event, Thread
from typing import Final
from urllib.error import URLError

from worker.contract.cancel import Cancel
from worker.contract.errors import InvalidFault, ProviderFault
from worker.contract.reply import MICROUSD_MAX, Reply
from worker.models.conversation import clean
from worker.models.protocol import Model, ModelRequest, cancelled_fault, late_fault, under_our_ids

GROUP: Final = "dawnfleet.models"
UNSENT: Final = (ConnectionRefusedError, gaierror, URLError)
"""Failures after which nobody can have answered; after any other an answer may be due that costs what any does."""


def installed() -> dict[str, EntryPoint]:
    """By name, what packages beside this one bring."""
    return {found.name: found for found in entry_points(group=GROUP)}


def open_entry(name: str, asked: str, secrets: Mapping[str, str]) -> Model:
    """The model of an installed entry point. name: as the task has it; asked: `ENTRY` or `ENTRY/MODEL`.

    Raises InvalidFault when there is none, what it raises itself where that is a ProviderFault or InvalidFault, else
    ProviderFault.
    """
    entry, _, model = asked.partition("/")
    found = installed()
    if entry not in found:
        known = f"known are {', '.join(sorted(found))}" if found else "there is none"
        raise InvalidFault(
            f"no installed package has a model {entry!r}; {known}",
            hint=f"install one with an entry point in {GROUP} beside each worker",
        )
    try:
        return EntryModel(name, found[entry].load()(model, secrets))
    except (Exception, SystemExit) as error:
        raise _fault(name, error, unheard=False) from error


@dataclass(frozen=True)
class EntryModel:
    """Somebody's model, held to what the protocol says: time, cancel, ids and faults."""

    name: str
    model: Model

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        """One answer. Raises ProviderFault and InvalidFault."""
        answer: Future[Reply] = Future()
        over, stop = Event(), Cancel()

        def ask() -> None:
            try:
                answer.set_result(self.model.reply(request, timeout_s=timeout_s, cancel=stop))
            except BaseException as error:  # handed on to whoever waits
                answer.set_exception(error)
            over.set()

        off = cancel.on_set(over.set)
        Thread(target=ask, name=self.name, daemon=True).start()
        over.wait(timeout_s)
        off()
        if cancel.is_set():
            stop.set(cancel.reason)
            raise cancelled_fault(cancel)
        if not answer.done():
            stop.set("its time is over")
            raise late_fault(timeout_s)
        try:
            return self._checked(answer.result(), request.step)
        except (Exception, SystemExit) as error:
            raise _fault(self.name, error, unheard=not isinstance(error, UNSENT)) from error

    def _checked(self, reply: Reply, step: int) -> Reply:
        """The reply as a journal can hold it. Raises ValueError for one that it cannot."""
        if not isinstance(reply, Reply):
            raise TypeError(f"it answered a {type(reply).__name__}, not a Reply")
        kept = Reply.model_validate(clean(reply.model_dump(mode="json")))
        if kept.usage != kept.usage.bounded or not 0 <= (kept.cost_microusd or 0) <= MICROUSD_MAX:
            raise ValueError(f"it counts {kept.usage}, at {kept.cost_microusd} micro-dollars")
        if not kept.model or not kept.price_source:
            kept = kept.model_copy(
                update={"model": kept.model or self.name, "price_source": kept.price_source or self.name}
            )
        return under_our_ids(kept, step)


def _fault(name: str, error: BaseException, *, unheard: bool) -> Exception:
    match error:
        case ProviderFault() | InvalidFault():
            return error
        case OSError():
            return ProviderFault("connection", f"{name} failed: {error!r}", retryable=True, unheard=unheard)
        case _:
            return ProviderFault("unavailable", f"{name} failed: {error!r}", unheard=unheard)
