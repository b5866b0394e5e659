"""Owns finding batches and runs in an archive and folding them. Refuses to change anything: the archive alone is
enough to answer, no Redis is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Final, Literal, TypeVar

from worker.contract.delivered import readiness, wants_delivery
from worker.contract.errors import ConflictFault, Fault, IntegrityFault, InvalidFault, NotFoundFault, VersionFault
from worker.contract.events import read_json
from worker.contract.hours import Shut, shut
from worker.contract.run import Run
from worker.contract.task import Task
from worker.store import keys
from worker.store.archive import Archive, is_near
from worker.store.decisions import Decision
from worker.store.deliveries import After, read_after
from worker.store.inbox import Control, Message
from worker.store.journal import Journal
from worker.store.mail import Mail, read_mail
from worker.store.members import members
from worker.store.skim import Along, Parse, parsed_line

K = TypeVar("K")
V = TypeVar("V")
READERS: Final = 8
UNREADABLE: Final = (IntegrityFault, VersionFault, InvalidFault)
"""Of a run or batch: not what was written, written by a newer Dawnfleet, or under a name that no store can hold."""
CANDIDATES_SHOWN: Final = 8
BATCHES_SHOWN: Final = 10
BEGUN_MAX: Final = 16
"""Runs of a batch that are looked at for the time of its submit, which writes them in their order: each that is not
there is a request."""


@dataclass(frozen=True)
class View:
    """A run, what was asked of it, and what people sent it that it has not read yet. after: what became of its patch,
    where it wants to be delivered. shut: its window was closed when it was read."""

    task: Task
    run: Run
    mail: Mail
    after: After | None = None
    shut: Shut | None = None

    @property
    def decision(self) -> Decision | None:
        """The answer to its question."""
        return self.mail.decision

    @property
    def state(self) -> str:
        """Its outcome, or what it does, as people shall see it: what was asked of it counts at once."""
        run = self.run
        if run.sealed is not None:
            return run.sealed.outcome
        if self.mail.cancel is not None:
            return "cancelling"
        if run.status == "waiting" or not self.mail.paused_by:
            return run.status
        return "pausing" if run.status == "running" else "paused"

    @property
    def follows(self) -> bool:
        """It waits for the commands of another candidate."""
        return self.task.prefix_of is not None and self.run.last_seq < 0

    @property
    def awaits_review(self) -> bool:
        """Whether its patch is delivered once a person approves it."""
        after = self.after
        if after is None:
            return False
        return readiness(self.task, self.run, after.review, asked=after.delivery.asked) == "review"

    @property
    def place(self) -> str:
        """Which of its target's runs it is, "" for the only one that a submit made."""
        ordinal, candidates = self.task.ordinal, self.task.candidates
        if ordinal >= candidates:
            return f"retry {ordinal - candidates + 1}"
        return f"candidate {ordinal + 1} of {candidates}" if candidates > 1 else ""


VERDICTS: Final = ("verified", "unverified", "flaky", "still_failing", "broke")
"""Of candidates, the best first."""


def standing(found: Iterable[View]) -> list[View]:
    """Of each target the run that counts for it, in the order of the targets: its last retry, else its best
    candidate, or one that has not ended while there is one. found: all runs of each batch that is asked about."""
    targets: dict[tuple[str, str], list[View]] = {}
    for one in found:
        targets.setdefault((one.task.batch, one.task.target), []).append(one)
    return [_standing(runs) for runs in targets.values()]


def _standing(runs: Sequence[View]) -> View:
    last = max(runs, key=lambda one: one.task.ordinal)
    if last.task.ordinal >= last.task.candidates:
        return last
    return min(runs, key=lambda one: (one.run.sealed is not None, *_worth(one.run), one.task.ordinal))


def _worth(run: Run) -> tuple[int, int, int]:
    """By verdict, then lines changed, then bytes of the patch: the least is the best."""
    sealed = run.sealed
    if sealed is None or sealed.outcome in ("cancelled", "skipped"):
        return len(VERDICTS) + 1, 0, 0
    if sealed.outcome == "failed" or sealed.verdict is None:
        return len(VERDICTS), 0, 0
    rank = VERDICTS.index(sealed.verdict)
    if run.verdict is None:
        return rank, 0, 0
    patch = run.verdict.patch
    return rank, patch.added + patch.removed, patch.bytes


@dataclass(frozen=True)
class Found:
    """What a user's word named."""

    kind: Literal["batch", "run"]
    id: str


def find(archive: Archive, word: str, *, kinds: Sequence[Literal["batch", "run"]] = ("run", "batch")) -> Found:
    """The batch or run whose id is word or starts with it, and no other's does.

    Raises NotFoundFault when there is none, ConflictFault with the candidates when there are several.
    """
    folders = {"run": "runs/", "batch": "batches/"}
    known = [Found(kind, name) for kind in kinds for name in archive.folders(folders[kind])]
    exact = [found for found in known if found.id == word]
    matching = exact or [found for found in known if word and found.id.startswith(word)]
    if len(matching) == 1:
        return matching[0]
    what = " or ".join(kinds)
    if (
        not matching
        and kinds == ("run",)
        and any(name.startswith(word) for name in archive.folders("batches/") if word)
    ):
        raise NotFoundFault(f"{word!r} names a batch, not a run", hint=f"list its runs: dawn status {word}")
    if not matching:
        raise NotFoundFault(f"there is no {what} {word!r} in {archive.url}", hint="list them: dawn status --all")
    shown = ", ".join(found.id for found in matching[:CANDIDATES_SHOWN])
    more = f" and {len(matching) - CANDIDATES_SHOWN} more" if len(matching) > CANDIDATES_SHOWN else ""
    raise ConflictFault(f"{word!r} could be {shown}{more}", hint="give more letters of the id")


def find_newest(archive: Archive, word: str, *, kinds: Sequence[Literal["batch", "run"]] = ("run", "batch")) -> Found:
    """For what only reads: as `find`, but of batches whose manifest has the word for its name the newest."""
    named = batches(archive, word)
    return Found("batch", named[-1].batch) if named else find(archive, word, kinds=kinds)


def find_journal(archive: Archive, word: str) -> str:
    """Whose journal a word names: a run, as `find` does, or behind `/delegates/` the call of one that a delegate has
    answered. Raises as find."""
    run, _, call = word.partition("/delegates/")
    name = find(archive, run, kinds=("run",)).id
    return keys.delegate(name, call) if call else name


def runs_in(archive: Archive, found: Found) -> list[str]:
    """The runs of a batch in the manifest's order, retries behind what they repeat, or the one run. Raises
    NotFoundFault for a batch whose submit was cut off before it named its runs."""
    if found.kind == "run":
        return [found.id]
    try:
        return [member.run for member in members(archive, found.id)]
    except NotFoundFault:
        raise NotFoundFault(f"batch {found.id} was cut off while it was written", hint="submit it again") from None
    except IntegrityFault as fault:
        raise IntegrityFault(fault.message, hint=f"look: dawn verify {found.id}") from None


def view(
    archive: Archive,
    run: str,
    control: Callable[[str], Sequence[Message]] | None = None,
    *,
    since: View | None = None,
    parse: Parse = parsed_line,
    along: Along = iter,
) -> View:
    """One run. control: the messages to a batch, None to read them. since: an earlier look at it, from which only
    what is new is read. parse, along: as Journal has them. Raises NotFoundFault, IntegrityFault, StoreFault as the
    journal does."""
    journal = Journal(archive, run)
    if since is None:
        folded, task = journal.load(parse=parse, along=along), journal.task()
    else:
        folded, task = since.run if since.run.sealed else journal.load(since.run, parse, along), since.task
    if folded.sealed is not None:
        return View(task, folded, Mail(folded), read_after(archive, folded) if wants_delivery(task) else None)
    mail = read_mail(archive, folded, task.batch, control)
    return View(task, folded, mail, shut=shut(task, folded, datetime.now(UTC)))


def each(archive: Archive, read: Callable[[K], V], asked: Sequence[K]) -> list[V]:
    """What read returns for each, in their order: at the same time where the archive is far away."""
    if is_near(archive):
        return [read(one) for one in asked]
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(read, asked))


@dataclass(frozen=True)
class Views:
    """Many runs. found: those that can be read, in the order asked for. damaged: run -> what is wrong with it.
    unwritten: how many a submit that was cut off has named and not written."""

    found: list[View]
    damaged: dict[str, str]
    unwritten: int


def views(archive: Archive, runs: Iterable[str]) -> Views:
    """Many runs, folded at the same time. One that cannot be read hides no other. Raises StoreFault."""

    def read(run: str) -> View | Fault | None:
        try:
            return view(archive, run, control)
        except NotFoundFault:
            return None
        except UNREADABLE as fault:
            return fault

    asked, control = list(runs), cache(lambda batch: Control(archive, batch).read())
    seen = each(archive, read, asked)
    damaged = {run: one.message for run, one in zip(asked, seen, strict=True) if isinstance(one, Fault)}
    return Views([one for one in seen if isinstance(one, View)], damaged, seen.count(None))


@dataclass(frozen=True)
class Listed:
    """A batch in a list. at: UTC time of its submit, "" while its first run is being written. runs: ids that it
    names, none when its submit was cut off before it named them. wrong: why these cannot be read, "" where they can.
    """

    batch: str
    at: str
    runs: list[str]
    wrong: str = ""


def batches(archive: Archive, named: str | None = None) -> list[Listed]:
    """All batches, or those of one manifest's name, oldest first."""
    found = [one for one in archive.folders("batches/") if named is None or one.rpartition("-")[0] == named]
    listed = each(archive, lambda name: _listed(archive, name), found)
    return sorted(listed, key=lambda entry: (entry.at, entry.batch))


def recent(archive: Archive) -> tuple[list[Listed], int]:
    """The newest BATCHES_SHOWN batches and every open one, oldest first; and how many others there are."""
    known, still_open = batches(archive), open_batches(archive)
    found = [entry for entry in known[:-BATCHES_SHOWN] if entry.batch in still_open] + known[-BATCHES_SHOWN:]
    return found, len(known) - len(found)


def marked_runs(archive: Archive) -> list[str]:
    """Runs that have the marker of an open one: not sealed, or with a patch to deliver. By id."""
    return [key.removeprefix("open/") for key in archive.list("open/")]


def open_batches(archive: Archive) -> set[str]:
    """Batches with a run that is not sealed. A marker whose task cannot be read is nobody's."""

    def batch_of(run: str) -> str | None:
        try:
            return Journal(archive, run).task().batch
        except (NotFoundFault, IntegrityFault, VersionFault):
            return None

    return {batch for batch in each(archive, batch_of, marked_runs(archive)) if batch is not None}


def _listed(archive: Archive, batch: str) -> Listed:
    try:
        runs = runs_in(archive, Found("batch", batch))
    except NotFoundFault:
        return Listed(batch, "", [])
    except UNREADABLE as fault:
        return Listed(batch, "", [], fault.message)
    for run in runs[:BEGUN_MAX]:
        try:
            first = archive.get(keys.segment(run, 0)).split(b"\n", 1)[0]
            return Listed(batch, str(read_json(first)["at"]), runs)
        except (NotFoundFault, *UNREADABLE, ValueError, KeyError, TypeError):
            continue
    return Listed(batch, "", runs)
