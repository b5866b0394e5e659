"""A person's answer to a run that asked: one counts, and every other is told why it does not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from runs_made import claimed, ended, replied

from scheduler.approvals import answer
from scheduler.control import WORDS_CHARS, tell
from scheduler.planning.plan import Close
from scheduler.runs import Found
from scheduler.seal import seal
from worker.contract.errors import ConflictFault, InvalidFault
from worker.contract.events import Asked, Decided, Parked
from worker.contract.run import Run
from worker.store.archive import Archive
from worker.store.decisions import decide, read_decision
from worker.store.journal import Journal

Make = Callable[..., Run]

AT = "2026-11-30T03:00:00.000+00:00"
UNTIL = "2026-12-07T02:00:00.000+00:00"
BINDING = "ab" * 32


@pytest.fixture
def asking(make_run: Make) -> Callable[..., Run]:
    """A run that waits for an answer, of the kind that is asked for."""

    def make(kind: str = "approval") -> Run:
        asked = Asked(call_id="c1", kind=kind, question="may it?", binding=BINDING)  # type: ignore[arg-type]
        return make_run("a", claimed(), replied(), asked, Parked(waiting=asked.kind, until=UNTIL))

    return make


def say(archive: Archive, given: Any, by: str = "ann", **more: Any) -> None:
    answer(archive, None, "a", given, by=by, **{"at": AT, **more})


def test_an_answer_names_who_when_and_what(asking: Any, archive: Archive) -> None:
    """It is bound to the digest of what was asked."""
    asking()
    say(archive, "denied", call="c1", reason="not now")
    made = read_decision(archive, "a", "c1")
    assert made is not None
    assert (made.decision, made.by, made.at, made.binding, made.reason) == ("denied", "ann", AT, BINDING, "not now")


@pytest.mark.parametrize("second", ["approved", "denied"])
def test_a_second_decision_is_told_of_the_first(asking: Any, archive: Archive, second: str) -> None:
    """F49: approve twice, or approve and deny: one counts."""
    asking()
    say(archive, "approved")
    with pytest.raises(ConflictFault, match=f"c1 was approved by ann at {AT[:10]}"):
        say(archive, second, by="bob")


def test_of_decisions_at_once_one_counts(asking: Any, archive: Archive) -> None:
    """F49: twenty people at the same moment; nineteen are told so."""
    asking()
    start, refused = threading.Barrier(20), []

    def person(number: int) -> None:
        start.wait()
        try:
            say(archive, "approved" if number % 2 else "denied", by=f"person-{number}")
        except ConflictFault as fault:
            refused.append(str(fault))

    people = [threading.Thread(target=person, args=(number,)) for number in range(20)]
    for one in people:
        one.start()
    for one in people:
        one.join()
    made = read_decision(archive, "a", "c1")
    assert made is not None
    assert len(refused) == 19
    assert all(f"{made.decision} by {made.by}" in text for text in refused)


def test_a_late_decision_is_refused(asking: Any, archive: Archive) -> None:
    """H52: from the moment on that the question expires."""
    asking()
    with pytest.raises(ConflictFault, match="nobody answered in time"):
        say(archive, "approved", at=UNTIL)
    assert read_decision(archive, "a", "c1") is None


@pytest.mark.parametrize("to", [Found("run", "a"), Found("batch", "night-0123456789ab")])
def test_a_decision_after_a_cancel_is_refused(asking: Any, archive: Archive, to: Found) -> None:
    """F49: also before anybody has acted on the cancel."""
    asking()
    tell(archive, None, to, "cancel", by="bob", at=AT)
    with pytest.raises(ConflictFault, match="cancelled by bob"):
        say(archive, "approved")


def test_the_sealer_of_a_waiting_run_decides_first(asking: Any, archive: Archive) -> None:
    """An approval that was on its way meets `cancelled`, and is told of it."""
    run = asking()
    tell(archive, None, Found("run", "a"), "cancel", by="bob", at=AT)
    seal(archive, run, Close("a", "cancelled"), at=AT)
    made = decide(archive, "a", run.asked, "approved", by="ann", at=AT)
    assert (made.decision, made.by) == ("cancelled", "bob")
    with pytest.raises(ConflictFault, match="has ended"):
        say(archive, "approved")


@pytest.mark.parametrize(
    ("kind", "given", "typed"),
    [("approval", "answered", "dawn approve a c1"), ("question", "approved", "dawn answer a")],
)
def test_an_answer_of_the_wrong_kind_says_what_to_type(
    asking: Any, archive: Archive, kind: str, given: str, typed: str
) -> None:
    """A question is not approved, and an approval is no conversation."""
    asking(kind)
    with pytest.raises(ConflictFault) as fault:
        say(archive, given)
    assert typed in fault.value.hint


def test_a_decision_for_another_digest_is_refused(asking: Any, archive: Archive) -> None:
    """F49, H52: what was shown is what is decided; its first digits do."""
    asking()
    with pytest.raises(ConflictFault, match="not the call you were shown"):
        say(archive, "approved", binding="abad")
    say(archive, "approved", binding=BINDING[:8])


@pytest.mark.parametrize(("call", "said"), [(None, "asks nothing"), ("c1", "c1 was denied by ann"), ("c9", "c9")])
def test_a_run_that_asks_nothing_takes_no_decision(
    asking: Any, archive: Archive, call: str | None, said: str
) -> None:
    """The one who was too late hears of the decision that counted."""
    run = asking()
    say(archive, "denied")
    Journal(archive, "a").append(run, [claimed()], attempt=None, at=AT)
    run = Journal(archive, "a").load()
    Journal(archive, "a").append(
        run, [Decided(call_id="c1", decision="denied", by="ann")], attempt=run.attempt, at=AT
    )
    with pytest.raises(ConflictFault, match=said):
        say(archive, "approved", call=call, by="bob")


def test_a_run_that_has_ended_takes_no_decision(make_run: Make, archive: Archive) -> None:
    """Exit code 10, as for everything that comes after the end."""
    make_run("a", claimed(), replied(), *ended())
    with pytest.raises(ConflictFault, match="has ended"):
        say(archive, "approved")


def test_an_endless_answer_is_refused(asking: Any, archive: Archive) -> None:
    """It must fit into a model's context."""
    asking("question")
    with pytest.raises(InvalidFault, match="characters"):
        say(archive, "answered", reason="x" * (WORDS_CHARS + 1))
