"""Owns what reaches the user's terminal: data on stdout, progress and bad news on stderr. Refuses to let a control
byte of any data through: repositories and models write names, output and errors.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from scheduler.reports.harmless import plain as plain
from worker.contract.errors import Fault
from worker.contract.redact import without_passwords

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

LAST_COLUMN: Final = 30
"""A last column of less is hard to read beside the others, in letters."""
SHORTEST: Final = 8
"""A cell is cut to no less, in letters."""
GAP: Final = 3
"""Between columns, in letters."""
NARROW_GAP: Final = 2
INDENT: Final = 4


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


def beside(program: str, *words: str, asked: bytes = b"", **env: str) -> tuple[int, bytes]:
    """Exit code and output of a program of the data plane, which this package never imports; what it says meanwhile
    is said here as it comes. asked: what it reads. env: changes to the environment."""
    import os
    import subprocess
    from contextlib import suppress
    from threading import Thread

    command, pipe = [sys.executable, "-P", "-m", program, *words], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=os.environ | env) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        hearing = Thread(target=_said_again, args=(process.stderr,))
        hearing.start()
        with suppress(BrokenPipeError):  # it has said why it ended
            process.stdin.write(asked)
            process.stdin.close()
        output = process.stdout.read()
        hearing.join()
    return process.returncode, output


def _said_again(lines: Iterable[bytes]) -> None:
    for line in lines:
        say(line.decode("utf-8", "replace").rstrip("\n"))


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


def emit_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, cut: Sequence[str] = ()) -> None:
    """A table as wide as the terminal (200 columns into a pipe). cut: where it is too narrow, the last column stands
    below its row, and cells of these columns lose their ends, of the first named first."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(markup=False, highlight=False, emoji=False, width=None if sys.stdout.isatty() else 200)
    texts = [[Text(plain(cell)) for cell in row] for row in rows]
    widths = {
        heading: max(Text(heading).cell_len, *(row[position].cell_len for row in texts), 0)
        for position, heading in enumerate(headings)
    }
    *shown, last = headings
    if cut and sum(widths[heading] + GAP for heading in shown) + min(widths[last], LAST_COLUMN) > console.width:
        for heading in cut:
            over = sum(widths[one] + NARROW_GAP for one in shown) - console.width
            widths[heading] -= max(0, min(over, widths[heading] - SHORTEST))
        _emit_stacked(console, texts, {heading: widths[heading] for heading in shown})
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="")
    for position, heading in enumerate(headings):
        # The first column names what the row is about, to be copied into the next command.
        table.add_column(heading, overflow="fold", no_wrap=position == 0)
    for row in texts:
        table.add_row(*row)
    console.print(table)


def _emit_stacked(console: Console, rows: Iterable[Sequence[Text]], widths: Mapping[str, int]) -> None:
    """Each row on a line, cut to the widths of its columns; below it its last cell, which has none."""
    from rich.padding import Padding
    from rich.text import Text

    def line(cells: Iterable[Text]) -> Text:
        cut = [cell.copy() for cell in cells]
        for cell, width in zip(cut, widths.values(), strict=True):
            cell.truncate(width, overflow="ellipsis", pad=True)
        return Text(" ").append_text(Text(" " * NARROW_GAP).join(cut))

    def put(text: Text) -> None:
        text.rstrip()
        console.print(text, no_wrap=True, crop=True)

    console.print()
    put(line(map(Text, widths)))
    put(Text(" " + "─" * (sum(widths.values()) + NARROW_GAP * (len(widths) - 1))))
    for *cells, last in rows:
        put(line(cells))
        if last.plain:
            console.print(Padding(last, (0, 0, 0, INDENT), expand=False))
    console.print()


def emit_summary(pairs: Iterable[tuple[str, str]]) -> None:
    """Headings with their text beside them, further lines of it indented."""
    for heading, text in pairs:
        first, *rest = plain(text, lines=True).split("\n")
        sys.stdout.write(f"{heading:<11} {first}\n")
        sys.stdout.writelines(f"{'':<11} {line}\n" for line in rest)
