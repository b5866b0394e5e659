"""Messages to a webhook: what they hold, how they are signed, and what becomes of those that do not arrive."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from doubles import MemoryArchive
from pydantic import ValidationError
from webhooks import Listener

from scheduler.cli.main import run as dawn
from scheduler.reports import notify
from scheduler.reports.kept import Stored
from scheduler.reports.reported import Morning, Need, Spend
from worker.contract.notify import Notify
from worker.store import keys

AT = "2026-11-30T02:00:00.000+00:00"
BATCH = "night-0123456789ab"
SECRET = "a secret of some length"


def report(**changes: Any) -> Morning:
    base = Morning(
        batch=BATCH,
        at=AT,
        headline="1 of 1 verified, $0",
        ended=True,
        counts={"verified": 1},
        spend=Spend(batch_microusd=0, known=True),
        runs=1,
        sealed=1,
    )
    return base.model_copy(update=changes)


def wants(listener: Listener, **changes: Any) -> Notify:
    return Notify(**({"webhook": listener.url, "secret": "HOOK"} | changes))


def announced(archive: MemoryArchive, wanted: Notify, made: Morning, n: int = 0) -> list[notify.Notice]:
    return notify.announce(archive, Stored(n, made, new=True), wanted, at=AT)


def send(wanted: Notify, made: Morning, secret: str | None = SECRET) -> notify.Answer:
    (notice,) = announced(MemoryArchive(), wanted, made)
    return notify.send(wanted, notice, made, lambda name: secret, now_s=1_000_000.9, ca=None)


def test_a_message_is_signed_as_its_listener_can_check(listener: Listener) -> None:
    """HMAC-SHA256 over id, time and body; with a secret that is plain text."""
    assert send(wants(listener), report()).ok
    (got,) = listener.got
    name, at = got.headers["webhook-id"], got.headers["webhook-timestamp"]
    signed = hmac.new(SECRET.encode(), f"{name}.{at}.".encode() + got.body, hashlib.sha256).digest()
    assert got.headers["webhook-signature"] == f"v1,{base64.b64encode(signed).decode()}"
    assert (got.path, name, at) == ("/hook", f"{BATCH}.0", "1000000")


def test_a_secret_may_be_written_as_its_bytes(listener: Listener) -> None:
    """As the Standard Webhooks do: `whsec_` and Base64."""
    key = bytes(range(24))
    assert send(wants(listener), report(), f"whsec_{base64.b64encode(key).decode()}").ok
    (got,) = listener.got
    data = f"{BATCH}.0.1000000.".encode() + got.body
    signed = base64.b64encode(hmac.new(key, data, hashlib.sha256).digest()).decode()
    assert got.headers["webhook-signature"] == f"v1,{signed}"


def test_a_message_says_what_there_is_to_know(listener: Listener) -> None:
    """The honest line, what needs a person and how, and where the report lies; never more than its bound."""
    need = Need(why="push?", targets=("a", "b"), commands=("dawn approve a c1",))
    assert send(wants(listener), report(needs=(need,))).ok
    said = json.loads(listener.got[0].body)
    assert (said["schema"], said["headline"], said["on"]) == (
        "dawn.notice/1",
        "1 of 1 verified, $0",
        ["done", "needs_person"],
    )
    assert said["needs"] == [{"why": "push?", "targets": 2, "type": ["dawn approve a c1"]}]
    assert said["report"] == keys.batch_report(BATCH, 0, "report.html")
    huge = need.model_copy(update={"why": "x" * 300_000})
    assert send(wants(listener), report(needs=(huge,))).ok
    assert len(listener.got[1].body) < notify.BODY_BYTES


@pytest.mark.parametrize(
    ("status", "final"),
    [(301, True), (404, True), (408, False), (410, True), (429, False), (500, False), (503, False)],
)
def test_an_answer_says_whether_to_try_again(listener: Listener, status: int, final: bool) -> None:
    """What speaks of this moment is tried again; a refusal is not, and no redirect is followed."""
    listener.answers.append(status)
    listener.headers["location"] = listener.url + "/elsewhere"
    answer = send(wants(listener), report())
    assert (answer.ok, answer.final, answer.detail) == (False, final, f"answered {status}")
    assert len(listener.got) == 1


def test_nobody_listening_is_tried_again(listener: Listener) -> None:
    """A refused connection says nothing about tomorrow."""
    answer = send(wants(listener, webhook="http://127.0.0.1:9/hook"), report())
    assert (answer.ok, answer.final) == (False, False)


@pytest.mark.parametrize("drip", [False, True])
def test_a_listener_that_never_answers_is_left(
    listener: Listener, drip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent, or one header a moment for ever: the time limit is for the whole exchange."""
    monkeypatch.setattr(notify, "SEND_TIMEOUT_S", 0.4)
    listener.hold, listener.drip = threading.Event(), drip
    answer = send(wants(listener), report())
    assert (answer.ok, answer.final) == (False, False)


def test_without_its_secret_nothing_is_sent(listener: Listener) -> None:
    """The variable is named; its value is nobody's business."""
    answer = send(wants(listener), report(), None)
    assert (answer.ok, answer.final) == (False, False)
    assert "DAWN_SECRET_HOOK is not set" in answer.detail
    assert listener.got == []


def test_a_message_is_announced_once_and_sent_until_it_arrived(listener: Listener) -> None:
    """A crash after the announcement, or after the answer, sends it again under the same id."""
    archive, wanted = MemoryArchive(), wants(listener)
    (first,) = announced(archive, wanted, report())
    assert announced(archive, wanted, report()) == [first]
    notify.conclude(archive, BATCH, first, notify.Answer(True, True, "answered 204"), at=AT)
    notify.conclude(archive, BATCH, first, notify.Answer(True, True, "answered 204"), at=AT)
    assert announced(archive, wanted, report()) == []
    told = [(notice.kind, notice.id, notice.detail) for notice in notify.notices(archive, BATCH)]
    assert told == [("announced", f"{BATCH}.0", ""), ("sent", f"{BATCH}.0", "answered 204")]


def test_only_wanted_news_is_announced(listener: Listener) -> None:
    """`on` names it; a later report with such news is a message of its own."""
    archive, wanted = MemoryArchive(), wants(listener, on=("needs_person",))
    assert announced(archive, wanted, report()) == []
    need = Need(why="push?", targets=("a",), commands=("dawn approve a c1",))
    (notice,) = announced(archive, wanted, report(needs=(need,), ended=False), 1)
    assert (notice.id, notice.on) == (f"{BATCH}.1", ("needs_person",))


@pytest.mark.parametrize(
    ("url", "fine"),
    [
        ("https://hooks.example.org/a?b=c", True),
        ("http://127.0.0.1:8080/x", True),
        ("http://[::1]/x", True),
        ("http://localhost/x", True),
        ("http://hooks.example.org/", False),
        ("http://127.0.0.1.example.org/", False),
        ("https://user:pass@hooks.example.org/", False),
        ("https:///x", False),
        ("file:///etc/passwd", False),
        ("https://hooks.example.org/#x", False),
        ("https://hooks.example.org/a b", False),
        ("https://hooks.example.org:port/", False),
    ],
)
def test_where_messages_may_go(url: str, fine: bool) -> None:
    """Encrypted, or to this machine; no password in an address."""
    if fine:
        assert Notify(webhook=url, secret="HOOK").webhook == url
    else:
        with pytest.raises(ValidationError):
            Notify(webhook=url, secret="HOOK")


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"webhook": "https://hooks.example.org/"},
        {"secret": "HOOK", "file": "a.md"},
        {"file": "../a.md"},
        {"file": "/etc/a.md"},
        {"file": ".profile.md"},
        {"file": "a.sh"},
        {"file": "a.md", "on": ["sunrise"]},
        {"file": "a.md", "on": []},
    ],
)
def test_what_nobody_can_be_told_by_is_refused(words: dict[str, Any]) -> None:
    """No way to tell, an unsigned webhook, a file elsewhere than in the folder of reports."""
    with pytest.raises(ValidationError):
        Notify(**words)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    """By each report, in a folder that is made."""
    wanted, folder = Notify(file="night.md"), tmp_path / "reports"
    for text in ("first, and longer", "second"):
        notify.write_file(folder, wanted, lambda kind, text=text: f"{kind}: {text}".encode())  # type: ignore[misc]
    assert [path.name for path in folder.iterdir()] == ["night.md"]
    assert (folder / "night.md").read_text() == "md: second"


def test_a_manifest_names_the_place_of_a_wrong_address(
    tmp_path: Path, without_stack: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is written, exit code 3."""
    (tmp_path / "night.yaml").write_text(
        "version: 1\nname: night\ntargets: [{repo: .}]\ntask: {commands: ['true']}\n"
        "notify:\n  webhook: http://hooks.example.org/\n  secret: HOOK\n"
    )
    assert dawn(["submit", "night.yaml", "--detach"]) == 3
    assert "night.yaml:6:" in capsys.readouterr().err
