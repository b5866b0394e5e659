"""Owns what differs between runs: how they ended, what they cost, their patches, and where their ways part. Refuses
to run git: patches are compared as text.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from scheduler.reports.measured import checks_text
from scheduler.reports.rows import duration
from scheduler.runs import View, view
from worker.contract.events import Compacted, Decided, FedBack, Finished, Observed, Record, Replied, Steered, Verdict
from worker.store.archive import Archive
from worker.store.journal import Journal
from worker.store.skim import skimmed

ACT_CHARS: Final = 300
PATCH_LINES: Final = 400
"""Of the difference of two patches, what is shown; `dawn diff` has each whole."""
PATCH_BYTES: Final = 2 * 2**20
"""Above it patches are only told to differ."""
FILE_LINES: Final = 2_000
COMPARED_LINES: Final = 10_000
"""Lines of one file, and of all together, that are compared: of texts that repeat themselves that takes time which
grows with the cube of their lines, 0.2 s for 2,000 and 8 s for 8,000."""


@dataclass(frozen=True)
class Side:
    """One run. records: its whole journal. patch: b"" where it left none."""

    view: View
    records: Sequence[Record]
    patch: bytes


def side(archive: Archive, run: str) -> Side:
    """Read one. Raises NotFoundFault, IntegrityFault, StoreFault."""
    journal, seen = Journal(archive, run), view(archive, run)
    digest = seen.run.sealed.artifacts.get("patch.diff") if seen.run.sealed else None
    patch = b"" if digest is None else journal.get_blob(digest)
    return Side(seen, [record for record, _ in journal.read(parse=skimmed)], patch)


def table(sides: Sequence[Side]) -> list[tuple[str, ...]]:
    """Rows of a heading and a cell for each run; those first that say how it ended. A row for each line of a text."""
    rows: list[tuple[str, ...]] = []
    for heading, cell in (
        ("target", lambda side: side.view.task.target),
        ("state", lambda side: side.view.state),
        ("verdict", lambda side: (side.view.run.sealed and side.view.run.sealed.verdict) or "-"),
        ("failure", lambda side: str((side.view.run.sealed and side.view.run.sealed.failure) or "-")),
        ("checks", lambda side: checks_text(side.view.run.verdict) if side.view.run.verdict else "-"),
        ("model", lambda side: side.view.task.model),
        ("steps", lambda side: str(side.view.run.steps)),
        ("time", lambda side: duration(side.view.run.working_s)),
        ("tokens", lambda side: f"{side.view.run.tokens:,}"),
        ("cost", lambda side: side.view.run.cost_text),
        ("changed", _changed),
    ):
        lines = zip_longest(*(cell(side).split("\n") for side in sides), fillvalue="")
        rows += [("" if below else heading, *line) for below, line in enumerate(lines)]
    return rows


def as_json(side: Side) -> dict[str, Any]:
    """The numbers of one run."""
    run = side.view.run
    stat = run.verdict.patch if run.verdict else None
    return {
        "checks": [check.model_dump(mode="json", include={"name", "status", "exit_code"}) for check in _checks(side)],
        "files": {} if stat is None else {path: list(lines) if lines else None for path, lines in stat.files.items()},
        "patch_bytes": len(side.patch),
    }


@dataclass(frozen=True)
class Parting:
    """Where the second run's way leaves the first's. step: of the model, 0 before its first. first_seq, other_seq:
    the segments of what each did there, -1 where it did nothing more."""

    step: int
    first: str
    other: str
    first_seq: int = -1
    other_seq: int = -1


def parting(first: Side, other: Side) -> Parting | None:
    """None where one did all that the other did, in the same order."""
    step = 0
    acts = zip_longest(_acts(first.records), _acts(other.records), fillvalue=(-1, 0, ""))
    for (seq, mine, said), (there, yours, told) in acts:
        step = max(mine, yours, step)
        if said != told:
            return Parting(step, said or "(nothing more)", told or "(nothing more)", seq, there)
    return None


def patches(first: Side, other: Side) -> list[str]:
    """What stands in one patch and not in the other, as lines of a diff of both; [] for equal ones."""
    if first.patch == other.patch:
        return []
    if max(len(first.patch), len(other.patch)) > PATCH_BYTES:
        return ["they differ, and are too large to be compared here"]
    texts = [_by_file(side.patch) for side in (first, other)]
    names = [side.view.task.run for side in (first, other)]
    lines: list[str] = []
    left = COMPARED_LINES
    for path in sorted({*texts[0], *texts[1]}):
        before, after = (text.get(path, []) for text in texts)
        longest = max(len(before), len(after))
        if before != after and longest > min(left, FILE_LINES):
            lines.append(f"{path}: {len(before):,} and {len(after):,} lines differ, and are too many to compare here")
        elif before != after:
            left -= longest
            lines += difflib.unified_diff(
                before, after, f"{names[0]}: {path}", f"{names[1]}: {path}", lineterm="", n=2
            )
    more = len(lines) - PATCH_LINES
    return lines if more <= 0 else [*lines[:PATCH_LINES], f"... and {more} more lines"]


def _acts(records: Iterable[Record]) -> Iterator[tuple[int, int, str]]:
    """What a run did and met, without times, costs and snapshots: (segment, step, words)."""
    step = 0
    for record in records:
        step = record.event.step if isinstance(record.event, Replied) else step
        yield from ((record.seq, step, words) for words in _acts_of(record))


def _acts_of(record: Record) -> Iterator[str]:
    match record.event:
        case Replied() as event:
            yield _cut("says: " + event.reply.text) if event.reply.text.strip() else "says nothing"
            yield from (_cut(f"calls {call.name} {call.arguments}") for call in event.reply.calls)
        case Observed() as event:
            seen = event.observation
            code = "" if seen.exit_code is None else f", exit code {seen.exit_code}"
            yield _cut(f"{seen.tool}: {seen.status}{code}: {seen.output.strip()}")
        case Steered() as event:
            yield _cut(f"{event.kind} by {event.by} {event.text}".rstrip())
        case Decided() as event:
            yield f"{event.decision}: {event.reason}".rstrip(": ")
        case FedBack() as event:
            shown = "red checks are shown: " if event.checks else "what its patch may not do: "
            yield shown + ", ".join([check.name for check in event.checks] or event.guards)
        case Compacted():
            yield "a summary stands for what was before"
        case Finished() as event:
            yield f"stopped: {event.failure}" if event.failure else "done"
        case Verdict() as event:
            yield f"verdict {event.verdict or '-'}"


def _by_file(patch: bytes) -> dict[str, list[str]]:
    """The lines of each file's part, without the object ids, which say no more than the lines do."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in patch.decode("utf-8", "replace").rstrip("\n").split("\n"):
        if line.startswith("diff --git "):
            lines = found.setdefault(line.removeprefix("diff --git "), [])
        elif not re.match(r"index [0-9a-f]+\.\.[0-9a-f]+", line):
            lines.append(line)
    return found


def _changed(side: Side) -> str:
    if side.view.run.verdict is None:
        return "-"
    patch = side.view.run.verdict.patch
    files = f"{len(patch.files)} file{'' if len(patch.files) == 1 else 's'}"
    return f"{files}, +{patch.added} -{patch.removed}, {len(side.patch):,} bytes"


def _checks(side: Side) -> Sequence[Any]:
    return side.view.run.verdict.checks if side.view.run.verdict else ()


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= ACT_CHARS else line[: ACT_CHARS - 1] + "…"
