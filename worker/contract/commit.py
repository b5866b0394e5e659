"""Owns the commit that a patch becomes: its subject, its message with trailers, and the same as a letter that
`git am` takes. Pure. Refuses to let what a task or a model wrote become a header, a trailer or the start of a patch.
"""

from __future__ import annotations

import base64
import re
from datetime import datetime
from email.header import Header
from email.utils import format_datetime
from typing import Final

from worker.contract.delivered import words_of
from worker.contract.delivery import Deliver, filled
from worker.contract.events import canonical, digest
from worker.contract.run import Run
from worker.contract.task import Task

AUTHOR: Final = "Dawnfleet"
EMAIL: Final = "dawnfleet@dawnfleet.invalid"
SUBJECT_CHARS: Final = 120
PROMPT_CHARS: Final = 2_000
LINE_BYTES: Final = 900
"""Longest line that mail carries as it is: 998 bytes, and room."""
_NO_TEXT: Final = re.compile(r"^(?=(---|diff -|Index: |>?From |[A-Za-z][A-Za-z0-9-]*: ?))", re.MULTILINE)
"""Lines of a message that git am would take for the patch, another letter or a header, and git for a trailer."""


def words(task: Task, run: Run, summary: str = "") -> dict[str, str]:
    """What templates may name (worker/contract/delivery.py)."""
    sealed = run.sealed
    ended = {"outcome": sealed.outcome if sealed else "", "verdict": (sealed.verdict if sealed else None) or "none"}
    return {**words_of(task), **ended, "summary": summary}


def subject(task: Task, run: Run) -> str:
    """One line: the title that the delivery asks for, or the task's first line."""
    title = filled((task.deliver or Deliver()).title, words(task, run))
    return _one_line(title)[:SUBJECT_CHARS].strip() or task.target


def message(task: Task, run: Run) -> str:
    """The commit's message. The same run always has the same one."""
    asked = task.prompt or "\n".join(task.commands)
    return f"{subject(task, run)}\n\n{_harmless(asked[:PROMPT_CHARS].strip())}\n\n{trailers(task, run)}\n"


def trailers(task: Task, run: Run) -> str:
    """Where the change is from, a line each. `Dawnfleet-Task` is the digest of task.json."""
    sealed = run.sealed
    lines = {
        "Run": task.run,
        "Batch": task.batch,
        "Task": digest(canonical(task.model_dump(mode="json"))),
        "Patch": sealed.artifacts.get("patch.diff", "") if sealed else "",
        "Verdict": (sealed.verdict if sealed else None) or "none",
    }
    return "\n".join(f"Dawnfleet-{name}: {value}" for name, value in lines.items() if value)


def letter(task: Task, run: Run, patch: bytes) -> bytes:
    """The patch as a mailbox of one letter, for `git am`. Bytes that mail would change travel as Base64."""
    commit = run.prepared.commit if run.prepared else "0" * 40
    plain = b"\r" not in patch and all(len(line) <= LINE_BYTES for line in patch.split(b"\n"))
    head = [
        f"From {commit} Mon Sep 17 00:00:00 2001",
        f"From: {AUTHOR} <{EMAIL}>",
        f"Date: {format_datetime(datetime.fromisoformat(run.updated_at))}",
        f"Subject: {Header('[PATCH] ' + subject(task, run), 'utf-8').encode(linesep=chr(10))}",
        "MIME-Version: 1.0",
        "Content-Type: text/plain; charset=UTF-8",
        f"Content-Transfer-Encoding: {'8bit' if plain else 'base64'}",
    ]
    text = message(task, run).partition("\n\n")[2].encode("utf-8", "backslashreplace")
    body = text + b"---\n\n" + patch + b"-- \ndawnfleet\n"
    if not plain:
        body = base64.encodebytes(body)
    return "\n".join(head).encode() + b"\n\n" + body + b"\n"


def _one_line(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _harmless(text: str) -> str:
    """Text of a message of which no line is anything else."""
    kept = "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)
    return _NO_TEXT.sub(" ", kept)
