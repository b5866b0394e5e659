"""The keys of a worker stay with the worker (T67): one whole run on a bucket with a provider, looked at from
everywhere."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from deployments import Deployment, Done
from model_server import ModelServer
from repositories import first_commit

from worker.contract.settings import Settings

pytestmark = pytest.mark.docker

PROVIDER_KEY = "sk-canary-0815-provider"
REPOSITORY_TOKEN = "canary-4711-repository"
LOOK = "env; cat /proc/*/environ | tr '\\0' '\\n'; echo looked"


@dataclass
class Night:
    """What one run left and showed. seen: texts by where they were seen; agent: what its own command printed."""

    done: Done
    row: dict[str, Any]
    values: dict[str, str]
    agent: str
    seen: dict[str, bytes] = field(default_factory=dict)

    def leaks(self, *places: str) -> list[tuple[str, str]]:
        """(name of the secret, where it was seen) for everything seen below these places."""
        found = [name for name in self.seen if name.startswith(places)]
        assert found, f"nothing was looked at in {places}"
        return [(name, at) for at in found for name, value in self.values.items() if value.encode() in self.seen[at]]


def running(deployment: Deployment) -> dict[str, bytes]:
    """What the engine and the kernel tell of what runs now: container configurations and command lines."""
    [run] = deployment.runs()
    listing = ["docker", "ps", "--all", "--quiet", "--filter", f"label=dawnfleet.run={run}"]
    ids = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split()
    assert ids, "the run has containers while its model thinks"
    inspected = subprocess.run(["docker", "inspect", *ids], capture_output=True, check=False).stdout
    lines = [(process / "cmdline").read_bytes() for process in deployment.processes()]
    assert any(b"worker.main" in line for line in lines)
    return {"containers": inspected, "command lines": b"\n".join(lines)}


@pytest.fixture
def night(seaweed: Settings, model_server: ModelServer, tmp_path: Path) -> Night:
    """The agent looks for keys; the provider answers its second request with an error that echoes the request."""
    values = {
        "provider": PROVIDER_KEY,
        "repository": REPOSITORY_TOKEN,
        "store": str(seaweed.s3_secret_access_key),
    }
    deployment = Deployment(
        tmp_path,
        "s3://dawn/secrets/" + tmp_path.name,
        DAWN_S3_ENDPOINT_URL=str(seaweed.s3_endpoint_url),
        DAWN_S3_ACCESS_KEY_ID=str(seaweed.s3_access_key_id),
        DAWN_S3_SECRET_ACCESS_KEY=values["store"],
        DAWN_OPENAI_BASE_URL=model_server.url,
        OPENAI_API_KEY=PROVIDER_KEY,
        DAWN_SECRET_TOKEN=REPOSITORY_TOKEN,
    )
    seen: dict[str, bytes] = {}

    def echo(handler: BaseHTTPRequestHandler) -> None:
        seen.update(running(deployment))
        words = f"cannot do that: {dict(handler.headers)} {model_server.bodies[-1].decode()}"
        body = json.dumps({"error": {"message": words, "type": "invalid_request_error"}}).encode()
        handler.send_response(400)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    call = {"name": "run_command", "arguments": json.dumps({"command": LOOK})}
    message = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": call}]}
    model_server.will_answer({"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    model_server.answers.put(echo)
    asked = ("--model", "openai/tiny", "Find the keys.")
    done = deployment.dawn("run", "--json", "--repo", first_commit(tmp_path / "code"), *asked)
    archive = deployment.archive
    seen |= {f"archive {key}": archive.get(key) for key in archive.list("")}
    seen |= {f"state {path}": path.read_bytes() for path in deployment.state.rglob("*") if path.is_file()}
    seen |= {f"model {number}": body for number, body in enumerate(model_server.bodies)}
    seen |= {"terminal": (done.out + done.err).encode()}
    row = done.json["runs"][0]
    [observed] = [event for event in deployment.events(row["run"]) if event.type == "observed"]
    return Night(done, row, values, observed.observation.output, seen)


def test_no_key_of_the_worker_is_seen_anywhere(night: Night) -> None:
    """The agent's environment has none; no container's configuration, command line, archived object, log, queue
    message or model message holds one, nor does the terminal, though the provider's error echoes them."""
    assert (night.done.code, night.row["failure"]) == (4, "provider/bad_request"), night.done
    assert "looked" in night.agent
    names = {line.partition("=")[0] for line in night.agent.splitlines() if "=" in line}
    assert {"HOME", "PATH"} <= names
    assert [name for name in names if name.startswith(("DAWN", "AWS")) or "KEY" in name or "TOKEN" in name] == []
    assert "cannot do that" in night.row["detail"]
    assert [path for path in night.seen if "appendonly" in path and night.row["run"].encode() in night.seen[path]]
    assert [path for path in night.seen if path.endswith("worker.log")]
    assert night.leaks("containers", "command lines", "archive", "state", "model", "terminal") == []
