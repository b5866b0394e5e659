"""Measures what a run sends to its model as it grows, with and without compaction, and what its journal takes a step:
`python tests/bench/conversation.py`. Refuses to be a test.

A model and a host in memory; tokens are estimated as the harness does it. Prints JSON, and draws `conversation.svg`
beside this file.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from transcripts import MemoryHost, shell, task

from worker import compaction, loop
from worker.contract.cancel import Cancel
from worker.contract.events import Reply
from worker.models.protocol import ModelRequest
from worker.tools.toolset import Toolset

STEPS = (20, 100, 300)
CONTEXTS = {"none": 10**9, "at 200,000 tokens": 200_000, "at 64,000 tokens": 64_000}
"""Compaction -> the context that the run may fill."""
OUTPUT_BYTES = (12_000, 1_500, 1_500)
"""One long read, then two short answers: about 5 KB a step."""
SAID, NOTES = "I look at the next part and change it. " * 6, "What was found and done so far. " * 120
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 720, 360, 70, 30, 40
COLOURS = ("#b4443c", "#3c6eb4", "#3c9a5f")
PLOT = Path(__file__).with_suffix(".svg")


class Busy:
    """Makes one call a step and takes notes where it is asked to. sent: tokens of each request, and how many of them
    a cache does not have, because the request before did not begin with them."""

    name = "bench"

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        self._before: ModelRequest | None = None

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        messages, before = request.messages, self._before.messages if self._before else ()
        shared = list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(messages, before, strict=False)))
        whole = tokens(request)
        self.sent.append((whole, whole - tokens(request, len(shared)) if shared else whole))
        if request.purpose == "summary":
            return Reply(text=NOTES, cost_microusd=0)
        self._before = request
        call = shell(f"sed -n {request.step}p notes", request.step)
        return Reply(text=SAID, calls=(call,), stop="calls", cost_microusd=0)


def tokens(request: ModelRequest, first: int | None = None) -> int:
    """About how many tokens a request has, or its first messages."""
    texts = sum(compaction.size_bytes(message) for message in request.messages[:first])
    tools = sum(len(json.dumps([tool.name, tool.description, tool.schema])) for tool in request.tools)
    return round((len(request.system) + tools + texts) / compaction.BYTES_PER_TOKEN)


def run(steps: int, context_tokens: int) -> tuple[MemoryHost, Busy]:
    sizes = itertools.cycle(OUTPUT_BYTES)
    host = MemoryHost(
        task(steps=steps, context_tokens=context_tokens), lambda command: (0, command.ljust(next(sizes)), "a")
    )
    model = Busy()
    loop.work(host, model, Toolset())
    return host, model


def measure() -> tuple[dict[str, dict[str, float]], dict[str, list[int]]]:
    """Numbers of each run, and of the longest ones what had been sent after each request."""
    found: dict[str, dict[str, float]] = {}
    curves: dict[str, list[int]] = {}
    for steps, (name, context_tokens) in itertools.product(STEPS, CONTEXTS.items()):
        host, model = run(steps, context_tokens)
        found[f"{steps} steps, compaction {name}"] = {
            "sent_tokens": sum(whole for whole, _ in model.sent),
            "sent_anew_tokens": sum(new for _, new in model.sent),
            "largest_request_tokens": max(whole for whole, _ in model.sent),
            "summaries": host.run.compactions,
            "journal_bytes_per_step": round(sum(len(record.line()) for record in host.records()) / steps),
        }
        if steps == STEPS[-1]:
            curves[name] = list(itertools.accumulate(whole for whole, _ in model.sent))
    return found, curves


def legend(found: dict[str, dict[str, float]], name: str) -> str:
    """What one way of compaction sent in runs of 20, 100 and 300 steps, in millions."""
    sent = [found[f"{steps} steps, compaction {name}"]["sent_tokens"] / 1e6 for steps in STEPS]
    told = " · ".join(f"{millions:.2g}" for millions in sent)
    return f"compaction {name}: {told} after {', '.join(map(str, STEPS))} steps"


def drawn(found: dict[str, dict[str, float]], curves: dict[str, list[int]]) -> str:
    """The curves as an SVG: requests to the right, millions of tokens upwards."""
    most = max(max(curve) for curve in curves.values())
    longest = max(len(curve) for curve in curves.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18">Tokens sent in all, in millions, over a run of {STEPS[-1]} steps</text>',
    ]

    def place(x: float, y: float) -> str:
        right = LEFT + x / longest * (WIDTH - LEFT - 20)
        down = HEIGHT - BOTTOM - y / most * (HEIGHT - TOP - BOTTOM)
        return f"{right:.1f},{down:.1f}"

    for part in range(5):
        left, right = place(0, most * part / 4), place(longest, most * part / 4)
        parts.append(f'<polyline points="{left} {right}" stroke="#dddddd" fill="none"/>')
        parts.append(
            f'<text x="{LEFT - 8}" y="{left.split(",")[1]}" text-anchor="end">{most * part / 4e6:.0f}</text>'
        )
    for steps in (0, *STEPS):
        x = place(steps, 0).split(",")[0]
        parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{steps}</text>')
    for row, ((name, curve), colour) in enumerate(zip(curves.items(), COLOURS, strict=True)):
        points = " ".join(place(n, y) for n, y in enumerate(curve, start=1))
        parts.append(f'<polyline points="{points}" stroke="{colour}" stroke-width="2" fill="none"/>')
        y = TOP + 20 + 18 * row
        parts.append(f'<text x="{LEFT + 20}" y="{y}" fill="{colour}">{legend(found, name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    numbers, lines = measure()
    PLOT.write_text(drawn(numbers, lines))
    print(json.dumps(numbers, indent=2))
