"""Measures the pages of a large batch on the server: `python tests/bench/web.py`. Refuses to be a test.

The archive is scripted: journals as a worker would have written them, without fsync between them. A server of its own
process answers over a socket, as `dawn web` does. *cold* is the first answer of a process that has just started and
has read nothing, *behind* the first one of a process whose reader has had the batch's first page for PAUSE_S, *warm*
the median of later ones. Beside the time that passed stands the server's processor time, which others on the machine
disturb less. With --s3 the archive lies in a SeaweedFS of its own. Prints JSON.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conftest import s3_settings, seaweed_server
from deployments import s3_environment
from runs_made import claimed, replied

from scheduler.enqueue import targets_json
from scheduler.reports import kept
from worker.contract.events import (
    CheckResult,
    Event,
    Failure,
    Finished,
    Observation,
    Observed,
    PatchStat,
    Record,
    Sealed,
    Submitted,
    Verdict,
    canonical,
    digest,
)
from worker.contract.settings import Settings
from worker.contract.task import Budget, Repo, Task
from worker.store import keys
from worker.store.archive import open_archive

BATCH = "bench-0123456789ab"
RUNS, STEPS = 1_000, 12
TIMES, TIMES_SHORT = 15, 5
PAUSE_S = 8
WRITERS = 16
PAGES = {
    "runs": f"/batches/{BATCH}",
    "its last page": f"/batches/{BATCH}?page={{last}}",
    "sorted by cost": f"/batches/{BATCH}?sort=-cost",
    "failed only": f"/batches/{BATCH}?state=failed",
    "failures": f"/batches/{BATCH}/failures",
    "timeline": f"/batches/{BATCH}/timeline",
    "spend": f"/batches/{BATCH}/spend",
    "activity": f"/batches/{BATCH}/activity",
    "manifest": f"/batches/{BATCH}/manifest",
    "batches": "/batches",
}


def task(number: int) -> Task:
    name = f"run-{number:05d}"
    repo = Repo(url=f"https://git.example.org/team/{name}", label=name)
    prompt = f"Bring {name} up to date. " * 20
    return Task(
        run=name, batch=BATCH, target=name, repo=repo, prompt=prompt, model="openai/gpt-5", budget=Budget(usd=500)
    )


def events(number: int, steps: int, *, still_open: bool) -> list[Event]:
    """Of a run that was verified, broke or failed, or, of every second one where some are open, still goes on."""
    made: list[Event] = [Submitted(by="bench"), claimed(f"host-{number % 8}")]
    for step in range(1, steps + 1):
        made.append(replied(step, text="I look at it. " * 20, command=f"sed -n {step}p a.py", cost_microusd=20_000))
        seen = Observation(
            call_id=f"c{step}", tool="run_command", status="ok", exit_code=0, output="a line of output\n" * 40
        )
        made.append(Observed(observation=seen))
    if still_open and number % 2:
        return made
    if number % 10 == 7:
        failure = Failure(cls="env", reason="setup", detail=f"no package {number} is known")
        return [*made, Sealed(outcome="failed", failure=failure)]
    colour = "broke" if number % 10 == 3 else "verified"
    check = CheckResult(
        name="tests", status="green" if colour == "verified" else "red", exit_code=0, tail="1 passed\n" * 30
    )
    patch = PatchStat(bytes=900, files={f"src/a{n}.py": (number % 40, n) for n in range(3)})
    return [
        *made,
        Finished(text="It is done."),
        Verdict(verdict=colour, checks=(check,), baseline=(check,), patch=patch),
        Sealed(outcome="changed", verdict=colour),
    ]


def write(root: Path, count: int, steps: int, *, still_open: bool) -> None:
    """The archive's files themselves: a store that makes each durable takes minutes for them."""
    tasks = [task(number) for number in range(count)]
    put(root, keys.batch_manifest(BATCH), b"version: 1\nname: bench\n")
    put(root, keys.batch_targets(BATCH), targets_json(BATCH, tasks, b""))
    for number, one in enumerate(tasks):
        data = canonical(one.model_dump(mode="json"))
        put(root, keys.task(one.run), data)
        prev, attempt, open_run, lines = digest(data), None, True, b""
        for seq, event in enumerate(events(number, steps, still_open=still_open)):
            at = f"2026-11-30T{2 + number // 200:02d}:{(number // 4) % 60:02d}:{min(59, seq):02d}.000+00:00"
            attempt = seq if event.type == "claimed" else attempt
            record = Record(run=one.run, seq=seq, at=at, attempt=attempt, nonce="n", prev=prev, event=event)
            line = record.line()
            put(root, keys.segment(one.run, seq), line + b"\n")
            prev, lines = digest(line), lines + line + b"\n"
            open_run = event.type != "sealed"
        if open_run:
            put(root, keys.open_marker(one.run), b"")
        else:
            put(root, keys.rollup(one.run, 0), lines)


def put(root: Path, key: str, data: bytes) -> None:
    path = root / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


class Server:
    """The pages in a process of their own."""

    def __init__(self, url: str) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen()
        self.port = self._socket.getsockname()[1]
        words = [sys.executable, __file__, "--serve", str(self._socket.fileno()), url]
        self._process = subprocess.Popen(words, pass_fds=[self._socket.fileno()])
        self.cookie = ""
        self._sign_in()

    def _sign_in(self) -> None:
        answer = self._ask("/enter?token=look")
        self.cookie = answer.getheader("set-cookie", "").split(";")[0]
        answer.read()

    def _ask(self, path: str) -> http.client.HTTPResponse:
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        link.request("GET", path, headers={"cookie": self.cookie})
        return link.getresponse()

    def get(self, path: str) -> tuple[float, bytes]:
        """Milliseconds until the last byte, and the page."""
        began_s = time.perf_counter()
        answer = self._ask(path)
        body = answer.read()
        assert answer.status == 200, body[:500]
        return (time.perf_counter() - began_s) * 1_000, body

    def spent_ms(self) -> float:
        """Processor time so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1_000 / os.sysconf("SC_CLK_TCK")

    def memory_mib(self) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) // 1024

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._socket.close()


def serve(descriptor: int, url: str) -> None:
    import uvicorn

    from scheduler.web.door.access import Access, Token
    from scheduler.web.door.app import create
    from scheduler.web.seen import Seen
    from scheduler.web.site import Site

    listening = socket.socket(fileno=descriptor)
    archive = open_archive(url, Settings())
    site = Site(archive, Seen(archive), Access(os.urandom(32), (Token("look", "bench", "viewer"),)))
    app = create(site, {f"127.0.0.1:{listening.getsockname()[1]}"})
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", ws="none")
    uvicorn.Server(config).run(sockets=[listening])


def measure(url: str, count: int, times: int) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name, pattern in PAGES.items():
        path = pattern.replace("{last}", str(-(-count // 100)))
        server = Server(url)
        try:
            server.get(PAGES["runs"])
            time.sleep(PAUSE_S)
            behind_ms = server.get(path)[0]
        finally:
            server.end()
        server = Server(url)
        try:
            before_ms = server.spent_ms()
            cold_ms, body = server.get(path)
            cold_cpu_ms = server.spent_ms() - before_ms
            began_s = time.perf_counter()
            while b"is being counted" in body:
                time.sleep(0.2)
                body = server.get(path)[1]
            complete_ms = cold_ms + (time.perf_counter() - began_s) * 1_000
            before_ms = server.spent_ms()
            warm = [server.get(path)[0] for _ in range(times)]
            told[name] = {
                "cold_ms": round(cold_ms),
                "cold_cpu_ms": round(cold_cpu_ms),
                "with_its_sentence_ms": round(complete_ms),
                "behind_ms": round(behind_ms),
                "warm_ms": round(statistics.median(warm)),
                "warm_cpu_ms": round((server.spent_ms() - before_ms) / times),
                "page_kib": len(body) // 1024,
                "server_mib": server.memory_mib(),
            }
        finally:
            server.end()
    return told


@contextmanager
def placed(root: Path, on_s3: bool) -> Iterator[str]:
    """The address of the archive in this folder, or of a copy of it in a bucket."""
    if not on_s3:
        yield root.as_uri()
        return
    with tempfile.TemporaryDirectory() as folder:
        server, port = seaweed_server(Path(folder))
        server.start()
        try:
            os.environ.update(s3_environment(s3_settings(port)))
            archive = open_archive("s3://dawn/bench", Settings())
            files = [path for path in root.rglob("*") if path.is_file()]
            with ThreadPoolExecutor(WRITERS) as pool:
                list(pool.map(lambda path: archive.create(path.relative_to(root).as_posix(), path), files))
            yield archive.url
        finally:
            server.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", nargs=2, metavar=("DESCRIPTOR", "ARCHIVE"))
    parser.add_argument("--short", action="store_true", help="fewer runs and answers")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--folder", help="where the archives are made; in memory the disk has no say")
    parser.add_argument("--s3", action="store_true", help="read it from a bucket")
    asked = parser.parse_args()
    if asked.serve:
        serve(int(asked.serve[0]), asked.serve[1])
        return
    count, times = (150, TIMES_SHORT) if asked.short else (asked.runs, TIMES)
    told: dict[str, Any] = {"runs": count, "steps": STEPS, "cpus": os.cpu_count(), "load": os.getloadavg()[0]}
    for name, still_open, reported in (("ended, with its report", False, True), ("half of it open", True, False)):
        with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
            root = Path(folder) / "archive"
            write(root, count, STEPS, still_open=still_open)
            if reported:
                archive = open_archive(root.as_uri(), Settings())
                kept.store(archive, kept.gather(archive, BATCH, at="2026-11-30T08:00:00.000+00:00"))
            with placed(root, asked.s3) as url:
                told[name] = measure(url, count, times)
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
