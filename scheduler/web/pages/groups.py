"""Owns the page of a batch that shows which of its patches are alike, outliers first. Refuses to decide: a group is
approved on the page that reviews (it asks groups.py for the same groups).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from scheduler.runs import READERS
from scheduler.web.headline import Head, head
from scheduler.web.page import Asked, Page, Slice, Way, address, cut
from scheduler.web.patches import groups
from scheduler.web.patches.groups import Group, Member
from scheduler.web.reviewing import reviews_of
from scheduler.web.site import Site

GROUPS_SHOWN: Final = 20
ALONE_SHOWN: Final = 50
MEMBERS_SHOWN: Final = 100
"""Of one variant, beside its sample; of the others their number is told, and the batch's list has them."""


@dataclass(frozen=True)
class ShownMember:
    """opened: this visitor has seen its patch. to: where that is. said: the last word of a person on this very patch,
    "" where there is none."""

    member: Member
    opened: bool
    to: str
    said: str


@dataclass(frozen=True)
class ShownVariant:
    """more: members that are not named here."""

    form: str
    similarity: float
    count: int
    sample: ShownMember
    others: list[ShownMember]
    more: int


@dataclass(frozen=True)
class ShownGroup:
    """to_open: what has to be opened before all may be approved at once, and is not yet. named: run and digest of the
    patch of each member, for the form that then decides on all. approved, rejected: how many are so already."""

    id: str
    count: int
    identical: int
    representative: ShownMember
    variants: list[ShownVariant]
    to_open: list[ShownMember]
    needed: int
    named: list[str]
    approved: int
    rejected: int

    @property
    def is_read(self) -> bool:
        return not self.to_open

    @property
    def is_decided(self) -> bool:
        return self.approved + self.rejected == self.count


@dataclass(frozen=True)
class ShownAlone:
    """nearest: similarity to the nearest group, percent."""

    member: ShownMember
    why: str
    nearest: int


@dataclass(frozen=True)
class Shown:
    """patches: of the batch. to_read: how many a person opens to have seen every form. alone, groups: of this page,
    which slice counts."""

    head: Head
    patches: int
    to_read: int
    grouped: int
    alone_count: int
    group_count: int
    alone: list[ShownAlone]
    groups: list[ShownGroup]
    slice: Slice


def overview(site: Site, asked: Asked) -> Page:
    batch = asked.path["batch"]
    found, top = groups.of_batch(site, batch), head(site, batch)
    pages = max(-(-len(found.alone) // ALONE_SHOWN), -(-len(found.groups) // GROUPS_SHOWN))
    slice = cut(pages, asked, 1)
    alone = found.alone[slice.start * ALONE_SHOWN : slice.stop * ALONE_SHOWN]
    shown = found.groups[slice.start * GROUPS_SHOWN : slice.stop * GROUPS_SHOWN]
    members = sum(len(group.members) for group in found.groups)
    named = [one.member for one in alone] + [one for group in shown for one in group.members]
    words = _words(site, named)
    data = Shown(
        head=top,
        patches=len(found.alone) + members,
        to_read=len(found.alone) + sum(len(group.to_open) for group in found.groups),
        grouped=members,
        alone_count=len(found.alone),
        group_count=len(found.groups),
        alone=[ShownAlone(_member(asked, one.member, words), one.why, round(100 * one.nearest)) for one in alone],
        groups=[_group(asked, one, words) for one in shown],
        slice=slice,
    )
    command = f"dawn status {shlex.quote(batch)}"
    return Page("batch_groups.html", f"Groups of {batch}", data, command, follows=f"batch:{batch}", tab="Groups")


def _words(site: Site, members: Iterable[Member]) -> dict[str, str]:
    """By run, the last word of a person on its very patch."""

    def said(one: Member) -> str:
        last = max(reviews_of(site, one.run), key=lambda review: review.n, default=None)
        return last.decision if last is not None and last.patch == one.patch else ""

    kept = list(members)
    with ThreadPoolExecutor(READERS) as pool:
        return dict(zip([one.run for one in kept], pool.map(said, kept), strict=True))


def _group(asked: Asked, group: Group, words: Mapping[str, str]) -> ShownGroup:
    needed = [_member(asked, one, words) for one in group.to_open]
    heard = [words[one.run] for one in group.members]
    return ShownGroup(
        id=group.id,
        count=len(group.members),
        identical=sum(not one.differs for one in group.members),
        representative=_member(asked, group.representative, words),
        variants=[
            ShownVariant(
                form=one.form[:16],
                similarity=one.similarity,
                count=len(one.members),
                sample=_member(asked, one.sample, words),
                others=[_member(asked, other, words) for other in one.members[1 : MEMBERS_SHOWN + 1]],
                more=max(0, len(one.members) - 1 - MEMBERS_SHOWN),
            )
            for one in group.variants
        ],
        to_open=[one for one in needed if not one.opened],
        needed=len(needed),
        named=[f"{one.run} {one.patch}" for one in group.members] if all(one.opened for one in needed) else [],
        approved=heard.count("approved"),
        rejected=heard.count("rejected"),
    )


def _member(asked: Asked, member: Member, words: Mapping[str, str]) -> ShownMember:
    opened = groups.opened_as(member.run, member.patch) in asked.opened
    return ShownMember(member, opened, address("/runs/{run}/diff", run=member.run), words[member.run])


WAYS: Final = (Way("/batches/{batch}/groups", overview),)
