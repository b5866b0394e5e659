"""A window that closes and opens again over a whole stack: real scheduler, workers and containers, and time as it
passes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deployments import Deployment, worker_process

pytestmark = [pytest.mark.docker, pytest.mark.full]

STEPS = 50
OPEN_S, CLOSED_S = 40, 30
MANIFEST = """\
version: 1
name: {name}
targets: [{{repo: ./code}}]
task: {{commands: [{commands}]}}
checks: ["grep -qx {last} notes"]
"""


def written(folder: Path, name: str, more: str = "") -> Path:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "notes").write_text("notes\n")
    commands = ", ".join(f'"sleep 1; echo {number} >> notes"' for number in range(STEPS))
    path = folder / f"{name}.yaml"
    path.write_text(MANIFEST.format(name=name, commands=commands, last=STEPS - 1) + more)
    return path


def submitted(stack: Deployment, path: Path) -> str:
    done = stack.dawn("submit", path, "--detach", "--json")
    assert done.code == 0, done
    [run] = done.json["batches"][0]["runs"]
    return str(run)


def test_a_closed_window_parks_a_run_and_it_goes_on_when_it_opens(
    tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    """At a committed step; its worker is killed while it is closed, status says until when, nothing is begun before,
    and verdict and patch are those of a run that nobody disturbed."""
    stack = Deployment(tmp_path, DAWN_WORKER_SLOTS="2")
    with stack.up("--workers", "2"):
        now = datetime.now(UTC).replace(microsecond=0)
        closes = now + timedelta(seconds=OPEN_S)
        opens = closes + timedelta(seconds=CLOSED_S)
        window = f"window: {{open: '{opens:%H:%M:%S}', close: '{closes:%H:%M:%S}', zone: UTC}}\n"
        run = submitted(stack, written(tmp_path, "windowed", window))
        other = submitted(stack, written(tmp_path, "undisturbed"))
        parked = stack.awaited(run, "parked")
        assert (parked.waiting, datetime.fromisoformat(parked.until)) == ("window", opens)  # type: ignore[union-attr,arg-type]
        assert "window until" in stack.dawn("status", run).out
        os.kill(worker_process(stack.run(run).worker), signal.SIGKILL)
        for one in (run, other):
            stack.awaited(one, "sealed")
        wait_until(lambda: stack.left() == [])
    events = [event.type for event in stack.events(run)]
    assert events.count("claimed") == 2
    assert events[events.index("parked") - 1] == "observed"
    assert events.count("observed") == STEPS
    ends = [stack.run(one).sealed for one in (run, other)]
    assert [end and end.verdict for end in ends] == ["verified", "verified"]
    assert stack.patch(run) == stack.patch(other) != b""
