"""Owns what a fork promises before anybody works on it: its parent's conversation, and nothing changed unasked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from runs_made import AT, Make, audited, claimed, replied

from scheduler.enqueue import submit
from scheduler.fork import ALLOWABLE, Fork, ForkRefused, Wish, fork
from worker.contract.errors import IntegrityFault, InvalidFault, NotFoundFault
from worker.contract.events import (
    Event,
    Failure,
    FedBack,
    Finished,
    Observation,
    Observed,
    Prepared,
    Replied,
    Reply,
    Sealed,
    SnapshotRef,
    Steered,
    Submitted,
    Usage,
    Yielded,
    digest,
)
from worker.contract.fork import LAST
from worker.contract.run import Run
from worker.contract.task import Limits
from worker.store import keys
from worker.store.archive import Archive
from worker.store.journal import SEGMENT_BYTES, Journal

MODEL = {"model": "anthropic/x", "prompt": "Fix the sum.", "commands": ()}
PREPARED = Prepared(
    environment_key="e" * 64, environment=digest(b"env"), commit="c" * 40, image="python", reused=False
)
LIMIT = Failure(cls="limit", reason="steps", detail="2 steps")


def observed(step: int, name: str = "") -> Observed:
    """The result of `replied(step)`, with a snapshot that is a level 0 at the first step."""
    snapshot = SnapshotRef(
        listing=digest(b"l%d" % step), tree=digest(b"t%d" % step), object=digest(name.encode()), level=step - 1
    )
    observation = Observation(call_id=f"c{step}", tool="run_command", status="ok", exit_code=0, output=f"out {step}")
    return Observed(observation=observation, snapshot=snapshot)


def steps(count: int, *, priced: int | None = 10) -> list[Event]:
    """That many whole steps."""
    found: list[Event] = []
    for step in range(1, count + 1):
        found += [replied(step, cost_microusd=priced), observed(step, f"s{step}")]
    return found


@pytest.fixture
def exhausted(make_run: Make) -> Run:
    """A run that was stopped by its limit after two steps; a person had spoken to it."""
    heard = Steered(n=0, kind="message", by="boss", text="hurry")
    first, second = steps(2)[:2], steps(2)[2:]
    return make_run(
        "old",
        claimed(),
        PREPARED,
        *first,
        heard,
        Yielded(why="drain"),
        claimed(),
        *second,
        Finished(text="so far", failure=LIMIT),
        Sealed(outcome="failed", failure=LIMIT),
        limits=Limits(steps=2),
        **MODEL,
    )


def made(archive: Archive, wish: Wish, parent: str = "old", key: str = "k") -> Fork:
    """The fork, submitted."""
    found = fork(archive, parent, wish, key=key)
    submit(found.batch, archive, by="me", at=AT)
    return found


def journal_of(archive: Archive, found: Fork) -> Journal:
    return Journal(archive, found.batch.tasks[0].run)


def more(**fields: Any) -> Wish:
    """A wish with room for more steps."""
    return Wish(**{"limits": {"steps": 40}, **fields})


def everything(archive: Archive) -> dict[str, bytes]:
    return {key: archive.get(key) for key in archive.list("")}


def test_segment_0_names_parent_number_and_hash(archive: Archive, exhausted: Run) -> None:
    """The fork's first line says which line of which run it goes on from."""
    journal = journal_of(archive, made(archive, more()))
    record, _ = next(iter(journal.read()))
    named = {line_hash: record.seq for record, line_hash in Journal(archive, "old").read()}
    assert record.event.parent == "old"  # type: ignore[union-attr]
    assert named[record.event.parent_hash] == record.event.parent_seq  # type: ignore[union-attr, index]


def test_the_conversation_is_copied_and_nothing_else(archive: Archive, exhausted: Run) -> None:
    """Environment, replies, results and people's words come along; claims, yields, the end and the seal do not."""
    journal = journal_of(archive, made(archive, more()))
    assert [record.event.type for record, _ in journal.read()] == [
        "submitted", "prepared", "replied", "observed", "steered", "replied", "observed",
    ]  # fmt: skip


def test_an_exhausted_run_goes_on_under_a_higher_limit(archive: Archive, exhausted: Run) -> None:
    """The limit is accepted, recorded in the task, and the counts go on from where they were (T48)."""
    journal = journal_of(archive, made(archive, more()))
    run = journal.load()
    assert journal.task().limits.steps == 40
    assert (run.steps, run.inherited_steps, run.turn, run.status) == (2, 2, "model", "queued")


def test_what_the_parent_paid_is_not_paid_again(archive: Archive, exhausted: Run) -> None:
    """The fork's own cost starts at nothing, though limits count the whole conversation."""
    run = journal_of(archive, made(archive, more())).load()
    assert (run.cost_microusd, run.spent_microusd) == (20, 0)


def test_the_fork_reads_its_own_inbox_from_the_start(archive: Archive, exhausted: Run) -> None:
    """Messages that the parent had read do not count as read by the fork."""
    assert journal_of(archive, made(archive, more())).load().inbox_seen == 0


def test_its_files_are_the_parents_until_it_has_a_level_0(archive: Archive, exhausted: Run) -> None:
    """The chain names the parent's snapshots; a level 0 of its own takes their place."""
    journal = journal_of(archive, made(archive, more()))
    run = journal.load()
    assert (run.snapshots_of, [taken.level for taken in run.chain]) == ("old", [0, 1])
    own = SnapshotRef(listing=digest(b""), tree=digest(b""), object=digest(b"own"))
    run = journal.append(run, [claimed()], attempt=1, at=AT)
    run = journal.append(run, [PREPARED.model_copy(update={"snapshot": own})], attempt=1, at=AT)
    assert (run.snapshots_of, run.chain) == ("", (own,))


def test_an_earlier_step_leaves_out_what_followed(archive: Archive, exhausted: Run) -> None:
    """Forked at step 1, the fork knows neither step 2 nor the words that were said after step 1."""
    found = made(archive, Wish(step=1))
    types = [record.event.type for record, _ in journal_of(archive, found).read()]
    assert types == ["submitted", "prepared", "replied", "observed"]


def test_a_message_stands_at_the_end(archive: Archive, exhausted: Run) -> None:
    """What the person says is the last thing the model reads, and who said it is kept."""
    journal = journal_of(archive, made(archive, more(message="try the other file")))
    *_, (record, _) = journal.read()
    assert record.event == Steered(n=0, kind="message", by="me", text="try the other file")


def test_step_0_is_the_prepared_environment(archive: Archive, exhausted: Run) -> None:
    """A fork at step 0 has the environment and no conversation."""
    types = [record.event.type for record, _ in journal_of(archive, made(archive, Wish(step=0))).read()]
    assert types == ["submitted", "prepared"]


def test_the_parent_is_never_written(archive: Archive, exhausted: Run) -> None:
    """Not one object of the parent changes, and none is added to it."""
    before = {key: data for key, data in everything(archive).items() if key.startswith("runs/old/")}
    made(archive, more(message="go on"))
    assert {key: data for key, data in everything(archive).items() if key.startswith("runs/old/")} == before


def test_the_same_fork_again_changes_nothing(archive: Archive, exhausted: Run) -> None:
    """Same wish and same key: same run; another key: another run."""
    made(archive, more())
    before = everything(archive)
    made(archive, more())
    assert everything(archive) == before
    made(archive, more(), key="other")
    assert len(list(archive.folders("runs/"))) == 3


def test_a_fork_cut_off_at_its_submit_is_completed_as_a_fork(archive: Archive, exhausted: Run) -> None:
    """Task and marker without segment 0: whoever completes it makes the same segment of task.json."""
    found = made(archive, more(message="go on"))
    journal = journal_of(archive, found)
    whole = [record.event for record, _ in journal.read()]
    archive.delete([keys.segment(journal.run, 0)])
    journal.submit(journal.task(), by="me", at=AT)
    assert [record.event for record, _ in journal.read()] == whole


def test_a_fork_of_a_fork_at_a_copied_step_goes_to_the_run_that_made_it(archive: Archive, exhausted: Run) -> None:
    """Its snapshots lie there; the limits are those of the fork that was named."""
    child = made(archive, more())
    grandchild = journal_of(archive, made(archive, Wish(step=1), parent=child.batch.tasks[0].run))
    run = grandchild.load()
    assert (run.parent, run.snapshots_of, run.steps) == ("old", "old", 1)
    assert grandchild.task().limits.steps == 40


def test_a_sound_fork_verifies_and_names_a_changed_parent(archive: Archive, make_run: Make) -> None:
    """Objects of copied events are looked for where they lie; another line at the fork point is a problem."""
    blob = Journal(archive, "old").put_blob(b"out")
    seen = Observation(call_id="c1", tool="run_command", status="ok", blob=blob)
    make_run("old", claimed(), PREPARED, replied(1), Observed(observation=seen), **MODEL)
    journal = journal_of(archive, made(archive, Wish()))
    problems = journal.verify()
    assert [problem for problem in problems if "environments/" not in problem] == []
    archive.delete([keys.blob("old", blob), keys.segment("old", 4)])
    archive.create(keys.segment("old", 4), b"{}\n")
    said = "\n".join(journal.verify())
    assert keys.blob("old", blob) in said
    assert "does not hold the line that this fork names" in said


@pytest.mark.parametrize(
    ("wish", "name", "told"),
    [
        ({"model": "openai/y"}, "model", "anthropic/x -> openai/y"),
        ({"prompt": "Fix the product."}, "prompt", "'Fix the sum.' -> 'Fix the product.'"),
        ({"without_tools": ("run_command",)}, "tools", "all -> all but run_command"),
    ],
)
def test_other_changes_are_refused_unless_named(
    archive: Archive, exhausted: Run, wish: dict[str, Any], name: str, told: str
) -> None:
    """Another model, text or set of tools is listed and refused; the option that names it lets it through (T48)."""
    before = everything(archive)
    with pytest.raises(ForkRefused) as caught:
        made(archive, more(**wish))
    assert caught.value.lines() == [f"{name}: {told}"]
    assert f"--allow {name}" in caught.value.hint
    assert everything(archive) == before
    task = journal_of(archive, made(archive, more(**wish, allowed=frozenset({name})))).task()
    field = {"tools": "without_tools"}.get(name, name)
    assert getattr(task, field) == wish[field]


def test_all_differences_are_listed_at_once(archive: Archive, exhausted: Run) -> None:
    """Three changes, one of them allowed: the other two are named."""
    wish = more(model="openai/y", prompt="x", without_tools=("read_file",), allowed=frozenset({"prompt"}))
    with pytest.raises(ForkRefused) as caught:
        fork(archive, "old", wish, key="")
    assert [line.partition(":")[0] for line in caught.value.lines()] == ["model", "tools"]
    assert {"model", "tools"} < set(ALLOWABLE)


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        (Wish(), "begins with 2 steps, and its limit is 2"),
        (Wish(limits={"cost_usd": 0.00001}), "its limit is"),
        (Wish(limits={"stepz": 5}), "stepz: is no limit"),
        (Wish(limits={"steps": -1}), "steps: "),
        (more(limits={"model_timeout_s": 1e300}), "model_timeout_s: must be at most 2592000"),
        (more(limits={"working_time_s": 1, "steps": 40}), "longer than"),
    ],
)
def test_limits_that_make_no_sense_are_refused(archive: Archive, exhausted: Run, wish: Wish, told: str) -> None:
    """A limit that would stop the fork at once, or is none, is an error before anything is written."""
    with pytest.raises(InvalidFault, match=told):
        fork(archive, "old", wish, key="")


def test_a_step_that_is_not_there_is_named(archive: Archive, exhausted: Run) -> None:
    """The last step is told."""
    with pytest.raises(NotFoundFault) as caught:
        fork(archive, "old", more(step=3), key="")
    assert "the last one is 2" in caught.value.hint


def test_a_run_that_was_never_prepared_cannot_be_forked(archive: Archive, make_run: Make) -> None:
    """There is nothing to go on from."""
    make_run("old", claimed(), **MODEL)
    with pytest.raises(NotFoundFault, match="no prepared environment"):
        fork(archive, "old", Wish(), key="")


def test_the_agents_last_word_needs_an_answer(archive: Archive, make_run: Make) -> None:
    """After the agent said it was done, a fork without a message has nothing to do; red checks are one."""
    done = Replied(step=3, phase="model", reply=Reply(text="done", usage=Usage(output_tokens=1)))
    run = make_run("old", claimed(), PREPARED, *steps(2), done, Finished(text="done"), **MODEL)
    with pytest.raises(InvalidFault, match="last word"):
        fork(archive, "old", Wish(), key="")
    assert fork(archive, "old", Wish(message="more"), key="").step == 3
    Journal(archive, "old").append(run, [FedBack(text="still red")], attempt=1, at=AT)
    assert fork(archive, "old", Wish(step=LAST), key="").step == 3


def test_a_run_without_a_model_reads_no_message(archive: Archive, make_run: Make) -> None:
    """Words for nobody are refused."""
    make_run("old", claimed(), PREPARED, *steps(1))
    with pytest.raises(InvalidFault, match="no model"):
        fork(archive, "old", Wish(message="hi"), key="")


def test_a_conversation_too_large_for_a_segment_is_refused_before_anything_is_written(
    archive: Archive, make_run: Make
) -> None:
    """The copy would not be readable, so it is not begun."""
    large = [replied(step, text="x" * (SEGMENT_BYTES // 2)) for step in (1, 2)]
    make_run("old", claimed(), PREPARED, *large, **MODEL)
    found = fork(archive, "old", Wish(limits={"tokens": 10**9}), key="")
    with pytest.raises(InvalidFault, match="bytes, over"):
        submit(found.batch, archive, by="me", at=AT)
    assert list(archive.folders("runs/")) == ["old"]


def torn(archive: Archive, run: str, seq: int) -> bytes:
    """Cut a segment in the middle, as a faulty store would; returns what it was."""
    key = keys.segment(run, seq)
    whole = archive.get(key)
    archive.delete([key])
    archive.create(key, whole[: len(whole) // 2])
    return whole


def test_a_torn_newest_segment_is_forked_at_the_last_sound_step(archive: Archive, make_run: Make) -> None:
    """The damage is told, what is before it goes on, and nothing of it is read as valid (T46)."""
    run = make_run("old", claimed(), PREPARED, *steps(2), **MODEL)
    torn(archive, "old", run.last_seq)
    found = made(archive, Wish(step=1))
    assert journal_of(archive, found).load().steps == 1
    # Step 2 has its reply; only what came of its call is lost, and the fork runs that call again.
    found = made(archive, Wish())
    assert "is torn" in found.notes[0]
    forked = journal_of(archive, found).load()
    assert (forked.steps, [call.id for call in forked.pending]) == (2, ["c2"])


def test_a_run_with_a_torn_segment_is_ended_in_sight(archive: Archive, make_run: Make) -> None:
    """Sealed as infra/store by a seal that names it: load tells so, verify names it, the fork works (T46)."""
    run = make_run("old", claimed(), PREPARED, *steps(2), **MODEL)
    journal = Journal(archive, "old")
    torn(archive, "old", run.last_seq)
    with pytest.raises(IntegrityFault, match="is torn"):
        journal.load()
    assert journal.seal_damaged(AT) is not None
    sealed = journal.load().sealed
    assert sealed is not None
    assert (str(sealed.failure), sealed.damaged) == ("infra/store", run.last_seq)
    assert keys.segment("old", run.last_seq) in journal.verify()[0]
    assert made(archive, Wish(step=1)).step == 1


def test_damage_in_the_middle_is_ended_behind_the_last_number(archive: Archive, make_run: Make) -> None:
    """What follows the damage is neither read nor overwritten; the seal comes after it."""
    run = make_run("old", claimed(), PREPARED, *steps(2), **MODEL)
    torn(archive, "old", 3)
    sealed = Journal(archive, "old").seal_damaged(AT)
    assert sealed is not None
    assert (sealed.last_seq, sealed.sealed and sealed.sealed.damaged) == (run.last_seq + 1, 3)
    assert Journal(archive, "old").load() == sealed


def test_a_seal_that_names_other_damage_hides_nothing(archive: Archive, make_run: Make) -> None:
    """An earlier segment that breaks after the seal is raised, not passed over."""
    run = make_run("old", claimed(), PREPARED, *steps(2), **MODEL)
    torn(archive, "old", run.last_seq)
    Journal(archive, "old").seal_damaged(AT)
    torn(archive, "old", 2)
    with pytest.raises(IntegrityFault, match=r"000000002\.jsonl is torn"):
        Journal(archive, "old").load()


def test_only_damage_is_sealed_so(archive: Archive, make_run: Make, exhausted: Run) -> None:
    """A sound run is left alone, and so is one that was sealed before a segment of it broke."""
    make_run("sound", claimed(), **MODEL)
    before = everything(archive)
    assert Journal(archive, "sound").seal_damaged(AT) is None
    torn(archive, "old", 3)
    assert Journal(archive, "old").seal_damaged(AT, "its mail is torn") is None
    assert len(everything(archive)) == len(before)


def test_the_forks_batch_is_listed_and_bound(archive: Archive, exhausted: Run) -> None:
    """targets.json names the run, and the manifest says what was forked."""
    found = made(archive, more(message="on"))
    manifest = json.loads(archive.get(keys.batch_manifest(found.batch.id)))
    assert (manifest["fork"]["run"], manifest["fork"]["step"], manifest["fork"]["message"]) == ("old", 2, "on")
    targets = json.loads(archive.get(keys.batch_targets(found.batch.id)))
    assert targets["manifest"] == digest(found.batch.manifest)


def test_the_auditors_program_follows_a_fork(archive: Archive, exhausted: Run) -> None:
    """It finds with the parent what was copied from it, and names what is wrong there."""
    for number in (1, 2):
        Journal(archive, "old").put_snapshot(f"s{number}".encode())
    journal = journal_of(archive, made(archive, more()))
    assert audited(archive, journal.run) == (0, "")
    first = next(iter(journal.read()))[0].event
    assert isinstance(first, Submitted)
    torn(archive, "old", first.parent_seq or 0)
    code, said = audited(archive, journal.run)
    assert (code, said.rpartition("/")[2]) == (1, f"{first.parent_seq:09d}.jsonl was changed")


def test_the_auditors_program_names_what_a_parent_lost(archive: Archive, exhausted: Run) -> None:
    """A snapshot that was never stored is missed, wherever it should lie."""
    Journal(archive, "old").put_snapshot(b"s1")
    code, said = audited(archive, journal_of(archive, made(archive, more())).run)
    assert (code, said) == (1, f"snapshots/{digest(b's2')} was changed")
