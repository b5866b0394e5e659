"""Owns an archive whose every word was written by somebody who wants the pages to run it. Refuses to be harmless in
any field that a repository, a model or a visitor can write.
"""

from __future__ import annotations

import json
from typing import Any, Final

from runs_made import AT, Make, checked, claimed, name_runs

from worker.contract.delivered import Delivery, Review
from worker.contract.delivery import Deliver
from worker.contract.events import (
    Asked,
    Compacted,
    Compared,
    Contradiction,
    Failure,
    FedBack,
    Finished,
    Instruction,
    Observation,
    Observed,
    Parked,
    PatchStat,
    PlanItem,
    Prepared,
    Replied,
    Reply,
    Reported,
    Sealed,
    Steered,
    ToolCall,
    Unrecorded,
    Usage,
    digest,
)
from worker.contract.results import CheckResult
from worker.contract.task import Check, PolicyRule, Repo
from worker.store import keys
from worker.store.archive import Archive
from worker.store.deliveries import write_delivery, write_review
from worker.store.inbox import Control, Inbox
from worker.store.journal import Journal

BATCH: Final = "night-0123456789ab"
RUNS: Final = ("changed", "alike", "failed", "asks", "question", "held")
TARGET: Final = "</title><script>window.__canary=1</script>"

SCRIPT: Final = "<script>window.__canary=1</script>"
PAYLOADS: Final = (
    SCRIPT,
    "</script></title></textarea></style>" + SCRIPT,
    "\"><img src=x onerror=\"window.__canary=1\"><b>'><img src=x onerror='window.__canary=1'>",
    "<svg onload='window.__canary=1'><a xlink:href='javascript:window.__canary=1'><text>x</text></a></svg>",
    "javascript:window.__canary=1",
    "[read me](javascript:window.__canary=1) ![](http://beacon.example/x.png) <http://beacon.example/>",
    "\x1b[31m<img src=x onerror=window.__canary=1>\x1b[0m \x1b]8;;javascript:window.__canary=1\x07link\x1b]8;;\x07",
    "\u202egnp.exe\u2066 \x00\x08\x9b31m",
    "{{ 7*7 }} {% include 'base.html' %} &lt;b&gt;",
)


def words(field: str) -> str:
    """A text of that field, which names it and holds every payload."""
    return f"at-{field} " + " ".join(PAYLOADS)


def short(field: str) -> str:
    """One line of it, for what is cut where it is long."""
    return f"at-{field} {SCRIPT}\"'><img src=x onerror=window.__canary=1>"


NAME: Final = '"><img src=x onerror=window.__canary=1><b>.py'
PATCH: Final = (
    f"diff --git a/{NAME} b/{NAME}\n--- a/{NAME}\n+++ b/{NAME}\n@@ -1,2 +1,2 @@ {SCRIPT}\n <b>same</b>\n"
    f"-{SCRIPT}\n+at-patch {' '.join(PAYLOADS[:6])}\n"
    'diff --git "a/\\"quoted<svg onload=window.__canary=1>" "b/\\"quoted<svg onload=window.__canary=1>"\n'
    "new file mode 100644\n--- /dev/null\n"
    '+++ "b/\\"quoted<svg onload=window.__canary=1>"\n@@ -0,0 +1 @@\n+</pre></table>' + SCRIPT + "\n"
).encode("utf-8", "surrogateescape")
SEEN: Final = (
    *("target", "prompt", "ref", "text", "reasoning", "arguments", "output", "steered", "summary", "last"),
    *("check", "tail", "guard", "claim", "evidence", "patch", "comment", "delivery", "failure", "question"),
    *("ask", "detail", "plan", "worker", "test", "manifest", "instruction", "fedback"),
)
"""Fields whose words some page must show, as text."""


def hostile(archive: Archive, make_run: Make) -> dict[str, str]:
    """Fill an archive with a batch of it. Returns the runs by what they are."""
    runs = {kind: f"{BATCH}-{kind}-0" for kind in RUNS}
    for kind, run in runs.items():
        _run(archive, make_run, kind, run)
    name_runs(archive, {run: f"{TARGET} {kind} at-target {SCRIPT}" for kind, run in runs.items()})
    archive.create(keys.batch_manifest(BATCH), f"version: 1\nname: night\n# {short('manifest')}\n".encode())
    Control(archive, BATCH).put("message", by=short("control-by"), at=AT, text=words("control"))
    Inbox(archive, runs["held"]).put("message", by=short("inbox-by"), at=AT, text=words("inbox"))
    return runs


def _task(kind: str) -> dict[str, Any]:
    return {
        "batch": BATCH,
        "target": f"{TARGET} {kind} at-target {SCRIPT}",
        "repo": Repo(
            url=f"https://git.example.org/{SCRIPT}", label=short("label"), ref=short("ref"), path="a/<b>x</b>"
        ),
        "prompt": words("prompt"),
        "commands": (words("command"),),
        "model": f"openai/{SCRIPT}",
        "labels": (short("labels"),),
        "vars": {short("var"): short("value")},
        "checks": (Check(name=short("check"), command=words("check-command")),),
        "policy": (PolicyRule(pattern="<script>", action="ask", reason=short("policy")),),
        "deliver": Deliver(kind="pr", when="approved", title=short("title")[:200], body=short("body")),
    }


def _reply(step: int, tool: str = "run_command", **reply: Any) -> Replied:
    arguments = {"command": short("arguments"), "path": NAME, SCRIPT: [words("nested")]}
    return Replied(
        step=step,
        phase="model",
        context_tokens=1_000 * step,
        duration_ms=900,
        reply=Reply(
            text=words("text"),
            reasoning=words("reasoning"),
            calls=(ToolCall(id=f"c{step}", name=tool, arguments=json.dumps(arguments)),),
            usage=Usage(input_tokens=1_000, output_tokens=100),
            cost_microusd=1_200,
            price_source=short("price"),
            model=short("model"),
            **reply,
        ),
    )


def _run(archive: Archive, make_run: Make, kind: str, run: str) -> None:
    blob = Journal(archive, run).put_blob(words("blob").encode())
    patch = Journal(archive, run).put_blob(PATCH)
    matrix = Journal(archive, run).put_blob(
        json.dumps({"v": 1, "checks": {short("check"): {short("test"): {"kind": "fixed", "was": "failed"}}}}).encode()
    )
    plan = (PlanItem(text=words("plan"), status="doing"), PlanItem(text=short("plan-done"), status="done"))
    observed = [
        Observed(
            observation=Observation(
                call_id=f"c{step}",
                tool=tool,
                status="error" if step == 2 else "ok",
                exit_code=step - 1,
                output=words("output") + "\n" + short("output-line"),
                blob=blob,
                total_bytes=len(words("blob").encode()),
                kept_bytes=len(words("blob").encode()),
                duration_ms=1_500,
            ),
            plan=plan,
            files=(NAME,),
        )
        for step, tool in enumerate(("run_command", "<b>tool</b>", "edit_file"), 1)
    ]
    events: list[Any] = [
        claimed(worker=short("worker")),
        Prepared(
            environment_key="0" * 64,
            environment="0" * 64,
            commit="1" * 40,
            image="sha256:" + "2" * 64,
            image_name=short("image"),
            reused=False,
            instructions=(Instruction(path=NAME, text=words("instruction")),),
        ),
        _reply(1),
        observed[0],
        _reply(2, tool="<b>tool</b>"),
        observed[1],
        Steered(scope="run", n=0, kind="message", by=short("by"), sent_at=AT, text=words("steered")),
        Compacted(through=1, summary=words("summary"), usage=Usage(input_tokens=5), cost_microusd=1),
        Unrecorded(cost_microusd=3, tokens=4, detail=short("unrecorded")),
    ]
    if kind in ("changed", "alike"):
        events += [_reply(3), observed[2], FedBack(text=words("fedback"), guards=(short("guard"),))]
        events += [Finished(text=words("last")), _verdict(patch, matrix)]
        events += [
            Sealed(
                outcome="changed",
                verdict="broke",
                artifacts={"patch.diff": patch, "summary.md": Journal(archive, run).put_blob(words("last").encode())},
                detail=words("detail"),
                contradictions=(Contradiction(claim=short("claim"), evidence=short("evidence")),),
            )
        ]
    elif kind == "failed":
        failure = Failure(cls="env", reason="setup", detail=short("failure"))
        events += [Finished(text=words("last"), failure=failure)]
        events += [Sealed(outcome="failed", failure=failure, detail=words("detail"))]
    elif kind in ("asks", "question"):
        events += [
            _reply(3),
            Asked(
                call_id="c3",
                kind="approval" if kind == "asks" else "question",
                question=words("ask" if kind == "asks" else "question"),
                binding=digest(b"what"),
            ),
            Parked(waiting="approval" if kind == "asks" else "question", detail=words("parked")),
        ]
    else:
        events += [Parked(waiting="provider", detail=words("held"), until="2030-01-01T00:00:00.000+00:00")]
    make_run(run, *events, **_task(kind))
    if kind == "changed":
        write_review(
            archive,
            run,
            Review(n=0, decision="rejected", patch=patch, by=short("reviewer"), at=AT, comment=words("comment")),
        )
        url = "javascript:window.__canary=1"
        write_delivery(
            archive,
            run,
            Delivery(
                n=0, act="failed", by=short("deliverer"), at=AT, patch=patch, branch=short("branch"), state="error",
                url=url, detail=words("delivery"),
            ),
        )  # fmt: skip


def _verdict(patch: str, matrix: str) -> Any:
    check = CheckResult(
        name=short("check"),
        status="red",
        exit_code=1,
        tail=words("tail"),
        reported=Reported(passed=1, failed=1, notes=(short("note"),)),
    )
    was = CheckResult(name=short("check"), status="green", exit_code=0, tail=words("tail-before"))
    stat = PatchStat(
        digest=patch, bytes=len(PATCH), files={NAME: (1, 1), "<i>2</i>": None}, left_out={NAME: short("why")},
        notes=(short("patch-note"),),
    )  # fmt: skip
    told = checked("broke")
    compared = Compared(check=short("check"), counts={"broke": 1}, named={"broke": (short("test"),)})
    return told.model_copy(
        update={
            "checks": (check,),
            "baseline": (was,),
            "patch": stat,
            "tests": (compared,),
            "matrix": matrix,
            "guards": (short("guard"),),
        }
    )
