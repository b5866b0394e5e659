"""Measures what the scheduler spends on a run as batches grow, and the memory it keeps for one that waits:
`python tests/bench/fleet.py`. Refuses to be a test.

A real scheduler in a process of its own, a real Valkey, an archive in a folder. Workers are threads here that claim a
run and seal it, through the real journal. Times are processor time of the scheduler's process, which others on the
machine disturb little. Prints JSON, and draws `fleet.svg` beside this file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import redis
from conftest import Server, free_port, valkey_server
from runs_made import claimed

from scheduler.enqueue import targets_json
from scheduler.tick import Scheduler
from worker.contract.events import Finished, Sealed
from worker.contract.settings import Settings
from worker.contract.task import Repo, Task
from worker.contract.waves import USUAL, Breaker
from worker.store import keys
from worker.store.archive import Archive, open_archive
from worker.store.hints import Hints, WorkerOffer
from worker.store.journal import Journal

SIZES, SIZES_SHORT = (10, 100, 1_000, 10_000), (10, 100)
SLOTS, WORKERS = 40, 8
"""Places that are offered, and threads that do the work."""
BATCH, BELLS = "bench-0123456789ab", "bench:bells"
AT = "2026-11-30T02:00:00.000+00:00"
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 720, 320, 70, 40, 40
COLOURS = ("#3c6eb4", "#b4443c")
PLOT = Path(__file__).with_suffix(".svg")


def task(number: int) -> Task:
    name = f"run-{number:05d}"
    repo = Repo(url=f"https://git.example.org/team/{name}", label=name)
    asked = {
        "prompt": f"Bring {name} up to date. " * 20,
        "model": "openai/gpt-5",
        "waves": USUAL,
        "breaker": Breaker(),
    }
    return Task(v=3, run=name, batch=BATCH, target=name, repo=repo, **asked)


def submit(archive: Archive, count: int) -> None:
    tasks = [task(number) for number in range(count)]
    archive.create(keys.batch_targets(BATCH), targets_json(BATCH, tasks, b""))
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(lambda one: Journal(archive, one.run).submit(one, by="bench", at=AT), tasks))


def work(archive: Archive, url: str, ended: threading.Semaphore, stop: threading.Event) -> None:
    """Claim whoever is rung, and seal it."""
    hints, bells = Hints(url), redis.Redis.from_url(url, decode_responses=True)
    while not stop.is_set():
        heard = bells.blpop([BELLS], timeout=1)
        if heard is None:
            continue
        run = str(heard[1])
        hints.answered(run)
        hints.claim(f"run:{run}", "bench", 45)
        journal = Journal(archive, run)
        begun = journal.append(journal.load(), [claimed()], attempt=None, at=AT)
        seal = Sealed(outcome="changed", verdict="verified")
        journal.append(begun, [Finished(text="done"), seal], attempt=begun.attempt, at=AT)
        archive.delete([keys.open_marker(run)])
        hints.release(f"run:{run}", "bench")
        ended.release()


class Measured:
    """A scheduler's process, which says what it spent whenever it is asked."""

    def __init__(self, archive: str, url: str) -> None:
        env = os.environ | {"DAWN_ARCHIVE": archive, "DAWN_REDIS_URL": url}
        words = [sys.executable, __file__, "--serve"]
        self._process = subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._ask, self._told = self._process.stdin, self._process.stdout

    def tick(self, times: int = 1) -> dict[str, float]:
        """So many rounds; processor seconds and rounds so far, and KiB in memory."""
        self._ask.write(f"{times}\n")
        self._ask.flush()
        told: dict[str, float] = json.loads(self._told.readline())
        return told

    def end(self) -> None:
        self._ask.close()
        self._process.wait()


def serve() -> None:
    """The scheduler; a doorbell is a word in a list of Redis."""
    settings = Settings()
    archive, hints = open_archive(settings.archive_url, settings), Hints(str(settings.redis_url))
    bells = redis.Redis.from_url(str(settings.redis_url))

    def ring(run: str, lane: str) -> None:
        bells.rpush(BELLS, run)

    scheduler = Scheduler(archive, hints, ring, settings)
    spent_s, rounds = 0.0, 0
    for line in sys.stdin:
        before_s = time.process_time()
        for _ in range(int(line)):
            scheduler.tick()
            rounds += 1
        spent_s += time.process_time() - before_s
        print(json.dumps({"spent_s": spent_s, "rounds": rounds, "memory_kib": memory_kib()}), flush=True)


def memory_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


def measure(count: int) -> dict[str, float]:
    """One batch of so many runs, from its submit to its end, and then a new scheduler that learns how it ended."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        port = free_port()
        valkey: Server = valkey_server(folder, "--port", str(port), "--bind", "127.0.0.1").start()
        url, address = f"redis://127.0.0.1:{port}/0", f"file://{folder / 'archive'}"
        archive = open_archive(address, Settings())
        hints = Hints(url)
        hints.offer(WorkerOffer("bench", ("interactive", "batch"), SLOTS, SLOTS), ttl_s=86_400)
        scheduler = Measured(address, url)
        empty = scheduler.tick(3)
        submit(archive, count)
        hints.poke("submitted", 1)
        loaded = scheduler.tick(2)
        ended, stop = threading.Semaphore(0), threading.Event()
        threads = [threading.Thread(target=work, args=(archive, url, ended, stop)) for _ in range(WORKERS)]
        for thread in threads:
            thread.start()
        told = loaded
        while any(True for _ in archive.list("open/")):
            told = scheduler.tick()
            time.sleep(0.05)
        stop.set()
        for thread in threads:
            thread.join()
        scheduler.end()
        redis.Redis.from_url(url).delete("dawn:lease:scheduler")
        another = Measured(address, url)
        before = another.tick(1)
        last = task(count)
        Journal(archive, last.run).submit(last, by="bench", at=AT)
        hints.poke("submitted", 2)
        after = another.tick(2 + count // 500)
        another.end()
        valkey.kill()
    return {
        "ms_per_run": 1000 * (told["spent_s"] - empty["spent_s"]) / count,
        "rounds": told["rounds"] - empty["rounds"],
        "ms_to_read_one_that_waits": 1000 * (loaded["spent_s"] - empty["spent_s"]) / count,
        "kib_for_one_that_waits": (loaded["memory_kib"] - empty["memory_kib"]) / count,
        "memory_mib_at_the_end": told["memory_kib"] / 1024,
        "ms_to_learn_how_one_ended": 1000 * (after["spent_s"] - before["spent_s"]) / count,
    }


def drawn(found: dict[int, dict[str, float]]) -> str:
    """Milliseconds a run over the size of its batch, as an SVG."""
    most = 1.25 * max(numbers["ms_per_run"] for numbers in found.values())
    sizes = sorted(found)

    def place(size: float, ms: float) -> str:
        span = math.log10(sizes[-1]) - math.log10(sizes[0])
        right = LEFT + (math.log10(size) - math.log10(sizes[0])) / span * (WIDTH - LEFT - 60)
        return f"{right:.1f},{HEIGHT - BOTTOM - ms / most * (HEIGHT - TOP - BOTTOM):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18">Processor time of the scheduler for a run, in ms, by the size of its batch</text>',
    ]
    for part in range(5):
        left, right = place(sizes[0], most * part / 4), place(sizes[-1], most * part / 4)
        parts.append(f'<polyline points="{left} {right}" stroke="#dddddd" fill="none"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{left.split(",")[1]}" text-anchor="end">{most * part / 4:.1f}</text>')
    for name, colour in zip(("ms_per_run", "ms_to_learn_how_one_ended"), COLOURS, strict=True):
        points = " ".join(place(size, found[size][name]) for size in sizes)
        parts.append(f'<polyline points="{points}" stroke="{colour}" stroke-width="2" fill="none"/>')
        for size in sizes:
            x, y = place(size, found[size][name]).split(",")
            told = f"{found[size][name]:.1f}"
            parts.append(f'<text x="{x}" y="{float(y) - 8:.1f}" fill="{colour}" text-anchor="middle">{told}</text>')
    for size in sizes:
        x = place(size, 0).split(",")[0]
        parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{size:,}</text>')
    for row, (told, colour) in enumerate(
        zip(("from its submit to its end", "for a new leader to learn how it ended"), COLOURS, strict=True)
    ):
        parts.append(f'<text x="{WIDTH - 260}" y="{TOP + 16 * row}" fill="{colour}">{told}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--short", action="store_true", help="small batches only, and no plot")
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    found: dict[int, dict[str, float]] = {}
    for count in SIZES_SHORT if options.short else SIZES:
        found[count] = measure(count)
        print(count, {name: round(value, 3) for name, value in found[count].items()}, file=sys.stderr, flush=True)
    if not options.short:
        PLOT.write_text(drawn(found))
    told: dict[str, Any] = {f"{count} runs": numbers for count, numbers in found.items()}
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
