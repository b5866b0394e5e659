"""The tools end to end: a model's call through the toolset into real containers and back as an observation."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from sandboxes import Shell

from worker.contract.cancel import Cancel
from worker.contract.events import Observation, ToolCall
from worker.contract.task import Limits
from worker.tools import observe
from worker.tools.tool import ToolContext
from worker.tools.toolset import Toolset

pytestmark = pytest.mark.docker
LIMITS = Limits(call_timeout_s=60)
Call = Callable[..., Observation]


@pytest.fixture
def call(shell: Shell) -> Call:
    """Carries a call out as an attempt does."""

    def run(name: str, /, **arguments: Any) -> Observation:
        made = ToolCall(id="call_1_1", name=name, arguments=json.dumps(arguments))
        parsed = Toolset().parse(made)
        assert not isinstance(parsed, str), parsed
        work = parsed[0].command(parsed[1], ToolContext(LIMITS, (), "", (), lambda _: None))
        assert isinstance(work, list)
        result = shell.workspace.run(work[0], cancel=Cancel())
        return observe.observed(made, [result], result.output, LIMITS)

    return run


def test_files_written_by_tools_are_what_commands_run_on(call: Call) -> None:
    """Write, edit, run, read, search, list: one workspace for the toolbox and the task's image."""
    assert call("write_file", path="src/sum.py", content="print(3 + 2)\n").status == "ok"
    assert call("edit_file", path="src/sum.py", old_text="3 + 2", new_text="3 * 2").status == "ok"
    assert call("run_command", command="python3 src/sum.py").output == "6"
    assert call("read_file", path="src/sum.py").output.endswith("1\tprint(3 * 2)")
    assert call("search", pattern=r"print\(", path="src").output == "src/sum.py:1:print(3 * 2)"
    assert "src/sum.py" in call("list_files").output.split("\n")


@pytest.mark.parametrize("pattern", ["; touch x", "$(touch x)", "--files", "-e"])
def test_a_pattern_reaches_ripgrep_as_it_is(call: Call, pattern: str) -> None:
    """H43: nothing is run or read as an option because of it."""
    call("write_file", path="h43/f", content=f"before {pattern} after\n")
    assert call("search", pattern=pattern, path="h43", literal=True).output == f"h43/f:1:before {pattern} after"
    assert call("list_files", path="h43").output == "f"


@pytest.mark.parametrize("path", ["../base/x", "../../etc/passwd", "/etc/passwd", "out/x"])
def test_nothing_outside_of_the_repository_is_written(call: Call, path: str) -> None:
    """T23: refused with the resolved path, also through a link that a command made."""
    call("run_command", command="ln -sfn /workspace/home out")
    seen = call("write_file", path=path, content="x")
    assert (seen.status, seen.exit_code) == ("error", 1)
    assert "outside of /workspace/repo" in seen.output


def test_nothing_but_files_lives_from_call_to_call(call: Call) -> None:
    """T31: every call starts anew in the same folder; exit codes are its own."""
    scripts = ("mkdir -p src; cd src; export A=1", "exit 3", "set -e; false", 'pwd; echo "A=$A"')
    seen = [call("run_command", command=script) for script in scripts]
    assert [one.exit_code for one in seen] == [0, 3, 1, 0]
    assert seen[-1].output == "/workspace/repo\nA="


def test_a_command_over_its_time_says_what_to_try(call: Call) -> None:
    """T27: status timeout, what was printed until then, a way on."""
    seen = call("run_command", command="echo begun; sleep 60", timeout_s=1)
    assert (seen.status, seen.exit_code) == ("timeout", None)
    assert seen.output.startswith("begun\n[stopped after")


def test_a_missing_program_is_named(call: Call) -> None:
    """127 comes with the shell's words and ours."""
    seen = call("run_command", command="no-such-program")
    assert (seen.status, seen.exit_code) == ("error", 127)
    assert "[exit code 127: command not found" in seen.output


@pytest.mark.parametrize("script", ["python3 -c 'input()'", "read x < /dev/tty", "git commit --amend", "${EDITOR} x"])
def test_nobody_is_waited_for(call: Call, script: str) -> None:
    """T25: no terminal, empty input, no editor: each returns by itself."""
    assert call("run_command", command=script).status in ("ok", "error")
