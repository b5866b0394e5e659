"""Owns how the results of a call become its Observation. Refuses to store anything or to judge the command."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from worker.contract.events import Observation, ObservationStatus, ToolCall
from worker.contract.task import Limits
from worker.sandbox.protocol import Command, Output, Result
from worker.tools.output import clip, shown
from worker.tools.tool import Answer

HINTS = {
    126: "the file is there but cannot be executed: check its mode, its first line and its interpreter",
    127: "command not found: it is not in this image, or not on the PATH",
    137: "it was killed (SIGKILL)",
    139: "it crashed with a segmentation fault",
}
STATUSES: tuple[ObservationStatus, ...] = ("interrupted", "oom", "timeout", "error", "ok")
"""Worst first: what a call of several commands is reported as."""


def answered(call: ToolCall, answer: Answer) -> Observation:
    """The observation of a tool that needed no container."""
    size = len(answer.text.encode())
    return Observation(
        call_id=call.id,
        tool=call.name,
        status="ok" if answer.ok else "error",
        exit_code=0 if answer.ok else 1,
        output=answer.text,
        total_bytes=size,
        kept_bytes=size,
    )


def joined(commands: Sequence[Command], results: Sequence[Result], into: Path) -> Output:
    """One output of one or several commands; for several the file `into` gets all, each under its command."""
    if len(results) == 1:
        return results[0].output
    with into.open("wb") as joint:
        for command, result in zip(commands, results, strict=True):
            script = clip(command.payload.decode("utf-8", "replace"), 500)
            joint.write(f"$ {script}\n".encode())
            with result.output.path.open("rb") as one:
                shutil.copyfileobj(one, joint)
            joint.write(f"\n[{result.status}, exit code {result.exit_code}]\n\n".encode())
        kept = joint.tell()
    lost = sum(result.output.total_bytes - result.output.kept_bytes for result in results)
    return Output(path=into, total_bytes=kept + lost, kept_bytes=kept, head_bytes=kept)


def observed(
    call: ToolCall,
    results: Sequence[Result],
    output: Output,
    limits: Limits,
    *,
    blob: str | None = None,
    own_limit: bool = False,
) -> Observation:
    """What the model is told of a call that ran. output.path: the kept bytes, masked; blob: their digest. own_limit:
    the tool takes `timeout_s`.

    The status is the worst of the results, the exit code the first that is not 0.
    """
    worst = min(results, key=lambda result: STATUSES.index(result.status))
    codes = [result.exit_code for result in results]
    exit_code = next((code for code in codes if code), None if None in codes else 0)
    note = _note(worst, exit_code, limits, own_limit)
    with output.path.open("rb") as stream:
        text = shown(
            stream,
            call.id,
            max_bytes=limits.output_shown_bytes - len(note.encode()) - 1,
            max_lines=limits.output_shown_lines - 1,
            unkept_bytes=sum(result.output.total_bytes - result.output.kept_bytes for result in results),
        )
    return Observation(
        call_id=call.id,
        tool=call.name,
        status="error" if worst.status == "ok" and exit_code else worst.status,
        exit_code=exit_code,
        output="\n".join(part for part in (text, note) if part),
        blob=blob,
        total_bytes=output.total_bytes,
        kept_bytes=output.kept_bytes,
        duration_ms=sum(result.duration_ms for result in results),
    )


def with_error(observation: Observation, what: str) -> Observation:
    """The same call as a failure of ours to keep its effect (a cap of the workspace): rolled back, and told so."""
    text = f"{observation.output}\n[{what}. The workspace is as it was before this call.]".removeprefix("\n")
    return observation.model_copy(update={"status": "error", "exit_code": observation.exit_code or 1, "output": text})


def _note(result: Result, exit_code: int | None, limits: Limits, own_limit: bool) -> str:
    """What happened and what to try, where the output alone does not tell."""
    seconds = result.duration_ms / 1000
    detail = f" ({clip(result.detail, 500)})" if result.detail else ""
    match result.status:
        case "timeout":
            return (
                f"[stopped after {seconds:.0f} s by the time limit; nothing of it is running any more. "
                f"Try a smaller part of the work{', or give timeout_s (up to 600)' if own_limit else ''}{detail}]"
            )
        case "oom":
            return (
                f"[out of memory: the call may use {limits.memory_bytes // 2**20} MiB. Try smaller inputs or fewer "
                f"parallel jobs{detail}]"
            )
        case "interrupted":
            return f"[interrupted, outcome unknown; look at the workspace before you repeat it{detail}]"
    hint = HINTS.get(exit_code or 0, "")
    return f"[exit code {exit_code}: {hint}{detail}]" if hint else ""
