"""Owns how the results of a call become what its model is told. Refuses to know where blobs and masks come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from worker.contract.events import Digest, Observation, ObservationStatus, Observed, ToolCall
from worker.contract.task import Limits, Task
from worker.sandbox.protocol import Command, Result
from worker.tools.output import clip, shown
from worker.tools.tool import Answer

COPY_BYTES = 2**20
HINTS = {
    126: "the file is there but cannot be executed: check its mode, its first line and its interpreter",
    127: "command not found: it is not in this image, or not on the PATH",
    137: "it was killed (SIGKILL)",
    139: "it crashed with a segmentation fault",
}
STATUSES: tuple[ObservationStatus, ...] = ("interrupted", "oom", "timeout", "error", "ok")
"""Worst first: what a call of several commands is reported as."""


class Stream(Protocol):
    """Masks bytes that come in chunks."""

    def feed(self, chunk: bytes) -> bytes: ...

    def close(self) -> bytes: ...


class Masks(Protocol):
    """Masks secrets (worker/redact.py)."""

    def stream(self) -> Stream: ...

    def text(self, text: str) -> str: ...


def answered(call: ToolCall, answer: Answer) -> Observed:
    """What a tool said that needed no container."""
    size = len(answer.text.encode())
    observation = Observation(
        call_id=call.id,
        tool=call.name,
        status="ok" if answer.ok else "error",
        exit_code=0 if answer.ok else 1,
        output=answer.text,
        total_bytes=size,
        kept_bytes=size,
    )
    return Observed(observation=observation, plan=answer.plan)


def ran(
    call: ToolCall,
    commands: Sequence[Command],
    results: Sequence[Result],
    task: Task,
    masks: Masks,
    put_blob: Callable[[Path], Digest],
) -> Observed:
    """What the call's commands did: all kept bytes masked and stored as one blob, their head and tail shown.

    The status is the worst of the results, the exit code the first that is not 0.
    """
    limits = task.limits
    worst = min(results, key=lambda result: STATUSES.index(result.status))
    codes = [result.exit_code for result in results]
    exit_code = next((code for code in codes if code), None if None in codes else 0)
    note = masks.text(_note(worst, exit_code, limits))
    unkept_bytes = sum(result.output.total_bytes - result.output.kept_bytes for result in results)
    kept = results[0].output.path.with_suffix(".masked")
    try:
        with kept.open("w+b") as stream:
            masking = masks.stream()
            stream.writelines(masking.feed(chunk) for chunk in _chunks(commands, results))
            stream.write(masking.close())
            kept_bytes = stream.tell()
            stream.seek(0)
            text = shown(
                stream,
                call.id,
                max_bytes=limits.output_shown_bytes - len(note.encode()) - 1,
                max_lines=limits.output_shown_lines - 1,
                unkept_bytes=unkept_bytes,
            )
        blob = put_blob(kept) if kept_bytes else None
    finally:
        kept.unlink(missing_ok=True)
    return Observed(
        observation=Observation(
            call_id=call.id,
            tool=call.name,
            status="error" if worst.status == "ok" and exit_code else worst.status,
            exit_code=exit_code,
            output="\n".join(part for part in (text, note) if part),
            blob=blob,
            total_bytes=sum(result.output.total_bytes for result in results),
            kept_bytes=kept_bytes,
            duration_ms=sum(result.duration_ms for result in results),
        )
    )


def rolled_back(observed: Observed, why: str) -> Observed:
    """The same call as an error: its effect was over a cap, so the workspace is as before."""
    seen = observed.observation
    output = f"{seen.output}\n[{why}. The workspace was put back to what it was before this call.]".removeprefix("\n")
    changes = {"status": "error", "exit_code": seen.exit_code or 1, "output": output}
    return Observed(observation=seen.model_copy(update=changes))


def _chunks(commands: Sequence[Command], results: Sequence[Result]) -> Iterator[bytes]:
    """The kept bytes of all results; of several, each under its command and above its exit code."""
    several = len(results) > 1
    for command, result in zip(commands, results, strict=True):
        if several:
            yield f"$ {clip(command.payload.decode('utf-8', 'replace'), 500)}\n".encode()
        with result.output.path.open("rb") as stream:
            while chunk := stream.read(COPY_BYTES):
                yield chunk
        if several:
            yield f"\n[{result.status}, exit code {result.exit_code}]\n\n".encode()


def _note(result: Result, exit_code: int | None, limits: Limits) -> str:
    """What happened and what to try, where the output alone does not tell."""
    detail = f"; {clip(result.detail, 500)}" if result.detail else ""
    match result.status:
        case "timeout":
            return (
                f"[stopped after {result.duration_ms / 1000:.0f} s by its time limit, nothing of it is running any more"
                f"{detail}. Try a smaller part of the work, or ask for more time with timeout_s (up to 600).]"
            )
        case "oom":
            return (
                f"[out of memory: a call may use {limits.memory_bytes // 2**20} MiB{detail}. "
                "Try smaller inputs, or fewer jobs at once.]"
            )
        case "interrupted":
            return f"[interrupted, outcome unknown{detail}. Look at the workspace before you repeat it.]"
    hint = HINTS.get(exit_code or 0, "")
    return f"[exit code {exit_code}: {hint}{detail}]" if hint else ""
