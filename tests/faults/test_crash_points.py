"""A worker, scheduler or submitting command is killed at every append and every act, and each run ends as if nobody
had been (F03)."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import wait_for
from crash_yard import KINDS, SHARED, Fate, Yard, once, story
from deployments import s3_environment

from scheduler.fork import Wish, fork
from scheduler.runs import Found
from scheduler.verify import check
from worker.contract.events import Event
from worker.store import keys
from worker.store.archive import Archive

pytestmark = [pytest.mark.docker, pytest.mark.timeout(3600)]

WORKERS = 4
ENDED_S = 3000.0
"""Bound for a cell's runs; a quiet machine needs a twentieth of it."""
JANITORS_S = 60.0
"""The promised bound for what a run leaves on its engine."""


MANY = 50
"""Runs that somebody died of, at least: fewer would mean that points are no longer found."""


@dataclass(frozen=True)
class Cell:
    """What is tried: a seed, an archive, all points or the first of each kind, and what in turn becomes of a dead
    worker's containers (lost: they go with it)."""

    seed: int
    store: str = "local"
    every: bool = False
    lost: tuple[bool, ...] = (False,)

    def __str__(self) -> str:
        return f"seed {self.seed} {self.store} {' and '.join('removed' if lost else 'kept' for lost in self.lost)}"


DEFAULT = Cell(1, lost=(False, True))
FULL = (
    Cell(1, every=True, lost=(True, False)),
    Cell(2, lost=(True,)),
    Cell(2, "seaweed"),
    Cell(3),
    Cell(3, "seaweed", lost=(True,)),
)

CALM = {
    "fresh": ("changed", "verified"),
    "agent": ("changed", "unverified"),
    "checked": ("changed", "verified"),
    "asks": ("changed", "unverified"),
    "fork": ("changed", "unverified"),
    "closed": ("cancelled", None),
}
"""How the undisturbed runs end."""

SPANS = {
    "fresh": ("1 volume create prepare 1", "1 create journal/2 1"),
    "agent": ("scheduler redis rung bell 1", "1 keeper put 1"),
    "checked": ("1 create journal/5 1", "1 redis release lease 1"),
    "asks": ("1 create journal/4 1", "5 create journal/7 1"),
    "fork": ("1 keeper restore 1", "1 create journal/2 1"),
    "closed": ("scheduler create inbox/1 1", "scheduler delete open 1"),
}
"""Of each kind the part that no other kind has: from when this passes to when that has."""

FIRST = {
    "fresh": r"create|image commit|.*(start prepare-writes-outside|remove baseline) 1",
    "agent": r"create journal|(?!create journal|container (create|attach|start) agent-reads).* 1$",
    "checked": r"create|delete|redis|volume|container (create|start) verdict-writes 1|container remove .*keeper",
    "asks": r"create journal|volume remove",
    "fork": r"create",
    "closed": r"create journal|delete",
}
"""Of the part, what the default takes: all appends, and each kind of act once."""

BESIDE = {
    "fresh": (("1 create env.json 1 before",),),
    "agent": (
        ("1 create journal/4 1 after", "5 volume create agent 1 after"),
        ("1 create journal/4 1 before", "4 keeper restore 1 before"),
    ),
    "closed": (("scheduler create journal/1 1 after",),),
}
"""Rows of the crash table that the choice of sides leaves out, and who takes over dying too."""

HALF = ("dawn create journal/0 1 before", "scheduler create journal/0 1 before")
"""The command dies between marker and segment 0, and then the scheduler that completes it."""
UNHEARD = ("dawn create journal/0 1 after",)
"""The command dies before it can say that there is a new run."""


def points(passed: Sequence[str], kind: str, seed: int, *, every: bool) -> list[str]:
    """Where runs of this kind are to die: on one side of each thing that passed in the undisturbed run."""
    first, last = SPANS[kind]
    sides: dict[str, list[str]] = {}
    for point in dict.fromkeys(passed):
        what, _, side = point.rpartition(" ")
        if what == first or sides:
            sides.setdefault(what, []).append(side)
        if point == f"{last} after":
            break
    assert sides, f"{first} did not pass"
    chosen = {what: random.Random(f"{seed} {what}").choice(found) for what, found in sides.items()}
    acts = {what: what.partition(" ")[2] for what in chosen}
    return [f"{what} {side}" for what, side in chosen.items() if every or re.match(FIRST[kind], acts[what])]


@dataclass
class Night:
    """What came of a cell. calm: kind -> the undisturbed run; kinds and fates: of each other run. left: what was on
    the engine JANITORS_S after the last end; leases: runs that Redis took for held then."""

    yard: Yard
    calm: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    fates: dict[str, Fate] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    leases: set[str] = field(default_factory=set)

    def events(self, run: str) -> list[Event]:
        return self.yard.deployment.events(run)

    def patch(self, run: str) -> bytes:
        return self.yard.deployment.patch(run)

    def begin(self, kind: str, fates: dict[str, Fate]) -> list[str]:
        runs = self.yard.begin(kind, fates, parent=self.calm.get("agent", ""))
        self.kinds |= dict.fromkeys(runs, kind)
        self.fates |= dict(zip(runs, fates.values(), strict=True))
        return runs


def play(night: Night, cell: Cell) -> None:
    """The undisturbed runs one by one, then one for each point, all at once."""
    yard = night.yard
    for kind in KINDS:
        [night.calm[kind]] = night.begin(kind, {f"{kind}-0": Fate()})
        yard.ended(night.fates, ENDED_S)
        sealed = yard.deployment.run(night.calm[kind]).sealed
        assert sealed is not None
        assert (sealed.outcome, sealed.verdict) == CALM[kind], yard.log()
    for kind in KINDS:
        chosen = points(yard.passed(night.calm[kind]), kind, cell.seed, every=cell.every)
        fated = [*((point,) for point in chosen), *BESIDE.get(kind, ())]
        night.begin(
            kind,
            {
                f"{kind}-{number}": Fate(planned, cell.lost[number % len(cell.lost)])
                for number, planned in enumerate(fated, start=1)
            },
        )
    _half_submitted(night)
    yard.ended(night.fates, ENDED_S)
    with suppress(TimeoutError):
        wait_for(lambda: yard.deployment.left() == [], JANITORS_S)
    night.left = yard.deployment.left()
    night.leases = yard.hints.held(f"run:{run}" for run in night.fates)


def _half_submitted(night: Night) -> None:
    """Two submits and a fork that are killed in the middle and never repeated."""
    yard, parent = night.yard, night.calm["agent"]
    fates = {"half-1": Fate(HALF), "half-2": Fate(UNHEARD)}
    commands = [
        (name, fate, ["submit", str(yard.manifest("agent", SHARED, [name])), "--detach"])
        for name, fate in fates.items()
    ]
    [forked] = fork(yard.deployment.archive, parent, Wish(step=1), key="half").batch.tasks
    commands.append((forked.run, Fate(HALF), ["fork", parent, "--at", "1", "--key", "half", "--detach"]))
    assert yard.commands(*commands) == [-signal.SIGKILL] * 3
    for name, fate in fates.items():
        [run] = [run for run in yard.deployment.runs() if run.startswith(f"{name}-")]
        night.kinds[run], night.fates[run] = "agent", fate
    night.kinds[forked.run], night.fates[forked.run] = "fork", Fate(HALF)


@pytest.fixture(
    scope="module",
    params=[DEFAULT, *(pytest.param(cell, marks=pytest.mark.full) for cell in FULL)],
    ids=str,
)
def night(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Night:
    """A cell, played to its end, with its fleet stopped."""
    cell: Cell = request.param
    folder = tmp_path_factory.mktemp("yard")
    env, url = {}, ""
    if cell.store == "seaweed":
        env = s3_environment(request.getfixturevalue("seaweed"))
        url = f"s3://dawn/crashes-{cell.seed}"
    yard = Yard(folder, cell.seed, url, **env)
    night = Night(yard)
    with yard.open(WORKERS):
        play(night, cell)
    return night


def test_everybody_died_where_it_was_planned(night: Night) -> None:
    """Each run lost its worker, its scheduler or the command that submitted it at its points, and nowhere else."""
    died: dict[str, list[str]] = {}
    for death in night.yard.deaths():
        died.setdefault(death.run, []).append(death.point)
    assert died == {run: list(fate.points) for run, fate in night.fates.items() if fate.points}
    assert len(died) >= MANY


def test_each_run_ends_as_if_nobody_had_died(night: Night) -> None:
    """The same replies, results, tree hashes, verdict, outcome and artifacts, in the same order."""
    stories = {kind: story(night.events(run)) for kind, run in night.calm.items()}
    other = {
        run: night.fates[run].points for run in night.fates if story(night.events(run)) != stories[night.kinds[run]]
    }
    assert other == {}


def test_each_patch_is_the_undisturbed_one(night: Night) -> None:
    """Byte for byte."""
    patches = {kind: night.patch(run) for kind, run in night.calm.items()}
    assert [run for run in night.fates if night.patch(run) != patches[night.kinds[run]]] == []
    assert b"+42" in patches["agent"]


def test_nothing_was_committed_twice(night: Night) -> None:
    """Each step, the result of each call, and the seal: once."""
    assert {run: problems for run in night.fates if (problems := once(night.events(run)))} == {}


def test_every_chain_is_sound(night: Night) -> None:
    """As `dawn verify` sees it: each byte that a journal names."""
    archive = night.yard.deployment.archive
    assert [problem for run in night.fates for problem in check(archive, Found("run", run)).problems] == []


def test_nothing_is_left_of_any_run(night: Night) -> None:
    """No container, volume or network, no lease in Redis and no marker in the archive."""
    assert night.left == []
    assert night.leases == set()
    assert list(night.yard.deployment.archive.list("open/")) == []


def test_no_death_costs_more_than_one_claim(night: Night) -> None:
    """A run has at most one claim more than the undisturbed one for each death that it saw. How long the next claim
    took, with all slots busy, is printed."""
    deaths = night.yard.deaths()
    workers = [death for death in deaths if death.point[0].isdigit()]
    waits = sorted(wait for death in workers if (wait := night.yard.takeover_s(death)) is not None)
    print(f"{len(deaths)} deaths; claimed again after, s: p50 {waits[len(waits) // 2]:.1f}, ", end="")
    print(f"p95 {waits[len(waits) * 95 // 100]:.1f}, most {waits[-1]:.1f}")
    claims = {run: [event.type for event in night.events(run)].count("claimed") for run in night.fates}
    calm = {kind: claims[run] for kind, run in night.calm.items()}
    assert {
        run: (count, night.fates[run].points)
        for run, count in claims.items()
        if count > calm[night.kinds[run]] + len(night.fates[run].points)
    } == {}


HISTORIES = "test_histories.py::test_nothing_is_lost_or_doubled"
"""Plays crashes between all appends of runs that are fed red checks, steered, paused and cancelled."""

TABLE = {
    "source stored, no manifest": "dawn create (sources 1 after|manifest.yaml 1 (before|staged))",
    "manifest, not all `task.json`": "dawn create (targets.json 1 after|task.json 1 (before|staged))",
    "`task.json`, no marker": "dawn create (task.json 1 after|open 1 (before|staged))",
    "marker, no segment 0": "dawn create journal/0 1 before",
    "segment 0, no hint": "dawn create journal/0 1 after",
    "segment 0, no mark of its work": "dawn create (journal/0 1 after|work 1 (before|staged))",
    "reused: inbox closed, no segment 0": "test_work.py::test_a_reused_run_that_was_cut_off_is_completed",
    "retries announced, not written": "test_retry_cut_off.py::test_the_scheduler_writes_what_was_announced",
    "marker of retries, no announcement": "test_retry_cut_off.py::"
    "test_a_marker_before_its_announcement_is_left_alone",
    "bell noted, not rung; or rung and lost": "scheduler queue ring bell 1 before|0 queue note 1",
    "doorbell taken, no lease": "0 redis answered bell 1|0 redis claim lease 1 before",
    "doorbell doubled": "test_attempt.py::test_a_doorbell_for_a_held_run_returns_at_once",
    "lease, no `claimed`": "0 redis claim lease 1 after|0 create journal/1 1 (before|staged)",
    "`claimed`, no step": "1 volume create agent 1|1 keeper hello 1",
    "while fetching or in `setup`": "1 container start prepare-writes-outside 1",
    "level 0 stored, no `env.json`": "1 create (blobs 1 after|env.json 1 (before|staged))",
    "`env.json`, no baseline": "1 create (env.json 1 after|baselines 1 (before|staged))",
    "baseline, no `prepared`": "1 create (baselines 1 after|journal/2 1 (before|staged))",
    "model asked, no `replied`": "1 model reply 1",
    "`replied`, call not begun or running": "1 call run 1 (before|running)",
    "`called`, no `observed`": "test_guards.py::test_an_outside_call_is_not_repeated_by_a_takeover",
    "output or snapshot stored, no `observed`": "1 create snapshots 1",
    "shown to the model, no `observed`": "1 keeper snapshot 1",
    "`observed`": "1 create journal/4 1 after",
    "`finished`, no seal": "1 volume create verdict 1",
    "`fed_back`": HISTORIES,
    "call ruled as ask, no `asked`": "1 create journal/4 1 (before|staged)",
    "`asked` and `parked`, containers still there": "1 volume remove agent 1 before",
    "decision stored, no hint": "test_tick.py::test_a_decision_without_a_hint_is_found",
    "decision stored, no `decided`": "5 create journal/6 1 (before|staged)",
    "`decided`, approved call not committed": "5 create journal/7 1",
    "question decided `cancelled` by a sealer, no seal": "test_tick.py::"
    "test_a_waiting_run_that_is_cancelled_is_decided_and_sealed",
    "question expired, scheduler died": "test_tick.py::test_a_new_scheduler_finds_what_was_decided_before_it_came",
    "message or pause stored, no hint": "test_waiting.py::test_words_without_redis_reach_the_model",
    "`steered`, nothing after": HISTORIES,
    "call killed for a pause, no `parked`": "test_tick.py::test_an_orphan_of_a_paused_batch_is_claimed_once_more",
    "fork: marker, no segment 0": "dawn create journal/0 1 before",
    "fork: parent's files restored, no own level 0": "1 create (snapshots 1|journal/2 1 (before|staged))",
    "a segment that is torn or changed": "test_fork_attempt.py::test_a_torn_run_ends_and_its_fork_goes_on",
    "256 segments, no roll-up": "test_rollup.py::test_reading_on_from_a_number_needs_none",
    "image stored, no `env.json`": "test_prepared_images.py::"
    "test_a_host_that_lacks_the_image_takes_it_from_the_archive",
    "gc between a batch's objects": "test_keep.py::test_a_gc_that_was_cut_off_is_finished",
    "inbox closed, no seal": "1 create (inbox/0 1 after|journal/6 1 (before|staged))",
    "`sealed`, marker still there": "1 (create journal/6 1 after|delete open 1 before)",
    "`sealed`, containers still there": "1 container remove agent-keeper 1",
    "`yielded`, lease not released": "1 redis release lease 1",
    "worker host gone for good": "faults/test_engine_faults.py::test_a_lost_host_s_run_goes_on_elsewhere",
    "an engine killed in a call": "faults/test_engine_faults.py::test_an_engine_that_dies_in_a_call_rolls_it_back",
    "an engine that does not answer before a claim": "faults/test_engine_faults.py::"
    "test_an_engine_that_is_away_does_not_count_against_runs",
    "an engine that created, its answer lost": "faults/test_engine_faults.py::"
    "test_what_a_wrong_answer_leaves_is_the_janitor_s",
    "containerd killed": "faults/test_engine_faults.py::"
    "test_a_containerd_that_dies_in_a_call_is_never_read_as_success",
    "host and engine's disk lost": "faults/test_engine_faults.py::test_a_lost_host_s_run_goes_on_elsewhere",
    "a third signal to a worker, or out of time while it ends": "faults/test_process_faults.py::"
    "test_a_worker_that_is_told_again_and_again_leaves",
    "a second Ctrl-C on a command with a stack of its own": "faults/test_command_faults.py::"
    "test_ctrl_c_twice_keeps_what_is_done_and_cancels_the_rest",
    "parked for a provider, containers still there": "test_provider_waits.py::"
    "test_an_outage_parks_the_run_and_it_goes_on_where_it_was",
    "hold set, Redis wiped": "test_models_held.py::test_without_redis_the_provider_s_own_word_counts",
    "worker dead, its model program alive": "test_models_own.py::test_a_program_that_is_late_ends_with_its_children",
    "a message that cannot be read": "faults/test_store_faults.py::"
    "test_a_torn_message_ends_its_waiting_runs_and_stops_no_other",
    "summary received, no `compacted`": "test_lost_reply.py::test_a_lost_summary_is_counted_like_any_reply",
    "`compacted`, no reply yet": "test_compaction.py::test_a_summary_of_no_use_replaces_nothing",
    "export cut off": "test_exports.py::test_an_export_that_is_killed_leaves_what_was_there",
    "import cut off": "test_bundle.py::test_an_import_that_was_cut_off_is_completed",
    "the embedded stack's owner": "test_end_to_end.py::test_a_killed_command_is_finished_by_the_next",
    "a scheduler between seal and marker": "scheduler (create journal/1 1 after|delete open 1 before)",
    "Redis at its maxmemory": "faults/test_redis_faults.py::"
    "test_a_full_redis_refuses_new_runs_and_keeps_running_ones",
    "Redis wiped": "test_tick.py::test_a_wiped_redis_seals_and_takes_nothing_over_for_one_lease_time",
    "the archive is away": "test_hosting.py::test_a_store_that_is_away_for_a_moment_is_waited_for",
    "a writer of an archive": "create journal/[0-9]+ 1 staged",
    "a candidate waits for the first one's commands: `task.json` and marker, no segment 0": "test_followers.py::"
    "test_whoever_dies_at_any_write_is_completed",
    "worker dead in a build of a Dockerfile": "test_base_image.py::test_a_build_that_is_cut_off_leaves_nothing",
    "`dawn report --static` over its own folder": "test_web_static.py::"
    "test_an_export_that_is_killed_is_finished_by_the_next",
    "the pages' process killed": "test_web_command.py::test_pages_beside_a_stack_come_back_on_their_address",
    "delegate at work": "test_delegate.py::test_whoever_dies_at_any_write_of_a_delegate_is_followed",
    "estimate reserved, worker dead": "test_purse.py::test_a_takeover_counts_the_lost_call_once",
    "reply committed, its counter not told": "test_purse.py::test_redis_away_after_an_answer_loses_no_answer",
    "Redis wiped under a budget": "test_purse.py::test_a_wipe_in_the_middle_lets_no_more_through",
    "whoever folds a counter dies": "test_counters.py::test_two_folds_of_one_wipe_agree",
    "marker of a day, no call": "test_purse.py::test_the_next_day_has_a_budget_of_its_own",
    "worker dead while it waits for a turn": "test_pace.py::test_what_waits_ends_by_the_clock_of_redis",
    "Redis wiped under a rate": "test_pace.py::test_a_wiped_redis_starts_anew",
}
"""Row of the crash table in ARCHITECTURE.md -> the points that are it, or a test of its own."""


def crash_table() -> list[str]:
    """First cells of the crash table."""
    text = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text()
    [table] = re.findall(r"^\| point \|.*?\n\n", text, re.MULTILINE | re.DOTALL)
    return [line.split("|")[1].strip() for line in table.splitlines()[2:] if line]


def test_every_row_of_the_crash_table_has_its_proof() -> None:
    """And every proof its row; tests that are named are there."""
    assert sorted(TABLE) == sorted(crash_table())
    named = [proof.split("::") for proof in TABLE.values() if "::" in proof]
    tests = Path(__file__).parents[1]
    assert [test for path, test in named if f"def {test}(" not in (tests / path).read_text()] == []


def test_every_point_of_the_crash_table_was_tried(night: Night) -> None:
    """What the table says of points is what these runs lived through; what only a submit has, the next test tries."""
    if night.yard.seed != DEFAULT.seed:
        pytest.skip("the table names points of the first seed; other seeds take other sides of an act")
    tried = [point for fate in night.fates.values() for point in fate.points]
    assert {
        row: proof
        for row, proof in TABLE.items()
        if "::" not in proof and not _only_of_a_submit(proof)
        if not any(re.search(proof, point) for point in tried)
    } == {}


def _only_of_a_submit(proof: str) -> bool:
    return proof.startswith("dawn create (")


@pytest.mark.full
def test_a_submit_killed_at_any_write_is_completed_by_the_next(tmp_path: Path) -> None:
    """SIGKILL before, in and after each write of `dawn submit`: the same command again completes it to what it would
    have been, and a third one changes nothing."""
    yard = Yard(tmp_path, 1)
    yard.valkey.start()
    archive = yard.deployment.archive

    def words(name: str) -> list[str]:
        return ["submit", str(tmp_path / f"agent-{name}.json"), "--detach"]

    def manifest(name: str) -> None:
        yard.manifest("agent", SHARED, [name])
        (tmp_path / "sources" / name / "own").write_text(name)  # a source of its own

    def kept(name: str) -> dict[str, bytes]:
        [batch] = [batch for batch in archive.folders("batches/") if f'/{name}"' in _text(archive, batch)]
        [run] = [run for run in yard.deployment.runs() if run.startswith(f"{name}-")]
        marks = (key for key in archive.list("work/") if key.endswith(f"/{run}"))
        found = [*archive.list(f"batches/{batch}/"), *archive.list(f"runs/{run}/"), f"open/{run}", *marks]
        return {
            re.sub("^work/[0-9a-f]+", "work", key.replace(batch, "BATCH").replace(run, "RUN")): archive.get(key)
            for key in found
        }

    try:
        manifest("calm-0")
        assert yard.commands(("calm-0", Fate(), words("calm-0"))) == [0]
        calm = kept("calm-0")
        [run] = yard.deployment.runs()
        passed = [*yard.passed("calm-0"), *yard.passed(run)]
        names = {f"shot-{number}": point for number, point in enumerate(dict.fromkeys(passed), start=1)}
        for name in names:
            manifest(name)
        shots = [(name, Fate((point,)), words(name)) for name, point in names.items()]
        codes = yard.commands(*[command for shot in shots for command in (shot, shot)])
        assert codes == [-signal.SIGKILL, 0] * len(shots)
        before = {name: kept(name) for name in names}
        assert [names[name] for name, found in before.items() if found.keys() != calm.keys()] == []
        assert yard.commands(*shots) == [0] * len(shots)
        assert {name: kept(name) for name in names} == before
        assert len(list(archive.list("sources/"))) == len(names) + 1
        assert all(
            any(re.search(proof, point) for point in passed) for proof in TABLE.values() if _only_of_a_submit(proof)
        )
    finally:
        yard.valkey.kill()


def _text(archive: Archive, batch: str) -> str:
    return archive.get(keys.batch_manifest(batch)).decode()
