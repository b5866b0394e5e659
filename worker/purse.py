"""Owns the money of one attempt: no model is asked that the budgets of its batch and of the day have no room for, and
what each answer cost is told to their counters once it is committed. Refuses to decide what a used up budget means:
the loop does.

A call is admitted with the most that it can cost. A day counts what is committed on it, so a call that may end after
midnight is admitted by both days. A model that costs nothing is asked whatever was spent; a script is no day's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import partial
from typing import Final

import structlog

from worker import spending
from worker.contract.cancel import Cancel
from worker.contract.errors import BudgetFault, Fault, HintsFault, InvalidFault, PacedFault, ProviderFault
from worker.contract.events import Event, Reply, Unrecorded
from worker.contract.model_name import parse_model_name
from worker.contract.script import parse_script
from worker.contract.task import Task, usd_text
from worker.ledger import Ledger
from worker.models.protocol import Model, ModelRequest
from worker.station import Station
from worker.store import keys
from worker.store.counters import Counters, Refused

LOG = structlog.get_logger(__name__)

LOOK_AGAIN_S: Final = 1.0
DAY_LOOK_S: Final = 3600.0
FOLD_S: Final = 60.0
"""After so long without its result somebody else folds too: who began may be dead."""

Bound = Callable[[int, int], int | None]


@dataclass
class Purse:
    """station: as the process lent it. task, ledger: the run's."""

    task: Task
    station: Station
    ledger: Ledger
    _levels: set[str] = field(default_factory=set)
    _in_flight_microusd: int = 0
    _marked: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._counters = Counters(self.station.hints)
        self.ledger.committed = self._committed

    def open(self, task: Task) -> Model:
        """The model of the run, or of a delegate of it, within the budgets. Raises as Station.open_model, and
        InvalidFault for one of unknown price where a budget is in force."""
        model, provider = self.station.open_model(task), parse_model_name(task.model).provider
        limits = self.limits(timeout_s=0)
        if provider == "replay" or (provider == "scripted" and not limits):
            return model
        bound: Bound = partial(self.station.prices.bound, (task.model, *task.fallbacks))
        budgeted = Budgeted(model, self, partial(_dearest, task) if provider == "scripted" else bound)
        budgeted.estimate(limits, sent_tokens=1, answer_tokens=1)
        return budgeted

    def limits(self, timeout_s: float) -> dict[str, int]:
        """Level -> micro-dollars that may be spent there, of each budget that a call of that length meets."""
        found, day_usd = dict[str, int](), self.station.settings.day_budget_usd
        batch = self.ledger.run.budget_microusd(self.task)
        if batch is not None:
            found[f"batch:{self.task.batch}"] = batch
        if day_usd is not None:
            found |= {f"day:{day}": round(day_usd * 1e6) for day in self._days(timeout_s)}
        return found

    def mark(self, timeout_s: float) -> None:
        """Leave a marker of each day on which a call of that length may cost money. Raises StoreFault."""
        for day in self._days(timeout_s) - self._marked:
            self.ledger.patiently(partial(self.station.archive.create, keys.day_marker(day, self.task.run), b""))
            self._marked.add(day)

    def reserve(self, estimate_microusd: int, limits: Mapping[str, int], timeout_s: float) -> None:
        """Reserve at every level. Raises BudgetFault where one is used up, PacedFault where calls in flight hold what
        is left, HintsFault, StoreFault."""
        run, parts = self.ledger.run, self._parts(limits)
        for_s = timeout_s + self.station.settings.lease_ttl_s
        while True:
            refused = self._counters.reserve(run.id, run.attempt or 0, estimate_microusd, for_s, limits, parts)
            if refused is None:
                self._levels.update(limits)
                self._in_flight_microusd = estimate_microusd
                return
            if refused.why == "spent":
                raise _used_up(refused, limits[refused.level], self.station.later(DAY_LOOK_S))
            if refused.why == "busy" or not self._fold(refused.level):
                what = "reserved by calls in flight" if refused.why == "busy" else "being counted"
                raise PacedFault(f"what is left of {refused.level} is {what}", LOOK_AGAIN_S)

    def settle(self) -> None:
        """The call is over, and what it cost is committed."""
        self._in_flight_microusd = 0
        self._tell()

    def unheard(self) -> tuple[Event, ...]:
        """What an attempt has to commit when it ends on its own while no journal has the answer of a call: it may be
        paid for, and nobody takes the call over."""
        if not self._in_flight_microusd:
            return ()
        return (Unrecorded(cost_microusd=self._in_flight_microusd, detail="an answer was lost with its attempt"),)

    def close(self) -> None:
        """Tell all that the run spent, also what an attempt before it lost. A call in flight, whose answer came to no
        journal, stays reserved: whoever takes the run over counts it."""
        self._levels.update(self.limits(timeout_s=0))
        if self._levels and not self._in_flight_microusd:
            self._tell()

    def _committed(self, events: Sequence[Event]) -> None:
        if self._levels and any(spending.has_cost(event) for event in events):
            self.settle()

    def _tell(self) -> None:
        """Without Redis it is told with the next call, or at the end: until then the reservation stands for it."""
        run = self.ledger.run
        try:
            self._counters.settle(run.id, run.attempt or 0, self._parts(self._levels))
        except HintsFault as fault:
            LOG.warning("cost_not_told", fault=str(fault), next="told with the next call")

    def _parts(self, levels: Iterable[str]) -> dict[str, int]:
        return {level: spending.spent_microusd(level, self.ledger.records) for level in levels}

    def _days(self, timeout_s: float) -> set[str]:
        """On which it may be committed; none for a script, whose costs are made up: a batch may try them, and nobody
        else's runs pay for it."""
        if self.task.model.startswith("scripted:"):
            return set()
        return {self.station.now()[:10], self.station.later(timeout_s)[:10]}

    def _fold(self, level: str) -> bool:
        """Make the counter from the journals; False when somebody else is about to."""
        station, lease = self.station, f"fold:{level}"
        token = f"{self.ledger.run.id}/{self.ledger.run.attempt}"
        if not station.hints.claim(lease, token, FOLD_S):
            return False
        try:
            begun = self._counters.begin(level)
            parts = spending.fold(station.archive, level, station.prices, station.settings.lease_ttl_s)
            self._counters.put(level, begun, parts)
        finally:
            station.hints.release(lease, token)
        return True


@dataclass(frozen=True)
class Budgeted:
    """A model that is asked only where there is money for the answer. bound: (tokens sent, tokens of the answer at
    most) -> what that costs at most, None when it is unknown."""

    model: Model
    purse: Purse
    bound: Bound

    @property
    def name(self) -> str:
        return self.model.name

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        """As the model. Raises as Purse.reserve too, and InvalidFault for an unknown price where a budget is in
        force. There an answer without a known cost counts with the estimate, and so does one that nobody heard."""
        limits = self.purse.limits(timeout_s)
        estimate = self.estimate(limits, request.tokens, request.max_output_tokens)
        if estimate != 0:
            self.purse.mark(timeout_s)
        if not estimate:
            return self.model.reply(request, timeout_s=timeout_s, cancel=cancel)
        self.purse.reserve(estimate, limits, timeout_s)
        try:
            reply = self.model.reply(request, timeout_s=timeout_s, cancel=cancel)
        except Exception as fault:
            if isinstance(fault, ProviderFault) and fault.unheard:
                fault.unheard_microusd = estimate  # whoever asked commits it, and that settles the call
            elif isinstance(fault, Fault):
                self.purse.settle()
            raise  # a bug of ours may have come after the answer: it stays in flight
        if reply.cost_microusd is None:
            return reply.model_copy(update={"cost_microusd": estimate, "price_source": "estimate"})
        return reply

    def estimate(self, limits: Mapping[str, int], sent_tokens: int, answer_tokens: int) -> int | None:
        """Micro-dollars, None without a budget. Raises InvalidFault where one is in force and the price unknown."""
        estimate = self.bound(sent_tokens, answer_tokens) if limits else None
        if estimate is None and limits:
            raise InvalidFault(
                f"the price of {self.name} is unknown, so {' and '.join(limits)} could not hold its budget",
                hint="give the price of each model and fallback in the file that DAWN_PRICES names",
            )
        return estimate


def _dearest(task: Task, sent_tokens: int, answer_tokens: int) -> int | None:
    """Of a script's replies, whatever is asked: a script may say what its model would have cost."""
    script = parse_script(task.script or "", parse_model_name(task.model).name)
    costs = [reply.cost_usd for turn in script.turns for reply in turn]
    return None if None in costs else round(max(cost or 0 for cost in costs) * 1e6)


def _used_up(refused: Refused, limit_microusd: int, soon: str) -> BudgetFault:
    """soon: when a day that is used up is looked at again, at the latest: its budget may be raised."""
    kind, _, name = refused.level.partition(":")
    spent = f"{usd_text(refused.spent_microusd)} of {usd_text(limit_microusd)} spent"
    if kind == "batch":
        return BudgetFault("batch_budget", spent)
    midnight = f"{date.fromisoformat(name) + timedelta(days=1)}T00:00:00.000+00:00"
    return BudgetFault("day_budget", f"{spent} on {name}", min(midnight, soon))
