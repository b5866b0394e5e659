"""Measures how long the runs of a killed worker wait for the next: `python tests/bench/takeover.py`. Refuses to be a
test.

Two workers of four slots and a scheduler at the product's own times, every slot in a call. One worker is killed and
another started at once, as systemd does; counted is from the kill to the next claim of each of its runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conftest import wait_for
from fleets import SCALED, Fleet

from worker.contract.settings import Settings

SLOTS = 4
TAKEN_S = 180


def rounds(fleet: Fleet, count: int) -> list[float]:
    """Seconds that each run of a killed worker waited."""
    waited: list[float] = []
    workers = fleet.workers(2, slots=SLOTS)
    for number in range(count):
        runs = [fleet.submit("sleep 100000") for _ in range(2 * SLOTS)]
        for run in runs:
            fleet.calling(run)
        victim = workers[number % 2]
        his = [run for run in runs if fleet.events(run, "claimed")[0].worker.endswith(f"-{victim.pid}")]
        killed = time.time()
        victim.end()
        [workers[number % 2]] = fleet.workers(1, slots=SLOTS)
        for run in his:
            wait_for(lambda run=run: len(fleet.events(run, "claimed")) == 2, TAKEN_S)
            waited.append(datetime.fromisoformat(fleet.run(run).updated_at).timestamp() - killed)
        fleet.cancel(*runs)
        print(f"round {number + 1}: {', '.join(f'{one:.1f}' for one in waited[-len(his) :])} s", file=sys.stderr)
    return sorted(waited)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    wanted = parser.parse_args()
    product = Settings.model_construct()
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(Path(folder), **{name: getattr(product, name) for name in SCALED})
        try:
            fleet.scheduler()
            waited = rounds(fleet, wanted.rounds)
        finally:
            fleet.close()
    p95_s = statistics.quantiles(waited, n=20, method="inclusive")[-1]
    found = {"takeovers": len(waited), "p50_s": statistics.median(waited), "p95_s": p95_s, "max_s": waited[-1]}
    print(json.dumps({name: round(value, 1) for name, value in found.items()}))


if __name__ == "__main__":
    main()
