"""Owns telling open pages that what they show has changed. Refuses to say what: a page is asked for anew, as anybody
who may see it asks.

One looks for all who listen for the same, and nobody looks where nobody listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from worker.contract.errors import Fault

if TYPE_CHECKING:
    from starlette.requests import Request

    from scheduler.web.page import Visitor
    from scheduler.web.site import Site

LISTENERS_MAX: Final = 64
"""More than one person's open pages; each costs a connection and no thread."""
LISTENERS_EACH: Final = 16
"""Of them for one who signed in: a page in the background listens to nothing, so these are windows in sight."""
AGAIN_S: Final = 30
"""Whoever is refused asks again after so long (base.html)."""
LOOK_S: Final = 1.0
LOOK_SHARE: Final = 0.2
"""Of the time that may go into looking: an archive of many open runs is looked at less often."""
ALIVE_S: Final = 15.0
"""A line at least so often, so that what stands between does not hang up, and whoever is gone is noticed."""
JUST_NOW: Final = timedelta(seconds=60)
FOLLOWED: Final = re.compile(r"all|(run|batch):[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


@dataclass
class _Topic:
    """What listeners of the same wait for. stamp: "" before the first look."""

    listeners: int = 0
    stamp: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    looking: asyncio.Task[None] | None = None

    def wake(self) -> None:
        woken, self.changed = self.changed, asyncio.Event()
        woken.set()


class News:
    """Used from one event loop; `close` may be called from any thread."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}
        self._held: Counter[Visitor] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.closed = False

    @property
    def listeners(self) -> int:
        """How many listen at this moment."""
        return self._held.total()

    @property
    def topics(self) -> int:
        """How many different things they listen for: so many look."""
        return len(self._topics)

    def close(self) -> None:
        """Let every listener go, and take no other."""
        self.closed = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._wake)

    def has_room(self, who: Visitor) -> bool:
        """Whether one more may listen. A visitor stays the same one, however often they sign in."""
        room = self.listeners < LISTENERS_MAX and self._held[who] < LISTENERS_EACH
        return room and not self.closed

    async def listen(self, site: Site, who: Visitor, of: str, known: str) -> AsyncGenerator[bytes]:
        """An event stream until `close`. known: the stamp that the listener saw last, "" for none. It ends at once
        where others were faster and nothing is left."""
        if not self.has_room(who):
            return
        self._loop = asyncio.get_running_loop()
        self._held[who] += 1
        topic = self._topics.setdefault(of, _Topic())
        topic.listeners += 1
        if topic.looking is None:
            topic.looking = asyncio.create_task(self._look(site, of, topic))
        try:
            yield b": begun\n\n"
            told = known
            while not self.closed:
                changed = topic.changed
                if topic.stamp not in ("", told):
                    # A page that was just fetched is as new as this, where nothing goes on.
                    silent = not told and await run_in_threadpool(_is_still, site, of)
                    told = topic.stamp
                    yield (
                        f"id: {told}\n\n".encode()
                        if silent
                        else f"id: {told}\nevent: news\ndata: {told}\n\n".encode()
                    )
                    continue
                try:
                    await asyncio.wait_for(changed.wait(), ALIVE_S)
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self._held -= Counter([who])
            topic.listeners -= 1
            if not topic.listeners:
                self._topics.pop(of, None)
                topic.looking.cancel()

    async def _look(self, site: Site, of: str, topic: _Topic) -> None:
        while not self.closed:
            began_s = time.monotonic()
            with contextlib.suppress(Fault):  # the archive is away, or something is damaged: the page says so
                stamp = await run_in_threadpool(site.seen.stamp, of)
                if stamp != topic.stamp:
                    topic.stamp = stamp
                    topic.wake()
            took_s = time.monotonic() - began_s
            await asyncio.sleep(max(LOOK_S, took_s / LOOK_SHARE))

    def _wake(self) -> None:
        for topic in self._topics.values():
            topic.wake()


async def stream(site: Site, who: Visitor, request: Request) -> Response:
    """What `/news` answers to somebody who is signed in."""
    of = request.query_params.get("of", "")
    if not FOLLOWED.fullmatch(of):
        return PlainTextResponse("of is run:ID, batch:ID or all\n", 400)
    if of != "all":
        try:
            await run_in_threadpool(site.seen.stamp, of)
        except Fault as fault:
            return PlainTextResponse(f"{fault.message}\n", 404)
    if not site.news.has_room(who):
        return PlainTextResponse("too many pages listen\n", 503, {"retry-after": str(AGAIN_S)})
    told = site.news.listen(site, who, of, request.headers.get("last-event-id", ""))
    return StreamingResponse(told, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def _is_still(site: Site, of: str) -> bool:
    """Nothing of it is open, and nothing of it ended a moment ago."""
    seen = site.seen
    kind, _, name = of.partition(":")
    if kind == "run":
        views = [seen.view(name)]
    else:
        newest = [one.batch for one in seen.batches()[-1:]]
        batches = [name] if kind == "batch" else sorted({*seen.open_batches(), *newest})
        views = [view for batch in batches for view in seen.batch(batch).found]
    since = site.now() - JUST_NOW
    return all(view.run.sealed is not None and datetime.fromisoformat(view.run.updated_at) < since for view in views)
