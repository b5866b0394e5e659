"""Owns a batch's reports in the archive: gathering what one says, storing it under the next number, reading the last.
Refuses to write one that would say the same as the last.

`report.json` is the report, and its number the right to write it; `report.md` and `report.html` are made of it, so
that whoever finds them missing makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from scheduler.budget import Spending, spending
from scheduler.reports import pages
from scheduler.reports.morning import Facts, morning
from scheduler.reports.reported import Morning
from scheduler.runs import READERS, Found, View, batches, standing, views
from scheduler.schedules import stored
from scheduler.verify import check
from worker.contract.errors import IntegrityFault, NotFoundFault
from worker.store import keys
from worker.store.archive import Archive
from worker.store.content import parsed
from worker.store.deliveries import After, read_after
from worker.store.members import members

REPORT_BYTES: Final = 64 * 2**20


@dataclass(frozen=True)
class Stored:
    """A report in the archive. new: it was written now."""

    n: int
    report: Morning
    new: bool


def gather(archive: Archive, batch: str, *, at: str, day: Spending | None = None, verify: bool = False) -> Morning:
    """What the report says now. at: UTC, ISO 8601. verify: read every byte that the batch names, which takes long.
    Raises NotFoundFault, StoreFault, IntegrityFault."""
    named = {member.run: member.target for member in members(archive, batch)}
    seen = views(archive, named)
    problems = check(archive, Found("batch", batch)).problems if verify else []
    return morning(
        Facts(
            batch=batch,
            at=at,
            members=named,
            seen=seen,
            budget=spending(archive, seen.found[0].task, seen.found) if seen.found else None,
            day=day,
            before=_before(archive, batch),
            after=_after(archive, standing(seen.found)),
            note=_note(archive, batch, datetime.fromisoformat(at)),
            chain="not checked" if not verify else "damaged" if problems else "verified",
        )
    )


def store(archive: Archive, report: Morning) -> Stored:
    """Under the next number, or the last one when that says the same. Raises StoreFault."""
    while True:
        n, last = latest(archive, report.batch)
        if last is not None and last.state == report.state:
            _readable(archive, n, last)
            return Stored(n, last, new=False)
        if archive.create(keys.batch_report(report.batch, n + 1, "report.json"), report.stored()):
            _readable(archive, n + 1, report)
            return Stored(n + 1, report, new=True)


def latest(archive: Archive, batch: str) -> tuple[int, Morning | None]:
    """The last report and its number, -1 for none; None for one that cannot be read. Raises StoreFault."""
    n = last_number(archive, batch)
    if n < 0:
        return n, None
    try:
        return n, read(archive, batch, n)
    except (IntegrityFault, NotFoundFault):
        return n, None


def last_number(archive: Archive, batch: str) -> int:
    """Of the last report, -1 for none. Raises StoreFault."""
    return max(
        (int(name) for name in archive.folders(keys.batch_reports_folder(batch)) if name.isdecimal()), default=-1
    )


def read(archive: Archive, batch: str, n: int) -> Morning:
    """Raises NotFoundFault, IntegrityFault, StoreFault."""
    key = keys.batch_report(batch, n, "report.json")
    return parsed(Morning, archive.get(key, max_bytes=REPORT_BYTES), key)


def _readable(archive: Archive, n: int, report: Morning) -> None:
    archive.create(keys.batch_report(report.batch, n, "report.md"), pages.markdown(report).encode())
    archive.create(keys.batch_report(report.batch, n, "report.html"), pages.html(report))


def _note(archive: Archive, batch: str, now: datetime) -> str:
    """What its schedule did not fire before it, or after it and in place of another."""
    told = []
    for firing in stored.history(archive, batch.rpartition("-")[0], now):
        due = firing.due[:16].replace("T", " ")
        if firing.batch == batch and firing.missed:
            told.append(f"before it {firing.missed} due times were missed: no scheduler was there")
        elif firing.what == "missed" and firing.before == batch:
            times = f"{firing.missed} due times up to {due}" if firing.missed > 1 else f"the due time {due}"
            told.append(f"{times} (UTC) passed without a batch: no scheduler was there")
        elif firing.what == "overlap" and firing.before == batch:
            told.append(f"the due time {due} (UTC) passed without a batch: this one had not ended")
    return "; ".join(told)


def _after(archive: Archive, targets: Sequence[View]) -> dict[str, After]:
    """What became of the patches that go to a forge."""
    gone = [view.run for view in targets if view.task.deliver is not None and view.task.deliver.kind != "patch"]
    with ThreadPoolExecutor(READERS) as pool:
        found = pool.map(lambda run: read_after(archive, run), gone)
        return {run.id: one for run, one in zip(gone, found, strict=True) if one is not None}


def _before(archive: Archive, batch: str) -> tuple[str, Sequence[View]] | None:
    """The newest batch of the same name that was submitted before this one, and its runs; None where a list of runs
    cannot be read."""
    try:
        alike = batches(archive, batch.rpartition("-")[0])
        place = [entry.batch for entry in alike].index(batch)
        earlier = [entry for entry in alike[:place] if entry.runs]
        return (earlier[-1].batch, views(archive, earlier[-1].runs).found) if earlier else None
    except IntegrityFault:
        return None
