"""What a person says of windows, schedules and start times on the command line, and reads of them."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from runs_made import Make

from scheduler.cli.main import run
from scheduler.schedules import stored
from scheduler.schedules.firing import Firings
from worker.contract.window import Window
from worker.store.archive import Archive
from worker.store.hints import Hints
from worker.store.journal import Journal

pytestmark = pytest.mark.usefixtures("without_stack")

MANIFEST = """
version: 1
name: nightly
targets: [{repo: cart}]
task: {commands: ["true"]}
"""
SCHEDULE = "schedule: {cron: '30 1 * * *', zone: America/New_York}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "cart").mkdir()
    (tmp_path / "cart" / "a.txt").write_text("old")
    path = tmp_path / "fleet.yaml"
    path.write_text(MANIFEST + SCHEDULE)
    return path


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert run(words) == code
    return "".join(capsys.readouterr())


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert run([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_schedule_is_registered_once_and_says_when_it_is_due(
    file: Path, archive: Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    """In its zone and in UTC; the same again changes nothing."""
    text = said(capsys, "schedule", "add", str(file))
    assert "registered: due next" in text
    assert "01:30 America/New_York (" in text
    assert "packed now" in text
    assert "there already" in said(capsys, "schedule", "add", str(file))
    [row] = shown(capsys, "schedule", "ls")["schedules"]
    assert (row["name"], row["cron"], row["last"], row["missed"]) == ("nightly", "30 1 * * *", None, 0)
    assert row["next"][0]["local"][11:16] == "01:30"
    assert len(shown(capsys, "schedule", "next", "nightly", "-n", "3")["next"]) == 3


def test_what_lies_on_this_machine_is_what_it_was_at_registration(
    file: Path, archive: Archive, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that is changed, or gone, changes nothing of what fires."""
    said(capsys, "schedule", "add", str(file))
    (file.parent / "cart" / "a.txt").unlink()
    (file.parent / "cart").rmdir()
    foretold = said(capsys, "schedule", "run-now", "nightly").splitlines()
    hints = Hints(redis_url)
    assert Firings(archive, hints, 60).act(datetime.now(UTC), ())
    hints.close()
    [batch] = archive.folders("batches/")
    assert batch in foretold
    [fired] = [Journal(archive, one).task() for one in archive.folders("runs/")]
    assert fired.batch == batch
    assert stored.sources(archive) == {fired.repo.source}
    capsys.readouterr()
    [row] = shown(capsys, "schedule", "ls")["schedules"]
    assert (row["last"]["what"], row["last"]["batch"]) == ("fired", batch)


def test_a_schedule_is_paused_and_let_go_on_and_removed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What counts is what was said last."""
    said(capsys, "schedule", "add", str(file))
    said(capsys, "schedule", "pause", "nightly")
    [row] = shown(capsys, "schedule", "ls")["schedules"]
    assert row["paused_by"]
    assert row["next"] == []
    assert "due next" in said(capsys, "schedule", "unpause", "nightly")
    said(capsys, "schedule", "rm", "nightly")
    assert shown(capsys, "schedule", "ls")["schedules"] == []
    assert "no schedule 'nightly'" in said(capsys, "schedule", "pause", "nightly", code=10)


def test_a_manifest_with_a_schedule_is_not_submitted_by_hand(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what to type instead."""
    assert "dawn schedule add" in said(capsys, "submit", str(file), "--detach", code=3)
    file.write_text(MANIFEST)
    assert "has no schedule" in said(capsys, "schedule", "add", str(file), code=3)


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "UTC"])
def test_a_batch_starts_at_a_moment(
    file: Path, archive: Archive, zone: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """T61: a time without a zone is refused, one with a zone is echoed in UTC, and the same on both hosts."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        file.write_text(MANIFEST)
        refused = said(capsys, "submit", str(file), "--detach", "--at", "2036-12-01T02:00", code=3)
        assert "names no time zone" in refused
        text = said(capsys, "submit", str(file), "--detach", "--at", "2036-12-01T02:00 Europe/Berlin")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert "2036-12-01T01:00:00Z" in text
    [name] = archive.folders("runs/")
    assert Journal(archive, name).task().start_at == "2036-12-01T01:00:00.000+00:00"


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("window: {open: '22:00', close: '06:00'}", "window.zone"),
        ("window: {open: '22:00', close: '25:00', zone: Europe/Berlin}", "window.close"),
        ("window: {open: '22:00', close: '06:00', zone: Atlantis}", "window.zone"),
        ("schedule: {cron: '30 1 * * *'}", "schedule.zone"),
        ("schedule: {cron: 'at noon', zone: UTC}", "schedule.cron"),
        ("start_at: '2026-12-01T02:00'", "start_at"),
    ],
)
def test_what_makes_no_sense_is_named_with_its_place(
    file: Path, line: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """File, line and column, and the value's path."""
    file.write_text(MANIFEST + line)
    text = said(capsys, "submit", str(file), "--detach", code=3)
    assert f"{file}:6:" in text
    assert where in text


def test_a_run_says_until_when_its_window_is_closed(make_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """In status and in show, before anybody began it."""
    today = Window(open="00:00", close="00:00", zone="UTC", days=("mon",))
    closed = next(
        window
        for window in (today, today.model_copy(update={"days": ("thu",)}))
        if window.closed_until(datetime.now(UTC)) is not None
    )
    make_run("a", window=closed)
    assert "window until" in said(capsys, "status", "a")
    assert "window until" in said(capsys, "show", "a")
