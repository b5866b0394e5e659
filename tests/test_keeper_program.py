"""The keeper program over a folder of the test's: what it snapshots comes back exactly, and nothing leads out."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

PROGRAM = Path(__file__).parents[1] / "sandbox_images" / "toolbox" / "keeper.py"
MIB = 2**20
COARSE = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import keeper, walk
fine = walk._signature
walk._signature = lambda found: (*fine(found)[:4], fine(found)[4] // 10**12, *fine(found)[5:])
keeper.main()
"""
"""The keeper where times of change move once in a thousand seconds: newer kernels stamp whatever was looked at anew,
so that here no two writes have one time."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the keeper gives files to other users, which takes root")


class Keeper:
    """The program as a process of its own, over the folder root. coarse: on a file system with a slow clock."""

    def __init__(self, root: Path, *, coarse: bool = False) -> None:
        self.root = root
        program = ["-c", COARSE, str(PROGRAM.parent)] if coarse else [str(PROGRAM)]
        self.process = subprocess.Popen(
            [sys.executable, "-I", *program, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, op: str, *streams: bytes, **fields: Any) -> dict[str, Any]:
        """Send a request with its streams; the answer's line."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"op": op, **fields}).encode() + b"\n")
        for stream in streams:
            for start in range(0, len(stream), MIB):
                part = stream[start : start + MIB]
                self.process.stdin.write(struct.pack(">L", len(part)) + part)
            self.process.stdin.write(bytes(4))
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def frames(self) -> bytes:
        """The frames that follow an answer."""
        assert self.process.stdout is not None
        found = []
        while length := struct.unpack(">L", self.process.stdout.read(4))[0]:
            found.append(self.process.stdout.read(length))
        return b"".join(found)

    def snapshot(self, *, full: bool = False) -> tuple[dict[str, Any], bytes | None]:
        answer = self.ask("snapshot", full=full)
        return answer, self.frames() if answer.get("changed") else None

    def restore(self, *chain: bytes) -> dict[str, Any]:
        return self.ask("restore", *chain, count=len(chain))

    def tree(self) -> dict[str, tuple[str, str]]:
        assert self.ask("tree")["ok"]
        return {path: (mode, digest) for path, mode, digest in json.loads(self.frames())}

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=10)
        self.process.stdout.close()


@pytest.fixture
def open_keeper(tmp_path: Path) -> Iterator[Callable[..., Keeper]]:
    """Makes keepers, each over a fresh folder, with the limits given."""
    opened: list[Keeper] = []

    def make(**limits: int) -> Keeper:
        root = tmp_path / f"volume{len(opened)}"
        root.mkdir()
        opened.append(Keeper(root))
        assert opened[-1].ask("hello", limits=limits)["ok"]
        return opened[-1]

    yield make
    for keeper in opened:
        keeper.close()


@pytest.fixture
def keeper(open_keeper: Callable[..., Keeper]) -> Keeper:
    return open_keeper()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Keeper, Keeper]]:
    """Two keepers that many examples share; `restore` of nothing empties one."""
    keepers = tuple(Keeper(tmp_path_factory.mktemp("volume")) for _ in range(2))
    for one in keepers:
        one.ask("hello", limits={})
    yield keepers[0], keepers[1]
    for one in keepers:
        one.close()


def inventory(root: Path) -> dict[bytes, tuple[Any, ...]]:
    """All there is below root, found without the keeper's code: type, mode, owner, time, content, names it shares."""
    found: dict[bytes, tuple[Any, ...]] = {}
    names: dict[int, list[bytes]] = {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in folders + files:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            content: bytes = b""
            if stat.S_ISREG(status.st_mode):
                names.setdefault(status.st_ino, []).append(path)
                content = Path(os.fsdecode(path)).read_bytes()
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            owner = status.st_uid, status.st_gid
            found[os.path.relpath(path, os.fsencode(root))] = (status.st_mode, owner, status.st_mtime_ns, content)
    shared = (frozenset(os.path.relpath(path, os.fsencode(root)) for path in group) for group in names.values())
    found[b"//"] = (frozenset(group for group in shared if len(group) > 1),)
    return found


NAMES = [b"dist", b"build", b"dist/a", b"build/a", b"dist/sub", b"dist/sub/b", b"new\nline", b"\xff\xfe", b"x" * 120]
path_of = st.sampled_from([b"repo/" + name for name in NAMES] + [b"home/dist", b"home/.profile"])
content_of = st.sampled_from([b"", b"one", b"two", b"y" * 700])
operation_of = st.one_of(
    st.tuples(st.just("write"), path_of, content_of),
    st.tuples(st.just("append"), path_of, content_of),
    st.tuples(st.just("folder"), path_of),
    st.tuples(st.just("rename"), path_of, path_of),
    st.tuples(st.just("replace"), path_of, path_of),
    st.tuples(st.just("remove"), path_of),
    st.tuples(st.just("symlink"), path_of, st.sampled_from([b"a", b"/etc/shadow", b"../..", b"\xff" * 150])),
    st.tuples(st.just("hardlink"), path_of, path_of),
    st.tuples(st.just("fifo"), path_of),
    st.tuples(st.just("chmod"), path_of, st.sampled_from([0o000, 0o644, 0o755, 0o4755, 0o1777])),
    st.tuples(st.just("time"), path_of, st.sampled_from([0, 1, 1_700_000_000_123_456_789, -1_500_000_000])),
    st.tuples(st.just("snapshot")),
    st.tuples(st.just("rollback")),
)


def remove(path: bytes) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def act(root: Path, name: str, *arguments: Any) -> None:
    """One thing a command may do; what is not possible just now does nothing."""
    path, *rest = (os.path.join(os.fsencode(root), item) if isinstance(item, bytes) else item for item in arguments)
    with suppress(OSError):
        if name in {"write", "append"}:
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            flags |= os.O_TRUNC if name == "write" else os.O_APPEND
            descriptor = os.open(path, flags, 0o644)
            os.write(descriptor, arguments[1])
            os.close(descriptor)
        elif name == "folder":
            os.makedirs(path)
        elif name == "rename":
            os.rename(path, rest[0])
        elif name == "replace":
            # rm -rf dist; mv build dist
            remove(rest[0])
            os.rename(path, rest[0])
        elif name == "remove":
            remove(path)
        elif name == "symlink":
            os.symlink(arguments[1], path)
        elif name == "hardlink":
            os.link(path, rest[0], follow_symlinks=False)
        elif name == "fifo":
            os.mkfifo(path)
        elif name == "chmod" and not os.path.islink(path):
            os.chmod(path, rest[0])
        elif name == "time":
            os.utime(path, ns=(rest[0], rest[0]), follow_symlinks=False)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=st.lists(operation_of, max_size=24))
@example([("write", b"repo/dist/a", b""), ("folder", b"repo/dist"), ("write", b"repo/dist/a", b"one"),
          ("folder", b"repo/build"), ("write", b"repo/build/a", b"two"), ("snapshot",),
          ("replace", b"repo/build", b"repo/dist")])  # fmt: skip
@example([("write", b"repo/dist", b"one"), ("snapshot",), ("hardlink", b"repo/dist", b"home/dist"), ("snapshot",),
          ("append", b"home/dist", b"two")])  # fmt: skip
@example([("folder", b"repo/dist"), ("write", b"repo/dist/a", b"one"), ("chmod", b"repo/dist", 0), ("snapshot",),
          ("write", b"repo/dist/a", b"two"), ("rollback",), ("time", b"repo/dist/a", -1_500_000_000)])  # fmt: skip
def test_a_chain_of_snapshots_restores_exactly(pair: tuple[Keeper, Keeper], operations: list[Any]) -> None:
    """Whatever commands did between snapshots, laying the chain down elsewhere gives the same volume."""
    original, copy = pair
    assert original.restore()["ok"]
    _, level0 = original.snapshot(full=True)
    chain = [level0 or b""]
    for name, *arguments in operations:
        if name == "snapshot":
            _, part = original.snapshot()
            chain += [part] if part is not None else []
        elif name == "rollback":
            assert original.restore(*chain)["ok"]
        else:
            act(original.root, name, *arguments)
    answer, part = original.snapshot()
    chain += [part] if part is not None else []
    restored = copy.restore(*chain)
    assert inventory(copy.root) == inventory(original.root)
    assert (restored["listing"], restored["tree"]) == (answer["listing"], answer["tree"])
    assert copy.snapshot() == ({**restored, "changed": False, "full": False}, None)


def test_gnu_tar_reads_a_snapshot(keeper: Keeper, tmp_path: Path) -> None:
    """A snapshot is a plain tar: GNU tar lays down level 0 with names of any bytes and length, links and times."""
    for name, *arguments in [
        ("folder", b"repo/" + b"deep" * 40), ("write", b"repo/" + b"deep" * 40 + b"/\xff\n", b"text"),
        ("write", b"repo/two", b"2"), ("hardlink", b"repo/two", b"home/two"),
        ("symlink", b"repo/link", b"\xfe" * 150),
        ("fifo", b"repo/fifo"), ("time", b"repo/two", 1_700_000_000_123_456_789),
    ]:  # fmt: skip
        act(keeper.root, name, *arguments)
    _, tar = keeper.snapshot()
    (tmp_path / "out").mkdir()
    subprocess.run(["tar", "-C", str(tmp_path / "out"), "-xp"], input=tar, check=True)
    (tmp_path / "out" / ".removed").unlink()
    assert inventory(tmp_path / "out") == inventory(keeper.root)


def test_nothing_changed_makes_no_object(keeper: Keeper) -> None:
    """A second snapshot of a quiet volume names the same digests and carries nothing."""
    act(keeper.root, "write", b"repo/a", b"one")
    first, _ = keeper.snapshot()
    second, part = keeper.snapshot()
    assert (second["listing"], second["tree"], part) == (first["listing"], first["tree"], None)


def test_a_write_right_after_a_walk_is_never_missed(keeper: Keeper) -> None:
    """Same size, same inode, same tick of the clock, time set back: the content decides."""
    file = keeper.root / "repo" / "a"
    file.write_bytes(b"0000")
    keeper.snapshot()
    times = file.stat().st_mtime_ns
    seen = set()
    for number in range(1, 40):
        with file.open("r+b") as handle:
            handle.write(b"%04d" % number)
        os.utime(file, ns=(times, times))
        answer, part = keeper.snapshot()
        assert part is not None
        assert b"%04d" % number in part
        seen.add(answer["tree"])
    assert len(seen) == 39


def test_a_clock_that_has_not_moved_hides_no_write(tmp_path: Path) -> None:
    """Nothing about a file differs but its content, because it was written again in the same tick as the walk."""
    keeper = Keeper(tmp_path, coarse=True)
    keeper.ask("hello", limits={})
    file = tmp_path / "repo" / "a"
    file.write_bytes(b"before")
    keeper.snapshot()
    times = file.stat().st_mtime_ns
    file.write_bytes(b"behind")
    os.utime(file, ns=(times, times))
    _, part = keeper.snapshot()
    keeper.close()
    assert part is not None
    assert b"behind" in part


def test_files_are_those_whose_part_of_the_tree_changed(keeper: Keeper) -> None:
    """The list for people names what was added, changed and removed, not what is ignored or git's own."""
    repo = keeper.root / "repo"
    for name in ("same", "changed", "gone", ".gitignore"):
        (repo / name).write_text("*.log\n")
    keeper.snapshot()
    (repo / "changed").write_text("new")
    (repo / "gone").unlink()
    (repo / "added").touch()
    (repo / "build.log").touch()
    (repo / ".git").mkdir()
    (repo / ".git" / "HEAD").touch()
    assert sorted(keeper.snapshot()[0]["files"]) == ["added", "changed", "gone"]


def test_links_are_kept_as_links(keeper: Keeper, tmp_path: Path) -> None:
    """H34: an archive holds a link to a file outside and never a byte of it, and giving owners does not follow it."""
    secret = tmp_path / "secret"
    secret.write_text("outside-" + "canary")
    (keeper.root / "repo" / "file").symlink_to(secret)
    (keeper.root / "repo" / "folder").symlink_to(tmp_path)
    assert keeper.ask("own")["ok"]
    _, part = keeper.snapshot()
    assert part is not None
    assert b"outside-canary" not in part
    assert secret.stat().st_uid == 0
    with tarfile.open(fileobj=io.BytesIO(part)) as tar:
        assert {member.name: member.linkname for member in tar if member.issym()} == {
            "repo/file": str(secret),
            "repo/folder": str(tmp_path),
        }


def made_tar(*members: tuple[str, bytes, str, bytes]) -> bytes:
    """A well-formed snapshot, written by Python's tarfile: (name, type, target, content) after the removed list."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, target, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, target, len(content)
            member.pax_headers = {"mtime": "1.000000000"}
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def removed_list(*paths: str) -> tuple[str, bytes, str, bytes]:
    return (".removed", tarfile.REGTYPE, "", b"".join(path.encode() + b"\0" for path in paths))


def test_a_well_formed_snapshot_of_another_writer_is_laid_down(keeper: Keeper) -> None:
    """The refusals below are about what members say, not about who wrote the tar."""
    answer = keeper.restore(made_tar(removed_list(), ("repo/a", tarfile.REGTYPE, "", b"text")))
    assert answer["ok"]
    assert (keeper.root / "repo" / "a").read_text() == "text"


OUT = ("repo/out", tarfile.SYMTYPE, "../../outside", b"")


@pytest.mark.parametrize(
    "members",
    [
        [removed_list(), ("/outside/x", tarfile.REGTYPE, "", b"x")],
        [removed_list(), ("repo/../../outside/x", tarfile.REGTYPE, "", b"x")],
        [removed_list(), ("../outside/x", tarfile.REGTYPE, "", b"x")],
        [removed_list(), ("elsewhere", tarfile.REGTYPE, "", b"x")],
        [removed_list(), ("repo//x", tarfile.REGTYPE, "", b"x")],
        [removed_list(), OUT, ("repo/out/x", tarfile.REGTYPE, "", b"x")],
        [removed_list(), OUT, ("repo/out/x", tarfile.DIRTYPE, "", b"")],
        [removed_list(), ("repo/x", tarfile.LNKTYPE, "../outside/canary", b"")],
        [removed_list(), OUT, ("repo/x", tarfile.LNKTYPE, "repo/out/canary", b"")],
        [removed_list(), OUT, ("repo/x", tarfile.LNKTYPE, "repo/out", b"")],
        [removed_list(), ("repo", tarfile.SYMTYPE, "../outside", b"")],
        [removed_list(), ("repo/tty", tarfile.CHRTYPE, "", b"")],
        [removed_list("../outside/canary")],
        [removed_list("repo")],
        [removed_list("/etc/passwd")],
        [("repo/a", tarfile.REGTYPE, "", b"no list of removed paths")],
    ],
    ids=lambda members: f"{members[-1][0]}-{members[-1][1].decode()}-{len(members)}",
)
def test_hostile_members_are_refused(keeper: Keeper, members: list[Any]) -> None:
    """H35: a member that would lead out of the volume is refused, and a folder beside it is as it was."""
    outside = keeper.root.parent / "outside"
    outside.mkdir()
    (outside / "canary").write_text("canary")
    before = inventory(outside)
    assert keeper.restore(made_tar(*members))["kind"] == "bad_request"
    assert inventory(outside) == before
    assert keeper.ask("ping")["ok"]


def long_name(size: int) -> bytes:
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = b"L", size
    return header.tobuf(tarfile.USTAR_FORMAT)


GOOD = made_tar(removed_list())
BROKEN = {
    "a name of 8 GiB": GOOD[:1536] + long_name(2**33 - 1),
    "cut": GOOD[:1536],
    "a wrong checksum": GOOD[:200] + b"!" + GOOD[201:],
    "two in one": GOOD + GOOD,
    "no tar": b"\xff" * 4096,
    "nothing": b"",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_broken_snapshots_are_refused(keeper: Keeper, data: bytes) -> None:
    """H37: what is not a snapshot is named so, in bounded memory, and the keeper answers the next request."""
    assert keeper.restore(data)["kind"] == "bad_request"
    assert keeper.ask("ping")["ok"]


def test_a_snapshot_with_too_many_members_is_refused(open_keeper: Callable[..., Keeper]) -> None:
    """H37: laying down stops at the cap of files."""
    keeper = open_keeper(workspace_files=50)
    members = [(f"repo/{number}", tarfile.REGTYPE, "", b"") for number in range(60)]
    assert keeper.restore(made_tar(removed_list(), *members))["kind"] == "too_large"
    assert len(os.listdir(keeper.root / "repo")) <= 50


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"workspace_files": 20}, "more than 20 files"),
        ({"workspace_bytes": 1000}, "the workspace holds 3,000 bytes, 1,000 are allowed"),
        ({"snapshot_bytes": 1000}, "one call changed files of 3,000 bytes, 1,000 are allowed"),
    ],
)
def test_over_a_cap_the_volume_goes_back(open_keeper: Callable[..., Keeper], limits: Any, text: str) -> None:
    """A snapshot over a cap says by how much, and the last good one can be laid down again."""
    keeper = open_keeper(**limits)
    first, level0 = keeper.snapshot()
    for number in range(30):
        (keeper.root / "repo" / str(number)).write_bytes(b"x" * 100)
    answer, _ = keeper.snapshot()
    assert (answer["kind"], text in answer["error"]) == ("too_large", True)
    assert keeper.restore(level0 or b"")["listing"] == first["listing"]


def test_caches_count_against_the_caps(open_keeper: Callable[..., Keeper]) -> None:
    """What is left out of snapshots still fills the disk."""
    keeper = open_keeper(workspace_bytes=1000)
    (keeper.root / "home" / ".cache").mkdir()
    (keeper.root / "home" / ".cache" / "big").write_bytes(b"x" * 2000)
    assert keeper.snapshot()[0]["kind"] == "too_large"


def test_a_sparse_file_of_a_terabyte_is_not_read(open_keeper: Callable[..., Keeper]) -> None:
    """H37: it counts with the size it says it has, before a byte of it was read."""
    keeper = open_keeper(workspace_bytes=5 * 2**30)
    with (keeper.root / "repo" / "sparse").open("wb") as file:
        file.truncate(2**40)
    assert "1,099,511,627,776 bytes" in keeper.snapshot()[0]["error"]
    counted = dict(line.split(": ") for line in Path(f"/proc/{keeper.process.pid}/io").read_text().splitlines())
    assert int(counted["rchar"]) < 16 * MIB


def test_fifos_and_sockets_do_not_block(keeper: Keeper) -> None:
    """H37: a FIFO nobody writes to is recorded, a socket is passed over."""
    os.mkfifo(keeper.root / "repo" / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(keeper.root / "repo" / "socket"))
        answer, part = keeper.snapshot()
    with tarfile.open(fileobj=io.BytesIO(part or b"")) as tar:
        assert [member.name for member in tar if member.name.startswith("repo/")] == ["repo/fifo"]
    assert keeper.tree() == {}
    assert answer["ok"]


def test_folders_nested_too_deeply_are_refused_and_removed(keeper: Keeper) -> None:
    """Three thousand folders inside each other are over the cap, and still go away when the volume goes back."""
    _, level0 = keeper.snapshot()
    here = os.open(keeper.root / "repo", os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert keeper.snapshot()[0]["kind"] == "too_large"
    assert keeper.restore(level0 or b"")["ok"]
    assert os.listdir(keeper.root / "repo") == []


def test_a_big_file_takes_constant_memory(open_keeper: Callable[..., Keeper]) -> None:
    """Out of the volume and back in: the keeper never holds a file whole."""
    keeper, copy = open_keeper(), open_keeper()
    block = os.urandom(MIB)
    with (keeper.root / "repo" / "big").open("wb") as file:
        for _ in range(96):
            file.write(block)
    _, part = keeper.snapshot()
    assert copy.restore(part or b"")["ok"]
    for one in (keeper, copy):
        status = Path(f"/proc/{one.process.pid}/status").read_text()
        peak_kib = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
        assert peak_kib < 64 * 1024


def test_hello_makes_the_folders_that_the_agent_cannot_replace(keeper: Keeper) -> None:
    """repo and home are the agent's, home is private, base is root's."""
    found = {path.name: (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) for path in keeper.root.iterdir()}
    assert found == {"repo": (1000, 0o755), "home": (1000, 0o700), "base": (0, 0o755)}


def test_own_gives_the_agent_its_files_and_root_the_base(keeper: Keeper) -> None:
    """After setup ran as root: repo and home to uid 1000, base to root, readable and not writable."""
    for top in ("repo", "home", "base"):
        (keeper.root / top / "sub").mkdir(mode=0o777)
        (keeper.root / top / "sub" / "file").touch()
        (keeper.root / top / "sub" / "file").chmod(0o666 if top == "base" else 0o600)
        os.chown(keeper.root / top / "sub" / "file", 5, 5)
    assert keeper.ask("own")["ok"]
    owners = {top: (keeper.root / top / "sub" / "file").stat().st_uid for top in ("repo", "home", "base")}
    assert owners == {"repo": 1000, "home": 1000, "base": 0}
    assert stat.S_IMODE((keeper.root / "base" / "sub" / "file").stat().st_mode) == 0o644
    assert stat.S_IMODE((keeper.root / "repo" / "sub" / "file").stat().st_mode) == 0o600


def test_put_and_get_carry_bytes(keeper: Keeper) -> None:
    """A file put under base comes back, and replaces the one before it in one step."""
    data = os.urandom(3 * MIB + 7)
    assert keeper.ask("put", b"old", name="patch")["ok"]
    assert keeper.ask("put", data, name="patch")["ok"]
    assert keeper.ask("get", name="patch")["bytes"] == len(data)
    assert keeper.frames() == data
    assert os.listdir(keeper.root / "base") == ["patch"]


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc/x", "a\0b"])
def test_put_takes_plain_names_only(keeper: Keeper, name: str) -> None:
    """Nothing but a name of one component is written, and the stream of the refused request is read to its end."""
    assert keeper.ask("put", b"data", name=name)["kind"] == "bad_request"
    assert keeper.ask("ping")["ok"]


@pytest.mark.parametrize("line", [b"nonsense", b"[]", b'{"op": "shell"}', b'{"op": "get"}', b'{"op": "put2"}', b"{}"])
def test_a_request_without_sense_is_answered(keeper: Keeper, line: bytes) -> None:
    """The keeper says what is wrong and goes on."""
    assert keeper.process.stdin is not None
    assert keeper.process.stdout is not None
    keeper.process.stdin.write(line + b"\n")
    keeper.process.stdin.flush()
    assert json.loads(keeper.process.stdout.readline())["kind"] == "bad_request"
    assert keeper.ask("ping")["ok"]


def test_the_tree_is_types_modes_and_contents(keeper: Keeper) -> None:
    """As git would record it: the executable bit, link targets, contents; no folders, no .git, no FIFO."""
    repo = keeper.root / "repo"
    (repo / "sub" / ".git").mkdir(parents=True)
    (repo / "sub" / ".git" / "config").touch()
    (repo / ".GIT").write_text("refused by git in this spelling too")
    (repo / "plain").write_text("a")
    (repo / "run").write_text("b")
    (repo / "run").chmod(0o755)
    (repo / "sub" / "link").symlink_to("../plain")
    (repo / "empty").mkdir()
    os.mkfifo(repo / "fifo")

    def digest(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()

    assert keeper.tree() == {
        "plain": ("100644", digest("a")),
        "run": ("100755", digest("b")),
        "sub/link": ("120000", digest("../plain")),
    }


def test_left_out_names_the_topmost_paths(keeper: Keeper) -> None:
    """Ignored files, caches, nested git directories and FIFOs, once each; not the repository's own .git."""
    repo = keeper.root / "repo"
    (repo / ".gitignore").write_text("build/\n*.log\n!keep.log\n")
    for folder in ("build/deep", "src/__pycache__", ".git", "sub/.git", "node_modules/.cache", ".cache"):
        (repo / folder).mkdir(parents=True)
        (repo / folder / "file").touch()
    for name in ("a.log", "keep.log", "src/b.log"):
        (repo / name).touch()
    os.mkfifo(repo / "fifo")
    expected = ["a.log", "build", "fifo", "node_modules/.cache", "src/__pycache__", "src/b.log", "sub/.git"]
    assert keeper.ask("ignored")["paths"] == expected
    assert set(keeper.tree()) == {".gitignore", ".cache/file", "keep.log"}


def test_caches_stay_out_unless_the_start_commit_tracks_them(keeper: Keeper) -> None:
    """A cache is in no snapshot; a tracked file in a folder of such a name is kept like any other."""
    repo = keeper.root / "repo"
    for folder in ("a/__pycache__", "b/__pycache__"):
        (repo / folder).mkdir(parents=True)
        (repo / folder / "x.pyc").touch()
    assert keeper.ask("put", b"b/__pycache__/x.pyc\0", name="tracked")["ok"]
    _, part = keeper.snapshot()
    with tarfile.open(fileobj=io.BytesIO(part or b"")) as tar:
        assert [member.name for member in tar if member.name.endswith("x.pyc")] == ["repo/b/__pycache__/x.pyc"]
    assert set(keeper.tree()) == {"b/__pycache__/x.pyc"}


def test_a_changed_ignore_file_changes_the_tree(keeper: Keeper) -> None:
    """What was looked up once is looked up again when a .gitignore comes, changes or goes."""
    repo = keeper.root / "repo"
    (repo / "sub").mkdir()
    (repo / "sub" / "x").touch()
    assert set(keeper.tree()) == {"sub/x"}
    (repo / "sub" / ".gitignore").write_text("x\n.gitignore\n")
    assert set(keeper.tree()) == set()
    (repo / "sub" / ".gitignore").unlink()
    assert set(keeper.tree()) == {"sub/x"}


PIECES = ["a", "b", "ab", "*", "?", "[ab]", "[!a]", "[^b]", "**", "a*", "*b", "a?", "*a*b*", r"\a", "[a-b]",
          "[[:alpha:]]", "[]a]", "a**b", "[", "é", "?é", "!a", "#a", " ", "a ", "a\\ ", "a\\"]  # fmt: skip
pattern_of = st.builds(
    lambda negated, start, pieces, end: f"{negated}{start}{'/'.join(pieces)}{end}",
    st.sampled_from(["", "", "", "!"]),
    st.sampled_from(["", "", "/", "**/"]),
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=3),
    st.sampled_from(["", "", "/", "/*", "/**", " ", "\r"]),
)
file_of = st.lists(
    st.sampled_from(["a", "b", "ab", "aab", "é", "aé", "]", "!a", "#a", " ", "a "]), min_size=1, max_size=4
).map("/".join)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.sets(file_of, min_size=1, max_size=12),
    tracked=st.sets(file_of, max_size=3),
    ignores=st.dictionaries(st.sampled_from(["", "a/", "a/b/"]), st.lists(pattern_of, max_size=5), max_size=3),
)
@example({"a/b/ab", "a/ab"}, set(), {"": ["a/b/", "!a/b/ab"]})
@example({"a", "b/a", "]/a"}, set(), {"": ["[/[ab]", "b\\/*", "[/]]/a"]})
@example({"a/b", "b"}, {"a/ab"}, {"": ["a", "\ufeff", "**/b/**"]})
def test_ignored_means_what_git_means(
    pair: tuple[Keeper, Keeper], files: set[str], tracked: set[str], ignores: dict[str, list[str]]
) -> None:
    """The tree is exactly what git lists: tracked, or not ignored by any .gitignore, nested and negated ones too."""
    keeper, repo = pair[0], pair[0].root / "repo"
    assert keeper.restore()["ok"]
    environment = {**os.environ, "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}

    def git(*arguments: str, given: bytes = b"") -> bytes:
        argv = ["git", "-c", "safe.directory=*", *arguments]
        return subprocess.run(argv, cwd=repo, env=environment, input=given, check=True, stdout=subprocess.PIPE).stdout

    git("init", "--quiet")
    contents = dict.fromkeys([*files, *tracked], "") | {
        f"{folder}.gitignore": "\n".join(lines) for folder, lines in ignores.items()
    }
    for name, text in contents.items():
        with suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
            (repo / name).parent.mkdir(parents=True, exist_ok=True)
            (repo / name).write_bytes(text.encode())
    present = [name for name in tracked if (repo / name).is_file()]
    git("update-index", "-z", "--add", "--stdin", given="".join(name + "\0" for name in present).encode())
    assert keeper.ask("put", git("ls-files", "-z"), name="tracked")["ok"]
    expected = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").decode().split("\0")[:-1]
    assert sorted(keeper.tree()) == sorted(expected)
