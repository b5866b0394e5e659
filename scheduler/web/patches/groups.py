"""Owns which patches of a batch are alike, so that a person reads one of each kind. Pure but for the reading of them.
Refuses to call two patches the same that differ in anything but what their normal form sets aside, and to hide that.

A group is made of variants: patches of one normal form (normal.py) and one verdict. Its representative is of the
largest variant, and one run of each other variant is an outlier of the group: whoever has opened these has seen every
form that is in it. What is like nothing else stands alone, and is read by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from scheduler.runs import READERS, View, standing
from scheduler.web.patches.normal import PATCH_BYTES, Form, NotCompared, differing, form, similarity
from worker.contract.delivered import patch_of
from worker.contract.errors import IntegrityFault, NotFoundFault
from worker.contract.events import canonical, digest
from worker.store.archive import Archive
from worker.store.journal import Journal

if TYPE_CHECKING:
    from scheduler.web.site import Site

NEAR: Final = 0.6
"""Of what two patches say, what both must say to stand in one group."""
COMPARED_MAX: Final = 200
"""A form is compared with so many others, the most common ones: so the work grows with the number of runs, and in a
batch of hundreds of kinds a rare one may stand alone though another is like it."""
LINES_MAX: Final = 300_000
"""Changed lines of a whole batch that are held at once; patches behind them stand alone."""
KEPT_S: Final = 3_600.0
SUBMODULES: Final = "submodules.diff"


@dataclass(frozen=True)
class Changed:
    """A run that left a patch. digest: of the patch. patch: None, with the reason why, where it is not compared.
    verdict: what was measured of it, or how else it ended."""

    run: str
    target: str
    digest: str
    patch: bytes | None
    why: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class Member:
    """A run of a group. patch: the digest of its patch. differs: how many of its changed lines and its
    representative's are not the same, in either; 0 for the same change at the same places. aside: what of its patch
    was set aside to find it alike; more_aside: what else."""

    run: str
    target: str
    patch: str
    verdict: str = ""
    differs: int = 0
    aside: tuple[str, ...] = ()
    more_aside: int = 0


@dataclass(frozen=True)
class Variant:
    """Patches of one normal form, of which the same was measured. sample: the one that stands for them. similarity:
    of the form to the representative's, 1.0 for its own."""

    form: str
    sample: Member
    members: tuple[Member, ...]
    similarity: float = 1.0


@dataclass(frozen=True)
class Group:
    """variants: the representative's first, then the least similar first. id: a digest of all members and their
    patches: another one when anything of it changes."""

    id: str
    representative: Member
    variants: tuple[Variant, ...]

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(member for variant in self.variants for member in variant.members)

    @property
    def outliers(self) -> tuple[Member, ...]:
        """Who has to be opened besides the representative before all may be approved at once."""
        return tuple(variant.sample for variant in self.variants[1:])

    @property
    def to_open(self) -> tuple[Member, ...]:
        return (self.representative, *self.outliers)


@dataclass(frozen=True)
class Alone:
    """A run whose patch is like no other, or was not compared. nearest: its similarity to the nearest group."""

    member: Member
    why: str
    nearest: float = 0.0


@dataclass(frozen=True)
class Groups:
    """alone: those that were not compared first, then the least like any group. groups: the largest first."""

    alone: tuple[Alone, ...]
    groups: tuple[Group, ...]

    def group(self, id: str) -> Group | None:
        return next((group for group in self.groups if group.id == id), None)

    def group_of(self, run: str) -> Group | None:
        return next((group for group in self.groups if any(run == one.run for one in group.members)), None)


@dataclass
class _Kind:
    """A normal form with a verdict, and the runs that have both: a change that broke one repository is not read with
    those that it repaired."""

    form: Form
    verdict: str
    runs: list[tuple[Changed, Form]]

    @property
    def order(self) -> tuple[int, bool, str, str]:
        return -len(self.runs), self.verdict != "verified", self.form.digest, self.verdict


def opened_as(run: str, patch: str) -> str:
    """What a visitor has opened who has seen this run's patch, in few bytes (Page.opened). patch: its digest."""
    return digest(f"{run} {patch}".encode())[:16]


def grouped(changed: Iterable[Changed]) -> Groups:
    """The groups of a batch, the same whatever order its runs come in. Each patch is let go of as soon as it was
    read."""
    alone: list[Alone] = []
    kinds: dict[tuple[str, str], _Kind] = {}
    lines = 0
    for one in changed:
        try:
            if one.patch is None:
                raise NotCompared(one.why)
            if lines > LINES_MAX:
                raise NotCompared("the batch's patches are too large to be compared all together")
            made = form(one.patch, one.target)
        except NotCompared as reason:
            alone.append(Alone(Member(one.run, one.target, one.digest, one.verdict), str(reason)))
            continue
        lines += len(made.lines)
        light = Changed(one.run, one.target, one.digest, None, verdict=one.verdict)
        kind = kinds.setdefault((made.digest, one.verdict), _Kind(made, one.verdict, []))
        kind.runs.append((light, made))
    clusters = _clusters(sorted(kinds.values(), key=lambda kind: kind.order))
    groups = [_group(cluster) for cluster in clusters if sum(len(kind.runs) for kind, _ in cluster) > 1]
    groups.sort(key=lambda group: (-len(group.members), group.id))
    large = [cluster[0][0].form for cluster in clusters if sum(len(kind.runs) for kind, _ in cluster) > 1]
    for cluster in clusters:
        if sum(len(kind.runs) for kind, _ in cluster) == 1:
            [(one, made)] = cluster[0][0].runs
            nearest = max((similarity(made, other) for other in large[:COMPARED_MAX]), default=0.0)
            alone.append(Alone(_member(one, made, made), "like no other", round(nearest, 2)))
    alone.sort(key=lambda one: (one.why == "like no other", one.nearest, one.member.run))
    return Groups(tuple(alone), tuple(groups))


def gathered(archive: Archive, views: Iterable[View]) -> Iterator[Changed]:
    """The patches of those runs that have ended and left one, a few read at a time. Raises StoreFault."""
    wanted = [(view, patch) for view in views if (patch := patch_of(view.run)) is not None]

    def fetch(one: tuple[View, str]) -> Changed:
        view, patch = one
        task, sealed = view.task, view.run.sealed
        assert sealed is not None, "only a sealed run has a patch"
        found = Changed(task.run, task.target, patch, None, verdict=sealed.verdict or sealed.outcome)
        if sealed.outcome == "failed":
            found = replace(found, verdict="failed")
        if SUBMODULES in sealed.artifacts:
            return replace(found, why="it changes submodules too")
        try:
            data = Journal(archive, sealed.reused or task.run).get_blob(patch, max_bytes=PATCH_BYTES)
        except NotFoundFault:
            return replace(found, why="its patch is not in the archive")
        except IntegrityFault:
            return replace(found, why="its patch is too large to be compared, or damaged")
        return replace(found, patch=data)

    with ThreadPoolExecutor(READERS) as pool:
        for start in range(0, len(wanted), 2 * READERS):
            yield from pool.map(fetch, wanted[start : start + 2 * READERS])


def _clusters(kinds: Sequence[_Kind]) -> list[list[tuple[_Kind, float]]]:
    """Kinds around leaders: each joins the one that it is most like, or leads from now on. The most common come
    first, so that those lead."""
    clusters: list[list[tuple[_Kind, float]]] = []
    for kind in kinds:
        best, near = None, 0.0
        for cluster in clusters[:COMPARED_MAX]:
            alike = similarity(cluster[0][0].form, kind.form, at_least=NEAR)
            if alike > near:
                best, near = cluster, alike
        if best is None:
            clusters.append([(kind, 1.0)])
        else:
            best.append((kind, near))
    return clusters


def _group(cluster: Sequence[tuple[_Kind, float]]) -> Group:
    chief, whole = _central(cluster[0][0])
    others = sorted(cluster[1:], key=lambda one: (one[1], one[0].order))
    variants = []
    for kind, alike in (cluster[0], *others):
        runs = sorted(kind.runs, key=lambda one: (one[0].target, one[0].run))
        members = [_member(one, made, whole) for one, made in runs]
        sample = _central(kind)[0]
        of_sample = next(member for member in members if member.run == sample.run)
        members.sort(key=lambda member: member.run != sample.run)
        variants.append(Variant(kind.form.digest, of_sample, tuple(members), round(alike, 2)))
    told = sorted((member.run, member.patch) for variant in variants for member in variant.members)
    representative = next(member for member in variants[0].members if member.run == chief.run)
    return Group(digest(canonical([list(pair) for pair in told])), representative, tuple(variants))


def _central(kind: _Kind) -> tuple[Changed, Form]:
    """The run whose lines, as they really are, most of its kind share; of equals the first by name."""
    shared: Counter[bytes] = Counter()
    for _, made in kind.runs:
        shared.update(made.lines.keys())
    return max(
        sorted(kind.runs, key=lambda one: (one[0].target, one[0].run)),
        key=lambda one: sum(shared[line] for line in one[1].lines) / len(one[1].lines) if one[1].lines else 0.0,
    )


def _member(one: Changed, made: Form, chief: Form) -> Member:
    return Member(one.run, one.target, one.digest, one.verdict, differing(made, chief), made.aside, made.more_aside)


def of_batch(site: Site, batch: str) -> Groups:
    """The groups of a batch: of each target the run that counts for it. Found anew only when a patch has changed or
    come. Raises as Seen.batch."""
    views = [view for view in standing(site.seen.batch(batch).found) if patch_of(view.run) is not None]
    told = digest(canonical([[view.task.run, patch_of(view.run)] for view in views]))
    return site.seen.answer(("groups", batch, told), lambda: grouped(gathered(site.archive, views)), KEPT_S)
