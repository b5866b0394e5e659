"""An attempt, from lease to seal, on the real engine, a real Redis and a local archive."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nights import FIX, LIMITS, Night, types
from sandboxes import ARCHIVE

from worker import attempt
from worker.contract.cancel import Cancel
from worker.contract.errors import EngineFault, FencedFault, StoreFault
from worker.contract.events import Claimed, Failure, Observed, Prepared, Replied, Sealed
from worker.contract.guards import Guards
from worker.contract.redact import Redactor
from worker.contract.script import parse_script
from worker.contract.task import Check, Environment, OwnTool, Task
from worker.lease import Lease
from worker.ledger import Ledger, masked
from worker.models.scripted import ScriptedModel
from worker.sandbox.protocol import Owner
from worker.sandbox.sandbox import DockerSandbox
from worker.station import utc_now
from worker.store import keys
from worker.store.inbox import Inbox
from worker.store.journal import Journal
from worker.store.local import LocalArchive

pytestmark = pytest.mark.docker


def test_a_scripted_fix_ends_changed_and_verified(night: Night) -> None:
    """A run whose checks turn green is sealed as changed/verified, with its patch and summary stored."""
    journal = night.submit()
    assert night.work() == "sealed"
    run = journal.load()
    assert run.sealed is not None
    assert (run.sealed.outcome, run.sealed.verdict, run.sealed.failure) == ("changed", "verified", None)
    assert b"+42" in journal.get_blob(run.sealed.artifacts["patch.diff"])
    assert {"patch.diff", "summary.md"} <= set(run.sealed.artifacts)


def test_a_sealed_run_leaves_no_marker_and_no_container(night: Night) -> None:
    """After the seal the open marker, every container and every volume of the run are gone."""
    night.submit()
    night.work()
    assert list(night.archive.list("open/")) == []
    assert night.leftovers() == []


def test_a_sealed_journal_verifies(night: Night) -> None:
    """Every digest and link that a finished run's journal names is sound."""
    journal = night.submit()
    night.work()
    assert journal.verify() == []


def test_a_second_doorbell_finds_the_run_ended(night: Night) -> None:
    """A doubled doorbell changes nothing."""
    journal = night.submit()
    night.work()
    before = types(journal)
    assert night.work() == "not_due"
    assert types(journal) == before


def test_a_doorbell_for_a_held_run_returns_at_once(night: Night) -> None:
    """While an attempt holds the lease, another claims nothing."""
    journal = night.submit()
    with Lease(night.station.hints, "run:run-1", night.station.settings, Cancel()):
        assert night.work() == "held"
    assert types(journal) == ["submitted"]


def test_a_doorbell_for_an_unknown_run_does_nothing(night: Night) -> None:
    """A run id that the archive does not know is only logged."""
    assert night.work("run-nobody") == "unknown"


def test_no_patch_and_green_checks_are_no_change_verified(night: Night) -> None:
    """An agent that changes nothing where checks are green ends as no_change/verified."""
    checks = (Check(name="answer", command="grep -q 41 answer.txt"),)
    journal = night.submit(script="- text: Nothing to do.", checks=checks)
    night.work()
    sealed = journal.load().sealed
    assert sealed is not None
    assert (sealed.outcome, sealed.verdict) == ("no_change", "verified")


def test_red_checks_are_fed_back_at_most_twice(night: Night) -> None:
    """A model that says it is done while checks are red reads them twice, then the verdict stands."""
    script = "- calls: [{tool: write_file, arguments: {path: note, content: x}}]\n- text: Done."
    journal = night.submit(script=script)
    night.work()
    assert types(journal).count("fed_back") == 2
    sealed = journal.load().sealed
    assert sealed is not None
    assert (sealed.outcome, sealed.verdict) == ("changed", "still_failing")


def test_what_a_patch_may_not_do_is_told_once_and_then_ends_the_run(night: Night) -> None:
    """Green checks, a patch over its guards: the model reads it once; when it leaves it so, the run is refused, and
    patch and verdict are kept. What it claims against the evidence stands in the seal."""
    journal = night.submit(
        script=f"{FIX}- text: I updated other.py. All tests pass.",
        guards=Guards(protected=("answer.txt",), max_files=3),
    )
    night.work()
    run = journal.load()
    assert types(journal).count("fed_back") == 1
    assert run.sealed is not None
    assert (run.sealed.outcome, run.sealed.verdict) == ("failed", "verified")
    assert run.sealed.failure == Failure(cls="refused", reason="guard", detail="answer.txt is protected (answer.txt)")
    assert "patch.diff" in run.sealed.artifacts
    assert [one.evidence for one in run.sealed.contradictions] == ["the patch does not change other.py"]
    assert "does not change other.py" in journal.get_blob(run.sealed.artifacts["summary.md"]).decode()
    assert journal.verify() == []


def test_calls_with_the_network_are_on_record_before_they_start(night: Night) -> None:
    """network full: commands and checks have the engine's bridge, each as a call outside; file tools have not."""
    links = "ls /sys/class/net"
    script = f"""
- calls:
    - {{tool: run_command, arguments: {{command: '{links}'}}}}
    - {{tool: write_file, arguments: {{path: note, content: x}}}}
    - {{tool: run_checks, arguments: {{}}}}
- text: Done.
"""
    checks = (Check(name="net", command=f"{links} | grep -qv lo"),)
    journal = night.submit(script=script, environment=Environment(image="python", network="full"), checks=checks)
    night.work()
    told = [record.event.type for record, _ in journal.read()]
    assert told[told.index("replied") :][:6] == ["replied", "called", "observed", "observed", "called", "observed"]
    sealed = journal.load().sealed
    assert sealed is not None
    assert (sealed.outcome, sealed.verdict) == ("changed", "verified")


def test_a_step_limit_seals_the_partial_work(night: Night) -> None:
    """A run stopped by its limit is failed, limit/steps, and its patch is archived and measured."""
    edit = "{tool: edit_file, arguments: {path: answer.txt, old_text: '41', new_text: '43'}}"
    journal = night.submit(script=f"- calls: [{edit}]\n- text: never", limits=LIMITS.model_copy(update={"steps": 1}))
    night.work()
    run = journal.load()
    assert run.sealed is not None
    assert str(run.sealed.failure) == "limit/steps"
    assert run.sealed.verdict == "still_failing"
    assert b"+43" in journal.get_blob(run.sealed.artifacts["patch.diff"])
    assert run.finished is not None
    assert "Files touched" in run.finished.text


def test_commands_alone_need_no_model(night: Night) -> None:
    """With model none the commands run in the same journal and the checks judge what they left."""
    journal = night.submit(model="none", script=None, commands=("sed -i s/41/42/ answer.txt",))
    night.work()
    run = journal.load()
    assert run.sealed is not None
    assert (run.sealed.outcome, run.sealed.verdict, run.steps) == ("changed", "verified", 1)


def test_a_command_that_does_not_exist_fails_the_run(night: Night) -> None:
    """A codemod that is not in the image is a failure, not a success without changes."""
    journal = night.submit(model="none", script=None, commands=("no-such-codemod",), checks=())
    night.work()
    sealed = journal.load().sealed
    assert sealed is not None
    assert str(sealed.failure) == "agent/failing_calls"
    finished = journal.load().finished
    assert finished is not None
    assert "exit code 127" in finished.text


def test_the_model_takes_over_after_the_commands(night: Night) -> None:
    """A task with commands and a model runs the commands first and then asks the model."""
    script = (
        "- calls: [{tool: run_command, arguments: {command: 'cat note answer.txt'}}]\n- expect: made\n  text: Done."
    )
    checks = (Check(name="note", command="test -f note"),)
    journal = night.submit(script=script, commands=("echo made > note",), checks=checks)
    night.work()
    phases = [record.event.phase for record, _ in journal.read() if isinstance(record.event, Replied)]
    assert phases == ["commands", "model", "model"]
    assert journal.load().sealed is not None


@pytest.mark.parametrize(
    ("fields", "failure"),
    [
        ({"environment": Environment(image="no/such:image")}, "env/image"),
        ({"environment": Environment(image="python", setup="exit 3")}, "env/setup"),
        ({"checks": (Check(name="lint", command="no-such-linter"),)}, "env/check"),
        ({"environment": Environment(image="python", setup="true \0")}, "env/setup"),
        ({"checks": (Check(name="lint", command="true \0"),)}, "env/check"),
        ({"script": "- expect: never seen\n  text: x"}, "provider/bad_request"),
    ],
)
def test_what_cannot_start_ends_with_its_reason(night: Night, fields: dict[str, Any], failure: str) -> None:
    """A missing image, a failing setup, a check that is not there and a script that does not fit are named."""
    journal = night.submit(**fields)
    assert night.work() == "sealed"
    sealed = journal.load().sealed
    assert sealed is not None
    assert str(sealed.failure) == failure


def test_a_takeover_goes_on_from_the_last_commit(night: Night) -> None:
    """After an attempt died the next one repeats no committed step and has the files of the last commit."""
    journal = night.submit()
    station = night.station

    class Died(BaseException):
        pass

    class DiesAfterEdit(ScriptedModel):
        def reply(self, request: Any, **rest: Any) -> Any:
            if request.step == 3:
                raise Died
            return super().reply(request, **rest)

    def dying(task: Task) -> DiesAfterEdit:
        return DiesAfterEdit(task.model, parse_script(task.script or "", "script"))

    with pytest.raises(Died):
        night.work(open_model=dying)
    before = types(journal)
    assert journal.load().status == "running"
    assert attempt.run("run-1", replace(station, name="worker-2")) == "sealed"
    run = journal.load()
    assert types(journal)[: len(before)] == before
    assert run.steps == 3
    assert run.sealed is not None
    assert run.sealed.verdict == "verified"
    claims = [record.event for record, _ in journal.read() if isinstance(record.event, Claimed)]
    assert claims[1].previous == "worker-1: died or was cut off"


def test_the_claimer_removes_what_an_earlier_claim_left(night: Night, sandbox: DockerSandbox) -> None:
    """Containers and volumes of a dead attempt are gone when the next attempt works."""
    night.submit()
    left = sandbox.workspace(Owner(ARCHIVE, "run-1", 0, "agent"), "python", LIMITS)
    left.__enter__()
    assert night.leftovers()
    assert night.work() == "sealed"
    assert night.leftovers() == []
    left.__exit__(None, None, None)  # what is gone already is success


def test_cancel_ends_a_call_in_flight(night: Night, wait_until: Callable[..., Any]) -> None:
    """A cancel in the inbox kills the running call; the run is sealed as cancelled and nothing of it is left."""
    script = "- calls: [{tool: run_command, arguments: {command: 'echo on; sleep 600', timeout_s: 600}}]\n- text: x"
    journal = night.submit(script=script, checks=())
    ended: list[str] = []
    worker = threading.Thread(target=lambda: ended.append(night.work()))
    worker.start()
    wait_until(lambda: journal.load().pending)
    message = Inbox(night.archive, "run-1").put("cancel", by="ann", at=utc_now())
    night.station.hints.poke("run:run-1", message.n)
    worker.join(30)
    assert ended == ["sealed"]
    sealed = journal.load().sealed
    assert sealed is not None
    assert (sealed.outcome, sealed.detail) == ("cancelled", "cancelled by ann")
    assert night.leftovers() == []


def test_draining_yields_between_calls(night: Night) -> None:
    """A draining worker gives the run back; another finishes it without repeating a step."""
    journal = night.submit()
    drain = Cancel()

    class DrainsAtTwo(ScriptedModel):
        def reply(self, request: Any, **rest: Any) -> Any:
            if request.step == 2:
                drain.set("drain")
            return super().reply(request, **rest)

    opened = lambda task: DrainsAtTwo(task.model, parse_script(task.script or "", "script"))  # noqa: E731
    assert night.work(drain=drain, open_model=opened) == "yielded"
    assert journal.load().status == "queued"
    assert night.work() == "sealed"
    run = journal.load()
    assert (run.steps, run.sealed.verdict if run.sealed else None) == (3, "verified")
    claims = [record.event for record, _ in journal.read() if isinstance(record.event, Claimed)]
    assert claims[1].previous == "worker-1: gave the run back"


def test_the_third_infra_fault_in_a_row_ends_the_run(night: Night, wait_until: Callable[..., Any]) -> None:
    """An engine that fails gives the run back twice, with a pause, and then fails it as infra/engine."""
    journal = night.submit()

    class Broken:
        engine_id = "broken"

        def __init__(self, real: DockerSandbox) -> None:
            self._real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        def workspace(self, *_: Any) -> Any:
            raise EngineFault("no space left on device")

    broken = Broken(night.station.sandbox)
    ended = []
    for _ in range(3):
        wait_until(lambda: (not_before := journal.load().not_before) is None or not_before <= utc_now())
        ended.append(night.work(sandbox=broken))
    assert ended == ["yielded", "yielded", "sealed"]
    sealed = journal.load().sealed
    assert sealed is not None
    assert str(sealed.failure) == "infra/engine"


def test_a_store_that_refuses_outputs_is_not_tried_for_ever(night: Night, wait_until: Callable[..., Any]) -> None:
    """A refusal that no waiting helps counts: twice the run is given back, then it is failed as infra/store."""

    class NoBlobs(LocalArchive):
        def create(self, key: str, data: bytes | Path) -> bool:
            if key.startswith("runs/") and "/blobs/" in key:
                raise StoreFault("AccessDenied", retryable=False)
            return super().create(key, data)

    journal = night.submit(script="- calls: [{tool: run_command, arguments: {command: ls}}]\n- text: Done.")
    ended = []
    for _ in range(3):
        wait_until(lambda: (not_before := journal.load().not_before) is None or not_before <= utc_now())
        ended.append(night.work(archive=NoBlobs(night.archive.url)))
    assert ended == ["yielded", "yielded", "sealed"]
    sealed = journal.load().sealed
    assert sealed is not None
    assert str(sealed.failure) == "infra/store"


def test_a_lost_reply_is_counted_before_anything_can_fail(night: Night) -> None:
    """A takeover that cannot sweep gives the run back, and what the worker that died may have paid for is counted."""
    journal = night.submit(model="anthropic/claude-sonnet-4-5", script=None)
    cancel = Cancel()
    with Lease(night.station.hints, "run:run-1", night.station.settings, cancel) as lease:
        died = Ledger(journal, lease, cancel, Redactor({}), utc_now)
        died.claim(Claimed(worker="w", engine="e", lane="main"))
        died.commit(Prepared(environment_key="k", environment="e" * 64, commit="c", image="i", reused=False))

    class Away:
        def __init__(self, real: DockerSandbox) -> None:
            self._real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        def owned(self, archive: str) -> Any:
            raise EngineFault("the engine is away")

    assert night.work(sandbox=Away(night.station.sandbox)) == "yielded"
    assert types(journal) == ["submitted", "claimed", "prepared", "claimed", "unrecorded", "yielded"]
    assert journal.load().unrecorded_microusd > 0


def test_what_cannot_be_removed_after_the_seal_changes_nothing(night: Night) -> None:
    """A sealed run is sealed: an engine that keeps its containers is the janitor's."""
    journal = night.submit(script="- text: Done.", checks=())

    class Keeps:
        def __init__(self, real: DockerSandbox) -> None:
            self._real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        @contextmanager
        def workspace(self, owner: Owner, *rest: Any) -> Iterator[Any]:
            with self._real.workspace(owner, *rest) as made:
                yield made
            if owner.role == "agent":
                raise EngineFault("the volume is in use")

    assert night.work(sandbox=Keeps(night.station.sandbox)) == "sealed"
    assert types(journal)[-1] == "sealed"


def test_a_bug_of_ours_gives_the_run_back(night: Night) -> None:
    """An unexpected exception becomes a yield that names it; the worker's other runs go on."""
    journal = night.submit()

    def broken(task: Task) -> Any:
        raise ZeroDivisionError("a bug")

    assert night.work(open_model=broken) == "yielded"
    yielded = [record.event for record, _ in journal.read()][-1]
    assert yielded.type == "yielded"
    assert yielded.failure is not None
    assert "ZeroDivisionError" in yielded.failure.detail


def test_a_full_disk_is_named(night: Night) -> None:
    """A worker without room on its own disk gives the run back with that reason."""
    journal = night.submit()

    def full(task: Task) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert night.work(open_model=full) == "yielded"
    yielded = [record.event for record, _ in journal.read()][-1]
    assert yielded.type == "yielded"
    assert str(yielded.failure) == "infra/disk"


def test_an_attempt_that_lost_its_lease_writes_nothing(night: Night) -> None:
    """Once the lease is somebody else's, a commit raises and the journal stays as it is."""
    journal = night.submit()
    cancel = Cancel()
    with Lease(night.station.hints, "run:run-1", night.station.settings, cancel) as lease:
        ledger = Ledger(journal, lease, cancel, Redactor({}), utc_now)
        ledger.claim(Claimed(worker="w", engine="e", lane="main"))
        cancel.set("lease")
        with pytest.raises(FencedFault):
            ledger.commit(Sealed(outcome="cancelled"))
    assert types(journal) == ["submitted", "claimed"]


def test_a_later_claim_fences_the_earlier_attempt(night: Night) -> None:
    """Of two attempts that believe they hold the run, only the later claim can still write."""
    journal = night.submit()
    cancel = Cancel()
    with Lease(night.station.hints, "run:run-1", night.station.settings, cancel) as lease:
        first = Ledger(journal, lease, cancel, Redactor({}), utc_now)
        first.claim(Claimed(worker="first", engine="e", lane="main"))
        second = Ledger(journal, lease, cancel, Redactor({}), utc_now)
        second.claim(Claimed(worker="second", engine="e", lane="main"))
        with pytest.raises(FencedFault):
            first.commit(Sealed(outcome="cancelled"))
        second.commit(Sealed(outcome="cancelled"))
    assert types(journal) == ["submitted", "claimed", "claimed", "sealed"]


def test_the_last_commit_of_a_dying_attempt_is_taken_in_at_the_claim(night: Night) -> None:
    """An ordinary segment that wins the claim's number is folded, and the claim takes the next one."""
    journal = night.submit()
    cancel = Cancel()
    with Lease(night.station.hints, "run:run-1", night.station.settings, cancel) as lease:
        first = Ledger(journal, lease, cancel, Redactor({}), utc_now)
        first.claim(Claimed(worker="first", engine="e", lane="main"))
        second = Ledger(journal, lease, cancel, Redactor({}), utc_now)
        first.commit(Observed.model_validate(_observed("late")))
        second.claim(Claimed(worker="second", engine="e", lane="main"))
    assert types(journal) == ["submitted", "claimed", "observed", "claimed"]
    assert second.run == journal.load()


def test_a_secret_in_a_reply_is_masked_before_it_is_written() -> None:
    """No event is written with a secret in it, and native content that held one is dropped whole."""
    reply = {"text": "the key is hunter2-hunter2", "native": {"content": [{"text": "hunter2-hunter2"}]}}
    event = Replied.model_validate({"step": 1, "phase": "model", "reply": reply})
    clean = masked(event, Redactor({"KEY": "hunter2-hunter2"}))
    assert isinstance(clean, Replied)
    assert "hunter2" not in clean.model_dump_json()
    assert clean.reply.native is None


def test_a_secret_printed_by_a_command_reaches_no_object(night: Night) -> None:
    """A secret that a repository's program prints stands masked in the journal, the blobs and the patch."""
    script = "- calls: [{tool: run_command, arguments: {command: 'echo hunter2-$((1)); echo ok'}}]\n- text: Done."
    journal = night.submit(script=script, checks=())
    night.work(redactor=Redactor({"KEY": "hunter2-1"}))
    assert journal.load().sealed is not None
    stored = b"".join(night.archive.get(key) for key in night.archive.list("runs/") if "/snapshots/" not in key)
    assert stored.count(b"hunter2-1") == 0
    assert b"[secret KEY]" in stored


KNOCK = """
- calls:
    - {tool: knock, arguments: {}}
    - {tool: run_command, arguments: {command: 'ls -A /run/secrets; env; cat /proc/*/environ'}}
- text: Done.
"""


def knocking(night: Night) -> Journal:
    tool = OwnTool(
        name="knock",
        description="Knock at the forge.",
        arguments={"type": "object"},
        command="stat -c '%a %u' /run/secrets/FORGE; cat /run/secrets/FORGE; env | grep -c FORGE",
        effect="outside",
        secrets=("FORGE",),
    )
    return night.submit(script=KNOCK, checks=(), tools=(tool,))


def test_a_tool_is_handed_its_secret_for_its_own_call_only(night: Night) -> None:
    """A file that only its user reads, masked in what it prints; on record before it starts; in nothing stored."""
    journal = knocking(night)
    secrets = {"FORGE": "hunter2-hunter2"}
    night.work(secrets=secrets, redactor=Redactor(secrets))
    events = [record.event for record, _ in journal.read()]
    knocked, looked = (event.observation for event in events if isinstance(event, Observed))
    assert knocked.output == "400 1000\n[secret FORGE]0"
    assert "FORGE" not in looked.output
    assert [event.type for event in events if event.type in ("called", "observed")] == [
        "called",
        "observed",
        "observed",
    ]
    assert not [key for key in night.archive.list("") if b"hunter2" in night.archive.get(key)]


def test_a_secret_of_a_tool_that_the_worker_lacks_ends_the_run_first(night: Night) -> None:
    """env/setup, before any model is paid."""
    journal = knocking(night)
    night.work()
    sealed = journal.load().sealed
    assert sealed is not None
    assert sealed.failure is not None
    assert (sealed.failure.cls, sealed.failure.reason) == ("env", "setup")
    assert "the secret FORGE of the tool knock has no value here" in sealed.failure.detail
    assert "replied" not in types(journal)


def test_a_store_that_goes_away_as_damage_is_sealed_leaves_the_run(night: Night) -> None:
    """Whoever finds the damage next seals it; nothing is raised into the queue."""

    class Away(LocalArchive):
        def create(self, key: str, data: bytes | Path) -> bool:
            raise StoreFault("the store is away")

    night.submit()
    damaged = keys.segment("run-1", 0)
    whole = night.archive.get(damaged)
    night.archive.delete([damaged])
    night.archive.create(damaged, whole[:-9])
    assert night.work(archive=Away(night.archive.url)) == "left"
    assert night.work() == "damaged"


def _observed(text: str) -> dict[str, Any]:
    return {"observation": {"call_id": "c", "tool": "run_command", "status": "ok", "exit_code": 0, "output": text}}
