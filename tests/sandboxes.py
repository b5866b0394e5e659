"""Owns the container engine that tests share and small helpers around it. Refuses to leave anything behind: what
is still there when a session ends fails it."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from worker.contract.cancel import Cancel
from worker.contract.settings import Settings
from worker.contract.task import Limits
from worker.sandbox import images
from worker.sandbox.protocol import Command, Owner, Result, Role
from worker.sandbox.sandbox import DockerSandbox
from worker.sandbox.workspace import DockerWorkspace

ARCHIVE = f"test-{secrets.token_hex(4)}"
MIB = 2**20
SMALL = Limits(
    memory_bytes=96 * MIB,
    pids=64,
    tmpfs_bytes=16 * MIB,
    tmpfs_inodes=500,
    workspace_bytes=64 * MIB,
    workspace_files=2_000,
    snapshot_bytes=32 * MIB,
    output_kept_bytes=MIB,
)


def owner(run: str = "run", role: Role = "agent", archive: str = ARCHIVE) -> Owner:
    """An owner of this test session."""
    return Owner(archive, f"{run}-{secrets.token_hex(3)}", 1, role)


class Shell:
    """Runs scripts in a workspace and reads what they wrote."""

    def __init__(self, workspace: DockerWorkspace) -> None:
        self.workspace = workspace
        self.last: Result

    def run(self, script: str | bytes, *, cancel: Cancel | None = None, **fields: Any) -> Result:
        payload = script if isinstance(script, bytes) else script.encode()
        fields.setdefault("timeout_s", 60)
        self.last = self.workspace.run(Command(payload, **fields), cancel=cancel or Cancel())
        return self.last

    def bytes(self, script: str | bytes, **fields: Any) -> bytes:
        """The kept output of a script."""
        return self.run(script, **fields).output.path.read_bytes()

    def text(self, script: str | bytes, **fields: Any) -> str:
        return self.bytes(script, **fields).decode("utf-8", "replace")


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerSandbox]:
    """The engine, with our images. Everything made on it must be gone when the session ends."""
    images.ensure(["toolbox", "python"])
    sandbox = DockerSandbox(Settings(state_dir=tmp_path_factory.mktemp("state")))
    yield sandbox
    left = sandbox.owned(ARCHIVE)
    for _, resource in left:
        sandbox.remove(resource)
    sandbox.close()
    assert not left


@pytest.fixture(scope="module")
def shell(sandbox: DockerSandbox) -> Iterator[Shell]:
    """Scripts in the python image, all of a module on one workspace with small limits."""
    with sandbox.workspace(owner(), "python", SMALL) as workspace:
        yield Shell(workspace)


def containers(sandbox: DockerSandbox, owner: Owner) -> list[str]:
    """Ids of the owner's containers that exist now, in any state."""
    return [
        name.removeprefix("container:")
        for found, name in sandbox.owned(owner.archive)
        if found == owner and name.startswith("container:")
    ]


def parked(workspace: DockerWorkspace) -> list[str]:
    """Ids of the containers that wait for a call of this workspace, once they do."""
    return [future.result().container for future in workspace._pool._parked.values()]


@contextmanager
def in_background(act: Callable[[], Any]) -> Iterator[list[Any]]:
    """Run act in a thread meanwhile; the list holds what it returned once the block is left."""
    returned: list[Any] = []
    thread = threading.Thread(target=lambda: returned.append(act()))
    thread.start()
    try:
        yield returned
    finally:
        thread.join(60)
        assert not thread.is_alive()
