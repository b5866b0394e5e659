"""Fixtures that make runs in a real archive, with the journal a worker would write. Refuses to run anything."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import worker.store
from worker.contract.events import (
    CheckResult,
    Claimed,
    Event,
    Finished,
    PatchStat,
    Replied,
    Reply,
    Sealed,
    ToolCall,
    Usage,
    Verdict,
    canonical,
)
from worker.contract.run import Run
from worker.contract.settings import Settings
from worker.contract.task import Repo, Task
from worker.store import keys
from worker.store.archive import Archive, open_archive
from worker.store.journal import Journal

AT = "2026-11-30T02:00:00.000+00:00"
Make = Callable[..., Run]


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """An archive in a folder."""
    return open_archive(f"file://{tmp_path / 'archive'}", Settings())


@pytest.fixture
def without_stack(tmp_path: Path, archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """DAWN_* of a deployment without a stack, for commands in this process; the archive is the fixture's, and the
    current folder the test's."""
    for name in [name for name in os.environ if name.startswith("DAWN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DAWN_ARCHIVE", archive.url)
    monkeypatch.setenv("DAWN_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def make_run(archive: Archive) -> Make:
    """make_run(id, *events, at=..., **task changes): a submitted run with these events after it."""

    def make(run: str, *events: Event, at: str = AT, **changes: Any) -> Run:
        base: dict[str, Any] = {
            "run": run,
            "batch": "night-0123456789ab",
            "target": "cart",
            "repo": Repo(url="https://git.example.org/cart"),
            "commands": ("true",),
        }
        journal = Journal(archive, run)
        journal.submit(Task(**(base | changes)), by="me@here", at=at)
        folded = journal.load()
        for event in events:
            attempt = None if isinstance(event, Claimed) or folded.attempt is None else folded.attempt
            folded = journal.append(folded, [event], attempt=attempt, at=at)
        return folded

    return make


def claimed(worker: str = "host-1") -> Claimed:
    return Claimed(worker=worker, engine="engine", lane="batch")


def replied(step: int = 1, text: str = "", command: str = "ls", **reply: Any) -> Replied:
    call = ToolCall(id=f"c{step}", name="run_command", arguments=f'{{"command": "{command}"}}')
    usage = Usage(input_tokens=100, output_tokens=10)
    return Replied(
        step=step,
        phase="model",
        context_tokens=1234 * step,
        reply=Reply(text=text, calls=(call,), usage=usage, **reply),
    )


def ended(outcome: str = "changed", **sealed: Any) -> list[Event]:
    return [Finished(text="all done"), Sealed(outcome=outcome, **sealed)]


def audited(archive: Archive, run: str) -> tuple[int, str]:
    """Exit code and words of the program printed in FORMAT.md, run on its own over an archive in a folder."""
    text = (Path(worker.store.__file__).parent / "FORMAT.md").read_text(encoding="utf-8")
    program = text.split("```python\n")[1].split("```")[0]
    command = [sys.executable, "-I", "-c", program, archive.url.removeprefix("file://"), run]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr.strip()


def name_runs(archive: Archive, targets: dict[str, str], batch: str = "night-0123456789ab") -> None:
    """Write the batch's list of runs, as a submit does. targets: the target of each run."""
    entries = [{"target": target, "run": run} for run, target in targets.items()]
    archive.create(keys.batch_targets(batch), canonical({"v": 1, "batch": batch, "targets": entries}))


def checked(verdict: str | None, colour: str = "green", tail: str = "", **patch: Any) -> Verdict:
    """What a clean room measured with one check."""
    check = CheckResult(name="tests", status=colour, exit_code=0 if colour == "green" else 1, tail=tail)
    return Verdict(verdict=verdict, checks=(check,), patch=PatchStat(**patch))
