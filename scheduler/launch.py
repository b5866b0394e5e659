"""Owns one submit from a command: start or join a stack, write the batches, watch them to their end. Refuses to
print: progress goes through `say`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from threading import Event
from typing import Final, Literal

from scheduler import control
from scheduler.budget import Gate
from scheduler.enqueue import Batch, freeze, submit
from scheduler.follow import Follower
from scheduler.lock import Lock, listed, locked
from scheduler.manifests import targets
from scheduler.manifests.manifest import Manifest
from scheduler.manifests.previous import previous_targets
from scheduler.manifests.reading import Loaded, ManifestFault
from scheduler.manifests.search import search
from scheduler.manifests.sources import Asked, Previous, Target
from scheduler.manifests.targets import Origin
from scheduler.planning.why import behind
from scheduler.retry import complete
from scheduler.runs import Found, View, find, runs_in, standing
from scheduler.stack import Stack, connected
from worker.contract.errors import ExitCode, HintsFault, InvalidFault, NotFoundFault, StoreFault
from worker.contract.events import Record
from worker.contract.model_name import ModelName, parse_model_name
from worker.contract.run import Run
from worker.contract.settings import Settings
from worker.contract.task import Repo, Task
from worker.store import keys
from worker.store.archive import Archive
from worker.store.hints import Hints
from worker.store.inbox import Control
from worker.store.journal import Journal
from worker.store.mail import Mail

POLL_S: Final = 0.3
REPORTS_WAIT_S: Final = 10.0

Say = Callable[[str], None]
Lane = Literal["interactive", "batch"]


@dataclass
class Interrupts:
    """How often Ctrl-C was pressed. The second time KeyboardInterrupt is raised, and a stack of ours is ended in a
    hurry; the third ends the process at once, and the stack with it."""

    count: int = 0
    wake: Event = field(default_factory=Event)

    def press(self, *_: object) -> None:
        self.count += 1
        self.wake.set()
        if self.count > 2:
            os._exit(int(ExitCode.INTERRUPTED))
        if self.count > 1:
            raise KeyboardInterrupt


@dataclass(frozen=True)
class Watched:
    """runs: their folds, by id. interrupted: Ctrl-C was pressed, then every run was cancelled and what it had done is
    kept. held: runs are left that nobody began, because a budget is used up. tasks: what was asked of each."""

    runs: dict[str, Run]
    interrupted: bool = False
    held: bool = False
    tasks: dict[str, Task] = field(default_factory=dict)

    @property
    def standing(self) -> list[Run]:
        """Of each target the run that counts for it."""
        views = [View(task, self.runs[run], Mail(self.runs[run])) for run, task in self.tasks.items()]
        return [view.run for view in standing(views)]


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """SIGINT and SIGTERM are counted inside the block."""
    pressed = Interrupts()
    before = {number: signal.signal(number, pressed.press) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield pressed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def batch_of(
    loaded: Loaded,
    archive: Archive,
    *,
    say: Say,
    key: str = "",
    lane: Lane = "batch",
    reuse: bool = False,
    lock: Lock | None = None,
) -> Batch:
    """Locate, pack and store what the targets name, and freeze the batch. reuse: see Batch. lock: what its targets
    were when it was planned. Raises ManifestFault with every target that cannot be used, ForgeFault, StoreFault."""
    if lock is not None:
        loaded = listed(loaded, lock, say)
    loaded, repos = located(loaded, archive, store=True, say=say)
    if lock is not None:
        repos = locked(loaded, repos, lock, say)
    return replace(freeze(loaded, repos, key=key, lane=lane), reuse=reuse)


def located(loaded: Loaded, archive: Archive, *, store: bool, say: Say) -> tuple[Loaded, list[Repo]]:
    """The manifest with all its targets, and where the code of each is. store: keep what is packed. Raises
    ManifestFault with every target that cannot be used, ForgeFault, StoreFault."""
    repos: list[Repo] = []
    notes: dict[str, dict[str, None]] = {}
    problems = []
    limit_bytes = loaded.manifest.limits.workspace_bytes

    def ask(asked: Asked) -> Sequence[tuple[Target, Origin | None]]:
        return (
            previous_targets(archive, asked)
            if isinstance(asked, Previous)
            else [(target, None) for target in search(asked, say)]
        )

    loaded = loaded.resolved(ask)
    loaded = replace(loaded, manifest=_replayed(loaded.manifest, archive))
    for one in loaded.targets:
        try:
            for note in one.origin.notes:
                notes.setdefault(note, {})[one.target.repo] = None
            digest = targets.store(one.origin, archive if store else None, limit_bytes=limit_bytes)
            asked = one.target
            repos.append(targets.repo(one.origin, digest, ref=asked.ref, path=asked.path, secret=asked.secret))
        except InvalidFault as fault:
            problems.append(one.at("repo").problem("target", fault.message, fault.hint))
    for note, (first, *others) in notes.items():
        say(f"note: {first}{f' and {len(others)} more' if others else ''}: {note}")
    if problems:
        raise ManifestFault(loaded.name, problems)
    return loaded, repos


def _replayed(manifest: Manifest, archive: Archive) -> Manifest:
    """With the whole id of the run whose replies are played again. Raises NotFoundFault and ConflictFault."""
    model = parse_model_name(manifest.task.model)
    if model.provider != "replay":
        return manifest
    found = ModelName("replay", find(archive, model.name, kinds=("run",)).id)
    return manifest.model_copy(update={"task": manifest.task.model_copy(update={"model": str(found)})})


def detach(batches: Sequence[Batch], archive: Archive, where: Settings, *, by: str, at: str, say: Say) -> None:
    """Write the batches and go; a running stack takes them up, or the next one that starts. Raises HintsFault, with
    nothing written, when there is a Redis and it takes no new work."""
    archive.probe()
    found = connected(where)
    hints = None if found.redis_url is None else Hints(found.redis_url)
    if hints is not None:
        control.admit(hints)
    _write(batches, archive, by=by, at=at, say=say)
    if hints is None:
        if any(archive.size(keys.open_marker(task.run)) is not None for batch in batches for task in batch.tasks):
            say("note: no stack is running; the runs start with `dawn up`")
        return
    control.announce(hints)


def attend(
    batches: Sequence[Batch],
    archive: Archive,
    where: Settings,
    *,
    by: str,
    stamp: Callable[[], str],
    say: Say,
    heard: Callable[[Record, Run], None],
    wait: bool = True,
) -> Watched:
    """Run the batches to their end in a running stack, or in one of our own.

    wait: False leaves when all that is left waits for a person or for money. heard: called with each record that came
    after the submit, and the run after it; of older runs first with what their last append said. Raises Fault when
    the stack cannot come up.
    """
    archive.probe()
    with interrupts() as pressed, Stack(where, say=say) as stack:
        if pressed.count:
            return Watched({}, interrupted=True)
        hints = Hints(str(stack.settings.redis_url))
        control.admit(hints)
        _write(batches, archive, by=by, at=stamp(), say=say)
        tasks = _tasks(batches, archive)
        follower = Follower(archive, list(tasks))
        for record in follower.catch_up():
            heard(record, follower.runs[record.run])
        control.announce(hints)
        cancelled: set[str] = set()
        held: set[str] = set()

        def cancel() -> None:
            for name in [batch.id for batch in batches if batch.id not in cancelled]:
                control.tell(archive, hints, Found("batch", name), "cancel", by=by, at=stamp())
                cancelled.add(name)

        try:
            while True:
                try:
                    for record in follower.poll():
                        heard(record, follower.runs[record.run])
                    if not follower.open:  # somebody may have asked for more of them meanwhile
                        tasks = _tasks(batches, archive)
                        follower.add(tasks)
                    if pressed.count and not cancelled and follower.open:
                        say("cancelling; press Ctrl-C again to leave at once")
                        cancel()
                        pressed.wake.clear()
                except StoreFault as fault:
                    if not fault.retryable:
                        raise
                    say(f"waiting for the archive: {fault}")
                stuck = {run.id for run in follower.unsealed if not _works(run)}
                stuck |= behind(tasks, follower.runs, stuck)
                left = [run for run in follower.unsealed if run.id not in stuck]
                now_held = _held(archive, hints, tasks, left)
                if now_held - held:
                    say(f"{len(now_held)} runs wait for budget before they begin; see: dawn status")
                held = now_held
                if not follower.open or not (wait or len(left) > len(held)):
                    break
                stack.tend()
                pressed.wake.wait(follower.pause_s(POLL_S))
        except KeyboardInterrupt:
            cancel()  # the second one came before the first was dealt with
            raise
        if stack.owned and not follower.open:
            _await_reports(batches, archive, pressed)
        hints.close()
        return Watched(follower.runs, interrupted=bool(pressed.count), held=bool(held), tasks=tasks)


def _await_reports(batches: Sequence[Batch], archive: Archive, pressed: Interrupts) -> None:
    """Leave a scheduler that ends with us the time to write what it owes; what it does not, the next one does."""
    end = time.monotonic() + REPORTS_WAIT_S
    with suppress(StoreFault):
        while any(archive.size(keys.report_due(batch.id)) is not None for batch in batches):
            if time.monotonic() >= end or pressed.count:
                return
            pressed.wake.wait(POLL_S)


def _tasks(batches: Sequence[Batch], archive: Archive) -> dict[str, Task]:
    """Of all runs of the batches that are written, what was added since with it."""
    tasks = {task.run: task for batch in batches for task in batch.tasks}
    runs = [run for batch in batches for run in runs_in(archive, Found("batch", batch.id))]
    for run in runs:
        if run not in tasks:
            with suppress(NotFoundFault):  # announced at this moment
                tasks[run] = Journal(archive, run).task()
    return {run: tasks[run] for run in runs if run in tasks}


def _works(run: Run) -> bool:
    """Whether something other than a person's answer or money will bring the run on."""
    return run.waiting is None or (run.asked is None and run.waiting.waiting != "budget")


def _held(archive: Archive, hints: Hints, tasks: Mapping[str, Task], left: list[Run]) -> set[str]:
    """Of runs that nobody began, those that wait for money to begin, once no other is left."""
    if any(run.claims for run in left):
        return set()
    control = cache(lambda batch: Control(archive, batch).read())
    gate = Gate(hints)
    try:
        mail = {run.id: Mail(run, control=control(tasks[run.id].batch)) for run in left}
        held = {name: gate.held(tasks[name], unread) for name, unread in mail.items()}
    except (HintsFault, StoreFault):  # nobody knows now; asked again with the next look
        return set()
    return {name for name, becomes in held.items() if becomes == "pause"}


def _write(batches: Sequence[Batch], archive: Archive, *, by: str, at: str, say: Say) -> None:
    for batch in batches:
        reused: list[str] = []
        new = submit(batch, archive, by=by, at=at, hear=reused.append)
        complete(archive, batch.id)
        told = f", {len(reused)} of them reused" if reused else ""
        told += f", {len(batch.tasks) - new} were there already" if new < len(batch.tasks) else ""
        say(f"batch {batch.id}: {new} new run{'s' if new != 1 else ''}{told}")
