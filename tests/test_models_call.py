"""Deadlines, cancels and typed faults of the provider doors, the same for both."""

from __future__ import annotations

import os
import socket
import struct
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from model_server import ModelServer

from worker.contract.cancel import Cancel
from worker.contract.errors import ProviderFault
from worker.contract.events import Reply, Usage
from worker.models.anthropic import AnthropicModel
from worker.models.call import SHOWN_CHARS, Account, retry_after_s
from worker.models.openai import OpenAIModel
from worker.models.protocol import ModelRequest, UserMessage

KEY = "sk-key-of-these-tests"
PATHS = {"anthropic": "", "openai": "/v1"}


def account_of(provider: str, url: str, ca_bundle: Path | None = None) -> Account:
    return Account(provider, KEY, f"{provider.upper()}_API_KEY", url + PATHS[provider], ca_bundle)


def ask(account: Account, text: str, *, timeout_s: float, cancel: Cancel) -> Reply:
    """One question to a server."""
    model = (AnthropicModel if account.provider == "anthropic" else OpenAIModel)("p/m", "m", account)
    request = ModelRequest("", (UserMessage(text),), (), step=1, reply_index=0)
    return model.reply(request, timeout_s=timeout_s, cancel=cancel)


def fault_of(
    provider: str,
    url: str,
    text: str = "hello",
    *,
    ca_bundle: Path | None = None,
    timeout_s: float = 30,
    cancel: Cancel | None = None,
) -> ProviderFault:
    """The fault that one question ends in."""
    with pytest.raises(ProviderFault) as caught:
        ask(account_of(provider, url, ca_bundle), text, timeout_s=timeout_s, cancel=cancel or Cancel())
    return caught.value


pytestmark = pytest.mark.parametrize("provider", ["anthropic", "openai"])


@pytest.mark.parametrize(
    ("status", "message", "reason", "retryable"),
    [
        (400, "prompt is too long: 201234 tokens > 200000 maximum", "context", False),
        (400, "This model's maximum context length is 8192 tokens", "context", False),
        (400, "request (9000 tokens) exceeds the available context size", "context", False),
        (413, "Request exceeds the maximum size", "context", False),
        (400, "messages: at least one message is required", "bad_request", False),
        (400, "Your credit balance is too low", "auth", False),
        (402, "pay first", "auth", False),
        (403, "not for you", "auth", False),
        (429, "You exceeded your current quota: insufficient_quota", "auth", False),
        (307, "elsewhere", "bad_request", False),
        (408, "late", "unavailable", True),
        (500, "oops", "unavailable", True),
        (503, "context window service is down", "unavailable", True),
    ],
)
def test_a_status_becomes_its_reason(
    model_server: ModelServer, provider: str, status: int, message: str, reason: str, retryable: bool
) -> None:
    """By status first, by the provider's words where a status has several meanings; no redirect is followed."""
    model_server.will_answer({"error": {"message": message}}, status, location=f"{model_server.url}/elsewhere")
    fault = fault_of(provider, model_server.url)
    assert (fault.reason, fault.retryable) == (reason, retryable)
    assert message in fault.message
    assert len(model_server.bodies) == 1


def test_the_provider_knows_better_whether_trying_again_helps(model_server: ModelServer, provider: str) -> None:
    """x-should-retry wins over the status."""
    model_server.will_answer({"error": {}}, 500, x_should_retry="false")
    assert not fault_of(provider, model_server.url).retryable


def test_a_fault_does_not_repeat_the_key(model_server: ModelServer, provider: str) -> None:
    """A provider that echoes the request would put the key into journal and logs (T67)."""
    model_server.will_answer({"error": {"message": f"bad header: {KEY}\nline two"}}, 400)
    fault = fault_of(provider, model_server.url)
    assert f"bad header: [secret {provider.upper()}_API_KEY] line two" in fault.message
    assert fault.__cause__ is None
    assert KEY not in repr(fault)
    assert KEY not in repr(account_of(provider, model_server.url))


@pytest.mark.parametrize("status", [200, 400])
def test_no_half_of_the_key_is_shown_where_an_answer_is_cut(
    model_server: ModelServer, provider: str, status: int
) -> None:
    """Of a page that echoes the request with the key across the cut: masked first, cut after (T67)."""
    model_server.will_answer(b"a" * (SHOWN_CHARS - 10) + KEY.encode() + b"b" * 100, status)
    said = str(fault_of(provider, model_server.url))
    assert "aaa[secret" in said
    assert KEY[:5] not in said


@pytest.mark.parametrize(
    "body", [b"", b"<html>bad gateway</html>", b"[" * 100_000, b"[]", b'{"content": 3, "choices": []}', b"\xff"]
)
def test_an_answer_that_is_no_reply_is_retryable(model_server: ModelServer, provider: str, body: bytes) -> None:
    """A proxy's page with status 200 is neither a reply nor the end of the run (F48)."""
    model_server.will_answer(body)
    fault = fault_of(provider, model_server.url)
    assert (fault.reason, fault.retryable) == ("unavailable", True)


def test_a_reply_cut_in_the_middle_is_a_connection_fault(model_server: ModelServer, provider: str) -> None:
    """Nothing of half a reply is used (T11)."""
    model_server.will_cut()
    fault = fault_of(provider, model_server.url)
    assert (fault.reason, fault.retryable, fault.cut) == ("connection", True, True)


def test_a_connection_that_ends_before_the_reply_is_a_cut_too(model_server: ModelServer, provider: str) -> None:
    """Closed or reset after the request, with not one byte (T11)."""
    model_server.answers.put(lambda handler: handler.connection.shutdown(socket.SHUT_RDWR))
    assert fault_of(provider, model_server.url).cut

    def reset(handler: BaseHTTPRequestHandler) -> None:
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(handler.connection.detach())

    model_server.answers.put(reset)
    assert fault_of(provider, model_server.url).cut


def test_a_server_that_is_not_there_is_a_connection_fault(provider: str) -> None:
    """And says whom it could not reach."""
    fault = fault_of(provider, "http://127.0.0.1:9")
    assert (fault.reason, fault.retryable, fault.cut) == ("connection", True, False)
    assert provider in fault.message


def test_a_bundle_of_certificates_opens_a_server_that_only_it_vouches_for(
    model_server: ModelServer, provider: str, tmp_path: Path
) -> None:
    """Networks that rewrite TLS are reached with DAWN_CA_BUNDLE, and not without it."""
    bundle = model_server.speak_tls(tmp_path)
    assert "CERTIFICATE_VERIFY_FAILED" in fault_of(provider, model_server.url).message
    assert model_server.bodies == []
    model_server.will_answer({"error": {"message": "reached"}}, 400)
    assert "reached" in fault_of(provider, model_server.url, ca_bundle=bundle).message


def test_a_bundle_that_cannot_be_read_names_its_setting(provider: str, tmp_path: Path) -> None:
    """Not a traceback in the middle of a run."""
    fault = fault_of(provider, "https://localhost:1", ca_bundle=tmp_path / "absent.pem")
    assert (fault.reason, fault.retryable) == ("connection", False)
    assert "DAWN_CA_BUNDLE" in fault.hint


def test_cancel_hangs_up_on_the_provider(model_server: ModelServer, provider: str) -> None:
    """The server sees the connection end, so nothing of the call is alive afterwards."""
    model_server.will_hang()
    cancel = Cancel()
    threading.Thread(target=lambda: (model_server.asked.wait(30), cancel.set("cancelled"))).start()
    assert not fault_of(provider, model_server.url, timeout_s=120, cancel=cancel).retryable
    assert model_server.gone.wait(5)


def test_a_call_is_sent_once(model_server: ModelServer, provider: str) -> None:
    """The SDK's own retries are off: whoever asks decides, and counts what it costs."""
    model_server.will_answer({"error": {}}, 503)
    fault_of(provider, model_server.url)
    assert len(model_server.bodies) == 1


def test_the_wait_asked_for_is_read_in_every_form(provider: str) -> None:
    """Milliseconds, seconds, an HTTP date, a date gone by, nonsense (T09)."""
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    assert retry_after_s({"retry-after-ms": "1500", "retry-after": "7"}) == 1.5
    assert retry_after_s({"retry-after": "7200"}) == 7200
    assert retry_after_s({"retry-after": soon}) == pytest.approx(90, abs=30)
    assert retry_after_s({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0
    assert retry_after_s({"retry-after": "soon"}) is None
    assert retry_after_s({"retry-after": "Wed, 21 Oct 2015 07:28:00 +99999999999999999999"}) is None
    assert retry_after_s({}) is None


@pytest.mark.parametrize(("said", "waits_s"), [("1e12", 86_400), ("1e400", None), ("nan", 0), ("-5", 0)])
def test_nobody_waits_longer_than_a_day_for_a_provider(
    model_server: ModelServer, provider: str, said: str, waits_s: float | None
) -> None:
    """A wait that is no time is none, and does not end the run either (T09)."""
    model_server.will_answer({"error": {}}, 500, retry_after=said)
    fault = fault_of(provider, model_server.url)
    assert (fault.retry_after_s, fault.retryable) == (waits_s, True)


def test_a_provider_cannot_give_back_what_others_used(model_server: ModelServer, provider: str) -> None:
    """Tokens below zero count as none, and none beyond counting (T70)."""
    counts = {"input_tokens": -5, "output_tokens": 2**60, "prompt_tokens": -5, "completion_tokens": 2**60}
    said = {"content": [], "choices": [{"message": {"content": "a"}}], "usage": counts}
    model_server.will_answer(said)
    reply = ask(account_of(provider, model_server.url), "go", timeout_s=30, cancel=Cancel())
    assert reply.usage == Usage(output_tokens=2**53 - 1)
