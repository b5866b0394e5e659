"""Owns what is proved of an object store that errs, lies, breaks off or is away: whole attempts on the real engine,
with real stores behind a proxy. Refuses what one request proves: that is test_s3.py's.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from conftest import wait_for
from deployments import Deployment
from hosts import Held
from model_server import self_signed
from nights import LIMITS, Night, types
from proxies import RESET, Answer, HttpProxy, Sometimes, once, s3_error
from runs_made import Make
from test_tick import World

from scheduler import gc
from scheduler.cli.main import run as dawn
from scheduler.enqueue import freeze, submit
from scheduler.manifests.reading import parse
from worker import attempt
from worker import ledger as ledgers
from worker.contract.cancel import Cancel
from worker.contract.errors import ExitCode, Fault, IntegrityFault, StoreFault
from worker.contract.events import Claimed, Observation, Observed
from worker.contract.redact import Redactor
from worker.contract.script import parse_script
from worker.contract.settings import Settings
from worker.contract.task import Check, Limits, Repo, Task
from worker.lease import Lease
from worker.ledger import Ledger
from worker.models.scripted import ScriptedModel
from worker.sandbox.sandbox import DockerSandbox
from worker.spool import Spool
from worker.station import utc_now
from worker.store import keys, s3
from worker.store.archive import Archive
from worker.store.journal import Journal
from worker.store.local import LocalArchive
from worker.store.s3 import S3Archive

MIB = 2**20
PART_BYTES = 5 * MIB
NIGHT_S = 120
"""Whatever is waited for has long happened by then."""

TIMES = """
- calls:
    - {tool: run_command, arguments: {command: 'echo one >>log; date +%s.%N'}}
    - {tool: run_command, arguments: {command: 'echo two >>log; date +%s.%N'}}
- calls: [{tool: run_command, arguments: {command: 'echo three >>log; date +%s.%N'}}]
- text: Done.
"""
LOGGED = (Check(name="log", command="test \"$(echo $(cat log))\" = 'one two three'"),)
"""Each call took effect once, and in order."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between tries are scaled down: boto3's are up to 20 s, ours up to 15 s."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda self, context: 0.01)
    monkeypatch.setattr(ledgers, "STORE_DELAYS_S", (0.05,))


@pytest.fixture(params=["seaweed"])
def store(request: pytest.FixtureRequest) -> Settings:
    """Settings of a real store."""
    found: Settings = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def proxy(store: Settings) -> Iterator[HttpProxy]:
    with HttpProxy(str(store.s3_endpoint_url)) as found:
        yield found


@pytest.fixture
def bucket(store: Settings, proxy: HttpProxy) -> S3Archive:
    """An empty archive behind the proxy."""
    changes = {"s3_endpoint_url": proxy.url, "s3_part_bytes": PART_BYTES}
    return S3Archive(f"s3://dawn/{uuid.uuid4().hex}", store.model_copy(update=changes))


@pytest.fixture
def far(night: Night, bucket: S3Archive) -> Night:
    """A night whose archive lies behind the proxy."""
    night.archive = cast(Any, bucket)
    night.source = night._packed()
    night.station = replace(night.station, archive=bucket)
    return night


def puts(method: str, path: str) -> bool:
    return method == "PUT"


def puts_a_blob(method: str, path: str) -> bool:
    return method == "PUT" and "/runs/run-1/blobs/" in path


def no_trouble(method: str, path: str) -> None:
    return None


@contextmanager
def working(far: Night, proxy: HttpProxy, **changes: Any) -> Iterator[Future[str]]:
    """An attempt on run-1 while the block runs; the store is there again when it is left, and the attempt ended."""
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(far.work, **changes)
        finally:
            proxy.away, proxy.before, proxy.date = False, no_trouble, None


def outputs(journal: Journal) -> list[str]:
    events = (record.event for record, _ in journal.read())
    return [event.observation.output for event in events if isinstance(event, Observed)]


def environment(archive: S3Archive, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands of this process find the archive, and no stack."""
    monkeypatch.setenv("DAWN_ARCHIVE", archive.url)
    monkeypatch.setenv("DAWN_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("DAWN_REDIS_URL", raising=False)
    for name, value in of_the_store(archive._settings).items():
        monkeypatch.setenv(name, value)


def of_the_store(settings: Settings) -> dict[str, str]:
    names = ("s3_endpoint_url", "s3_access_key_id", "s3_secret_access_key", "s3_part_bytes")
    return {f"DAWN_{name.upper()}": str(getattr(settings, name)) for name in names}


# Faults of a store that is there.


@pytest.mark.docker
def test_runs_finish_on_a_store_that_fails_three_requests_in_ten(far: Night, proxy: HttpProxy) -> None:
    """503, 500 and resets: two runs at once end verified, no call twice, and what waits on disk stays in its bound
    (F37)."""
    limits = LIMITS.model_copy(update={"snapshot_bytes": 2 * MIB, "output_kept_bytes": MIB})
    noise = "head -c 500000 /dev/urandom | base64 -w0 | tee noise"
    script = TIMES.replace("echo one", f"{noise}; echo; echo one")
    journals = [far.submit(run, script=script, checks=LOGGED, limits=limits) for run in ("run-1", "run-2")]
    spool, on_disk = Spool(4 * MIB), [0]
    folder = far.station.sandbox._spool
    fails = Sometimes(37, 0.3, [s3_error(503, "SlowDown"), s3_error(500, "InternalError"), RESET])

    def before(method: str, path: str) -> Answer | None:
        on_disk.append(sum(size for file in folder.rglob("*") if (size := size_of(file)) is not None))
        return cast(Any, fails(method, path))

    def finish(run: str) -> None:
        wait_for(lambda: far.work(run, spool=spool) == "sealed", NIGHT_S)

    proxy.before = before
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(finish, ("run-1", "run-2")))
    proxy.before = no_trouble
    for journal in journals:
        sealed = journal.load().sealed
        assert sealed is not None
        assert sealed.verdict == "verified"
        assert len(outputs(journal)) == 3
        assert journal.verify() == []
    assert len(fails.struck) > 20
    assert MIB // 2 < max(on_disk) <= 4 * MIB + 2 * MIB  # the spool, and the outputs of two calls in hand
    assert spool.held == 0


def size_of(file: Path) -> int | None:
    """None when it went meanwhile."""
    try:
        return file.stat().st_size if file.is_file() else 0
    except OSError:
        return None


def test_lost_answers_double_no_segment(bucket: S3Archive, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """One PUT in ten is stored and its answer dropped: each commit stands once, in order, and none is taken for
    somebody else's (F38)."""
    monkeypatch.setattr(s3, "ATTEMPTS", 1)  # so that the journal itself has to try again
    journal = Journal(bucket, "r")
    journal.submit(task("r"), by="ann", at=utc_now())
    ledger = Ledger(journal, cast(Lease, Held()), Cancel(), Redactor({}), utc_now)
    ledger.claim(Claimed(worker="w", engine="e", lane="main"))
    drops = Sometimes(38, 0.1, [True], puts)
    proxy.after = drops
    for n in range(100):
        ledger.commit(Observed(observation=Observation(call_id=f"c{n}", tool="run_command", status="ok")))
    calls = [r.event.observation.call_id for r, _ in journal.read() if isinstance(r.event, Observed)]
    assert calls == [f"c{n}" for n in range(100)]
    assert len(list(bucket.list(keys.journal("r")))) == 102
    assert journal.load() == ledger.run
    assert journal.verify() == []
    assert len(drops.struck) >= 5


def task(run: str) -> Task:
    repo = Repo(url="https://git.example.org/cart")
    return Task(run=run, batch="b", target="t", repo=repo, commands=("true",))


def test_a_killed_upload_is_invisible_and_swept(
    bucket: S3Archive,
    proxy: HttpProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kill -9 in the middle of a multipart upload: no reader sees anything of it, and `dawn gc` aborts it (F40)."""
    large = tmp_path / "large"
    large.write_bytes(bytes(3 * PART_BYTES))
    reached, go_on = threading.Event(), threading.Event()

    def holds(method: str, path: str) -> Answer | None:
        if "partNumber=2" not in path:
            return None
        reached.set()
        go_on.wait(NIGHT_S)
        return RESET

    proxy.before = holds
    code = (
        "import sys; from pathlib import Path; from worker.contract.settings import Settings\n"
        "from worker.store.archive import open_archive\n"
        "open_archive(sys.argv[1], Settings()).create('images/x.tar', Path(sys.argv[2]))"
    )
    env = os.environ | of_the_store(bucket._settings)
    with subprocess.Popen([sys.executable, "-c", code, bucket.url, str(large)], env=env) as writer:
        assert reached.wait(NIGHT_S)
        writer.kill()
    go_on.set()
    proxy.before = no_trouble
    assert list(bucket.list("")) == []
    assert bucket.size("images/x.tar") is None
    assert unfinished(bucket) == 1
    environment(bucket, monkeypatch, tmp_path)
    assert dawn(["gc"]) == 0
    assert unfinished(bucket) == 1, "it may still be going on"
    monkeypatch.setattr(gc, "UNFINISHED_S", 0)
    assert dawn(["gc"]) == 0
    assert unfinished(bucket) == 0
    assert bucket.create("images/x.tar", large)


def unfinished(archive: S3Archive) -> int:
    """Multipart uploads in the bucket that are not at their end."""
    prefix = archive.url.removeprefix("s3://dawn/")
    found = archive._client.list_multipart_uploads(Bucket="dawn", Prefix=prefix).get("Uploads", ())
    return len(list(found))


def test_nothing_starts_on_a_store_without_conditional_writes(
    rclone: Settings, redis_url: str, tmp_path: Path
) -> None:
    """`dawn doctor` and a worker name the reason and the way out, and end with 75 (F41)."""
    shop = Deployment(tmp_path, "s3://dawn/x", **of_the_store(rclone), DAWN_REDIS_URL=redis_url)
    for command in ("doctor", "worker"):
        done = shop.dawn(command)
        assert done.code == ExitCode.TRY_LATER, done
        said = done.out + done.err
        assert "ignores conditional writes" in said
        assert "If-None-Match" in said


# Faults of a store that is away, and comes back.


@dataclass
class Beats:
    """Redis, counting how often a lease was extended."""

    real: Any
    count: int = 0

    def extend(self, *rest: Any) -> Any:
        self.count += 1
        return self.real.extend(*rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class Said:
    """A log that is kept."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append(f"{event} {fields}")


@pytest.mark.docker
def test_no_call_runs_while_the_store_is_away(far: Night, proxy: HttpProxy) -> None:
    """Away for several terms of the lease: the call that had ended waits with its output, the next one begins when
    its commit is there, and the same attempt goes on; nothing is repeated (F43)."""
    journal = far.submit(script=TIMES, checks=LOGGED)
    beats, away = Beats(far.station.hints), threading.Event()
    terms = 2 * far.station.settings.lease_ttl_s / far.station.settings.heartbeat_s

    def goes(method: str, path: str) -> Answer | None:
        if puts_a_blob(method, path) and not away.is_set():
            proxy.away = True
            beats.count = 0
            away.set()
            return RESET
        return None

    proxy.before = goes
    with working(far, proxy, hints=beats) as ended:
        assert away.wait(NIGHT_S)
        wait_for(lambda: beats.count > terms, NIGHT_S)
        assert not ended.done()
        back_at = time.time()
    assert ended.result() == "sealed"
    first, second, third = (float(output) for output in outputs(journal))
    assert first < back_at < second < third
    assert types(journal).count("claimed") == 1
    assert types(journal).count("observed") == 3
    sealed = journal.load().sealed
    assert sealed is not None
    assert sealed.verdict == "verified"
    assert journal.verify() == []


@pytest.mark.docker
def test_a_store_that_stays_away_gets_the_run_back_and_nothing_is_repeated(
    far: Night, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past the patience the attempt ends without a word; the call that was not committed is rolled back, and the next
    attempt ends the run with each effect once (F43)."""
    journal = far.submit(script=TIMES, checks=LOGGED)
    monkeypatch.setattr(ledgers, "STORE_PATIENCE_S", 0.2)
    proxy.before = once(RESET, lambda method, path: "/runs/run-1/snapshots/" in path and leave(proxy))
    assert far.work() == "left"
    assert far.leftovers() == []
    proxy.away = False
    assert types(journal)[-1] == "replied"
    assert far.work() == "sealed"
    assert types(journal).count("observed") == 3
    sealed = journal.load().sealed
    assert sealed is not None
    assert sealed.verdict == "verified"


def leave(proxy: HttpProxy) -> bool:
    proxy.away = True
    return True


@pytest.mark.docker
def test_a_wrong_clock_keeps_finished_work_and_uploads_it_later(
    far: Night, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store refuses every upload for the clock when the work is done: the log names the offset, the artifacts
    wait, and once the clock is right they are stored by the same attempt; the job is not run again (T65)."""
    said, outputs_put = Said(), Sometimes(65, 1, [True], puts_a_blob)
    monkeypatch.setattr(ledgers, "LOG", said)

    def refuses(method: str, path: str) -> Answer | None:
        if not outputs_put(method, path) or len(outputs_put.struck) <= 3:
            return None
        proxy.date = datetime.now(UTC) + timedelta(hours=2)
        return s3_error(403, "RequestTimeTooSkewed")

    proxy.before = refuses
    journal = far.submit(script=TIMES, checks=LOGGED)
    with working(far, proxy) as ended:
        wait_for(lambda: len(outputs_put.struck) > 5 or ended.done(), NIGHT_S)
        assert not ended.done()
        assert types(journal)[-1] == "finished"
    assert ended.result() == "sealed"
    assert any("clock is 7200 s behind" in line or "clock is 7199 s behind" in line for line in said.lines)
    assert types(journal).count("claimed") == 1
    assert len(outputs(journal)) == 3
    run = journal.load()
    assert run.sealed is not None
    assert (run.sealed.verdict, run.infra_yields) == ("verified", 0)
    assert journal.get_blob(run.sealed.artifacts["patch.diff"])


# Bytes that changed where they lie.


class Died(BaseException):
    """As kill -9, in the test's own process."""


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory, sandbox: DockerSandbox, _valkey: str) -> Iterator[Night]:
    """A run of which two calls are committed and whose attempt is dead; the next step reads the first's output."""
    night = Night(tmp_path_factory.mktemp("interrupted") / "archive", sandbox, _valkey)
    script = """
- calls: [{tool: run_command, arguments: {command: 'echo one >>log; seq 20000'}}]
- calls: [{tool: run_command, arguments: {command: 'echo two >>log'}}]
- calls: [{tool: read_output, arguments: {call_id: call_1_1}}]
- text: Done.
"""

    class Dies(ScriptedModel):
        def reply(self, request: Any, **rest: Any) -> Any:
            if request.step == 3:
                raise Died
            return super().reply(request, **rest)

    night.submit(script=script, checks=())
    with pytest.raises(Died):
        night.work(open_model=lambda task: Dies(task.model, parse_script(task.script or "", "script")))
    yield night
    night.station.hints.close()


@pytest.mark.docker
@pytest.mark.parametrize(
    ("damaged", "part"),
    [
        ("nothing", 0),
        ("task", 0),
        ("task", 0.5),
        ("segment", 0.5),
        ("newest segment", 0.5),
        ("snapshot", 0),
        ("snapshot", 0.5),
        ("blob", 0.5),
        ("level 0", 0),
        ("level 0", 0.5),
        ("env.json", 0),
        ("env.json", 0.5),
    ],
)
def test_a_flipped_byte_ends_a_resumed_run_in_sight(
    interrupted: Night, tmp_path: Path, damaged: str, part: float
) -> None:
    """Whatever of it the next attempt needs, wherever the byte is, the run is failed as infra/store with the object
    named, and verify names it too: never read as valid, never left silent (F44)."""
    folder = tmp_path / "archive"
    shutil.copytree(interrupted.archive.url.removeprefix("file://"), folder)
    archive = LocalArchive(folder.as_uri())
    journal = Journal(archive, "run-1")
    run = journal.load()
    assert run.prepared is not None
    blob = next(r.event.observation.blob for r, _ in journal.read() if isinstance(r.event, Observed))
    prepared = archive.get(keys.environment(run.prepared.environment_key))
    key = {
        "nothing": None,
        "task": keys.task("run-1"),
        "segment": keys.segment("run-1", 3),
        "newest segment": keys.segment("run-1", run.last_seq),
        "snapshot": keys.snapshot("run-1", str(run.chain[0].object)),
        "blob": keys.blob("run-1", str(blob)),
        "level 0": keys.environment_blob(run.prepared.environment_key, json.loads(prepared)["snapshot"]),
        "env.json": keys.environment(run.prepared.environment_key),
    }[damaged]
    if key is not None:
        whole = bytearray((folder / key).read_bytes())
        whole[int(len(whole) * part)] ^= 1
        (folder / key).chmod(0o600)
        (folder / key).write_bytes(whole)
    ended = attempt.run("run-1", replace(interrupted.station, archive=archive))
    if key is None:
        sealed = journal.load().sealed
        assert sealed is not None
        assert (ended, sealed.failure, journal.verify()) == ("sealed", None, [])
        return
    assert ended in ("sealed", "damaged")
    ended_by_damage(journal, key)
    assert any(key in problem for problem in journal.verify())
    assert interrupted.leftovers() == []


@pytest.mark.docker
def test_a_torn_message_ends_a_run_that_is_worked_on_in_sight(interrupted: Night, tmp_path: Path) -> None:
    """What a person said and nobody can read is not passed over: the attempt ends the run as infra/store with the
    object named, though its journal is sound (F44)."""
    archive = LocalArchive((tmp_path / "archive").as_uri())
    shutil.copytree(interrupted.archive.url.removeprefix("file://"), tmp_path / "archive")
    archive.create(keys.inbox("run-1", 0), b'{"n": 0, "kind": "canc')
    assert attempt.run("run-1", replace(interrupted.station, archive=archive)) == "damaged"
    ended_by_damage(Journal(archive, "run-1"), keys.inbox("run-1", 0))
    assert archive.size(keys.open_marker("run-1")) is None


@pytest.mark.parametrize("whose", ["run", "batch"])
def test_a_torn_message_ends_its_waiting_runs_and_stops_no_other(
    make_run: Make, archive: Archive, redis_url: str, whose: str
) -> None:
    """The scheduler ends whom it was for, as infra/store with the object named, and rings the others (F44)."""
    for run in ("bad-1", "bad-2"):
        make_run(run)
    make_run("good", batch="other")
    key = keys.inbox("bad-1", 0) if whose == "run" else keys.batch_control("night-0123456789ab", 0)
    archive.create(key, b'{"n": 0, "kind": "canc')
    world = World(archive, redis_url)
    world.hints.poke("run:bad-1", 0)
    world.offer(4)
    rung = {run for run, _ in world.tick()}
    assert rung == ({"good", "bad-2"} if whose == "run" else {"good"})
    ended_by_damage(Journal(archive, "bad-1"), key)
    assert (Journal(archive, "bad-2").load().sealed is None) == (whose == "run")
    assert world.tick(60) == []


def ended_by_damage(journal: Journal, key: str) -> None:
    """The run is sealed as failed, and says which object is damaged."""
    sealed = journal.load().sealed
    assert sealed is not None
    assert str(sealed.failure) == "infra/store"
    assert sealed.failure is not None
    assert key in sealed.failure.detail


# Stores that do not know, or do not tell, what they should.


@pytest.fixture
def raw(moto: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Archive]:
    """An empty archive on an endpoint that stores bodies as they come; with TLS, without which the SDK sends none
    in chunks."""
    certificate, key = tmp_path / "certificate", tmp_path / "key"
    self_signed(certificate, key)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    with HttpProxy(str(moto.s3_endpoint_url), (certificate, key)) as proxy:
        proxy.raw = True
        changes = {"s3_endpoint_url": proxy.url, "s3_part_bytes": PART_BYTES}
        yield S3Archive(f"s3://dawn/{uuid.uuid4().hex}", moto.model_copy(update=changes))


@pytest.mark.parametrize("size", [6, 80 * MIB])
def test_an_endpoint_that_keeps_the_framing_of_chunked_bodies_gets_none(
    raw: S3Archive, tmp_path: Path, size: int
) -> None:
    """Where what is sent is stored raw, `hello\\n` and 80 MB arrive as they are (T63)."""
    path = tmp_path / "source"
    with path.open("wb") as file:
        file.write(b"hello\n")
        while (left := size - file.tell()) > 0:
            file.write(os.urandom(min(left, 8 * MIB)))
    assert raw.create("x", path)
    assert raw.size("x") == size
    with path.open("rb") as file:
        assert all(file.read(len(chunk)) == chunk for chunk in raw.chunks("x"))
        assert file.read(1) == b""


def test_framing_that_an_endpoint_stored_is_an_error(raw: S3Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were bodies sent in chunks, as the SDK does by default, the mismatch is found and nothing stays (T63)."""
    ours = s3.Config
    default = {"request_checksum_calculation": "when_supported"}
    monkeypatch.setattr(s3, "Config", lambda **options: ours(**(options | default)))
    with pytest.raises(IntegrityFault, match="stored damaged"):
        raw.create("x", b"hello\n")
    assert raw.size("x") is None


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("count", "page"),
    [
        (25, 10),
        pytest.param(1200, 100, marks=pytest.mark.full),
        pytest.param(1200, 1000, marks=pytest.mark.full),
    ],
)
def test_a_batch_of_many_pages_is_whole(
    store: Settings,
    bucket: S3Archive,
    proxy: HttpProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    count: int,
    page: int,
) -> None:
    """Every run is listed and counted, whether the endpoint pages by 1,000 or by less; a submit cut off after
    half of them is completed by the next, which changes nothing of the rest (T66)."""
    proxy.onward = lambda path: f"{path}&max-keys={page}" if "list-type=2" in path else path
    proxy.keys = str(store.s3_access_key_id), str(store.s3_secret_access_key)
    direct = S3Archive(bucket.url, store)
    environment(bucket, monkeypatch, tmp_path)
    urls = [f"https://git.example.org/r{n}" for n in range(count)]
    many = {"targets": [{"repo": u} for u in urls], "max_targets": count}
    text = json.dumps({"version": 1, "name": "n", "task": {"commands": ["x"]}} | many)
    batch = freeze(parse(text, "m", tmp_path, Limits()), [Repo(url=u, label=u[24:]) for u in urls])
    cut_off = replace(batch, tasks=batch.tasks[: count // 2])
    assert submit(cut_off, direct, by="ann", at=utc_now()) == count // 2
    assert len(listed(batch.id, capsys)) == count // 2
    assert submit(batch, direct, by="ann", at=utc_now()) == count - count // 2
    rows = listed(batch.id, capsys)
    assert [row["run"] for row in rows] == [task.run for task in batch.tasks]
    assert {row["status"] for row in rows} == {"queued"}
    assert sorted(bucket.folders("runs/")) == sorted(task.run for task in batch.tasks)
    assert len(list(bucket.list("open/"))) == count
    assert any("continuation-token" in line for line in proxy.seen)


def listed(batch: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert dawn(["status", batch, "--json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["runs"]
    return rows


def bomb(method: str, path: str) -> Answer:
    """Ten lines that would be a gigabyte."""
    entities = '<!ENTITY a0 "ha">' + "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    return Answer(
        200, f'<?xml version="1.0"?><!DOCTYPE x [{entities}]><ListBucketResult>&a9;</ListBucketResult>'.encode()
    )


def endless(method: str, path: str) -> Answer:
    """A list whose next page is the same one."""
    return Answer(
        200,
        b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>n</NextContinuationToken>"
        b"</ListBucketResult>",
    )


@pytest.mark.parametrize("answer", [bomb, endless])
def test_a_hostile_list_is_refused(
    bucket: S3Archive, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch, answer: Callable[[str, str], Answer]
) -> None:
    """A gigabyte of entities and pages that lead nowhere end as a fault of the store, in 128 MiB (H59)."""
    monkeypatch.setattr(s3, "ATTEMPTS", 1)
    assert list(bucket.list("runs/")) == []
    proxy.before, before_kb = answer, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Fault):
        list(bucket.list("runs/"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 128 * 1024


@pytest.mark.parametrize("status", [301, 307])
def test_a_redirect_to_another_host_is_not_followed(bucket: S3Archive, proxy: HttpProxy, status: int) -> None:
    """Neither a read nor a write goes where the store points, and its keys go nowhere (H59)."""
    with HttpProxy(proxy.url) as other:
        where = {"Location": f"{other.url}/dawn/x", "x-amz-bucket-region": "eu-north-1"}
        proxy.before = lambda method, path: Answer(status, b"", where)
        with pytest.raises(StoreFault):
            bucket.create("x", b"1")
        with pytest.raises(StoreFault):
            bucket.get("x")
        assert other.seen == []


def test_an_etag_that_says_nothing_is_no_proof(bucket: S3Archive, proxy: HttpProxy) -> None:
    """Where the ETag is not that of the bytes, they are read back: right ones are taken, wrong ones refused (H59)."""
    proxy.before = once(Answer(200, b"", {"ETag": '"0123"'}), puts)
    with pytest.raises(Fault):
        bucket.create("x", b"never stored")
    assert bucket.create("x", b"stored")
    assert bucket.get("x") == b"stored"
