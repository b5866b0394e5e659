"""What is damaged in an archive hides nothing beside it: not from the pages, and not from `dawn status`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from runs_made import Make, claimed, ended, name_runs, replied
from starlette.testclient import TestClient

from scheduler import runs
from scheduler.runs import Found
from scheduler.verify import check
from worker.contract.errors import IntegrityFault
from worker.store.archive import Archive
from worker.store.members import members

Visit = Callable[..., TestClient]
SOUND: Final = "night-0123456789ab"
BAD: Final = "other-0123456789ab"
PAGES: Final = ("/", "/batches", f"/batches/{SOUND}", "/runs/good", "/review", "/approvals", "/search?repo=c")
DEEP: Final = b"[" * 100_000


def _newer(data: bytes) -> bytes:
    return re.sub(rb'"v":\d', b'"v":99', data)


def _list(run: str) -> bytes:
    return b'{"batch":"%s","targets":[{"run":"%s","target":"x"}],"v":1}' % (BAD.encode(), run.encode())


DAMAGE: Final[dict[str, tuple[str, Callable[[bytes], bytes]]]] = {
    "a list that is none": (f"batches/{BAD}/targets.json", lambda _: b"\xff garbage"),
    "a list nested too deeply": (f"batches/{BAD}/targets.json", lambda _: DEEP),
    "a list that leads out": (f"batches/{BAD}/targets.json", lambda _: _list("../../etc")),
    "a list of control characters": (f"batches/{BAD}/targets.json", lambda _: _list("a\\u0000b")),
    "a list of half a letter": (f"batches/{BAD}/targets.json", lambda _: _list("a\\ud800b")),
    "a retry that is none": (f"batches/{BAD}/retries/000000.json", lambda _: b"{}"),
    "a message that is none": (f"batches/{BAD}/control/000000.json", lambda _: DEEP),
    "a newer task": ("runs/bad/task.json", _newer),
    "a newer journal": ("runs/bad/journal/000000000.jsonl", _newer),
    "a journal nested too deeply": ("runs/bad/journal/000000000.jsonl", lambda _: DEEP + b"\n"),
    "a marker of no run": ("open/no\nrun", lambda _: b""),
    "a fork's manifest nested too deeply": ("batches/fork-0123456789ab/manifest.yaml", lambda _: DEEP),
}


@pytest.fixture
def night(archive: Archive, make_run: Make) -> Path:
    """Two batches with a run each, the second of which is going on. Where they lie."""
    make_run("good", claimed(), replied(), *ended())
    make_run("bad", claimed(), replied(), batch=BAD)
    name_runs(archive, {"good": "cart"})
    name_runs(archive, {"bad": "cart"}, BAD)
    return Path(archive.url.removeprefix("file://"))


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_hides_nothing_beside_it(archive: Archive, night: Path, visit: Visit, what: str) -> None:
    """A batch or run that cannot be read, or is newer, is told on its own page; every other page is shown."""
    name, change = DAMAGE[what]
    path = night / name
    before = path.read_bytes() if path.exists() else b""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(change(before))
    client = visit()
    assert {page: client.get(page).status_code for page in PAGES} == dict.fromkeys(PAGES, 200)
    assert "good" in [run for one in runs.batches(archive) for run in one.runs]


def test_a_batch_says_that_its_runs_cannot_be_named(night: Path, visit: Visit) -> None:
    """The list of batches names what is wrong with one, and the others as ever."""
    (night / f"batches/{BAD}/targets.json").unlink()
    (night / f"batches/{BAD}/targets.json").write_bytes(b"garbage")
    text = visit().get("/batches").text
    assert "targets.json is not what was written" in text
    assert f'href="/batches/{SOUND}"' in text


@pytest.mark.parametrize("run", ["../../etc", "", "a/b", ".hidden", "a\\n"])
def test_a_batch_names_runs_only(archive: Archive, night: Path, run: str) -> None:
    """What no run can be called stands in no list that was written."""
    (night / f"batches/{BAD}/targets.json").unlink()
    (night / f"batches/{BAD}/targets.json").write_bytes(_list(run))
    with pytest.raises(IntegrityFault, match="can be no run"):
        members(archive, BAD)


def test_a_list_nested_too_deeply_is_named_by_verify(archive: Archive, night: Path) -> None:
    """`dawn verify` tells of it and goes on."""
    (night / f"batches/{BAD}/targets.json").unlink()
    (night / f"batches/{BAD}/targets.json").write_bytes(DEEP)
    assert any("targets.json" in problem for problem in check(archive, Found("batch", BAD)).problems)


def test_a_batch_that_names_runs_without_end_costs_the_others_nothing(archive: Archive, night: Path) -> None:
    """A list of hundreds of runs that are not there is not looked through to tell when it was submitted."""
    name_runs(archive, {f"none-{number}": f"t{number}" for number in range(300)}, "huge-0123456789ab")
    asked = Asking(archive)
    assert [len(one.runs) for one in runs.batches(asked)] == [300, 1, 1]
    assert asked.gets < 50


class Asking:
    """An archive that counts what is read of it."""

    def __init__(self, archive: Archive) -> None:
        self._archive, self.gets = archive, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive, name)

    def get(self, *args: Any, **named: Any) -> bytes:
        self.gets += 1
        return self._archive.get(*args, **named)
