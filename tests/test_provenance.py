"""Which call of a run made which hunk of its patch, and back."""

from __future__ import annotations

import json
from collections.abc import Sequence

from scheduler.web.patches import diffs
from scheduler.web.patches.provenance import HunkId, Origin, provenance
from worker.contract.events import Event, Observation, Observed, Record, Replied, Reply, ToolCall

PATCH = b"""diff --git a/src/a.py b/src/a.py
--- a/src/a.py
+++ b/src/a.py
@@ -1,2 +1,3 @@
 import os
-x = 1
+x = 2
+y = 3
@@ -40,3 +41,2 @@
 first
-gone
 last
diff --git a/b.txt b/b.txt
new file mode 100644
--- /dev/null
+++ b/b.txt
@@ -0,0 +1 @@
+made by a shell
diff --git a/pic.png b/pic.png
index 1..2 100644
GIT binary patch
literal 3
KcmZ>

"""


def journal(*calls: tuple[str, dict[str, object], Sequence[str]]) -> list[Record]:
    """A journal in which each step makes one call. calls: tool, arguments, the files that it changed."""
    events: list[Event] = []
    for step, (tool, arguments, files) in enumerate(calls, start=1):
        call = ToolCall(id=f"c{step}", name=tool, arguments=json.dumps(arguments))
        events.append(Replied(step=step, phase="model", reply=Reply(calls=(call,))))
        events.append(Observed(observation=Observation(call_id=call.id, tool=tool, status="ok"), files=tuple(files)))
    at = "2026-11-30T02:00:00.000+00:00"
    return [
        Record(run="r", seq=seq, at=at, nonce="n", prev="0" * 64, event=event)
        for seq, event in enumerate(events, start=10)
    ]


def told(records: list[Record]) -> dict[tuple[str, int], tuple[int, str]]:
    """Of each hunk that has an origin, its step and how that is known."""
    found = provenance(records, PATCH, diffs.read(PATCH).files)
    return {(hunk.path, hunk.hunk): (origin.step, origin.how) for hunk, origin in found.origins.items()}


def test_a_hunk_is_the_calls_that_wrote_its_lines() -> None:
    """Edits are known by what they put in and what they took out, whoever touched the file after."""
    records = journal(
        ("edit_file", {"path": "src/a.py", "old_text": "x = 1\n", "new_text": "x = 2\ny = 3\n"}, ["src/a.py"]),
        ("edit_file", {"path": "src/a.py", "old_text": "gone\n", "new_text": ""}, ["src/a.py"]),
        ("run_command", {"command": "black src"}, ["src/a.py"]),
    )
    assert told(records) == {("src/a.py", 0): (1, "text"), ("src/a.py", 1): (2, "text")}


def test_of_two_calls_that_wrote_the_same_lines_it_is_the_last() -> None:
    """What was undone and done again is the later call's."""
    edit = {"path": "src/a.py", "old_text": "x = 1\n", "new_text": "x = 2\ny = 3\n"}
    write = {"path": "src/a.py", "content": "import os\nx = 2\ny = 3\n"}
    records = journal(("edit_file", edit, ["src/a.py"]), ("write_file", write, ["src/a.py"]))
    assert told(records)[("src/a.py", 0)] == (2, "text")


def test_where_no_call_said_the_lines_it_is_the_last_that_changed_the_file() -> None:
    """A command shows in the files that its snapshot told of; a binary file is known by these alone."""
    records = journal(
        ("run_command", {"command": "make"}, ["b.txt"]),
        ("run_command", {"command": "make all"}, ["b.txt", "pic.png"]),
        ("run_command", {"command": "ls"}, []),
    )
    assert told(records) == {("b.txt", 0): (2, "file"), ("pic.png", 0): (2, "file")}


def test_a_command_that_wrote_the_lines_itself_is_known_by_them() -> None:
    """A text that a shell wrote into a file stands in its command."""
    command = "cat > b.txt <<END\nmade by a shell\nEND\n"
    records = journal(("run_command", {"command": command}, ["b.txt"]), ("run_command", {}, ["b.txt"]))
    assert told(records) == {("b.txt", 0): (1, "text")}


def test_nobodys_hunk_has_no_call() -> None:
    """What setup left, or a journal does not tell, is not given to a call that did something else."""
    assert told(journal(("write_file", {"path": "other.py", "content": "x = 2\n"}, ["other.py"]))) == {}


def test_from_a_step_to_its_hunks_and_back() -> None:
    """A step names its hunks, and an origin the segment where its result stands."""
    records = journal(("write_file", {"path": "/workspace/repo/b.txt", "content": "made by a shell\n"}, ["b.txt"]))
    read = diffs.read(PATCH)
    found = provenance(records, PATCH, read.files)

    assert found.made_by(1) == [HunkId(1, "b.txt", 0)]
    assert found.of(read.files[1], 0) == Origin(1, 11, "c1", "write_file", "text", 1, 1)
    assert found.of(read.files[0], 0) is None


def test_arguments_that_are_no_json_name_nothing() -> None:
    """A call whose arguments cannot be read is known by the files it changed."""
    records = journal(("write_file", {"path": "b.txt"}, ["b.txt"]))
    broken = records[0].event.model_copy(
        update={"reply": Reply(calls=(ToolCall(id="c1", name="write_file", arguments='{"path": '),))}
    )
    records[0] = records[0].model_copy(update={"event": broken})
    assert told(records) == {("b.txt", 0): (1, "file")}
