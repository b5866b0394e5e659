"""How one call goes and ends: its output, exit code, limits, and what hostile commands make of them."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import wait_for
from sandboxes import MIB, SMALL, Shell, containers, in_background, owner, parked

from worker.contract.cancel import Cancel
from worker.contract.errors import InvalidFault
from worker.sandbox.calls import PAYLOAD_BYTES, Tail, compose
from worker.sandbox.output import Spool
from worker.sandbox.protocol import Command, WorkspaceTooLarge
from worker.sandbox.sandbox import DockerSandbox

pytestmark = pytest.mark.docker
PROMPTLY_S = 20
"""Bound for "returns instead of hanging"; the scripts below would take 300 s."""


def trailer(nonce: str, words: str) -> bytes:
    return f"\n{nonce} {words}\n".encode()


@pytest.mark.parametrize("size", [1, 2, 7, 33, 1000])
def test_trailer_is_found_however_the_output_is_cut(size: int) -> None:
    """Frames end anywhere: output and trailer are told apart at every cut."""
    tail = Tail("abcd" * 8)
    sent = b"one\ntwo\nabcd not yet" * 20
    whole = sent + trailer("abcd" * 8, "7 0 -") + b"late"
    out = b"".join(tail.feed(whole[at : at + size]) for at in range(0, len(whole), size))
    assert (out, tail.found) == (sent, ("7", "0", "-"))


def test_output_without_trailer_is_not_lost() -> None:
    """What was held back, because a trailer could have begun there, comes out at the end."""
    tail = Tail("abcd" * 8)
    assert tail.feed(b"some output\nabcd") + tail.rest() == b"some output\nabcd"


@pytest.mark.parametrize("total", [0, 1, 499, 500, 501, 999, 1000, 1001, 1500, 1501, 2777, 100_000])
@pytest.mark.parametrize("size", [1, 13, 600, 5000])
def test_spool_keeps_first_and_last_half_of_its_cap(tmp_path: Path, total: int, size: int) -> None:
    """Bytes kept are the head and the tail of what was written, the file is never larger than the cap."""
    if total // size > 10_000:
        size = 10
    data = hashlib.shake_128(b"x").digest(total)
    spool = Spool(tmp_path / "out", 1000)
    for at in range(0, total, size):
        spool.write(data[at : at + size])
    output = spool.close()
    expected = data if total <= 1000 else data[:500] + data[-500:]
    assert (output.path.read_bytes(), output.total_bytes, output.kept_bytes) == (expected, total, len(expected))
    assert output.head_bytes == (500 if total > 1000 else total)


@pytest.mark.parametrize(
    "command",
    [
        Command(b"echo a\0b"),
        Command(b"x" * (PAYLOAD_BYTES + 1)),
        Command(b"cat", stdin=b"x" * PAYLOAD_BYTES),
        Command(b"true", env={"A-B": "x"}),
        Command(b"true", secrets={"A": "x\0y"}),
        Command(b"true", cwd="/workspace/a\0b"),
        Command(b"{}", kind="toolbox", program="../files"),
    ],
    ids=["nul", "too large", "stdin too large", "variable name", "nul in a secret", "nul in the folder", "program"],
)
def test_what_no_shell_can_run_is_refused_before_it_is_sent(command: Command) -> None:
    """The fault says what is wrong; no container is made for it."""
    with pytest.raises(InvalidFault):
        compose(command)


@pytest.mark.parametrize(
    ("script", "code"),
    [("cd / && export A=1", 0), ("exit 3", 3), ("set -e; false", 1), ('pwd; echo "A=$A"', 0), ("exit 255", 255)],
)
def test_exit_code_is_the_command_s(shell: Shell, script: str, code: int) -> None:
    """The code comes through as it is (T31)."""
    result = shell.run(script)
    assert (result.status, result.exit_code) == ("ok", code)


def test_every_call_starts_afresh(shell: Shell) -> None:
    """Folder, variables and functions of an earlier call are gone; files under HOME and the repository stay (T31)."""
    shell.run("mkdir ~/d d; cd /tmp; export A=1; f() { echo f; }; touch /tmp/gone ~/d/kept ~-/d/kept")
    assert shell.text('pwd; echo "A=$A"; ls -A /tmp ~/d d; f 2>/dev/null; true') == (
        "/workspace/repo\nA=\n/tmp:\n\n/workspace/home/d:\nkept\n\nd:\nkept\n"
    )


@pytest.mark.parametrize("cwd", ["sp ace", "ümläut", "it's", 'quo"te', "$HOME", "-dash", "new\nline"])
def test_working_folder_may_have_any_name(shell: Shell, cwd: str) -> None:
    """A command starts in the folder it is given, whatever stands in its name."""
    folder = f"/workspace/repo/{cwd}"
    shell.run('mkdir -p -- "$D"', env={"D": folder})
    assert shell.text("pwd", cwd=folder) == f"{folder}\n"


def test_missing_working_folder_is_said(shell: Shell) -> None:
    """Nothing runs, and the reason names the folder."""
    result = shell.run("echo ran", cwd="/workspace/repo/none")
    assert (result.status, result.exit_code, result.output.total_bytes) == ("error", None, 0)
    assert "/workspace/repo/none" in result.detail


@pytest.mark.parametrize(
    "script",
    [
        "git init -q g && cd g && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && "
        "git -c user.name=a -c user.email=a@b commit --amend",
        "python3 -c 'input()'",
        "read x < /dev/tty",
        "cat",
        "git init -q h && cd h && for i in $(seq 200); do git -c user.name=a -c user.email=a@b commit -q "
        "--allow-empty -m $i; done && git log",
        "git clone https://user@127.0.0.1:1/x",
        "python3 -c 'import pydoc; pydoc.help(str)'",
    ],
    ids=["editor", "input", "tty", "stdin", "pager", "password", "help"],
)
def test_nothing_waits_for_a_person(shell: Shell, script: str) -> None:
    """No terminal, empty stdin, editor and pager off: the command ends by itself (T25, H10)."""
    assert shell.run(script, timeout_s=PROMPTLY_S).status == "ok"


@pytest.mark.parametrize(
    "script",
    [
        "sleep 300 & echo up",
        "(while :; do echo x >/dev/null; sleep 1; done) & echo up",
        "setsid sleep 300 & echo up",
        "nohup sh -c 'trap \"\" TERM HUP; sleep 300' >/dev/null 2>&1 & echo up",
    ],
    ids=["child", "loop", "setsid", "nohup"],
)
def test_background_child_does_not_hold_the_answer(shell: Shell, script: str) -> None:
    """The call answers with its own exit code while the child still holds the output open (T26)."""
    start = time.monotonic()
    assert shell.text(script) == "up\n"
    assert (shell.last.exit_code, time.monotonic() - start < PROMPTLY_S) == (0, True)


def test_background_child_dies_with_its_call(shell: Shell) -> None:
    """A child that would go on writing to the workspace has stopped when the next call starts (T26)."""
    shell.run("(while :; do echo x >>~/ticks; done) & while ! test -s ~/ticks; do :; done")
    first, second = shell.text("wc -c <~/ticks; for i in $(seq 2000); do :; done; wc -c <~/ticks").split()
    assert first == second


@pytest.mark.parametrize(
    "script",
    [
        "echo partial; trap '' TERM INT HUP; while :; do :; done",
        "echo partial; sh -c 'trap \"\" TERM; (setsid nohup sleep 300 &) ; sleep 300'",
        "echo partial; kill -STOP $PPID; sleep 300",
    ],
    ids=["ignores TERM", "double fork", "stops its parent"],
)
def test_time_limit_ends_everything(sandbox: DockerSandbox, script: str) -> None:
    """The observation says time limit and keeps the output; the container and all in it are gone (T27, F30, H08)."""
    mine = owner()
    with sandbox.workspace(mine, "python", SMALL) as workspace:
        shell = Shell(workspace)
        (called,) = parked(workspace)
        assert shell.text(script, timeout_s=1) == "partial\n"
        assert (shell.last.status, shell.last.exit_code) == ("timeout", None)
        assert "1 s" in shell.last.detail
        wait_for(lambda: called not in containers(sandbox, mine), timeout_s=5)
        assert shell.text("echo next") == "next\n"


def test_frozen_container_ends_at_the_limit(sandbox: DockerSandbox) -> None:
    """One that was paused from outside neither hangs the call nor survives it (T55)."""
    with sandbox.workspace(owner(), "python", SMALL) as workspace:
        sandbox._engine._api.pause(parked(workspace)[0])
        assert Shell(workspace).run("echo never", timeout_s=1).status == "timeout"
        assert Shell(workspace).text("echo next") == "next\n"


def test_cancel_kills_a_call_at_once(shell: Shell) -> None:
    """The call ends when cancel is thrown, says so, and keeps what it wrote."""
    cancel, spool = Cancel(), shell.workspace._spool
    earlier = set(spool.glob("*.out"))
    with in_background(lambda: shell.run("seq 31000 32000; sleep 300", cancel=cancel, timeout_s=300)) as returned:
        wait_for(lambda: any(b"31500" in p.read_bytes() for p in set(spool.glob("*.out")) - earlier))
        cancel.set("cancelled by ann")
    (result,) = returned
    assert (result.status, result.cancelled, result.detail) == ("interrupted", True, "cancelled by ann")
    assert result.output.path.read_bytes().startswith(b"31000\n31001\n")


def test_cancelled_before_it_starts_runs_nothing(shell: Shell) -> None:
    """A switch that is thrown already lets no byte of the call reach a container."""
    cancel = Cancel()
    cancel.set("drain")
    assert shell.run("touch ~/ran", cancel=cancel).cancelled
    assert shell.run("test ! -e ~/ran").exit_code == 0


def test_raw_bytes_come_out_exactly(shell: Shell) -> None:
    """Random bytes, NUL, invalid UTF-8 and C1 controls are stored as they were written (T28, H06)."""
    script = "head -c 3000 /dev/urandom | tee ~/raw; printf '\\377\\376 ok\\n' | tee -a ~/raw; " \
             "printf 'a\\000b\\200\\237\\n' | tee -a ~/raw"  # fmt: skip
    written = shell.bytes(script)
    assert hashlib.sha256(written).hexdigest() == shell.text("sha256sum <~/raw").split()[0]
    assert written.endswith(b"\xff\xfe ok\na\x00b\x80\x9f\n")


def test_stdout_and_stderr_keep_their_order(shell: Shell) -> None:
    """They are one stream, in the order they were written."""
    script = "for i in 1 2 3 4 5; do echo o$i; echo e$i >&2; done"
    assert shell.text(script).split() == [f"{kind}{i}" for i in range(1, 6) for kind in "oe"]


def test_large_output_is_drained_in_constant_memory(shell: Shell) -> None:
    """300 MB flow by: head, tail and the true count are kept, the worker grows by less than 32 MiB (T30, H05)."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _kib("VmRSS")
    result = shell.run("yes | head -c 300000000; seq 1 100000; echo END", timeout_s=120)
    assert _kib("VmHWM") - before < 32 * 1024
    kept = result.output.path.read_bytes()
    assert result.output.total_bytes == 300_000_000 + 588_895 + 4
    assert (len(kept), kept[:4], kept[-10:]) == (MIB, b"y\ny\n", b"100000\nEND\n"[-10:])


def _kib(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def test_command_of_200_kb_with_a_heredoc_runs(shell: Shell) -> None:
    """Size and special characters of a command do not matter (T32)."""
    line = "' \" $HOME `x` \\ EOF. \t ü\r\n"
    content = line * (200_000 // len(line.encode()) + 1)
    shell.run(f"cat >big <<'THE-END'\n{content}THE-END\n")
    assert shell.text("sha256sum <big").split()[0] == hashlib.sha256(content.encode()).hexdigest()


@pytest.mark.parametrize("filler", ["", "#" * 2000], ids=["short", "long"])
def test_command_s_text_is_not_touched(shell: Shell, filler: str) -> None:
    """Backslashes, quotes and percent signs arrive as they are, however the text travels."""
    text = r"""a\nb\\c\c%d%%\101\0 $HOME `x` "y" \\\
  end"""
    assert shell.text(f"cat <<'E' {filler}\n{text}\nE") == f"{text}\n"


@pytest.mark.parametrize("fields", [{}, {"writes": False}, {"network": True, "env": {"A": "a\nb"}}], ids=str)
@pytest.mark.parametrize("script", ["sha256sum", "sha256sum #" + "x" * 100_000], ids=len)
def test_standard_input_arrives_exactly(shell: Shell, script: str, fields: dict[str, Any]) -> None:
    """Bytes of any kind, more than a pipe holds, beside a script that travels in the line or behind it."""
    data = b"\0\n'\xff" + hashlib.shake_128(b"y").digest(3 * MIB)
    assert shell.text(script, stdin=data, **fields).split()[0] == hashlib.sha256(data).hexdigest()


def test_several_lines_of_a_variable_arrive(shell: Shell) -> None:
    """A key of several lines, quotes and bytes that are no text come out of the environment as they went in."""
    value = "-----BEGIN\nab'c\"d$e`f\\\n\n-----END\n\udcff"
    assert shell.bytes('printf %s "$KEY"', secrets={"KEY": value}) == value.encode("utf-8", "surrogateescape")


def test_script_cannot_be_rewritten_while_it_runs(shell: Shell) -> None:
    """It has no name any more when it starts, and nothing of it is open in its programs."""
    assert shell.text("ls -A /run/dawnfleet; ls /proc/self/fd | wc -l; echo >/run/dawnfleet/payload; echo same") == (
        "4\nsame\n"
    )


def test_line_numbers_of_a_script_are_right(shell: Shell) -> None:
    """What we put before the script does not shift its lines."""
    assert "line 3:" in shell.text("true\n:\nnosuchcommand")


@pytest.mark.parametrize(
    "script",
    ["kill -9 $PPID", "kill -9 -1", "kill -9 1", "kill -TERM 1; kill -HUP 1", "exec kill -9 $$", "exec 1>&- 2>&-"],
)
def test_killing_the_wrapper_harms_only_the_call(shell: Shell, script: str) -> None:
    """The call ends with some result within its limit, and the next one works."""
    start = time.monotonic()
    assert shell.run(f"{script}; true", timeout_s=PROMPTLY_S).status in ("ok", "error")
    assert time.monotonic() - start < PROMPTLY_S
    assert shell.text("echo next") == "next\n"


def test_call_killed_from_outside_is_an_observation(sandbox: DockerSandbox) -> None:
    """A stream that ends without a trailer, with the keeper alive, is told with the engine's exit code."""
    mine = owner()
    with sandbox.workspace(mine, "python", SMALL) as workspace:
        shell = Shell(workspace)
        with in_background(lambda: shell.run("touch ~/up; sleep 300", network=True)) as returned:
            keep = {workspace._keeper_box.container, *parked(workspace)}
            called = wait_for(lambda: set(containers(sandbox, mine)) - keep).pop()
            wait_for(lambda: sandbox._engine._api.inspect_container(called)["State"]["Running"])
            sandbox._engine.kill(called)
        (result,) = returned
        assert (result.status, result.exit_code) == ("error", None)
        assert "137" in result.detail


def test_forged_trailer_needs_the_nonce(shell: Shell) -> None:
    """Lines that look like a trailer, with another nonce, are output."""
    line = f"\n{secrets.token_hex(16)} 0 0 0\n"
    assert shell.text(f"printf '{line}'; exit 4") == line
    assert shell.last.exit_code == 4


@pytest.fixture
def tight(sandbox: DockerSandbox) -> Iterator[Shell]:
    """A workspace whose tmpfs is larger than its memory."""
    limits = SMALL.model_copy(update={"memory_bytes": 24 * MIB, "tmpfs_bytes": 64 * MIB})
    with sandbox.workspace(owner(), "python", limits) as workspace:
        yield Shell(workspace)


MEMORY_BOMB = "python3 -c \"b'x' * 200_000_000\""


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [(MEMORY_BOMB, "oom", 137), (f"{MEMORY_BOMB}; exit 5", "oom", 5), (f"{MEMORY_BOMB}; true", "ok", 0)],
    ids=["itself", "a child", "a child nobody minds"],
)
def test_out_of_memory_is_called_that(shell: Shell, script: str, status: str, code: int) -> None:
    """The kernel's counter is read, so that also a child's death is known; the exit code stays (H02)."""
    result = shell.run(script)
    assert (result.status, result.exit_code) == (status, code)
    assert "out of memory" in result.detail


def test_filling_memory_through_tmpfs_is_out_of_memory(tight: Shell) -> None:
    """tmpfs counts as memory: whoever of the call is killed for it, the next one works (H03)."""
    assert tight.run("head -c 60000000 /dev/zero >/tmp/x").status == "oom"
    assert tight.text("echo next") == "next\n"


def test_fork_bomb_meets_the_cap(shell: Shell) -> None:
    """The call still answers, and says which limit was met (H01)."""
    result = shell.run(":(){ :|:& };:; sleep 1; echo through", timeout_s=PROMPTLY_S)
    assert result.status in ("ok", "timeout")
    assert shell.text("echo next") == "next\n"
    assert result.status == "timeout" or "64 processes" in result.detail


def test_a_thousand_zombies_are_reaped(shell: Shell) -> None:
    """Orphans go to the first process, which reaps them while it waits: a cap of 64 is never met (H09)."""
    script = """python3 - <<'E'
import os
for _ in range(1000):
    child = os.fork()
    if not child:
        if os.fork():
            os._exit(0)
        os._exit(0)
    os.waitpid(child, 0)
print("done")
E"""
    assert shell.text(script) == "done\n"


@pytest.mark.parametrize(("folder", "mib"), [("/tmp", 16), ("/dev/shm", 64)], ids=["tmp", "shm"])
def test_memory_folders_are_full_at_their_cap(sandbox: DockerSandbox, folder: str, mib: int) -> None:
    """Writing past the size ends in ENOSPC inside (H03)."""
    limits = SMALL.model_copy(update={"memory_bytes": 512 * MIB, "workspace_bytes": 512 * MIB})
    with sandbox.workspace(owner(), "python", limits) as workspace:
        text = Shell(workspace).text(f"head -c 100m /dev/zero >{folder}/x; stat -c %s {folder}/x")
    assert "No space left" in text
    assert int(text.split()[-1]) <= mib * MIB


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm", "/run/dawnfleet"])
def test_memory_folders_hold_a_bounded_number_of_files(shell: Shell, folder: str) -> None:
    """A million empty files stop at the inode cap (H04)."""
    text = shell.text(f"cd {folder}; for i in $(seq 1000); do : >$i || break; done; ls | wc -l", timeout_s=PROMPTLY_S)
    assert "No space left" in text
    assert int(text.split()[-1]) <= 500


def test_one_file_cannot_be_larger_than_the_workspace_may_be(shell: Shell) -> None:
    """The writer is stopped by the kernel at the workspace's cap (H03)."""
    result = shell.run("head -c 100m /dev/zero >big2")
    assert result.exit_code != 0
    assert shell.text("stat -c %s big2; rm big2") == f"{64 * MIB}\n"


def test_filling_the_workspace_is_stopped(sandbox: DockerSandbox) -> None:
    """A call that writes without end is killed when the volume is over its cap, long before its time limit (H03)."""
    with sandbox.workspace(owner(), "python", SMALL) as workspace:
        result = Shell(workspace).run("for i in $(seq 3000); do head -c 1m /dev/zero >$i; sleep 0.01; done")
        assert (result.status, result.exit_code) == ("error", None)
        assert "64 MiB" in result.detail
        with pytest.raises(WorkspaceTooLarge):
            workspace.snapshot()


def test_read_only_call_cannot_write(shell: Shell) -> None:
    """A call that does not write has the workspace mounted so."""
    assert "Read-only file system" in shell.text("touch x; touch ~/x", writes=False)


def test_toolbox_program_gets_its_payload_and_secrets(shell: Shell) -> None:
    """A program of ours runs in the toolbox image with the payload as its stdin."""
    result = shell.run(b'{"op": "list", "path": "."}', kind="toolbox", program="files", writes=False)
    assert result.status == "ok"
    assert result.output.total_bytes > 0
