"""Owns what was spent of a budget that many runs share, as their journals say. Refuses to ask Redis: this is what its
counters are made from when they are missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from worker import meter
from worker.contract.errors import Fault, IntegrityFault, NotFoundFault, VersionFault
from worker.contract.events import Event, Record, Replied
from worker.contract.run import Run
from worker.contract.task import Task
from worker.lost_reply import lost_reply
from worker.models.prices import Prices
from worker.store import keys
from worker.store.archive import Archive
from worker.store.counters import Part
from worker.store.journal import Journal
from worker.store.members import members
from worker.tools.notes import Delegate
from worker.tools.toolset import toolset

READERS: Final = 8


def spent_microusd(level: str, records: Iterable[Record]) -> int:
    """What a run spent at a level (`batch:<id>`, `day:<date>`), of all its records: what a fork copied was its
    parent's, and a day's is what was committed on it."""
    kind, _, day = level.partition(":")
    mine = (record for record in records if record.seq > 0)
    counted = (record.event for record in mine if kind == "batch" or record.at.startswith(day))
    return sum(getattr(_priced(event), "cost_microusd", None) or 0 for event in counted)


def has_cost(event: Event) -> bool:
    """Whether it is of a kind that costs: a reply, a summary, a delegate's part, or what may have been paid for."""
    return hasattr(_priced(event), "cost_microusd")


def fold(archive: Archive, level: str, prices: Prices, beside_s: float) -> dict[str, Part]:
    """Run -> what it spent at a level, and a call that may be in flight. beside_s: how much longer than its own time
    limit such a call may count as being in flight. Raises StoreFault, IntegrityFault."""
    kind, _, name = level.partition(":")
    runs = _of_batch(archive, name) if kind == "batch" else _of_day(archive, name)
    with ThreadPoolExecutor(READERS) as pool:
        return dict(zip(runs, pool.map(lambda run: _part(archive, level, run, prices, beside_s), runs), strict=True))


def _of_batch(archive: Archive, batch: str) -> list[str]:
    return [member.run for member in members(archive, batch)]


def _of_day(archive: Archive, day: str) -> list[str]:
    folder = keys.day_marker(day, "")
    return [key.removeprefix(folder) for key in archive.list(folder)]


def _part(archive: Archive, level: str, run: str, prices: Prices, beside_s: float) -> Part:
    journal, records, now = Journal(archive, run), list[Record](), Run(id=run)
    try:
        task = journal.task()
        for record, line_hash in journal.read():
            now = now.after(record, line_hash)
            records.append(record)
    except NotFoundFault:  # the submit that names it has not written it yet
        return Part(0)
    except (IntegrityFault, VersionFault):  # whoever works on it ends it in sight; what can be read of it counts
        return Part(spent_microusd(level, records))
    try:
        asked = _in_flight_microusd(task, now, records, prices)
    except (Fault, ValueError, ArithmeticError):  # no model can be asked with such a task: its own attempt says so
        asked = 0
    return Part(spent_microusd(level, records), now.attempt or 0, asked, task.limits.model_timeout_s + beside_s)


def _in_flight_microusd(task: Task, now: Run, records: list[Record], prices: Prices) -> int:
    """What a call that may be in flight can cost, 0 when there can be none, or nobody knows."""
    if now.status == "running" and now.pending and now.pending[0].name == Delegate.name:
        names = (task.model, *task.fallbacks)  # a delegate's own request stands in its own journal
        return prices.bound(names, task.limits.context_tokens, meter.RESERVE_TOKENS) or 0
    asked = lost_reply(task, now, records, toolset(task).specs, prices)
    return 0 if asked is None else asked.cost_microusd or 0


def _priced(event: Event) -> object:
    return event.reply if isinstance(event, Replied) else event
