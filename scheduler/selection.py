"""Owns which runs a person means: by batch, state, class of failure, repository and label. Refuses to act on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import Final, get_args

from scheduler.runs import Found, View, find, marked_runs, runs_in, standing, views
from worker.contract.errors import NotFoundFault, UsageFault
from worker.contract.events import FailureClass, OutcomeName, VerdictName
from worker.contract.run import FAILED_VERDICTS, Run, Status
from worker.store.archive import Archive

STATES: Final = (
    *get_args(Status)[:-1],
    *("pausing", "paused", "cancelling"),
    *get_args(OutcomeName),
    *get_args(VerdictName),
)
CLASSES: Final[tuple[str, ...]] = get_args(FailureClass)


@dataclass(frozen=True)
class Selection:
    """batches: first letters of ids. states: of STATES, any of them. classes: of CLASSES, any of them. repos: globs
    over label, URL and target, any of them. labels: all of them. limit: so many at most, None for all. Empty means
    everything. Raises UsageFault for a word that is none of these."""

    batches: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    repos: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    limit: int | None = None

    def __post_init__(self) -> None:
        for option, words, known in (("state", self.states, STATES), ("class", self.classes, CLASSES)):
            if wrong := [word for word in words if word not in known]:
                raise UsageFault(f"--{option} {wrong[0]!r} is not known", hint=f"one of {', '.join(known)}")
        for option, words in (("batch", self.batches), ("repo", self.repos), ("label", self.labels)):
            if "" in words:  # of a variable that nobody set, and every id begins with it
                raise UsageFault(f"--{option} is empty", hint=f"leave --{option} out to mean any")

    @property
    def narrows(self) -> bool:
        """Whether it leaves out any run of the batches it looks at."""
        return self != Selection(self.batches)

    def matches(self, view: View) -> bool:
        """Whether it means this run, as far as the run itself says."""
        task, sealed = view.task, view.run.sealed
        names = (task.repo.label, task.repo.url or "", task.target)
        states = {view.state, *((sealed.outcome, sealed.verdict) if sealed is not None else (view.run.status,))}
        cls = sealed.failure.cls if sealed is not None and sealed.failure is not None else ""
        return (
            (not self.states or any(state in states for state in self.states))
            and (not self.classes or cls in self.classes)
            and (not self.repos or any(fnmatchcase(name, glob) for glob in self.repos for name in names if name))
            and set(self.labels) <= set(task.labels)
        )


def failed(run: Run) -> bool:
    """As the exit code of a submit counts it."""
    sealed = run.sealed
    return sealed is not None and (sealed.outcome == "failed" or sealed.verdict in FAILED_VERDICTS)


def in_batches(archive: Archive, starts: Sequence[str] = ()) -> list[str]:
    """Ids of the batches that begin with any of these, all without; in the order of their names. Raises NotFoundFault
    for a beginning that none has."""
    known = sorted(archive.folders("batches/"))
    for start in starts:
        if not any(one.startswith(start) for one in known):
            raise NotFoundFault(f"there is no batch {start!r} in {archive.url}", hint="list them: dawn status --all")
    return [one for one in known if not starts or one.startswith(tuple(starts))]


def select(
    archive: Archive,
    selection: Selection,
    names: Iterable[str] = (),
    *,
    every: bool = False,
    only_open: bool = False,
    within: Sequence[str] | None = None,
) -> list[View]:
    """The runs that are meant, in the order of their batches' manifests. names: ids of batches and runs, whose runs
    alone are looked at. every: also runs that do not count for their target. only_open: none that is sealed. within:
    batches that are looked at where no name or batch says which; all without.

    Raises NotFoundFault and ConflictFault for names as find does, StoreFault.
    """
    named = [find(archive, name) for name in names]
    whole = [one.id for one in named if one.kind == "batch"]
    runs = [one.id for one in named if one.kind == "run"]
    if selection.batches or not named:
        whole += in_batches(archive, selection.batches) if selection.batches or within is None else sorted(within)
    marked = set(marked_runs(archive)) if only_open else None
    found = _found(archive, dict.fromkeys(whole), dict.fromkeys(runs), marked, every=every)
    return list(islice((view for view in found if selection.matches(view)), selection.limit))


def _found(
    archive: Archive, batches: Iterable[str], runs: Iterable[str], marked: set[str] | None, *, every: bool
) -> Iterator[View]:
    """A run that is named is meant, whether it counts or not."""
    told: set[str] = set()
    for batch in batches:
        try:
            members = runs_in(archive, Found("batch", batch))
        except NotFoundFault:  # its submit was cut off before it named any
            continue
        if marked is not None:
            members = [run for run in members if run in marked]
        seen = views(archive, members).found
        for view in seen if every or marked is not None else standing(seen):
            told.add(view.task.run)
            yield view
    yield from views(archive, [run for run in runs if run not in told and (marked is None or run in marked)]).found
