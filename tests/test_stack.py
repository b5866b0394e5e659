"""The embedded stack with a real Valkey and the real scheduler process; only the worker is a stand-in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scheduler.stack import Stack, connected, running
from worker.contract.errors import ConflictFault, Fault
from worker.contract.settings import Settings
from worker.store.hints import Hints

WORKER = """
import os, signal, sys, time
from worker.store.hints import Hints, WorkerOffer
hints = Hints(os.environ["DAWN_REDIS_URL"])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while True:
    hints.offer(WorkerOffer(f"stub-{os.getpid()}", ("interactive", "batch"), 1, 1), 5)
    time.sleep(0.2)
"""
COMMAND = (sys.executable, "-c", WORKER)
OWNER = """
import sys, time
from pathlib import Path
from scheduler.stack import Stack
from worker.contract.settings import Settings
command = (sys.executable, "-c", Path(sys.argv[2]).read_text())
with Stack(Settings(state_dir=Path(sys.argv[1])), say=lambda _: None, worker_command=command):
    print("up", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DAWN_REDIS_URL", "DAWN_ARCHIVE", "DAWN_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)


def stack(folder: Path, **changes: Any) -> Stack:
    said: list[str] = []
    settings = Settings(state_dir=folder, **changes)
    return Stack(settings, say=said.append, worker_command=COMMAND)


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def workers(settings: Settings) -> list[int]:
    """Process ids of the stand-ins that offer slots."""
    hints = Hints(str(settings.redis_url))
    return [int(offer.name.removeprefix("stub-")) for offer in hints.workers()]


def led(redis_url: str) -> bool:
    """Whether a scheduler leads there."""
    return bool(Hints(redis_url).held(["scheduler"]))


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def other_owner(folder: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that owns the stack of a folder."""
    stub = tmp_path / "stub.py"
    stub.write_text(WORKER)
    command = [sys.executable, "-c", OWNER, str(folder), str(stub)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        yield owner
        owner.kill()


def test_a_stack_comes_up_and_goes(tmp_path: Path) -> None:
    """Inside the block workers offer slots; after it nothing runs and nothing is recorded."""
    before = children(os.getpid())
    with stack(tmp_path) as up:
        assert up.owned
        pids = [pid for pid in children(os.getpid()) if pid not in before]
        assert running(up.settings) is not None
    assert len(pids) == 3
    assert not [pid for pid in pids if alive(pid)]
    assert running(up.settings) is None


def test_what_a_stack_writes_is_the_users_alone(tmp_path: Path) -> None:
    """The address of Redis in stack.json may hold a password, and logs hold what repositories said."""
    with stack(tmp_path):
        written = [tmp_path / "stack.json", *(tmp_path / "logs").iterdir()]
        assert [path for path in written if path.stat().st_mode & 0o077] == []


def test_two_stacks_on_two_folders_do_not_clash(tmp_path: Path) -> None:
    """Each has its own Redis and its own workers."""
    with stack(tmp_path / "a") as first, stack(tmp_path / "b") as second:
        assert first.settings.redis_url != second.settings.redis_url
        assert not set(workers(first.settings)) & set(workers(second.settings))


def test_a_long_path_still_has_a_socket(tmp_path: Path) -> None:
    """The kernel limits a socket's path to 107 bytes."""
    with stack(tmp_path / ("x" * 120)) as up:
        assert workers(up.settings)


def test_a_worker_that_dies_is_started_again(tmp_path: Path, wait_until: Callable[..., Any]) -> None:
    """kill -9 of the worker costs a moment, not the stack."""
    with stack(tmp_path) as up:
        [first] = workers(up.settings)
        os.kill(first, signal.SIGKILL)

        def another() -> bool:
            up.tend()
            return bool(set(workers(up.settings)) - {first})

        assert wait_until(another)


def test_a_worker_that_cannot_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    """The user reads why, and where the log lies."""
    broken = (sys.executable, "-c", "raise SystemExit('no engine answers')")
    with (
        pytest.raises(Fault, match="no engine answers") as caught,
        Stack(Settings(state_dir=tmp_path), say=lambda _: None, worker_command=broken),
    ):
        pass
    assert "dawn doctor" in caught.value.hint
    assert running(Settings(state_dir=tmp_path)) is None


def test_children_die_with_a_parent_that_is_killed(tmp_path: Path, wait_until: Callable[..., Any]) -> None:
    """kill -9 of the owner leaves no Valkey, scheduler or worker behind."""
    with other_owner(tmp_path / "state", tmp_path) as owner:
        pids = children(owner.pid)
        assert len(pids) == 3
        owner.kill()
        owner.wait()
        assert wait_until(lambda: not [pid for pid in pids if alive(pid)])


def test_a_second_command_uses_the_running_stack_and_takes_it_over(
    tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    """A guest's runs do not end with the owner: the guest becomes the owner."""
    with other_owner(tmp_path / "state", tmp_path) as owner, stack(tmp_path / "state") as guest:
        assert not guest.owned
        before = workers(guest.settings)
        owner.kill()
        owner.wait()

        def taken_over() -> bool:
            guest.tend()
            return guest.owned

        assert wait_until(taken_over)
        assert set(workers(guest.settings)) - set(before)


def test_a_stack_on_another_archive_is_not_used(tmp_path: Path) -> None:
    """Runs written to one archive are never found by workers of another."""
    with (
        other_owner(tmp_path / "state", tmp_path),
        pytest.raises(ConflictFault, match="uses the archive"),
        stack(tmp_path / "state", archive="file:///elsewhere"),
    ):
        pass


@pytest.mark.parametrize("version", ["0.0.9", "99.0", None])
def test_a_stack_of_another_version_is_not_used(tmp_path: Path, version: str | None) -> None:
    """Older, newer, or from before versions were recorded: no command talks to it, and it is said what to do."""
    with stack(tmp_path) as up:
        record = json.loads((tmp_path / "stack.json").read_text())
        assert connected(Settings(state_dir=tmp_path)).redis_url == up.settings.redis_url
        record.pop("version") if version is None else record.update(version=version)
        (tmp_path / "stack.json").write_text(json.dumps(record))
        for settings in (Settings(state_dir=tmp_path), up.settings):
            with pytest.raises(ConflictFault, match=f"is of version {version or 'unknown'}") as caught:
                Stack(settings, say=lambda _: None, worker_command=COMMAND).__enter__()
            assert "start it again" in caught.value.hint
        with pytest.raises(ConflictFault, match="of version"):
            connected(Settings(state_dir=tmp_path))


def test_a_named_redis_with_workers_is_used_as_it_is(tmp_path: Path, wait_until: Callable[..., Any]) -> None:
    """Nothing is started beside a deployment that has workers and a scheduler."""
    with stack(tmp_path / "a") as up:
        wait_until(lambda: led(str(up.settings.redis_url)))
        named = Settings(state_dir=tmp_path / "b", redis_url=up.settings.redis_url)
        with Stack(named, say=lambda _: None, worker_command=COMMAND) as guest:
            assert not guest.owned
            assert len(workers(guest.settings)) == 1
        assert not (tmp_path / "b").exists()


def test_workers_without_a_scheduler_get_one(tmp_path: Path, redis_url: str, wait_until: Callable[..., Any]) -> None:
    """Otherwise a run would wait for ever and say nothing."""
    said: list[str] = []
    with subprocess.Popen(COMMAND, env=os.environ | {"DAWN_REDIS_URL": redis_url}) as worker:
        named = Settings(state_dir=tmp_path, redis_url=redis_url)
        assert wait_until(lambda: workers(named))
        with Stack(named, say=said.append, worker_command=COMMAND):
            assert wait_until(lambda: led(redis_url))
            assert workers(named) == [worker.pid]
        assert wait_until(lambda: not led(redis_url))
        worker.kill()
    assert "no scheduler" in said[0]


def test_without_a_stack_the_settings_stay_as_they_are(tmp_path: Path) -> None:
    """A stale record of a stack that was killed is not believed."""
    (tmp_path / "stack.json").write_text('{"pid": 1, "redis_url": "unix:///gone", "archive": "file:///x"}')
    (tmp_path / "stack.lock").touch()
    settings = Settings(state_dir=tmp_path)
    assert connected(settings) == settings
