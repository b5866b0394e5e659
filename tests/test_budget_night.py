"""A night under one budget, with real workers and a model that wants money: a server on loopback, with its price."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from deployments import Deployment

pytestmark = pytest.mark.docker

STEPS = 4
PRICES = "openai/acme: {input: 0, output: 100}\n"
USAGE = {"prompt_tokens": 10, "completion_tokens": 1000}
"""$0.10 a reply."""
MANIFEST = """\
version: 1
name: night-%d
targets: [%s]
task: {prompt: Write it down., model: openai/acme}
budget: {usd: %s, on_limit: %s}
"""


class Acme(BaseHTTPRequestHandler):
    """Three calls and a last word to whoever asks."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        step = sum(message["role"] == "assistant" for message in asked["messages"])
        message: dict[str, Any] = {"role": "assistant", "content": "Done."}
        if step < STEPS - 1:
            function = {"name": "run_command", "arguments": json.dumps({"command": f"echo {step} >> notes"})}
            message = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
        stop = "tool_calls" if "tool_calls" in message else "stop"
        body = json.dumps({"choices": [{"message": message, "finish_reason": stop}], "usage": USAGE}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Two workers that take one run each."""
    folder = tmp_path_factory.mktemp("stack")
    (folder / "prices.yaml").write_text(PRICES)
    (folder / "code").mkdir()
    (folder / "code" / "notes").write_text("notes\n")
    with ThreadingHTTPServer(("127.0.0.1", 0), Acme) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        deployment = Deployment(
            folder,
            DAWN_OPENAI_BASE_URL=f"http://127.0.0.1:{server.server_address[1]}",
            OPENAI_API_KEY="a-key-0815",
            DAWN_PRICES=str(folder / "prices.yaml"),
            DAWN_WORKER_SLOTS="1",
        )
        with deployment.up("--workers", "2"):
            yield deployment
        server.shutdown()


def manifest(stack: Deployment, targets: int, usd: float, on_limit: str) -> Path:
    path = stack.state.parent / f"night-{targets}.yaml"
    path.write_text(MANIFEST % (targets, ", ".join(["{repo: ./code}"] * targets), usd, on_limit))
    return path


def written(stack: Deployment, run: str) -> int:
    """How many steps the run's patch holds."""
    return sum(line.startswith("+") and line[1:].isdigit() for line in stack.patch(run).decode().splitlines())


def test_a_batch_stops_where_its_budget_is_used_up(stack: Deployment) -> None:
    """T72: once $1.00 is reached nothing new begins, what runs ends with its patch, the rest is skipped, and no more
    than one call goes over."""
    rows = stack.ran("submit", manifest(stack, 10, 1.0, "stop"), code=6)
    by = {kind: [row for row in rows if row["outcome"] == kind] for kind in ("changed", "failed", "skipped")}
    assert sum(map(len, by.values())) == 10
    assert 1.0 <= sum(row["cost_usd"] for row in rows) <= 1.1
    assert {(row["detail"], row["claims"], row["cost_usd"]) for row in by["skipped"]} == {("budget", 0, 0)}
    assert len(by["skipped"]) in (6, 7)  # ten replies are two whole runs and the begin of two more, or of one
    assert {row["failure"] for row in by["failed"]} == {"limit/batch_budget"}
    stopped = [row for row in by["failed"] if row["steps"]]
    assert stopped
    for row in stopped:
        assert (written(stack, row["run"]), row["verdict"]) == (row["steps"], "unverified")
    assert [written(stack, row["run"]) for row in by["changed"]] == [STEPS - 1] * len(by["changed"])


def test_a_batch_waits_where_its_budget_is_used_up_and_goes_on_when_it_is_raised(stack: Deployment) -> None:
    """No step is lost or paid twice, and the command that does not wait says with its exit code what is missing."""
    file = manifest(stack, 3, 0.5, "pause")
    rows = stack.ran("submit", file, "--no-wait", code=6)
    assert sum(row["cost_usd"] for row in rows) == pytest.approx(0.5)
    assert {row["detail"] for row in rows if row["status"] != "sealed"} == {"budget: $0.50 of $0.50 spent"}
    batch = rows[0]["batch"]
    assert f"waits for you: dawn budget {batch} USD" in stack.dawn("status", batch).err
    assert stack.dawn("budget", batch, "2").code == 0
    done = stack.ran("submit", file)
    assert [(row["outcome"], written(stack, row["run"])) for row in done] == [("changed", STEPS - 1)] * 3
    assert sum(row["cost_usd"] for row in done) == pytest.approx(1.2)
