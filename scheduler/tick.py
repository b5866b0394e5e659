"""Owns the scheduler's loop: read, plan, act, record. Refuses to decide (planning/plan.py) and to run anything.

It holds no truth: folds are cached, Redis is asked anew each round, and both can be lost at any moment. One
scheduler acts at a time, by lease; a second one waits.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

import structlog

from scheduler.budget import Gate
from scheduler.control import SUBMITTED
from scheduler.deliveries.delivering import LANE, Deliveries
from scheduler.planning import windows
from scheduler.planning.backlog import Entry, Queue
from scheduler.planning.ended import again_at
from scheduler.planning.plan import (
    Bounds,
    Close,
    Decision,
    Group,
    Held,
    Pool,
    Ring,
    Seen,
    Slots,
    Usage,
    closes,
    plan,
    usage,
)
from scheduler.planning.register import Register
from scheduler.planning.turns import Turns
from scheduler.post import Post
from scheduler.reports.reporting import Reporter, stands
from scheduler.retry import complete_all
from scheduler.runs import marked_runs
from scheduler.schedules.firing import Firings
from scheduler.seal import BY, seal
from worker.contract import hours
from worker.contract.errors import Fault, HintsFault, IntegrityFault, StoreFault
from worker.contract.model_name import account_of
from worker.contract.run import Run
from worker.contract.settings import Settings
from worker.store import keys
from worker.store.archive import Archive
from worker.store.damage import end_damaged
from worker.store.hints import Hints
from worker.store.mail import Mail

LEASE: Final = "scheduler"
MAX_BACKOFF_S: Final = 5.0
FAULT_CHARS: Final = 200
UNKNOWN: Final = -2
"""No number that a hint has: what is open must be listed."""
VISITED: Final = 500
"""Runs of the backlog of which each round asks whether somebody holds them or speaks to them; all of 10,000 within
ten seconds. Of a paused batch each patrol looks into the inboxes of as many."""
CLOSED_AT_ONCE: Final = 100
"""Of a batch that was cancelled, or of which no more may begin: a second or two of writing."""

log = structlog.get_logger()


class Scheduler:
    """ring: puts a doorbell (run, lane) into the queue. now: the clock, UTC. reporter: None to write no reports. Not
    thread-safe."""

    def __init__(
        self,
        archive: Archive,
        hints: Hints,
        ring: Callable[[str, str], None],
        settings: Settings,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        reporter: Reporter | None = None,
    ) -> None:
        self._archive, self._hints, self._ring, self._settings, self._now = archive, hints, ring, settings, now
        self._token, self._reporter = secrets.token_hex(16), reporter
        self._register = Register(archive, BY, self._stamp, self._keep)
        self._leading = False
        self._epoch: str | None = None
        self._settled_at = now()
        self._listed_at: datetime | None = None
        self._post = Post(archive, settings.decision_poll_s)
        self._deliveries = Deliveries(archive, hints, ring, settings)
        self._firings = Firings(archive, hints, settings.relist_s)
        self._submitted = UNKNOWN
        self._turns: dict[str, Turns] = {}
        self._usage: dict[str, Usage] = {}
        self._planned_at = now()
        self._closing: set[str] = set()

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
        if self._reporter is not None:
            self._reporter.close()
        if self._leading:
            self._hints.release(LEASE, self._token)

    def tick(self) -> None:
        """One round. Raises HintsFault or StoreFault when it could not be finished; the next one goes on."""
        if not self._lead():
            return
        now = self._now()
        self._watch_epoch(now)
        self._list(now)
        if self._firings.act(now, self._register.batches):
            self._submitted = UNKNOWN
            self._list(now)
        self._deliveries.attend(now)
        if not self._register:
            self._report(now)
            return
        slots = self._slots()
        self._register.look_up()
        self._read_controls(now)
        self._follow(now)
        heads = self._heads(slots["main"])
        visited = {*(head.run for head in heads), *self._register.backlog.some(VISITED)}
        leased, outstanding = self._look(visited)
        if self._hints.epoch() != self._epoch:
            return  # wiped while it was read: that it knew of no lease proves nothing
        self._read_mail(now, leased, visited)
        groups = {batch: self._group(batch) for batch in self._register.batches}
        seen = self._seen(heads, now, leased, outstanding)
        decisions = self._plan(now, seen, slots, groups)
        self._act(decisions, now)
        self._forget_sealed()
        self._report(now, seen, decisions)

    def _report(self, now: datetime, seen: Sequence[Seen] = (), decisions: Sequence[Decision] = ()) -> None:
        if self._reporter is not None:
            self._reporter.after(now, stands(seen, decisions, now))

    def _plan(
        self, now: datetime, seen: list[Seen], slots: dict[Pool, Slots], groups: dict[str, Group]
    ) -> list[Decision]:
        """The decisions, by the turns that came of the rounds before."""
        passed_s = max(0.0, (now - self._planned_at).total_seconds())
        self._turns = {
            lane: self._turns.get(lane, Turns()).after(passed_s, used.using, used.wanting, used.passed)
            for lane, used in self._usage.items()
        }
        settling, bounds = now < self._settled_at, Bounds(self._settings.interactive_reserve, self._settings.max_runs)
        decisions = plan(now, seen, slots, settling=settling, groups=groups, turns=self._turns, bounds=bounds)
        self._usage, self._planned_at = usage(seen, decisions, groups), now
        self._closing = {one.batch for one in seen if closes(one, groups[one.batch])}
        return decisions

    def _act(self, decisions: list[Decision], now: datetime) -> None:
        for decision in decisions:
            match decision:
                case Ring(run, lane):
                    self._answer(run, lane, now)
                case Close():
                    self._close(decision)

    def _keep(self) -> None:
        """Lead on while much is read: whoever lost the lease meanwhile finds that in the next round."""
        self._hints.extend(LEASE, self._token, self._settings.lease_ttl_s)

    def _lead(self) -> bool:
        """Hold the lease. A new leader trusts nothing it cached when it led before."""
        leads = self._hints.claim(LEASE, self._token, self._settings.lease_ttl_s)
        if leads and not self._leading:
            self._register.clear()
            if self._reporter is not None:
                self._reporter.forget()
            self._turns, self._usage = {}, {}
            self._post = Post(self._archive, self._settings.decision_poll_s)
            self._firings.forget()
            self._deliveries.clear()
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
        if due:
            complete_all(self._archive)
        found = [name for name in marked_runs(self._archive) if name not in self._deliveries]
        self._set_aside(self._register.update(found, anew=due))
        self._submitted = submitted
        if due:
            self._listed_at = now

    def _set_aside(self, faults: Iterable[tuple[str, Fault]]) -> None:
        """Runs that cannot be read, until the next full listing."""
        for name, fault in faults:
            self._register.set_aside(name, fault)
            log.error("a run cannot be read", run=name, fault=str(fault)[:FAULT_CHARS])
            alone = self._now() >= self._settled_at and not self._hints.held([f"run:{name}"])
            if isinstance(fault, IntegrityFault) and alone:
                end_damaged(self._archive, name, fault, by=BY, at=self._stamp())

    def _heads(self, slots: Slots) -> list[Entry]:
        """Of each batch the runs that could begin now: one where none can, so that its turn is kept."""
        used = Counter(one.entry.repo for one in self._register.attended.values() if any(one.looked) or one.rung)

        def room(entry: Entry) -> int | None:
            most = entry.task.max_per_repo
            return None if most is None else max(1, most - used[entry.repo])

        backlog, begin = self._register.backlog, max(1, slots.free)
        heads: list[Entry] = []
        for queue in backlog.queues:
            closing = queue[0] in self._closing or self._control(queue[0]).cancel is not None
            heads += backlog.heads(queue, CLOSED_AT_ONCE if closing else begin, room)
        return heads

    def _look(self, visited: set[str]) -> tuple[set[str], set[str]]:
        """Runs with a living attempt, and runs with an unanswered doorbell. Where that changed, fold again. visited:
        those of the backlog that are asked for."""
        register, outstanding = self._register, set(self._hints.outstanding())
        held = self._hints.held(f"run:{name}" for name in {*register.attended, *visited})
        leased = {name.removeprefix("run:") for name in held}
        told = self._hints.poked(f"run:{name}" for name in visited)
        for name in (*leased, *outstanding, *(name.removeprefix("run:") for name in told)):
            if name in register.backlog:
                register.attend(name)
        changed = []
        for name, one in register.attended.items():
            looked = (name in leased, name in outstanding)
            if looked != one.looked:
                one.looked = looked
                changed.append(name)
        self._set_aside(register.load(changed))
        return leased, outstanding

    def _read_controls(self, now: datetime) -> None:
        """Take in what people sent to batches."""
        batches = self._register.batches
        torn = self._post.read_batches(now, batches, self._hints.poked(f"batch:{batch}" for batch in batches))
        self._set_aside((name, fault) for batch, fault in torn for name in self._register.of(batch))

    def _follow(self, now: datetime) -> None:
        """Begin candidates whose first one has done the commands that they share."""
        followers = self._register.followers
        if followers.due(now):
            poked = self._hints.poked(f"run:{name}" for name in followers.waiting)
            self._set_aside(self._register.follow(self._post.ending(now, followers.waiting, poked)))

    def _read_mail(self, now: datetime, leased: set[str], visited: set[str]) -> None:
        """Take in what people sent to runs that no attempt listens for."""
        register = self._register
        if self._post.due(now):
            self._visit_paused(visited)
        poked = self._hints.poked(f"run:{name}" for name in register.attended)
        alone = [(one.run, one.entry.batch) for name, one in register.attended.items() if name not in leased]
        self._set_aside(self._post.read(now, alone, poked))

    def _visit_paused(self, visited: set[str]) -> None:
        """Whoever is paused is not claimed, so that no attempt would find what came without a hint."""
        backlog = self._register.backlog
        paused = {run for batch in backlog.batches if self._control(batch).blocks for run in backlog.of(batch)}
        for name in self._post.written_to(sorted(paused & visited)):
            self._register.attend(name)

    def _control(self, batch: str) -> Mail:
        """What a run of the batch that has read nothing has to read of its control."""
        return self._post.mail(Run(), batch)

    def _group(self, batch: str) -> Group:
        return self._register.group(batch, again_at(self._control(batch).control))

    def _seen(self, heads: list[Entry], now: datetime, leased: set[str], outstanding: set[str]) -> list[Seen]:
        """What the plan is shown: all that do something, and of the others those that could begin, which are alike
        but for their names."""
        gate, register, alike = Gate(self._hints), self._register, dict[Queue, Seen]()
        seen = [
            self._seen_one(one.entry, one.run, gate, now, name in leased, one.rung_age_s(now, name in outstanding))
            for name, one in register.attended.items()
        ]
        for head in heads:
            if head.run in register.backlog:
                if head.queue not in alike:
                    alike[head.queue] = self._seen_one(head, head.stub(), gate, now, False, None)
                seen.append(
                    replace(
                        alike[head.queue], id=head.run, since=head.since, by=head.by, repo=head.repo, wave=head.wave
                    )
                )
        return seen

    def _seen_one(
        self, entry: Entry, run: Run, gate: Gate, now: datetime, leased: bool, rung_age_s: float | None
    ) -> Seen:
        task = entry.task
        mail = self._post.mail(run, entry.batch)
        return Seen(
            id=entry.run,
            status=run.status,
            since=run.submitted_at,
            lane=task.lane,
            leased=leased,
            cancelled=mail.cancel is not None,
            blocked=mail.blocks,
            begun=run.claims > 0,
            held=windows.held(task, run, now) or _held(gate.held(task, mail)),
            barren_claims=run.barren_claims,
            not_before=hours.not_before(task, run),
            rung_age_s=rung_age_s,
            batch=entry.batch,
            by=run.submitted_by,
            repo=entry.repo,
            account=account_of(task.model),
            wave=entry.wave,
        )

    def _slots(self) -> dict[Pool, Slots]:
        total: dict[Pool, int] = {"main": 0, "solo": 0}
        free: dict[Pool, int] = {"main": 0, "solo": 0}
        for worker in self._hints.workers():
            if worker.lanes == (LANE,):
                continue
            pool: Pool = "solo" if "solo" in worker.lanes else "main"
            total[pool] += worker.slots
            free[pool] += worker.free
        return {pool: Slots(total[pool], free[pool]) for pool in total}

    def _answer(self, name: str, lane: str, now: datetime) -> None:
        one = self._register.attend(name)
        self._hints.rung(name, lane, self._settings.ring_again_s)
        self._ring(name, lane)
        one.rung = (now, one.run.claims)
        one.looked = (False, True)

    def _close(self, decision: Close) -> None:
        one = self._register.attend(decision.run)
        try:
            one.run = seal(self._archive, one.run, decision, at=self._stamp())
        except IntegrityFault as fault:
            self._set_aside([(decision.run, fault)])
            return
        if one.run.sealed is None:
            log.info("a run that was to be sealed is claimed again", run=decision.run)

    def _forget_sealed(self) -> None:
        """The marker goes last: whoever finds it deletes it, however the sealer ended. One stays until its run is
        delivered, where that is wanted."""
        sealed = [name for name, one in self._register.attended.items() if one.run.sealed is not None]
        if sealed:
            ones = [self._register.attended[name] for name in sealed]
            done = [one.run.id for one in ones if not self._deliveries.takes(one.run, one.entry.task)]
            self._archive.delete(keys.open_marker(name) for name in done)
            self._post.forget(sealed)
            for name in sealed:
                self._register.leave(name)

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
