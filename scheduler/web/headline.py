"""Owns the sentence that stands over each page of a batch, and keeping it ready. Refuses to keep a reader waiting: a
large batch that nobody has looked at yet is folded behind the page, and the page says so.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

import structlog

from scheduler.budget import Spending, spending
from scheduler.reports import kept
from scheduler.reports.morning import first_line
from scheduler.web.site import Site
from worker.contract.errors import Fault
from worker.store.members import Member

LOG = structlog.get_logger()
AT_ONCE: Final = 150
"""Runs that are folded while the reader waits: about a tenth of a second, of journals of a dozen lines."""
AGAIN_S: Final = 2.0
"""A large batch is not counted anew more often than that."""
KEPT_S: Final = 7 * 86_400.0


@dataclass(frozen=True)
class Head:
    """What stands over a batch's pages. sentence: what came of it. counting: that is still being found out, and
    sentence says what is known. as_of: UTC, of a report that says so and that nothing has followed, "" for now.
    runs: all, retries and candidates too; targets: what was asked for. still_open: runs that have not ended, or whose
    patch is not delivered. report: number of the last stored one, -1 for none."""

    batch: str
    sentence: str
    counting: bool
    as_of: str
    runs: int
    targets: int
    still_open: int
    report: int


@dataclass(frozen=True)
class _Brief:
    """Of a stored report what can answer for it."""

    headline: str
    ended: bool
    runs: int
    at: str


@dataclass(frozen=True)
class Count:
    """Of all runs of a batch. sentence: "" while nobody knows. money: what they spent of their budget, None without
    one."""

    sentence: str = ""
    money: Spending | None = None


@dataclass
class _Counting:
    """The last count of a large batch, and whether somebody counts."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    last: Count = Count()
    going_on: bool = False


def head(site: Site, batch: str) -> Head:
    """Raises NotFoundFault for a batch that is not there, IntegrityFault, StoreFault."""
    named = site.seen.named(batch)
    marked = site.seen.marked()
    still_open = sum(member.run in marked for member in named)
    n = site.seen.answer(("last report", batch), lambda: kept.last_number(site.archive, batch))
    brief = None if n < 0 else site.seen.answer(("brief", batch, n), lambda: _brief(site, batch, n), KEPT_S)
    targets = len({member.target for member in named})
    if brief is not None and brief.ended and brief.runs == len(named):
        return Head(batch, brief.headline, False, brief.at, len(named), targets, still_open, n)
    sentence = _sentence(site, batch, named)
    quick = f"{len(named):,} runs, {still_open:,} of them open; what came of each is being counted"
    return Head(batch, sentence or quick, not sentence, "", len(named), targets, still_open, n)


def count_now(site: Site, batch: str) -> None:
    """Count a batch, however large, while the caller waits: from then on its pages say what came of it. Raises as
    head."""
    _counting(site, batch).last = count(site, batch, site.seen.named(batch))
    site.seen.answer(("begun", batch), lambda: None, AGAIN_S)


def money(site: Site, batch: str) -> Spending | None:
    """What a batch spent of its budget, None without one, or while a large batch was not counted yet."""
    named = site.seen.named(batch)
    return _count(site, batch, named).money if len(named) <= AT_ONCE else _counting(site, batch).last.money


def _brief(site: Site, batch: str, n: int) -> _Brief | None:
    """None for one that cannot be read."""
    try:
        report = kept.read(site.archive, batch, n)
    except Fault:
        return None
    return _Brief(report.headline, report.ended, report.runs, report.at)


def _sentence(site: Site, batch: str, named: list[Member]) -> str:
    """ "" while a large batch is counted for the first time."""
    if len(named) <= AT_ONCE:
        return _count(site, batch, named).sentence
    counting = _counting(site, batch)
    site.seen.answer(("begun", batch), lambda: _begin(site, batch, named, counting), AGAIN_S)
    return counting.last.sentence


def _counting(site: Site, batch: str) -> _Counting:
    return site.seen.answer(("counting", batch), _Counting, KEPT_S)


def _count(site: Site, batch: str, named: list[Member]) -> Count:
    return site.seen.answer(("count", batch), lambda: count(site, batch, named))


def count(site: Site, batch: str, named: list[Member]) -> Count:
    """From all runs. Raises IntegrityFault, StoreFault."""
    seen = site.seen.batch(batch)
    spent = spending(site.archive, seen.found[0].task, seen.found) if seen.found else None
    return Count(first_line({member.run: member.target for member in named}, seen, spent), spent)


def _begin(site: Site, batch: str, named: list[Member], counting: _Counting) -> None:
    with counting.lock:
        if counting.going_on:
            return
        counting.going_on = True

    def work() -> None:
        try:
            counting.last = count(site, batch, named)
        except Fault as fault:  # the page that needs those runs tells it, and the next look tries again
            LOG.warning("a batch could not be counted, the next look tries again", batch=batch, fault=str(fault))
        finally:
            counting.going_on = False

    threading.Thread(target=work, name=f"count-{batch}", daemon=True).start()
