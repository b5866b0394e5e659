"""Owns making an environment: the repository fetched, `setup` run, level 0 and baseline stored, once for a key.

Refuses to read the repository itself: git, unpacking and setup run in containers. What fails stores nothing.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from worker import base_image, checks, environments, handed, toolbox
from worker.base_image import SAID_BYTES, SAID_LINES, TAG_DIGITS, Asked
from worker.base_image import SETUP_IMAGE as SETUP_IMAGE
from worker.contract.cancel import Cancel
from worker.contract.environment import Baseline, PreparedEnvironment
from worker.contract.errors import EnvironmentFault, InvalidFault, NotFoundFault
from worker.contract.events import Instruction, canonical, digest
from worker.contract.redact import Redactor
from worker.contract.task import Repo, Task
from worker.environments import Prepared
from worker.sandbox.protocol import Owner, Result, Role, Sandbox, Workspace, WorkspaceTooLarge
from worker.store import keys
from worker.store.archive import Archive
from worker.store.content import parsed, put_content
from worker.toolbox import Cancelled, ToolboxProblem
from worker.tools.output import clip_start, lines
from worker.tools.shell import shell

RECIPE: Final = 3
"""Raise it when our programs lay an environment down, or tell of it, differently: every key changes with it."""
REPO_SECRET: Final = "DAWN_REPO_SECRET"
RESOLVE_TIMEOUT_S: Final = 120
CHUNK_BYTES: Final = 2**20
TOOLBOX: Final = "toolbox"
"""The image of a workspace that nothing runs in but our own programs."""


def prepare(
    task: Task,
    *,
    archive: Archive,
    sandbox: Sandbox,
    owner: Owner,
    redactor: Redactor,
    secrets: Mapping[str, str],
    cancel: Cancel,
    baseline: bool = True,
    store_images: bool = False,
) -> Prepared:
    """The task's environment, from the archive where its key is known there, else made and stored.

    owner: of the attempt; its role is replaced. secrets: NAME -> value; the one that the repository names goes to
    the containers that fetch, on their stream, those named for setup to setup's, and none anywhere else. baseline:
    also run the checks on the start.
    store_images: keep an image that no registry has in the archive, for other hosts.
    Raises EnvironmentFault with a reason of the closed set, Cancelled when it was stopped.
    """
    secret = repo_secret(task.repo, secrets)
    return _Preparation(task, archive, sandbox, owner, redactor, secret, secrets, cancel, store_images).run(baseline)


def set_up(
    task: Task,
    workspace: Workspace,
    tag: str,
    *,
    redactor: Redactor,
    cancel: Cancel,
    secrets: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Run the setup script as root with network; the id of the image its file system became. secrets: it is handed.

    Raises EnvironmentFault("setup") with the end of what it wrote, or with where it left a secret; Cancelled."""
    command = shell(task.environment.setup or "", task.repo.path, task.limits.setup_timeout_s)
    command = replace(command, root=True, network=True, secret_files=secrets)

    def judge(root: Iterable[bytes]) -> None:
        handed.prove_gone(secrets, root, workspace, task.limits, redactor=redactor, cancel=cancel)

    try:
        result, image = workspace.commit_image(command, tag=tag, cancel=cancel, judge=judge if secrets else None)
    except InvalidFault as fault:
        raise EnvironmentFault("setup", fault.message, hint=fault.hint) from fault
    try:
        if result.cancelled:
            raise Cancelled(cancel.reason)
        if not image:
            raise EnvironmentFault("setup", f"setup {_ending(result)}: {_said(result, redactor)}")
    finally:
        result.output.path.unlink(missing_ok=True)
    return image


@dataclass(frozen=True)
class _Built:
    """A workspace that is ready to be stored. fetched: the answer of repository.py. image: what calls run in; name:
    what the engine calls it, or what setup ran in."""

    fetched: Mapping[str, Any]
    name: str
    image: str
    setup_tag: str | None = None


@dataclass(frozen=True)
class _Preparation:
    task: Task
    archive: Archive
    sandbox: Sandbox
    owner: Owner
    redactor: Redactor
    secret: Mapping[str, str]
    secrets: Mapping[str, str]
    cancel: Cancel
    store_images: bool

    def run(self, with_baseline: bool) -> Prepared:
        began = time.monotonic()
        asked = base_image.asked(self.task, self.sandbox, redactor=self.redactor, cancel=self.cancel)
        wanted = self._wanted(asked.id or TOOLBOX)
        key = self._key(asked.key, wanted)
        found = environments.find(self.archive, key)
        image = environments.ready_image(self.archive, self.sandbox, found[0]) if found else None
        reused = image is not None
        if image is None:
            try:
                with self._made(key, asked, wanted) as (workspace, built):
                    # Known, but its image is gone from this engine: then only the image is new.
                    found = found or self._store(workspace, key, built)
            except WorkspaceTooLarge as error:
                reason = "setup" if self.task.environment.setup else "repository"
                raise EnvironmentFault(reason, f"the prepared workspace is too large: {error}") from error
            image = built.image
        assert found is not None, "known, or just stored"
        chosen = found[0].image_name if asked.name is None else None
        prepared = Prepared(*found, image, reused=reused, chosen=chosen)
        if with_baseline and self.task.checks and self.task.baseline != "off":
            measured, name = self._baseline(prepared)
            self._accept(measured)
            prepared = replace(prepared, baseline=measured, baseline_digest=name)
        return replace(prepared, duration_ms=round((time.monotonic() - began) * 1000))

    def _wanted(self, image_id: str) -> dict[str, Any]:
        """The part of the fetch request that decides what comes: a packed source is what it is, of a URL the ref is
        resolved first, because it moves, unless a lock did that."""
        repo = self.task.repo
        if repo.url is None:
            return {"kind": repo.source_kind, "source": repo.source, "ref": repo.ref}
        if repo.commit is not None:
            return {"kind": "url", "url": repo.url, "commit": repo.commit, "branch": repo.branch}
        request = {"op": "resolve", "url": repo.url, "ref": repo.ref}
        with self._workspace("prepare", image_id) as workspace:
            resolved = self._ask(workspace, request, RESOLVE_TIMEOUT_S)
        return {"kind": "url", "url": repo.url, **resolved}

    def _key(self, image: Any, wanted: Mapping[str, Any]) -> str:
        parts = {
            "recipe": RECIPE,
            "fetch": wanted,
            "path": self.task.repo.path,
            "image": image,
            "setup": self.task.environment.setup,
            "submodules": "recursive",
            "lfs": "contents" if self.task.environment.lfs else "pointers",
        }
        if names := sorted(set(self.task.environment.setup_secrets)):
            parts["setup_secrets"] = names  # and not their values: they come and go, and setup is the same
        if words := sorted(set(self.task.environment.cache_keys)):
            parts["cache_keys"] = words
        return digest(canonical(parts))

    @contextmanager
    def _made(self, key: str, asked: Asked, wanted: Mapping[str, Any]) -> Iterator[tuple[Workspace, _Built]]:
        """A workspace as every run with this key finds it."""
        setup = self.task.environment.setup
        secrets = handed.values(self.task.environment.setup_secrets, "setup", self.secrets)
        image = None if asked.name is None else self._image(asked)
        with self._workspace("prepare", image or TOOLBOX) as workspace:
            fetched = self._fetch(workspace, wanted)
            name = asked.name or base_image.chosen(workspace.get("tracked"), self.task.repo.path)
            image = image or self.sandbox.image_id(name)
            if setup is None:
                workspace.own()
                yield workspace, _Built(fetched, name, image)
            elif asked.name is not None:
                yield workspace, self._set_up(workspace, key, _Built(fetched, name, image), secrets)
            else:
                level_0 = workspace.snapshot(full=True)
                assert level_0.path is not None, "a full snapshot has a file"
                with self._workspace("prepare", image) as other, level_0.path.open("rb") as tar:
                    other.restore([iter(lambda: tar.read(CHUNK_BYTES), b"")])
                    yield other, self._set_up(other, key, _Built(fetched, name, image), secrets)

    def _image(self, asked: Asked) -> str:
        return base_image.ready(
            asked,
            self.task,
            archive=self.archive,
            sandbox=self.sandbox,
            redactor=self.redactor,
            cancel=self.cancel,
            store=self.store_images,
        )

    def _fetch(self, workspace: Workspace, wanted: Mapping[str, Any]) -> dict[str, Any]:
        repo, limits = self.task.repo, self.task.limits
        if repo.source is not None:
            workspace.put("source", self._source(repo.source))
        caps = {"bytes": limits.workspace_bytes, "files": limits.workspace_files}
        request = {"op": "fetch", **wanted, "path": repo.path, "caps": caps, "lfs": self.task.environment.lfs}
        return self._ask(workspace, request, limits.setup_timeout_s)

    def _set_up(self, workspace: Workspace, key: str, before: _Built, secrets: Mapping[str, str]) -> _Built:
        """As setup leaves it. before: what it was run on."""
        tag = f"{SETUP_IMAGE}:{key[:TAG_DIGITS]}"
        image = set_up(self.task, workspace, tag, redactor=self.redactor, cancel=self.cancel, secrets=secrets)
        request = {"op": "prove", "print": before.fetched["print"]}
        self._ask(workspace, request, self.task.limits.setup_timeout_s, fetches=False)
        workspace.own()
        # What setup left in the work tree is not the agent's doing: the patch is told apart from it by this.
        workspace.put("prepared", [json.dumps(workspace.tree()).encode()])
        return replace(before, image=image, setup_tag=tag)

    def _source(self, name: str) -> Iterator[bytes]:
        """The packed source. Raises EnvironmentFault("repository") when it is not in the archive."""
        try:
            yield from self.archive.chunks(keys.source(name))
        except NotFoundFault as fault:
            raise EnvironmentFault("repository", f"the packed source {name[:12]} is not in the archive") from fault

    def _store(self, workspace: Workspace, key: str, built: _Built) -> tuple[PreparedEnvironment, str]:
        """Upload level 0, then env.json; whoever made that first is who everybody takes it from."""
        level_0 = workspace.snapshot(full=True)
        assert level_0.path is not None, "a full snapshot has a file"
        environment = PreparedEnvironment(
            key=key,
            commit=built.fetched["commit"],
            branch=built.fetched["branch"],
            image_name=built.name,
            image=built.image,
            setup_tag=built.setup_tag,
            stored_image=environments.store_image(self.archive, self.sandbox, built.image)
            if self.store_images
            else None,
            snapshot=self._put_blob(key, level_0.path),
            snapshot_bytes=level_0.bytes,
            listing=level_0.listing,
            tree=level_0.tree,
            tracked=built.fetched["tracked"],
            notes=tuple(self.redactor.text(note) for note in built.fetched["notes"]),
            instructions=tuple(
                Instruction(path=self.redactor.text(path), text=self.redactor.text(text))
                for path, text in built.fetched["instructions"]
            ),
        )
        level_0.path.unlink()
        self.archive.create(keys.environment(key), canonical(environment.model_dump(mode="json")))
        found = environments.find(self.archive, key)
        assert found is not None, "created by us or by the winner"
        return found

    def _baseline(self, prepared: Prepared) -> tuple[Baseline, str]:
        """The checks on the untouched start, measured once for all runs with these checks and limits.

        Raises EnvironmentFault("check") for a check whose command is not there."""
        key = keys.baseline(prepared.key, environments.checks_digest(self.task))
        try:
            data = self.archive.get(key)
        except NotFoundFault:
            with self._workspace("baseline", prepared.image) as workspace:
                workspace.restore(environments.restore_chain(self.archive, prepared))
                try:
                    ran = checks.run_checks(
                        self.task,
                        self.task.checks,
                        workspace,
                        put_blob=lambda path: self._put_blob(prepared.key, path),
                        redactor=self.redactor,
                        cancel=self.cancel,
                    )
                except InvalidFault as fault:
                    raise EnvironmentFault("check", fault.message, hint=fault.hint) from fault
            results = tuple(one.result for one in ran)
            for result in results:
                if result.status == "not_found":
                    raise EnvironmentFault(
                        "check",
                        f"check {result.name!r} ended with {result.exit_code} on the untouched start: {result.tail}",
                        hint=f"its command is not in {_told(prepared)}: install it in setup, or name another image",
                    ) from None
            tests = {one.result.name: dict(one.tests) for one in ran if one.tests is not None}
            measured = Baseline(v=2 if tests else 1, checks=results, tests=tests)
            self.archive.create(key, canonical(measured.model_dump(mode="json")))
            data = self.archive.get(key)
        return parsed(Baseline, data, key), digest(data)

    def _accept(self, measured: Baseline) -> None:
        """Raises EnvironmentFault("check") where the task requires a green start and one check is not."""
        red = [result for result in measured.checks if result.status != "green"]
        if red and self.task.baseline == "required":
            told = "; ".join(f"{result.name!r} is {result.status}" for result in red)
            raise EnvironmentFault(
                "check",
                f"the untouched start is not green: check {told}",
                hint="mend it there first, or ask with `baseline: record`, which lets it be red",
            )

    def _put_blob(self, key: str, data: Path) -> str:
        return put_content(self.archive, lambda name: keys.environment_blob(key, name), data)

    def _ask(
        self, workspace: Workspace, request: Mapping[str, Any], timeout_s: float, *, fetches: bool = True
    ) -> dict[str, Any]:
        """The answer of repository.py. fetches: it needs the network, and the secret where there is one."""
        try:
            return toolbox.ask(
                workspace,
                "repository",
                request,
                timeout_s=timeout_s,
                cancel=self.cancel,
                network=fetches,
                secrets=self.secret if fetches else {},
            )
        except ToolboxProblem as problem:
            reason = problem.kind if problem.kind != "unfinished" else "repository" if fetches else "setup"
            message = self.redactor.text(problem.message)
            raise EnvironmentFault(reason, message, hint=self.redactor.text(problem.hint)) from None

    def _workspace(self, role: Role, image: str) -> AbstractContextManager[Workspace]:
        return self.sandbox.workspace(replace(self.owner, role=role), image, self.task.limits)


def _said(result: Result, redactor: Redactor) -> str:
    """The end of what setup wrote, masked."""
    with result.output.path.open("rb") as stream:
        text = redactor.text("\n".join(deque(lines(stream), maxlen=SAID_LINES)))
    return clip_start(text, SAID_BYTES).strip() or "it wrote nothing"


def _ending(result: Result) -> str:
    if result.exit_code is not None:
        return f"ended with exit code {result.exit_code}"
    return result.detail or result.status


def repo_secret(repo: Repo, secrets: Mapping[str, str]) -> dict[str, str]:
    """What opens the repository, as its containers know it. secrets: NAME -> value. Raises
    EnvironmentFault("repository") where the one that it names has no value."""
    name = repo.secret
    if name is None:
        return {}
    if not secrets.get(name):
        raise EnvironmentFault(
            "repository",
            f"the secret {name} of the repository has no value here",
            hint=f"set DAWN_SECRET_{name} in the worker's environment",
        )
    return {REPO_SECRET: secrets[name]}


def _told(prepared: Prepared) -> str:
    """The image, with its name where a person left the choice to us."""
    return "the image" if prepared.chosen is None else f"{prepared.chosen}, which `image: auto` chose"
