"""A call's transaction on the real engine: shown at once, committed behind the model's back, whole or not at all."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hosts import Hosts
from sandboxes import ARCHIVE

from worker import ledger as ledgers
from worker import loop
from worker.contract.errors import ConflictFault, EngineFault, FencedFault, KeeperFault, ProviderFault, StoreFault
from worker.contract.events import (
    Finished,
    Observation,
    Observed,
    Replied,
    Reply,
    Sealed,
    ToolCall,
    Usage,
    Yielded,
)
from worker.contract.task import Limits
from worker.host import Stopped
from worker.hosting import AttemptHost
from worker.sandbox.sandbox import DockerSandbox
from worker.sandbox.workspace import DockerWorkspace
from worker.station import utc_now
from worker.store.inbox import Inbox
from worker.tools.toolset import Toolset

pytestmark = pytest.mark.docker

LIMITS = Limits(memory_bytes=256 * 2**20, tmpfs_bytes=32 * 2**20, workspace_files=200)
RESULT_S = 60
USAGE = Usage(input_tokens=900, output_tokens=100)


class Gate:
    """Holds back the writes of one folder until it is opened."""

    def __init__(self, hosts: Hosts, folder: str) -> None:
        self._open = threading.Event()
        self.reached = threading.Event()

        def before(key: str) -> None:
            if key.startswith(f"runs/{hosts.run}/{folder}/"):
                self.reached.set()
                assert self._open.wait(RESULT_S)

        hosts.archive.before = before

    def open(self) -> None:
        self._open.set()


class Says:
    """A model that makes one call for each script, then ends; acts as told before its answer to a step."""

    name = "test"

    def __init__(self, *scripts: str, before: Callable[[int], None] = lambda step: None) -> None:
        self._scripts = scripts
        self._before = before
        self.shown: list[str] = []

    def reply(self, request: Any, **_: Any) -> Reply:
        self.shown.append(str(request.messages[-1]))
        self._before(request.step)
        if request.step > len(self._scripts):
            return Reply(text="It is done.", usage=USAGE, cost_microusd=7)
        call = run(self._scripts[request.step - 1], request.step)
        return Reply(calls=(call,), stop="calls", usage=USAGE, cost_microusd=7)


def run(script: str, step: int = 1) -> ToolCall:
    return ToolCall(id=f"call_{step}_1", name="run_command", arguments=json.dumps({"command": script}))


def real(host: AttemptHost) -> DockerWorkspace:
    """The workspace, to look or to break inside."""
    assert isinstance(host._workspace, DockerWorkspace)
    return host._workspace


def observe(host: AttemptHost, call: ToolCall) -> bool:
    parsed = Toolset().parse(call)
    assert not isinstance(parsed, str)
    return host.observe(call, *parsed) is None


def last(host: AttemptHost) -> Observed:
    event = host.records()[-1].event
    assert isinstance(event, Observed)
    return event


def types(hosts: Hosts) -> list[str]:
    """What the run's journal holds after its environment."""
    return [record.event.type for record, _ in hosts.journal().read()][3:]


def told(hosts: Hosts) -> list[Observation]:
    """The observations in the run's journal."""
    events = (record.event for record, _ in hosts.journal().read())
    return [event.observation for event in events if isinstance(event, Observed)]


def folders(hosts: Hosts) -> list[str]:
    """Where the run's objects were written, in order."""
    return [key.split("/")[2] for key in hosts.archive.created if key.startswith(f"runs/{hosts.run}/")]


@pytest.fixture(scope="module")
def _hosts(tmp_path_factory: pytest.TempPathFactory, sandbox: DockerSandbox) -> Hosts:
    return Hosts(tmp_path_factory.mktemp("hosts") / "archive", sandbox, ARCHIVE)


@pytest.fixture
def hosts(_hosts: Hosts, request: pytest.FixtureRequest) -> Iterator[Hosts]:
    """A fresh run on an environment that all tests share. No thread of its attempts is left."""
    _hosts.fresh(f"run-{request.node.name[5:40]}", limits=LIMITS)
    yield _hosts
    assert [thread for thread in threading.enumerate() if thread.name.startswith(f"commit {_hosts.run}")] == []


def test_a_call_is_shown_before_anything_of_it_is_stored(hosts: Hosts) -> None:
    """The observation stands in records and run while its output waits for the store; then all of it is committed."""
    gate = Gate(hosts, "blobs")
    with hosts.host() as host:
        assert observe(host, run("echo made | tee f"))
        assert gate.reached.wait(RESULT_S)
        shown = last(host)
        assert (shown.observation.output, shown.snapshot) == ("made", None)
        assert types(hosts) == []
        gate.open()
        assert host.settle()
        assert last(host).observation == shown.observation
        assert last(host).snapshot is not None
        assert host.run == hosts.journal().load()


def test_the_segment_is_written_last(hosts: Hosts) -> None:
    """Output, then snapshot, then the segment that names them: a crash in between leaves garbage, never a hole."""
    with hosts.host() as host:
        before = len(folders(hosts))
        observe(host, run("echo made | tee f"))
        host.settle()
        assert folders(hosts)[before:] == ["blobs", "snapshots", "journal"]
    assert hosts.journal().verify() == []


def test_the_next_call_waits_for_the_commit_before_it(hosts: Hosts) -> None:
    """One append at most is under way: when the second call runs, the first is committed."""
    with hosts.host() as host:
        observe(host, run("echo one >>f; cat f", 1))
        observe(host, run("echo two >>f; cat f", 2))
        assert last(host).observation.output == "one\ntwo"
        assert types(hosts)[0] == "observed"
        host.commit(Finished())
    assert types(hosts) == ["observed", "observed", "finished"]


def test_a_call_that_only_reads_is_committed_without_a_snapshot(hosts: Hosts) -> None:
    """So is one that needs no container; both are shown ahead of their commit."""
    with hosts.host() as host:
        read = ToolCall(id="call_1_1", name="read_file", arguments='{"path": "README"}')
        plan = ToolCall(id="call_2_1", name="update_plan", arguments='{"items": [{"text": "look"}]}')
        for call in (read, plan):
            assert observe(host, call)
            assert last(host).observation.status == "ok"
            assert host.settle()
        assert [item.text for item in host.run.plan] == ["look"]
        assert host.run.snapshot is None


def test_nothing_of_a_call_stays_in_the_spool(hosts: Hosts) -> None:
    """Outputs, joined ones too, and snapshots are gone once the call is committed."""
    checks = ({"name": "a", "command": "echo a"}, {"name": "b", "command": "echo b; exit 3"})
    hosts.fresh("run-checked", checks=checks, limits=LIMITS)
    with hosts.host() as host:
        observe(host, run("echo made | tee f"))
        observe(host, ToolCall(id="call_2_1", name="run_checks", arguments="{}"))
        assert last(host).observation.exit_code == 3
        host.settle()
        assert list(real(host)._spool.iterdir()) == []


def test_a_crash_between_shown_and_committed_runs_the_call_again(hosts: Hosts) -> None:
    """The next attempt rolls back to the last commit: the effect is there once, and so is its record."""

    class Died(BaseException):
        pass

    def dies(key: str) -> None:
        if "/journal/" in key:
            raise Died

    call = run("echo x >>log; wc -l <log")
    with hosts.host() as host:
        host.commit(Replied(step=1, phase="model", reply=Reply(calls=(call,), stop="calls")))
        hosts.archive.before = dies
        assert observe(host, call)
        assert last(host).observation.output == "1"
        with pytest.raises(Died):
            host.settle()
        assert host.run.pending == (call,)
    assert types(hosts) == ["replied"]
    hosts.archive.before = lambda key: None
    with hosts.host() as host:
        loop.work(host, Says("not asked for"), Toolset())
    assert [observation.output for observation in told(hosts)] == ["1"]


def test_a_call_over_the_caps_rolls_back_and_the_reply_to_it_is_dropped(hosts: Hosts) -> None:
    """The model had seen a success that is not kept: its reply is money spent and no more, and it is asked again."""
    model = Says("mkdir d; cd d; for n in $(seq 300); do : >$n; done; echo made", "ls")
    with hosts.host() as host:
        assert isinstance(loop.work(host, model, Toolset()), Finished)
        assert host.run.cost_microusd == 4 * 7
    assert types(hosts)[:3] == ["replied", "observed", "unrecorded"]
    assert types(hosts)[3:] == ["replied", "observed", "replied", "finished"]
    rolled_back = "The workspace is as it was before this call"
    assert [rolled_back in shown for shown in model.shown] == [False, False, True, False]
    assert [(seen.status, seen.exit_code) for seen in told(hosts)] == [("error", 1), ("ok", 0)]
    assert told(hosts)[1].output == "README"


def test_a_fenced_commit_stops_the_attempt_and_writes_nothing_more(hosts: Hosts) -> None:
    """A later claim takes the number while the model thinks: the paid reply is not written into its journal."""

    def claims(step: int) -> None:
        if step == 2:
            hosts.claim()
            gate.open()

    with hosts.host() as host:
        gate = Gate(hosts, "blobs")
        with pytest.raises(FencedFault):
            loop.work(host, Says("echo made | tee f", before=claims), Toolset())
    assert types(hosts) == ["replied", "claimed"]


def test_a_lost_lease_stops_a_commit_that_is_under_way(hosts: Hosts) -> None:
    """The segment is not written once the lease is known to be somebody else's."""
    with hosts.host() as host:
        gate = Gate(hosts, "snapshots")
        observe(host, run("echo made >f"))
        assert gate.reached.wait(RESULT_S)
        host.cancel.set("lease")
        gate.open()
        with pytest.raises(FencedFault):
            host.commit(Yielded(why="drain"))
    assert types(hosts) == []


def test_a_dead_keeper_ends_the_attempt_and_the_reply_is_paid_for(hosts: Hosts, sandbox: DockerSandbox) -> None:
    """A fault behind the model's back comes out after its reply, whose cost is on record; the call runs again."""

    def kills(step: int) -> None:
        if step == 2:
            keeper = real(host)._keeper_box
            assert keeper is not None
            sandbox._engine.kill(keeper.container)
            gate.open()

    with hosts.host() as host:
        gate = Gate(hosts, "blobs")
        with pytest.raises(KeeperFault):
            loop.work(host, Says("echo made | tee f", before=kills), Toolset())
    after = hosts.journal().load()
    assert types(hosts) == ["replied", "unrecorded"]
    assert (after.cost_microusd, len(after.pending)) == (14, 1)
    with hosts.host() as host:
        loop.work(host, Says("not asked for"), Toolset())
    assert types(hosts)[2:] == ["claimed", "observed", "replied", "finished"]


def test_a_cancel_while_a_commit_is_under_way_keeps_the_call(hosts: Hosts) -> None:
    """The call had ended: it is committed, and the seal comes after it."""

    def cancels(step: int) -> None:
        if step == 2:
            host.cancel.set("cancel")
            raise ProviderFault("connection", "the model call was stopped")

    with hosts.host() as host:
        gate = Gate(hosts, "blobs")
        assert loop.work(host, Says("echo made | tee f", before=cancels), Toolset()) == Stopped("cancel")
        assert types(hosts) == ["replied"]
        gate.open()
        host.commit(Sealed(outcome="cancelled"))
    assert types(hosts) == ["replied", "observed", "sealed"]


def test_an_inbox_that_a_dying_sealer_closed_opens_again(hosts: Hosts) -> None:
    """The attempt that closed it died before its seal: the next one goes on, and can be cancelled as ever."""
    inbox = Inbox(hosts.archive, hosts.run)
    inbox.close(0, by="dying", at=utc_now())
    with pytest.raises(ConflictFault):
        inbox.put("cancel", by="ann", at=utc_now())
    with hosts.host() as host:
        assert host.inbox() is None
        assert inbox.put("cancel", by="ann", at=utc_now()).n == 1
        host._mailbox.expect()
        assert host.inbox() == Stopped("cancel")
        assert not inbox.close(host.run.inbox_seen, by="w", at=utc_now())
        inbox.end(host.run.inbox_seen, by="w", at=utc_now())
    with pytest.raises(ConflictFault):
        inbox.put("message", by="ann", at=utc_now())


def test_a_drain_settles_before_it_yields(hosts: Hosts) -> None:
    """What was shown is committed, so the next attempt repeats nothing."""
    with hosts.host() as host:
        observe(host, run("echo made | tee f"))
        hosts.drain.set("drain")
        assert host.inbox() == Stopped("drain")
        host.commit(Yielded(why="drain"))
    assert types(hosts) == ["observed", "yielded"]


def test_leaving_waits_for_the_last_commit(hosts: Hosts) -> None:
    """An attempt that ends by a fault of its own still commits the call it has shown."""

    def leave() -> None:
        with hosts.host() as host:
            observe(host, run("echo made | tee f"))
            raise EngineFault("gone")

    with pytest.raises(EngineFault):
        leave()
    assert types(hosts) == ["observed"]


def test_a_store_that_is_away_for_a_moment_is_waited_for(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output, snapshot and segment are each tried again; nothing is lost and nothing is doubled."""
    monkeypatch.setattr(ledgers, "STORE_DELAYS_S", (0.01,))
    refused: set[str] = set()

    def refuses(key: str) -> None:
        if key not in refused:
            refused.add(key)
            raise StoreFault("away")

    with hosts.host() as host:
        hosts.archive.before = refuses
        observe(host, run("echo made | tee f"))
        assert host.settle()
    assert {key.split("/")[2] for key in refused} == {"blobs", "snapshots", "journal"}
    assert hosts.journal().verify() == []


def test_a_full_spool_lets_no_call_begin(hosts: Hosts) -> None:
    """While more waits for the store than the spool takes, a call waits outside; it runs when there is room."""
    with hosts.host() as host:
        waiting = hosts.spool.hold(2**30)
        caller = threading.Thread(target=observe, args=(host, run("date +%s.%N")))
        caller.start()
        caller.join(1)
        assert caller.is_alive()
        room_at = time.time()
        waiting.shrink(0)
        caller.join(RESULT_S)
        assert float(last(host).observation.output) > room_at
    assert hosts.spool.held == 0


def test_a_cancel_ends_the_wait_for_the_spool(hosts: Hosts) -> None:
    """A call that waits for room is given up at once, and was never started."""
    with hosts.host() as host:
        hosts.spool.hold(2**30)
        ended: list[bool] = []
        caller = threading.Thread(target=lambda: ended.append(observe(host, run("echo made >f"))))
        caller.start()
        host.cancel.set("cancel")
        caller.join(RESULT_S)
        assert ended == [False]
    assert types(hosts) == []


def test_a_spool_that_stays_full_gives_the_run_back(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the patience with the store the wait ends as the store being away, which gives the run back."""
    monkeypatch.setattr(ledgers, "STORE_PATIENCE_S", 0.1)
    with hosts.host() as host:
        hosts.spool.hold(2**30)
        with pytest.raises(StoreFault) as caught:
            observe(host, run("echo made >f"))
    assert caught.value.retryable
    assert types(hosts) == []


def test_what_waits_is_counted_until_it_is_stored(hosts: Hosts) -> None:
    """The output while it waits, then the snapshot at its size; nothing is left over, also when a cap was passed."""
    held = []
    with hosts.host() as host:
        hosts.archive.before = lambda key: held.append((key.split("/")[2], hosts.spool.held))
        observe(host, run("head -c 100000 /dev/zero | tr '\\0' x | tee f"))
        host.settle()
        snapshot = last(host).snapshot
        assert snapshot is not None
        assert held == [("blobs", 100_000), ("snapshots", snapshot.bytes), ("journal", 0)]
        observe(host, run("mkdir d; cd d; for n in $(seq 300); do : >$n; done"))
        assert not host.settle()
    assert hosts.spool.held == 0


def test_a_snapshot_is_not_taken_before_it_has_room(hosts: Hosts) -> None:
    """It waits where it costs nothing; a lost lease ends the wait, and nothing was written."""
    with hosts.host() as host:
        observe(host, run("true"))
        host.settle()
        hosts.spool.hold(2**30 - 2**27)
        observe(host, run("echo made >f"))
        host.cancel.set("lease")
        with pytest.raises(FencedFault, match="spool was full"):
            host.settle()
    assert types(hosts) == ["observed"]
