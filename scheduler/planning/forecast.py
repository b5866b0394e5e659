"""Owns what a submit would come to: which runs are new, there or reused, what they may cost, when they may work.
Refuses to write anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime
from statistics import median
from typing import Any, Final, Literal

from scheduler.enqueue import Batch
from scheduler.manifests.manifest import Manifest
from scheduler.runs import READERS, batches, views
from scheduler.work import earlier
from worker.contract.task import Task, usd_text
from worker.store import keys
from worker.store.archive import Archive

BATCHES_READ: Final = 5
"""Of one name: what is older says little of what a night costs now."""

State = Literal["new", "there", "reused", "unreachable", "excluded"]


@dataclass(frozen=True)
class Line:
    """A run that a submit would make, or a target that it would not. run: "" for an excluded one. why: of a reused
    one the earlier run, of an unreachable one what is wrong."""

    target: str
    state: State
    run: str = ""
    ordinal: int = 0
    repo: str = ""
    ref: str | None = None
    commit: str | None = None
    source: str | None = None
    why: str = ""

    def cells(self) -> tuple[str, ...]:
        """As a row of a table: target, ref, commit, state, why."""
        at = (self.commit or self.source or "")[:12]
        name = f"{self.target} ({self.ordinal + 1})" if self.ordinal else self.target
        return name, self.ref or "", at, self.state, self.why


@dataclass(frozen=True)
class Cost:
    """Of `runs` new runs, in dollars. most: what limits and budget let them spend, None for no bound. earlier: how
    many runs of the same name are known, and what one of them cost: the least, the middle, the most."""

    runs: int
    most: float | None
    earlier: int = 0
    least_a_run: float = 0
    middle_a_run: float = 0
    most_a_run: float = 0

    @property
    def text(self) -> str:
        """`at most $12.00 for 4 new runs; 9 earlier ones cost $0.10 to $0.80 each, so about $1.20`."""
        told = "without a bound" if self.most is None else f"at most {_usd(self.most)}"
        told += f" for {self.runs} new run{'' if self.runs == 1 else 's'}"
        if self.earlier and self.runs:
            each = f"{_usd(self.least_a_run)} to {_usd(self.most_a_run)} each"
            told += f"; {self.earlier} earlier ones cost {each}, so about {_usd(self.runs * self.middle_a_run)}"
        return told


@dataclass(frozen=True)
class Forecast:
    """window: one line, "" where the batch may always work."""

    lines: tuple[Line, ...]
    cost: Cost
    window: str

    def count(self, state: State) -> int:
        return sum(line.state == state for line in self.lines)

    def as_json(self) -> dict[str, Any]:
        return {"targets": [asdict(line) for line in self.lines], "cost": asdict(self.cost), "window": self.window}


def forecast(
    archive: Archive,
    manifest: Manifest,
    batch: Batch,
    *,
    unreachable: Mapping[str, str],
    excluded: Sequence[str],
    now: datetime,
) -> Forecast:
    """What submitting the batch would do now. unreachable: target -> why its repository could not be asked. excluded:
    names that the manifest leaves out. Raises StoreFault."""

    def line(task: Task) -> Line:
        repo, why = task.repo, unreachable.get(task.target, "")
        state: State = "unreachable" if why else "new"
        waits = task.prefix_of is not None and archive.size(keys.task(task.run)) is not None
        if waits or archive.size(keys.segment(task.run, 0)) is not None:
            state = "there"
        elif batch.reuse and (done := earlier(archive, task)) is not None:
            state, why = "reused", done.id
        where = repo.url or f"packed {repo.source_kind}"
        return Line(task.target, state, task.run, task.ordinal, where, repo.ref, repo.commit, repo.source, why)

    with ThreadPoolExecutor(READERS) as pool:
        lines = list(pool.map(line, batch.tasks))
    new = sum(one.state in ("new", "unreachable") for one in lines)
    lines += [Line(name, "excluded") for name in excluded]
    return Forecast(tuple(lines), _cost(archive, manifest, new), _window(batch, now))


def _cost(archive: Archive, manifest: Manifest, new: int) -> Cost:
    each = 0.0 if manifest.task.model == "none" else manifest.limits.cost_usd
    bounds = [each * new] if each is not None else []
    if manifest.budget is not None:
        bounds.append(manifest.budget.usd)
    most = min(bounds, default=None)
    known = [run for listed in batches(archive, manifest.name)[-BATCHES_READ:] for run in listed.runs]
    ran = [view.run for view in views(archive, known).found if view.run.sealed is not None and view.run.claims]
    spent = [run.spent_microusd / 1e6 for run in ran]
    if not spent:
        return Cost(new, most)
    return Cost(new, most, len(spent), min(spent), median(spent), max(spent))


def _window(batch: Batch, now: datetime) -> str:
    window = batch.tasks[0].window
    if window is None:
        return ""
    closes = window.closes(now)
    if closes is not None:
        return f"open until {closes:%Y-%m-%d %H:%M} UTC"
    return f"closed until {window.opens(now):%Y-%m-%d %H:%M} UTC"


def _usd(amount: float) -> str:
    return usd_text(round(amount * 1e6))
