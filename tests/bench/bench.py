"""Measures calls in fresh containers. Refuses to be a test: nothing here fails for being slow, only for being wrong.

Every number is a wall-clock time in milliseconds, medians and 90th percentiles of one run, rounds interleaved. Ratios
carry over to other machines, milliseconds do not.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attempts import measure_scenario, p90
from growth import measure_growth

from worker.contract.cancel import Cancel
from worker.contract.settings import Settings
from worker.contract.task import Limits
from worker.sandbox import calls, shape
from worker.sandbox.keeper import Keeper
from worker.sandbox.protocol import Command, Owner
from worker.sandbox.sandbox import DockerSandbox
from worker.sandbox.workspace import KEEPER_ENTRYPOINT, DockerWorkspace

ROUNDS, ROUNDS_SHORT = 50, 10
MODEL_S = (0.5, 0.0)
ALONE_ROUNDS = 5
PARALLEL = 4
OWNER = Owner("bench", "bench", 1, "agent")
TRUE = Command(b"true")
SCENARIO = Path(__file__).with_name("scenario.json")

Times = dict[str, list[float]]


def timed(act: Callable[[], Any]) -> float:
    start = time.perf_counter()
    act()
    return (time.perf_counter() - start) * 1000


def quiet(workspace: DockerWorkspace) -> None:
    """Until the last call is gone and a container is parked for the next, as after a model's thinking."""
    workspace._settle()
    for future in workspace._pool._parked.values():
        future.result()
    for leaving in workspace._pool._leaving:
        leaving.result()


def measure_calls(sandbox: DockerSandbox, rounds: int) -> Times:
    """What a call costs, in our way and in the ways we did not take."""
    times: Times = defaultdict(list)
    engine = sandbox._engine
    with sandbox.workspace(OWNER, "python", Limits()) as workspace:

        def run(command: Command = TRUE) -> None:
            result = workspace.run(command, cancel=Cancel())
            assert (result.status, result.exit_code) == ("ok", 0), result

        def body(network: str) -> dict[str, Any]:
            return shape.call(
                OWNER,
                workspace._image,
                workspace._volume,
                Limits(),
                entrypoint=calls.ENTRYPOINT,
                image_volumes={},
                network=network,
                writes=True,
                root=False,
                cpus=engine.cpus,
            )

        standing = workspace._start(body("none"))
        try:
            for _ in range(rounds):
                quiet(workspace)
                times["parked_call"].append(timed(run))
                times["engine_end"].append(timed(workspace._settle))
                run(Command(b"date +%N >changed"))
                workspace._settle()
                times["snapshot"].append(timed(workspace.snapshot))
                quiet(workspace)
                missed = Command(b"true", writes=False)
                times["pool_miss"].append(timed(lambda command=missed: run(command)))
                workspace._pool.close()
                workspace.expect("shell", writes=True)
                quiet(workspace)
                exec_argv = ["docker", "exec", standing.container, "true"]
                times["docker_exec"].append(timed(lambda argv=exec_argv: subprocess.run(argv, check=True)))
                times["api_exec"].append(timed(lambda: _api_exec(engine._api, standing.container)))
                start = time.perf_counter()
                cold = workspace._start(body("none"))
                times["create_start"].append((time.perf_counter() - start) * 1000)
                workspace._pool._remove(cold)
        finally:
            workspace._pool._remove(standing)
        keepers = rounds // 5
        for _ in range(keepers):
            times["keeper_up"].append(timed(lambda: _keeper_up(workspace)))
    return times


def _api_exec(api: Any, container: str) -> None:
    made = api.exec_create(container, ["true"])["Id"]
    api.exec_start(made)
    assert api.exec_inspect(made)["ExitCode"] == 0


def _keeper_up(workspace: DockerWorkspace) -> None:
    body = shape.keeper(OWNER, workspace._toolbox, workspace._volume, entrypoint=KEEPER_ENTRYPOINT)
    box = workspace._start(body)
    Keeper(box.stream).hello(Limits())
    workspace._pool.remove(box)


def alone(sandbox: DockerSandbox, steps: list[dict[str, Any]]) -> list[float]:
    """What each command takes by itself, all in one container: what no sandbox can go below. Medians of a few."""
    return [
        statistics.median(times) for times in zip(*(once(sandbox, steps) for _ in range(ALONE_ROUNDS)), strict=True)
    ]


def once(sandbox: DockerSandbox, steps: list[dict[str, Any]]) -> list[float]:
    lines = ["clock() { echo ${EPOCHREALTIME/./} >>/tmp/clock; }"]
    for step in steps:
        lines += ["clock", f"bash -c {shlex.quote(step['command'])} </dev/null >/dev/null 2>&1", "clock"]
    with sandbox.workspace(OWNER, "python", Limits()) as workspace:
        script = "\n".join([*lines, "cat /tmp/clock"])
        text = workspace.run(Command(script.encode()), cancel=Cancel()).output.path.read_text()
    clock = [int(line) / 1000 for line in text.split()]
    return [end - start for start, end in zip(clock[::2], clock[1::2], strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="10 rounds instead of 50, one run instead of four")
    parser.add_argument("--json", action="store_true", help="nothing but the last line")
    asked = parser.parse_args()
    report: dict[str, float] = {}

    def say(text: str) -> None:
        if not asked.json:
            print(text, flush=True)

    with tempfile.TemporaryDirectory() as state:
        sandbox = DockerSandbox(Settings(state_dir=Path(state)))
        times = measure_calls(sandbox, ROUNDS_SHORT if asked.short else ROUNDS)
        say(f"{'':<16}{'median':>9}{'p90':>9}   ms")
        for name, values in times.items():
            report |= {f"{name}_ms": statistics.median(values), f"{name}_p90_ms": p90(values)}
            say(f"{name:<16}{statistics.median(values):>9.1f}{p90(values):>9.1f}   of {len(values)}")
        steps = json.loads(SCENARIO.read_text())["steps"]
        by_itself = alone(sandbox, steps)
        report["scenario_alone_ms"] = sum(by_itself)
        say(f"the {len(steps)} commands of the scenario alone: {sum(by_itself):.0f} ms")
        for parallel in (1,) if asked.short else (1, PARALLEL):
            for model_s in MODEL_S:
                name = f"scenario_{parallel}x_{model_s:g}s"
                found = measure_scenario(sandbox, Path(state) / name, steps, by_itself, parallel, model_s)
                say(
                    f"{parallel} at once, model {model_s:g} s: overhead of a call "
                    f"{found['overhead_median_ms']:.1f} median, {found['overhead_p90_ms']:.1f} p90, "
                    f"{found['overhead_max_ms']:.1f} max, outside of its container {found['ours_median_ms']:.1f}; "
                    f"of a step with its commits {found['step_overhead_median_ms']:.1f} median, "
                    f"{found['step_overhead_p90_ms']:.1f} p90; whole run {found['run_s']:.2f} s"
                )
                report |= {f"{name}_{key}": value for key, value in found.items()}
        for name, value in measure_growth(short=asked.short).items():
            say(f"{name}: {value:.2f}")
            report[name] = value
        left = sandbox.owned(OWNER.archive)
        sandbox.close()
    if left:
        sys.exit(f"left behind: {left}")
    print(json.dumps({name: round(value, 2) for name, value in report.items()}))


if __name__ == "__main__":
    main()
