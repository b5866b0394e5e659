"""A batch begins in waves and stops beginning when too many have failed: the words, how targets stand, and the
scheduler's loop on a real Redis and a real archive."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from runs_made import AT, claimed, ended, replied
from test_tick import World, with_redis

from scheduler.cli.main import run as dawn
from scheduler.control import tell
from scheduler.enqueue import freeze, targets_json
from scheduler.manifests.reading import ManifestFault, parse
from scheduler.planning.ended import End, Ended, Member, end_of
from scheduler.planning.why import behind, breaker_of
from scheduler.runs import Found, runs_in, views
from worker.contract.events import Failure, Sealed
from worker.contract.run import Run
from worker.contract.task import Limits, Repo, Task
from worker.contract.waves import USUAL, Breaker, Waves, wave_of
from worker.store import keys
from worker.store.archive import Archive
from worker.store.inbox import Control
from worker.store.journal import Journal
from worker.store.members import Member as Named
from worker.store.members import announce

NAME = "night-0123456789ab"
BATCH = Found("batch", NAME)
LATER = "2026-11-30T04:00:00.000+00:00"
sizes = st.lists(st.integers(1, 9) | st.integers(1, 100).map(lambda percent: f"{percent}%"), min_size=1, max_size=5)


@given(sizes, st.integers(1, 60))
def test_every_target_is_in_one_wave_and_none_goes_before_an_earlier_one(chosen: Any, targets: int) -> None:
    """Waves follow the manifest's order, begin with the first, and hold all."""
    waves = TypeAdapter(Waves).validate_python(chosen)
    assert waves is not None
    numbers = [wave_of(waves, position, targets) for position in range(targets)]
    assert numbers == sorted(numbers)
    assert numbers[0] == 1
    assert numbers[-1] <= len(waves)


def test_the_usual_waves_are_three_a_quarter_and_the_rest() -> None:
    """`waves: true`; a share is of all targets, rounded up."""
    waves = TypeAdapter(Waves).validate_python(True)
    assert waves == USUAL
    assert [wave_of(waves, position, 10) for position in range(10)] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 3]
    assert TypeAdapter(Waves).validate_python(False) is None


@pytest.mark.parametrize("chosen", [["rest", 3], ["0%"], [0], ["101%"], [], ["half"]])
def test_waves_that_make_no_sense_are_refused(chosen: Any) -> None:
    """A wave of nobody, and more than all."""
    with pytest.raises(ValidationError):
        TypeAdapter(Waves).validate_python(chosen)


def test_what_a_manifest_says_of_it_stands_in_each_task(tmp_path: Path) -> None:
    """Shares, counts and defaults; `breaker: {}` is the usual one."""
    text = (
        "version: 1\nname: n\ntask: {commands: [x]}\ntargets: [{repo: https://x/a}, {repo: https://x/b}]\n"
        "waves: true\nbreaker: {}\nweight: 5\nparallel: 2\nmax_per_repo: 1\n"
    )
    loaded = parse(text, "n.yaml", tmp_path, Limits())
    for one in freeze(loaded, [Repo(url="https://x/a"), Repo(url="https://x/b")]).tasks:
        assert (one.v, one.waves, one.breaker) == (3, USUAL, Breaker(failure_rate=0.3, min_runs=5))
        assert (one.weight, one.parallel, one.max_per_repo) == (5, 2, 1)
    with pytest.raises(ManifestFault) as refused:
        parse(text.replace("true", "[3, 0%]").replace("5", "500"), "n.yaml", tmp_path, Limits())
    assert [problem.where for problem in refused.value.problems] == ["waves[1]", "weight"]


def task(**changes: Any) -> Task:
    base: dict[str, Any] = {
        "run": "r",
        "batch": NAME,
        "target": "t",
        "repo": Repo(url="https://x"),
        "commands": ("x",),
    }
    return Task(v=3, **(base | changes))


@pytest.mark.parametrize(
    ("sealed", "mark"),
    [
        (Sealed(outcome="changed", verdict="verified"), "ok"),
        (Sealed(outcome="no_change", verdict="unverified"), "ok"),
        (Sealed(outcome="reused", verdict="verified"), "ok"),
        (Sealed(outcome="changed", verdict="broke"), "failed"),
        (Sealed(outcome="failed", failure=Failure(cls="agent", reason="loop")), "failed"),
        (Sealed(outcome="failed", failure=Failure(cls="env", reason="setup")), "failed"),
        (Sealed(outcome="failed", failure=Failure(cls="provider", reason="auth")), "failed"),
        (Sealed(outcome="failed", failure=Failure(cls="provider", reason="unavailable")), ""),
        (Sealed(outcome="failed", failure=Failure(cls="infra", reason="engine")), ""),
        (Sealed(outcome="failed", failure=Failure(cls="limit", reason="batch_budget")), ""),
        (Sealed(outcome="skipped", detail="breaker"), ""),
        (Sealed(outcome="cancelled"), ""),
    ],
)
def test_only_what_says_something_of_the_task_counts(sealed: Sealed, mark: str) -> None:
    """Trouble of ours, of a provider that is away, and of money trips no breaker."""
    assert end_of(sealed, AT).of == mark


marks = st.sampled_from(["ok", "failed", ""])
histories = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), marks, st.integers(0, 9)), max_size=25)


@given(histories, st.integers(1, 3), st.integers(-1, 9))
def test_counting_run_by_run_is_counting_at_once(history: Any, candidates: int, reset: int) -> None:
    """However ends came, and whenever it was reset, targets stand as by a look at all of them."""
    ends = {f"r{target}-{ordinal}": (target, ordinal, End(mark, f"{at}")) for target, ordinal, mark, at in history}
    members = [Member(run, f"t{target}", ordinal) for run, (target, ordinal, _) in ends.items()]
    of = task(waves=(1, "rest"), breaker=Breaker(), candidates=candidates)
    step_by_step, at_once = Ended(of, members[:3]), Ended(of, members)
    for number, (run, (_, _, end)) in enumerate(ends.items()):
        if number == len(ends) // 2 and reset >= 0:
            step_by_step.again(f"{reset}")
        step_by_step.add([members[number]])
        step_by_step.end(run, end)
    if reset >= 0:
        step_by_step.again(f"{reset}")
        at_once.again(f"{reset}")
    for run, (_, _, end) in reversed(ends.items()):
        at_once.end(run, end)
    assert step_by_step.counted == at_once.counted
    assert 0 <= at_once.counted[1] <= at_once.counted[0] <= 6
    assert at_once.current[1] == 0


def test_of_a_target_the_last_retry_counts_and_of_candidates_one_good_one() -> None:
    """Whoever retries what failed has a healthy batch again."""
    stand = Ended(task(breaker=Breaker(failure_rate=0.5, min_runs=1), candidates=2), ())
    stand.add([Member("a", "t", 0), Member("b", "t", 1), Member("c", "u", 0)])
    stand.end("a", End("failed", "1"))
    assert stand.counted == (0, 0)
    stand.end("b", End("ok", "1"))
    stand.end("c", End("failed", "1"))
    assert stand.tripped
    stand.add([Member("d", "u", 2)])
    assert not stand.tripped
    stand.end("d", End("ok", "2"))
    assert stand.counted == (2, 0)


def test_who_waits_behind_a_person_is_told_apart() -> None:
    """A wave that none but waiting runs hold up brings nobody on; one that still works does."""
    tasks = {f"r{n}": task(run=f"r{n}", target=f"t{n}", waves=(2, "rest")) for n in range(4)}
    runs = {name: Run(id=name, claims=int(name < "r2")) for name in tasks}
    assert behind(tasks, runs, {"r0"}) == set()
    assert behind(tasks, runs, {"r0", "r1"}) == {"r2", "r3"}
    over = runs | {"r1": runs["r1"].model_copy(update={"sealed": Sealed(outcome="changed")})}
    assert behind(tasks, over, {"r0"}) == {"r2", "r3"}


@pytest.fixture
def world(archive: Archive, redis_url: str) -> World:
    """With places for all."""
    made = World(archive, redis_url)
    made.offer(4)
    return made


@pytest.fixture
def batch(archive: Archive) -> Callable[..., None]:
    """batch(number, **asked): that many runs r0, r1, ... of targets of their own, in this order."""

    def make(number: int, **asked: Any) -> None:
        tasks = [task(run=f"r{n}", target=f"t{n}", **asked) for n in range(number)]
        archive.create(keys.batch_targets(NAME), targets_json(NAME, tasks, b""))
        for one in tasks:
            Journal(archive, one.run).submit(one, by="me", at=AT)

    return make


def finish(world: World, run: str, outcome: str = "changed", at: str = AT, **sealed: Any) -> None:
    """As its worker does."""
    journal = Journal(world.archive, run)
    folded = journal.append(journal.load(), [claimed()], attempt=None, at=at)
    journal.append(folded, [replied(), *ended(outcome, **sealed)], attempt=folded.attempt, at=at)
    world.archive.delete([keys.open_marker(run)])
    world.hints.answered(run)


FAILED: dict[str, Any] = {"outcome": "failed", "failure": Failure(cls="agent", reason="loop")}


def rung(world: World, after_s: float = 61) -> set[str]:
    """In a round so late that all is listed again."""
    return {run for run, _ in world.tick(after_s)}


def outcomes(archive: Archive, *runs: str) -> set[tuple[str, str]]:
    sealed = [Journal(archive, run).load().sealed for run in runs]
    return {("open", "") if one is None else (one.outcome, one.detail) for one in sealed}


def test_a_wave_begins_when_all_before_it_have_ended(world: World, batch: Callable[..., None]) -> None:
    """In the manifest's order, and not one run earlier."""
    batch(5, waves=(1, "40%", "rest"))
    assert rung(world) == {"r0"}
    finish(world, "r0")
    assert rung(world) == {"r1", "r2"}
    finish(world, "r2")
    assert rung(world) == set()
    finish(world, "r1", **FAILED)
    assert rung(world) == {"r3", "r4"}


def test_a_run_that_waits_for_a_person_has_not_ended(
    world: World, batch: Callable[..., None], archive: Archive
) -> None:
    """The next wave waits with it, whoever leads."""
    batch(2, waves=(1, "rest"))
    tell(archive, world.hints, Found("run", "r0"), "pause", by="me", at=AT)
    assert rung(world) == set()
    world.scheduler = world.another()
    with_redis(world).delete("dawn:lease:scheduler")
    assert rung(world) == set()
    tell(archive, world.hints, Found("run", "r0"), "cancel", by="me", at=AT)
    assert rung(world, 1) == set()
    assert rung(world, 1) == {"r1"}


def test_a_retry_belongs_to_the_wave_of_its_target(
    world: World, batch: Callable[..., None], archive: Archive
) -> None:
    """Nothing later begins before it has ended."""
    batch(2, waves=(1, "rest"))
    finish(world, "r0", **FAILED)
    announce(archive, NAME, [Named(target="t0", ordinal=1, run="again")], number=0, by="me", at=AT)
    again = task(run="again", target="t0", ordinal=1, waves=(1, "rest"))
    Journal(archive, "again").submit(again, by="me", at=AT)
    assert rung(world) == {"again"}
    finish(world, "again")
    assert rung(world) == {"r1"}


def test_a_new_leader_knows_what_ended_before_it_came(world: World, batch: Callable[..., None]) -> None:
    """From the ends of journals, whose runs are not open any more."""
    batch(4, waves=(2, "rest"))
    finish(world, "r0")
    finish(world, "r1")
    assert rung(world) == {"r2", "r3"}


def test_too_many_failures_and_nothing_more_is_begun(
    world: World, batch: Callable[..., None], archive: Archive
) -> None:
    """What nobody has begun is skipped and says why; what was begun goes on."""
    batch(8, breaker=Breaker(failure_rate=0.5, min_runs=2))
    assert len(rung(world)) == 4
    journal = Journal(archive, "r3")
    journal.append(journal.load(), [claimed(), replied()], attempt=None, at=AT)
    world.hints.claim("run:r3", "token", 600)
    finish(world, "r0", **FAILED)
    assert outcomes(archive, "r4", "r5", "r6", "r7") == {("open", "")}
    finish(world, "r1")
    rung(world)
    assert outcomes(archive, "r2", "r4", "r5", "r6", "r7") == {("skipped", "breaker")}
    assert outcomes(archive, "r3") == {("open", "")}


def test_failures_of_ours_trip_no_breaker(world: World, batch: Callable[..., None], archive: Archive) -> None:
    """An engine that is away says nothing of the task."""
    batch(4, breaker=Breaker(failure_rate=0.5, min_runs=2))
    for run in ("r0", "r1", "r2"):
        finish(world, run, outcome="failed", failure=Failure(cls="infra", reason="engine"))
    assert rung(world) == {"r3"}


def test_after_a_reset_what_ended_before_does_not_count(
    world: World, batch: Callable[..., None], archive: Archive
) -> None:
    """A person saw what was wrong."""
    batch(4, breaker=Breaker(failure_rate=0.5, min_runs=2))
    finish(world, "r0", **FAILED)
    finish(world, "r1", **FAILED)
    tell(archive, world.hints, BATCH, "breaker", by="me", at="2026-11-30T03:00:00.000+00:00")
    assert rung(world) == {"r2", "r3"}
    finish(world, "r2", at=LATER, **FAILED)
    finish(world, "r3", at=LATER, **FAILED)
    state = breaker_of(views(archive, runs_in(archive, BATCH)).found, Control(archive, NAME).read())
    assert state is not None
    assert (state.tripped, state.ended, state.failed) == (True, 2, 2)


@pytest.mark.usefixtures("without_stack")
def test_the_command_tells_and_resets(
    world: World, batch: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 7 while it is tripped; dawn status says it too."""
    batch(3, breaker=Breaker(failure_rate=0.5, min_runs=2))
    finish(world, "r0", **FAILED)
    finish(world, "r1")
    assert dawn(["breaker", "night"]) == 7
    assert capsys.readouterr().out == "breaker: tripped, 1 of 2 targets failed (trips at 50% of 2 or more)\n"
    assert dawn(["status", "night"]) == 0
    assert "breaker: tripped, 1 of 2 targets failed" in capsys.readouterr().err
    assert dawn(["breaker", "night", "--reset", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["tripped"], told["ended"]) == ("dawn.breaker/1", False, 0)


@pytest.mark.usefixtures("without_stack")
def test_a_batch_without_a_breaker_says_so(batch: Callable[..., None]) -> None:
    """Nothing to reset."""
    batch(1)
    assert dawn(["breaker", "night"]) == 10
