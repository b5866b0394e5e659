"""Owns the commands for what an archive keeps: what verify finds, what gc takes and leaves, what rebuild asks for."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from runs_made import AT, Make, claimed, ended, replied

from scheduler.cli.main import run as dawn
from scheduler.enqueue import freeze, submit
from scheduler.fork import Wish, fork
from scheduler.gc import Garbage, collect
from scheduler.manifests.reading import parse
from worker.contract.environment import PreparedEnvironment
from worker.contract.events import Observation, Observed, Prepared, Sealed, canonical, digest
from worker.contract.settings import Settings
from worker.contract.task import Limits, Repo
from worker.store import keys
from worker.store.archive import Archive
from worker.store.content import put_content
from worker.store.hints import Hints
from worker.store.inbox import Inbox
from worker.store.journal import Journal

DAY_S = 86400
NOW = datetime.fromisoformat(AT) + timedelta(days=100)
TEXT = "version: 1\nname: night\ntargets: [{repo: https://git.example.org/a}]\ntask: {commands: [fix]}\n"

pytestmark = pytest.mark.usefixtures("without_stack")


def prepared(archive: Archive, key: str, *, image: bytes = b"") -> Prepared:
    """An environment in the archive, with a stored image where bytes are given."""
    level_0 = put_content(archive, lambda name: keys.environment_blob(key, name), key.encode())
    stored = put_content(archive, lambda name: keys.image("sha256:i", name), image) if image else None
    environment = PreparedEnvironment(
        key=key, commit="c", branch="", image_name="python", image="sha256:i", stored_image=stored,
        snapshot=level_0, snapshot_bytes=9, listing=digest(b""), tree=digest(b""), tracked=1,
    )  # fmt: skip
    data = canonical(environment.model_dump(mode="json"))
    archive.create(keys.environment(key), data)
    return Prepared(environment_key=key, environment=digest(data), commit="c", image="i", reused=False)


def make_old(archive: Archive, prefix: str = "") -> None:
    """Everything under prefix was written a year ago."""
    for key in archive.list(prefix):
        then = time.time() - 365 * DAY_S
        os.utime(Path(archive.url.removeprefix("file://")) / key, (then, then))


def gc(archive: Archive, *, days: float = 90, dry_run: bool = False) -> Garbage:
    return collect(archive, keep_s=days * DAY_S, now=NOW, dry_run=dry_run)


def sealed_run(archive: Archive, make_run: Make, name: str = "old", key: str = "a" * 64, **task: object) -> None:
    """An old run that ended, with an environment, a blob that it names, and its marker gone."""
    blob = Journal(archive, name).put_blob(name.encode())
    seen = Observed(observation=Observation(call_id="c1", tool="run_command", status="ok", blob=blob))
    make_run(name, claimed(), prepared(archive, key), replied(), seen, *ended(), **task)
    archive.delete([keys.open_marker(name)])


def test_a_sound_run_is_told_with_what_was_looked_at(
    archive: Archive, make_run: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """verify prints counts and the hash of the last line, and exits 0."""
    sealed_run(archive, make_run)
    assert dawn(["verify", "old", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "dawn.verify/1"
    assert (told["segments"], told["events"], told["problems"]) == (7, 7, [])
    assert told["tails"]["old"] == {"seq": 6, "hash": Journal(archive, "old").load().last_hash}
    assert (told["objects"], told["bytes"]) == (2, 3 + 64)


def flip(archive: Archive, key: str) -> None:
    """Change one bit in the middle of an object, as a faulty disk would."""
    data = archive.get(key)
    at = len(data) // 2
    archive.delete([key])
    archive.create(key, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


@pytest.mark.parametrize("what", ["segment", "blob", "level 0", "image", "env.json"])
def test_a_flipped_byte_of_a_run_is_named(
    archive: Archive, make_run: Make, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    """Exit code 11 and the key of what is damaged, wherever it is (F44)."""
    blob = Journal(archive, "old").put_blob(b"output")
    seen = Observed(observation=Observation(call_id="c1", tool="run_command", status="ok", blob=blob))
    event = prepared(archive, "a" * 64, image=b"tar")
    make_run("old", claimed(), event, replied(), seen, *ended())
    key = {
        "segment": keys.segment("old", 3),
        "blob": keys.blob("old", blob),
        "level 0": keys.environment_blob("a" * 64, digest(b"a" * 64)),
        "image": keys.image("i", digest(b"tar")),
        "env.json": keys.environment("a" * 64),
    }[what]
    flip(archive, key)
    assert dawn(["verify", "old"]) == 11
    assert f"WRONG  {key}" in capsys.readouterr().out


def test_every_byte_of_a_batchs_files_is_bound(archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    """A bit flipped anywhere in manifest.yaml or targets.json is named, exit code 11 (F44)."""
    loaded = parse(TEXT, "m", Path("/"), Limits())
    batch = freeze(loaded, [Repo(url="https://git.example.org/a", label="a")])
    submit(batch, archive, by="me", at=AT)
    assert dawn(["verify", batch.id]) == 0
    for key in (keys.batch_manifest(batch.id), keys.batch_targets(batch.id)):
        whole = archive.get(key)
        for at in range(0, len(whole), 7):
            archive.delete([key])
            archive.create(key, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert dawn(["verify", batch.id]) == 11, f"{key} byte {at}"
        archive.delete([key])
        archive.create(key, whole)
    capsys.readouterr()


def test_a_journal_cut_off_at_its_end_is_found(
    archive: Archive, make_run: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that ended but has no seal any more is not taken for one that goes on."""
    sealed_run(archive, make_run)
    archive.delete([keys.segment("old", 6)])
    assert dawn(["verify", "old"]) == 11
    assert keys.segment("old", 5) in capsys.readouterr().out


def test_an_expired_batch_goes_with_all_it_alone_names(archive: Archive, make_run: Make) -> None:
    """Run, environment, batch files and day markers are removed; a second gc finds nothing."""
    sealed_run(archive, make_run)
    archive.create(keys.batch_manifest("night-0123456789ab"), b"x")
    archive.create(keys.day_marker("2026-11-30", "old"), b"")
    make_old(archive)
    gc(archive)
    assert list(archive.list("")) == []
    assert not any(gc(archive).found.values())


def test_a_dry_run_only_tells(archive: Archive, make_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """--dry-run prints what would go and leaves it."""
    sealed_run(archive, make_run)
    before = list(archive.list(""))
    assert dawn(["gc", "--dry-run", "--older-than", "0"]) == 0
    assert "runs/old/" in capsys.readouterr().out.split()
    assert list(archive.list("")) == before


def test_a_young_batch_stays_whole(archive: Archive, make_run: Make) -> None:
    """Nothing expires before its time."""
    sealed_run(archive, make_run)
    before = list(archive.list(""))
    gc(archive, days=101)
    assert list(archive.list("")) == before


def test_a_batch_with_an_open_run_stays_whole(archive: Archive, make_run: Make) -> None:
    """One run that is not sealed keeps its batch, and the environments that it may yet find."""
    sealed_run(archive, make_run)
    make_run("open", claimed())
    sealed_run(archive, make_run, "other", "b" * 64, batch="other-0123456789ab")
    make_old(archive)
    garbage = gc(archive)
    assert garbage.found["expired runs"] == ["runs/other/"]
    assert "not prepared" in garbage.notes[0]
    assert Journal(archive, "old").verify() == []
    assert archive.size(keys.environment("b" * 64)) is not None


def test_an_ancestor_of_a_kept_run_stays(archive: Archive, make_run: Make) -> None:
    """A fork of a fork keeps both runs that it comes from, and they still verify."""
    prompt = {"model": "anthropic/x", "prompt": "Fix it."}
    sealed_run(archive, make_run, **prompt)
    for parent in ("old", "run"):
        name = next(run for run in archive.folders("runs/") if run.startswith(parent))
        made = fork(archive, name, Wish(message="go on"), key="")
        submit(made.batch, archive, by="me", at=AT if parent == "old" else NOW.isoformat())
        journal = Journal(archive, made.batch.tasks[0].run)
        run = journal.append(journal.load(), [claimed()], attempt=1, at=AT)
        run = journal.append(run, [replied(2)], attempt=1, at=AT)
        if parent == "old":
            journal.append(run, [Sealed(outcome="cancelled")], attempt=1, at=AT)
            archive.delete([keys.open_marker(journal.run)])
    make_old(archive)
    before = list(archive.list("runs/"))
    garbage = gc(archive)
    assert list(archive.list("runs/")) == before
    assert garbage.found["environments"] == []
    assert [problem for run in archive.folders("runs/") for problem in Journal(archive, run).verify()] == []


def test_what_nothing_names_goes_after_a_week(archive: Archive, make_run: Make) -> None:
    """Of a kept run that ended, old objects without a name are removed; young ones and named ones stay."""
    sealed_run(archive, make_run)
    old, named = Journal(archive, "old").put_blob(b"garbage"), digest(b"old")
    source = put_content(archive, keys.source, b"packed")
    image = put_content(archive, lambda name: keys.image("i", name), b"tar")
    make_old(archive)
    young = Journal(archive, "old").put_snapshot(b"young")
    gc(archive, days=101)
    left = set(archive.list(""))
    assert {keys.blob("old", named), keys.snapshot("old", young)} < left
    assert not {keys.blob("old", old), keys.source(source), keys.image("i", image)} & left


def test_an_unsealed_run_loses_no_blob(archive: Archive, make_run: Make) -> None:
    """What a living writer uploaded and has not named yet looks like garbage, and stays."""
    blob = Journal(archive, "open").put_blob(b"about to be named")
    make_run("open", claimed(), prepared(archive, "a" * 64))
    make_old(archive)
    gc(archive)
    assert archive.size(keys.blob("open", blob)) is not None


def test_a_run_that_cannot_be_read_keeps_everything_it_may_name(archive: Archive, make_run: Make) -> None:
    """A damaged run is kept and told, and no environment, image or source goes while it is there."""
    sealed_run(archive, make_run)
    flip(archive, keys.segment("old", 1))
    put_content(archive, keys.source, b"packed")
    make_old(archive)
    before = list(archive.list(""))
    garbage = gc(archive)
    assert "old is kept" in garbage.notes[0]
    assert list(archive.list("")) == before


def test_a_gc_that_was_cut_off_is_finished(archive: Archive, make_run: Make) -> None:
    """A run whose task is gone is nobody's: the next gc takes the rest."""
    sealed_run(archive, make_run)
    archive.delete([keys.task("old")])
    make_old(archive)
    gc(archive)
    assert list(archive.list("")) == []


def test_closing_the_inbox_of_a_damaged_run(archive: Archive, make_run: Make) -> None:
    """The end of a damaged run closes its inbox and removes its marker (T46)."""
    from worker.contract.errors import IntegrityFault
    from worker.store.damage import end_damaged

    run = make_run("old", claimed(), replied())
    flip(archive, keys.segment("old", run.last_seq))
    assert end_damaged(archive, "old", IntegrityFault("torn"), by="me", at=AT)
    assert archive.size(keys.open_marker("old")) is None
    assert [message.kind for message in Inbox(archive, "old").read()] == ["closed"]


def test_rebuild_without_a_stack_says_that_none_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 10 and the way on."""
    assert dawn(["rebuild"]) == 10
    assert "dawn up" in capsys.readouterr().err


def test_rebuild_makes_the_scheduler_read_anew(
    archive: Archive, make_run: Make, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The epoch goes, a lease stays; the scheduler's next round sets a new epoch, and then the command is done."""
    import threading

    from scheduler.tick import Scheduler

    monkeypatch.setenv("DAWN_REDIS_URL", redis_url)
    make_run("open")
    hints, stop = Hints(redis_url), threading.Event()
    hints.start_epoch("before")
    hints.claim("run:open", "token", 60)
    hints.rung("open", "batch", 60)
    scheduler = Scheduler(archive, hints, lambda run, lane: None, Settings(tick_s=0.05), lambda: datetime.now(UTC))
    thread = threading.Thread(target=scheduler.run, args=(stop,))
    thread.start()
    try:
        assert dawn(["rebuild"]) == 0
    finally:
        stop.set()
        thread.join()
    assert hints.epoch() not in (None, "before")
    assert hints.held(["run:open"]) == {"run:open"}
    assert hints.outstanding() == {}


@pytest.mark.parametrize("option", ["repo", "ref", "image", "setup"])
def test_another_environment_is_no_fork(capsys: pytest.CaptureFixture[str], option: str) -> None:
    """Exit code 2, with the reason (T48)."""
    assert dawn(["fork", "old", f"--{option}", "x"]) == 2
    assert f"another {option} it is not a fork" in capsys.readouterr().err


def test_a_refused_fork_lists_the_differences(
    archive: Archive, make_run: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 3, each difference on a line, no traceback (T48)."""
    sealed_run(archive, make_run, model="anthropic/x", prompt="Fix it.")
    assert dawn(["fork", "old", "--model", "openai/y", "--message", "m", "--detach"]) == 3
    said = capsys.readouterr().err
    assert "model: anthropic/x -> openai/y" in said
    assert "--allow model" in said
    assert "Traceback" not in said


def test_a_detached_fork_waits_for_a_stack(
    archive: Archive, make_run: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fork is written, its batch is printed, and show tells where it comes from."""
    sealed_run(archive, make_run, model="anthropic/x", prompt="Fix it.")
    assert dawn(["fork", "old", "--limit", "steps=80", "--message", "go on", "--detach", "--json"]) == 0
    (batch,) = json.loads(capsys.readouterr().out)["batches"]
    assert dawn(["show", batch["runs"][0]]) == 0
    assert "from old at step 1, told: go on" in capsys.readouterr().out
