"""Owns an attempt's ear: what people sent to its run or batch, taken between calls; a cancel at once, a pause when
the call in hand had its time; a window that closes is heard like a pause. Refuses to end the attempt itself: it says
what was asked.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from datetime import datetime

from worker import policy
from worker.contract.cancel import Cancel
from worker.contract.errors import HintsFault, IntegrityFault
from worker.contract.events import Asked, Decided, Event, Parked
from worker.contract.hours import Shut
from worker.contract.run import Run
from worker.host import Stopped
from worker.ledger import Ledger
from worker.station import Station
from worker.store.inbox import Inbox
from worker.store.mail import Mail, last_mail, read_mail


class Mailbox:
    """Of one attempt. `beat` runs in the heartbeat's thread, everything else in the loop's."""

    def __init__(
        self,
        station: Station,
        ledger: Ledger,
        cancel: Cancel,
        batch: str,
        shut: Callable[[Run, datetime], Shut | None] = lambda run, now: None,
    ) -> None:
        """shut: whether the run's window is closed, and until when."""
        self._station, self._ledger, self._cancel, self._batch, self._shut = station, ledger, cancel, batch, shut
        self._arrived = threading.Event()
        self._arrived.set()  # what came while nobody worked on the run
        self._hinted: dict[str, int] = {}
        self._looked_s = -math.inf
        self._person_pauses = False
        self._paused_s: float | None = None

    def beat(self) -> None:
        """Look where a hint points, and now and then without one. Raises StoreFault."""
        now_s, settings = time.monotonic(), self._station.settings
        shut = self._closed()
        if shut is not None and shut.over:
            self._cancel.set("window")
        if shut is None and not self._person_pauses:
            self._paused_s = None
        elif self._paused_s is None:
            self._paused_s = now_s
        elif now_s - self._paused_s > settings.drain_soft_s:
            self._cancel.set("pause")
        hinted = self._hints()
        if hinted == self._hinted and now_s - self._looked_s < settings.inbox_poll_s:
            return
        self._hinted, self._looked_s = hinted, now_s
        try:
            mail = self._read()
        except IntegrityFault:
            self._arrived.set()  # the loop meets it between two calls, and ends the run in sight
            return
        if mail.inbox or mail.control:
            self._arrived.set()
        if mail.cancel is not None:
            self._cancel.set("cancel")
        self._person_pauses = bool(mail.paused_by)

    def take(self) -> Parked | Stopped | None:
        """Consume what arrived (commits `steered`); says whether that, or a window that closed, asks to park
        (committed) or to stop. A `closed` of an attempt that died while it sealed is void with that, and people can
        write again."""
        shut = self._closed()
        if shut is None and not self._arrived.is_set():
            return None
        self._arrived.clear()
        mail = self._read()
        if mail.cancel is not None:
            return Stopped("cancel")  # consumed with the seal, in one segment: no crash may lose it
        if shut is not None and shut.over:
            return Stopped("window")
        parked: Parked | None = None
        if mail.paused_by:
            parked = Parked(waiting="paused", detail=f"paused by {mail.paused_by}")
        elif shut is not None:
            parked = Parked(waiting="window", until=shut.until.isoformat(timespec="milliseconds"))
        events: list[Event] = [*mail.steered(), *([] if parked is None else [parked])]
        if events:
            self._ledger.commit(*events)
        return parked

    def decide(self) -> Parked | None:
        """Take in the decision on what the run asked (commits `decided`); while there is none it waits on."""
        run, asked = self._ledger.run, self._ledger.run.asked
        if asked is None:
            return None
        made = self._read().decision
        if made is None:
            return self.ask(asked)
        decided = Decided(
            call_id=made.call, decision=made.decision, by=made.by, decided_at=made.at, reason=made.reason
        )
        call = next((call for call in run.pending if call.id == asked.call_id), None)
        if call is None or not made.binding == asked.binding == policy.binding(call, run):
            # Whatever was approved, it was not this: nothing runs on a decision about something else.
            decided = decided.model_copy(update={"decision": "denied", "reason": "the decision names something else"})
        self._ledger.commit(decided)
        return None

    def expect(self) -> None:
        """Let the next `take` look, also where nothing was heard of."""
        self._arrived.set()

    def close(self) -> Mail:
        """Take no more messages, unless some came first; what lies unread then."""
        station, run = self._station, self._ledger.run
        Inbox(station.archive, run.id).close(run.inbox_seen, by=station.name, at=station.now())
        self.expect()
        return self._read()

    def end(self) -> Mail:
        """Take no more messages; all that came before."""
        station = self._station
        return last_mail(station.archive, self._ledger.run, self._batch, by=station.name, at=station.now())

    def ask(self, asked: Asked) -> Parked:
        """Commit a question, and park until it is decided or expires."""
        until = self._station.later(self._station.settings.decision_expiry_s)
        parked = Parked(waiting=asked.kind, until=until, detail=asked.question)
        self._ledger.commit(asked, parked)
        return parked

    def wait_for_provider(self, pause_s: float, detail: str, *, paced: bool = False) -> Parked:
        """Commit that the run waits for its provider, or for its turn there."""
        parked = Parked(waiting="provider", until=self._station.later(pause_s), detail=detail, paced=paced)
        self._ledger.commit(parked)
        return parked

    def wait_for_budget(self, until: str | None, detail: str) -> Parked:
        """Commit that the run waits for money."""
        parked = Parked(waiting="budget", until=until, detail=detail)
        self._ledger.commit(parked)
        return parked

    def _closed(self) -> Shut | None:
        return self._shut(self._ledger.run, datetime.fromisoformat(self._station.now()))

    def _hints(self) -> dict[str, int]:
        """What Redis knows of newer mail; without it the archive is looked at in its own time."""
        try:
            return self._station.hints.poked([f"run:{self._ledger.run.id}", f"batch:{self._batch}"])
        except HintsFault:
            return self._hinted

    def _read(self) -> Mail:
        return read_mail(self._station.archive, self._ledger.run, self._batch)
