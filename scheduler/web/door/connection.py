"""Owns how long a client may take to say what it wants. Refuses to wait for one that says nothing, or a letter at a
time: uvicorn's own deadline begins behind an answer, and ends with the first letter of the next request.
"""

from __future__ import annotations

import asyncio
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S: Final = 30.0
"""From its first byte, or from the connection, to its last: the largest form (guard.py) at 70 kbit/s."""
CONNECTIONS_MAX: Final = 256
"""At once, those that listen to news and those that wait among them. One more is answered with 503."""
ASKING: Final = (h11.IDLE, h11.SEND_BODY)
"""What h11 says of a client whose request has not ended."""


class Connection(H11Protocol):
    """One client's. It is cut off without a word: what a browser opens in advance, it may lose."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > 2 * CONNECTIONS_MAX:  # nobody waits until these have asked for something
            transport.abort()
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._rest()

    def _watch(self) -> None:
        if self.conn.their_state not in ASKING:
            self._rest()
        elif self._late is None:
            self._late = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _rest(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
