"""Measures how long a worker needs to take over a long run: `python tests/bench/longrun.py`. Refuses to be a test.

The run is written as an attempt writes it (roll-ups too), in a folder and in a SeaweedFS; then it is read, claimed
and rendered for the model, with its roll-ups and without.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conftest import s3_settings, seaweed_server
from hosts import Held
from transcripts import shell, task

from worker.context import Transcript
from worker.contract.cancel import Cancel
from worker.contract.events import Claimed, Observation, Observed, Replied, Reply, SnapshotRef, Usage, digest
from worker.contract.redact import Redactor
from worker.contract.settings import Settings
from worker.hosting import FULL_EVERY
from worker.lease import Lease
from worker.ledger import Ledger
from worker.station import utc_now
from worker.store import keys
from worker.store.archive import Archive, open_archive
from worker.store.journal import Journal
from worker.tools.toolset import Toolset

STEPS = 5_000
OUTPUT_BYTES = 2_000
CLAIMED = Claimed(worker="w", engine="e", lane="main")


def ledger(archive: Archive) -> Ledger:
    return Ledger(Journal(archive, "r1"), cast(Lease, Held()), Cancel(), Redactor({}), utc_now)


def write(archive: Archive, steps: int) -> None:
    """A run of so many steps, each with one call that changed a file."""
    Journal(archive, "r1").submit(task(steps=10 * steps), by="bench", at=utc_now())
    pen = ledger(archive)
    pen.claim(CLAIMED)
    for step in range(1, steps + 1):
        call = shell(f"sed -n {step}p notes", step)
        reply = Reply(text="Next.", calls=(call,), stop="calls", usage=Usage(input_tokens=1, output_tokens=1))
        pen.commit(Replied(step=step, phase="model", reply=reply))
        name = digest(b"%d" % step)
        snapshot = SnapshotRef(listing=name, tree=name, object=name, level=(step - 1) % (FULL_EVERY + 1), bytes=1)
        seen = Observation(call_id=call.id, tool=call.name, status="ok", output="x" * OUTPUT_BYTES)
        pen.commit(Observed(observation=seen, snapshot=snapshot, files=("notes",)))


def take_over(archive: Archive) -> dict[str, float]:
    """Seconds until everything is read, until the run is claimed, until the next request is rendered."""
    start = time.perf_counter()
    pen = ledger(archive)
    read_s = time.perf_counter() - start
    pen.claim(CLAIMED)
    claimed_s = time.perf_counter() - start
    transcript = Transcript(Journal(archive, "r1").task(), Toolset().specs)
    transcript.follow(pen.records)
    transcript.request("model")
    return {
        "read_s": round(read_s, 2),
        "claimed_s": round(claimed_s, 2),
        "rendered_s": round(time.perf_counter() - start, 2),
    }


def measure(archive: Archive, steps: int) -> dict[str, Any]:
    start = time.perf_counter()
    write(archive, steps)
    found: dict[str, Any] = {"written_ms_per_step": round(1000 * (time.perf_counter() - start) / steps, 2)}
    found["with_rollups"] = take_over(archive)
    archive.delete(list(archive.list(keys.rollups("r1"))))
    return found | {"without": take_over(archive)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        stores: dict[str, Callable[[], Archive]] = {
            "folder": lambda: open_archive(f"file://{folder}/archive", Settings()),
        }
        (Path(folder) / "weed").mkdir()
        server, port = seaweed_server(Path(folder) / "weed")
        server.start()
        try:
            stores["seaweedfs"] = lambda: open_archive("s3://dawn/long", s3_settings(port))
            for name, opened in stores.items():
                print(json.dumps({"store": name, "steps": steps, **measure(opened(), steps)}), flush=True)
        finally:
            server.kill()


if __name__ == "__main__":
    main()
