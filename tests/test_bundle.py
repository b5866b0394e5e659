"""A sealed bundle: what goes into one, that it proves itself, reads as an archive, and comes into another one."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doubles import MemoryArchive
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runs_made import AT, Make, claimed, ended, replied

from scheduler.cli.main import run as dawn
from scheduler.enqueue import submit
from scheduler.exports.bundle import index
from scheduler.fork import Wish, fork
from scheduler.imports.bundle import bring_in, prove
from worker.contract.delivered import Review
from worker.contract.environment import PreparedEnvironment
from worker.contract.errors import ConflictFault, ExitCode, Fault, IntegrityFault, UsageFault
from worker.contract.events import Observation, Observed, Prepared, canonical, digest
from worker.contract.settings import Settings
from worker.contract.task import Repo
from worker.store import keys, tar
from worker.store.archive import Archive, open_archive
from worker.store.bundle import INDEX, SCHEME, Bundle, Index, Root, write
from worker.store.content import put_content
from worker.store.deliveries import write_review
from worker.store.inbox import Control, Inbox
from worker.store.journal import Journal

Seal = Callable[..., Path]
PARENT, CHILD = "old", "old-fork"
PATCH = b"--- a/x\n+++ b/x\n+1\n"

pytestmark = pytest.mark.usefixtures("without_stack")


@pytest.fixture
def forked(archive: Archive, make_run: Make) -> str:
    """A run with every kind of object, and a fork of it that ended; the fork's id."""
    key, image = "a" * 64, put_content(archive, lambda name: keys.image("sha256:i", name), b"an image")
    level_0 = put_content(archive, lambda name: keys.environment_blob(key, name), b"level 0")
    environment = PreparedEnvironment(
        key=key, commit="c", branch="", image_name="python", image="sha256:i", stored_image=image,
        snapshot=level_0, snapshot_bytes=7, listing=digest(b""), tree=digest(b""), tracked=1,
    )  # fmt: skip
    data = canonical(environment.model_dump(mode="json"))
    archive.create(keys.environment(key), data)
    prepared = Prepared(environment_key=key, environment=digest(data), commit="c", image="i", reused=False)
    blob = Journal(archive, PARENT).put_blob(b"all of the output")
    seen = Observed(observation=Observation(call_id="c1", tool="run_command", status="ok", blob=blob))
    source = put_content(archive, keys.source, b"a packed repository")
    Inbox(archive, PARENT).put("message", by="me", at=AT, text="hurry")
    patch = Journal(archive, PARENT).put_blob(PATCH)
    repo = Repo(source=source, source_kind="folder", label="cart")
    task: dict[str, Any] = {"model": "anthropic/x", "prompt": "Fix it.", "repo": repo}
    end = ended(verdict="verified", artifacts={"patch.diff": patch})
    make_run(PARENT, claimed(), prepared, replied(), seen, *end, **task)
    made = fork(archive, PARENT, Wish(message="go on"), key="").batch
    submit(made, archive, by="me", at=AT)
    run = made.tasks[0].run
    journal = Journal(archive, run)
    journal.append(journal.append(journal.load(), [claimed()], attempt=1, at=AT), ended(), attempt=1, at=AT)
    archive.delete([keys.open_marker(run), keys.open_marker(PARENT)])
    return run


def sealed(name: str, *words: str, out: str = "bundle.tar") -> Bundle:
    """What `dawn export` made of it."""
    assert dawn(["export", name, "--format", "bundle", "--out", out, *words]) == 0
    return Bundle(f"{SCHEME}{out}")


def test_it_holds_all_that_a_run_needs_and_no_more(archive: Archive, make_run: Make, forked: str) -> None:
    """Run, parent, batches, environment and source are inside, as they lie; images only where they are asked for;
    other runs, markers and caches are not."""
    make_run("stranger")
    archive.overwrite(keys.rollup(PARENT, 0), b"a cache")
    bundle = sealed(forked)
    inside = {key: bundle.get(key) for key in bundle.list("")}
    assert inside == {
        key: archive.get(key)
        for key in archive.list("")
        if not key.startswith(("images/", "open/", "runs/stranger/")) and "/rollup/" not in key
    }
    assert {key.partition("/")[0] for key in inside} == {"runs", "batches", "environments", "sources"}
    assert bundle.index.left_out
    assert sealed(forked, "--images", out="all.tar").size(bundle.index.left_out[0][0]) == 8


def test_the_same_runs_give_the_same_bytes(forked: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Into a file or a pipe, and the digest that is told is the file's."""
    sealed(forked)
    told = capfdbinary.readouterr().err
    assert dawn(["export", forked, "--format", "bundle"]) == 0
    made = capfdbinary.readouterr().out
    assert Path("bundle.tar").read_bytes() == made
    assert digest(made).encode() in told


def test_any_tar_program_reads_it(archive: Archive, forked: str) -> None:
    """Names, contents, and nothing else: no times, no owners."""
    bundle = sealed(forked)
    listed = subprocess.run(["tar", "tf", "bundle.tar"], capture_output=True, text=True, check=True)
    assert listed.stdout.splitlines() == [INDEX, *bundle.list("")]
    assert listed.stderr == ""
    with tarfile.open("bundle.tar") as read:
        for member in read.getmembers()[1:]:
            assert (member.mtime, member.uid, member.gid, member.uname, member.mode) == (0, 0, 0, "", 0o444)
            file = read.extractfile(member)
            assert file is not None
            assert file.read() == archive.get(member.name)


def test_verify_proves_it_without_an_archive(
    forked: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is enough: runs, parents and their objects are checked."""
    sealed(forked)
    monkeypatch.setenv("DAWN_ARCHIVE", "file:///nowhere")
    capsys.readouterr()
    assert dawn(["verify", "bundle.tar", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (set(told["tails"]), told["problems"]) == ({PARENT, forked}, [])


@pytest.mark.parametrize(
    "words", [["show", PARENT], ["logs", PARENT], ["status", PARENT], ["status"], ["diff", PARENT]]
)
def test_commands_read_it_as_they_read_the_archive(
    words: list[str], forked: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They print the same, to the letter."""
    sealed(PARENT, *([] if words[1:] else [forked]))
    capsys.readouterr()
    assert dawn(words) == 0
    there = capsys.readouterr().out
    monkeypatch.setenv("DAWN_ARCHIVE", "file:///nowhere")
    assert dawn([*words, "--archive", "bundle:bundle.tar"]) == 0
    assert capsys.readouterr().out == there != ""


def test_nothing_is_written_to_it(forked: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever tries is told how to go on."""
    bundle = sealed(forked)
    for act in (
        lambda: bundle.create("x", b""),
        lambda: bundle.overwrite("x", b""),
        lambda: bundle.delete(["x"]),
        bundle.probe,
        lambda: bundle.sweep(older_than_s=1),
    ):
        with pytest.raises(UsageFault, match="takes no writes"):
            act()


def test_an_unfinished_run_makes_none(archive: Archive, make_run: Make) -> None:
    """Its journal would go on in two places."""
    make_run("going", claimed())
    assert dawn(["export", "going", "--format", "bundle", "--out", "bundle.tar"]) == ExitCode.CONFLICT
    assert not Path("bundle.tar").exists()


def test_a_damaged_run_makes_one_only_when_that_is_asked_for(archive: Archive, forked: str) -> None:
    """Then it is as it lies, and the bundle says what is wrong as the archive does."""
    blob = keys.blob(PARENT, digest(b"all of the output"))
    (Path(archive.url.removeprefix("file://")) / blob).write_bytes(b"another")
    words = ["export", forked, "--format", "bundle", "--out", "bundle.tar"]
    assert dawn(words) == ExitCode.INTEGRITY
    assert not Path("bundle.tar").exists()
    assert dawn([*words, "--damaged"]) == 0
    problems = prove(Bundle("bundle:bundle.tar")).problems
    assert [blob in problem for problem in problems] == [True]
    assert dawn(["verify", "bundle.tar"]) == ExitCode.INTEGRITY
    assert dawn(["import", "bundle.tar"]) == ExitCode.INTEGRITY


def noticed(path: Path) -> bool:
    """Whether opening or proving a bundle tells that something is wrong."""
    try:
        return bool(prove(Bundle(f"{SCHEME}{path}")).problems)
    except IntegrityFault:
        return True


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_any_flipped_byte_is_noticed(forked: str, tmp_path: Path, data: st.DataObject) -> None:
    """In the index, a header, a content, what stands between them, or the end."""
    if not (whole := tmp_path / "bundle.tar").exists():
        sealed(forked)
    assert not noticed(whole)
    content = bytearray(whole.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    (other := tmp_path / "other.tar").write_bytes(content)
    assert noticed(other)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(cut=st.integers(1, 4000), more=st.booleans())
def test_a_cut_or_longer_file_is_noticed(forked: str, tmp_path: Path, cut: int, more: bool) -> None:
    """A download that broke off, or something behind its end."""
    if not (whole := tmp_path / "bundle.tar").exists():
        sealed(forked)
    content = whole.read_bytes()
    (other := tmp_path / "other.tar").write_bytes(content + bytes(cut) if more else content[:-cut])
    assert noticed(other)


def hostile(kind: str) -> bytes:
    """A tar that a stranger made of a sound index, or of one that lies."""
    out = io.BytesIO()
    name, content = "runs/x/task.json", b"evil"
    member = tarfile.TarInfo(name)
    entry: tuple[Any, ...] = (name, len(content), digest(content))
    entries = [entry]
    match kind:
        case "symbolic link" | "hard link":
            member.type = tarfile.SYMTYPE if kind == "symbolic link" else tarfile.LNKTYPE
            member.linkname = "/etc/passwd"
        case "device":
            member.type = tarfile.CHRTYPE
        case "sparse":
            member.type = tarfile.GNUTYPE_SPARSE
        case "above" | "absolute" | "hidden" | "control" | "backslash":
            names = {"above": "runs/../x", "absolute": "/etc/x", "hidden": ".ssh/x", "control": "runs/\x1b/x"}
            member.name = names.get(kind, "runs\\x")
            entries = [(member.name, *entry[1:])]
        case "doubled":
            entries = [entry, entry]
        case "huge":
            entries = [(name, 2**52, entry[2])]
        case "negative":
            entries = [(name, -1, entry[2])]
        case "pax path" | "pax size":
            member.pax_headers = {"path": "../../x"} if kind == "pax path" else {"size": "1"}
        case "owned":
            member.uid = 1
    fields = {"v": 1, "versions": {}, "roots": [], "objects": entries, "left_out": []}
    fields["sum"] = digest(canonical(fields))
    index = canonical(fields)
    out.write(tar.header(INDEX, len(index)) + index + tar.padding(len(index)))
    for _ in entries:
        member.size = 0 if member.type != tarfile.REGTYPE else len(content)
        if kind == "honest":
            member.mode = 0o444
            out.write(tar.header(name, len(content)))
        else:
            out.write(member.tobuf(tarfile.PAX_FORMAT))
        out.write(content + tar.padding(len(content)))
    out.write(tar.END)
    return out.getvalue()


@pytest.mark.parametrize(
    "kind",
    [
        *("symbolic link", "hard link", "device", "sparse", "above", "absolute", "hidden", "control", "backslash"),
        *("doubled", "huge", "negative", "pax path", "pax size", "owned"),
    ],
)
def test_a_hostile_tar_is_refused(kind: str, tmp_path: Path) -> None:
    """Whatever its index says, a tar that we would not have written so is none of ours."""
    (path := tmp_path / "x.tar").write_bytes(hostile(kind))
    with pytest.raises(IntegrityFault):
        Bundle(f"{SCHEME}{path}")
    assert dawn(["import", str(path)]) == ExitCode.INTEGRITY


def test_the_same_tar_without_a_trick_opens(tmp_path: Path) -> None:
    """So that it is the trick which is refused."""
    (path := tmp_path / "x.tar").write_bytes(hostile("honest"))
    assert Bundle(f"{SCHEME}{path}").get("runs/x/task.json") == b"evil"


@pytest.mark.parametrize("content", [b"", b"\0" * 10240, b"PK\x03\x04" + bytes(600)])
def test_what_is_no_bundle_is_told_so(content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty file, an empty tar, something else."""
    Path("x.tar").write_bytes(content)
    assert dawn(["verify", "x.tar"]) == ExitCode.INTEGRITY
    assert "is no bundle" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["open/x", "days/2026-12-01/x", "schedules/s/x.json", "work/k/x"])
def test_no_marker_comes_in(key: str, archive: Archive, tmp_path: Path) -> None:
    """One under `open/` would have a deployment work on what somebody else made."""
    there = open_archive(f"file://{tmp_path}/there", Settings())
    there.create(key, b"")
    with (path := tmp_path / "x.tar").open("wb") as out:
        write(there, Index(versions={}, roots=(), objects=((key, 0, digest(b"")),)), out)
    assert dawn(["import", str(path)]) == ExitCode.INTEGRITY
    assert list(archive.list("")) == []


def test_a_newer_bundle_is_refused_and_not_called_damaged(tmp_path: Path) -> None:
    """Its writer knew more than this reader."""
    fields = {"v": 2, "news": 1}
    data = canonical(fields | {"sum": digest(canonical(fields))})
    (path := tmp_path / "x.tar").write_bytes(tar.header(INDEX, len(data)) + data + tar.padding(len(data)))
    assert dawn(["verify", str(path)]) == ExitCode.CONFLICT


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Archive]:
    """elsewhere(): another archive, which commands are told of from then on."""

    def tell() -> Archive:
        there = open_archive(f"file://{tmp_path}/elsewhere", Settings())
        monkeypatch.setenv("DAWN_ARCHIVE", there.url)
        return there

    return tell


def test_an_import_brings_it_all_and_a_second_one_nothing(
    forked: str, elsewhere: Callable[[], Archive], capsys: pytest.CaptureFixture[str]
) -> None:
    """What came in verifies as what went out did, can be forked, and a repeated import is a no-op."""
    bundle = sealed(forked, "--images")
    there = elsewhere()
    capsys.readouterr()
    assert dawn(["import", "bundle.tar", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["new"], told["known"]) == (len(list(bundle.list(""))), 0)
    assert {*told["runs"]} == {PARENT, forked}
    assert {key: there.get(key) for key in there.list("")} == {key: bundle.get(key) for key in bundle.list("")}
    assert dawn(["verify", forked]) == 0
    assert dawn(["import", "bundle.tar"]) == 0
    assert "0 objects are new" in capsys.readouterr().out
    assert dawn(["fork", PARENT, "--message", "go on", "--detach"]) == 0


def test_an_import_that_was_cut_off_is_completed(forked: str) -> None:
    """At any object: before its end no run is there that others could find, and the next one does the rest."""
    bundle = sealed(forked)
    names = list(bundle.list(""))

    class Cut:
        def __init__(self, below: Archive, after: int) -> None:
            self.left, self.size, self.chunks, self.url = after, below.size, below.chunks, below.url
            self.below = below

        def create(self, key: str, data: Any) -> bool:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            return self.below.create(key, data)

    for after in range(len(names)):
        there = MemoryArchive()
        with pytest.raises(KeyboardInterrupt):
            bring_in(bundle, Cut(there, after))  # type: ignore[arg-type]
        for run in there.folders("runs/"):
            if there.size(keys.task(run)) is not None:
                assert Journal(there, run).load().sealed is not None
        assert bring_in(bundle, there).new == len(names) - after
        assert sorted(there.list("")) == names


def test_an_import_refuses_a_conflict_and_writes_nothing(forked: str, elsewhere: Callable[[], Archive]) -> None:
    """Create-only holds for what comes in, too."""
    sealed(forked)
    there = elsewhere()
    there.create(keys.task(PARENT), b"{}")
    assert dawn(["import", "bundle.tar"]) == ExitCode.CONFLICT
    assert list(there.list("")) == [keys.task(PARENT)]


@pytest.mark.parametrize("what", ["review", "cancel"])
def test_an_import_adds_nothing_to_what_is_there(archive: Archive, forked: str, tmp_path: Path, what: str) -> None:
    """Neither a review nor a word to a batch: who made the bundle would approve a patch here, or end a batch."""
    batch = Journal(archive, forked).task().batch
    theirs = open_archive(f"file://{tmp_path}/theirs", Settings())
    bring_in(sealed(forked), theirs)
    if what == "review":
        patch = Journal(archive, PARENT).load().sealed.artifacts["patch.diff"]  # type: ignore[union-attr]
        write_review(theirs, PARENT, Review(n=0, decision="approved", patch=patch, by="them", at=AT))
    else:
        Control(theirs, batch).put("cancel", by="them", at=AT)
    made = index(theirs, [Root(kind="run", id=forked)], [forked], images=False)
    with (path := tmp_path / "more.tar").open("wb") as out:
        write(theirs, made, out)
    before = list(archive.list(""))
    with pytest.raises(ConflictFault, match="is new to what"):
        bring_in(Bundle(f"{SCHEME}{path}"), archive)
    assert list(archive.list("")) == before


def test_a_large_object_comes_in_whole(tmp_path: Path, archive: Archive, make_run: Make) -> None:
    """One that is not held in memory."""
    large = bytes(range(256)) * 40_000
    blob = Journal(archive, "big").put_blob(large)
    make_run("big", claimed(), *ended(artifacts={"summary.md": blob}))
    archive.delete([keys.open_marker("big")])
    made = index(archive, [Root(kind="run", id="big")], ["big"], images=False)
    with (path := tmp_path / "x.tar").open("wb") as out:
        write(archive, made, out)
    there = open_archive(f"file://{tmp_path}/there", Settings())
    bring_in(Bundle(f"{SCHEME}{path}"), there)
    assert there.get(keys.blob("big", blob)) == large


def test_an_object_that_changes_while_it_is_read_is_told(archive: Archive, tmp_path: Path) -> None:
    """No bundle is made that does not prove itself."""
    archive.create("runs/x/y", b"now")
    with pytest.raises(Fault, match="changed while it was read"):
        write(archive, Index(versions={}, roots=(), objects=(("runs/x/y", 3, digest(b"then")),)), io.BytesIO())


def test_a_race_for_a_key_is_a_conflict(forked: str, tmp_path: Path) -> None:
    """Somebody else wrote it between the look and the write."""
    bundle = sealed(forked)
    there = open_archive(f"file://{tmp_path}/there", Settings())

    class Raced:
        url, size, chunks = there.url, there.size, there.chunks

        def create(self, key: str, data: Any) -> bool:
            return there.create(key, b"theirs") and False

    with pytest.raises(ConflictFault):
        bring_in(bundle, Raced())  # type: ignore[arg-type]


def test_a_sealed_end_is_needed(archive: Archive, make_run: Make, tmp_path: Path) -> None:
    """A bundle made by hand of a run that goes on is refused: nobody would go on with it here, or two would."""
    make_run("going", claimed())
    objects = tuple((key, len(data := archive.get(key)), digest(data)) for key in archive.list("runs/"))
    with (path := tmp_path / "x.tar").open("wb") as out:
        write(archive, Index(versions={}, roots=(), objects=objects), out)
    assert any("no seal" in problem for problem in prove(Bundle(f"{SCHEME}{path}")).problems)
