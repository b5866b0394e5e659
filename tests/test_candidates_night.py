"""Candidates that share what their commands do, over a whole stack: real scheduler, workers and containers."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployments import Deployment

from worker.contract.events import Prepared, Submitted

pytestmark = [pytest.mark.docker, pytest.mark.full]

SCRIPT = """\
- calls: [{tool: run_command, arguments: {command: "cat counted >> answer.txt"}}]
- text: Done.
"""
MANIFEST = """\
version: 1
name: shared
targets: [{repo: ./code}]
task:
  commands: ["sleep 1; date +%s%N > counted", "echo two >> counted"]
  model: scripted:fix.yaml
  prompt: Write the answer down.
checks: ["grep -qx two answer.txt"]
candidates: {count: 3, after: commands}
"""


def test_commands_run_once_and_three_go_on_from_them(tmp_path: Path) -> None:
    """What the commands left, which differs each time they run, is the same in all three; each has a level 0 of its
    own and a verdict, the journals are sound, and the others are forks of the first."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "answer.txt").write_text("answer\n")
    (tmp_path / "fix.yaml").write_text(SCRIPT)
    manifest = tmp_path / "shared.yaml"
    manifest.write_text(MANIFEST)
    stack = Deployment(tmp_path, DAWN_WORKER_SLOTS="3")
    rows = stack.ran("submit", manifest)
    assert [row["verdict"] for row in rows] == ["verified"] * 3
    first, *others = [row["run"] for row in rows]
    assert len({stack.patch(run) for run in (first, *others)}) == 1
    assert stack.patch(first) != b""
    assert stack.run(first).claims == 1
    for run in others:
        begun = stack.events(run)[0]
        assert isinstance(begun, Submitted)
        assert begun.parent == first
        levels = [event.snapshot for event in stack.events(run) if isinstance(event, Prepared)]
        assert [taken and taken.level for taken in levels] == [None, 0]
        assert (stack.run(run).inherited_steps, stack.run(run).steps) == (2, 4)
    done = stack.dawn("verify", rows[0]["batch"])
    assert done.code == 0, done
