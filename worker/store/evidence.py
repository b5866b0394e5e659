"""Owns what a journal's events name outside the journal, and checking it. Refuses to judge the chain itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from worker.contract.environment import PreparedEnvironment
from worker.contract.errors import IntegrityFault, NotFoundFault
from worker.contract.events import CheckResult, Event, FedBack, Observed, Prepared, Sealed, Verdict, digest
from worker.store import keys
from worker.store.archive import Archive
from worker.store.content import content_chunks, get_content


def evidence_problems(archive: Archive, run: str, events: Iterable[Event]) -> list[str]:
    """One line for each object that an event names and that is missing or does not have its digest.

    Reads everything once, in bounded memory. Raises StoreFault only.
    """
    environment = ""
    found: dict[str, None] = {}
    for event in events:
        if isinstance(event, Prepared):
            environment = event.environment_key
            found |= dict.fromkeys(_environment_problems(archive, event))
        for key, name in _named(run, environment, event):
            try:
                for _ in content_chunks(archive, key, name):
                    pass
            except (IntegrityFault, NotFoundFault) as fault:
                found[fault.message] = None
    return list(found)


def _named(run: str, environment: str, event: Event) -> Iterator[tuple[str, str]]:
    """Key and digest of what an event names; a baseline's blobs lie beside its environment."""

    def of_checks(checks: Iterable[CheckResult]) -> Iterator[str]:
        return (check.blob for check in checks if check.blob is not None)

    match event:
        case Observed(observation=observation, snapshot=snapshot):
            if observation.blob is not None:
                yield keys.blob(run, observation.blob), observation.blob
            if snapshot is not None and snapshot.object is not None:
                yield keys.snapshot(run, snapshot.object), snapshot.object
        case FedBack(checks=checks):
            yield from ((keys.blob(run, name), name) for name in of_checks(checks))
        case Verdict(checks=checks, baseline=baseline, patch=patch):
            yield from ((keys.blob(run, name), name) for name in of_checks(checks))
            if patch.digest is not None:
                yield keys.blob(run, patch.digest), patch.digest
            yield from ((keys.environment_blob(environment, name), name) for name in of_checks(baseline))
        case Sealed(artifacts=artifacts):
            yield from ((keys.blob(run, name), name) for name in artifacts.values())
        case _:
            pass


def _environment_problems(archive: Archive, event: Prepared) -> Iterator[str]:
    """Of env.json, its level 0 and the baseline: a baseline's file is named by its checks, so any may be the one."""
    key = keys.environment(event.environment_key)
    try:
        stored = PreparedEnvironment.model_validate_json(get_content(archive, key, event.environment))
        for _ in content_chunks(archive, keys.environment_blob(stored.key, stored.snapshot), stored.snapshot):
            pass
    except (IntegrityFault, NotFoundFault) as fault:
        yield fault.message
    folder = keys.baseline_folder(event.environment_key)
    if event.baseline is not None and not any(
        digest(archive.get(one)) == event.baseline for one in archive.list(folder)
    ):
        yield f"{folder} has no baseline with the digest {event.baseline}"
