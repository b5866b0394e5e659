"""What people say lies in numbered messages: each is read once, as it was written, whatever else lies there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduler.runs import Found
from scheduler.verify import check
from worker.contract.errors import IntegrityFault
from worker.contract.events import Asked, canonical
from worker.contract.run import Run
from worker.store import keys
from worker.store.archive import Archive
from worker.store.decisions import decide, read_decision
from worker.store.inbox import Control, Inbox, Message
from worker.store.journal import Journal
from worker.store.mail import control_problems, mail_problems

AT = "2026-11-30T02:00:00.000+00:00"
Make = Callable[..., Run]


def lay(archive: Archive, key: str, n: int) -> None:
    message = Message(n=n, kind="message", by="a stranger", at=AT, text="?")
    assert archive.create(key, canonical(message.model_dump(mode="json")))


@pytest.mark.parametrize("far", [5, 999_999, 1_000_000])
def test_a_message_behind_a_gap_waits_for_those_before_it(make_run: Make, archive: Archive, far: int) -> None:
    """Nobody writes past a free number: what is seen behind one overtakes no message and keeps none out."""
    make_run("a")
    inbox = Inbox(archive, "a")
    lay(archive, keys.inbox("a", far), far)
    assert inbox.read() == []
    assert inbox.put("message", by="me", at=AT, text="mine").n == 0
    assert inbox.put("cancel", by="me", at=AT).n == 1
    assert [message.kind for message in inbox.read()] == ["message", "cancel"]


def test_a_message_under_another_number_is_damage(make_run: Make, archive: Archive) -> None:
    """It would be read again for ever, and the next writer would look for a free number for ever."""
    make_run("a")
    lay(archive, keys.inbox("a", 0), -1)
    with pytest.raises(IntegrityFault, match="holds the message -1"):
        Inbox(archive, "a").put("message", by="me", at=AT)


def test_a_decision_under_another_call_s_name_is_damage(make_run: Make, archive: Archive) -> None:
    """The run would wait for it for ever, and everybody else would be told that it is decided."""
    make_run("a")
    asked = Asked(call_id="c1", kind="approval", question="may it?", binding="ab" * 32)
    made = decide(archive, "a", asked, "approved", by="me", at=AT)
    archive.create(keys.decision("a", "c2"), canonical(made.model_dump(mode="json")))
    with pytest.raises(IntegrityFault, match="decides on 'c1'"):
        read_decision(archive, "a", "c2")


def test_bytes_that_are_no_text_are_kept_as_they_were_said(make_run: Make, archive: Archive) -> None:
    """A command line may hold any byte, in the task, in a message and in a name: none of them costs the run."""
    odd = "x\udcff"
    make_run("a", prompt=odd)
    assert Journal(archive, "a").task().prompt == odd
    Inbox(archive, "a").put("message", by=odd, at=AT, text=odd)
    assert [(message.by, message.text) for message in Inbox(archive, "a").read()] == [(odd, odd)]
    asked = Asked(call_id="c1", kind="question", question="which?", binding="ab" * 32)
    decide(archive, "a", asked, "answered", by=odd, at=AT, reason=odd)
    made = read_decision(archive, "a", "c1")
    assert made is not None
    assert (made.by, made.reason) == (odd, odd)


def flipped(archive: Archive, key: str, before: bytes, after: bytes) -> None:
    """One letter of what somebody said is another one, and it is JSON still."""
    data = archive.get(key)
    assert before in data
    archive.overwrite(key, data.replace(before, after))


def test_a_flipped_letter_of_what_was_said_is_damage(make_run: Make, archive: Archive) -> None:
    """In a message, in a batch's control and in a decision: each carries a sum of its own, and verify reads them."""
    run = make_run("a")
    Inbox(archive, "a").put("message", by="me", at=AT, text="keep it")
    Control(archive, "night-0123456789ab").put("pause", by="me", at=AT, text="too dear")
    asked = Asked(call_id="c1", kind="question", question="which?", binding="ab" * 32)
    decide(archive, "a", asked, "answered", by="me", at=AT, reason="main")
    assert mail_problems(archive, run.id) == control_problems(archive, "night-0123456789ab") == []
    flipped(archive, keys.inbox("a", 0), b"keep it", b"keep at")
    flipped(archive, keys.batch_control("night-0123456789ab", 0), b"too dear", b"too near")
    flipped(archive, keys.decision("a", "c1"), b"main", b"maim")
    with pytest.raises(IntegrityFault, match="does not have the sum"):
        Inbox(archive, "a").read()
    assert [problem.split()[0] for problem in mail_problems(archive, "a")] == [
        *(keys.inbox("a", 0), keys.decision("a", "c1")),
    ]
    [problem] = control_problems(archive, "night-0123456789ab")
    assert keys.batch_control("night-0123456789ab", 0) in problem
    checked = check(archive, Found("run", "a"))
    assert [key for key in (keys.inbox("a", 0), keys.decision("a", "c1")) if key in " ".join(checked.problems)]


def test_what_an_older_version_said_is_read(make_run: Make, archive: Archive) -> None:
    """It has no sum, and stays as it is."""
    make_run("a")
    old = {"v": 1, "n": 0, "kind": "message", "by": "me", "at": AT, "text": "go on"}
    archive.create(keys.inbox("a", 0), canonical(old))
    [message] = Inbox(archive, "a").read()
    assert (message.text, message.sum) == ("go on", None)
