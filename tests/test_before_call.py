"""The deployment's before-call hook: a program or a function of the operator's."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from worker.before_call import no_hook, open_hook
from worker.contract.errors import UsageFault
from worker.policy import Ruling

ASKED: dict[str, Any] = {
    "v": 1,
    "run": "r1",
    "call": {"id": "call_1_1", "tool": "run_command", "arguments": {"command": "rm -rf /"}},
}
HOOK = """#!{python} -I
import json, os, sys
asked = json.load(sys.stdin)
print(json.dumps({{"action": "deny", "reason": asked["call"]["arguments"]["command"] + str(sorted(os.environ))}}))
"""


def program(place: Path, text: str) -> str:
    path = place / "hook"
    path.write_text(text)
    path.chmod(0o755)
    return f"command:{path}"


def test_a_program_rules_and_gets_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call comes on stdin, the answer from stdout, and nothing of the worker's environment is there."""
    monkeypatch.setenv("DAWN_SECRET_TOKEN", "hunter2-hunter2")
    ruling = open_hook(program(tmp_path, HOOK.format(python=sys.executable)), 30)(ASKED)
    assert ruling.action == "deny"
    assert ruling.reason.startswith("rm -rf /")
    assert set(json.loads(ruling.reason.removeprefix("rm -rf /").replace("'", '"'))) <= {"PATH", "LANG", "LC_CTYPE"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("exit 3", "it ended with exit code 3"),
        ("echo nonsense", "its answer is not what was agreed"),
        ("""echo '{"action": "perhaps"}'""", "its answer is not what was agreed"),
        ("exec sleep 60", "it took too long"),
    ],
)
def test_a_program_that_fails_allows_nothing(tmp_path: Path, body: str, said: str) -> None:
    """Whatever it does wrong is a denial that says so."""
    ruling = open_hook(program(tmp_path, f"#!/bin/sh\n{body}\n"), 1)(ASKED)
    assert ruling.action == "deny"
    assert said in ruling.reason


def asks(asked: dict[str, Any]) -> dict[str, str]:
    """A hook."""
    return {"action": "ask", "reason": f"may {asked['run']} do it?"}


def hangs(asked: dict[str, Any]) -> None:
    """A hook that never answers."""
    threading.Event().wait(60)


def breaks(asked: dict[str, Any]) -> None:
    """A hook with a bug."""
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("name", "ruling"),
    [
        ("asks", Ruling("ask", "may r1 do it?")),
        ("hangs", Ruling("deny", "this deployment's before-call hook failed: it took too long")),
        ("breaks", Ruling("deny", "this deployment's before-call hook failed: ZeroDivisionError")),
    ],
)
def test_a_function_rules(monkeypatch: pytest.MonkeyPatch, name: str, ruling: Ruling) -> None:
    """It takes and returns a dict; one that hangs or raises allows nothing."""
    monkeypatch.setitem(sys.modules, "hooks_of_ours", sys.modules[__name__])
    assert open_hook(f"python:hooks_of_ours:{name}", 0.5)(ASKED) == ruling


@pytest.mark.parametrize(
    "setting", ["nonsense", "command:gone", "command:/gone", "python:gone:f", "python:json:gone"]
)
def test_a_hook_that_is_not_there_is_refused_at_the_start(setting: str) -> None:
    """As usage, with the name of the setting: a guard that is missing must not be found out at night."""
    with pytest.raises(UsageFault, match="DAWN_BEFORE_CALL"):
        open_hook(setting, 1)


def test_without_a_hook_every_call_goes_on() -> None:
    """The default is the written list and the task's rules alone."""
    assert open_hook(None, 1) is no_hook
    assert no_hook(ASKED) == Ruling("allow")
