"""Owns the deployment's before-call hook: a program or Python function of the operator's that rules over each call.
Refuses to let a call through that the hook did not answer: any failure of it is a denial that says so.

The hook gets one JSON object: run, batch, target, step, and call with id, tool and arguments. It answers one:
`{"action": "allow" | "deny" | "ask", "reason": "..."}`. A program reads stdin and writes stdout; a function takes and
returns a dict. It runs in the worker and gets no secret: a program's environment has PATH and LANG only.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any

import structlog
from pydantic import ValidationError

from worker.contract.errors import UsageFault
from worker.contract.task import Frozen
from worker.policy import ALLOW, HookAction, Ruling

LOG = structlog.get_logger(__name__)
SETTING = "DAWN_BEFORE_CALL"

Asked = Mapping[str, Any]
Hook = Callable[[Asked], Ruling]


class Answer(Frozen):
    """What a hook says."""

    action: HookAction
    reason: str = ""


def no_hook(_: Asked) -> Ruling:
    """Where the deployment has none."""
    return ALLOW


def open_hook(setting: str | None, timeout_s: float) -> Hook:
    """The hook that DAWN_BEFORE_CALL names. Raises UsageFault when there is no such program or function."""
    if setting is None:
        return no_hook
    kind, _, name = setting.partition(":")
    if kind == "command":
        ask = _program(shlex.split(name), timeout_s)
    elif kind == "python":
        ask = _function(name, timeout_s)
    else:
        raise UsageFault(
            f"{SETTING}={setting!r} makes no sense",
            hint="write command:/path/to/program or python:module:function",
        )

    def ruled(asked: Asked) -> Ruling:
        try:
            answer = Answer.model_validate(ask(asked))
        except Exception as error:
            # The operator's code may raise anything, and a guard that failed has allowed nothing.
            LOG.warning("before_call_failed", call=asked["call"]["id"], error=repr(error))
            return Ruling("deny", f"this deployment's before-call hook failed: {_told(error)}")
        return Ruling(answer.action, answer.reason or f"this deployment's hook says {answer.action}")

    return ruled


def _program(words: list[str], timeout_s: float) -> Callable[[Asked], Any]:
    if not words or not os.access(words[0], os.X_OK) or not Path(words[0]).is_absolute():
        raise UsageFault(f"{SETTING} names no program", hint="give the absolute path of one that may be executed")

    def ask(asked: Asked) -> Any:
        done = subprocess.run(
            words,
            input=json.dumps(asked).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            env={"PATH": os.defpath, "LANG": "C.UTF-8"},
            check=True,
        )
        return json.loads(done.stdout)

    return ask


def _function(name: str, timeout_s: float) -> Callable[[Asked], Any]:
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageFault(f"{SETTING} names no function: {error}", hint="write python:module:function") from error

    def ask(asked: Asked) -> Any:
        answer: Future[Any] = Future()

        def call() -> None:
            try:
                answer.set_result(function(json.loads(json.dumps(asked))))
            except BaseException as error:  # handed on to whoever waits
                answer.set_exception(error)

        Thread(target=call, name="before call", daemon=True).start()
        return answer.result(timeout_s)

    return ask


def _told(error: Exception) -> str:
    match error:
        case subprocess.TimeoutExpired() | TimeoutError():
            return "it took too long"
        case subprocess.CalledProcessError(returncode=code):
            return f"it ended with exit code {code}"
        case ValidationError() | ValueError():
            return "its answer is not what was agreed"
        case _:
            return type(error).__name__
