"""Every class of failure, made on purpose in one batch on a real stack, and retried by its class."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import wait_for
from deployments import Deployment
from engines import EngineProxy
from proxies import Answer
from repositories import commit_all, git

from worker.base_image import SETUP_IMAGE
from worker.contract.events import Yielded
from worker.contract.settings import Settings
from worker.sandbox import images
from worker.store.journal import Journal

pytestmark = [pytest.mark.docker, pytest.mark.full]

BUSY = f"registry.example/{secrets.token_hex(6)}:1"
"""An image to build on that the engine lacks."""
TOO_MANY = Answer(500, b'{"message": "toomanyrequests: You have reached your pull rate limit."}')
NO_SPACE = Answer(500, b'{"message": "write /var/lib/docker/x: no space left on device"}')
STEPS = 5
MANIFEST = f"""\
version: 1
name: night
targets:
- {{repo: code, id: good, vars: {{way: good}}}}
- {{repo: code, id: steps, vars: {{way: steps}}}}
- {{repo: code, id: empty, vars: {{way: empty}}}}
- {{repo: code, id: workflow, vars: {{way: workflow}}}}
- {{repo: code, id: bad-request, vars: {{way: bad-request}}}}
- {{repo: code, id: ref, ref: nope, vars: {{way: good}}}}
- {{repo: code, id: image, image: 'nobody/nothing:1', vars: {{way: good}}}}
- {{repo: code, id: full-disk, vars: {{way: good}}}}
task: {{prompt: 'Work the way of {{{{ vars.way }}}}.', model: openai/acme}}
limits: {{steps: {STEPS}, memory_bytes: 268435456}}
"""
BUILT = """\
version: 1
name: built
targets: [{repo: code}]
task: {commands: [echo 42 > answer]}
environment: {image: {dockerfile: Dockerfile}}
limits: {memory_bytes: 268435456}
"""
SLEEP = f"sleep 600.{secrets.randbelow(10**9):09}"
"""Known on this host by its length, which nobody else sleeps."""
LIMIT_S = 30
GRACE_S = 60
"""Whatever takes longer hangs, also on a machine with much else to do."""
SLOW = f"""\
version: 1
name: slow
targets:
- {{repo: code, id: frozen, vars: {{way: frozen}}}}
- {{repo: code, id: silent, vars: {{way: silent}}}}
- {{repo: code, id: a, vars: {{way: good}}}}
- {{repo: code, id: b, vars: {{way: good}}}}
- {{repo: code, id: c, vars: {{way: good}}}}
- {{repo: code, id: d, vars: {{way: good}}}}
task: {{prompt: 'Work the way of {{{{ vars.way }}}}.', model: openai/acme}}
limits: {{working_time_s: {LIMIT_S}, call_timeout_s: {LIMIT_S}, memory_bytes: 268435456}}
"""
TEN = """\
version: 1
name: ten
targets:
- {repo: code, id: t1}
- {repo: code, id: t2}
- {repo: code, id: t3}
- {repo: code, id: t4, image: 'nobody/nothing:1'}
- {repo: code, id: t5}
- {repo: code, id: t6}
- {repo: 'http://127.0.0.1:9/gone.git', id: t7}
- {repo: code, id: t8}
- {repo: code, id: t9, reff: dev}
- {repo: code, id: t10}
task: {commands: [echo 42 > answer]}
limits: {memory_bytes: 268435456}
"""
FAILURES = {
    "good": None,
    "steps": "limit/steps",
    "empty": "agent/empty_replies",
    "workflow": "refused/guard",
    "bad-request": "provider/bad_request",
    "ref": "env/ref",
    "image": "env/image",
    "full-disk": "infra/engine",
}


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def runs(command: str) -> dict[str, Any]:
    function = {"name": "run_command", "arguments": json.dumps({"command": command})}
    return {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}


WAYS: dict[str, Callable[[int], dict[str, Any] | None]] = {
    "good": lambda step: says("Done.") if step else runs("echo 42 > answer"),
    "steps": lambda step: runs(f"echo {step} >> answer"),
    "empty": lambda step: says(""),
    "workflow": lambda step: (
        says("Done.") if step else runs("mkdir -p .github/workflows; echo 'on: push' > .github/workflows/x.yml")
    ),
    "bad-request": lambda step: None,
    "frozen": lambda step: runs(SLEEP),
    "silent": lambda step: None,
}
"""What the model answers in a step; None is an error of status 400. To whom is silent it answers nothing."""


@dataclass
class Acme:
    """A model that goes wrong in the way that its prompt names, until all is mended."""

    url: str = ""
    mended: bool = False
    hung: threading.Event = field(default_factory=threading.Event)

    def reply(self, messages: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        prompt = str(messages)
        way = next(way for way in WAYS if f"the way of {way}." in prompt)
        if way == "silent":
            self.hung.wait()
        step = sum(message["role"] == "assistant" for message in messages)
        return WAYS["good" if self.mended else way](step)


@contextmanager
def serving(acme: Acme) -> Iterator[Acme]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            message = acme.reply(asked["messages"])
            told: dict[str, Any] = {"error": {"message": "as asked by a test"}}
            if message is not None:
                stop = "tool_calls" if "tool_calls" in message else "stop"
                usage = {"prompt_tokens": 10, "completion_tokens": 10}
                told = {"choices": [{"message": message, "finish_reason": stop}], "usage": usage}
            body = json.dumps(told).encode()
            self.send_response(200 if message else 400)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            with suppress(OSError):  # whoever asked waited for too long
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        acme.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield acme
        acme.hung.set()
        server.shutdown()


@dataclass(frozen=True)
class Bad:
    """A night that has gone wrong in every way. rows: of its runs. built: of the one whose image a registry was too
    busy for. requests: what the engine was asked meanwhile."""

    deployment: Deployment
    rows: list[dict[str, Any]]
    built: dict[str, Any]
    requests: list[str]
    acme: Acme

    @property
    def batch(self) -> str:
        return str(self.rows[0]["batch"])


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bad]:
    """Over one submit; what was wrong with model and disk is mended afterwards."""
    folder = tmp_path_factory.mktemp("night")
    (folder / "code").mkdir()
    (folder / "code" / "answer").write_text("41\n")
    git(folder / "code", "init", "--quiet", "--initial-branch=main")
    commit_all(folder / "code", "first")
    (folder / "night.yaml").write_text(MANIFEST)
    (folder / "built.yaml").write_text(BUILT)
    (folder / "Dockerfile").write_text(f"FROM {BUSY}\n")
    proxy = EngineProxy(Settings().docker_url or "unix:///var/run/docker.sock", folder)
    requests: list[str] = []

    def before(method: str, path: str) -> Answer | None:
        requests.append(f"{method} {path}")
        if "/images/create" in path:
            return pulled(sum("/images/create" in one for one in requests))
        creating = method == "POST" and "/containers/create?name=dawnfleet-" in path
        return NO_SPACE if creating and target(path.partition("name=dawnfleet-")[2]) == "full-disk" else None

    def pulled(number: int) -> Answer:
        if number < 3:
            return TOO_MANY
        subprocess.run(["docker", "tag", images.reference("python"), BUSY], check=True)
        return Answer(200, b'{"status": "Downloaded newer image"}')

    @cache
    def target(name: str) -> str:
        archive = deployment.archive
        run = next(run for run in archive.folders("runs/") if name.startswith(f"{run}-"))
        return Journal(archive, run).task().target

    with serving(Acme()) as acme:
        deployment = Deployment(
            folder,
            DAWN_OPENAI_BASE_URL=acme.url,
            OPENAI_API_KEY="a-key-0815",
            DAWN_DOCKER_URL=proxy.url,
            DAWN_INFRA_BACKOFF_S="[0.5, 1, 2]",
        )
        proxy.before = before
        with deployment.up():
            rows = deployment.ran("submit", folder / "night.yaml", code=4)
            [built] = deployment.ran("submit", folder / "built.yaml")
            proxy.before, acme.mended = lambda method, path: None, True
            yield Bad(deployment, rows, built, requests, acme)
            made = [run.prepared.image_name or "" for run in map(deployment.run, deployment.runs()) if run.prepared]
            setups = {name for name in made if name.startswith(f"{SETUP_IMAGE}:")}
            subprocess.run(["docker", "rmi", BUSY, *setups], check=True, capture_output=True)
    proxy.close()


@pytest.fixture
def slow(night: Bad) -> Iterator[Deployment]:
    """The same stack, with a model that is not mended."""
    night.acme.mended = False
    yield night.deployment
    night.acme.mended = True


def test_each_failure_is_of_its_class(night: Bad) -> None:
    """And stops no other run: of eight targets one is done, and seven say what went wrong with them."""
    assert {row["target"]: row["failure"] for row in night.rows} == FAILURES
    assert [row["target"] for row in night.rows] == list(FAILURES)
    assert {row["outcome"] for row in night.rows if row["failure"]} == {"failed"}


def test_a_full_disk_is_tried_again_and_named(night: Bad) -> None:
    """T54: twice the run is given back, each time for a while, then it fails as infra with the engine's own words; no
    failure of an agent is counted."""
    [row] = [row for row in night.rows if row["target"] == "full-disk"]
    assert "no space left on device" in row["detail"]
    assert (row["steps"], row["claims"]) == (0, 3)
    records = [record for record, _ in Journal(night.deployment.archive, row["run"]).read()]
    given_back = [record.event for record in records if isinstance(record.event, Yielded)]
    assert [str(event.failure) for event in given_back] == ["infra/engine"] * 2
    claims = [record.at for record in records if record.event.type == "claimed"]
    first, second = (str(event.not_before) for event in given_back)
    assert claims[0] < first <= claims[1] < second <= claims[2]


def test_a_registry_that_is_asked_too_much_is_asked_again(night: Bad) -> None:
    """T54: twice the run is given back with the registry's words, then the image comes and the run is done; a named
    image is never pulled."""
    row = night.built
    assert (row["outcome"], row["failure"], row["claims"]) == ("changed", None, 3)
    events = night.deployment.events(row["run"])
    given_back = [event.failure for event in events if isinstance(event, Yielded) and event.failure is not None]
    assert [str(failure) for failure in given_back] == ["infra/engine"] * 2
    assert all("toomanyrequests: You have reached" in failure.detail for failure in given_back)
    pulls = [request for request in night.requests if "/images/create" in request]
    assert len(pulls) == 3
    assert all(BUSY.rpartition("/")[2].partition(":")[0] in pull for pull in pulls)


@pytest.mark.parametrize("cls", ["limit", "agent", "refused", "provider", "env", "infra"])
def test_a_class_is_retried_and_nothing_else(night: Bad, cls: str) -> None:
    """T53: each run that failed with it is begun anew in its batch, in the order of the manifest, and no other; what
    was mended is done now, and what was not fails the same way. The old runs stay as they were."""
    deployment = night.deployment
    failed = [row for row in night.rows if (row["failure"] or "").startswith(f"{cls}/")]
    before = {run: deployment.run(run) for run in deployment.runs()}
    made = deployment.dawn("retry", night.batch, "--class", cls, "--json")
    assert made.code == 0, made
    new = made.json["runs"]
    assert [(row["target"], row["ordinal"]) for row in new] == [(row["target"], 1) for row in failed]
    assert set(deployment.runs()) - set(before) == {row["run"] for row in new}
    for row in new:
        deployment.awaited(row["run"], "sealed")
    ended = [deployment.run(row["run"]).sealed for row in new]
    assert {run: deployment.run(run) for run in before} == before
    told = [(one.outcome, one.failure and str(one.failure)) for one in ended if one is not None]
    assert told == [("failed", row["failure"]) if cls == "env" else ("changed", None) for row in failed]


def container_of(command: str) -> str | None:
    """The id of the container in which it runs, by the control group of its process."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            if (process / "cmdline").read_bytes() == command.replace(" ", "\0").encode() + b"\0":
                return str(re.findall(r"[0-9a-f]{64}", (process / "cgroup").read_text())[-1])
    return None


def test_what_stands_still_ends_at_its_limit(slow: Deployment) -> None:
    """T55: a container that is frozen in a call and a provider that never answers end as time-outs; the four others
    are done, and the batch ends. Meanwhile its board has counts by status and, of each at work, step and age."""
    folder = slow.state.parent
    (folder / "slow.yaml").write_text(SLOW)
    done = slow.dawn("submit", folder / "slow.yaml", "--detach", "--json")
    assert done.code == 0, done
    [made] = done.json["batches"]
    batch, (still, unheard, *good) = made["id"], made["runs"]
    frozen = wait_for(lambda: container_of(SLEEP))
    subprocess.run(["docker", "pause", frozen], check=True, capture_output=True)
    for run in good:
        slow.awaited(run, "sealed")
    [board] = slow.dawn("watch", batch, "--once", "--json").json["batches"]
    assert board["counts"] == {"unverified": 4, "still running": 2}
    at_work = {one["target"]: one for one in board["working"]}
    assert {target: (one["step"], one["doing"]) for target, one in at_work.items()} == {
        "frozen": (1, "run_command"),
        "silent": (0, "asks the model"),
    }
    assert all(0 < one["age_s"] <= one["working_s"] for one in at_work.values())
    watched = slow.dawn("watch", batch)
    assert watched.code == 4, watched
    for run in map(slow.run, (still, unheard)):
        assert run.sealed is not None
        assert str(run.sealed.failure) == "limit/wall"
        assert LIMIT_S <= run.working_s < LIMIT_S + GRACE_S
    assert [one.outcome for run in good if (one := slow.run(run).sealed) is not None] == ["changed"] * 4


def test_of_ten_targets_each_bad_one_is_told_by_itself(night: Bad) -> None:
    """T49: a field that nobody knows is told with its line before anything starts; once it is gone, a missing image
    and a repository that nobody can read fail with their reasons, and the others are done."""
    deployment = night.deployment
    file, before = deployment.state.parent / "ten.yaml", deployment.runs()
    file.write_text(TEN)
    refused = deployment.dawn("submit", file)
    assert refused.code == 3
    assert f"{file}:12:24 unknown-key targets[8].reff" in refused.err
    assert deployment.runs() == before
    file.write_text(TEN.replace(", reff: dev", ""))
    rows = {row["target"]: row for row in deployment.ran("submit", file, code=4)}
    assert {target: row["failure"] for target, row in rows.items() if row["failure"]} == {
        "t4": "env/image",
        "t7": "env/repository",
    }
    assert "no image nobody/nothing:1" in rows["t4"]["detail"]
    assert "cannot read http://127.0.0.1:9/gone.git" in rows["t7"]["detail"]
    assert [row["outcome"] for row in rows.values()].count("changed") == 8
