"""A record met again: what is compared, what came from outside, and where the record ends."""

from __future__ import annotations

from typing import Any

import pytest

from worker.contract.events import (
    Asked,
    Called,
    CheckResult,
    Claimed,
    Compacted,
    Decided,
    Event,
    Failure,
    FedBack,
    Finished,
    Observation,
    Observed,
    Parked,
    PatchStat,
    PlanItem,
    Record,
    Replied,
    Reply,
    SnapshotRef,
    Steered,
    ToolCall,
    Unrecorded,
    Verdict,
)
from worker.contract.run import Run
from worker.recording import Diverged, Recording

SHA = "0" * 64
CALL = ToolCall(id="c1", name="run_command", arguments="{}")
REPLIED = Replied(step=1, phase="model", reply=Reply(calls=(CALL,), stop="calls"))
DONE = Replied(step=2, phase="model", reply=Reply(text="Done."))
STEERED = Steered(n=0, kind="message", by="ann", text="hi")
ASKED = Asked(call_id="c1", question="may it?", binding=SHA)
GREEN = CheckResult(name="tests", status="green")


def saw(output: str = "ok", tree: str = SHA, **fields: Any) -> Observed:
    seen: dict[str, Any] = {"call_id": "c1", "tool": "run_command", "status": "ok", "exit_code": 0, "output": output}
    return Observed(observation=Observation(**(seen | fields)), snapshot=SnapshotRef(listing=SHA, tree=tree))


def recorded(*events: Event) -> Recording:
    lines = [
        (Record(run="r", seq=n, at="2026-12-01T00:00:00.000+00:00", nonce="n", prev=SHA, event=event), SHA)
        for n, event in enumerate(events, start=1)
    ]
    return Recording(Run(id="r"), lines)


def difference(then: Event, now: Event) -> Diverged:
    with pytest.raises(Diverged) as caught:
        recorded(then).met(now)
    return caught.value


def test_what_came_from_outside_comes_where_it_came() -> None:
    """Words, decisions and lost replies, in order; claims and pauses are no part of the work."""
    record = recorded(
        REPLIED, STEERED, ASKED, Parked(waiting="approval"), Claimed(worker="w", engine="e", lane="m"), ASKED,
        Unrecorded(), Decided(call_id="c1", decision="approved", by="boss"), saw(), FedBack(text=""), DONE,
    )  # fmt: skip
    assert record.outside() == []
    assert record.reply(1, "reply") == REPLIED.reply
    record.met(REPLIED)
    assert record.outside() == [STEERED]
    record.met(ASKED)  # once, however often it was asked again by whoever took over
    assert [event.type for event in record.outside()] == ["unrecorded", "decided"]
    record.met(saw())
    assert [event.type for event in record.outside()] == ["fed_back"]
    assert record.reply(2, "reply") == DONE.reply


def test_the_model_says_a_recorded_summary_again() -> None:
    """With what it cost, so that budgets stop where they stopped."""
    record = recorded(Compacted(through=3, summary="Short.", cost_microusd=7, price_source="p"))
    said = record.reply(4, "summary")
    assert said is not None
    assert (said.text, said.cost_microusd, said.price_source) == ("Short.", 7, "p")


@pytest.mark.parametrize(
    "end",
    [
        (),
        (Finished(failure=Failure(cls="provider", reason="unavailable")),),
        (Finished(failure=Failure(cls="limit", reason="wall")),),
        (Finished(failure=Failure(cls="limit", reason="context")),),
    ],
)
def test_clocks_and_providers_are_not_played_again(end: tuple[Event, ...]) -> None:
    """Where they ended a run, its record ends."""
    assert recorded(*end).reply(1, "reply") is None


def test_a_harness_that_asks_for_more_than_it_did_is_told() -> None:
    """It stopped by itself then."""
    record = recorded(Finished(failure=Failure(cls="agent", reason="loop")))
    with pytest.raises(Diverged) as caught:
        record.reply(9, "reply")
    assert (caught.value.step, caught.value.recorded) == (9, "finished (agent/loop)")
    assert caught.value.now == "asks the model for a reply"


def test_a_harness_that_does_more_than_is_recorded_is_told() -> None:
    """Nothing is compared with nothing."""
    with pytest.raises(Diverged, match="the end of the record"):
        recorded().met(DONE)


@pytest.mark.parametrize(
    ("then", "now", "what"),
    [
        (saw(), saw(status="error", exit_code=None), "status"),
        (saw(), saw(exit_code=1), "exit code"),
        (saw("a\nb"), saw("a\nc"), "output"),
        (saw(), saw(tree="1" * 64), "work tree"),
        (saw(), saw(call_id="c2"), "call"),
        (saw(), saw().model_copy(update={"plan": (PlanItem(text="x"),)}), "plan"),
        (REPLIED, DONE, "step"),
        (REPLIED, REPLIED.model_copy(update={"phase": "commands"}), "phase"),
        (Called(call_id="a"), Called(call_id="b"), "call"),
        (ASKED, ASKED.model_copy(update={"question": "will it?"}), "question"),
        (Compacted(through=1, summary="a"), Compacted(through=2, summary="a"), "through"),
        (Compacted(through=1, summary="a"), Compacted(through=1, summary=""), "summary"),
        (Finished(), Finished(failure=Failure(cls="limit", reason="steps")), "failure"),
        (FedBack(text="", checks=(GREEN,)), FedBack(text="", checks=(GREEN, GREEN)), "checks"),
        (Verdict(verdict="verified"), Verdict(verdict="broke"), "verdict"),
        (Verdict(verdict=None, patch=PatchStat(digest=SHA)), Verdict(verdict=None), "patch"),
    ],
)
def test_every_part_that_the_harness_decides_is_compared(then: Event, now: Event, what: str) -> None:
    """Of each kind of event; the same event is no difference."""
    recorded(then).met(then)
    assert difference(then, now).what.endswith(f": {what}")


def test_another_act_is_told_by_name() -> None:
    """A call that was run then and ends the run now."""
    told = difference(saw(), Finished())
    assert (told.what, told.recorded, told.now) == ("next act", "run_command (c1)", "finished")


def test_of_a_long_output_the_first_line_that_differs_is_shown() -> None:
    """Cut, and its end has a name."""
    told = difference(saw("a\n" * 1000 + "x" * 1000), saw("a\n" * 1000 + "y" * 1000))
    assert told.recorded == "x" * 300
    assert difference(saw("a\nb"), saw("a")).now == "(its end)"


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("2 passed in 0.02s", "2 passed in 11.3s"),
        ("==== 1 passed in 9.9s ====", "=== 1 passed in 10.0s ==="),
        ("<Cart object at 0x7f10aa>", "<Cart object at 0x7fffab>"),
    ],
)
def test_times_and_addresses_are_no_difference(then: str, now: str) -> None:
    """They are counted."""
    record = recorded(saw(then))
    record.met(saw(now))
    assert record.alike == 1
