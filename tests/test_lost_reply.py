"""What is counted for a reply that a dying worker may have been waiting for."""

from __future__ import annotations

from transcripts import Transcript, shell, task

from worker import compaction, context
from worker.contract.events import Event, Observation, Observed, Replied, Reply, Unrecorded, Yielded
from worker.contract.task import Task
from worker.lost_reply import lost_reply
from worker.meter import RESERVE_TOKENS
from worker.models.prices import TABLE_ALONE
from worker.tools.toolset import Toolset

WORDS = "word " * 7_000


def asked(*events: Event, **changes: object) -> Unrecorded | None:
    """What is counted after these events of an attempt that then died."""
    changed: Task = task().model_copy(update={"model": "anthropic/some-model", "prompt": WORDS} | changes)
    journal = Transcript(changed)
    for event in events:
        journal.commit(event)
    return lost_reply(changed, journal.run, journal.records(), Toolset().specs, TABLE_ALONE)


def replied(step: int, phase: str, context_tokens: int = 0) -> Event:
    reply = Reply(calls=(shell("ls", step),), stop="calls")
    return Replied(step=step, phase=phase, reply=reply, context_tokens=context_tokens)  # type: ignore[arg-type]


def observed(step: int) -> Event:
    return Observed(
        observation=Observation(call_id=shell("ls", step).id, tool="run_command", status="ok", exit_code=0)
    )


def test_a_first_request_is_estimated() -> None:
    """No provider has measured it yet, so it is rendered and counted with the longest reply."""
    lost = asked()
    assert lost is not None
    assert len(WORDS) / 4 < lost.tokens - RESERVE_TOKENS < len(WORDS)


def test_a_measured_request_counts_as_it_was_measured() -> None:
    """Where a provider has counted more than we would, the next request has that, and what came since."""
    lost = asked(replied(1, "model", 90_000), observed(1))
    assert lost is not None
    assert 90_000 < lost.tokens - RESERVE_TOKENS < 90_100


def test_what_was_shown_ahead_of_its_commit_may_have_been_asked_about() -> None:
    """The last call's result may have been on its way to the model when the worker died."""
    assert asked(replied(1, "model")) is not None


def test_a_lost_summary_is_counted_like_any_reply() -> None:
    """Its request is never larger than the next one of the loop, which is what is counted."""
    full: Task = task(context_tokens=RESERVE_TOKENS + 30_000).model_copy(update={"model": "anthropic/some-model"})
    journal = Transcript(full)
    for n in range(1, 20):
        journal.reply(shell(f"look {n}", n), text=WORDS[:7_000])
        journal.observe(shell(f"look {n}", n))
    shown = context.Transcript(full, Toolset().specs)
    shown.follow(journal.records())
    assert shown.full
    wanted = shown.summary(0)
    assert wanted is not None
    lost = lost_reply(full, journal.run, journal.records(), Toolset().specs, TABLE_ALONE)
    assert lost is not None
    asked_bytes = len(wanted.request.system) + sum(map(compaction.size_bytes, wanted.request.messages))
    assert lost.tokens - RESERVE_TOKENS >= asked_bytes / compaction.BYTES_PER_TOKEN


def test_it_costs_what_the_dearest_answer_would() -> None:
    """Of all models that may have been asked, with a request that the provider put into its cache."""
    priced = {"model": "anthropic/claude-sonnet-4-5", "fallbacks": ("anthropic/claude-haiku-4-5",)}
    lost = asked(replied(1, "model", 100_000), observed(1), **priced)
    assert lost is not None
    assert lost.cost_microusd is not None
    put_into_the_cache, answered = 100_000 * 3.75, RESERVE_TOKENS * 15
    assert 0 <= lost.cost_microusd - put_into_the_cache - answered < 1_000
    unknown = asked(replied(1, "model", 100_000), observed(1), **priced | {"fallbacks": ("openai/acme-1",)})
    assert unknown is not None
    assert unknown.cost_microusd is None


def test_nothing_is_counted_where_nobody_was_asked() -> None:
    """Neither while commands run, nor for a model that costs nothing, nor after a run was given back in order."""
    assert asked(commands=("ls",)) is None
    assert asked(replied(1, "commands"), commands=("ls",)) is None
    assert asked(model="scripted:x") is None
    assert asked(Yielded(why="drain")) is None
