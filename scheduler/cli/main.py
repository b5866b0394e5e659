"""Owns the command `dawn`: its table of commands and the translation of faults into exit codes. Refuses to load
anything heavy before a command needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from scheduler.cli import (
    again,
    breaker,
    deliver,
    exchange,
    fleet,
    keep,
    live,
    operate,
    people,
    plan,
    read,
    reports,
    schedules,
    start,
    web,
)
from scheduler.cli.terminal import complain
from worker.contract.errors import ExitCode, Fault, IntegrityFault, UsageFault

app = typer.Typer(
    name="dawn",
    help="Fix many repositories while their owners sleep: queued coding agents in throwaway containers.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
fleet.register(app)
start.register(app)
read.register(app)
reports.register(app)
live.register(app)
people.register(app)
deliver.register(app)
schedules.register(app)
breaker.register(app)
plan.register(app)
again.register(app)
keep.register(app)
exchange.register(app)
operate.register(app)
web.register(app)


DAMAGED = "dawn verify names all that is damaged; dawn fork goes on from a run's last sound step"


def run(arguments: Sequence[str]) -> int:
    """Run one command line (without the program's name); returns the exit code of the table in README.md."""
    try:
        app(list(arguments), prog_name="dawn")
    except Fault as fault:
        lines = getattr(fault, "lines", None)
        if isinstance(fault, IntegrityFault) and not fault.hint:
            fault.hint = DAMAGED
        complain(fault, lines() if lines is not None else ())
        return int(fault.exit_code)
    except OSError as error:  # of a folder or a stream that the command was given
        complain(UsageFault(f"{error.filename or 'output'}: {error.strerror or error}"))
        return int(ExitCode.USAGE)
    except SystemExit as ended:  # how typer ends every command: usage errors 2, Ctrl-C 130
        return ended.code if isinstance(ended.code, int) else int(ExitCode.OK)
    return int(ExitCode.OK)


def main() -> None:
    """Entry point of `dawn`."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
