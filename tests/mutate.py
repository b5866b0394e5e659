"""Owns the guards of the protocol as texts that can be taken away, and the tests that must then turn red. Refuses to
touch the tree it stands in: it works on a copy.

    python tests/mutate.py [part of a guard's name ...]

First the named tests must pass on the untouched copy. Then one guard at a time is removed and its tests run, quickest
first, until one is red. Exit code 1 when a guard can be removed and nobody notices. Tests of guards that only a real
engine shows need one, and the images.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
LIMIT_S = 900
"""A test that takes longer under a mutation hangs in it, which is as red as it gets."""

SKIPPED = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", ".hypothesis", "node_modules")


@dataclass(frozen=True)
class Edit:
    """In file, old becomes new. old stands there exactly once, or the mutation has gone stale."""

    file: str
    old: str
    new: str

    def applied(self, root: Path) -> str:
        """The file with the guard removed. Raises ValueError when the mutation has gone stale."""
        text = (root / self.file).read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} holds {text.count(self.old)} times: {self.old!r}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Guard:
    """edits: all of the places that hold it. tests: pytest ids relative to tests/, quickest first."""

    name: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


def guard(name: str, file: str, old: str, new: str, *tests: str) -> Guard:
    """A guard in one place."""
    return Guard(name, (Edit(file, old, new),), tests)


HERE = "test_guards.py::test_"
GUARDS = (
    # Create-only
    Guard(
        "create-only: a folder",
        (
            Edit("worker/store/local.py", "            if os.path.lexists(path):", "            if False:"),
            Edit("worker/store/local.py", "os.link(staged, path)", "os.replace(staged, path)"),
        ),
        ("test_conform_archive.py::test_first_create_wins", "test_journal.py::test_one_writer_of_each_segment"),
    ),
    guard(
        "create-only: a bucket",
        "worker/store/s3.py",
        'Body=data, IfNoneMatch="*",',
        "Body=data,",
        "test_conform_archive.py::test_first_create_wins",
        "test_conform_archive.py::test_one_winner_of_16",
    ),
    guard(
        "create-only: a large object in a bucket",
        "worker/store/s3.py",
        'MultipartUpload={"Parts": parts}, IfNoneMatch="*")',
        'MultipartUpload={"Parts": parts})',
        f"{HERE}a_large_object_that_came_first_stays",
    ),
    guard(
        "create-only: the look at start",
        "worker/store/archive.py",
        'if not first or second or kept != b"first":',
        "if False:",
        "test_conform_archive.py::test_probe_refuses_a_store_that_ignores_conditions",
    ),
    # Leases
    guard(
        "lease token compare: claim and heartbeat",
        "worker/store/hints.py",
        "if holder and holder ~= ARGV[1] then return 0 end\n",
        "",
        "test_conform_hints.py::test_a_lease_has_one_holder",
        "test_hints.py::test_extend_keeps_sets_again_or_loses",
    ),
    guard(
        "lease token compare: release",
        "worker/store/hints.py",
        "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end\n",
        "",
        "test_conform_hints.py::test_a_lease_is_released_by_its_holder_only",
    ),
    # The journal
    guard(
        "sealed check: before an append",
        "worker/store/journal.py",
        "        if run.sealed is not None:\n            raise ConflictFault",
        "        if False:\n            raise ConflictFault",
        "test_journal.py::test_nothing_follows_the_seal",
    ),
    Guard(
        "sealed check: in the append retry of a claim",
        (
            Edit(
                "worker/ledger.py", "isinstance(record.event, Claimed | Sealed)", "isinstance(record.event, Claimed)"
            ),
            Edit("worker/ledger.py", "    if run.sealed is not None:\n        return False\n", ""),
            Edit("worker/store/journal.py", "        if run.sealed is not None:\n", "        if False:\n"),
        ),
        (f"{HERE}a_claim_that_meets_the_seal_is_not_made",),
    ),
    guard(
        "sealed check: in the append retry of the scheduler",
        "scheduler/seal.py",
        "while run.sealed is None and run.claims == claims:",
        "while run.claims == claims:",
        f"{HERE}a_scheduler_that_meets_the_seal_leaves_it",
    ),
    guard(
        "later claim: the scheduler does not seal over it",
        "scheduler/seal.py",
        "while run.sealed is None and run.claims == claims:",
        "while run.sealed is None:",
        "test_tick.py::test_a_claim_that_came_first_is_not_sealed_over",
    ),
    guard(
        "later claim: met under one's own number",
        "worker/ledger.py",
        "isinstance(record.event, Claimed | Sealed)",
        "isinstance(record.event, Sealed)",
        f"{HERE}of_two_that_saw_the_run_free_one_claims",
    ),
    guard(
        "later claim: the look at the tail after a regained lease",
        "worker/ledger.py",
        "if not current and self.journal",
        "if False and self.journal",
        f"{HERE}after_a_regained_lease_the_journals_tail_is_looked_at",
    ),
    guard(
        "own nonce: read after a conflict",
        "worker/store/journal.py",
        "            if lines[0][0].nonce != nonce:\n",
        "            if True:\n",
        "test_journal.py::test_a_lost_answer_is_recognised_by_its_nonce",
    ),
    guard(
        "own nonce: the same one in each try",
        "worker/ledger.py",
        "at=self._now(), nonce=nonce,",
        "at=self._now(), nonce=secrets.token_hex(16),",
        f"{HERE}an_answer_that_was_lost_is_known_by_its_nonce",
    ),
    # Calls
    guard(
        "snapshot before segment",
        "worker/ledger.py",
        "stored = self.patiently(lambda: self.journal.put_snapshot(path))",
        "data = path.read_bytes(); "
        "stored = __import__('hashlib').sha256(data).hexdigest(); "
        "__import__('threading').Timer(1, self.journal.put_snapshot, [data]).start()",
        f"{HERE}what_a_segment_names_is_stored_before_it",
        "test_hosting.py::test_the_segment_is_written_last",
    ),
    guard(
        "output before segment",
        "worker/hosting.py",
        "self._ledger.put_blob(output)",
        "__import__('threading').Timer(1, self._ledger.put_blob, [output.read_bytes()]).start()",
        f"{HERE}what_a_segment_names_is_stored_before_it",
        "test_hosting.py::test_the_segment_is_written_last",
    ),
    guard(
        "outside calls: recorded before they start",
        "worker/hosting.py",
        "if any(command.outside for command in work):",
        "if False:",
        f"{HERE}an_outside_call_is_recorded_before_it_starts",
    ),
    guard(
        "outside calls: not repeated",
        "worker/loop.py",
        "if host.run.called == call.id:",
        "if False:",
        f"{HERE}an_outside_call_is_not_repeated_by_a_takeover",
    ),
    guard(
        "racy entries: read again",
        "sandbox_images/toolbox/walk.py",
        " and found.st_ctime_ns < racy_ns:",
        ":",
        "test_keeper_program.py::test_a_clock_that_has_not_moved_hides_no_write",
    ),
    guard(
        "restore: the walk after it",
        "sandbox_images/toolbox/keeper.py",
        "        self._walker.last = walk\n        return {**_found(walk, walk)",
        "        return {**_found(walk, walk)",
        "test_keeper_program.py::test_a_chain_of_snapshots_restores_exactly",
    ),
    guard(
        "spool bound: what is reserved fits",
        "worker/spool.py",
        "if self._held and self._held + size > self._limit_bytes:",
        "if False:",
        "test_spool.py::test_one_that_is_larger_than_the_spool_goes_alone",
        "test_spool.py::test_what_does_not_fit_waits_until_it_does",
    ),
    guard(
        "spool bound: no call begins without room",
        "worker/hosting.py",
        "if not self._ledger.has_room(self._task.limits.output_kept_bytes):",
        "if False:",
        f"{HERE}a_call_begins_when_the_spool_has_room",
        "test_hosting.py::test_a_full_spool_lets_no_call_begin",
    ),
    guard(
        "spool bound: an output counts while it waits",
        "worker/ledger.py",
        "with self._spool.hold(len(data) if isinstance(data, bytes) else data.stat().st_size):",
        "if True:",
        f"{HERE}what_waits_for_the_store_is_counted",
        "test_hosting.py::test_what_waits_is_counted_until_it_is_stored",
    ),
    # What is left of earlier attempts
    guard(
        "earlier claims: removed by the claimer",
        "worker/attempt.py",
        "sweep(self.station.archive, self.station.archive_id, self.station.sandbox, run=self.run_id)",
        "pass",
        f"{HERE}the_claimer_removes_what_earlier_claims_left",
    ),
    guard(
        "janitor: an earlier claim is not the current one",
        "worker/janitor.py",
        "    if run.attempt is not None and claim < run.attempt:\n        return False\n",
        "",
        f"{HERE}the_janitor_spares_the_current_attempt_alone",
    ),
    guard(
        "janitor: the current attempt lives",
        "worker/janitor.py",
        'return run.status == "running" or claim > run.last_seq',
        "return False",
        f"{HERE}the_janitor_spares_the_current_attempt_alone",
    ),
    guard(
        "janitor: our label alone",
        "worker/sandbox/sandbox.py",
        'if labels.get(shape.LABEL) != "1":',
        "if False:",
        "test_sandbox_workspace.py::test_a_stranger_s_container_and_volume_are_refused",
    ),
    guard(
        "janitor: this archive's label alone",
        "worker/sandbox/sandbox.py",
        '{shape.LABEL: "1", f"{shape.LABEL}.archive": archive}',
        '{shape.LABEL: "1"}',
        f"{HERE}the_janitor_is_told_of_its_own_archive_alone",
    ),
    # People
    guard(
        "decision digest",
        "worker/mailbox.py",
        "if call is None or not made.binding == asked.binding == policy.binding(call, run):",
        "if call is None:",
        f"{HERE}an_approval_of_something_else_runs_nothing",
    ),
    Guard(
        "inbox: closed before the seal",
        (
            Edit("worker/store/mail.py", "    Inbox(archive, run.id).end(run.inbox_seen, by=by, at=at)\n", ""),
            Edit("worker/store/mail.py", "inbox=mail.inbox[:-1]", "inbox=mail.inbox"),
        ),
        (f"{HERE}the_inbox_is_closed_before_the_seal", "test_tick.py::test_a_message_after_the_end_is_refused"),
    ),
    # The plan
    guard(
        "doorbells: no more than free slots",
        "scheduler/planning/plan.py",
        "return min(slots.free - fresh, slots.total + SPARE_DOORBELLS - len(ages))",
        "return slots.total + SPARE_DOORBELLS - len(ages)",
        f"{HERE}a_doorbell_is_rung_for_a_free_slot_alone",
    ),
    guard(
        "doorbells: outstanding ones",
        "scheduler/planning/plan.py",
        "return min(slots.free - fresh, slots.total + SPARE_DOORBELLS - len(ages))",
        "return slots.free - fresh",
        f"{HERE}doorbells_that_nobody_answers_do_not_pile_up",
    ),
    guard(
        "waves: the one before has ended",
        "scheduler/planning/plan.py",
        "if not run.begun and run.wave > group.wave:",
        "if False:",
        "test_waves.py::test_a_wave_begins_when_all_before_it_have_ended",
    ),
    guard(
        "breaker: nothing more is begun",
        "scheduler/planning/plan.py",
        "if not run.begun and group.tripped:",
        "if False:",
        "test_waves.py::test_too_many_failures_and_nothing_more_is_begun",
    ),
    guard(
        "turns: who slept has saved nothing",
        "scheduler/planning/turns.py",
        "max(self.served.get(share, 0.0) - floor, 0.0)",
        "self.served.get(share, 0.0)",
        "test_fairness.py::test_who_slept_has_saved_nothing",
    ),
    guard(
        "solo lane",
        "scheduler/planning/plan.py",
        'return "solo" if run.orphan and run.barren_claims >= SOLO_AFTER_BARREN_CLAIMS else "main"',
        'return "main"',
        "test_plan.py::test_two_barren_claims_lead_to_the_solo_lane",
    ),
    guard(
        "solo lane: the end after it",
        "scheduler/planning/plan.py",
        "if run.orphan and run.barren_claims >= LOST_AFTER_BARREN_CLAIMS:",
        "if False:",
        "test_plan.py::test_three_barren_claims_end_a_run",
        "test_tick.py::test_a_run_that_killed_three_claimers_ends",
    ),
    # Models
    guard(
        "a reply lost with its worker is counted",
        "worker/attempt.py",
        "before = self.ledger.claim(claimed, self._lost)",
        "before = self.ledger.claim(claimed)",
        "test_histories.py::test_a_reply_that_dies_with_its_worker_is_counted",
    ),
    guard(
        "a run that waits for its provider is left alone",
        "worker/contract/run.py",
        'not_before = None if event.waiting in ("approval", "question") else event.until',
        "not_before = None",
        "test_histories.py::test_a_busy_provider_is_left_alone",
    ),
    # The goal of a long run
    guard(
        "goal: a summary leaves the first message alone",
        "worker/context.py",
        "self._replace([*self._messages[: self._head], message, *kept])",
        "self._replace([message, *kept])",
        "test_compaction.py::test_a_run_of_300_steps_still_has_its_first_message",
    ),
    guard(
        "goal: said again",
        "worker/context.py",
        "        self._append(self._reminder())",
        "        pass",
        "test_compaction.py::test_a_run_of_300_steps_still_knows_its_goal",
    ),
    # Delegates
    guard(
        "delegate: nothing is told twice",
        "worker/delegate.py",
        "if record.seq > max(told, default=-1))",
        "if record.seq > -1)",
        "test_delegate.py::test_the_run_pays_for_its_delegate_once",
    ),
    guard(
        "delegate: what a dead attempt did not tell",
        "worker/attempt.py",
        "        take_stock(before, self.ledger, self.station)\n",
        "",
        "test_delegate.py::test_a_run_that_is_cancelled_at_its_takeover_has_paid_for_its_delegate",
    ),
    guard(
        "delegate: no reply of its run can be on its way",
        "worker/lost_reply.py",
        " and before.pending[0].name != Delegate.name",
        "",
        "test_delegate.py::test_a_reply_that_was_lost_with_its_worker_is_counted",
    ),
    guard(
        "delegate: its pen has its run's term",
        "worker/delegate.py",
        "        self.ledger.check()\n        return True",
        "        return True",
        "test_delegate.py::test_a_delegates_pen_has_its_runs_term",
    ),
    guard(
        "delegate: its lines are what its run names",
        "worker/store/evidence.py",
        'found |= dict.fromkeys(_line_problems(archive, key, event.hash, "its run"))',
        "pass",
        "test_delegate.py::test_a_delegates_journal_that_was_replaced_is_noticed",
    ),
    guard(
        "delegate: a read-only workspace",
        "worker/tools/shell.py",
        'writes = self.effect == "write"',
        "writes = True",
        "test_delegate.py::test_what_a_delegate_writes_is_not_there",
    ),
    # Money
    guard(
        "money: what is reserved counts",
        "worker/store/counters.py",
        "if spent + reserved >= limit then",
        "if spent >= limit then",
        "test_counters.py::test_the_last_call_may_pass_the_limit",
        "test_counters.py::test_the_sum_passes_the_limit_by_one_call_at_most",
    ),
    guard(
        "money: a counter is folded first",
        "worker/store/counters.py",
        "  if not folded(level) then return {'missing', level, 0} end\n",
        "",
        "test_counters.py::test_a_level_is_folded_before_anybody_spends_by_it",
        "test_counters.py::test_the_sum_passes_the_limit_by_one_call_at_most",
    ),
    guard(
        "money: a fold begun before a wipe",
        "worker/store/counters.py",
        "if redis.call('HGET', counter(level), 'wiped') ~= ARGV[3] then return 0 end\n",
        "",
        "test_counters.py::test_a_fold_begun_before_a_wipe_is_refused",
    ),
    guard(
        "money: a fold knows of calls in flight",
        "worker/store/counters.py",
        "if estimate > 0 and known <= part then",
        "if false then",
        "test_counters.py::test_a_fold_knows_of_calls_in_flight",
        "test_counters.py::test_the_sum_passes_the_limit_by_one_call_at_most",
    ),
    guard(
        "money: a later attempt's reservation",
        "worker/store/counters.py",
        "if held <= number(attempt) then",
        "if true then",
        "test_counters.py::test_an_attempt_that_was_overtaken_frees_nothing",
    ),
    guard(
        "money: a call is over when it is committed",
        "worker/purse.py",
        "if self._levels and not self._in_flight_microusd:",
        "if self._levels:",
        "test_purse.py::test_a_takeover_counts_the_lost_call_once",
    ),
    guard(
        "money: an answer that nobody heard",
        "worker/loop.py",
        "if fault.unheard_microusd is not None:",
        "if False:",
        "test_purse.py::test_an_answer_that_nobody_heard_may_have_been_paid_for",
    ),
    guard(
        "money: a call across midnight",
        "worker/purse.py",
        "return {self.station.now()[:10], self.station.later(timeout_s)[:10]}",
        "return {self.station.now()[:10]}",
        "test_purse.py::test_a_call_that_may_end_after_midnight_is_both_days",
    ),
    guard(
        "money: an unknown price is refused",
        "worker/purse.py",
        "if estimate is None and limits:",
        "if False:",
        "test_purse.py::test_a_budget_needs_a_price",
    ),
    # Retries
    guard(
        "retry: its marker comes before its announcement",
        "worker/store/members.py",
        '    archive.create(keys.announced(batch, number), b"")\n',
        "",
        "test_retry_cut_off.py::test_the_scheduler_writes_what_was_announced",
    ),
    guard(
        "retry: it has read only what came before its announcement",
        "scheduler/retry.py",
        "control=control[: made.told]",
        "control=control",
        "test_retry_cut_off.py::test_a_cancel_behind_the_announcement_ends_the_retry",
    ),
    guard(
        "retry: its first segment is the announcement's, whoever writes it",
        "scheduler/retry.py",
        "    if task.ordinal >= task.candidates:\n",
        "    if False:\n",
        "test_retry_cut_off.py::test_a_retry_without_its_first_segment_is_not_ended_by_an_old_cancel",
    ),
    guard(
        "retry: the scheduler keeps in mind what it has read",
        "scheduler/planning/backlog.py",
        " and run.control_seen == 0",
        "",
        "test_retry_cut_off.py::test_a_retry_in_a_cancelled_batch_is_begun",
    ),
)


def main(words: Sequence[str]) -> int:
    chosen = [one for one in GUARDS if not words or any(word in one.name for word in words)]
    if not chosen:
        print("no guard is named so; there are:", *(one.name for one in GUARDS), sep="\n  ")
        return 2
    with TemporaryDirectory(prefix="dawnfleet-mutants-") as folder:
        root = Path(folder) / "tree"
        shutil.copytree(ROOT, root, ignore=SKIPPED, symlinks=True)
        tests = dict.fromkeys(test for one in chosen for test in one.tests)
        if red := _red(root, *tests):
            print(f"red without any mutation: {red}")
            return 1
        survived = 0
        print("| guard removed | file | turned red | s |\n|---|---|---|---|", flush=True)
        for one in chosen:
            began = time.monotonic()
            with _mutated(root, one):
                red = next((red for test in one.tests if (red := _red(root, test))), "")
            survived += not red
            files = ", ".join(dict.fromkeys(edit.file for edit in one.edits))
            told = f"`{red}`" if red else "**nothing: it survived**"
            print(f"| {one.name} | {files} | {told} | {time.monotonic() - began:.0f} |", flush=True)
    print(f"\n{len(chosen)} guards, {survived} survived")
    return 1 if survived else 0


@contextmanager
def _mutated(root: Path, one: Guard) -> Iterator[None]:
    """The tree without that guard, and afterwards as before."""
    before = {edit.file: (root / edit.file).read_bytes() for edit in one.edits}
    try:
        for edit in one.edits:
            (root / edit.file).write_text(edit.applied(root))
        yield
    finally:
        for file, data in before.items():
            (root / file).write_bytes(data)


def _red(root: Path, *tests: str) -> str:
    """The first of the tests that fails in the tree, "" when all pass. Raises RuntimeError when none can be run."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-p", "no:cacheprovider"]
    command += [f"tests/{test}" for test in tests]
    # Programs that a test starts must come from the copy too; stale bytecode of the same second must not.
    env = os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"{tests[0]} (does not end)"
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest could not run {' '.join(tests)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    failed = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", done.stdout, re.MULTILINE)
    return (failed[1] if failed else tests[0]) if done.returncode else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
