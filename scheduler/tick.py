"""Owns the scheduler's loop: read, plan, act, record. Refuses to decide (plan.py) and to run anything.

It holds no truth: folds are cached, Redis is asked anew each round, and both can be lost at any moment. One
scheduler acts at a time, by lease; a second one waits.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

import structlog

from scheduler import windows
from scheduler.budget import Gate
from scheduler.control import SUBMITTED
from scheduler.plan import USUAL_CLAIM_S, Close, Held, Pool, Ring, Seen, Slots, plan
from scheduler.post import Post
from scheduler.seal import BY, seal
from worker.contract import hours
from worker.contract.errors import Fault, HintsFault, IntegrityFault, StoreFault
from worker.contract.run import Run
from worker.contract.settings import Settings
from worker.contract.task import Task
from worker.store import keys
from worker.store.archive import Archive
from worker.store.damage import end_damaged
from worker.store.hints import Hints
from worker.store.journal import Journal

LEASE: Final = "scheduler"
LOADERS: Final = 8
MAX_BACKOFF_S: Final = 5.0
FAULT_CHARS: Final = 200

log = structlog.get_logger()


@dataclass
class _Open:
    """What is cached of one open run. looked: what Redis said of it when `run` was folded."""

    task: Task
    run: Run
    looked: tuple[bool, bool] = (False, False)
    rung: tuple[datetime, int] | None = None


class Scheduler:
    """ring: puts a doorbell (run, lane) into the queue. now: the clock, UTC. Not thread-safe."""

    def __init__(
        self,
        archive: Archive,
        hints: Hints,
        ring: Callable[[str, str], None],
        settings: Settings,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._archive, self._hints, self._ring, self._settings, self._now = archive, hints, ring, settings, now
        self._token = secrets.token_hex(16)
        self._open: dict[str, _Open] = {}
        self._broken: dict[str, str] = {}
        self._leading = False
        self._epoch: str | None = None
        self._settled_at = now()
        self._listed_at: datetime | None = None
        self._post = Post(archive, settings.decision_poll_s)
        self._submitted = -1

    def run(self, stop: threading.Event) -> None:
        """Tick until stopped. An outage of Redis or the store is logged and waited for."""
        pause_s = self._settings.tick_s
        while not stop.wait(pause_s):
            try:
                self.tick()
                pause_s = self._settings.tick_s
            except (HintsFault, StoreFault) as fault:
                log.warning("the scheduler waits", fault=str(fault)[:FAULT_CHARS])
                pause_s = min(MAX_BACKOFF_S, pause_s * 2)
        if self._leading:
            self._hints.release(LEASE, self._token)

    def tick(self) -> None:
        """One round. Raises HintsFault or StoreFault when it could not be finished; the next one goes on."""
        if not self._lead():
            return
        now = self._now()
        self._watch_epoch(now)
        self._list(now)
        if not self._open:
            return
        leased, outstanding = self._look()
        if self._hints.epoch() != self._epoch:
            return  # wiped while it was read: that it knew of no lease proves nothing
        self._read_mail(now, leased)
        gate = Gate(self._hints)
        decisions = plan(
            now,
            [self._seen(name, cached, now, leased, outstanding, gate) for name, cached in self._open.items()],
            self._slots(),
            settling=now < self._settled_at,
        )
        for decision in decisions:
            match decision:
                case Ring(run, lane):
                    self._answer(run, lane, now)
                case Close():
                    self._close(decision)
        self._forget_sealed()

    def _lead(self) -> bool:
        """Hold the lease. A new leader trusts nothing it cached when it led before."""
        leads = self._hints.claim(LEASE, self._token, self._settings.lease_ttl_s)
        if leads and not self._leading:
            self._open.clear()
            self._post = Post(self._archive, self._settings.decision_poll_s)
            self._listed_at = None
        self._leading = leads
        return leads

    def _watch_epoch(self, now: datetime) -> None:
        """A wiped Redis has lost the leases of attempts that are alive: they have one lease time to come back. The
        epoch is the time at which it was missed, so that a leader who comes later waits for that, too."""
        epoch = self._hints.epoch()
        if epoch is None:
            epoch = now.isoformat()
            self._hints.start_epoch(epoch)
        if epoch != self._epoch:
            self._epoch, self._listed_at = epoch, None
            self._settled_at = min(_began(epoch), now) + timedelta(seconds=self._settings.lease_ttl_s)

    def _list(self, now: datetime) -> None:
        """Take in what is open: at start, when a submit says so, and every relist_s with every fold renewed."""
        submitted = self._hints.poked([SUBMITTED]).get(SUBMITTED, -1)
        due = self._listed_at is None or now - self._listed_at >= timedelta(seconds=self._settings.relist_s)
        if not due and submitted == self._submitted:
            return
        found = [key.removeprefix("open/") for key in self._archive.list("open/")]
        if due:
            self._broken.clear()
        self._open = {name: self._open[name] for name in found if name in self._open}
        self._load(name for name in found if name not in self._broken and (due or name not in self._open))
        self._submitted = submitted
        if due:
            self._listed_at = now

    def _load(self, names: Iterable[str]) -> None:
        """Fold what is new of these runs. One that cannot be read is set aside until the next full listing."""

        def load(name: str) -> _Open | Fault:
            journal = Journal(self._archive, name)
            cached = self._open.get(name)
            try:
                if cached is not None:
                    cached.run = journal.load(since=cached.run)
                    return cached
                task = journal.task()
                run = journal.load()
                if run.last_seq < 0:
                    journal.submit(task, by="scheduler", at=self._stamp())
                    run = journal.load()
                return _Open(task, run)
            except StoreFault:
                raise
            except Fault as fault:
                return fault

        wanted = list(names)
        if not wanted:
            return
        with ThreadPoolExecutor(LOADERS) as pool:
            for name, loaded in zip(wanted, pool.map(load, wanted), strict=True):
                if isinstance(loaded, _Open):
                    self._open[name] = loaded
                else:
                    self._set_aside(name, loaded)

    def _set_aside(self, name: str, fault: Fault) -> None:
        self._open.pop(name, None)
        self._broken[name] = str(fault)
        log.error("a run cannot be read", run=name, fault=str(fault)[:FAULT_CHARS])
        alone = self._now() >= self._settled_at and not self._hints.held([f"run:{name}"])
        if isinstance(fault, IntegrityFault) and alone:
            end_damaged(self._archive, name, fault, by=BY, at=self._stamp())

    def _look(self) -> tuple[set[str], set[str]]:
        """Runs with a living attempt, and runs with an unanswered doorbell. Where that changed, fold again."""
        held = self._hints.held(f"run:{name}" for name in self._open)
        leased = {name.removeprefix("run:") for name in held}
        outstanding = set(self._hints.outstanding())
        changed = []
        for name, cached in self._open.items():
            looked = (name in leased, name in outstanding)
            if looked != cached.looked:
                cached.looked = looked
                changed.append(name)
        self._load(changed)
        return leased, outstanding

    def _read_mail(self, now: datetime, leased: set[str]) -> None:
        """Take in what people sent to runs that no attempt listens for, and to batches."""
        batches = {cached.task.batch for cached in self._open.values()}
        names = [*(f"run:{name}" for name in self._open), *(f"batch:{batch}" for batch in batches)]
        alone = [(cached.run, cached.task.batch) for name, cached in self._open.items() if name not in leased]
        for name, fault in self._post.read(now, alone, batches, self._hints.poked(names)):
            self._set_aside(name, fault)

    def _seen(
        self, name: str, cached: _Open, now: datetime, leased: set[str], outstanding: set[str], gate: Gate
    ) -> Seen:
        run = cached.run
        mail = self._post.mail(run, cached.task.batch)
        return Seen(
            id=name,
            status=run.status,
            since=run.submitted_at,
            lane=cached.task.lane,
            leased=name in leased,
            cancelled=mail.cancel is not None,
            blocked=mail.blocks,
            begun=run.claims > 0,
            held=windows.held(cached.task, run, now) or _held(gate.held(cached.task, mail)),
            barren_claims=run.barren_claims,
            not_before=hours.not_before(cached.task, run),
            rung_age_s=_rung_age_s(cached, now, name in outstanding),
        )

    def _slots(self) -> dict[Pool, Slots]:
        total: dict[Pool, int] = {"main": 0, "solo": 0}
        free: dict[Pool, int] = {"main": 0, "solo": 0}
        for worker in self._hints.workers():
            pool: Pool = "solo" if "solo" in worker.lanes else "main"
            total[pool] += worker.slots
            free[pool] += worker.free
        return {pool: Slots(total[pool], free[pool]) for pool in total}

    def _answer(self, name: str, lane: str, now: datetime) -> None:
        cached = self._open[name]
        self._hints.rung(name, lane, self._settings.ring_again_s)
        self._ring(name, lane)
        cached.rung = (now, cached.run.claims)
        cached.looked = (False, True)

    def _close(self, decision: Close) -> None:
        cached = self._open[decision.run]
        try:
            cached.run = seal(self._archive, cached.run, decision, at=self._stamp())
        except IntegrityFault as fault:
            self._set_aside(decision.run, fault)
            return
        if cached.run.sealed is None:
            log.info("a run that was to be sealed is claimed again", run=decision.run)

    def _forget_sealed(self) -> None:
        """The marker goes last: whoever finds it deletes it, however the sealer ended."""
        sealed = [name for name, cached in self._open.items() if cached.run.sealed is not None]
        if sealed:
            self._archive.delete(keys.open_marker(name) for name in sealed)
            self._post.forget(sealed)
            for name in sealed:
                del self._open[name]

    def _stamp(self) -> str:
        return self._now().isoformat(timespec="milliseconds")


def _held(becomes: Literal["pause", "stop"] | None) -> Held | None:
    """By a used up budget."""
    return None if becomes is None else Held("budget", skip=becomes == "stop")


def _began(epoch: str) -> datetime:
    """When the epoch began; long ago, where another version left one that does not say."""
    try:
        return datetime.fromisoformat(epoch).astimezone(UTC)
    except (ValueError, OverflowError):
        return datetime.min.replace(tzinfo=UTC)


def _rung_age_s(cached: _Open, now: datetime, outstanding: bool) -> float | None:
    """Age of a doorbell that counts as unanswered: Redis says so, or it was answered a moment ago and the claim
    that must follow is not in the journal yet."""
    if cached.rung is None:
        return 0.0 if outstanding else None
    at, claims = cached.rung
    age_s = (now - at).total_seconds()
    return age_s if outstanding or (age_s < USUAL_CLAIM_S and claims == cached.run.claims) else None
