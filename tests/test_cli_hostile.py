"""What a terminal is sent while every word of an archive, of a manifest and of the command line wants to drive it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import hostile
import pytest
from runs_made import Make

from scheduler.cli import read
from scheduler.cli.main import run as dawn
from worker.store.archive import Archive

DRIVES = (
    "\x1b[2J\x1b[6n \x1b]0;title\x07 \x1b]8;;http://beacon.example/\x07link\x1b]8;;\x07 \x1b]52;c;cm0=\x07"
    " \x1bP1;2|x\x1b\\ \x1bc \x9b6n \x90q\x9c \x85\x7f \u202e\u200b \x1b]0;no end"
)
"""CSI, the titles, links and clipboard of OSC, DCS, a reset, 8-bit C1, a question for the cursor's place, one without
its end; and letters that turn or hide text."""
PROGRAM = """
import json, sys
from scheduler.cli.main import run
print(json.dumps([run(words) for words in json.loads(sys.stdin.readline())]))
"""
RUNS = tuple(f"{hostile.BATCH}-{kind}-0" for kind in hostile.RUNS)
ASKS = f"{hostile.BATCH}-asks-0"
READING = (
    *(("show", run) for run in RUNS),
    *(("show", run, "--audit") for run in RUNS),
    *(("logs", run) for run in RUNS),
    ("diff", RUNS[0]),
    ("ls",),
    ("status", hostile.BATCH),
    ("status", "--all"),
    ("compare", RUNS[0], RUNS[1]),
    ("report", hostile.BATCH),
    ("watch", hostile.BATCH, "--once"),
    ("verify", RUNS[0]),
)
REFUSED = (
    *((word, DRIVES) for word in ("show", "logs", "diff", "report", "verify", "cancel", "retry", "validate", DRIVES)),
    ("run", "--repo", DRIVES, "--command", "x"),
    ("run", "--repo", "x", "--limit", DRIVES, "--command", "x"),
    ("ls", "--state", DRIVES),
    ("approve", ASKS, DRIVES),
    ("budget", hostile.BATCH, DRIVES),
    ("validate", "wrong.yaml"),
    ("submit", "right.yaml", "--detach", "--at", DRIVES),
)
WORD = json.dumps(DRIVES)
WRONG = f"""
version: 1
name: {WORD}
targets: [{{repo: {json.dumps("/no" + DRIVES)}, {WORD}: 1}}, {{repo: https://h/a, id: {WORD}}}]
task: {{commands: [x], model: {WORD}}}
"""
RIGHT = "version: 1\nname: right\ntargets: [{repo: https://h/a}]\ntask: {commands: [x]}\n"
DRIVING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]")


def captured(commands: tuple[tuple[str, ...], ...]) -> tuple[str, list[int]]:
    """What one process sends its terminal while it runs these in turn, and their exit codes."""
    terminal, ours = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=ours,
        stderr=ours,
        env=os.environ | {"NO_COLOR": "1", "COLUMNS": "200"},
    ) as process:
        os.close(ours)
        assert process.stdin is not None
        process.stdin.write(json.dumps(commands).encode() + b"\n")
        process.stdin.close()
        sent = b"".join(iter(lambda: _read(terminal), b""))
    os.close(terminal)
    text = sent.decode().replace("\r\n", "\n")
    return text, json.loads(text.splitlines()[-1])


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # everybody who could write has ended
        return b""


@pytest.mark.usefixtures("without_stack")
@pytest.mark.parametrize(("commands", "codes"), [(READING, {0, 11}), (REFUSED, {2, 3, 10})])
def test_no_command_lets_a_word_drive_the_terminal(
    archive: Archive,
    make_run: Make,
    monkeypatch: pytest.MonkeyPatch,
    commands: tuple[tuple[str, ...], ...],
    codes: set[int],
) -> None:
    """H47: neither what it shows of runs, batches and patches nor what it complains of."""
    monkeypatch.setattr(hostile, "PAYLOADS", (*hostile.PAYLOADS, DRIVES))
    monkeypatch.setattr(hostile, "PATCH", hostile.PATCH + f"@@ -0,0 +1 @@\n+{DRIVES}\n".encode())
    monkeypatch.setattr(hostile, "SCRIPT", f"{hostile.SCRIPT} {DRIVES}")
    hostile.hostile(archive, make_run)
    Path("wrong.yaml").write_text(WRONG)
    Path("right.yaml").write_text(RIGHT)
    text, ended = captured(commands)
    assert [words for words, code in zip(commands, ended, strict=True) if code not in codes] == []
    assert "\\x1b" in text
    assert [text[at.start() - 40 : at.start() + 40] for at in DRIVING.finditer(text)] == []


@pytest.mark.usefixtures("without_stack")
def test_what_a_program_beside_the_command_says_drives_no_terminal(
    make_run: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """H47: a worker's program names files of a repository where it fails; its exit code is the command's."""
    make_run("a")
    (tmp_path / "fails.py").write_text(f"import sys; sys.exit('error: no ' + {DRIVES!r})")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setattr(read, "REPLAY_PROGRAM", "fails")
    assert dawn(["replay", "a"]) == 1
    said = capfd.readouterr().err
    assert said.startswith("error: no \\x1b[2J")
    assert DRIVING.search(said) is None
