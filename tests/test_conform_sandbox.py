"""Owns what an attempt may expect of a sandbox, over a real engine and the double of the histories. Refuses what only
a real one has: modes, links, limits, isolation (test_sandbox_*.py)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from double_sandbox import MemorySandbox
from sandboxes import SMALL, owner

from worker.contract.cancel import Cancel
from worker.contract.errors import EnvironmentFault, KeeperFault
from worker.sandbox.protocol import Command, Owner, Result, Sandbox, Workspace

PLACES = [pytest.param("docker", marks=pytest.mark.docker), "memory"]


@pytest.fixture(params=PLACES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Sandbox:
    """An engine of each kind that holds the image `python`."""
    if request.param == "docker":
        real: Sandbox = request.getfixturevalue("sandbox")
        return real
    return MemorySandbox("double", tmp_path, {"python": "sha256:python"})


@pytest.fixture
def mine() -> Owner:
    return owner()


@pytest.fixture
def workspace(engine: Sandbox, mine: Owner) -> Iterator[Workspace]:
    with engine.workspace(mine, "python", SMALL) as opened:
        yield opened


def run(workspace: Workspace, script: str, cancel: Cancel | None = None, timeout_s: float = 60) -> Result:
    return workspace.run(Command(script.encode(), timeout_s=timeout_s), cancel=cancel or Cancel())


def said(workspace: Workspace, script: str) -> str:
    return run(workspace, script).output.path.read_text()


def stored(path: Path | None) -> list[bytes]:
    assert path is not None
    return [path.read_bytes()]


@pytest.mark.parametrize(
    ("script", "code", "output"),
    [
        ("echo one two", 0, "one two\n"),
        ("echo a > f; echo b >> f; cat f", 0, "a\nb\n"),
        ("echo a > f; mv f g && cat g", 0, "a\n"),
        ("test -f nothing && echo no", 1, ""),
        ("echo yes > f; grep -q yes f && echo found; grep -q no f", 1, "found\n"),
        ("false; echo on", 0, "on\n"),
        ("echo x > f; rm f; test -f f", 1, ""),
        ("echo before; exit 3; echo after", 3, "before\n"),
    ],
)
def test_a_script_runs(workspace: Workspace, script: str, code: int, output: str) -> None:
    """The double's part of sh means what sh means."""
    result = run(workspace, script)
    assert (result.status, result.exit_code, result.output.path.read_text()) == ("ok", code, output)
    assert result.output.total_bytes == result.output.kept_bytes == len(output)


def test_a_missing_command_is_127(workspace: Workspace) -> None:
    """A program that is not there is the command's own failure."""
    result = run(workspace, "no-such-program")
    assert (result.status, result.exit_code) == ("ok", 127)


def test_a_call_that_takes_too_long_is_stopped(workspace: Workspace) -> None:
    """It has no exit code, and what it did before stays until somebody rolls back."""
    result = run(workspace, "echo begun > f; sleep 30; echo ended > f", timeout_s=1)
    assert (result.status, result.exit_code, result.cancelled) == ("timeout", None, False)
    assert said(workspace, "cat f") == "begun\n"


def test_a_cancelled_call_ends_at_once(workspace: Workspace) -> None:
    """The switch ends a call in flight, and the result says that it was us."""
    cancel = Cancel()
    threading.Timer(0.2, cancel.set, ["cancel"]).start()
    result = run(workspace, "sleep 50", cancel)
    assert (result.status, result.exit_code, result.cancelled) == ("interrupted", None, True)


def test_a_reader_changes_nothing(workspace: Workspace) -> None:
    """With writes=False the workspace stays as it was."""
    workspace.run(Command(b"echo x > f", writes=False), cancel=Cancel())
    assert run(workspace, "test -f f").exit_code == 1


def test_a_file_tool_writes_where_a_shell_reads(workspace: Workspace) -> None:
    """The toolbox works on the same files."""
    request = {"tool": "write_file", "folder": "", "arguments": {"path": "f", "content": "hello\n"}}
    command = Command(json.dumps(request).encode(), kind="toolbox", program="files")
    assert workspace.run(command, cancel=Cancel()).exit_code == 0
    assert said(workspace, "cat f") == "hello\n"


def test_a_snapshot_holds_the_changes(workspace: Workspace) -> None:
    """The first is full; the next names what changed; without a change there is nothing to store."""
    run(workspace, "echo one > a; echo two > b")
    first = workspace.snapshot(full=True)
    assert first.full
    run(workspace, "rm a; echo three > c")
    second = workspace.snapshot()
    assert not second.full
    assert sorted(second.files) == ["a", "c"]
    assert second.tree != first.tree
    third = workspace.snapshot()
    assert (third.path, third.bytes, third.tree, third.listing) == (None, 0, second.tree, second.listing)


def test_a_chain_restores_elsewhere(engine: Sandbox, workspace: Workspace) -> None:
    """Full one and changes laid down in another workspace give the same digests, and the next snapshot is small."""
    run(workspace, "echo one > a; echo two > b")
    chain = stored(workspace.snapshot(full=True).path)
    run(workspace, "rm a; echo three >> b")
    last = workspace.snapshot()
    chain += stored(last.path)
    with engine.workspace(replace(owner(), claim=2), "python", SMALL) as other:
        found = other.restore([[part] for part in chain])
        assert (found.listing, found.tree, found.path) == (last.listing, last.tree, None)
        assert said(other, "cat b") == "two\nthree\n"
        assert run(other, "test -f a").exit_code == 1
        assert other.snapshot().path is None


def test_a_restore_rolls_back(workspace: Workspace) -> None:
    """What a call did after the last snapshot is gone."""
    run(workspace, "echo one > a")
    chain = stored(workspace.snapshot(full=True).path)
    run(workspace, "echo half >> a; echo half > b")
    workspace.restore([chain])
    assert said(workspace, "cat a") == "one\n"
    assert run(workspace, "test -f b").exit_code == 1


def test_base_files_come_and_go_from_outside(workspace: Workspace) -> None:
    """What is put into base/ is read back."""
    workspace.put("note", [b"one ", b"two"])
    assert b"".join(workspace.get("note")) == b"one two"


def test_the_tree_names_the_files(workspace: Workspace) -> None:
    """Paths relative to the repository, with their digests."""
    run(workspace, "echo one > a")
    assert [(path, mode) for path, mode, _ in workspace.tree()] == [("a", "100644")]


def test_what_is_open_is_owned_and_then_gone(engine: Sandbox, mine: Owner) -> None:
    """Every container and volume is found by its owner, and none is left behind."""
    with engine.workspace(mine, "python", SMALL):
        kinds = {name.partition(":")[0] for found, name in engine.owned(mine.archive) if found == mine}
        assert kinds == {"container", "volume"}
    assert [name for found, name in engine.owned(mine.archive) if found == mine] == []


def test_a_workspace_whose_keeper_is_removed_is_of_no_use(engine: Sandbox, mine: Owner) -> None:
    """After somebody else removed what an attempt owned, its next act is a fault of the keeper."""
    with engine.workspace(mine, "python", SMALL) as workspace:
        for found, name in engine.owned(mine.archive):
            if found == mine and name.startswith("container:"):
                engine.remove(name)
                engine.remove(name)
        with pytest.raises(KeeperFault):
            workspace.snapshot()


def test_images(engine: Sandbox) -> None:
    """An image goes by its name and its id; one that is not there is the environment's fault."""
    assert engine.has_image("python")
    assert engine.has_image(engine.image_id("python"))
    assert not engine.has_image("no/such:image")
    with pytest.raises(EnvironmentFault) as caught:
        engine.image_id("no/such:image")
    assert caught.value.reason == "image"
