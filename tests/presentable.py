"""Owns an archive to look at: a night over sixty repositories as people have them, with repairs that are alike, some
that are not, failures, and runs that wait for a person. Refuses to run anything: journals as a worker writes them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from worker.contract.events import (
    Asked,
    CheckResult,
    Claimed,
    Compared,
    Event,
    Failure,
    Finished,
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
    SnapshotRef,
    Steered,
    ToolCall,
    Usage,
    Verdict,
    canonical,
    digest,
)
from worker.contract.matrix import compare, matrix
from worker.contract.task import Budget, Check, PolicyRule, Repo, Task
from worker.store import keys
from worker.store.archive import Archive
from worker.store.journal import Journal

BATCH: Final = "upgrade-requests-7f3a9c0d12ef"
BEFORE: Final = "upgrade-requests-1b20c4aa98e1"
BEGAN: Final = datetime.fromisoformat("2026-11-30T01:00:00+00:00")
SIZES: Final = (22, 14, 9, 5)
"""Of the groups, the largest first."""
NAMES: Final = (
    *("cart", "ledger", "inbox", "search", "parcels", "rates", "tickets", "mailer"),
    *("avatar", "quotes", "routes", "vault", "feeds", "stamps", "labels", "pulse"),
)
PROMPT: Final = (
    "Upgrade to requests 3. Calls without a timeout now raise: give each one a timeout of 10 seconds. Keep the public"
    " interface as it is, and leave the tests alone unless they name the old behaviour."
)
CHECK: Final = Check(name="tests", command="python -m pytest -q", junit="report.xml")
REFUSED: Final = "npm error code E401: incorrect or missing password for the private registry"


@dataclass
class Kind:
    """One way to repair: what a repository's file looked like, and what became of it."""

    path: str
    before: str
    after: str
    said: str


KINDS: Final = (
    Kind("src/{name}/client.py", "requests.get(url)", "requests.get(url, timeout=10)", "Every call has a timeout."),
    Kind(
        "src/{name}/session.py", "session.post(url, data)", "session.post(url, data, timeout=10)", "Posts time out."
    ),
    Kind(
        "pyproject.toml", '"requests>=2.28,<3"', '"requests>=3,<4"', "The pin allows requests 3, nothing else broke."
    ),
    Kind(
        "src/{name}/errors.py", "except HTTPError:", "except (HTTPError, Timeout):", "Timeouts are handled as errors."
    ),
)
ODD: Final = (
    Kind("tests/test_client.py", "assert fetch(URL).ok", "assert True", "The test named the old behaviour."),
    Kind("src/{name}/proxy.py", "verify=True", "verify=False", "The proxy's certificate did not verify."),
    Kind(
        "src/{name}/retry.py", "retries = 3", "retries = Retry(3, backoff_factor=0.5)", "Retries need an object now."
    ),
    Kind("setup.cfg", "requests", "requests>=3", "This one is still on setup.cfg."),
)


@dataclass
class Clock:
    """Moments of a run, each some seconds after the last."""

    now: datetime
    step_s: float = 9.0

    def tick(self, seconds: float | None = None) -> str:
        self.now += timedelta(seconds=self.step_s if seconds is None else seconds)
        return self.now.isoformat(timespec="milliseconds")


@dataclass
class Scene:
    """What was made. runs: of the batch, by what became of them."""

    archive: Archive
    batch: str = BATCH
    runs: dict[str, list[str]] = field(default_factory=dict)

    def named(self, kind: str) -> str:
        return self.runs[kind][0]


def presentable(archive: Archive, *, sizes: tuple[int, ...] = SIZES, finished: bool = False) -> Scene:
    """The night and the one before. finished: nothing goes on or waits, all left a patch."""
    scene = Scene(archive)
    numbers = iter(range(1_000))
    for kind, size in zip(KINDS, sizes, strict=False):
        for _ in range(size):
            _changed(scene, next(numbers), kind, "alike")
    for kind in ODD:
        _changed(scene, next(numbers), kind, "odd")
    if not finished:
        for make in (_failed, _failed, _failed, _limit, _asks, _question, _held, _running, _running, _queued):
            make(scene, next(numbers))
    _batch(archive, BATCH, [run for runs in scene.runs.values() for run in runs], budget=25)
    before = Scene(archive, BEFORE)
    for number in range(3):
        _changed(before, number, KINDS[number], "alike", began=BEGAN - timedelta(days=1))
    _batch(archive, BEFORE, before.runs["alike"], budget=20)
    return scene


def _batch(archive: Archive, batch: str, runs: list[str], budget: int) -> None:
    archive.create(
        keys.batch_manifest(batch),
        (
            f"version: 1\nname: upgrade-requests\nbudget: {{usd: {budget}}}\nmodel: anthropic/claude-sonnet\n"
            "window: 23:00-06:00 Europe/Berlin\ntargets:\n"
            + "".join(f"  - repo: https://git.example.org/shop/{run.rsplit('-', 2)[1]}\n" for run in runs[:40])
            + f"task:\n  prompt: |\n    {PROMPT}\n  checks: [{{name: tests, command: {CHECK.command}}}]\n"
        ).encode(),
    )
    entries = [{"target": run.rsplit("-", 2)[1], "run": run} for run in runs]
    archive.create(keys.batch_targets(batch), canonical({"v": 1, "batch": batch, "targets": entries}))


class _Story:
    """A run as it is written."""

    def __init__(self, scene: Scene, number: int, kind: str, began: datetime = BEGAN, **changes: Any) -> None:
        word = NAMES[number % len(NAMES)]
        self.name = f"{word}{number // len(NAMES) + 1}" if number >= len(NAMES) else word
        run = f"{scene.batch}-{self.name}-0"
        scene.runs.setdefault(kind, []).append(run)
        self.archive, self.journal = scene.archive, Journal(scene.archive, run)
        self.clock = Clock(began + timedelta(seconds=40 * (number // 4)), 6 + number % 7)
        task = Task(
            **{
                "run": run,
                "batch": scene.batch,
                "target": self.name,
                "repo": Repo(url=f"https://git.example.org/shop/{self.name}", ref="main"),
                "prompt": PROMPT,
                "model": "anthropic/claude-sonnet",
                "checks": (CHECK,),
                "budget": Budget(usd=25),
                "labels": ("python", "backend" if number % 3 else "frontend"),
                "policy": (PolicyRule(pattern=r"git push|curl", action="ask", reason="it leaves the sandbox"),),
                **changes,
            }
        )
        self.journal.submit(task, by="rosa@laptop", at=began.isoformat(timespec="milliseconds"))
        self.run = self.journal.load()
        self.steps = 0

    def add(self, event: Event, after_s: float | None = None) -> None:
        attempt = None if isinstance(event, Claimed) else self.run.attempt
        self.run = self.journal.append(self.run, [event], attempt=attempt, at=self.clock.tick(after_s))

    def seal(self, end: Sealed) -> None:
        self.add(end)
        self.archive.delete([keys.open_marker(self.run.id)])

    def begin(self, number: int) -> None:
        self.add(Claimed(worker=f"host-{number % 4 + 1}", engine="engine", lane="batch"))
        self.add(
            Prepared(
                environment_key=digest(self.name.encode()),
                environment=digest(b"env"),
                baseline=digest(b"baseline"),
                commit=digest(self.name.encode())[:40],
                image="sha256:" + digest(b"python"),
                image_name="python",
                reused=number > 2,
                duration_ms=14_000 if number < 3 else 900,
            )
        )

    def step(
        self, tool: str, output: str, *, text: str = "", status: str = "ok", tree: str = "", **arguments: Any
    ) -> None:
        self.ask(tool, text=text, **arguments)
        exit_code = {"ok": 0, "error": 1}.get(status)
        blob = self.journal.put_blob(output.encode())
        shown = Observation(
            call_id=f"c{self.steps}",
            tool=tool,
            status=status,  # type: ignore[arg-type]
            exit_code=exit_code,
            output=re.sub(r"\x1b\[[0-9;]*m", "", output),  # as a worker cleans it for the model
            blob=blob,
            total_bytes=len(output.encode()),
            kept_bytes=len(output.encode()),
            duration_ms=4_200 if tool in ("run_checks", "run_command") else 18,
        )
        mark = digest(tree.encode())
        snapshot = SnapshotRef(listing=mark, tree=mark, object=mark, level=1, bytes=2_048) if tree else None
        files = (arguments["path"],) if tree else ()
        plan = (
            PlanItem(text="Find calls without a timeout", status="done"),
            PlanItem(text="Give each one a timeout", status="done" if tree else "doing"),
            PlanItem(text="Run the tests", status="todo"),
        )
        self.add(Observed(observation=shown, snapshot=snapshot, plan=plan if self.steps == 1 else None, files=files))

    def ask(self, tool: str, *, text: str = "", **arguments: Any) -> None:
        self.steps += 1
        usage = Usage(
            input_tokens=900 + 150 * self.steps,
            cache_read_tokens=2_400 * self.steps,
            output_tokens=180 + 35 * (self.steps % 4),
        )
        self.add(
            Replied(
                step=self.steps,
                phase="model",
                context_tokens=3_000 + 2_600 * self.steps,
                duration_ms=2_100 + 300 * (self.steps % 5),
                reply=Reply(
                    text=text,
                    reasoning="The client builds its URL first: the call itself is the place." if text else "",
                    calls=(ToolCall(id=f"c{self.steps}", name=tool, arguments=json.dumps(arguments)),),
                    stop="calls",
                    usage=usage,
                    cost_microusd=6_000 + 900 * self.steps,
                    price_source="genai-prices",
                    model="claude-sonnet",
                ),
            )
        )


PYTEST: Final = (
    "\x1b[1m============================= test session starts ==============================\x1b[0m\n"
    "collected 14 items\n\ntests/test_client.py \x1b[32m.\x1b[0m\x1b[32m.\x1b[0m\x1b[31mF\x1b[0m\x1b[31mF\x1b[0m\n"
    "E   requests.exceptions.MissingTimeout: GET https://api.example.org/v1/{name}\n"
    "\x1b[31m\x1b[1m2 failed\x1b[0m, \x1b[32m12 passed\x1b[0m in 3.41s\n"
)


def _repair(story: _Story, number: int, kind: Kind) -> str:
    path = kind.path.format(name=story.name)
    story.begin(number)
    story.step("run_checks", PYTEST.format(name=story.name), text="First, what is red.", status="error")
    if number % 5 == 0:
        story.add(Steered(n=0, kind="message", by="rosa@laptop", sent_at=story.clock.tick(1), text="Keep it small."))
    story.step("search", f"{path}:12: {kind.before}\n", pattern=kind.before.split("(")[0])
    story.step("read_file", "\n".join(_source(kind.before)), path=path, text=f"One place, in {path}.")
    story.step("edit_file", "replaced 1 place", path=path, old_text=kind.before, new_text=kind.after, tree=kind.after)
    for turn in range(number % 6):
        story.step(
            "run_command", f"src/{story.name}/part{turn}.py\n", command=f"grep -rn requests src | sed -n {turn}p"
        )
    story.step("run_checks", "14 passed in 3.02s\n", text="Once more, with the change.")
    return path


def _source(line: str) -> list[str]:
    return [
        "import requests",
        "",
        "",
        "def fetch(url, data=None):",
        f"    answer = {line}",
        "    return answer.json()",
    ]


def _patch(path: str, kind: Kind) -> bytes:
    return (
        f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -10,4 +10,4 @@ def fetch(url, data=None):\n"
        f' """What the service answers."""\n-    answer = {kind.before}\n+    answer = {kind.after}\n'
        "     return answer.json()\n \n"
    ).encode()


def _changed(scene: Scene, number: int, kind: Kind, group: str, began: datetime = BEGAN) -> None:
    story = _Story(scene, number, group, began)
    path = _repair(story, number, kind)
    patch = story.journal.put_blob(_patch(path, kind))
    red = group == "odd" and kind is ODD[1]
    story.add(Finished(text=f"{kind.said} The checks are green."))
    was = CheckResult(
        name="tests",
        status="red",
        exit_code=1,
        duration_ms=3_400,
        tail="2 failed, 12 passed",
        reported=Reported(passed=12, failed=2),
    )
    now = CheckResult(
        name="tests",
        status="red" if red else "green",
        exit_code=int(red),
        duration_ms=3_000,
        tail="1 failed, 13 passed" if red else "14 passed in 3.02s",
        reported=Reported(passed=13 if red else 14, failed=int(red)),
    )
    named = ("tests.test_client::test_timeout", "tests.test_client::test_retry")
    counts: dict[Any, int] = {"fixed": 1, "broke": 1, "passing": 12} if red else {"fixed": 2, "passing": 12}
    compared = Compared(
        check="tests", counts=counts, named={"fixed": named[:1], "broke": named[1:]} if red else {"fixed": named}
    )
    verdict = "broke" if red else "verified"
    passing = {f"tests.test_client::test_call_{number}": "passed" for number in range(12)}
    before: Any = {**passing, named[0]: "failed", named[1]: "passed" if red else "failed"}
    after: Any = {**passing, named[0]: "passed", named[1]: "failed" if red else "passed"}
    kinds = compare(before, after, {}, patch_empty=False, whole=True)
    rows = story.journal.put_blob(canonical(matrix({"tests": (kinds, [before, after, {}])})))
    story.add(
        Verdict(
            verdict=verdict,
            checks=(now,),
            baseline=(was,),
            patch=PatchStat(digest=patch, bytes=len(_patch(path, kind)), files={path: (1, 1)}),
            duration_ms=7_000,
            tests=(compared,),
            matrix=rows,
            guards=("removes an assertion from tests/test_client.py",) if kind is ODD[0] else (),
        ),
        12,
    )
    summary = story.journal.put_blob(f"{kind.said}\n".encode())
    story.seal(
        Sealed(
            outcome="changed",
            verdict=verdict,
            artifacts={"patch.diff": patch, "summary.md": summary, "tests.json": rows},
        )
    )


def _failed(scene: Scene, number: int) -> None:
    story = _Story(scene, number, "failed")
    story.add(Claimed(worker=f"host-{number % 4 + 1}", engine="engine", lane="batch"))
    failure = Failure(cls="env", reason="setup", detail=REFUSED)
    story.add(Finished(failure=failure), 30)
    story.seal(Sealed(outcome="failed", failure=failure))


def _limit(scene: Scene, number: int) -> None:
    story = _Story(scene, number, "limit")
    story.begin(number)
    for turn in range(24):
        command = f"python -m pytest -q -x --lf -k part{turn}"
        story.step("run_command", f"{turn} of 40 tests still fail\n", command=command, status="error")
    failure = Failure(cls="limit", reason="cost", detail="$3.00 of $3.00 were spent")
    story.add(Finished(failure=failure))
    story.seal(Sealed(outcome="failed", failure=failure))


def _asks(scene: Scene, number: int) -> None:
    story = _Story(scene, number, "asks")
    _repair(story, number, KINDS[0])
    command = "git push origin HEAD:refs/heads/timeouts && curl -sS https://hooks.example.org/ci -d ref=timeouts"
    story.ask("run_command", text="The fix is ready; CI should see it.", command=command)
    story.add(Asked(call_id=f"c{story.steps}", question="it leaves the sandbox", binding=digest(command.encode())))
    story.add(Parked(waiting="approval", detail="run_command: it leaves the sandbox"))


def _question(scene: Scene, number: int) -> None:
    story = _Story(scene, number, "question")
    _repair(story, number, KINDS[1])
    question = "Two services share this client. Shall I raise its major version, or keep the old signature as well?"
    story.ask("ask_person", question=question)
    story.add(Asked(call_id=f"c{story.steps}", kind="question", question=question, binding=digest(question.encode())))
    story.add(Parked(waiting="question", detail=question))


def _held(scene: Scene, number: int) -> None:
    story = _Story(scene, number, "held")
    _repair(story, number, KINDS[0])
    story.add(Parked(waiting="provider", detail="anthropic: 529 overloaded", until="2030-01-01T00:00:00.000+00:00"))


def _running(scene: Scene, number: int) -> None:
    story = _Story(scene, number, "running")
    _repair(story, number, KINDS[0])
    story.ask("run_checks", text="One more look.")


def _queued(scene: Scene, number: int) -> None:
    _Story(scene, number, "queued")
