"""A night in which all workers share an account's rate: a real stack, and a provider on loopback that counts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from deployments import Deployment

from worker.store.journal import Journal

pytestmark = pytest.mark.docker

MANIFEST = """\
version: 1
name: night
targets: [{repo: ./code}, {repo: ./code}]
task: {prompt: Look at it., model: openai/acme}
"""


@dataclass
class Provider:
    """asked: how often."""

    url: str = ""
    asked: int = 0


@pytest.fixture
def provider() -> Iterator[Provider]:
    state = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            state.asked += 1
            message = {"role": "assistant", "content": "Done."}
            usage = {"prompt_tokens": 1_000, "completion_tokens": 10}
            body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        state.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield state
        server.shutdown()


@pytest.mark.full
def test_two_workers_share_a_rate(provider: Provider, tmp_path: Path) -> None:
    """Of two runs that begin at once, on a worker each, one waits for its turn, keeps its worker, and ends well."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "notes").write_text("notes\n")
    (tmp_path / "night.yaml").write_text(MANIFEST)
    deployment = Deployment(
        tmp_path,
        DAWN_OPENAI_BASE_URL=provider.url,
        DAWN_RATES__OPENAI__REQUESTS_PER_MIN="5",
        DAWN_RATES__OPENAI__TOKENS_PER_MIN="2000000",
        DAWN_WORKER_SLOTS="1",
    )
    with deployment.up("--workers", "2"):
        rows = deployment.ran("submit", tmp_path / "night.yaml")
    assert [row["outcome"] for row in rows] == ["no_change", "no_change"]
    assert provider.asked == 2
    journals = [Journal(deployment.archive, row["run"]) for row in rows]
    waited_ms = [sum(record.waited_ms for record, _ in journal.read()) for journal in journals]
    assert sorted(wait_ms > 0 for wait_ms in waited_ms) == [False, True]
    assert {journal.load().claims for journal in journals} == {1}
    assert len({journal.load().worker for journal in journals}) == 2


def test_a_rate_of_nothing_known_stops_the_stack_from_starting(tmp_path: Path) -> None:
    """With the names that there are: a limit that nobody keeps would be found out by the bill."""
    done = Deployment(tmp_path, DAWN_RATES__OPENIA__REQUESTS_PER_MIN="40").dawn("up")
    assert done.code == 2, done
    assert "openia" in done.err
