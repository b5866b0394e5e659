"""Owns how long a client may take to say what it wants, and whose connection goes when there are too many. Refuses to
wait for one that says nothing, or a letter at a time: uvicorn's own deadline begins behind an answer, and ends with
the first letter of the next request.
"""

from __future__ import annotations

import asyncio
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S: Final = 30.0
"""From its first byte, or from the connection, to its last: the largest form (guard.py) at 70 kbit/s."""
CONNECTIONS_MAX: Final = 256
"""At once, those that listen to news among them. Below what a process may open, which the archive needs too."""
ASKING: Final = (h11.IDLE, h11.SEND_BODY)
"""What h11 says of a client whose request has not ended, or not begun."""


class Connection(H11Protocol):
    """One client's. It is cut off without a word: what a browser opens in advance, it may lose."""

    _late: asyncio.TimerHandle | None = None
    _heard_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        there = [one for one in self.connections if isinstance(one, Connection) and not one.transport.is_closing()]
        if len(there) > CONNECTIONS_MAX:  # else whoever opens many and asks nothing would keep all others out
            asking = [one for one in there if one.conn.their_state in ASKING and one is not self]
            if asking:
                min(asking, key=lambda one: one._heard_s).transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._rest()

    def _watch(self) -> None:
        self._heard_s = self.loop.time()
        if self.conn.their_state not in ASKING:
            self._rest()
        elif self._late is None:
            self._late = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _rest(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
