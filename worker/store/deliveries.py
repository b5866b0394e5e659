"""Owns the numbered records of a run's deliveries and reviews, and the marks by which deliveries are paced. Refuses
to act on them: whoever loses a number does nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from worker.contract.delivered import Delivered, Delivery, Review, ReviewState, delivered, patch_of, review_state
from worker.contract.errors import ConflictFault, IntegrityFault
from worker.contract.events import canonical
from worker.contract.run import Run
from worker.store import keys
from worker.store.archive import Archive
from worker.store.content import parsed

RECORD_BYTES: Final = 2**20
HOUR: Final = timedelta(hours=1)

R = TypeVar("R", Delivery, Review)


def read_deliveries(archive: Archive, run: str, seen: int = 0) -> list[Delivery]:
    """Records numbered `seen` and above, oldest first. Raises IntegrityFault, StoreFault."""
    return _read(archive, Delivery, keys.deliveries(run), lambda n: keys.delivery(run, n), seen)


def read_reviews(archive: Archive, run: str) -> list[Review]:
    """All reviews, oldest first. Raises IntegrityFault, StoreFault."""
    return _read(archive, Review, keys.reviews(run), lambda n: keys.review(run, n), 0)


def write_delivery(archive: Archive, run: str, record: Delivery) -> None:
    """Raises ConflictFault when its number is taken: somebody else delivers the run; StoreFault."""
    if not archive.create(keys.delivery(run, record.n), canonical(record.model_dump(mode="json"))):
        raise ConflictFault(f"delivery {record.n} of run {run} is somebody else's")


def write_review(archive: Archive, run: str, record: Review) -> None:
    """Raises ConflictFault when its number is taken, StoreFault."""
    if not archive.create(keys.review(run, record.n), canonical(record.model_dump(mode="json"))):
        raise ConflictFault(f"somebody else reviewed run {run} at this moment", hint=f"look: dawn show {run}")


@dataclass(frozen=True)
class After:
    """What a sealed run's patch came to. review: of people. delivery: of the forge. waits: its marker is there, so
    that something is left to do."""

    reviews: Sequence[Review]
    deliveries: Sequence[Delivery]
    review: ReviewState
    delivery: Delivered
    waits: bool = True


def read_after(archive: Archive, run: Run) -> After | None:
    """What became of the patch that a run left; None where there is none. Raises IntegrityFault, StoreFault."""
    if patch_of(run) is None:
        return None
    reviews, deliveries = read_reviews(archive, run.id), read_deliveries(archive, run.id)
    waits = archive.size(keys.open_marker(run.id)) is not None
    return After(reviews, deliveries, review_state(run, reviews), delivered(deliveries), waits)


@dataclass(frozen=True)
class Mark:
    """A run was delivered with a token ("" for none) at a time."""

    at: datetime
    token: str
    run: str


def mark(archive: Archive, run: str, token: str, at: str) -> None:
    """Leave a mark before the first act of a delivery. at: UTC, ISO 8601."""
    archive.overwrite(keys.pushed(datetime.fromisoformat(at).astimezone(UTC), token, run), b"")


def marks(archive: Archive, now: datetime) -> list[Mark]:
    """Those of the last hour. now: UTC."""
    found = [_marked(key) for hour in (now - HOUR, now) for key in archive.list(keys.pushed_folder(hour))]
    return [mark for mark in found if mark is not None and now - HOUR < mark.at]


def _marked(key: str) -> Mark | None:
    """None for what nobody of us wrote."""
    _, hour, name = key.split("/", 2)
    time, token, run = [*name.split("-", 2), "", ""][:3]
    try:
        at = datetime.strptime(f"{hour} {time}", "%Y-%m-%dT%H %M%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    return Mark(at, token, run)


def _read(archive: Archive, kind: type[R], folder: str, key: Callable[[int], str], seen: int) -> list[R]:
    """Up to the first number that is not there: nobody writes past one."""
    return list(_records(archive, kind, folder, key, seen))


def _records(archive: Archive, kind: type[R], folder: str, key: Callable[[int], str], seen: int) -> Iterator[R]:
    for n, name in enumerate(archive.list(folder, after=key(seen - 1) if seen else ""), start=seen):
        if name != key(n):
            return
        record = parsed(kind, archive.get(name, max_bytes=RECORD_BYTES), name)
        if record.n != n:
            raise IntegrityFault(f"{name} holds the number {record.n}")
        yield record
