"""deploy/compose.yaml for real: Valkey, an S3 store, a scheduler and two workers as containers on this engine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import free_port, wait_for

pytestmark = [pytest.mark.docker, pytest.mark.full]

ROOT = Path(__file__).parent.parent
PROJECT = "dawntest"


class Compose:
    """One project of containers; scaled lease times, own ports."""

    def __init__(self) -> None:
        self._env = os.environ | {
            "DAWN_VENV": str(Path(sys.executable).parent.parent),
            "DAWN_COMPOSE_PROJECT": PROJECT,
            "DAWN_REDIS_PORT": str(free_port()),
            "DAWN_STORE_PORT": str(free_port()),
            "DAWN_LEASE_TTL_S": "6",
            "DAWN_HEARTBEAT_S": "1",
            "DAWN_OWN_DEADLINE_S": "4",
        }

    def __call__(self, *words: str) -> str:
        command = [str(ROOT / "deploy" / "compose.sh"), *words]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    def container(self, service: str) -> str:
        return self("ps", "-q", service).split()[-1]


@pytest.fixture(scope="module")
def compose() -> Iterator[Compose]:
    compose = Compose()
    try:
        compose("up", "-d")
        for service in ("worker-1", "worker-2"):
            name = compose.container(service)
            wait_for(lambda name=name: _health(name) == "healthy", timeout_s=180)
        yield compose
    finally:
        compose("down", "-v")


def _health(container: str) -> str:
    return _docker("inspect", "-f", "{{.State.Health.Status}}", container).strip()


def _docker(*words: str) -> str:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=True).stdout


def test_a_worker_container_killed_in_the_middle_of_a_batch_loses_nothing(compose: Compose, tmp_path: Path) -> None:
    """The demonstration ends as foretold on two workers although one is killed while it works."""
    scheduler = compose.container("scheduler")
    said = tmp_path / "said"
    with said.open("wb") as out:
        demo = subprocess.Popen(["docker", "exec", scheduler, "dawn", "demo"], stdout=out, stderr=subprocess.STDOUT)
        wait_for(lambda: b"step 1" in said.read_bytes() or demo.poll() is not None, timeout_s=120)
        assert demo.poll() is None, said.read_text()[-2000:]
        _docker("kill", "-s", "KILL", compose.container("worker-1"))
        assert demo.wait(240) == 0, said.read_text()[-3000:]
