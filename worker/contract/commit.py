"""Owns the commit that a patch becomes: its subject, its message with trailers, and the same as a letter that
`git am` takes. Pure. Refuses to let what a task or a model wrote become a header, a trailer or the start of a patch,
or act on a forge, which reads commits, too.
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
    told = {name: harmless(_one_line(word)) for name, word in words(task, run).items()}
    title = filled(_one_line((task.deliver or Deliver()).title), told)
    return title[:SUBJECT_CHARS].strip() or harmless(_one_line(task.target))


def message(task: Task, run: Run) -> str:
    """The commit's message. The same run always has the same one."""
    asked = task.prompt or "\n".join(task.commands)
    return f"{subject(task, run)}\n\n{harmless(_plain(asked[:PROMPT_CHARS].strip()))}\n\n{trailers(task, run)}\n"


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


def harmless(text: str) -> str:
    """Words of models and repositories in which nobody is mentioned, no issue is referred to or closed, nothing is
    loaded, and no comment is opened: a forge acts on such text."""
    unseen = "\u200b"
    text = text.replace("<!--", f"<{unseen}!--").replace("//", f"/{unseen}/")
    text = re.sub(r"@(?=[A-Za-z0-9_])", f"@{unseen}", text)
    text = re.sub(r"([#!&~%])(?=[A-Za-z0-9\"])", rf"\1{unseen}", text)
    text = re.sub(r"\b(GH)-(?=\d)", rf"\1-{unseen}", text)
    return re.sub(r"(?m)^(\s*>?\s*)/(?=[a-z])", rf"\1{unseen}/", text)


def _one_line(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _plain(text: str) -> str:
    """Text of a message of which no line is anything else."""
    kept = "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)
    return _NO_TEXT.sub(" ", kept)
