"""Plays the scenario through the real loop and its real host. Refuses to be a test: only a wrong run fails."""

from __future__ import annotations

import json
import statistics
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hosts import Hosts

from worker import loop
from worker.contract.cancel import Cancel
from worker.contract.events import Event, Finished, Observed, Replied, Reply, ToolCall, Usage
from worker.hosting import AttemptHost
from worker.models.protocol import ModelRequest
from worker.sandbox.sandbox import DockerSandbox
from worker.tools.toolset import Toolset

Steps = list[dict[str, Any]]


class WatchedHost(AttemptHost):
    """Notes when a reply was committed."""

    replied: list[float]

    def commit(self, *events: Event) -> None:
        super().commit(*events)
        if any(isinstance(event, Replied) for event in events):
            self.replied.append(time.perf_counter())


@dataclass
class Paced:
    """Makes the scenario's calls, each after model_s of thinking; notes when it was asked and when it answered."""

    steps: Steps
    model_s: float
    name: str = "bench"
    asked: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        self.asked.append(time.perf_counter())
        if self.model_s:
            cancel.wait(self.model_s)
        self.answered.append(time.perf_counter())
        usage = Usage(input_tokens=1_000 * request.step, output_tokens=100)
        if request.step > len(self.steps):
            return Reply(text="It is done.", usage=usage)
        step = self.steps[request.step - 1]
        arguments = json.dumps({"command": step["command"]})
        call = ToolCall(id=f"call_{request.step}_1", name="run_command", arguments=arguments)
        return Reply(text=step["thought"], calls=(call,), stop="calls", usage=usage)


@dataclass(frozen=True)
class Played:
    """Of each call, ms: calls from its reply being committed to the next request being ready; ours the part of it
    that is not the conversation with its container; steps from one reply to the next request, which has the commits
    too. whole_s: from the first request to the end."""

    calls: list[float]
    ours: list[float]
    steps: list[float]
    whole_s: float


def play(hosts: Hosts, run: str, steps: Steps, model_s: float) -> Played:
    """One run of the scenario, every exit code and output checked."""
    hosts.submit(run)
    model = Paced(steps, model_s)
    with hosts.host(run, WatchedHost) as host:
        assert isinstance(host, WatchedHost)
        host.replied = []
        begun = time.perf_counter()
        ended = loop.work(host, model, Toolset())
        whole_s = time.perf_counter() - begun
        seen = [record.event.observation for record in host.records() if isinstance(record.event, Observed)]
    if not isinstance(ended, Finished) or ended.failure is not None or len(seen) != len(steps):
        raise SystemExit(f"the run ended wrong: {ended}")
    for step, observation in zip(steps, seen, strict=True):
        if observation.exit_code != step["exit_code"] or step["expect"] not in observation.output:
            raise SystemExit(f"step {step['n']} went wrong: {observation}")
    asked = model.asked[1:]
    calls = [1000 * (end - start) for start, end in zip(host.replied, asked, strict=False)]
    return Played(
        calls=calls,
        ours=[wall - observation.duration_ms for wall, observation in zip(calls, seen, strict=True)],
        steps=[1000 * (end - start) for start, end in zip(model.answered, asked, strict=False)],
        whole_s=whole_s,
    )


def measure_scenario(
    sandbox: DockerSandbox, folder: Path, steps: Steps, by_itself: list[float], parallel: int, model_s: float
) -> dict[str, float]:
    """Overhead over by_itself (what each command takes alone, ms), so many runs at once."""
    hosts = Hosts(folder, sandbox, "bench")
    hosts.submit("prepared")
    with hosts.host("prepared"):
        pass  # the environment is made and the image proven: runs start from there
    played: list[Played] = []
    threads = [
        threading.Thread(target=lambda name=f"run-{n}": played.append(play(hosts, name, steps, model_s)))
        for n in range(parallel)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(played) != parallel:
        raise SystemExit("a run went wrong")
    calls = sorted(wall - own for one in played for wall, own in zip(one.calls, by_itself, strict=True))
    whole = sorted(wall - own for one in played for wall, own in zip(one.steps, by_itself, strict=True))
    return {
        "overhead_median_ms": statistics.median(calls),
        "overhead_p90_ms": p90(calls),
        "overhead_max_ms": calls[-1],
        "ours_median_ms": statistics.median(own for one in played for own in one.ours),
        "step_overhead_median_ms": statistics.median(whole),
        "step_overhead_p90_ms": p90(whole),
        "run_s": statistics.median(one.whole_s for one in played),
    }


def p90(values: list[float]) -> float:
    return statistics.quantiles(values, n=10, method="inclusive")[-1]
