"""What a worker process dies of, and what is left to do then: killed, standing still, told to end, out of memory,
cancelled. Real processes, a real Redis, real containers; only the clocks of the protocol run faster.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import program, wait_for
from crews import Crew, Worker, crew
from deployments import worker_process
from model_server import ModelServer

from worker.contract.events import Failure, Unrecorded, Yielded
from worker.store.journal import Journal

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

LEASE_S = 6.0
TAKEN_OVER_S = 60.0
"""The promise for a lease of 45 s; here it must hold with a shorter one on a busy machine."""
FOREVER = {"call_timeout_s": 600}
TWO_CALLS = """
- calls:
    - {tool: run_command, arguments: {command: 'echo one >> log'}}
    - {tool: run_command, arguments: {command: 'echo two >> log; sleep 6'}}
- text: Done.
"""
REACHES_OUT = """
- calls:
    - {tool: run_command, arguments: {command: 'echo one >> log'}}
    - {tool: publish}
- expect: "outcome unknown"
  text: Done.
"""
PUBLISH = {"name": "publish", "description": "Tells the world.", "arguments": {"type": "object"}, "effect": "outside"}
ONE_AND_FOREVER = """
- calls: [{tool: run_command, arguments: {command: 'echo one >> log'}}]
- calls: [{tool: run_command, arguments: {command: 'echo two >> log; sleep 600', timeout_s: 600}}]
- text: Done.
"""
THINKS = """
- delay_s: 500
  text: Done.
"""
ASKS = """
- calls: [{tool: ask_person, arguments: {question: '42 or 43?'}}]
- text: Done.
"""
SHORT_STEPS = "".join(
    f"\n- calls: [{{tool: run_command, arguments: {{command: 'echo {n} >> log; sleep 0.5'}}}}]" for n in range(4)
)
SHORT_STEPS += "\n- text: Done.\n"


@pytest.fixture(scope="module")
def hands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """Redis and a scheduler for all tests of this module; each starts the workers it needs."""
    quick = {"DAWN_LEASE_TTL_S": str(LEASE_S), "DAWN_OWN_DEADLINE_S": "4", "DAWN_RING_AGAIN_S": str(LEASE_S)}
    with crew(tmp_path_factory.mktemp("crew"), DAWN_DRAIN_SOFT_S="8", **quick) as made:
        yield made


def at(hands: Crew, run: str, kind: str, number: int = 1) -> float:
    """When the number-th event of that kind was written, seconds of the clock."""
    stamps = [one.at for one, _ in Journal(hands.deployment.archive, run).read() if one.event.type == kind]
    return datetime.fromisoformat(stamps[number - 1]).timestamp()


def ended(hands: Crew, run: str) -> Any:
    """The seal of a run, once it is there. Every run ends once, and nothing of it is left on the engine."""
    hands.deployment.awaited(run, "sealed")
    kinds = [event.type for event in hands.deployment.events(run)]
    assert kinds.index("sealed") == len(kinds) - 1
    assert len(hands.observed(run)) == len(set(hands.observed(run)))
    wait_for(lambda: not hands.left(run), 30)
    return hands.deployment.run(run).sealed


def changed(hands: Crew, run: str) -> list[str]:
    """Lines that the run's patch adds."""
    patch = hands.deployment.patch(run).decode()
    return [line[1:] for line in patch.splitlines() if line.startswith("+") and not line.startswith("+++")]


def answer(command: str = "") -> dict[str, Any]:
    """A reply as OpenAI's servers give it: a call of that command, or words."""
    message: dict[str, Any] = {"role": "assistant", "content": "Done."}
    if command:
        function = {"name": "run_command", "arguments": f'{{"command": "{command}"}}'}
        message = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    usage = {"prompt_tokens": 1000, "completion_tokens": 50}
    return {"choices": [{"message": message, "finish_reason": "tool_calls" if command else "stop"}], "usage": usage}


def gone(worker: Worker, timeout_s: float = 60) -> int:
    """The exit code of a worker that is ending."""
    return worker.process.wait(timeout_s)


def test_a_killed_worker_repeats_what_was_in_hand_and_nothing_else(hands: Crew, model_server: ModelServer) -> None:
    """F01, T45: kill -9 while one run's model call is on its way and two runs are in the second call of a reply. The
    same step goes on: one request more, counted as `unrecorded`; the first call is not run again, the second is, on
    the workspace as the first left it, but not the one with network: the model reads that its outcome is unknown."""
    model_server.will_answer(answer("echo 42 > answer.txt"))
    model_server.will_hang()
    model_server.will_answer(answer())
    account = {"DAWN_OPENAI_BASE_URL": model_server.url, "DAWN_OPENAI_API_KEY": "a-key-0815"}
    with hands.worker(3, **account) as first:
        [asking] = hands.submit("asking", model="openai/tiny")
        wait_for(model_server.asked.is_set, 120)
        publish = PUBLISH | {"command": "echo two >> log; sleep 600"}
        [reaching] = hands.submit("reaching", model=REACHES_OUT, tools=[publish], limits=FOREVER)
        hands.deployment.awaited(reaching, "called")
        [calling] = hands.submit("calling", model=TWO_CALLS)
        hands.deployment.awaited(calling, "observed")
        hands.in_call(calling, "call_1_2")
        assert hands.observed(calling) == hands.observed(reaching) == ["call_1_1"]
        killed_s = time.time()
        first.signal(signal.SIGKILL)
    runs = (asking, calling, reaching)
    with hands.worker(3, **account):
        assert [ended(hands, run).outcome for run in runs] == ["changed"] * 3
    late_s = [at(hands, run, "claimed", 2) - killed_s for run in runs]
    print(f"taken over after {min(late_s):.1f} to {max(late_s):.1f} s, the lease is {LEASE_S} s")
    assert max(late_s) < TAKEN_OVER_S
    assert [len(hands.claims(run)) for run in runs] == [2, 2, 2]
    run = hands.deployment.run(asking)
    lost = [event for event in hands.deployment.events(asking) if isinstance(event, Unrecorded)]
    assert (len(model_server.bodies), run.steps, hands.observed(asking)) == (3, 2, ["call_1_1"])
    assert [run.tokens] == [2 * 1050 + one.tokens for one in lost]
    assert hands.calls(calling) == ["call_1_1", "call_1_2", "call_1_2"]
    assert changed(hands, calling) == ["one", "two"]
    assert hands.calls(reaching) == ["call_1_1", "call_1_2"]
    assert changed(hands, reaching) == ["one"]


@pytest.mark.full
def test_a_worker_that_stood_still_commits_nothing_more(hands: Crew) -> None:
    """F05: SIGSTOP for two terms of the lease, in a call; then SIGCONT. The stale attempt ends without a word, and
    its worker goes on to serve."""
    with hands.worker() as stale:
        [run] = hands.submit("stopped", commands=["echo once >> log; sleep 3"])
        hands.in_call(run, "call_1_1")
        stale.signal(signal.SIGSTOP)
        stopped_s = time.monotonic()
        with hands.worker():
            assert ended(hands, run).outcome == "changed"
            wait_for(lambda: time.monotonic() - stopped_s > 2 * LEASE_S)
        before = hands.deployment.events(run)
        stale.signal(signal.SIGCONT)
        [end] = wait_for(lambda: [line for line in stale.said("attempt_ended") if line["run"] == run])
        assert end["how"] == "fenced"
        [after] = hands.submit("after-stop", commands=["echo more >> log"])
        assert ended(hands, after).outcome == "changed"
    assert hands.deployment.events(run) == before
    first, second = hands.claims(run)
    assert first.worker == stale.name != second.worker
    assert changed(hands, run) == ["once"]


@contextmanager
def forever(hands: Crew, name: str, count: int, **env: str) -> Iterator[tuple[Worker, list[str]]]:
    """A worker with so many runs, each in its second call, which does not end; the first is committed."""
    with hands.worker(count, **env) as worker:
        runs = hands.submit(name, *["code"] * count, model=ONE_AND_FOREVER, limits=FOREVER)
        for run in runs:
            hands.in_call(run, "call_2_1")
        yield worker, runs


def resumed(hands: Crew, runs: list[str], old: Worker) -> None:
    """Another worker is in the call that was rolled back, and nothing is committed twice; then all are cancelled."""
    for run in runs:
        hands.in_call(run, "call_2_1", 2)
        assert [claim.worker == old.name for claim in hands.claims(run)] == [True, False]
        assert hands.calls(run) == ["call_1_1", "call_2_1", "call_2_1"]
        assert hands.observed(run) == ["call_1_1"]
    assert hands.deployment.dawn("cancel", hands.batch(runs[0])).code == 0
    assert {ended(hands, run).outcome for run in runs} == {"cancelled"}


def yields(hands: Crew, run: str) -> list[Yielded]:
    return [event for event in hands.deployment.events(run) if isinstance(event, Yielded)]


@pytest.mark.parametrize(("count", "soft_s"), [pytest.param(8, 60, marks=pytest.mark.full), (3, 12)])
def test_a_drain_gives_every_run_back_within_the_soft_limit(hands: Crew, count: int, soft_s: int) -> None:
    """F07: SIGTERM with so many runs in calls that do not end, 8 of them with the limit that everybody has. All are
    yielded within it and the process ends in order; another worker goes on, and no committed step is repeated."""
    with forever(hands, f"drain-{count}", count, DAWN_DRAIN_SOFT_S=str(soft_s)) as (worker, runs):
        began_s = time.time()
        worker.signal(signal.SIGTERM)
        code = gone(worker, 2 * soft_s)
        took_s = time.time() - began_s
    assert [[one.why for one in yields(hands, run)] for run in runs] == [["drain"]] * count
    late_s = [at(hands, run, "yielded") - began_s for run in runs]
    print(f"{count} runs: yielded after {min(late_s):.1f} to {max(late_s):.1f} s, gone after {took_s:.1f} s")
    assert code == 0
    assert max(late_s) < soft_s
    with hands.worker(count):
        resumed(hands, runs, worker)


LONG_SOFT = {"DAWN_DRAIN_SOFT_S": "3600"}
"""So that an end within a minute is the second signal's doing."""


@pytest.mark.parametrize(
    "signals", [(signal.SIGTERM, signal.SIGTERM), pytest.param((signal.SIGQUIT,), marks=pytest.mark.full)]
)
def test_a_hurried_worker_gives_its_run_back_at_once(hands: Crew, signals: tuple[int, ...]) -> None:
    """F07, F08: a second SIGTERM, and SIGQUIT, do not wait for the call in hand: it is killed and rolled back, and
    the run need not wait for the lease."""
    name = "-".join(signal.Signals(number).name.lower() for number in signals)
    with forever(hands, name, 1, **LONG_SOFT) as (worker, runs):
        for number in signals:
            worker.signal(number)
            wait_for(lambda: worker.said("draining") or worker.said("killing_calls_in_hand"))
        assert gone(worker) == 0
    assert [one.why for one in yields(hands, runs[0])] == ["drain"]
    with hands.worker():
        resumed(hands, runs, worker)


@pytest.mark.full
def test_a_worker_that_is_told_again_and_again_leaves(hands: Crew) -> None:
    """F08: SIGINT, four times and more: the process ends as a crash would, its solo process too, and the run goes on
    when the lease has ended."""
    with forever(hands, "sigint", 1, **LONG_SOFT) as (worker, runs):
        solo = worker_process(hands.solo())

        def left() -> bool:
            worker.signal(signal.SIGINT)
            return worker.process.poll() is not None

        wait_for(left)
        wait_for(lambda: not Path(f"/proc/{solo}/exe").exists())
    with hands.worker():
        resumed(hands, runs, worker)


@pytest.mark.full
def test_a_rolling_upgrade_repeats_no_step(hands: Crew) -> None:
    """F07: a new worker starts, the old one gets SIGTERM, in the middle of a batch: calls in hand end, so that each
    call was begun once."""
    with hands.worker(3) as new, hands.worker(3) as old:
        new.signal(signal.SIGSTOP)  # it is there, and the old one has the runs
        wait_for(lambda: new.name not in hands.offered())
        runs = hands.submit("upgrade", *["code"] * 4, model=SHORT_STEPS)
        wait_for(lambda: any(len(hands.observed(run)) >= 2 for run in runs), 120)
        new.signal(signal.SIGCONT)
        old.signal(signal.SIGTERM)
        assert gone(old) == 0
        assert {ended(hands, run).outcome for run in runs} == {"changed"}
    for run in runs:
        assert hands.calls(run) == hands.observed(run) == [f"call_{n}_1" for n in range(1, 5)]
        assert changed(hands, run) == ["0", "1", "2", "3"]
    assert [one.why for run in runs for one in yields(hands, run)].count("drain") >= 1


GROUP = "/sys/fs/cgroup/memory"
SPARE_BYTES = 256 * 2**20


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A memory control group for a worker and little more."""
    lines = [line.split(":") for line in Path("/proc/self/cgroup").read_text().splitlines()]
    own = next((group for _, controllers, group in lines if "memory" in controllers.split(",")), None)
    folder = Path(f"{GROUP}{own}/dawn-{os.getpid()}")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"needs root and memory control groups of version 1: {error}")
    (folder / "memory.limit_in_bytes").write_text(str(SPARE_BYTES))
    yield folder
    (folder / "cgroup.procs").exists() and wait_for(lambda: not (folder / "cgroup.procs").read_text())
    folder.rmdir()


@pytest.mark.full
def test_a_worker_out_of_memory_is_named_by_the_next_claim(hands: Crew, small_group: Path) -> None:
    """F09: the kernel kills a worker that outgrows its control group; the run goes on, and the next claim says how
    the last attempt ended."""
    within = ("sh", "-c", f'echo $$ > {small_group}/cgroup.procs; exec "$@"', "sh")
    with hands.worker(before=within, DAWN_BEFORE_CALL="python:call_hooks:eats") as eater:
        [run] = hands.submit("eater", commands=["echo once >> log"])
        assert gone(eater) == -signal.SIGKILL
    with hands.worker():
        assert ended(hands, run).outcome == "changed"
    first, second = hands.claims(run)
    assert (first.worker, first.previous) == (eater.name, "")
    assert second.previous == f"{eater.name}: out of memory: 1 killed in its control group"
    assert changed(hands, run) == ["once"]


@pytest.mark.full
def test_a_run_that_kills_whoever_claims_it_ends_and_good_ones_finish(hands: Crew) -> None:
    """F10, T58, F02: a run kills the worker twice and then the solo process: failed as `infra/worker_lost`. Beside it
    one loses two workers and then, in a call, only the solo process: it is rolled back and run again. Five good runs
    that lost the same workers finish."""
    [poison] = hands.submit("poison", commands=["echo never"], environment={"setup": "sleep 600"})
    [unlucky] = hands.submit("unlucky", commands=["echo once >> log; sleep 4"], environment={"setup": "sleep 3"})
    good = hands.submit("good", *["code"] * 5, commands=["echo good >> log"])
    doomed = [poison, unlucky]
    for number in (1, 2):
        with hands.worker(4) as worker:
            for run in doomed:
                hands.deployment.awaited(run, "claimed", number)
            worker.signal(signal.SIGKILL)
    with hands.worker(4):
        killed: set[str] = set()

        def over() -> bool:
            """Kills the solo process when it claims the poison, and once in the other run's call."""
            for run in doomed:
                last = hands.claims(run)[-1]
                in_call = run == poison or hands.calls(run)
                if last.lane == "solo" and run not in killed and in_call:
                    killed.add(run)
                    os.kill(worker_process(last.worker), signal.SIGKILL)
            return all(hands.deployment.run(run).sealed for run in [*doomed, *good])

        wait_for(over, 240)
        ends = {run: ended(hands, run) for run in [*doomed, *good]}
    assert [ends[run].outcome for run in good] == ["changed"] * 5
    assert ends[poison].failure == Failure(
        cls="infra", reason="worker_lost", detail="3 attempts in a row ended without a step"
    )
    assert [claim.lane for claim in hands.claims(poison)] == ["main", "main", "solo"]
    assert ends[unlucky].outcome == "changed"
    assert [claim.lane for claim in hands.claims(unlucky)] == ["main", "main", "solo", "main"]
    assert hands.calls(unlucky) == ["call_1_1", "call_1_1"]
    assert changed(hands, unlucky) == ["once"]


def cancelled(hands: Crew, *runs: str) -> None:
    """Cancelled from the command line, and ended so within five seconds, with nothing of them alive."""
    told = [subprocess.Popen([program("dawn"), "cancel", run], env=hands.deployment.env) for run in runs]
    assert [one.wait(60) for one in told] == [0] * len(runs)
    wait_for(lambda: all(hands.deployment.run(run).sealed for run in runs), 5)
    wait_for(lambda: not any(hands.of_run(run) for run in runs), 5)
    for run in runs:
        assert ended(hands, run).outcome == "cancelled"


def test_a_cancelled_run_ends_in_any_state_and_stays_ended(hands: Crew) -> None:
    """F29, T57: cancelled in a call, in the model, while it waits for a person, while queued behind them, and, with
    all workers gone, one that was given back and one that nobody has claimed: within five seconds nothing of them is
    alive, and workers that start later begin none of them."""
    with hands.worker(3) as worker:
        [asking] = hands.submit("asks", model=ASKS)
        hands.deployment.awaited(asking, "parked")
        [calling] = hands.submit("calls", model=ONE_AND_FOREVER, limits=FOREVER)
        [given_back] = hands.submit("given-back", model=ONE_AND_FOREVER, limits=FOREVER)
        [thinking] = hands.submit("thinks", model=THINKS)
        for run in (calling, given_back):
            hands.in_call(run, "call_2_1")
        hands.deployment.awaited(thinking, "prepared")
        [queued] = hands.submit("queued", commands=["echo never >> log"])
        cancelled(hands, calling, thinking, asking, queued)
        worker.signal(signal.SIGQUIT)
        assert gone(worker) == 0
    [unclaimed] = hands.submit("unclaimed", commands=["echo never >> log"])
    cancelled(hands, given_back, unclaimed)
    kinds = {run: [event.type for event in hands.deployment.events(run)] for run in (calling, given_back, unclaimed)}
    with hands.worker(3):
        [after] = hands.submit("after-cancel", commands=["echo more >> log"])
        assert ended(hands, after).outcome == "changed"
    assert kinds == {run: [event.type for event in hands.deployment.events(run)] for run in kinds}
    assert hands.claims(unclaimed) == []
    assert hands.deployment.dawn("diff", calling).out.count("\n+one\n") == 1
