"""Owns what a journal promises: a chain that proves itself, one winner of each segment, and linear reading."""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from runs_made import audited

from worker.contract.environment import Baseline, PreparedEnvironment
from worker.contract.errors import (
    ConflictFault,
    IntegrityFault,
    InvalidFault,
    NotFoundFault,
    StoreFault,
    VersionFault,
)
from worker.contract.events import (
    CheckResult,
    Claimed,
    Event,
    Finished,
    Observation,
    Observed,
    Prepared,
    Replied,
    Reply,
    Sealed,
    SnapshotRef,
    Steered,
    Submitted,
    ToolCall,
    Verdict,
    Yielded,
    canonical,
    digest,
)
from worker.contract.run import Run, fold
from worker.contract.settings import Settings
from worker.contract.task import Repo, Task
from worker.store import keys
from worker.store.archive import Archive, open_archive
from worker.store.content import put_content
from worker.store.journal import SEGMENT_BYTES, AppendConflict, Journal
from worker.store.local import LocalArchive

AT = "2026-12-01T00:00:00.000+00:00"
RUN = "r1"
CLAIMED = Claimed(worker="w", engine="e", lane="batch")
TASK = Task(run=RUN, batch="b", target="t", repo=Repo(url="https://example.org/x.git"), commands=("true",))


class CountingArchive(LocalArchive):
    """A folder that counts reads and can lose the answer to a create that took place."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.reads: list[str] = []
        self.lose_answers = False

    def get(self, key: str, *, max_bytes: int = 256 * 2**20) -> bytes:
        self.reads.append(key)
        return super().get(key, max_bytes=max_bytes)

    def create(self, key: str, data: bytes | Path) -> bool:
        created = super().create(key, data)
        if self.lose_answers:
            raise StoreFault("the answer was lost")
        return created


@pytest.fixture
def archive(tmp_path: Path) -> CountingArchive:
    return CountingArchive(f"file://{tmp_path}/archive")


@pytest.fixture
def journal(archive: CountingArchive) -> Journal:
    """A journal with its segment 0."""
    found = Journal(archive, RUN)
    found.submit(TASK, "me", AT)
    return found


def write(journal: Journal, *events: Event) -> Run:
    """One append for each event."""
    run = journal.load()
    for event in events:
        run = journal.append(run, [event], attempt=1, at=AT)
    return run


def damage(archive: LocalArchive, key: str, change: bytes | None) -> None:
    """Replace stored bytes, or remove them when change is None, as a faulty disk would."""
    archive.delete([key])
    if change is not None:
        archive.create(key, change)


def test_submit_writes_task_marker_and_segment(archive: CountingArchive, journal: Journal) -> None:
    """A submitted run has its task, its open marker and `submitted`, chained to the task's digest."""
    assert journal.task() == TASK
    assert list(archive.list("open/")) == [keys.open_marker(RUN)]
    ((record, _),) = journal.read()
    assert record.event == Submitted(by="me")
    assert record.prev == digest(archive.get(keys.task(RUN)))


@pytest.mark.parametrize("lost", [keys.segment(RUN, 0), keys.open_marker(RUN)])
def test_submit_completes_what_is_missing(archive: CountingArchive, journal: Journal, lost: str) -> None:
    """A submit that was cut after task.json or after the marker is completed by the next one."""
    archive.delete([keys.segment(RUN, 0), lost])
    assert journal.submit(TASK, "me", AT)
    assert archive.size(keys.open_marker(RUN)) == 0
    assert journal.load().last_seq == 0


def test_submit_again_changes_nothing(archive: CountingArchive, journal: Journal) -> None:
    """A repeated submit of a sealed run does not open it again."""
    write(journal, Sealed(outcome="cancelled"))
    archive.delete([keys.open_marker(RUN)])
    before = {key: archive.get(key) for key in archive.list("")}
    assert not journal.submit(TASK, "somebody else", AT)
    assert {key: archive.get(key) for key in archive.list("")} == before


def test_one_submitter_of_many_makes_the_run(archive: CountingArchive) -> None:
    """Of 20 submits at once one makes the run, and none fails (F51)."""
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: Journal(archive, RUN).submit(TASK, "me", AT), range(20)))
    assert made.count(True) == 1
    assert [record.event.type for record, _ in Journal(archive, RUN).read()] == ["submitted"]


def test_another_task_under_the_same_run_is_refused(journal: Journal) -> None:
    """A run id names one task for ever."""
    with pytest.raises(ConflictFault):
        journal.submit(TASK.model_copy(update={"commands": ("false",)}), "me", AT)


def test_append_returns_what_load_folds(journal: Journal) -> None:
    """The run after an append is the run that anybody reads; a later read from it adds only what is newer."""
    first = journal.append(journal.load(), [CLAIMED, Yielded(why="drain")], attempt=1, at=AT)
    second = journal.append(first, [CLAIMED], attempt=2, at=AT)
    assert (first.last_seq, second.last_seq) == (1, 2)
    assert journal.load() == second == journal.load(first) == journal.load(second)


def test_a_segment_commits_all_its_events_or_none(journal: Journal) -> None:
    """A losing append of two events leaves neither."""
    run = journal.load()
    journal.append(run, [CLAIMED], attempt=1, at=AT)
    with pytest.raises(AppendConflict):
        journal.append(run, [CLAIMED, Finished()], attempt=1, at=AT)
    assert [record.event.type for record, _ in journal.read()] == ["submitted", "claimed"]


def test_the_loser_is_given_what_won(journal: Journal) -> None:
    """The conflict carries the winner's records, which fold onto the loser's run."""
    run = journal.load()
    after = journal.append(run, [CLAIMED], attempt=1, at=AT)
    with pytest.raises(AppendConflict, match="claimed") as caught:
        journal.append(run, [Sealed(outcome="cancelled")], attempt=None, at=AT)
    assert fold(caught.value.winner, run) == after


def test_one_writer_of_each_segment(archive: CountingArchive, journal: Journal) -> None:
    """Of 16 writers of one number exactly one succeeds, and all losers see the same winner."""
    run = journal.load()

    def claim(n: int) -> str:
        try:
            return journal.append(run, [CLAIMED.model_copy(update={"worker": f"w{n}"})], attempt=1, at=AT).last_hash
        except AppendConflict as conflict:
            return "lost to " + conflict.winner[-1][1]

    with ThreadPoolExecutor(16) as pool:
        ends = set(pool.map(claim, range(16)))
    winner = journal.load().last_hash
    assert ends == {winner, f"lost to {winner}"}


def test_a_lost_answer_is_recognised_by_its_nonce(archive: CountingArchive, journal: Journal) -> None:
    """An append that took place but whose answer was lost is repeated with its nonce and counts once (F38)."""
    run = journal.load()
    archive.lose_answers = True
    with pytest.raises(StoreFault):
        journal.append(run, [CLAIMED], attempt=1, at=AT, nonce="n1")
    archive.lose_answers = False
    after = journal.append(run, [CLAIMED], attempt=1, at="2026-12-01T00:00:05.000+00:00", nonce="n1")
    assert after == journal.load()
    assert after.claims == 1


def test_nothing_follows_the_seal(journal: Journal) -> None:
    """A sealed run takes no more segments."""
    with pytest.raises(ConflictFault, match="sealed"):
        journal.append(write(journal, Sealed(outcome="cancelled")), [CLAIMED], attempt=1, at=AT)


def test_a_segment_that_could_not_be_read_is_not_written(journal: Journal) -> None:
    """A segment over its bound is refused before it is stored."""
    huge = Steered(n=0, kind="message", by="me", text="x" * SEGMENT_BYTES)
    with pytest.raises(InvalidFault):
        journal.append(journal.load(), [huge], attempt=1, at=AT)
    assert journal.load().last_seq == 0


def test_lone_surrogates_survive(journal: Journal) -> None:
    """A model's broken Unicode is stored and read back unchanged (T15)."""
    reply = Replied(step=1, phase="model", reply=Reply(text="a\ud83d", native=[{"x": "\udcff"}]))
    write(journal, CLAIMED, reply)
    assert [record.event for record, _ in journal.read()][-1] == reply


def test_reading_is_linear(archive: CountingArchive, journal: Journal) -> None:
    """Loading reads each segment once; loading since a run reads only newer ones."""
    run = write(journal, *[Yielded(why="drain")] * 150)
    newer = write(journal, Yielded(why="drain"))
    archive.reads.clear()
    assert journal.load() == newer
    assert sorted(archive.reads) == [*(keys.segment(RUN, n) for n in range(152)), keys.task(RUN)]
    archive.reads.clear()
    assert journal.load(run) == newer
    assert archive.reads == [keys.segment(RUN, 151)]


def test_reading_after_a_number_still_proves_the_link(archive: CountingArchive, journal: Journal) -> None:
    """read(after=n) without a hash takes it from segment n, so a forged n + 1 is found."""
    write(journal, CLAIMED, Yielded(why="drain"), CLAIMED)
    assert [record.seq for record, _ in journal.read(after=1)] == [2, 3]
    damage(archive, keys.segment(RUN, 1), forged(archive, 1, worker="forged"))
    with pytest.raises(IntegrityFault, match=r"000000002\.jsonl line 1 does not continue the chain"):
        list(journal.read(after=1))


def forged(archive: Archive, seq: int, **changes: str) -> bytes:
    """Segment seq with another event content, otherwise well-formed."""
    record = json.loads(archive.get(keys.segment(RUN, seq)))
    record["event"] |= changes
    return summed(record)


def summed(record: dict[str, object]) -> bytes:
    """The record as a segment whose own sum is right, as a forger would write it."""
    rest = {name: value for name, value in record.items() if name != "sum"}
    return canonical(rest | {"sum": digest(canonical(rest))}) + b"\n"


def segment(archive: Archive, **changes: object) -> bytes:
    """Segment 2 with other record fields."""
    return summed(json.loads(archive.get(keys.segment(RUN, 2))) | changes)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("torn", "is torn"),
        ("empty", "is torn"),
        ("half a line", "is not a record"),
        ("not a record", "is not a record"),
        ("not an object", "is not a record"),
        ("unknown field", "is not a record"),
        ("missing", "is missing"),
        ("other run", "belongs to segment 2 of run other"),
        ("other number", "belongs to segment 7"),
        ("other prev", "does not continue the chain"),
        ("not UTF-8", "is not a record"),
    ],
)
def test_damage_is_named_by_read_and_verify(
    archive: CountingArchive, journal: Journal, kind: str, named: str
) -> None:
    """Whatever is wrong with segment 2 is raised with its key, never read as valid or skipped (T46, F44)."""
    write(journal, CLAIMED, Yielded(why="drain"), CLAIMED)
    whole = archive.get(keys.segment(RUN, 2))
    changed = {
        "torn": whole[:-1],
        "empty": b"",
        "half a line": whole[:100] + b"\n",
        "not a record": b"{}\n",
        "not an object": b"[1]\n",
        "unknown field": segment(archive, surprise=1),
        "missing": None,
        "other run": segment(archive, run="other"),
        "other number": segment(archive, seq=7),
        "other prev": segment(archive, prev="0" * 64),
        "not UTF-8": b'{"\xff\n',
    }[kind]
    damage(archive, keys.segment(RUN, 2), changed)
    with pytest.raises(IntegrityFault, match=named) as caught:
        journal.load()
    assert keys.segment(RUN, 2) in caught.value.message
    assert named in journal.verify()[0]


def test_a_changed_byte_anywhere_in_a_segment_is_found(archive: CountingArchive, journal: Journal) -> None:
    """Flipping one bit of any byte of a segment, even of the last one, is found (F44)."""
    write(journal, CLAIMED)
    key = keys.segment(RUN, 1)
    whole = archive.get(key)
    for at in range(len(whole)):
        damage(archive, key, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert journal.verify(), f"byte {at}"


def test_a_changed_task_is_found(archive: CountingArchive, journal: Journal) -> None:
    """The chain begins at task.json, so another task does not fit the journal."""
    changed = TASK.model_copy(update={"commands": ("rm -rf .",)})
    damage(archive, keys.task(RUN), canonical(changed.model_dump(mode="json")))
    with pytest.raises(IntegrityFault, match="continue the chain"):
        journal.load()


def test_a_newer_version_is_refused_and_not_called_damaged(archive: CountingArchive, journal: Journal) -> None:
    """A journal or task of a later schema asks for an upgrade (F47)."""
    write(journal, CLAIMED, CLAIMED)
    damage(archive, keys.segment(RUN, 2), segment(archive, v=9, new_field=1))
    with pytest.raises(VersionFault, match="version 9"):
        journal.load()
    damage(archive, keys.task(RUN), b'{"v":9}')
    with pytest.raises(VersionFault, match="version 9"):
        journal.task()


def test_a_run_that_is_not_there(archive: CountingArchive) -> None:
    """An unknown run is named, by every way in."""
    nobody = Journal(archive, "nobody")
    for act in (nobody.load, nobody.task, nobody.verify):
        with pytest.raises(NotFoundFault, match="nobody"):
            act()


def test_blobs_come_back_or_are_found_changed(archive: CountingArchive, journal: Journal, tmp_path: Path) -> None:
    """Bytes and files are stored under their digest; a changed one is refused when read, a missing one too."""
    path = tmp_path / "output"
    path.write_bytes(b"a\0b" * 10**6)
    name = journal.put_blob(path)
    assert name == journal.put_blob(path.read_bytes()) == digest(path.read_bytes())
    assert journal.get_blob(name) == path.read_bytes()
    damage(archive, keys.blob(RUN, name), b"other")
    with pytest.raises(IntegrityFault):
        journal.get_blob(name)
    with pytest.raises(NotFoundFault):
        journal.get_blob("0" * 64)


def test_a_damaged_snapshot_is_refused_at_its_end(archive: CountingArchive, journal: Journal) -> None:
    """A snapshot is streamed, and its last step fails when the digest is wrong."""
    name = journal.put_snapshot(bytes(3 * 2**20))
    assert b"".join(journal.get_snapshot(name)) == bytes(3 * 2**20)
    damage(archive, keys.snapshot(RUN, name), bytes(3 * 2**20 - 1))
    with pytest.raises(IntegrityFault):
        list(journal.get_snapshot(name))


@pytest.mark.parametrize("kind", ["blob", "snapshot", "artifact"])
@pytest.mark.parametrize("change", [b"changed", None])
def test_verify_checks_what_events_name(
    archive: CountingArchive, journal: Journal, kind: str, change: bytes | None
) -> None:
    """A changed or missing blob, snapshot or artifact is a problem that names its key (F44)."""
    blob, snapshot, artifact = journal.put_blob(b"blob"), journal.put_snapshot(b"snap"), journal.put_blob(b"patch")
    write(
        journal,
        CLAIMED,
        Replied(step=1, phase="commands", reply=Reply(calls=(ToolCall(id="c1", name="x", arguments="{}"),))),
        Observed(
            observation=Observation(call_id="c1", tool="x", status="ok", blob=blob),
            snapshot=SnapshotRef(listing="0" * 64, tree="0" * 64, object=snapshot, bytes=4),
        ),
        Sealed(outcome="changed", artifacts={"patch.diff": artifact}),
    )
    assert journal.verify() == []
    key = {
        "blob": keys.blob(RUN, blob),
        "snapshot": keys.snapshot(RUN, snapshot),
        "artifact": keys.blob(RUN, artifact),
    }[kind]
    damage(archive, key, change)
    (problem,) = journal.verify()
    assert key in problem


@pytest.mark.parametrize("lost", ["env.json", "level 0", "baseline", "baseline's blob"])
def test_verify_checks_the_environment(archive: CountingArchive, journal: Journal, lost: str) -> None:
    """What `prepared` names is checked down to the level 0 and the baseline's outputs."""
    key, env_blob = "e" * 64, partial(keys.environment_blob, "e" * 64)
    level_0, output = put_content(archive, env_blob, b"tar"), put_content(archive, env_blob, b"1 failed")
    check = CheckResult(name="tests", status="red", blob=output)
    baseline = canonical(Baseline(checks=(check,)).model_dump(mode="json"))
    archive.create(keys.baseline(key, "0" * 64), baseline)
    environment = PreparedEnvironment(
        key=key,
        commit="c",
        branch="",
        image_name="python",
        image="i",
        snapshot=level_0,
        snapshot_bytes=3,
        listing="0" * 64,
        tree="0" * 64,
        tracked=1,
    )
    stored = canonical(environment.model_dump(mode="json"))
    archive.create(keys.environment(key), stored)
    prepared = Prepared(
        environment_key=key,
        environment=digest(stored),
        baseline=digest(baseline),
        commit="c",
        image="i",
        reused=False,
    )
    write(journal, CLAIMED, prepared, Verdict(verdict="broke", checks=(), baseline=(check,)))
    assert journal.verify() == []
    lost_key = {
        "env.json": keys.environment(key),
        "level 0": env_blob(level_0),
        "baseline": keys.baseline(key, "0" * 64),
        "baseline's blob": env_blob(output),
    }[lost]
    damage(archive, lost_key, b"other")
    (problem,) = journal.verify()
    assert lost_key.rpartition("/")[0] in problem


def test_verify_goes_on_after_a_problem(archive: CountingArchive, journal: Journal) -> None:
    """Two damaged places are two problems, and sound segments after them are none."""
    write(journal, *[Yielded(why="drain")] * 6)
    damage(archive, keys.segment(RUN, 2), b"{}\n")
    damage(archive, keys.segment(RUN, 4), None)
    problems = journal.verify()
    assert len(problems) == 2
    assert "000000002" in problems[0]
    assert "000000004" in problems[1]


@pytest.fixture
def bucket(seaweed: Settings) -> Archive:
    """An archive in a real object store."""
    return open_archive(f"s3://dawn/{uuid.uuid4().hex}", seaweed)


def test_a_journal_in_a_bucket_is_read_in_order(bucket: Archive) -> None:
    """100 segments are fetched side by side and still read in order, each proven."""
    journal = Journal(bucket, RUN)
    journal.submit(TASK, "me", AT)
    run = write(journal, *[Yielded(why="drain")] * 100)
    assert [record.seq for record, _ in journal.read()] == list(range(101))
    assert journal.load() == run
    assert journal.verify() == []


def test_the_auditors_program_agrees(archive: CountingArchive, journal: Journal) -> None:
    """The program printed in FORMAT.md, run on its own, is silent about a sound run and names each damage."""
    blob, snapshot = journal.put_blob(b"output"), journal.put_snapshot(b"tar")
    observed = Observed(
        observation=Observation(call_id="c1", tool="x", status="ok", output="\ud83d", blob=blob),
        snapshot=SnapshotRef(listing="0" * 64, tree="0" * 64, object=snapshot),
    )
    write(journal, CLAIMED, observed, Sealed(outcome="changed", artifacts={"patch.diff": blob}))
    assert audited(archive, RUN) == (0, "")
    for key in (keys.segment(RUN, 2), keys.segment(RUN, 3), keys.blob(RUN, blob), keys.snapshot(RUN, snapshot)):
        whole = archive.get(key)
        damage(archive, key, bytes([whole[0], whole[1] ^ 1]) + whole[2:])
        code, complaint = audited(archive, RUN)
        assert code == 1, key
        assert complaint, key
        damage(archive, key, whole)
