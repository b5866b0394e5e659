"""Measures how a run grows with its steps, with a model and a host in memory. Refuses to be a test."""

from __future__ import annotations

import time

from transcripts import MemoryHost, shell, task

from worker import loop
from worker.contract.cancel import Cancel
from worker.contract.events import Reply, Usage
from worker.models.protocol import ModelRequest
from worker.tools.toolset import Toolset

STEPS, STEPS_SHORT = (100, 1_000, 5_000), (100, 1_000)
OUTPUT_BYTES = 2_000


class Busy:
    """Makes one call a step, without an end."""

    name = "bench"

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        call = shell(f"sed -n {request.step}p notes", request.step)
        return Reply(text="Next.", calls=(call,), stop="calls", usage=Usage(input_tokens=1, output_tokens=1))


def measure_growth(*, short: bool) -> dict[str, float]:
    """Journal bytes and time of a step, in runs of more and more steps: equal numbers are linear growth."""
    found: dict[str, float] = {}
    for steps in STEPS_SHORT if short else STEPS:
        host = MemoryHost(
            task(steps=steps, context_tokens=10**9), lambda command: (0, command.ljust(OUTPUT_BYTES), "a")
        )
        start = time.perf_counter()
        loop.work(host, Busy(), Toolset())
        taken_s = time.perf_counter() - start
        size = sum(len(record.line()) for record in host.records())
        found[f"growth_{steps}_steps_bytes_per_step"] = size / steps
        found[f"growth_{steps}_steps_ms_per_step"] = 1000 * taken_s / steps
    return found
