"""Owns reading the targets of an earlier batch out of an archive, for a manifest that names it. Refuses to judge
them: what became of each is what its standing run says.
"""

from __future__ import annotations

from scheduler.manifests.sources import Previous, Target
from scheduler.manifests.targets import Origin
from scheduler.runs import View, find_newest, runs_in, standing, views
from worker.contract.errors import IntegrityFault
from worker.contract.task import Repo
from worker.store.archive import Archive


def previous_targets(archive: Archive, asked: Previous) -> list[tuple[Target, Origin | None]]:
    """Those of its batch that ended as asked, in its order, with the ids and secrets they had. Raises NotFoundFault
    and ConflictFault when there is no one such batch, IntegrityFault when a run of it cannot be read, StoreFault."""
    seen = views(archive, runs_in(archive, find_newest(archive, asked.batch, kinds=("batch",))))
    for run, told in seen.damaged.items():
        raise IntegrityFault(told, hint=f"look: dawn verify {run}")
    return [_target(one) for one in standing(seen.found) if _words(one) & {*asked.where}]


def _words(view: View) -> set[str]:
    """All of `Where` that are true of it."""
    sealed = view.run.sealed
    if sealed is None:
        return {"all", "not_reached"}
    return {"all", sealed.outcome, sealed.verdict or ""} | ({"not_reached"} if sealed.outcome == "skipped" else set())


def _target(view: View) -> tuple[Target, Origin | None]:
    task = view.task
    repo = task.repo
    target = Target(
        repo=repo.url or repo.label or "repository",
        ref=repo.ref,
        path=repo.path,
        # One that was built of a Dockerfile is the manifest's own to name again.
        image=task.environment.image if task.environment.dockerfile is None else None,
        id=task.target,
        vars=task.vars,
        secret=repo.secret,
    )
    return target, _origin(repo)


def _origin(repo: Repo) -> Origin:
    return Origin(label=repo.label, url=repo.url, source=repo.source, kind=repo.source_kind)
