"""Delegates on the real engine: what only reads is read-only, and all of it comes again in a replay."""

from __future__ import annotations

import pytest
from nights import Night

from worker.before_call import no_hook
from worker.contract.events import Observed, Sealed
from worker.contract.redact import Redactor
from worker.replay import Replay
from worker.store import keys
from worker.store.journal import Journal

pytestmark = pytest.mark.docker

CHILD = keys.delegate("run-1", "call_1_1")
TRIES = "echo 42 > answer.txt; touch /workspace/repo/new $HOME/new; echo free > /tmp/x && cat /tmp/x answer.txt"
SCRIPT = f"""
- calls: [{{tool: delegate, arguments: {{goal: What is the answer?}}}}]
- expect: It is 41
  calls: [{{tool: edit_file, arguments: {{path: answer.txt, old_text: "41", new_text: "42"}}}}]
- text: The answer is 42 now.
- delegate: answer
  replies:
    - calls:
        - {{tool: run_command, arguments: {{command: '{TRIES}'}}}}
        - {{tool: write_file, arguments: {{path: answer.txt, content: "42"}}}}
        - {{tool: list_files, arguments: {{}}}}
        - {{tool: search, arguments: {{pattern: "4."}}}}
    - calls: [{{tool: read_file, arguments: {{path: answer.txt}}}}]
    - expect: (4.)
      text: It is ${{1}}.
"""


def test_a_delegate_reads_the_workspace_and_cannot_change_it(night: Night) -> None:
    """Nor the agent's HOME; its run goes on in the same workspace, and a replay finds all of it again."""
    night.submit(script=SCRIPT)
    assert night.work() == "sealed"
    seen = [
        record.event.observation
        for record, _ in Journal(night.archive, CHILD).read()
        if isinstance(record.event, Observed)
    ]
    tried, wrote, listed, found, read = seen
    assert tried.output.count("Read-only file system") == 3
    assert tried.output.endswith("free\n41")
    assert wrote.output.startswith('there is no tool "write_file"')
    assert listed.output.endswith("answer.txt")
    assert "answer.txt:1:41" in found.output
    assert "41" in read.output
    journal = Journal(night.archive, "run-1")
    assert journal.load().files == ("answer.txt",)
    [sealed] = [record.event for record, _ in journal.read() if isinstance(record.event, Sealed)]
    assert (sealed.outcome, sealed.verdict) == ("changed", "verified")
    assert journal.verify() == []
    station = night.station
    said: list[str] = []
    done = Replay(night.archive, station.sandbox, station.settings, Redactor({}), no_hook, said.append).of("run-1")
    assert (done.diverged, said) == (None, ["step 1: delegate", "step 2: edit_file"])
    assert night.leftovers() == []
