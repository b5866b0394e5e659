"""Makes runs of thousands of steps in a folder, fast: a worker would need hours. Refuses to be a worker: it writes
the files as they would stand, and makes nothing durable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from worker.contract import events as e
from worker.contract.events import Event, Record, canonical, digest
from worker.contract.task import Limits, Repo, Task
from worker.store import keys, rollup

AT: Final = "2026-11-30T02:%02d:%02d.%03d+00:00"
LINES: Final = "".join(f'  File "/repo/src/module_{n}.py", line {n}, in run\\n    total += {n}\n' for n in range(60))
SNAPSHOT: Final = [
    e.SnapshotRef(listing=digest(b"%d" % n), tree=digest(b"%d" % n), level=1, bytes=9) for n in range(5)
]


def task(run: str = "long", **changes: object) -> Task:
    """Of a model that may take its time."""
    fields = {
        "run": run,
        "batch": "night-0123456789ab",
        "target": "cart",
        "repo": Repo(url="https://git.example.org/cart"),
        "prompt": "Fix it.",
        "model": "anthropic/claude",
        "limits": Limits(steps=10_000, tokens=10**9, cost_usd=1000.0),
    }
    return Task.model_validate(fields | changes)


def conversation(steps: int, output_bytes: int, huge: dict[int, int] | None = None) -> Iterator[list[Event]]:
    """The events of each segment. output_bytes: of each call; huge: step -> bytes of its reply's reasoning."""
    yield [e.Submitted(by="me@here")]
    yield [e.Claimed(worker="host-1", engine="engine", lane="batch")]
    text = (LINES * (output_bytes // len(LINES) + 1))[:output_bytes]
    for step in range(1, steps + 1):
        call = e.ToolCall(
            id=f"c{step}", name="run_command", arguments=canonical({"command": f"make {step}"}).decode()
        )
        reply = e.Reply(
            text=f"Step {step} looks at the next part.",
            reasoning="r" * (huge or {}).get(step, 200),
            calls=(call,),
            stop="calls",
            usage=e.Usage(input_tokens=100 + step, cache_read_tokens=9_000, output_tokens=50 + step % 7),
            cost_microusd=1_000 + step,
            model="anthropic/claude",
        )
        yield [
            e.Replied(
                step=step, phase="model", reply=reply, context_tokens=9_100 + step, duration_ms=900 + step % 100
            )
        ]
        failed = step % 50 == 0
        seen = e.Observation(
            call_id=call.id,
            tool=call.name,
            status="error" if failed else "ok",
            exit_code=1 if failed else 0,
            output=f"{step}\n{text}",
            total_bytes=output_bytes,
            kept_bytes=output_bytes,
            duration_ms=30 * (step % 11),
        )
        yield [e.Observed(observation=seen, snapshot=SNAPSHOT[step // 10 % 5])]
    yield [e.Finished(text="all done"), e.Sealed(outcome="no_change", verdict="unverified")]


def write(folder: Path, of: Task, segments: Iterator[list[Event]]) -> int:
    """Write a run with its roll-ups; returns the bytes of its journal."""
    data = canonical(of.model_dump(mode="json"))
    _put(folder / keys.task(of.run), data)
    prev, total, attempt = digest(data), 0, None
    rolled: list[bytes] = []
    for seq, events in enumerate(segments):
        if any(isinstance(event, e.Claimed) for event in events):
            attempt = seq
        at = AT % (seq // 1000 // 60, seq // 1000 % 60, seq % 1000)
        written = b""
        for event in events:
            record = Record(run=of.run, seq=seq, at=at, attempt=attempt, nonce=f"{seq:032x}", prev=prev, event=event)
            line = record.line()
            prev = digest(line)
            written += line + b"\n"
        _put(folder / keys.segment(of.run, seq), written)
        total += len(written)
        rolled.append(written)
        if len(rolled) == rollup.SPAN:
            if sum(map(len, rolled)) <= rollup.BYTES:
                _put(folder / keys.rollup(of.run, seq - rollup.SPAN + 1), b"".join(rolled))
            rolled = []
    return total


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
