"""Owns a term on a run: take the lease, keep it, know when it may have ended. Refuses to be the fence: that is the
next segment number. A lease only prevents wasted work.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from types import TracebackType

import structlog

from worker.contract.cancel import Cancel
from worker.contract.errors import ConflictFault, HintsFault, StoreFault
from worker.contract.settings import Settings
from worker.store.hints import Hints

LOG = structlog.get_logger(__name__)


class Lease:
    """A held lease with its heartbeat thread; a context manager.

    name: `run:<id>`. Entering raises ConflictFault when somebody else holds it, HintsFault when Redis does not
    answer. The thread extends it every heartbeat_s; when it is somebody else's, `cancel` is thrown with reason
    `lease`.
    """

    def __init__(self, hints: Hints, name: str, settings: Settings, cancel: Cancel) -> None:
        self.name = name
        self._hints = hints
        self._settings = settings
        self._cancel = cancel
        self._token = secrets.token_hex(16)
        self._renewed = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lease {self.name}", daemon=True)

    def __enter__(self) -> Lease:
        if not self._hints.claim(self.name, self._token, self._settings.lease_ttl_s):
            raise ConflictFault(f"{self.name} is held by somebody else")
        self._renewed = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        try:
            self._hints.release(self.name, self._token)
        except HintsFault as fault:
            # Nothing is lost: it ends by itself after its term, and the journal is the fence.
            LOG.warning("lease_not_released", lease=self.name, fault=str(fault))

    def each_beat(self, act: Callable[[], None]) -> None:
        """Call act every hint_poll_s (it looks at hints and inboxes), in a thread of its own that nobody waits for: a
        store that is slow to answer costs neither the lease nor the end of the attempt."""

        def look() -> None:
            while not self._done.wait(self._settings.hint_poll_s):
                try:
                    act()
                except (HintsFault, StoreFault) as fault:
                    LOG.warning("beat_failed", lease=self.name, fault=str(fault))  # the next one looks again

        threading.Thread(target=look, name=f"mail {self.name}", daemon=True).start()

    @property
    def current(self) -> bool:
        """Whether the last success is young enough to begin something."""
        return time.monotonic() - self._renewed < self._settings.own_deadline_s

    def wait_current(self) -> bool:
        """Wait until the lease is current; True at once when it was all along, False when it had to be regained
        (then the journal's tail must be looked at). Ends early when cancelled."""
        if self.current:
            return True
        while not self.current and not self._cancel.wait(self._settings.hint_poll_s):
            pass
        return False

    def _beat(self) -> None:
        due = time.monotonic() + self._settings.heartbeat_s
        while not self._done.wait(self._settings.hint_poll_s):
            if time.monotonic() >= due or not self.current:
                due = time.monotonic() + self._settings.heartbeat_s
                self._extend()

    def _extend(self) -> None:
        asked = time.monotonic()
        try:
            ours = self._hints.extend(self.name, self._token, self._settings.lease_ttl_s)
        except HintsFault as fault:
            LOG.warning("heartbeat_failed", lease=self.name, fault=str(fault))
            return
        if ours:
            self._renewed = asked
        else:
            self._cancel.set("lease")
