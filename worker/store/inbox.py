"""Owns a run's inbox: numbered, create-only messages from people to a run. Refuses to act on them.

Whoever seals a run first creates the next number as `closed`: a writer who comes later is told so, and a message
that won that number is read before the seal. A `closed` that the journal has taken in (`steered`) is void: whoever
wrote it died before the seal, and the run went on.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

from pydantic import ValidationError

from worker.contract.errors import ConflictFault, IntegrityFault, NotFoundFault
from worker.contract.events import canonical
from worker.contract.task import Frozen
from worker.store import keys
from worker.store.archive import Archive
from worker.store.journal import Journal

Kind = Literal["message", "cancel", "pause", "unpause", "closed"]


class Message(Frozen):
    """n: its number, from 0. at: UTC, ISO 8601. text: what the model reads of a `message`, a reason otherwise."""

    v: Literal[1] = 1
    n: int
    kind: Kind
    by: str
    at: str
    text: str = ""


class Inbox:
    """The inbox of one run. Holds no state. Methods raise StoreFault as the archive does."""

    def __init__(self, archive: Archive, run: str) -> None:
        self.run = run
        self._archive = archive

    def read(self, seen: int = 0) -> list[Message]:
        """Messages numbered `seen` (Run.inbox_seen) and above, oldest first; `closed` is the last if it is there."""
        after = keys.inbox(self.run, seen - 1) if seen > 0 else ""
        found = []
        for key in self._archive.list(keys.inbox_folder(self.run), after=after):
            try:
                found.append(Message.model_validate_json(self._archive.get(key, max_bytes=2**20)))
            except ValidationError as error:
                raise IntegrityFault(f"{key} is not a message") from error
        return found

    def put(self, kind: Kind, *, by: str, at: str, text: str = "") -> Message:
        """Add a message under the next free number. Raises ConflictFault when the run takes none any more."""
        n = 0
        while True:
            waiting = self.read(n)
            if waiting and waiting[-1].kind == "closed" and not self._void(waiting[-1]):
                raise ConflictFault(f"run {self.run} has ended and takes no messages", hint="see it: dawn show")
            n = waiting[-1].n + 1 if waiting else n
            message = Message(n=n, kind=kind, by=by, at=at, text=text)
            if self._archive.create(keys.inbox(self.run, n), canonical(message.model_dump(mode="json"))):
                return message

    def close(self, seen: int, *, by: str, at: str) -> list[Message]:
        """Take no more messages. Returns those numbered `seen` and above that came before the end, `closed` left
        out: the sealer consumes them first. Closing twice is harmless."""
        while True:
            waiting = self.read(seen)
            if not waiting or waiting[-1].kind != "closed":
                with suppress(ConflictFault):  # another sealer closed it first: read what came before
                    self.put("closed", by=by, at=at)
                continue
            return waiting[:-1]

    def _void(self, closed: Message) -> bool:
        try:
            return Journal(self._archive, self.run).load().inbox_seen > closed.n
        except NotFoundFault:
            return False
