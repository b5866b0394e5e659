"""Owns which runs a batch has: those that its submit named, and the retries that were announced since. Refuses to
say what became of them, and to take a run for a member because its task says so: what a batch names is its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from worker.contract.errors import IntegrityFault, InvalidFault
from worker.contract.events import canonical, read_json
from worker.contract.task import Frozen
from worker.store import keys
from worker.store.archive import Archive
from worker.store.content import parsed

RETRIES_BYTES = 64 * 2**20

Runs = TypeVar("Runs", bound="Sequence[Member]")


class Member(Frozen):
    """A run of a batch. ordinal: among the runs of its target: candidates first, retries count on."""

    target: str
    ordinal: int
    run: str


class Retries(Frozen):
    """Runs that were added to a batch at once. by: who asked; at: UTC, ISO 8601. told: how many messages the batch
    had been sent before."""

    v: Literal[1] = 1
    by: str
    at: str
    told: int = 0
    runs: Annotated[tuple[Member, ...], Field(min_length=1)]


def submitted(archive: Archive, batch: str) -> list[Member]:
    """What its submit named, in the manifest's order. Raises NotFoundFault where that was cut off before,
    IntegrityFault, StoreFault."""
    key = keys.batch_targets(batch)
    data = archive.get(key)
    try:
        found = [
            Member(target=entry["target"], ordinal=entry.get("ordinal", 0), run=entry["run"])
            for entry in read_json(data)["targets"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise IntegrityFault(f"{key} is not what was written") from None
    return _possible(found, key)


def retries(archive: Archive, batch: str) -> list[Retries]:
    """What was announced since, oldest first. Raises IntegrityFault, StoreFault."""
    found = []
    for n, key in enumerate(archive.list(keys.batch_retries_folder(batch))):
        if key != keys.batch_retries(batch, n):
            break  # a listing that missed one of this moment; nobody writes past a number
        found.append(parsed(Retries, archive.get(key, max_bytes=RETRIES_BYTES), key))
        _possible(found[-1].runs, key)
    return found


def _possible(named: Runs, key: str) -> Runs:
    """What a list names, where each can be a run. Raises IntegrityFault."""
    for one in named:
        try:
            keys.check(keys.task(one.run))
        except InvalidFault:
            raise IntegrityFault(f"{key} names what can be no run: {one.run[:100]!r}") from None
        if "/" in one.run:
            raise IntegrityFault(f"{key} names what can be no run: {one.run[:100]!r}")
    return named


def members(archive: Archive, batch: str) -> list[Member]:
    """All of them, in the manifest's order; of a target its candidates, then its retries. Raises as both do."""
    first = submitted(archive, batch)
    place: dict[str, int] = {}
    for member in first:
        place.setdefault(member.target, len(place))
    added = [member for one in retries(archive, batch) for member in one.runs]
    return sorted([*first, *added], key=lambda member: place.get(member.target, len(place)))


def announce(
    archive: Archive, batch: str, runs: Sequence[Member], *, number: int, by: str, at: str, told: int = 0
) -> Retries | None:
    """Add runs to a batch as its announcement `number`; None when somebody else's has it. The marker comes first, and
    stays until the runs are written, so that others complete what is cut off behind it. Raises StoreFault."""
    made = Retries(by=by, at=at, told=told, runs=tuple(runs))
    archive.create(keys.announced(batch, number), b"")
    data = canonical(made.model_dump(mode="json"))
    return made if archive.create(keys.batch_retries(batch, number), data) else None


def announced(archive: Archive) -> list[str]:
    """Batches with a marker of an announcement. Raises StoreFault."""
    return sorted(archive.folders("announced/"))
