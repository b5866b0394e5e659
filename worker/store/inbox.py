"""Owns what people send to a run (its inbox) or to a whole batch (its control): numbered, create-only messages.
Refuses to act on them.

Whoever seals a run first creates the next number of its inbox as `closed`: a writer who comes later is told so, and a
message that won that number is read before the seal. A `closed` that the journal has taken in (`steered`) is void:
whoever wrote it died before the seal, and the run went on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from worker.contract.errors import ConflictFault, IntegrityFault, NotFoundFault
from worker.contract.events import MessageKind
from worker.store import keys
from worker.store.archive import Archive
from worker.store.content import Summed, parsed
from worker.store.journal import Journal


class Message(Summed):
    """n: its number, from 0. at: UTC, ISO 8601. text: what the model reads of a `message`, a reason otherwise.
    Version 1 had no sum."""

    v: Literal[1, 2] = 2
    n: int
    kind: MessageKind
    by: str
    at: str
    text: str = ""


class _Numbered:
    """Messages in a folder of their own. Holds no state. Methods raise StoreFault as the archive does."""

    def __init__(self, archive: Archive, folder: str, key: Callable[[int], str]) -> None:
        self._archive, self._folder, self._key = archive, folder, key

    def read(self, seen: int = 0) -> list[Message]:
        """Messages numbered `seen` and above, oldest first, up to the first number that is not there: nobody writes
        past one, so a listing that shows more missed a message of this moment, or a stranger wrote it. Raises
        IntegrityFault for one that is not what was written under its number."""
        after = self._key(seen - 1) if seen > 0 else ""
        messages: list[Message] = []
        for n, key in enumerate(self._archive.list(self._folder, after=after), start=max(seen, 0)):
            if key != self._key(n):
                break
            message = parsed(Message, self._archive.get(key, max_bytes=2**20), key)
            if message.n != n:
                raise IntegrityFault(f"{key} holds the message {message.n}")
            messages.append(message)
        return messages

    def put(self, kind: MessageKind, *, by: str, at: str, text: str = "", unseen: int | None = None) -> Message:
        """Add a message under the next free number. unseen: the first number that the sender had not seen when they
        wrote it: where an equal message of theirs is from there on, it was sent twice, and that one is returned.
        Raises ConflictFault when the run takes none any more."""
        n = 0
        while True:
            if waiting := self.read(n):
                for one in waiting if unseen is not None else ():
                    if one.n >= (unseen or 0) and (one.kind, one.by, one.text) == (kind, by, text):
                        return one
                self._check_open(waiting[-1])
                n = waiting[-1].n + 1
            message = Message(n=n, kind=kind, by=by, at=at, text=text)
            if self._create(message):
                return message

    def _check_open(self, last: Message) -> None:
        """Raise ConflictFault when nothing may follow."""

    def _create(self, message: Message) -> bool:
        return self._archive.create(self._key(message.n), message.data())


class Inbox(_Numbered):
    """Of one run."""

    def __init__(self, archive: Archive, run: str) -> None:
        super().__init__(archive, keys.inbox_folder(run), partial(keys.inbox, run))
        self.run = run

    def close(self, seen: int, *, by: str, at: str) -> bool:
        """Take no more messages; False when some numbered `seen` (Run.inbox_seen) and above came first: then the
        inbox stays open. Closing twice is harmless."""
        if not self.read(seen):
            self._create(Message(n=seen, kind="closed", by=by, at=at))
        return self.read(seen)[0].kind == "closed"

    def end(self, seen: int, *, by: str, at: str) -> None:
        """Take no more messages, whatever came first."""
        while not self.close(seen, by=by, at=at):
            seen += 1

    def _check_open(self, last: Message) -> None:
        if last.kind == "closed" and not self._void(last):
            raise ConflictFault(
                f"run {self.run} has ended and takes no messages", hint=f"see it: dawn show {self.run}"
            )

    def _void(self, closed: Message) -> bool:
        try:
            return Journal(self._archive, self.run).load().inbox_seen > closed.n
        except NotFoundFault:
            return False


class Control(_Numbered):
    """Of one batch; it is never closed, because a batch has no end of its own."""

    def __init__(self, archive: Archive, batch: str) -> None:
        super().__init__(archive, keys.batch_control_folder(batch), partial(keys.batch_control, batch))
