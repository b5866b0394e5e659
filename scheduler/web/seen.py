"""Owns what the pages have read of an archive, so that the next look reads only what is new. Refuses to trust it over
the archive: a run that has ended stays as it is, everything else is looked at again when it is a second old.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeVar

from scheduler import runs
from scheduler.runs import UNREADABLE, Listed, View, Views
from scheduler.web.journals.reading import Journals
from scheduler.web.journals.timeline import Story, Telling
from worker.contract.errors import Fault, IntegrityFault, NotFoundFault
from worker.contract.events import digest
from worker.store.archive import Archive
from worker.store.inbox import Control
from worker.store.members import Member, members
from worker.store.skim import skimmed

FRESH_S: Final = 1.0
"""For how long something that may change is taken as it was."""
LASTING_S: Final = 600.0
MADE_SHARE: Final = 0.2
"""Of the time that may go into making one answer anew."""
AGED_S: Final = 60.0
"""No answer is kept longer for that."""
LOOKS_KEPT: Final = 10_000
ANSWERS_KEPT: Final = 512

T = TypeVar("T")


@dataclass(frozen=True)
class _Look:
    """A run as it was seen. telling: what its journal says of time; nobody lets it hear more."""

    view: View
    telling: Telling

    @property
    def story(self) -> Story:
        return self.telling.story(self.view.task.run, self.view.task.target)


@dataclass(frozen=True)
class _Kept:
    value: Any
    until_s: float
    lasting: bool = False


@dataclass(frozen=True, eq=False)
class _Making:
    """An answer that somebody is making."""

    made: Future[Any]
    lasting: bool


class Seen:
    """Safe to use from many threads. Every method raises as scheduler/runs.py does."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.journals = Journals(archive)
        self._lock = threading.Lock()
        self._looked: OrderedDict[str, _Kept] = OrderedDict()
        self._answers: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._making: dict[Hashable, _Making] = {}

    def view(self, run: str) -> View:
        """One run, at most FRESH_S old."""
        return self._look(run, None).view

    def views(self, names: Iterable[str]) -> Views:
        """Many runs, in their order; one that cannot be read hides no other."""
        asked = list(names)
        seen = self._looks(asked)
        damaged = {run: one.message for run, one in zip(asked, seen, strict=True) if isinstance(one, Fault)}
        return Views([one.view for one in seen if isinstance(one, _Look)], damaged, seen.count(None))

    def batch(self, batch: str) -> Views:
        """All runs of a batch."""
        with self._reading(batch):
            return self.views(self.members(batch))

    def stories(self, batch: str, most: int) -> list[Story]:
        """What the first runs of a batch tell of time, of those that can be read."""
        with self._reading(batch):
            looks = self._looks(self.members(batch)[:most])
        return [one.story for one in looks if isinstance(one, _Look)]

    def ahead(self, batch: str) -> None:
        """Begin to read all of a batch, behind a page that shows a part of it: who opened that sorts or filters it
        next."""
        reader = threading.Thread(target=self._ahead, args=(batch,), name=f"ahead-{batch}", daemon=True)
        self.answer(("ahead", batch), reader.start, LASTING_S)

    def _ahead(self, batch: str) -> None:
        with suppress(Fault):  # the page that needs those runs meets it too, and tells it
            self.batch(batch)

    def _reading(self, batch: str) -> threading.Lock:
        """Held while all of a batch is read: who comes meanwhile finds what was read, and reads nothing twice."""
        return self.answer(("reading", batch), threading.Lock, LASTING_S + FRESH_S)

    def members(self, batch: str) -> list[str]:
        """Ids of all runs of a batch."""
        return [member.run for member in self.named(batch)]

    def named(self, batch: str) -> list[Member]:
        """All runs of a batch, as it names them."""
        return self.answer(("named", batch), lambda: self._named(batch))

    def _named(self, batch: str) -> list[Member]:
        try:
            return members(self.archive, batch)
        except NotFoundFault:
            hint = "submit it again" if batch in set(self.archive.folders("batches/")) else "see all batches"
            raise NotFoundFault(f"there is no batch {batch}, or its submit was cut off", hint=hint) from None
        except IntegrityFault as fault:
            raise IntegrityFault(fault.message, hint=f"look: dawn verify {batch}") from None

    def batches(self) -> list[Listed]:
        """All batches, oldest first."""
        return self.answer("batches", lambda: runs.batches(self.archive))

    def marked(self) -> set[str]:
        """Runs that are open, or whose patch is not delivered."""
        return self.answer("marked", lambda: set(runs.marked_runs(self.archive)))

    def open_batches(self) -> set[str]:
        """Those with a run that has not ended."""
        return self.answer("open", self._open)

    def _open(self) -> set[str]:
        """By the lists of the batches: the task of each open run would be a request each."""
        marked = self.marked()
        return {one.batch for one in self.batches() if not marked.isdisjoint(one.runs)}

    def answer(self, name: Hashable, make: Callable[[], T], fresh_s: float = FRESH_S) -> T:
        """What make returned for this name, at most fresh_s old, or as old as MADE_SHARE of the time goes into making
        it. Whoever asks while it is made waits for that, and gets the same, or the same fault. For what is small, and
        costs requests. make: asks for no answer of this name."""
        with self._lock:
            kept, making = self._answers.get(name), self._making.get(name)
            if kept is not None and time.monotonic() < kept.until_s:
                return kept.value  # type: ignore[no-any-return]
            if making is None:
                mine = self._making[name] = _Making(Future(), fresh_s > LASTING_S)
        if making is not None:
            return making.made.result()  # type: ignore[no-any-return]
        began_s = time.monotonic()
        try:
            made = make()
        except BaseException as error:
            self._is_current(name, mine)
            mine.made.set_exception(error)
            raise
        took_s = time.monotonic() - began_s
        if self._is_current(name, mine):
            self._keep(self._answers, name, made, max(fresh_s, min(took_s / MADE_SHARE, AGED_S)), ANSWERS_KEPT)
        mine.made.set_result(made)
        return made

    def _is_current(self, name: Hashable, making: _Making) -> bool:
        """Nobody has decided anything since it was begun. From now on it is not waited for."""
        with self._lock:
            current = self._making.get(name) is making
            if current:
                del self._making[name]
            return current

    def expire(self) -> None:
        """Look again at all that may change: somebody has just decided something, and shall see it. What was to last
        longer than LASTING_S has all that it depends on in its name."""
        with self._lock:
            for name in [name for name, kept in self._answers.items() if not kept.lasting]:
                del self._answers[name]
            for name in [name for name, making in self._making.items() if not making.lasting]:
                del self._making[name]
            for run, kept in self._looked.items():
                if kept.until_s != float("inf"):
                    self._looked[run] = _Kept(kept.value, 0.0)

    def stamp(self, of: str) -> str:
        """Of `run:<id>`, `batch:<id>` or `all`: another text when something of it has changed."""
        kind, _, name = of.partition(":")
        if kind == "run":
            return _stamp([self.view(name)])
        names = {name} if kind == "batch" else self.open_batches()
        told = [f"{one}{_stamp(self.batch(one).found)}" for one in sorted(names)]
        return digest("\n".join(told).encode())[:16]

    def _looks(self, asked: list[str]) -> list[_Look | Fault | None]:
        """None for a run that is not there."""
        control = cache(lambda batch: Control(self.archive, batch).read())

        def look(run: str) -> _Look | Fault | None:
            try:
                return self._look(run, control)
            except NotFoundFault:
                return None
            except UNREADABLE as fault:
                return fault

        return runs.each(self.archive, look, asked)

    def _look(self, run: str, control: Callable[[str], Any] | None) -> _Look:
        with self._lock:
            kept = self._looked.get(run)
            if kept is not None:
                self._looked.move_to_end(run)
        if kept is not None and time.monotonic() < kept.until_s:
            return kept.value  # type: ignore[no-any-return]
        since, telling = (None, Telling()) if kept is None else (kept.value.view, kept.value.telling.further())
        view = runs.view(self.archive, run, control, since=since, parse=skimmed, along=telling.along)
        final = view.run.sealed is not None and view.after is None
        look = _Look(view, telling)
        self._keep(self._looked, run, look, float("inf") if final else FRESH_S, LOOKS_KEPT)
        return look

    def _keep(self, where: OrderedDict[Any, _Kept], name: Hashable, value: object, fresh_s: float, most: int) -> None:
        with self._lock:
            where[name] = _Kept(value, time.monotonic() + fresh_s, fresh_s > LASTING_S)
            where.move_to_end(name)
            while len(where) > most:
                where.popitem(last=False)


def _stamp(views: Iterable[View]) -> str:
    told = [
        f"{view.run.id} {view.run.last_hash} {len(view.mail.inbox)} {len(view.mail.control)}"
        f" {view.decision} {view.after}"
        for view in views
    ]
    return digest("\n".join(told).encode())[:16]
