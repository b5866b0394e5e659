"""Owns what an archive holds of a schedule: what people said of it, what a batch of it is made of, and what became of
its due times. Refuses to fire one (firing.py).

A schedule is its numbered messages under `spec/`, like an inbox: set, pause, unpause, run, remove. What a person
submitted is frozen with `set`: repositories of the submitter's disk were packed then.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from scheduler.enqueue import ID_DIGITS, Batch, named, targets_json
from scheduler.schedules.cron import Schedule
from worker.contract.errors import ConflictFault, IntegrityFault, NotFoundFault
from worker.contract.events import Digest, canonical, digest
from worker.contract.frozen import Frozen, later
from worker.contract.task import Task
from worker.contract.zones import Moment, utc_text
from worker.store import keys
from worker.store.archive import Archive
from worker.store.content import get_content, parsed, put_content

HORIZON: Final = timedelta(days=7)
"""Due times before that are neither made up for nor counted."""
READERS: Final = 8
SHOWN: Final = 200
"""Newest due times that are looked at to tell what became of them."""

EVER: Final = datetime(1970, 1, 1, tzinfo=UTC)

Kind = Literal["set", "pause", "unpause", "run", "remove"]


class Said(Frozen):
    """One message. n: its number, from 0. at: UTC. schedule, template: of a `set`; the template's digest."""

    v: Literal[1] = 1
    n: int
    kind: Kind
    by: str
    at: Moment
    schedule: Schedule | None = None
    template: Digest | None = None


class Template(Frozen):
    """What each batch of a schedule is made of: the manifest as written, and its tasks, whose ids no run has."""

    v: Literal[1] = 1
    manifest: str
    tasks: tuple[Task, ...]


class Firing(Frozen):
    """What became of a due time; whoever creates it decided that. what: fired, left out because the batch before had
    not ended (overlap), or nobody was there (missed). batch: that was fired. template: that it is made of. before:
    the batch that was fired last before it, "" for none; overlap: what becomes of that one first. missed: due times
    before this one, since the firing before, at which no scheduler was there; this one included where it was missed.
    reuse: as Schedule.reuse."""

    v: Literal[1] = 1
    due: Moment
    at: Moment
    by: str
    what: Literal["fired", "overlap", "missed"]
    batch: str = ""
    template: Digest | None = None
    before: str = ""
    overlap: Literal["skip", "queue", "cancel_previous"] = "skip"
    missed: int = 0
    reuse: bool = later(True)

    @property
    def last_batch(self) -> str:
        """Fired with this due time, or before it."""
        return self.batch or self.before


@dataclass(frozen=True)
class State:
    """A schedule as the messages leave it. since: when it was last set or let go on. requests: when somebody wanted
    it to run now, each with who."""

    name: str
    said: int = 0
    schedule: Schedule | None = None
    template: str = ""
    set_by: str = ""
    since: datetime = EVER
    paused_by: str = ""
    requests: tuple[tuple[datetime, str], ...] = ()

    @property
    def active(self) -> bool:
        return self.schedule is not None and not self.paused_by

    def after(self, said: Said) -> State:
        """The state once this is read."""
        at = datetime.fromisoformat(said.at).astimezone(UTC)
        told = self.__dict__ | {"said": said.n + 1}
        match said.kind:
            case "set":
                told |= {"schedule": said.schedule, "template": said.template, "set_by": said.by}
                told |= {"since": at, "paused_by": ""}
            case "pause":
                told |= {"paused_by": said.by}
            case "unpause":
                told |= {"paused_by": "", "since": at}
            case "run":
                told |= {"requests": (*self.requests, (at.replace(microsecond=0), said.by))}
            case "remove":
                told |= {"schedule": None, "template": "", "paused_by": "", "requests": ()}
        return State(**told)


def names(archive: Archive) -> list[str]:
    """Of all schedules, removed ones included, sorted. Raises StoreFault."""
    return sorted(archive.folders("schedules/"))


def read(archive: Archive, name: str, known: State | None = None) -> State:
    """A schedule as it is now. known: what was read before. Raises IntegrityFault for a message that is not what was
    written under its number, StoreFault."""
    state = known or State(name)
    after = keys.schedule_spec(name, state.said - 1) if state.said else ""
    for key in archive.list(keys.schedule_specs(name), after=after):
        if key != keys.schedule_spec(name, state.said):
            break
        said = parsed(Said, archive.get(key, max_bytes=2**20), key)
        if said.n != state.said:
            raise IntegrityFault(f"{key} holds the message {said.n}")
        state = state.after(said)
    return state


def existing(archive: Archive, name: str) -> State:
    """A schedule that was not removed. Raises NotFoundFault, and as read does."""
    state = read(archive, name)
    if state.schedule is None:
        raise NotFoundFault(f"there is no schedule {name!r} in {archive.url}", hint="list them: dawn schedule ls")
    return state


def tell(archive: Archive, state: State, kind: Kind, *, by: str, at: str) -> State:
    """Say something of a schedule. Raises ConflictFault when somebody else said something first."""
    return _say(archive, state, Said(n=state.said, kind=kind, by=by, at=at))


def put(archive: Archive, name: str, schedule: Schedule, batch: Batch, *, by: str, at: str) -> tuple[State, bool]:
    """Register a schedule, or replace the one of that name; and whether it differs from what was there. Raises as
    read and tell do."""
    template = Template(manifest=batch.manifest.decode(), tasks=batch.tasks)
    data = canonical(template.model_dump(mode="json"))
    state, name_of = read(archive, name), digest(data)
    if (state.schedule, state.template) == (schedule, name_of):
        return state, False
    put_content(archive, lambda found: keys.schedule_template(name, found), data)
    said = Said(n=state.said, kind="set", by=by, at=at, schedule=schedule, template=name_of)
    return _say(archive, state, said), True


def batch_id(name: str, template: str, due: datetime) -> str:
    """A function of what is asked and when, so that whoever completes a firing writes the same batch."""
    return f"{name}-{digest(canonical([name, template, utc_text(due)]))[:ID_DIGITS]}"


def batch_of(archive: Archive, name: str, template: str, due: datetime) -> Batch:
    """The batch of a due time. Raises IntegrityFault, NotFoundFault, StoreFault."""
    made = read_template(archive, name, template)
    batch, manifest = batch_id(name, template, due), made.manifest.encode()
    tasks = [named(task, batch) for task in made.tasks]
    return Batch(batch, manifest, targets_json(batch, tasks, manifest), tuple(tasks))


def read_template(archive: Archive, name: str, template: str) -> Template:
    """Raises IntegrityFault, NotFoundFault, StoreFault."""
    key = keys.schedule_template(name, template)
    return parsed(Template, get_content(archive, key, template), key)


def dues(archive: Archive, name: str, since: datetime) -> list[str]:
    """Due times of which something became, since then, else the last of all, as their keys write them: sorted UTC."""
    folder = keys.schedule_folder(name)
    found = list(_named(archive, folder, keys.schedule_firing(name, utc_text(since)), ".json"))
    return found or list(_named(archive, folder, "", ".json"))[-1:]


def begun(archive: Archive, name: str) -> list[str]:
    """Due times whose batch is perhaps not written yet, however long ago they were, sorted."""
    return list(_named(archive, keys.schedule_begun(name, ""), "", ""))


def firing(archive: Archive, name: str, due: str) -> Firing:
    """What became of a due time. Raises NotFoundFault, IntegrityFault, StoreFault."""
    key = keys.schedule_firing(name, due)
    return parsed(Firing, archive.get(key, max_bytes=2**20), key)


def history(archive: Archive, name: str, now: datetime) -> list[Firing]:
    """What became of its newest due times, oldest first."""
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda due: firing(archive, name, due), dues(archive, name, now - HORIZON)[-SHOWN:]))


def sources(archive: Archive) -> set[str]:
    """Packed repositories that a schedule still needs. Raises IntegrityFault, StoreFault."""
    states = [state for state in (read(archive, name) for name in names(archive)) if state.schedule is not None]
    tasks = (task for one in states for task in read_template(archive, one.name, one.template).tasks)
    return {task.repo.source for task in tasks if task.repo.source is not None}


def _say(archive: Archive, state: State, said: Said) -> State:
    if not archive.create(keys.schedule_spec(state.name, said.n), canonical(said.model_dump(mode="json"))):
        raise ConflictFault(f"somebody else has just changed schedule {state.name}", hint="look, and say it again")
    return state.after(said)


def _named(archive: Archive, folder: str, after: str, ending: str) -> Iterator[str]:
    """Due times that keys in the folder begin with. They sort before the folders beside them, which are words."""
    for key in archive.list(folder, after=after):
        name = key.removeprefix(folder)
        if not name[:1].isdigit():
            return
        yield name.removesuffix(ending)
