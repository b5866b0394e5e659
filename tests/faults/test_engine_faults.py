"""The container engine dies, answers wrongly, loses its disk, or a worker's own disk is full: what becomes of a run.

The engine is one of the tests' own (engines.py). A call that sleeps is found on the host by its mark, and ended from
there when it has served: so a run stands in a call for as long as a test needs, and no longer.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import wait_for
from engines import EngineProxy, OwnEngine
from hosts import Hosts
from nights import FAST, LIMITS, Night
from proxies import RESET, Answer, once
from sandboxes import ARCHIVE, SMALL, Shell, owner

from worker.contract.errors import EngineFault
from worker.contract.events import Event, Observed, Replied, Yielded
from worker.contract.settings import Settings
from worker.contract.task import Check, Environment
from worker.janitor import sweep
from worker.sandbox import shape
from worker.sandbox.docker import State
from worker.sandbox.protocol import Owner
from worker.sandbox.sandbox import DockerSandbox
from worker.store.journal import Journal

pytestmark = pytest.mark.docker

TOOLBOX = Environment(image="toolbox")
"""The one image of ours that the engine of the tests' own is given."""
GONE_S = 5
"""The promise: of a call that was ended nothing is alive after that."""


class Sleep:
    """A sleep that is known on this host by its length, which nobody else sleeps."""

    def __init__(self) -> None:
        self.command = f"sleep 600.{secrets.randbelow(10**9):09}"
        self._seen: set[int] = set()
        self._last: set[int] = set()

    def processes(self) -> set[int]:
        """Its process ids, in all containers of all engines."""
        wanted = self.command.replace(" ", "\0").encode() + b"\0"
        found = set()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended meanwhile
                if (process / "cmdline").read_bytes() == wanted:
                    found.add(int(process.name))
        return found

    def begun(self) -> None:
        """Wait until it sleeps, and where it did before, until it sleeps once more."""
        self._last = wait_for(lambda: self.processes() - self._seen)
        self._seen |= self._last

    def end(self) -> None:
        """What called it goes on."""
        for process in self._last:
            os.kill(process, signal.SIGTERM)


@pytest.fixture
def sleep() -> Sleep:
    return Sleep()


@pytest.fixture
def own_night(tmp_path: Path, own_sandbox: DockerSandbox, redis_url: str) -> Iterator[Night]:
    """A worker's station on the engine of the tests' own."""
    night = Night(tmp_path / "archive", own_sandbox, redis_url)
    yield night
    night.station.hints.close()


@contextmanager
def working(night: Night) -> Iterator[list[str]]:
    """An attempt on run-1 meanwhile; the list holds how it ended once the block is left."""
    with ThreadPoolExecutor(1) as thread:
        ended: list[str] = []
        attempt = thread.submit(night.work)
        yield ended
        ended.append(attempt.result(120))


def due(journal: Journal, now: Callable[[], str]) -> None:
    """Wait until nobody has to wait for the run any more."""
    wait_for(lambda: (not_before := journal.load().not_before) is None or not_before <= now())


def of(journal: Journal, kind: type[Event]) -> list[Any]:
    return [record.event for record, _ in journal.read() if isinstance(record.event, kind)]


def given_back(journal: Journal, *failures: str) -> None:
    """Check that attempts ended so, each with a time before which nobody tries again."""
    yields = of(journal, Yielded)
    assert [(found.why, str(found.failure)) for found in yields] == [("infra", failure) for failure in failures]
    assert all(found.not_before for found in yields)


def logging(sleep: Sleep) -> dict[str, Any]:
    """A task of two calls that write to `log`, the second in two halves with a sleep between them."""
    script = f"""
- calls: [{{tool: run_command, arguments: {{command: "echo one >> log"}}}}]
- calls: [{{tool: run_command, arguments: {{command: "echo two >> log; {sleep.command}; echo three >> log"}}}}]
- text: Done.
"""
    return {"environment": TOOLBOX, "script": script, "checks": ()}


def logged(journal: Journal) -> list[str]:
    """What a sealed run's patch adds to `log`."""
    sealed = journal.load().sealed
    assert sealed is not None
    assert sealed.outcome == "changed"
    patch = journal.get_blob(sealed.artifacts["patch.diff"]).decode()
    return [line[1:] for line in patch.splitlines() if line.startswith("+") and not line.startswith("+++")]


# F31: the engine dies


def test_an_engine_that_dies_in_a_call_rolls_it_back(own_night: Night, own_engine: OwnEngine, sleep: Sleep) -> None:
    """F31: dockerd is killed in the middle of a call: infra/engine, and after its restart the call runs again, once
    as committed; what the dead engine kept is cleared up by the next claimer."""
    journal = own_night.submit(**logging(sleep))
    with working(own_night) as ended:
        sleep.begun()
        own_engine.kill()
    assert ended == ["yielded"]
    given_back(journal, "infra/engine")
    assert len(of(journal, Observed)) == 1
    own_engine.start()
    due(journal, own_night.station.now)
    with working(own_night) as ended:
        sleep.begun()
        sleep.end()
    assert ended == ["sealed"]
    assert logged(journal) == ["one", "two", "three"]
    assert [observed.observation.exit_code for observed in of(journal, Observed)] == [0, 0]


@pytest.mark.full  # dockerd needs a quarter of a minute for another
def test_a_containerd_that_dies_in_a_call_is_never_read_as_success(
    own_night: Night, own_engine: OwnEngine, sleep: Sleep
) -> None:
    """F31: the container goes on without containerd. Its end counts when the engine gives its word on it after all;
    else the call is rolled back and runs again. Either way it is there once, in full."""
    journal = own_night.submit(**logging(sleep))
    with working(own_night) as ended:
        sleep.begun()
        own_engine.kill_containerd()
        sleep.end()
    wait_for(own_engine.works)
    if ended == ["yielded"]:
        given_back(journal, "infra/engine")
        due(journal, own_night.station.now)
        with working(own_night) as ended:
            sleep.begun()
            sleep.end()
    assert ended == ["sealed"]
    assert logged(journal) == ["one", "two", "three"]


def test_an_engine_that_dies_in_a_check_gives_no_verdict(
    own_night: Night, own_engine: OwnEngine, sleep: Sleep
) -> None:
    """F31: what a check said before the engine could say how it ended is no verdict; it is measured anew, and red."""
    check = Check(name="log", command=f"test ! -e log || {{ {sleep.command}; exit 3; }}")
    limits = LIMITS.model_copy(update={"feedbacks": 0})
    journal = own_night.submit(environment=TOOLBOX, script=WRITES_LOG, checks=(check,), limits=limits)
    with working(own_night) as ended:
        sleep.begun()
        own_engine.kill()
    assert ended == ["yielded"]
    own_engine.start()
    due(journal, own_night.station.now)
    with working(own_night) as ended:
        for _ in range(2):  # one whose colour changed runs once more
            sleep.begun()
            sleep.end()
    assert ended == ["sealed"]
    given_back(journal, "infra/engine")
    sealed = journal.load().sealed
    assert sealed is not None
    assert (sealed.outcome, sealed.verdict) == ("changed", "broke")


WRITES_LOG = "- calls: [{tool: run_command, arguments: {command: 'echo one >> log'}}]\n- text: Done."


def test_a_check_is_green_only_where_call_and_engine_agree(
    own_sandbox: DockerSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F31: an engine that lost count of an exit code does not turn a red check green."""
    with own_sandbox.workspace(owner(), "toolbox", SMALL) as workspace:
        monkeypatch.setattr(workspace._engine, "wait", lambda *_: State(0, False))
        assert Shell(workspace).run("exit 3", proven=True).exit_code == 3
        monkeypatch.setattr(workspace._engine, "wait", lambda *_: State(4, False))
        assert Shell(workspace).run("exit 0", proven=True).exit_code == 4
        monkeypatch.undo()


def test_an_engine_that_is_away_does_not_count_against_runs(own_night: Night, own_engine: OwnEngine) -> None:
    """F31: a worker without its engine claims nothing, however often it is rung, so that no run fails for it; with
    the engine back the run is done by the same worker."""
    journal = own_night.submit(environment=TOOLBOX, script=WRITES_LOG, checks=())
    own_engine.kill()
    assert [own_night.work() for _ in range(4)] == ["left"] * 4
    assert journal.load().last_seq == 0
    own_engine.start()
    assert own_night.work() == "sealed"
    assert logged(journal) == ["one"]


# F33: the engine answers wrongly


def creating(method: str, path: str) -> bool:
    return method == "POST" and "/containers/create" in path


def starting(method: str, path: str) -> bool:
    return method == "POST" and path.endswith("/start")


def removing(method: str, path: str) -> bool:
    return method == "DELETE"


class Nth:
    """The answer for the n-th request that fits (from 1), None for all others."""

    def __init__(self, number: int, answer: Answer, when: Callable[[str, str], bool]) -> None:
        self._left, self._answer, self._when = number, answer, when

    def __call__(self, method: str, path: str) -> Answer | None:
        self._left -= self._when(method, path)
        return self._answer if self._left == 0 and self._when(method, path) else None

    @property
    def struck(self) -> bool:
        return self._left <= 0


SERVER_ERROR = Answer(500, b'{"message": "as asked by a test"}')
CONFLICT = Answer(409, b'{"message": "as asked by a test"}')
NOT_FOUND = Answer(404, b'{"message": "as asked by a test"}')


@pytest.mark.parametrize("number", [1, 2], ids=["keeper", "parked"])
@pytest.mark.parametrize(
    ("side", "answer", "when"),
    [
        ("after", SERVER_ERROR, creating),
        ("after", RESET, creating),
        ("before", CONFLICT, creating),
        ("before", NOT_FOUND, starting),
        ("after", SERVER_ERROR, starting),
    ],
    ids=["created, 500", "created, reset", "409", "404 on start", "started, 500"],
)
def test_no_container_is_left_by_a_wrong_answer(
    engine_proxy: EngineProxy,
    own_engine: OwnEngine,
    spoiled_sandbox: DockerSandbox,
    side: str,
    answer: Answer,
    when: Callable[[str, str], bool],
    number: int,
) -> None:
    """F33: whichever container's creation or start is answered wrongly, the workspace leaves nothing when it closes;
    a parked one is made again, without the keeper nothing can go on."""
    spoils = Nth(number, answer, when)
    setattr(engine_proxy, side, spoils)
    said = []
    with suppress(EngineFault), spoiled_sandbox.workspace(owner(), "toolbox", SMALL) as workspace:
        said = [Shell(workspace).text(f"echo {number}") for number in range(2)]
    assert spoils.struck
    assert said == ([] if number == 1 else ["0\n", "1\n"])
    assert own_engine.things() == []


def test_what_a_wrong_answer_leaves_is_the_janitor_s(
    engine_proxy: EngineProxy, own_engine: OwnEngine, spoiled_sandbox: DockerSandbox, tmp_path: Path
) -> None:
    """F33: created, not told, and not removable either: it carries its labels, and the janitor finds it."""
    hosts = Hosts(tmp_path / "archive", spoiled_sandbox, ARCHIVE)
    hosts.fresh("run-1")
    hosts.claim()
    engine_proxy.after = once(SERVER_ERROR, creating)
    engine_proxy.before = lambda method, path: RESET if removing(method, path) else None
    with pytest.raises(EngineFault), spoiled_sandbox.workspace(Owner(ARCHIVE, "run-1", 1, "agent"), "toolbox", SMALL):
        pass
    assert len(own_engine.things()) == 2
    engine_proxy.before = lambda method, path: None
    hosts.claim()
    assert sweep(hosts.archive, ARCHIVE, spoiled_sandbox) == 2
    assert own_engine.things() == []


# F35: clearing up while everything moves


def test_clearing_up_amid_fifty_that_come_and_go(
    own_engine: OwnEngine, own_sandbox: DockerSandbox, tmp_path: Path
) -> None:
    """F35: while 50 containers of a living attempt and of a dead one are made and removed, the sweep never fails; it
    takes the dead attempt's, and no container of the living one, of another archive or of a stranger."""
    hosts = Hosts(tmp_path / "archive", own_sandbox, ARCHIVE)
    hosts.fresh("run-1")
    dead, living = (Owner(ARCHIVE, "run-1", hosts.claim()[0].run.attempt or 0, "agent") for _ in range(2))
    foreign = Owner("another-archive", "run-1", dead.claim, "agent")
    engine = own_sandbox._engine
    image = own_sandbox.image_id("toolbox")

    def make(name: str, labels: dict[str, str]) -> str:
        return engine.create(name, {"Image": image, "Cmd": ["sleep", "600"], "Labels": labels})

    disguised = shape.labels(dead) | {shape.LABEL: "image"}
    strangers = {make("stranger", {}), make("foreign", shape.labels(foreign)), make("disguised", disguised)}
    for container in strangers:
        engine.start(container, image=image)
    ours = [make(f"dead-{number}", shape.labels(dead)) for number in range(5)]
    lost: list[str] = []

    def churn(lane: int) -> None:
        for turn in range(2):
            names = [f"{kind}-{lane}-{turn}-{number}" for number in range(5) for kind in ("moves", "dies")]
            for name in names:
                make(name, shape.labels(living if name.startswith("moves") else dead))
            for name in names:
                if name.startswith("moves") and engine.labels(f"container:{name}") is None:
                    lost.append(name)
                engine.remove_container(name)  # the sweep may be doing just that to a dead one

    with ThreadPoolExecutor(5) as threads:
        churning = [threads.submit(churn, lane) for lane in range(5)]
        sweeps = 0
        while not all(future.done() for future in churning) or not sweeps:
            sweep(hosts.archive, ARCHIVE, own_sandbox)
            sweeps += 1
        for future in churning:
            future.result()
    assert lost == []
    assert not [container for container in ours if engine.labels(f"container:{container}") is not None]
    states = engine._api.containers(all=True)
    assert {state["Id"] for state in states if state["State"] == "running"} == strangers
    for container in strangers:
        engine.remove_container(container)


# F30, and what else dies


def test_a_call_over_its_time_is_gone_and_the_run_goes_on(own_night: Night, sleep: Sleep) -> None:
    """F30: container and process tree are gone within 5 s, the observation says so, and the next call runs."""
    script = f"""
- calls: [{{tool: run_command, arguments: {{command: "(setsid {sleep.command} &); {sleep.command}", timeout_s: 2}}}}]
- expect: time limit
  calls: [{{tool: run_command, arguments: {{command: "echo next >> log"}}}}]
- text: Done.
"""
    journal = own_night.submit(environment=TOOLBOX, script=script, checks=())
    with working(own_night) as ended:
        sleep.begun()
        wait_for(lambda: len(of(journal, Observed)) == 1)
        wait_for(lambda: not sleep.processes(), GONE_S)
    assert ended == ["sealed"]
    statuses = [observed.observation.status for observed in of(journal, Observed)]
    assert statuses == ["timeout", "ok"]


def test_a_killed_keeper_costs_the_call_in_hand(own_night: Night, own_engine: OwnEngine, sleep: Sleep) -> None:
    """The keeper is killed from outside in the middle of a call: infra/keeper, and the next attempt goes on from the
    last commit; each call has one committed result."""
    journal = own_night.submit(**logging(sleep))
    with working(own_night) as ended:
        sleep.begun()
        listed = own_engine.docker("ps", "--no-trunc", "--format={{.ID}} {{.Command}}").splitlines()
        (keeper,) = [line.split()[0] for line in listed if "keeper.py" in line]
        own_engine.docker("kill", keeper)
        sleep.end()
    assert ended == ["yielded"]
    given_back(journal, "infra/keeper")
    due(journal, own_night.station.now)
    with working(own_night) as ended:
        sleep.begun()
        sleep.end()
    assert ended == ["sealed"]
    assert len(of(journal, Observed)) == 2
    assert logged(journal) == ["one", "two", "three"]


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Path]:
    """A folder with a disk of its own, of one megabyte."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = tmp_path / "narrow"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_spool_gives_the_run_back(own_night: Night, own_engine: OwnEngine, narrow: Path) -> None:
    """An output that does not fit on the worker's disk: infra/disk, nothing of it stays there, and with room the run
    goes on."""
    script = "- calls: [{tool: run_command, arguments: {command: 'head -c 3000000 /dev/zero'}}]\n- text: Done."
    journal = own_night.submit(environment=TOOLBOX, script=script, checks=())
    sandbox = DockerSandbox(Settings(docker_url=own_engine.url, state_dir=narrow))
    try:
        assert own_night.work(sandbox=sandbox) == "yielded"
        given_back(journal, "infra/disk")
        assert [path for path in (narrow / "spool").rglob("*") if path.is_file() and path.stat().st_size] == []
        subprocess.run(["mount", "-o", "remount,size=64m", narrow], check=True)
        due(journal, own_night.station.now)
        assert own_night.work(sandbox=sandbox) == "sealed"
    finally:
        sandbox.close()
    (observed,) = of(journal, Observed)
    assert observed.observation.status == "ok"


# F36: the host is lost

HOST = """
import sys
from worker import attempt
from worker.contract.settings import Settings
from worker.main import open_station
attempt.run(sys.argv[1], open_station(Settings(), "host-1", "main"))
"""
"""A worker that works on one run: a host's process, without the doorbell."""
MINIMAL = r"""cd /usr/bin; ldd sh head | grep -o '/[^ ]*[0-9]' | sort -u |
xargs tar -c --dereference --transform 's,^\([a-z]*\)$,bin/\1,' sh head cat sleep rm 2>/dev/null"""
"""A root with a shell and four programs, of some megabytes, so that its way through the archive is short."""


@pytest.fixture
def only_there(own_engine: OwnEngine, own_sandbox: DockerSandbox, sandbox: DockerSandbox) -> Iterator[str]:
    """The name of an image that the engine of the tests' own has, and the machine's does not (nor afterwards)."""
    name = f"only-there:{secrets.token_hex(4)}"
    with own_sandbox.workspace(owner(), "toolbox", LIMITS) as workspace:
        tar = Shell(workspace).bytes(MINIMAL)
    repository, _, tag = name.partition(":")
    own_sandbox._engine._api.import_image_from_data(tar, repository=repository, tag=tag)
    image_id = own_sandbox.image_id(name)
    yield name
    if sandbox.has_image(image_id):
        sandbox._engine._api.remove_image(image_id, force=True)


def test_a_lost_host_s_run_goes_on_elsewhere(
    night: Night, own_engine: OwnEngine, only_there: str, sandbox: DockerSandbox, sleep: Sleep, tmp_path: Path
) -> None:
    """F36: worker, engine and its disk are gone in the middle of a call. Another host takes the image from the
    archive and goes on from the last commit: the call in hand runs again, and no reply is paid twice."""
    journal = night.submit(**logging(sleep) | {"environment": Environment(image=only_there)})
    env = {
        "DAWN_ARCHIVE": night.archive.url,
        "DAWN_REDIS_URL": str(night.station.settings.redis_url),
        "DAWN_DOCKER_URL": own_engine.url,
        "DAWN_STATE_DIR": str(tmp_path / "host-1"),
        "DAWN_STORE_IMAGES": "true",
        "DAWN_LEASE_TTL_S": str(FAST["lease_ttl_s"]),
        "DAWN_HEARTBEAT_S": str(FAST["heartbeat_s"]),
        "DAWN_OWN_DEADLINE_S": str(FAST["own_deadline_s"]),
    }
    with subprocess.Popen([sys.executable, "-c", HOST, "run-1"], env=os.environ | env) as host:
        sleep.begun()
        host.kill()
    own_engine.lose()
    before = [record for record, _ in journal.read()]
    assert not sandbox.has_image(only_there)
    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(lambda: wait_for(lambda: (how := night.work()) != "held" and how, 120))
        sleep.begun()
        sleep.end()
        assert ended.result() == "sealed"
    after = [record for record, _ in journal.read()]
    assert after[: len(before)] == before
    assert [reply.step for reply in of(journal, Replied)] == [1, 2, 3]
    assert len(of(journal, Observed)) == 2
    assert logged(journal) == ["one", "two", "three"]
