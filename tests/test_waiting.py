"""Runs that wait for people, and go on: asked, answered, paused, steered, cancelled; on the real engine and Redis."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from nights import LIMITS, Night, types

from scheduler.approvals import answer
from scheduler.control import tell
from scheduler.runs import Found
from worker.contract.cancel import Cancel
from worker.contract.errors import ConflictFault
from worker.contract.events import Asked, Decided, FedBack, Observation, Observed, Parked, Replied, Steered, canonical
from worker.contract.task import PolicyRule
from worker.policy import Ruling
from worker.station import utc_now
from worker.store import keys
from worker.store.journal import Journal

pytestmark = pytest.mark.docker

RUN, BATCH = Found("run", "run-1"), Found("batch", "batch-1")
TOUCH = "touch approved; echo done"
ASKS = (PolicyRule(pattern="^touch", action="ask", reason="may it touch?"),)
TOUCHES = f"""
- calls: [{{tool: run_command, arguments: {{command: 'echo 43 > answer.txt'}}}}]
- calls: [{{tool: run_command, arguments: {{command: '{TOUCH}'}}}}]
- text: Done.
"""
QUESTION = """
- calls: [{tool: ask_person, arguments: {question: 'Is it 42 or 43?'}}]
- expect: "say (4.)"
  calls: [{tool: run_command, arguments: {command: 'echo ${1} > answer.txt'}}]
- text: Done.
"""
LONG = """
- calls: [{tool: run_command, arguments: {command: 'echo once >> log; sleep 600', timeout_s: 600}}]
- text: Done.
"""


def of(journal: Journal, kind: type[Any]) -> list[Any]:
    return [record.event for record, _ in journal.read() if isinstance(record.event, kind)]


def seen(journal: Journal) -> list[Observation]:
    return [event.observation for event in of(journal, Observed)]


def decide(night: Night, given: Any, **more: Any) -> None:
    answer(night.archive, night.station.hints, "run-1", given, by="boss", at=utc_now(), **more)


def told(night: Night, to: Found, kind: Any, text: str = "") -> None:
    tell(night.archive, night.station.hints, to, kind, by="ann", at=utc_now(), text=text)


def parked(night: Night, **fields: Any) -> Journal:
    """A run that asked before its second call."""
    journal = night.submit(checks=(), **({"script": TOUCHES, "policy": ASKS} | fields))
    assert night.work() == "parked"
    return journal


def test_a_run_that_asks_waits_without_anything(night: Night) -> None:
    """Asked and parked are one append; worker, lease, containers and volume are free."""
    journal = parked(night)
    assert [record.event.type for record, _ in journal.read()][-2:] == ["asked", "parked"]
    assert night.leftovers() == []
    assert night.station.hints.held(["run:run-1"]) == set()
    run = journal.load()
    assert (run.status, run.waiting and run.waiting.waiting) == ("waiting", "approval")


def test_a_doorbell_does_not_wake_a_run_that_waits(night: Night) -> None:
    """Until somebody decided, nothing is claimed."""
    journal = parked(night)
    before = types(journal)
    assert night.work() == "not_due"
    assert types(journal) == before


def test_an_approved_call_runs_as_it_was_asked(night: Night) -> None:
    """On the workspace of the last commit, once, and the journal says who allowed it when."""
    journal = parked(night)
    decide(night, "approved")
    assert night.work(name="elsewhere") == "sealed"
    [decided] = of(journal, Decided)
    assert (decided.decision, decided.by, bool(decided.decided_at)) == ("approved", "boss", True)
    assert [one.output.strip() for one in seen(journal)] == ["", "done"]
    run = journal.load()
    assert run.sealed is not None
    assert set(run.verdict.patch.files if run.verdict else ()) == {"answer.txt", "approved"}


def test_a_denied_call_is_told_and_not_run(night: Night) -> None:
    """The model reads the reason and goes on."""
    journal = parked(night)
    decide(night, "denied", reason="not tonight")
    assert night.work() == "sealed"
    assert (seen(journal)[1].status, seen(journal)[1].output) == ("denied", "not tonight")
    run = journal.load()
    assert set(run.verdict.patch.files if run.verdict else ()) == {"answer.txt"}


def test_a_question_is_answered(night: Night) -> None:
    """The tool's result is the person's words."""
    journal = night.submit(script=QUESTION)
    assert night.work() == "parked"
    decide(night, "answered", reason="say 42")
    assert night.work() == "sealed"
    assert (seen(journal)[0].status, seen(journal)[0].output) == ("ok", "say 42")
    sealed = journal.load().sealed
    assert sealed is not None
    assert sealed.verdict == "verified"


def test_a_decision_about_something_else_runs_nothing(night: Night) -> None:
    """An approval whose binding does not fit the call is read as a denial."""
    journal = parked(night)
    [asked] = of(journal, Asked)
    forged = {"v": 1, "call": asked.call_id, "binding": "0" * 64, "decision": "approved", "by": "x", "at": utc_now()}
    night.archive.create(keys.decision("run-1", asked.call_id), canonical(forged | {"reason": ""}))
    assert night.work() == "sealed"
    assert [event.decision for event in of(journal, Decided)] == ["denied"]
    assert seen(journal)[1].status == "denied"


def test_waiting_uses_no_working_time(night: Night) -> None:
    """A run with two minutes for work may wait for hours."""
    now, later = "2026-11-30T01:00:00.000+00:00", "2026-11-30T09:00:00.000+00:00"
    limits = LIMITS.model_copy(update={"working_time_s": 120.0})
    journal = night.submit(checks=(), script=TOUCHES, policy=ASKS, limits=limits)
    assert night.work(now=lambda: now) == "parked"
    answer(night.archive, None, "run-1", "approved", by="boss", at=later)
    assert night.work(now=lambda: later) == "sealed"
    sealed = journal.load().sealed
    assert sealed is not None
    assert (sealed.outcome, sealed.failure) == ("changed", None)


@pytest.mark.parametrize(("on_ask", "end"), [("deny", ("changed", None)), ("fail", ("failed", "refused/guard"))])
def test_a_task_says_what_unattended_runs_do(night: Night, on_ask: str, end: tuple[str, str | None]) -> None:
    """Denied, the model goes on; failed, the run ends; in neither case does it wait."""
    journal = night.submit(checks=(), script=TOUCHES, policy=ASKS, on_ask=on_ask)
    assert night.work() == "sealed"
    assert seen(journal)[-1].status == "denied"
    sealed = journal.load().sealed
    assert sealed is not None
    assert (sealed.outcome, str(sealed.failure) if sealed.failure else None) == end


def test_the_deployments_hook_rules_over_each_call(night: Night) -> None:
    """It sees what would run, and its denial reaches the model."""
    asked: list[Any] = []

    def hook(call: Any) -> Ruling:
        asked.append(call)
        return Ruling("deny", "not in this house") if "touch" in str(call["call"]["arguments"]) else Ruling("allow")

    journal = night.submit(checks=(), script=TOUCHES)
    assert night.work(before_call=hook) == "sealed"
    assert [one["call"]["arguments"]["command"] for one in asked] == ["echo 43 > answer.txt", TOUCH]
    assert asked[0]["run"] == "run-1"
    assert [(one.status, one.output) for one in seen(journal)][1] == ("denied", "not in this house")


class Watched:
    """Redis, that counts how often an attempt looked for hints."""

    def __init__(self, night: Night) -> None:
        self._hints = night.station.hints
        self.looked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hints, name)

    def poked(self, names: Any) -> dict[str, int]:
        self.looked += 1
        return self._hints.poked(names)


def test_a_paused_run_is_parked_between_calls_and_goes_on(night: Night, wait_until: Callable[..., Any]) -> None:
    """The pause is in the journal with who asked for it, and no committed call runs again."""
    journal, hints = night.submit(), Watched(night)

    def pausing(task: Any) -> Any:
        model = night.station.open_model(task)
        said = model.reply

        class Pauses:
            name = model.name

            def reply(self, request: Any, **rest: Any) -> Any:
                if request.step == 2:
                    told(night, RUN, "pause")
                    seen_before = hints.looked
                    wait_until(lambda: hints.looked > seen_before + 1)  # the look before this one is over
                return said(request, **rest)

        return Pauses()

    assert night.work(open_model=pausing, hints=hints) == "parked"
    run = journal.load()
    assert (run.status, run.waiting) == ("waiting", Parked(waiting="paused", detail="paused by ann"))
    assert night.work() == "not_due"
    assert night.leftovers() == []
    told(night, RUN, "unpause")
    assert night.work() == "sealed"
    assert [event.kind for event in of(journal, Steered)] == ["pause", "unpause"]
    assert (journal.load().steps, len(seen(journal))) == (3, 2)


def test_a_paused_batch_keeps_its_runs_from_beginning(night: Night) -> None:
    """Nothing is claimed; unpausing the run alone does not help; unpausing the batch does."""
    journal = night.submit()
    told(night, BATCH, "pause")
    assert night.work() == "not_due"
    told(night, RUN, "unpause")
    assert night.work() == "not_due"
    told(night, BATCH, "unpause")
    assert night.work() == "sealed"
    assert [(event.scope, event.kind) for event in of(journal, Steered)] == [
        ("batch", "pause"),
        ("batch", "unpause"),
        ("run", "unpause"),
    ]


def working(night: Night, **changes: Any) -> tuple[threading.Thread, list[str]]:
    """An attempt in the background, and how it ended."""
    ended: list[str] = []
    thread = threading.Thread(target=lambda: ended.append(night.work(**changes)))
    thread.start()
    return thread, ended


def test_a_pause_kills_a_call_that_outlasts_the_soft_limit(night: Night, wait_until: Callable[..., Any]) -> None:
    """It is rolled back, so that the next attempt's call is the only one."""
    journal = night.submit(script=LONG, checks=())
    settings = night.station.settings.model_copy(update={"drain_soft_s": 0.5})
    thread, ended = working(night, settings=settings)
    wait_until(lambda: journal.load().pending)
    told(night, RUN, "pause")
    thread.join(30)
    assert ended == ["parked"]
    assert (len(seen(journal)), night.leftovers()) == (0, [])
    assert journal.load().waiting == Parked(waiting="paused", detail="paused by ann")


def test_a_cancelled_batch_ends_a_call_in_flight(night: Night, wait_until: Callable[..., Any]) -> None:
    """One object cancels every run of it."""
    journal = night.submit(script=LONG, checks=())
    thread, ended = working(night)
    wait_until(lambda: journal.load().pending)
    told(night, BATCH, "cancel")
    thread.join(30)
    assert ended == ["sealed"]
    sealed = journal.load().sealed
    assert sealed is not None
    assert (sealed.outcome, sealed.detail) == ("cancelled", "cancelled by ann")


def test_words_without_redis_reach_the_model(night: Night) -> None:
    """The archive alone carries them: a wiped Redis forgets nobody."""
    script = "- calls: [{tool: run_checks, arguments: {}}]\n- expect: Use 42\n  text: As you say."
    journal = night.submit(script=script, checks=(), on_ask="deny")
    tell(night.archive, None, RUN, "message", by="ann", at=utc_now(), text="Use 42.")
    assert night.work() == "sealed"
    assert types(journal).index("steered") < types(journal).index("replied")


LATE = """
- text: I think I am done.
- expect: one more thing
  calls: [{tool: run_command, arguments: {command: 'echo 42 > answer.txt'}}]
- text: Now I am.
"""


def late(night: Night, kind: Any) -> Any:
    """A model whose first words are overtaken by a message."""

    def opened(task: Any) -> Any:
        model = night.station.open_model(task)

        class Overtaken:
            name = model.name

            def reply(self, request: Any, **rest: Any) -> Any:
                reply = model.reply(request, **rest)
                if request.step == 1:
                    told(night, RUN, kind, "one more thing")
                return reply

        return Overtaken()

    return opened


def test_words_that_come_as_the_model_finishes_are_read(night: Night) -> None:
    """They won against the end, so the model has the turn again, and that counts as no red check."""
    journal = night.submit(script=LATE, checks=())
    assert night.work(open_model=late(night, "message")) == "sealed"
    run = journal.load()
    assert (run.steps, run.feedbacks, len(of(journal, FedBack))) == (3, 0, 1)
    assert [event.text for event in of(journal, Steered)] == ["one more thing"]
    assert run.sealed is not None
    assert run.sealed.outcome == "changed"
    with pytest.raises(ConflictFault, match="has ended"):
        told(night, RUN, "message", "too late")


def test_words_that_only_a_takeover_finds_are_read_too(night: Night) -> None:
    """The attempt ended after the model's last words; the next one takes the message in and gives the turn back."""
    journal = night.submit(script=LATE, checks=())

    drain = Cancel()

    def opened(task: Any) -> Any:
        model = night.station.open_model(task)

        class Drained:
            name = model.name

            def reply(self, request: Any, **rest: Any) -> Any:
                drain.set("drain")
                return model.reply(request, **rest)

        return Drained()

    assert night.work(drain=drain, open_model=opened) == "yielded"
    assert journal.load().turn == "verdict"
    told(night, RUN, "message", "one more thing")
    assert night.work() == "sealed"
    run = journal.load()
    assert (run.steps, [event.text for event in of(journal, FedBack)]) == (3, [""])


def test_a_pause_that_comes_as_the_model_finishes_parks_before_the_verdict(night: Night) -> None:
    """Nothing is measured meanwhile; unpaused, the run ends with its words."""
    journal = night.submit(script=LATE, checks=())
    assert night.work(open_model=late(night, "pause")) == "parked"
    assert journal.load().turn == "verdict"
    told(night, RUN, "unpause")
    assert night.work() == "sealed"
    assert len(of(journal, Replied)) == 1


def test_a_question_asked_again_after_a_crash_is_the_same_one(night: Night) -> None:
    """The attempt that read the decision died at once: the next one takes it in and runs the call."""
    journal = parked(night)
    decide(night, "approved")

    class Died(BaseException):
        pass

    def dying(call: Any) -> Ruling:
        raise Died

    with pytest.raises(Died):
        night.work(before_call=dying)
    assert night.work(name="worker-2") == "sealed"
    assert types(journal).count("decided") == 1
    assert [one.output.strip() for one in seen(journal)] == ["", "done"]
