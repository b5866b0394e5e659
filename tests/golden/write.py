"""Writes the golden files of the current schema version, once: `python tests/golden/write.py`, when a version is new.

Refuses to touch a version that is there already: archives written by it exist, and must be read for ever.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from worker.contract import events as e
from worker.contract.environment import Baseline, PreparedEnvironment
from worker.contract.events import JOURNAL_VERSION, Record, canonical, digest
from worker.contract.task import Check, Environment, ForkPoint, Frozen, Limits, PolicyRule, Repo, Task
from worker.store.decisions import Decision
from worker.store.inbox import Message

RUN: Final = "r1"
SHA: Final = [digest(bytes([n])) for n in range(8)]
AT: Final = "2026-12-01T00:00:00.000+00:00"

TASK = Task(
    run=RUN,
    batch="night",
    target="shop",
    ordinal=1,
    lane="interactive",
    repo=Repo(source=SHA[0], source_kind="git", label="shop ü", ref="main", path="packages/cart", secret="TOKEN"),
    environment=Environment(image="node", setup="npm ci\n"),
    prompt="Fix the failing test.",
    commands=("npm run format",),
    model="scripted:cart",
    script="replies: []\n",
    checks=(Check(name="tests", command="node --test"),),
    limits=Limits(steps=7, cost_usd=None, working_time_s=600.5),
    policy=(PolicyRule(tool="*", pattern="rm", action="ask", reason="careful"),),
    on_ask="deny",
    without_tools=("run_command",),
    fork=ForkPoint(run="r0", step=2, seq=3, hash=SHA[5], message="go on"),
)

USAGE = e.Usage(input_tokens=1, cache_read_tokens=2, cache_write_tokens=3, output_tokens=4)
CALL = e.ToolCall(id="c1", original_id="toolu_1", name="run_command", arguments='{"command":"ls"}')
REPLY = e.Reply(
    text="a\ud83d\u2028",
    reasoning="because",
    calls=(CALL,),
    stop="calls",
    usage=USAGE,
    cost_microusd=15_900,
    price_source="genai-prices",
    model="anthropic/x",
    native=[{"type": "thinking", "signature": "QUJD+/==", "n": 1.5, "none": None}],
)
REPORTED = e.Reported(passed=3, failed=1, skipped=2, notes=("a.xml: cut",))
CHECK = e.CheckResult(
    name="tests", status="red", exit_code=1, duration_ms=20, blob=SHA[1], tail="1 failed", reported=REPORTED
)
INSTRUCTION = e.Instruction(path="packages/cart/AGENTS.md", text="Use tabs.\n")
FAILURE = e.Failure(cls="limit", reason="steps", detail="7 steps")
SNAPSHOT = e.SnapshotRef(listing=SHA[2], tree=SHA[3], object=SHA[4], level=1, bytes=512)
OBSERVATION = e.Observation(
    call_id="c1",
    tool="run_command",
    status="error",
    exit_code=2,
    output="no such file\n",
    blob=SHA[1],
    total_bytes=14,
    kept_bytes=13,
    duration_ms=5,
)

EVENTS: Final[list[e.Event]] = [
    e.Submitted(by="me", parent="r0", parent_seq=3, parent_hash=SHA[5]),
    e.Claimed(worker="w@host", engine="engine", lane="interactive", previous="lost"),
    e.Prepared(
        environment_key=SHA[6],
        environment=SHA[7],
        baseline=SHA[0],
        commit="c" * 40,
        image="i",
        image_name="node",
        reused=True,
        duration_ms=9,
        snapshot=SNAPSHOT,
        instructions=(INSTRUCTION,),
    ),
    e.Replied(step=1, phase="model", reply=REPLY, context_tokens=321, duration_ms=500),
    e.Called(call_id="c1"),
    e.Observed(
        observation=OBSERVATION,
        snapshot=SNAPSHOT,
        plan=(e.PlanItem(text="fix", status="doing"),),
        files=("price.js",),
    ),
    e.Delegated(call_id="c3", seq=4, hash=SHA[6], usage=USAGE, cost_microusd=7),
    e.Asked(call_id="c2", kind="question", question="May I push?", binding=SHA[1]),
    e.Decided(call_id="c2", decision="denied", by="boss", decided_at=AT, reason="no"),
    e.Steered(scope="batch", n=0, kind="message", by="me", sent_at=AT, text="hurry"),
    e.Parked(waiting="provider", until=AT, detail="busy", paced=True),
    e.Yielded(why="infra", failure=e.Failure(cls="infra", reason="engine"), not_before=AT),
    e.Unrecorded(cost_microusd=12, tokens=34, detail="answer lost"),
    e.Compacted(through=1, summary="so far", usage=USAGE, cost_microusd=None, price_source="genai-prices"),
    e.FedBack(text="still red", checks=(CHECK,), guards=("3 files",)),
    e.Finished(text="gave up", failure=FAILURE),
    e.Verdict(
        verdict="still_failing",
        checks=(CHECK,),
        baseline=(CHECK,),
        patch=e.PatchStat(
            digest=SHA[2],
            bytes=99,
            files={"a b.js": (1, 2), "x.bin": None},
            left_out={"x.log": "ignored"},
            notes=("stash",),
        ),
        duration_ms=70,
        tests=(e.Compared(check="tests", counts={"fixed": 1, "passing": 2}, named={"fixed": ("cart::price",)}),),
        matrix=SHA[3],
        guards=("3 files",),
    ),
    e.Sealed(
        outcome="failed",
        verdict="still_failing",
        failure=FAILURE,
        artifacts={"patch.diff": SHA[2]},
        detail="limit",
        damaged=14,
        reused="r0",
        contradictions=(e.Contradiction(claim="All tests pass.", evidence="the check tests is red"),),
    ),
]

OBJECTS: Final[dict[str, Frozen]] = {
    "task.json": TASK,
    "env.json": PreparedEnvironment(
        key=SHA[6],
        commit="c" * 40,
        branch="main",
        image_name="node",
        image="sha256:1",
        setup_tag="dawnfleet/setup:1",
        stored_image=SHA[1],
        snapshot=SHA[2],
        snapshot_bytes=4096,
        listing=SHA[3],
        tree=SHA[4],
        tracked=12,
        notes=("shallow",),
        instructions=(INSTRUCTION,),
    ),
    "baseline.json": Baseline(checks=(CHECK,), tests={"tests": {"cart::price": "failed"}}),
    "inbox.json": Message(n=0, kind="message", by="me", at=AT, text="hurry"),
    "decision.json": Decision(call="c2", binding=SHA[1], decision="answered", by="boss", at=AT, reason="main"),
}


def journal() -> bytes:
    """Every event, one segment each, chained from the task."""
    prev, lines = digest(canonical(TASK.model_dump(mode="json"))), []
    for seq, event in enumerate(EVENTS):
        written = {"run": RUN, "seq": seq, "at": AT, "attempt": 1, "nonce": f"n{seq}", "prev": prev}
        line = Record(**written, waited_ms=seq, event=event).line()
        prev = digest(line)
        lines.append(line + b"\n")
    return b"".join(lines)


if __name__ == "__main__":
    folder = Path(__file__).parent / f"v{JOURNAL_VERSION}"
    folder.mkdir()
    (folder / "journal.jsonl").write_bytes(journal())
    for name, noun in OBJECTS.items():
        (folder / name).write_bytes(canonical(noun.model_dump(mode="json")))
