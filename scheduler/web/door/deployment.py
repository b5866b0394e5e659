"""Owns what stands behind the pages of a deployment, and behind those of an archive alone. Refuses to hold on to a
Redis: a stack may end, and another begin, while pages are open.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scheduler.web.door.access import Access
from scheduler.web.door.server import Keys
from scheduler.web.door.tokens import access_of
from scheduler.web.seen import Seen
from scheduler.web.site import Site
from worker.contract.errors import Fault, NotFoundFault
from worker.store.bundle import SCHEME

if TYPE_CHECKING:
    from worker.contract.settings import Settings
    from worker.store.archive import Archive
    from worker.store.hints import Hints

ASKED_AGAIN_S: Final = 2.0
ANSWER_S: Final = 2.0
"""A page waits no longer for Redis; it says what the archive says."""


class Redis:
    """The Redis of the stack that runs at this moment; None for none, or one that is not ours to ask."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._until_s = 0.0
        self._url: str | None = None
        self._hints: Hints | None = None

    def __call__(self) -> Hints | None:
        from scheduler.stack import connected
        from worker.store.hints import Hints

        with self._lock:
            if time.monotonic() < self._until_s:
                return self._hints
            try:
                url = connected(self._settings).redis_url
            except Fault:  # of another version, or of another archive
                url = None
            if url != self._url:
                self._url = url
                self._hints = None if url is None else Hints(url, socket_timeout_s=ANSWER_S)
            self._until_s = time.monotonic() + ASKED_AGAIN_S
            return self._hints


def of_deployment(archive: Archive, settings: Settings, keys: Keys, actor: str) -> Site:
    """Its pages. actor: whom decisions are put down to that its own tokens make. Raises UsageFault as access_of."""
    return Site(archive, Seen(archive), access_of(settings, keys, actor), settings, Redis(settings))


def of_archive(archive: Archive, keys: Keys, actor: str) -> Site:
    """Pages of an archive alone: nothing is decided there."""
    viewer, _ = keys.tokens(actor)
    return Site(archive, Seen(archive), Access(keys.key, (viewer,)))


def archive_address(word: str) -> str:
    """What a person names: an address as it is; a folder or a file by its path. Raises NotFoundFault."""
    path = Path(word.removeprefix("file://")).expanduser()
    if word.startswith((SCHEME, "s3://")) or ("://" in word and not word.startswith("file://")):
        return word
    if path.is_dir():
        return f"file://{path.absolute()}"
    if path.is_file() and not word.startswith("file://"):
        return f"{SCHEME}{path.absolute()}"
    raise NotFoundFault(f"there is no archive and no bundle {word}", hint="a folder, file:///..., s3://..., FILE.tar")
