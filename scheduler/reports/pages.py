"""Owns how a morning report reads: Markdown, and one HTML file that needs nothing else. Pure; refuses to let a text
of it be anything but text: code spans in the one, escaped in the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from scheduler.reports.reported import SAID, Morning, Need, money, usd

SHOWN: Final = 30
"""Targets of one line, and lines of one part; report.json has them all."""
ROWS_SHOWN: Final = 1_000
TEMPLATE: Final = "morning.html"


def markdown(report: Morning) -> str:
    """For a terminal, a note, an issue."""
    parts = [f"# {report.headline}", _about(report)]
    for heading, lines in _parts(report):
        if told := list(lines):
            parts.append(f"## {heading}\n\n" + "\n".join(_some(told)))
    return "\n\n".join(parts) + "\n"


def html(report: Morning) -> bytes:
    """One file, light or dark as its reader has it: no script, and nothing is fetched."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("scheduler.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"address": is_address, "usd": usd}
    page = environment.get_template(TEMPLATE).render(
        report=report,
        said=SAID,
        money=money(report.spend),
        spend=spend_text(report),
        shown=SHOWN,
        rows_shown=ROWS_SHOWN,
    )
    return page.encode()


def as_kind(report: Morning, kind: str) -> bytes:
    """kind: html, md or json."""
    return html(report) if kind == "html" else markdown(report).encode() if kind == "md" else report.stored()


def is_address(text: str) -> bool:
    """Whether it may be made a link."""
    return re.fullmatch(r"https://[\w.:-]+(/[\w./~%#?=&+@:-]*)?", text) is not None


def spend_text(report: Morning) -> list[str]:
    """A line for the batch, and one for each other thing that is known."""
    spend = report.spend
    lines = [f"this batch: {money(spend)}"]
    if spend.unrecorded_microusd:
        lines.append(f"of it {usd(spend.unrecorded_microusd)} at most for replies that were lost")
    if spend.day_microusd is not None:
        limit = "" if spend.day_limit_microusd is None else f" of {usd(spend.day_limit_microusd)}"
        lines.append(f"the day, all batches: {usd(spend.day_microusd)}{limit}")
    return lines


def _about(report: Morning) -> str:
    ended = "ended" if report.ended else "not ended"
    archive = f"{report.sealed} of {report.runs} runs sealed, chain {report.chain}"
    told = f"Batch {_code(report.batch)}, {ended}, as of {report.at[:16]} UTC. Archive: {archive}."
    return f"{told}\n\n{report.note}" if report.note else told


def _parts(report: Morning) -> Iterator[tuple[str, Iterable[str]]]:
    yield "Needs a person", (line for need in report.needs for line in _need(need))
    yield "Delivered", (f"- {_code(one.target)}: {one.state}, {_code(one.get)}" for one in report.delivered)
    yield (
        "Failures",
        (
            f"- {len(group.runs)} × {_code(group.kind)} ({group.fingerprint}): {_targets(group.targets)}\n"
            f"{_block(group.sample)}  again: {_code(group.retry)}"
            for group in report.failures
        ),
    )
    if (changes := report.changes) is not None:
        told = [("newly verified", changes.newly_verified), ("newly failing", changes.newly_failing)]
        told += [("changed otherwise", changes.otherwise), ("not asked then", changes.only_now)]
        lines = [f"- {len(names)} {what}: {_targets(names)}" for what, names in told if names]
        yield f"Since {_code(changes.since)}", [*lines, f"- {changes.same} as they were"]
    yield (
        "Not reached",
        (f"- {len(left.targets)}, {_code(left.why)}: {_targets(left.targets)}" for left in report.not_reached),
    )
    yield "Spent", (f"- {line}" for line in spend_text(report))
    yield "Warnings", (f"- {_code(one.target)} ({_code(one.run)}): {_code(one.text)}" for one in report.warnings)


def _need(need: Need) -> list[str]:
    whose = f"{_targets(need.targets)}: " if need.targets else ""
    return [f"- {whose}{_code(need.why)}\n" + "\n".join(f"  - {_code(command)}" for command in need.commands)]


def _targets(targets: Sequence[str]) -> str:
    more = f" and {len(targets) - SHOWN} more" if len(targets) > SHOWN else ""
    return ", ".join(_code(target) for target in targets[:SHOWN]) + more


def _some(lines: list[str]) -> list[str]:
    more = len(lines) - SHOWN
    return lines if more <= 0 else [*lines[:SHOWN], f"- and {more} more, in report.json"]


def _code(text: str) -> str:
    """On one line, in more backticks than it has in a row: nothing in it can end the span."""
    line = " ".join(text.split())
    ticks = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{pad}{line}{pad}{ticks}" if line else "(nothing)"


def _block(text: str) -> str:
    """As an indented fence that nothing in the text can end; "" for no text."""
    if not text.strip():
        return ""
    fence = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
    lines = text.strip("\n").split("\n")
    return "\n".join(["", f"  {fence}", *(f"  {line}" for line in lines), f"  {fence}", "", ""])
