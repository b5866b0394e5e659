"""Owns what a very long run costs the server of the pages: memory and requests, not time (that is a benchmark)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import long_runs
import pytest
from starlette.testclient import TestClient
from webs import site_of

from worker.store import keys, rollup
from worker.store.local import LocalArchive

STEPS = 5_000
OUTPUT_BYTES = 29_500
HUGE = {2_500: 50_000_000}
MIB = 2**20
PROGRAM = """
import json, sys
from starlette.testclient import TestClient
from webs import HOST, ORIGIN, site_of
from scheduler.web.door.app import create
from worker.store.local import LocalArchive

def high_water_bytes():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

client = TestClient(create(site_of(LocalArchive(sys.argv[1])), {HOST}), base_url=ORIGIN)
client.get("/enter", params={"token": "look"})
client.get("/")
before = high_water_bytes()
told = {}
for page in json.loads(sys.argv[2]):
    with client.stream("GET", page) as answer:
        told[page] = [answer.status_code, sum(len(chunk) for chunk in answer.iter_bytes(2**20))]
print(json.dumps({"pages": told, "more_bytes": high_water_bytes() - before}))
"""


class Counting(LocalArchive):
    """A folder that remembers what was read of it, ranges too."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.reads: list[str] = []

    def get(self, key: str, *, max_bytes: int = 256 * 2**20) -> bytes:
        self.reads.append(key)
        return super().get(key, max_bytes=max_bytes)


def test_a_page_of_steps_reads_no_step(tmp_path: Path, visit: Callable[..., TestClient]) -> None:
    """A run of 600 steps is read by its roll-ups, once; a page of it after that reads nothing, and a step its own two
    segments."""
    long_runs.write(tmp_path / "archive", long_runs.task(), long_runs.conversation(600, 200))
    archive = Counting(f"file://{tmp_path}/archive")
    client = visit("look", of=site_of(archive))
    assert "601" in client.get("/runs/long/steps").text
    segments = [key for key in archive.reads if key.startswith(keys.journal("long"))]
    assert len([key for key in archive.reads if key.startswith(keys.rollups("long"))]) == 1203 // rollup.SPAN
    assert len(segments) == 1203 // rollup.SPAN + 1203 % rollup.SPAN
    archive.reads.clear()
    last = client.get("/runs/long/steps", params={"page": "7", "as": "json"}).json()["data"]
    assert [one["row"]["number"] for one in last["rows"]] == [600]
    assert [key for key in archive.reads if "/journal/" in key or "/rollup/" in key] == []
    client.get("/runs/long/steps/s300")
    assert [key for key in archive.reads if "/journal/" in key] == [keys.segment("long", n) for n in (600, 601)]


@pytest.mark.full
def test_a_run_of_5000_steps_needs_little_memory(tmp_path: Path) -> None:
    """Of 200 MB with a step of 50 MB the server holds less than 200 MB more, whichever of its pages is opened, and
    the raw bytes of that step arrive whole (T69)."""
    size = long_runs.write(tmp_path / "archive", long_runs.task(), long_runs.conversation(STEPS, OUTPUT_BYTES, HUGE))
    assert size > 200_000_000
    pages = ["/runs/long/steps", "/runs/long/steps?page=51", "/runs/long/steps/s2500", "/runs/long/steps/s2500/raw"]
    pages += ["/runs/long", "/runs/long/spend", "/runs/long/audit", "/runs/long/steps?only=errors"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"file://{tmp_path}/archive", json.dumps(pages)],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), str(Path(__file__).parent)])},
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    assert {status for status, _ in told["pages"].values()} == {200}
    raw = sum((tmp_path / "archive" / keys.segment("long", seq)).stat().st_size for seq in (5_000, 5_001))
    assert told["pages"]["/runs/long/steps/s2500/raw"][1] == raw > 50_000_000
    assert told["more_bytes"] < 200 * MIB
