"""Owns what reaches the user's terminal: data on stdout, progress and bad news on stderr. Refuses to let a control
byte of any data through: repositories and models write names, output and errors.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from scheduler.harmless import plain as plain
from worker.contract.errors import Fault
from worker.contract.redact import without_passwords


def say(text: str) -> None:
    """One line of progress."""
    print(plain(text), file=sys.stderr, flush=True)


def complain(fault: Fault, details: Sequence[str] = ()) -> None:
    """What went wrong and what to do about it, without the passwords of addresses."""
    for line in details:
        print(plain(line), file=sys.stderr)
    print(f"error: {plain(without_passwords(fault.message))}", file=sys.stderr)
    if fault.hint:
        print(f"hint: {plain(without_passwords(fault.hint))}", file=sys.stderr, flush=True)


def emit(text: str) -> None:
    """Data, possibly of several lines."""
    sys.stdout.write(plain(text, lines=True) + "\n")
    sys.stdout.flush()


def emit_json(schema: str, **members: Any) -> None:
    """One JSON document that names its schema and version."""
    sys.stdout.write(json.dumps({"schema": schema, **members}, indent=2) + "\n")


def emit_raw(data: bytes) -> None:
    """Bytes as they are into a pipe or file, harmless text on a terminal."""
    if sys.stdout.isatty():
        emit(data.decode("utf-8", "replace").rstrip("\n"))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def emit_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table as wide as the terminal (200 columns into a pipe)."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(markup=False, highlight=False, emoji=False, width=None if sys.stdout.isatty() else 200)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="")
    for position, heading in enumerate(headings):
        # The first column names what the row is about, to be copied into the next command.
        table.add_column(heading, overflow="fold", no_wrap=position == 0)
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    console.print(table)


def emit_summary(pairs: Iterable[tuple[str, str]]) -> None:
    """Headings with their text beside them, further lines of it indented."""
    for heading, text in pairs:
        first, *rest = plain(text, lines=True).split("\n")
        sys.stdout.write(f"{heading:<11} {first}\n")
        sys.stdout.writelines(f"{'':<11} {line}\n" for line in rest)
