"""Owns what the roll-up of a journal is: a cache that is never believed, and spares requests where it is sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from hosts import Held

from worker.contract.cancel import Cancel
from worker.contract.events import Claimed, Sealed, Yielded
from worker.contract.redact import Redactor
from worker.contract.run import Run
from worker.contract.task import Repo, Task
from worker.lease import Lease
from worker.ledger import Ledger
from worker.store import keys, rollup
from worker.store.journal import Journal
from worker.store.local import LocalArchive

AT = "2026-12-01T00:00:00.000+00:00"
TASK = Task(run="r", batch="b", target="t", repo=Repo(url="https://example.org/x.git"), commands=("true",))
LONG = 2 * rollup.SPAN + 10


class CountingArchive(LocalArchive):
    """A folder that remembers what was read."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.reads: list[str] = []

    def get(self, key: str, *, max_bytes: int = 256 * 2**20) -> bytes:
        self.reads.append(key)
        return super().get(key, max_bytes=max_bytes)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalArchive, Run]:
    """A run of LONG segments as an attempt wrote it, roll-ups included."""
    archive = LocalArchive(f"file://{tmp_path_factory.mktemp('long')}/archive")
    Journal(archive, "r").submit(TASK, "me", AT)
    ledger = Ledger(Journal(archive, "r"), cast(Lease, Held()), Cancel(), Redactor({}), lambda: AT)
    ledger.claim(Claimed(worker="w", engine="e", lane="batch"))
    while ledger.run.last_seq < LONG - 1:
        ledger.commit(Yielded(why="drain"), Yielded(why="drain"))
    return archive, ledger.run


@pytest.fixture
def archive(written: tuple[LocalArchive, Run], tmp_path: Path) -> CountingArchive:
    """A copy of that archive, whose objects may be changed."""
    copy = CountingArchive(f"file://{tmp_path}/archive")
    for key in written[0].list(""):
        copy.create(key, written[0].get(key))
    return copy


def test_an_attempt_leaves_one_for_each_full_span(archive: CountingArchive) -> None:
    """Two spans are full, the third is not."""
    assert list(archive.list(keys.rollups("r"))) == [keys.rollup("r", 0), keys.rollup("r", rollup.SPAN)]


def test_a_long_run_is_read_with_few_requests(archive: CountingArchive, written: tuple[LocalArchive, Run]) -> None:
    """Two requests a span instead of 256, and the same run comes of it."""
    assert Journal(archive, "r").load() == written[1]
    assert len(archive.reads) == 1 + 2 * 2 + LONG % rollup.SPAN


def ended(archive: LocalArchive, segments: int) -> Run:
    """A run of so many segments, the last of which is its seal, as an attempt wrote it."""
    Journal(archive, "r").submit(TASK, "me", AT)
    ledger = Ledger(Journal(archive, "r"), cast(Lease, Held()), Cancel(), Redactor({}), lambda: AT)
    ledger.claim(Claimed(worker="w", engine="e", lane="batch"))
    while ledger.run.last_seq < segments - 2:
        ledger.commit(Yielded(why="drain"))
    ledger.commit(Sealed(outcome="no_change"))
    return ledger.run


@pytest.mark.parametrize(
    ("segments", "rolled", "alone"), [(3, [], 3), (4, [0], 0), (16, [0], 0), (17, [0], 1), (23, [0, 16], 0)]
)
def test_an_ended_run_is_read_with_few_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segments: int, rolled: list[int], alone: int
) -> None:
    """Also what is behind the last full span has one then, where that saves requests; the same run comes of it."""
    monkeypatch.setattr(rollup, "SPAN", 16)
    archive = CountingArchive(f"file://{tmp_path}/archive")
    run = ended(archive, segments)
    assert list(archive.list(keys.rollups("r"))) == [keys.rollup("r", first) for first in rolled]
    archive.reads.clear()
    assert Journal(archive, "r").load() == run
    assert len(archive.reads) == 1 + 2 * len(rolled) + alone


@pytest.mark.parametrize("kept", [1, 3, 7])
def test_what_follows_a_shorter_one_is_read_from_the_segments(tmp_path: Path, kept: int) -> None:
    """One that was left before the journal went on proves as far as it goes, and hides nothing."""
    archive = CountingArchive(f"file://{tmp_path}/archive")
    run = ended(archive, 10)
    archive.overwrite(keys.rollup("r", 0), b"".join(archive.get(keys.segment("r", number)) for number in range(kept)))
    archive.reads.clear()
    assert Journal(archive, "r").load() == run
    assert len(archive.reads) == 1 + 2 + 10 - kept


@pytest.mark.parametrize(
    "line", [b"", b"[]", b'{"seq": "3"}', b'{"seq": -1}', b'{"seq": 256}', b'{"seq": true}', b"[" * 9999]
)
def test_a_last_line_that_names_no_segment_of_its_span_is_ignored(tmp_path: Path, line: bytes) -> None:
    """Whatever stands there, no other object is asked for, and the segments are read."""
    archive = CountingArchive(f"file://{tmp_path}/archive")
    run = ended(archive, 10)
    archive.overwrite(keys.rollup("r", 0), archive.get(keys.segment("r", 0)) + line + b"\n")
    archive.reads.clear()
    assert Journal(archive, "r").load() == run
    assert sorted(archive.reads) == sorted(
        [keys.task("r"), keys.rollup("r", 0), *(keys.segment("r", number) for number in range(10))]
    )


def without(archive: LocalArchive, key: str) -> None:
    archive.delete([key])


def torn(archive: LocalArchive, key: str) -> None:
    archive.overwrite(key, archive.get(key)[:-1000])


def flipped(archive: LocalArchive, key: str) -> None:
    data = archive.get(key)
    archive.overwrite(key, data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])


def of_others(archive: LocalArchive, key: str) -> None:
    archive.overwrite(key, archive.get(keys.rollup("r", 0)).replace(b'"run":"r"', b'"run":"x"'))


def empty(archive: LocalArchive, key: str) -> None:
    archive.overwrite(key, b"")


def short(archive: LocalArchive, key: str) -> None:
    archive.overwrite(key, archive.get(key).partition(b"\n")[0] + b"\n")


@pytest.mark.parametrize("change", [without, torn, flipped, of_others, empty, short])
def test_a_wrong_one_is_ignored(
    archive: CountingArchive, written: tuple[LocalArchive, Run], change: Callable[[LocalArchive, str], None]
) -> None:
    """Whatever is wrong with a roll-up, the segments are read instead, and the run is the same."""
    change(archive, keys.rollup("r", rollup.SPAN))
    assert Journal(archive, "r").load() == written[1]


def test_a_sound_one_of_another_history_is_ignored(
    archive: CountingArchive, written: tuple[LocalArchive, Run]
) -> None:
    """A roll-up whose chain is whole, but which does not end as the segments do, proves nothing."""
    forged = LocalArchive(archive.url + "-forged")
    journal = Journal(forged, "r")
    journal.submit(TASK, "me", AT)
    run = journal.load()
    for _ in range(rollup.SPAN - 1):
        run = journal.append(run, [Yielded(why="infra")], attempt=1, at=AT)
    archive.overwrite(keys.rollup("r", 0), b"".join(forged.get(keys.segment("r", n)) for n in range(rollup.SPAN)))
    assert Journal(archive, "r").load() == written[1]


def test_verify_never_reads_it(archive: CountingArchive) -> None:
    """Only the segments are evidence: a damaged one is named though a sound roll-up covers it (F44)."""
    archive.overwrite(keys.segment("r", 5), b"{}\n")
    assert Journal(archive, "r").load().last_seq == LONG - 1
    archive.reads.clear()
    (problem,) = Journal(archive, "r").verify()
    assert keys.segment("r", 5) in problem
    assert not any("rollup" in key for key in archive.reads)


def test_reading_on_from_a_number_needs_none(archive: CountingArchive, written: tuple[LocalArchive, Run]) -> None:
    """Whoever followed the run reads only what is new, one by one."""
    journal = Journal(archive, "r")
    assert [record.seq for record, _ in journal.read(LONG - 3)][-1] == LONG - 1
    assert not any("rollup" in key for key in archive.reads)
