"""Owns when a batch's report is written and told while a scheduler runs: at its end, and whenever it stands still.
Refuses to hold up the scheduler's round: all but the look at what is due happens on a thread of its own, one batch
after another.

A batch is due while the marker `due/<batch>` is there: from its submit, or a retry in it, until the report of its end
is written and told. So whoever leads next finds what its predecessor owed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from scheduler.budget import Spending, spending_of_day
from scheduler.planning.plan import Decision, Seen, Wait
from scheduler.reports import kept, notify, pages
from scheduler.reports.reported import Morning
from scheduler.runs import marked_runs
from worker.contract.errors import HintsFault, IntegrityFault, NotFoundFault, VersionFault
from worker.contract.notify import Notify
from worker.contract.settings import Settings
from worker.contract.task import Task
from worker.store import keys
from worker.store.archive import Archive
from worker.store.hints import Hints
from worker.store.journal import Journal
from worker.store.members import members

STILL_S: Final = 60.0
"""A batch with open runs is told of when nothing has moved in it for so long: answers to several questions come one
after another."""
AT_REST: Final = frozenset({"person", "paused", "budget", "window", "wave"})
"""What a run may wait for that no worker brings on; a wave is what the others of its batch wait for."""
SOON_S: Final = 900.0
"""What was begun and goes on that late stands still until then: a provider is away, a day's budget is used up."""
LATER_S: Final = 3600.0
DELIVERY_S: Final = 1800.0
"""How long a report of the end waits for patches that workers are delivering."""
JOBS: Final = 32
"""Begun and not done: the thread takes one after another."""
FAULT_CHARS: Final = 200

log = structlog.get_logger()

Stands = Mapping[str, str | None]
"""Of each batch with an open run: where its runs stand, None while one of them may move by itself."""


def stands(seen: Iterable[Seen], decisions: Iterable[Decision], now: datetime) -> dict[str, str | None]:
    """Of a round of the scheduler. A run of one person's `dawn run` is told to that person."""
    of, still = {one.id: one for one in seen}, dict[str, list[str] | None]()
    for decision in decisions:
        one = of[decision.run]
        if one.lane == "interactive":
            continue
        where = still.setdefault(one.batch, [])
        if not _rests(one, decision, now):
            still[one.batch] = None
        elif where is not None:
            where.append(f"{decision.run} {getattr(decision, 'why', '')}")
    return {batch: None if where is None else ", ".join(sorted(where)) for batch, where in still.items()}


def _rests(one: Seen, decision: Decision, now: datetime) -> bool:
    if not isinstance(decision, Wait):
        return False
    far = decision.until is not None and decision.until - now > timedelta(seconds=SOON_S)
    return decision.why in AT_REST or (decision.why == "not_before" and one.begun and far)


@dataclass
class _Due:
    """Of one batch that is due. stands: as last seen, "" once no run is open, and since when; told: what of it was
    reported. tries: how often its message was tried, and when next."""

    stands: str | None = None
    since: datetime | None = None
    told: str | None = None
    unsent: bool = False
    tries: int = 0
    again_at: datetime | None = None


@dataclass
class _Done:
    """What a job found. over: the marker may go. again_at: there is nothing to tell before; unsent: a message is."""

    over: bool = False
    again_at: datetime | None = None
    unsent: bool = False
    failed: str = ""


@dataclass
class Reporter:
    """For the scheduler that leads. secret: what a webhook is signed with, by name. Not thread-safe."""

    archive: Archive
    hints: Hints | None
    settings: Settings
    secret: notify.Secret
    stamp: Callable[[], datetime] = lambda: datetime.now(UTC)
    _due: dict[str, _Due] = field(default_factory=dict)
    _listed: tuple[datetime, frozenset[str]] | None = None
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="report"))
    _jobs: dict[str, tuple[str, Future[_Done]]] = field(default_factory=dict)

    def after(self, now: datetime, seen: Stands) -> None:
        """After a round: take in what the last job found, begin the next. One listing at most. Raises StoreFault."""
        self._finish(now)
        self._list(now, seen)
        for batch, due in self._due.items():
            where = seen.get(batch, "")
            if due.since is None or where != due.stands:
                due.stands, due.since, due.tries, due.again_at = where, now, 0, None
                due.told = None
            free = batch not in self._jobs and len(self._jobs) < JOBS
            if free and (where := self._wants(due, now)) is not None:
                self._jobs[batch] = where, self._pool.submit(self._work, batch, over=not where, due=due)

    def settle(self) -> None:
        """Wait for the jobs that were begun; the next round takes in what they found."""
        for _, job in self._jobs.values():
            job.exception()

    def close(self) -> None:
        """Wait for the job in hand, and begin no other."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def forget(self) -> None:
        """Somebody else may have led since: trust nothing."""
        self._due.clear()
        self._listed = None

    def _wants(self, due: _Due, now: datetime) -> str | None:
        """Where the batch stands that is to be looked into now."""
        if due.stands is None or due.since is None:
            return None
        if due.again_at is not None and now < due.again_at:
            return None
        still = not due.stands or now - due.since >= timedelta(seconds=STILL_S)
        return due.stands if still and (due.told != due.stands or due.unsent) else None

    def _list(self, now: datetime, seen: Stands) -> None:
        """Every relist_s, and when a batch came or went."""
        known = frozenset(seen)
        if self._listed is not None:
            at, before = self._listed
            if known == before and now - at < timedelta(seconds=self.settings.relist_s):
                return
        found = [key.removeprefix("due/") for key in self.archive.list("due/")]
        for batch in known.difference(found):  # a retry after the report, or one whose marker went with it
            self.archive.create(keys.report_due(batch), b"")
            found.append(batch)
        self._due = {batch: self._due.get(batch, _Due()) for batch in found}
        self._listed = now, known

    def _finish(self, now: datetime) -> None:
        for batch, (where, job) in list(self._jobs.items()):
            if job.done():
                del self._jobs[batch]
                if (due := self._due.get(batch)) is not None:
                    self._take_in(batch, due, where, job.result(), now)

    def _take_in(self, batch: str, due: _Due, where: str, done: _Done, now: datetime) -> None:
        if done.over:
            del self._due[batch]
        elif done.failed:
            log.warning("a report waits", batch=batch, fault=done.failed[:FAULT_CHARS])
            due.again_at = now + timedelta(seconds=self.settings.relist_s)
        elif done.again_at is not None:
            due.again_at = done.again_at
        else:
            due.told, due.unsent = where, done.unsent
            due.tries = due.tries + 1 if done.unsent else 0
            pause_s = notify.BACKOFF_S[min(due.tries, len(notify.BACKOFF_S) - 1)]
            due.again_at = now + timedelta(seconds=pause_s) if done.unsent else None

    def _work(self, batch: str, *, over: bool, due: _Due) -> _Done:
        try:
            if self.archive.size(keys.batch_targets(batch)) is None:  # it went, by dawn gc, or was cut off at submit
                self.archive.delete([keys.report_due(batch)])
                return _Done(over=True)
            return self._report(batch, due, over=over)
        except Exception as fault:  # whatever is wrong with a report, runs must go on
            return _Done(failed=f"{type(fault).__name__}: {fault}")

    def _report(self, batch: str, due: _Due, *, over: bool) -> _Done:
        report = kept.gather(self.archive, batch, at=self._at(), day=self._day())
        task = self._task(batch)
        if (later := self._too_early(report, task, over=over)) is not None:
            return _Done(again_at=later)
        waits = report.ended and self._delivers(batch)
        young = due.since is not None and self.stamp() - due.since < timedelta(seconds=DELIVERY_S)
        if waits and report.delivering and young:
            return _Done(again_at=self.stamp() + timedelta(seconds=self.settings.relist_s))
        stored = kept.store(self.archive, report)
        wanted = None if task is None else task.notify
        unsent = wanted is not None and self._tell(
            batch, stored, wanted, last_try=due.tries + 1 >= len(notify.BACKOFF_S)
        )
        if wanted is not None:
            notify.write_file(self.settings.reports_folder, wanted, lambda kind: pages.as_kind(stored.report, kind))
        if waits and not unsent:  # for a review: what comes of it is another report
            return _Done(again_at=self.stamp() + timedelta(seconds=LATER_S))
        if report.ended and not unsent:
            self.archive.delete([keys.report_due(batch)])
        return _Done(over=report.ended and not unsent, unsent=unsent)

    def _delivers(self, batch: str) -> bool:
        """Whether a run that is sealed is still open, because its patch is to go further."""
        marked = set(marked_runs(self.archive))
        return any(member.run in marked for member in members(self.archive, batch))

    def _tell(self, batch: str, stored: kept.Stored, wanted: Notify, *, last_try: bool) -> bool:
        """Try each message that is not sent, once; whether one is left."""
        left = False
        for notice in notify.announce(self.archive, stored, wanted, at=self._at()):
            told: Morning = (
                stored.report if notice.report == stored.n else kept.read(self.archive, batch, notice.report)
            )
            now_s = self.stamp().timestamp()
            answer = notify.send(wanted, notice, told, self.secret, now_s=now_s, ca=self.settings.ca_bundle)
            if answer.ok or answer.final or last_try:
                notify.conclude(self.archive, batch, notice, answer, at=self._at())
            else:
                log.warning("a message waits", batch=batch, id=notice.id, fault=answer.detail)
                left = True
        return left

    def _too_early(self, report: Morning, task: Task | None, *, over: bool) -> datetime | None:
        """When to look again, None where there is something to tell now: the batch has ended, or something of it has
        begun, or somebody is asked for, or the hours in which it could have begun are over."""
        now = self.stamp()
        if report.ended:
            return None
        if over:  # a run that the round has not seen is open
            return now + timedelta(seconds=self.settings.relist_s)
        if report.needs or any(row.state != "not_reached" for row in report.rows):
            return None
        if task is None or task.window is None:
            return now + timedelta(seconds=LATER_S)
        last_call = task.window.last_call(datetime.fromisoformat(max(task.start_at or "", report.submitted_at)))
        return last_call if now < last_call else None

    def _task(self, batch: str) -> Task | None:
        """Of one of its runs: what is the same in all of them."""
        for member in members(self.archive, batch):
            try:
                return Journal(self.archive, member.run).task()
            except (IntegrityFault, NotFoundFault, VersionFault):
                continue
        return None

    def _day(self) -> Spending | None:
        if self.hints is None or self.settings.day_budget_usd is None:
            return None
        try:
            return spending_of_day(self.hints, self.settings.day_budget_usd, self.stamp())
        except HintsFault:  # the report is the archive's; what Redis adds is left out
            return None

    def _at(self) -> str:
        return self.stamp().isoformat(timespec="milliseconds")
