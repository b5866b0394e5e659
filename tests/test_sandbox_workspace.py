"""A workspace from opening to closing: parked containers, the keeper, snapshots, committed images, what is left."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator

import pytest
from conftest import wait_for
from sandboxes import ARCHIVE, MIB, SMALL, Shell, containers, owner, parked

from worker.contract.cancel import Cancel
from worker.contract.errors import ConflictFault, EngineFault, EnvironmentFault, InvalidFault, KeeperFault, UsageFault
from worker.contract.settings import Settings
from worker.contract.task import Limits
from worker.sandbox import shape
from worker.sandbox.docker import Engine
from worker.sandbox.output import spool_folder
from worker.sandbox.protocol import Command, Owner, WorkspaceTooLarge
from worker.sandbox.sandbox import DockerSandbox

pytestmark = pytest.mark.docker


# Parked containers


def test_call_takes_the_parked_container_and_another_is_parked(sandbox: DockerSandbox) -> None:
    """The container of a call was made before the call, and the next one while nobody waits for it."""
    mine = owner()
    with sandbox.workspace(mine, "python", SMALL) as workspace:
        shell = Shell(workspace)
        (first,) = parked(workspace)
        assert first[:12] in shell.text("cat /proc/self/cgroup /proc/self/mountinfo | grep -o '[0-9a-f]\\{64\\}'")
        (second,) = parked(workspace)
        assert second != first
        wait_for(lambda: set(containers(sandbox, mine)) == {workspace._keeper_box.container, second})


def test_call_without_a_parked_container_makes_its_own(sandbox: DockerSandbox) -> None:
    """A kind nobody expected runs all the same."""
    with sandbox.workspace(owner(), "python", SMALL) as workspace:
        assert Shell(workspace).text("echo miss", writes=False) == "miss\n"


def test_dead_parked_container_is_replaced(sandbox: DockerSandbox) -> None:
    """One that was killed while it waited costs its call nothing but time."""
    with sandbox.workspace(owner(), "python", SMALL) as workspace:
        sandbox._engine.kill(parked(workspace)[0])
        assert Shell(workspace).text("echo alive") == "alive\n"


@pytest.mark.parametrize("fields", [{"network": True}, {"root": True}, {"secrets": {"A": "b"}}])
def test_outside_calls_are_never_parked(sandbox: DockerSandbox, fields: dict[str, object]) -> None:
    """A call with network, root or a secret has a container of its own, not in the keeper's namespace."""
    with sandbox.workspace(owner(), "python", SMALL) as workspace:
        shell = Shell(workspace)
        waiting = parked(workspace)
        inside = shell.text("readlink /proc/self/ns/net")
        (waiting,) = parked(workspace)
        outside = shell.text("readlink /proc/self/ns/net", **fields)
        assert parked(workspace) == [waiting]
        assert (inside == outside, shell.last.exit_code) == (False, 0)


@pytest.fixture
def narrow(sandbox: DockerSandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerSandbox]:
    """A sandbox that may park one container on this host."""
    narrow = DockerSandbox(Settings(state_dir=tmp_path_factory.mktemp("narrow"), parked_max=1))
    yield narrow
    narrow.close()


def test_parking_is_bounded_per_host(narrow: DockerSandbox) -> None:
    """With one place, the second workspace parks nothing until the first gives it back, and both run."""
    with narrow.workspace(owner(), "python", SMALL) as first:
        with narrow.workspace(owner(), "python", SMALL) as second:
            assert Shell(second).text("echo two") == "two\n"
            assert (len(parked(first)), len(parked(second))) == (1, 0)
        assert Shell(first).text("echo one") == "one\n"
    with narrow.workspace(owner(), "python", SMALL) as third:
        assert len(parked(third)) == 1


def test_last_wish_takes_the_place_on_a_full_host(narrow: DockerSandbox) -> None:
    """A workspace that expects another kind gives up what it parked before."""
    mine = owner()
    with narrow.workspace(mine, "python", SMALL) as workspace:
        before = parked(workspace)
        workspace.expect("toolbox", writes=False)
        (now,) = parked(workspace)
        assert now not in before
        wait_for(lambda: set(containers(narrow, mine)) == {workspace._keeper_box.container, now})


# The keeper, and what is left


def test_dead_keeper_is_a_fault_of_its_own_and_leaves_nothing(sandbox: DockerSandbox) -> None:
    """Calls, snapshots and closing meet a keeper that was killed: infra/keeper, no half-made container."""
    mine = owner()
    with pytest.raises(KeeperFault), sandbox.workspace(mine, "python", SMALL) as workspace:  # noqa: PT012
        parked(workspace)
        sandbox._engine.kill(workspace._keeper_box.container)
        with pytest.raises(KeeperFault):
            workspace.snapshot()
        Shell(workspace).run("true", writes=False)
    assert [name for found, name in sandbox.owned(mine.archive) if found == mine] == []


def test_call_in_flight_survives_its_keeper(sandbox: DockerSandbox) -> None:
    """A parked container whose keeper died runs its call; the fault comes with the snapshot."""
    with pytest.raises(KeeperFault), sandbox.workspace(owner(), "python", SMALL) as workspace:  # noqa: PT012
        parked(workspace)
        sandbox._engine.kill(workspace._keeper_box.container)
        assert Shell(workspace).text("echo on") == "on\n"
        workspace.snapshot()


def test_nothing_is_left_when_the_block_raises(sandbox: DockerSandbox) -> None:
    """Containers and volume go also when the attempt ends in an exception, which comes through unchanged."""
    mine = owner()
    with pytest.raises(ZeroDivisionError), sandbox.workspace(mine, "python", SMALL) as workspace:  # noqa: PT012
        Shell(workspace).run("sleep 300 & true")
        raise ZeroDivisionError
    assert [name for found, name in sandbox.owned(mine.archive) if found == mine] == []


def test_no_descriptor_leaks(sandbox: DockerSandbox) -> None:
    """Sockets, spools and snapshots of a workspace are closed with it."""

    def live() -> None:
        with sandbox.workspace(owner(), "python", SMALL) as workspace:
            for _ in range(5):
                Shell(workspace).run("touch x")
                workspace.snapshot()
            Shell(workspace).run("sleep 300", timeout_s=0.5)

    live()
    before = len(os.listdir("/proc/self/fd"))
    live()
    # The client keeps a few connections for whoever comes next.
    assert len(os.listdir("/proc/self/fd")) <= before + 2


DRIVER = """
import sys, threading
from pathlib import Path
from worker.contract.cancel import Cancel
from worker.contract.settings import Settings
from worker.contract.task import Limits
from worker.contract.task import Limits
from worker.sandbox.protocol import Command, Owner
from worker.sandbox.sandbox import DockerSandbox
sandbox = DockerSandbox(Settings(state_dir=Path(sys.argv[1])))
with sandbox.workspace(Owner(sys.argv[2], "killed", 7, "agent"), "python", Limits()) as workspace:
    workspace.run(Command(b"true"), cancel=Cancel())
    workspace.run(Command(b"echo $$ >~/pid; trap '' TERM HUP; sleep 300 & sleep 300"), cancel=Cancel())
"""


def test_containers_of_a_killed_driver_end_and_are_found(sandbox: DockerSandbox, tmp_path: os.PathLike[str]) -> None:
    """Keeper, parked and running container end by themselves; the labels lead a janitor to all that is left."""
    archive = f"{owner().archive}-killed"
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path), archive])

    def running() -> list[str]:
        states = sandbox._engine._api.containers(filters={"label": f"dawnfleet.archive={archive}"})
        return [state["Id"] for state in states]

    wait_for(lambda: len(running()) >= 2 and list((tmp_path / "spool").glob("*/*/1.out")))
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    wait_for(lambda: not running(), timeout_s=10)
    left = sandbox.owned(archive)
    assert {owner for owner, _ in left} == {Owner(archive, "killed", 7, "agent")}
    for _, resource in left:
        sandbox.remove(resource)
        sandbox.remove(resource)
    assert sandbox.owned(archive) == []


def test_a_stranger_s_container_and_volume_are_refused(sandbox: DockerSandbox) -> None:
    """Without our label nothing is removed, whoever asks."""
    api = sandbox._engine._api
    image = sandbox.image_id("python")
    container = api.create_container_from_config({"Image": image, "Labels": {"dawnfleet": "image"}})["Id"]
    volume = api.create_volume("stranger-volume")["Name"]
    try:
        for resource in (f"container:{container}", f"volume:{volume}"):
            with pytest.raises(ConflictFault):
                sandbox.remove(resource)
        assert api.inspect_container(container)["Id"] == container
    finally:
        api.remove_container(container)
        api.remove_volume(volume)


def test_owner_survives_the_labels() -> None:
    """What is written on a container is read back; other labels are nobody's."""
    mine = owner(role="verdict")
    assert shape.owner(shape.labels(mine)) == mine
    assert shape.owner({"dawnfleet": "1", "dawnfleet.role": "agent"}) is None


def test_listing_bears_containers_that_come_and_go(sandbox: DockerSandbox) -> None:
    """Asking what is there while containers churn never fails (F35)."""
    mine = owner()
    with sandbox.workspace(mine, "python", SMALL) as workspace:
        for _ in range(10):
            Shell(workspace).run("true")
            assert mine in {found for found, _ in sandbox.owned(mine.archive)}


def test_spool_of_a_dead_process_is_swept(tmp_path: os.PathLike[str]) -> None:
    """A folder whose process lives stays, one whose process is gone does not."""
    script = "import os,sys,pathlib; from worker.sandbox.output import spool_folder\n" \
             "with spool_folder(pathlib.Path(sys.argv[1])): os._exit(0)"  # fmt: skip
    with spool_folder(tmp_path) as mine:
        subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
        assert len(list(tmp_path.iterdir())) == 2
        with spool_folder(tmp_path) as other:
            assert set(tmp_path.iterdir()) == {mine, other}


# Files in and out, snapshots


def test_snapshot_chain_restores_elsewhere(sandbox: DockerSandbox) -> None:
    """A full snapshot and a change, laid down on a fresh volume, give the same listing and tree."""
    with sandbox.workspace(owner(), "python", SMALL) as workspace:
        shell = Shell(workspace)
        shell.run("mkdir -p dist; echo one >dist/a; echo home >~/h; chmod +x dist/a; ln -s dist/a link")
        full = workspace.snapshot(full=True)
        shell.run("rm -rf dist; mkdir build; echo two >build/b; mv build dist; sleep 300 &")
        changed = workspace.snapshot()
        chain = [full.path.read_bytes(), changed.path.read_bytes()]
        assert workspace.snapshot().path is None
    with sandbox.workspace(owner(), "python", SMALL) as workspace:
        restored = workspace.restore([[part] for part in chain])
        assert (restored.listing, restored.tree) == (changed.listing, changed.tree)
        assert Shell(workspace).text("ls dist; cat dist/b ~/h; readlink link") == "b\ntwo\nhome\ndist/a\n"
        assert [path for path, _, _ in workspace.tree()] == ["dist/b", "link"]


def test_base_takes_and_gives_files_that_no_agent_can_change(sandbox: DockerSandbox) -> None:
    """put and get carry any size, the agent reads only, and a missing name is said."""
    data = os.urandom(3 * MIB + 17)
    with sandbox.workspace(owner(), "python", SMALL) as workspace:
        workspace.put("packed", (data[at : at + 70_000] for at in range(0, len(data), 70_000)))
        assert b"".join(workspace.get("packed")) == data
        next(iter(workspace.get("packed")))  # a reader may stop early
        assert Shell(workspace).run("echo x >/workspace/base/packed").exit_code == 1
        with pytest.raises(InvalidFault):
            b"".join(workspace.get("none"))


def test_workspace_over_its_cap_is_said(sandbox: DockerSandbox) -> None:
    """Too many files: the snapshot refuses with a reason, the workspace can go on (H04)."""
    with sandbox.workspace(owner(), "python", SMALL) as workspace:
        shell = Shell(workspace)
        shell.run("mkdir many; cd many; seq 2100 | xargs touch")
        with pytest.raises(WorkspaceTooLarge):
            workspace.snapshot()
        shell.run("rm -r many")
        assert workspace.snapshot().full


def test_setup_s_files_are_given_to_the_agent(sandbox: DockerSandbox) -> None:
    """What root left in the workspace belongs to uid 1000 afterwards."""
    with sandbox.workspace(owner(), "python", SMALL) as workspace:
        shell = Shell(workspace)
        shell.run("mkdir a; echo x >a/b; echo y >~/c; chmod 600 a/b ~/c", root=True)
        workspace.own()
        assert shell.text("stat -c %u a a/b ~/c; cat a/b ~/c") == "1000\n1000\n1000\nx\ny\n"


# Images


def test_committed_image_holds_what_setup_made_and_nothing_of_ours(sandbox: DockerSandbox) -> None:
    """The certificates were there while it ran; program, labels, variables, certificates and secrets are not kept."""
    tag = f"dawnfleet-test:{owner().run}"
    api = sandbox._engine._api
    script = b'test -s "$PIP_CERT" && test "$TOKEN" = canary-5d && echo made >/opt/made && echo junk >/tmp/junk'
    command = Command(script, root=True, network=True, secrets={"TOKEN": "canary-5d"})
    try:
        with sandbox.workspace(owner(role="prepare"), "python", SMALL) as workspace:
            result, image = workspace.commit_image(command, tag=tag, cancel=Cancel())
            assert (result.status, result.exit_code) == ("ok", 0)
        described = api.inspect_image(image)
        everything = json.dumps([described, api.history(image)])
        assert not [trace for trace in ("canary-5d", "TOKEN", "PIP_CERT") if trace in everything]
        config = described["Config"]
        assert (config["Entrypoint"], config["Labels"]["dawnfleet"]) == (["sh"], "image")
        assert ARCHIVE not in json.dumps(config)
        assert sandbox.has_image(tag)
        with sandbox.workspace(owner(), image, SMALL) as workspace:
            assert Shell(workspace).text("cat /opt/made; ls -A /tmp /run/dawnfleet") == (
                "made\n/run/dawnfleet:\n\n/tmp:\n"
            )
    finally:
        api.remove_image(tag)


def test_failed_setup_commits_nothing(sandbox: DockerSandbox) -> None:
    """A red exit code gives no image."""
    with sandbox.workspace(owner(role="prepare"), "python", SMALL) as workspace:
        result, image = workspace.commit_image(Command(b"exit 3"), tag="dawnfleet-test:never", cancel=Cancel())
    assert (result.exit_code, image, sandbox.has_image("dawnfleet-test:never")) == (3, "", False)


def test_missing_image_is_an_environment_fault(sandbox: DockerSandbox) -> None:
    """The fault names the image and what to do; nothing was made."""
    mine = owner()
    with (
        pytest.raises(EnvironmentFault, match="dawnfleet-nowhere") as caught,
        sandbox.workspace(mine, "dawnfleet-nowhere", SMALL),
    ):
        pass
    assert (caught.value.reason, mine in {found for found, _ in sandbox.owned(mine.archive)}) == ("image", False)


def imported(sandbox: DockerSandbox, tar: bytes) -> str:
    """The id of an image made of this root filesystem."""
    answer = sandbox._engine._api.import_image_from_data(tar, repository="dawnfleet-test", tag=owner().run)
    return str(json.loads(answer)["status"])


def test_image_without_shell_is_an_environment_fault(sandbox: DockerSandbox) -> None:
    """An image that cannot run `sh` is told as that, and nothing is left."""
    mine = owner()
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("empty"))
    image = imported(sandbox, tar.getvalue())
    try:
        with pytest.raises(EnvironmentFault) as caught, sandbox.workspace(mine, image, SMALL):
            pass
        assert caught.value.reason == "image"
        assert mine not in {found for found, _ in sandbox.owned(mine.archive)}
    finally:
        sandbox._engine._api.remove_image(image)


@pytest.fixture
def declaring(sandbox: DockerSandbox) -> Iterator[Callable[[str], str]]:
    """Makes an image with a file at /data/kept that declares a volume; all of them are gone afterwards."""
    api = sandbox._engine._api
    body = {"Image": sandbox.image_id("python"), "Cmd": ["sh", "-c", "mkdir -m 777 /data && echo kept >/data/kept"]}
    container = api.create_container_from_config(body)["Id"]
    api.start(container)
    api.wait(container)
    made: list[str] = []

    def declare(path: str) -> str:
        made.append(api.commit(container, "dawnfleet-test", owner().run, changes=[f"VOLUME {path}"])["Id"])
        return made[-1]

    yield declare
    api.remove_container(container)
    for image in made:
        api.remove_image(image)


def test_a_volume_an_image_declares_is_read_only(sandbox: DockerSandbox, declaring: Callable[[str], str]) -> None:
    """What the image has there can be read; nobody writes to a disk without a limit, root and setup included."""
    api = sandbox._engine._api
    mine, other = owner(), owner(role="prepare")
    image = declaring("/data")
    with sandbox.workspace(mine, image, SMALL) as workspace:
        shell = Shell(workspace)
        for root in (False, True):
            text = shell.text("cat /data/kept; touch /data/x", root=root)
            assert text.startswith("kept\n")
            assert "Read-only file system" in text
        assert shell.run("cat /data/kept", writes=False).exit_code == 0
    with sandbox.workspace(other, image, SMALL) as workspace:
        result, made = workspace.commit_image(Command(b"touch /data/x"), tag="dawnfleet-test:no", cancel=Cancel())
        assert (result.exit_code, made) == (1, "")
    left = {volume["Name"] for volume in api.volumes()["Volumes"] or []}
    assert not [name for name in left if mine.run in name or other.run in name]


def test_secrets_lie_over_a_volume_that_an_image_declares_there(
    sandbox: DockerSandbox, declaring: Callable[[str], str]
) -> None:
    """In memory, as anywhere else, and in no volume."""
    with sandbox.workspace(owner(), declaring("/run/secrets"), SMALL) as workspace:
        shell = Shell(workspace)
        look = "cat /run/secrets/TOKEN; stat -f -c %T /run/secrets"
        assert shell.text(look, secret_files={"TOKEN": "canary-7f3a\n"}) == "canary-7f3a\ntmpfs\n"
        assert shell.text("ls -A /run/secrets; touch /run/secrets/x 2>&1 | grep -o Read-only") == "Read-only\n"


def test_volumes_an_image_declares_are_ours_to_clear_up(
    sandbox: DockerSandbox, declaring: Callable[[str], str]
) -> None:
    """Each carries the owner's labels, no nameless one is made, and all go with the workspace."""
    api = sandbox._engine._api
    mine = owner()
    with sandbox.workspace(mine, declaring("/data"), SMALL) as workspace:
        mounts = {mount["Destination"]: mount for mount in api.inspect_container(parked(workspace)[0])["Mounts"]}
        assert set(mounts) == {"/workspace", "/data"}
        ours = {name.removeprefix("volume:") for found, name in sandbox.owned(mine.archive) if found == mine}
        assert {mount["Name"] for mount in mounts.values()} <= ours
    assert mine not in {found for found, _ in sandbox.owned(mine.archive)}


@pytest.mark.parametrize(("path", "works"), [("/tmp", True), ("/workspace/repo", False), ("/run", False)])
def test_a_volume_in_the_way_of_ours_is_said(
    sandbox: DockerSandbox, declaring: Callable[[str], str], path: str, works: bool
) -> None:
    """Where we mount something anyway nothing changes; one that would hide the repository is refused by its name."""
    image = declaring(path)
    if works:
        with sandbox.workspace(owner(), image, SMALL) as workspace:
            assert Shell(workspace).text("touch /tmp/x && echo writable") == "writable\n"
        return
    with (
        pytest.raises(EnvironmentFault, match=f"a volume at {path}") as caught,
        sandbox.workspace(owner(), image, SMALL),
    ):
        pass
    assert caught.value.reason == "image"


def test_image_with_sh_cat_and_head_alone_is_enough(sandbox: DockerSandbox) -> None:
    """No bash, no rm, no timeout, no /tmp, no user 1000: commands run, and their script cannot be seen."""
    script = """ldd /bin/sh /usr/bin/head | grep -o '/[^ ]*[0-9]' | sort -u |
xargs tar -c --dereference --transform 's,^usr/bin/,bin/,' /bin/sh /usr/bin/head /usr/bin/cat 2>/dev/null"""
    with sandbox.workspace(owner(), "python", Limits()) as workspace:
        tar = Shell(workspace).bytes(script)
    image = imported(sandbox, tar)
    try:
        with sandbox.workspace(owner(), image, SMALL) as workspace:
            minimal = Shell(workspace)
            assert minimal.text("echo $((6 * 7)); cat </dev/null; exit 9") == "42\n"
            assert minimal.last.exit_code == 9
    finally:
        sandbox._engine._api.remove_image(image)


# The engine itself


@pytest.mark.parametrize("url", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:1"])
def test_absent_engine_is_a_fault_with_a_hint(url: str) -> None:
    """Nobody answers: try later, and where to look."""
    with pytest.raises(EngineFault) as caught:
        Engine(url)
    assert "DAWN_DOCKER_URL" in caught.value.hint


def test_unknown_engine_address_is_refused() -> None:
    """Only addresses this house can talk to."""
    with pytest.raises(UsageFault):
        Engine("ssh://host")


def test_old_engine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An API older than 20.10's is named with what is needed, and not retried."""
    monkeypatch.setattr("worker.sandbox.docker.API_OLDEST", (9, 99))
    with pytest.raises(EngineFault, match="too old") as caught:
        Engine(None)
    assert (caught.value.retryable, "20.10" in caught.value.hint) == (False, True)


def test_unreadable_ca_bundle_is_refused(tmp_path: os.PathLike[str]) -> None:
    """A bundle that was named and is not there is a mistake to be told at the start."""
    with pytest.raises(UsageFault, match="CA bundle"):
        DockerSandbox(Settings(state_dir=tmp_path, ca_bundle=tmp_path / "none.pem"))
