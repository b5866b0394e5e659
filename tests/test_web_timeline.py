"""What journals tell of time: attempts, waits, takeovers, money, and the hours of a window."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs_made import claimed, ended, replied

from scheduler.web.journals import timeline
from scheduler.web.journals.timeline import Attempt, Story, Telling
from worker.contract.events import Asked, Decided, Event, Failure, Parked, Record, Sealed, Steered, Submitted, Yielded
from worker.contract.window import Window

NONE = "0" * 64
START = datetime(2026, 11, 30, 2, tzinfo=UTC)


def story(records: Iterable[Record]) -> Story:
    telling = Telling()
    for record in records:
        telling.hear(record)
    return telling.story("r1", "cart")


def told(*events: Event, scheduler: int = -1) -> Story:
    """The story of a run with an event a minute. scheduler: number of the event that no attempt wrote."""
    records, attempt = [], None
    for n, event in enumerate([Submitted(by="ann"), *events]):
        attempt = n if event.type == "claimed" else attempt
        of = None if n == scheduler or event.type == "claimed" else attempt
        at = (START + timedelta(minutes=n)).isoformat(timespec="milliseconds")
        records.append(Record(run="r1", seq=n, at=at, attempt=of, nonce="n", prev=NONE, event=event))
    return story(records)


def minute(n: int) -> float:
    return (START + timedelta(minutes=n)).timestamp()


def test_an_attempt_that_ended_the_run_has_its_outcome() -> None:
    """The bar of a run that was verified is that of its worker, from claim to seal."""
    seen = told(claimed("w1"), replied(), *ended(verdict="verified"))
    assert seen.attempts == (Attempt("w1", minute(1), minute(4), "verified", "verified"),)


def test_a_worker_that_was_lost_ends_at_its_last_word_and_is_taken_over() -> None:
    """What nobody worked on between is no bar, and the takeover is marked on the lane of who took it."""
    seen = told(claimed("w1"), replied(), claimed("w2"), *ended(verdict="verified"))
    assert [(one.worker, one.start, one.end, one.kind) for one in seen.attempts] == [
        ("w1", minute(1), minute(2), "crash"),
        ("w2", minute(3), minute(5), "verified"),
    ]
    assert [(one.kind, one.at, one.worker) for one in seen.marks] == [("takeover", minute(3), "w2")]


def test_a_question_and_its_answer_are_marks() -> None:
    """The wait between them belongs to no worker."""
    asks = Asked(call_id="c1", question="push?", binding=NONE)
    seen = told(
        claimed("w1"),
        asks,
        Parked(waiting="approval", detail="push?"),
        Decided(call_id="c1", decision="approved", by="bob"),
        claimed("w2"),
        *ended(verdict="broke"),
    )
    assert [(one.how, one.kind) for one in seen.attempts] == [("parked: approval", "parked"), ("broke", "failed")]
    assert [(one.kind, one.what) for one in seen.marks] == [
        ("approval", "asks: push?"),
        ("approval", "approved by bob"),
    ]


@pytest.mark.parametrize(
    ("event", "kinds"),
    [
        (Parked(waiting="provider"), ["hold"]),
        (Parked(waiting="budget"), ["hold"]),
        (Parked(waiting="provider", paced=True), []),
        (Parked(waiting="window"), []),
        (Yielded(why="drain"), []),
        (Sealed(outcome="cancelled"), ["kill"]),
    ],
)
def test_what_stops_a_run_is_marked(event: Event, kinds: list[str]) -> None:
    """A hold and a cancel are; a turn that is waited for, a window and a drain are not."""
    assert [mark.kind for mark in told(claimed(), event).marks] == kinds


def test_a_run_that_the_scheduler_seals_was_lost_by_its_worker() -> None:
    """The seal of a run without a living attempt is no work of the one that died."""
    seen = told(claimed("w1"), replied(), Sealed(outcome="cancelled"), scheduler=3)
    assert [(one.end, one.kind) for one in seen.attempts] == [(minute(2), "crash")]


def test_an_attempt_that_goes_on_is_drawn_until_now() -> None:
    """Nobody knows yet how it ends."""
    (lane,) = timeline.lanes([told(claimed("w1"), replied())], START + timedelta(hours=1))
    assert [(bar.end, bar.kind) for bar in lane.stretches] == [(minute(60), "working")]


def test_a_failure_says_its_class() -> None:
    """The bar of a failed run names why."""
    failure = Failure(cls="agent", reason="loop")
    assert told(claimed(), Sealed(outcome="failed", failure=failure)).attempts[0].how == "failed: agent/loop"


def test_what_people_did_is_kept() -> None:
    """Who sent what is in the story, and a long text only begins there."""
    seen = told(claimed(), Steered(n=0, kind="message", by="bob", text="x" * 10_000))
    assert [(act.who, act.did) for act in seen.acts] == [("ann", "submitted"), ("bob", "message")]
    assert len(seen.acts[1].what) == timeline.ACT_CHARS


@given(st.lists(st.tuples(st.integers(0, 200_000), st.integers(1, 10**9)), max_size=60), st.integers(1, 50))
def test_money_over_time_ends_at_all_that_was_spent(spent: list[tuple[int, int]], buckets: int) -> None:
    """However wide the buckets are, none is lost, and the sum never falls."""
    stories = [Story(f"r{n}", "t", spent=((at, cost),)) for n, (at, cost) in enumerate(spent)]
    _, told = timeline.spent_by(stories, buckets)
    totals = [total for _, total in told]
    assert totals == sorted(totals)
    assert len(totals) <= buckets
    assert (totals[-1] if totals else 0) == sum(cost for _, cost in spent)


def test_the_money_of_a_parent_is_not_its_forks() -> None:
    """A fork begins with what its parent had spent, and that was another run's money."""
    copied = Record(run="r1", seq=0, at=START.isoformat(), nonce="n", prev=NONE, event=replied(cost_microusd=5))
    own = Record(run="r1", seq=1, at=START.isoformat(), nonce="n", prev=NONE, event=replied(cost_microusd=7))
    assert [cost for _, cost in story([copied, own]).spent] == [7]


def test_closed_hours_are_shaded() -> None:
    """Of a window from 22 to 6 the day between two nights is closed."""
    window = Window(open="22:00", close="06:00", zone="UTC")
    first, last = START, START + timedelta(days=1)
    (shade,) = timeline.shut_hours(window, first, last)
    assert shade.start == START.replace(hour=6).timestamp()
    assert shade.end == START.replace(hour=22).timestamp()
    assert timeline.shut_hours(None, first, last) == []
