"""Owns the export for spreadsheets, CSV with a line of headings. Refuses to let a cell be taken for a formula:
whoever names a repository or words a failure must not run anything on the machine of whoever opens the file.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Final

from scheduler.exports.chosen import Chosen
from scheduler.exports.jsonl import RunLine, line_of
from scheduler.reports.harmless import plain

COLUMNS: Final = (
    *("run", "batch", "target", "url", "ref", "path", "commit", "model", "labels", "status", "outcome", "verdict"),
    *("failure", "detail", "checks", "files", "added", "removed", "steps", "tokens", "cost_usd", "cost_known"),
    *("working_s", "submitted_at", "updated_at"),
)
FORMULAS: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a cell begins with that a spreadsheet reads as one, full-width letters too."""


def lines(chosen: Chosen) -> Iterator[bytes]:
    """RFC 4180, UTF-8: headings, then one line a run."""
    yield _line(COLUMNS)
    for view in chosen.views:
        yield _line(_cells(line_of(view)))


def cell(value: object) -> str:
    """As it may stand in a spreadsheet: nothing for None, and what would be a formula behind an apostrophe."""
    text = "" if value is None else plain(str(value), lines=True)
    return f"'{text}" if text.startswith(("\t", "\n")) or text.lstrip().startswith(FORMULAS) else text


def _cells(line: RunLine) -> list[object]:
    told = line.model_dump() | dict.fromkeys(("files", "added", "removed"))
    if line.patch is not None:
        told |= line.patch.model_dump()
    told["labels"] = " ".join(line.labels)
    told["checks"] = "; ".join(f"{check.name}: {' and '.join(dict.fromkeys(check.now))}" for check in line.checks)
    return [told[name] for name in COLUMNS]


def _line(cells: Iterable[object]) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerow([cell(value) for value in cells])
    return out.getvalue().encode()
