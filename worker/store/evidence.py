"""Owns what a journal's events name outside the journal, and checking it. Refuses to judge the chain itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from worker.contract.environment import PreparedEnvironment
from worker.contract.errors import IntegrityFault, NotFoundFault
from worker.contract.events import (
    CheckResult,
    Delegated,
    Event,
    FedBack,
    Observed,
    Prepared,
    Record,
    Sealed,
    SnapshotRef,
    Submitted,
    Verdict,
    digest,
)
from worker.store import keys
from worker.store.archive import Archive
from worker.store.content import content_chunks, get_content
from worker.store.lineage import ancestors


@dataclass
class Tally:
    """What was looked at, over one run or several. tails: run -> number of its last segment, hash of its last line.
    said: key of an object -> what is wrong with it, "" for nothing: what runs share is read once."""

    segments: int = 0
    records: int = 0
    bytes: int = 0
    tails: dict[str, tuple[int, str]] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)


def evidence_problems(archive: Archive, run: str, records: Sequence[Record], tally: Tally) -> list[str]:
    """One line for each object that an event names and that is missing or does not have its digest.

    Reads everything once, in bounded memory. Raises StoreFault only.
    """
    environment = ""
    found: dict[str, None] = {}
    origins = [run]
    for record in records:
        event = record.event
        if isinstance(event, Submitted) and event.parent is not None:
            key = keys.segment(event.parent, event.parent_seq or 0)
            found |= dict.fromkeys(_line_problems(archive, key, event.parent_hash, "this fork"))
            # What was copied names objects of the run whose event it was: a parent, or the parent's parent.
            origins = _ancestors(archive, run, found) or [event.parent]
        if isinstance(event, Prepared):
            environment = event.environment_key
            found |= dict.fromkeys(_environment_problems(archive, event, tally))
        if isinstance(event, Delegated):
            key = keys.segment(keys.delegate(run, event.call_id), event.seq)
            found |= dict.fromkeys(_line_problems(archive, key, event.hash, "its run"))
        if isinstance(event, Sealed) and event.reused and archive.size(keys.task(event.reused)) is None:
            found[f"run {event.reused}, whose work run {run} reused, is gone"] = None
        holders = origins if record.seq == 0 else [run]
        for places in zip(*(named(holder, environment, event) for holder in holders), strict=True):
            said = [_object_problem(archive, key, name, tally) for key, name in places]
            if all(said):
                found[said[0]] = None
    return list(found)


def _ancestors(archive: Archive, run: str, found: dict[str, None]) -> list[str]:
    try:
        return ancestors(archive, run)
    except IntegrityFault as fault:
        found[fault.message] = None
        return []


def named(run: str, environment: str, event: Event) -> Iterator[tuple[str, str]]:
    """Key and digest of what an event of that run names; a baseline's blobs lie beside its environment."""

    def of_checks(checks: Iterable[CheckResult]) -> Iterator[str]:
        return (check.blob for check in checks if check.blob is not None)

    def of_snapshot(snapshot: SnapshotRef | None) -> Iterator[tuple[str, str]]:
        if snapshot is not None and snapshot.object is not None:
            yield keys.snapshot(run, snapshot.object), snapshot.object

    match event:
        case Prepared(snapshot=snapshot):
            yield from of_snapshot(snapshot)
        case Observed(observation=observation, snapshot=snapshot):
            if observation.blob is not None:
                yield keys.blob(run, observation.blob), observation.blob
            yield from of_snapshot(snapshot)
        case FedBack(checks=checks):
            yield from ((keys.blob(run, name), name) for name in of_checks(checks))
        case Verdict(checks=checks, baseline=baseline, patch=patch, matrix=matrix):
            yield from ((keys.blob(run, name), name) for name in of_checks(checks))
            if patch.digest is not None:
                yield keys.blob(run, patch.digest), patch.digest
            if matrix is not None:
                yield keys.blob(run, matrix), matrix
            yield from ((keys.environment_blob(environment, name), name) for name in of_checks(baseline))
        case Sealed(artifacts=artifacts):
            yield from ((keys.blob(run, name), name) for name in artifacts.values())
        case _:
            pass


def _object_problem(archive: Archive, key: str, name: str, tally: Tally) -> str:
    """What is wrong with an object named by its digest, "" for nothing."""
    if key not in tally.said:
        try:
            for chunk in content_chunks(archive, key, name):
                tally.bytes += len(chunk)
            tally.said[key] = ""
        except (IntegrityFault, NotFoundFault) as fault:
            tally.said[key] = fault.message
    return tally.said[key]


def _line_problems(archive: Archive, key: str, line_hash: str | None, who: str) -> Iterator[str]:
    """Whether a segment of another journal holds a line that somebody names."""
    try:
        lines = archive.get(key).split(b"\n")
    except NotFoundFault as fault:
        yield fault.message
        return
    if not any(digest(line) == line_hash for line in lines):
        yield f"{key} does not hold the line that {who} names"


def _environment_problems(archive: Archive, event: Prepared, tally: Tally) -> Iterator[str]:
    """Of env.json, its level 0, its image and the baseline: a baseline's file is named by its checks, so any may be
    the one."""
    key = keys.environment(event.environment_key)
    try:
        stored = PreparedEnvironment.model_validate_json(get_content(archive, key, event.environment))
    except (IntegrityFault, NotFoundFault) as fault:
        yield fault.message
    else:
        parts = [(keys.environment_blob(stored.key, stored.snapshot), stored.snapshot)]
        if stored.stored_image is not None:
            parts.append((keys.image(stored.image, stored.stored_image), stored.stored_image))
        yield from (said for part in parts if (said := _object_problem(archive, *part, tally)))
    folder = keys.baseline_folder(event.environment_key)
    if event.baseline is not None and not any(
        digest(archive.get(one)) == event.baseline for one in archive.list(folder)
    ):
        yield f"{folder} has no baseline with the digest {event.baseline}"
