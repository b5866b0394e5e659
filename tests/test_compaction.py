"""What gives way when the context is full, and what never does."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transcripts import MemoryHost, Transcript, body, shell, task

from worker import compaction, context
from worker.contract.cancel import Cancel
from worker.contract.events import (
    Compacted,
    Decided,
    Instruction,
    Observation,
    Observed,
    PlanItem,
    Reply,
    Steered,
    Usage,
)
from worker.contract.script import parse_script
from worker.loop import work
from worker.meter import RESERVE_TOKENS
from worker.models.protocol import AssistantMessage, Model, ModelRequest, ToolResult, ToolResults, UserMessage
from worker.models.scripted import ScriptedModel
from worker.tools.toolset import Toolset

KB = "x" * 1_000


def roomy(tokens: int, **fields: Any) -> Transcript:
    """A run whose context has room for about so many tokens beside the first request."""
    empty = shown(Transcript(task()))
    return Transcript(task(context_tokens=RESERVE_TOKENS + empty.tokens + tokens), **fields)


def shown(transcript: Transcript) -> context.Transcript:
    fresh = context.Transcript(transcript.task, Toolset().specs)
    fresh.follow(transcript.records())
    return fresh


def outputs(transcript: context.Transcript) -> list[str]:
    """What the model reads of each call, oldest first."""
    told = [message for message in transcript.request("model").messages if isinstance(message, ToolResults)]
    return [json.loads(result.content)["output"] for message in told for result in message.results]


# Old outputs


def test_old_outputs_give_way_to_pointers_first() -> None:
    """Nothing is pruned while there is room; then all but the last part is, and no summary is asked for."""
    transcript = roomy(60_000)
    for n in range(4):
        transcript.step(f"cat {n}", f"{n} " + KB * 50)
    assert [len(output) for output in outputs(shown(transcript))] == [50_002] * 4
    transcript.step("cat 4", "4 " + KB * 50)
    now = shown(transcript)
    first, *_, last = outputs(now)
    assert first.startswith("[50,002 bytes were left out here to save room. Call read_output")
    assert last == "4 " + KB * 50
    assert not now.full
    assert len(outputs(now)) == 5


def test_what_is_pruned_stays_a_whole_observation() -> None:
    """Call, status and exit code are still told; small results and all that is no result stay as they are."""
    transcript = roomy(60_000)
    transcript.step("make", "no rule", exit_code=2, status="error")
    transcript.step("make all", KB * 50, exit_code=2, status="error")
    transcript.commit(Steered(n=0, kind="message", by="ada", text=KB * 15))
    before = shown(transcript).request("model").messages
    for n in range(4):
        transcript.step(f"cat {n}", KB * 50)
    after = shown(transcript).request("model").messages
    assert [one for one in before if not isinstance(one, ToolResults)] == [
        one for one in after[: len(before)] if not isinstance(one, ToolResults)
    ]
    small, pruned, *_ = [message for message in after if isinstance(message, ToolResults)]
    assert small == before[2]
    content = json.loads(pruned.results[0].content)
    assert (content["tool_call_id"], content["status"], content["exit_code"]) == ("call_2_1", "error", 2)
    assert pruned.results[0].is_error


def test_of_one_giant_step_the_newest_results_stay() -> None:
    """A hundred calls in one reply may fill the context alone: their results are pruned, not their pairs."""
    transcript = roomy(60_000)
    calls = [shell(f"cat {n}", 1, n) for n in range(100)]
    transcript.reply(*calls)
    for call in calls:
        transcript.observe(call, KB * 10)
    now = shown(transcript)
    assert [len(output) == 10_000 for output in outputs(now)] == [False] * 94 + [True] * 6
    assert not now.full


def test_a_context_that_pruning_leaves_nearly_full_asks_for_a_summary() -> None:
    """Words and arguments are not pruned."""
    transcript = roomy(60_000)
    for n in range(20):
        transcript.reply(shell(f"echo {KB * 11}", n + 1))
        transcript.observe(shell(f"echo {KB * 11}", n + 1), "")
    assert shown(transcript).full


# A summary


def long_run(**fields: Any) -> Transcript:
    """Forty steps of 2,000 tokens each, said by the agent; room for 60,000."""
    transcript = roomy(60_000, **fields)
    for n in range(40):
        spoken(transcript, f"step {n + 1}")
    return transcript


def spoken(transcript: Transcript, words: str) -> None:
    call = shell("ls", transcript.run.steps + 1)
    transcript.reply(call, text=f"{words} " + KB * 7)
    transcript.observe(call)


def asked(transcript: Transcript, tries: int = 0) -> context.Summary:
    wanted = shown(transcript).summary(tries)
    assert wanted is not None
    return wanted


def summarized(transcript: Transcript, words: str = "All is well so far.") -> Compacted:
    now = shown(transcript)
    wanted = now.summary(0)
    assert wanted is not None
    event = now.compacted(wanted, Reply(text=words, usage=Usage(output_tokens=9), cost_microusd=7))
    transcript.commit(event)
    return event


def test_a_summary_is_asked_for_alone() -> None:
    """No tools and no system prompt that ask for work; the task, and the older part in which each text is cut."""
    transcript = long_run()
    request = asked(transcript).request
    assert (request.purpose, request.tools, request.reply_index) == ("summary", (), 0)
    assert "notes" in request.system
    (told,) = request.messages
    assert isinstance(told, UserMessage)
    for words in ("Fix the sum.", "AGENT: step 1 x", "CALL call_1_1: run_command", "RESULT: ", "characters ..."):
        assert words in told.text
    assert "step 40 " not in told.text


def test_the_last_part_stays_as_it_was() -> None:
    """About 20,000 tokens, from a reply on; what was before is gone but for its notes."""
    transcript = long_run()
    before = shown(transcript).request("model").messages
    event = summarized(transcript)
    now = shown(transcript)
    after = now.request("model").messages
    kept = after[2:-1]
    assert kept == before[-len(kept) - 1 : -1] or kept == before[-len(kept) :]
    assert isinstance(kept[0], AssistantMessage)
    assert sum(map(compaction.size_bytes, kept)) == pytest.approx(70_000, abs=8_000)
    assert event.through == 41 - len([one for one in kept if isinstance(one, AssistantMessage)])
    assert not now.full


def test_task_plan_files_and_peoples_words_outlive_a_summary() -> None:
    """Word for word, whoever wrote the notes; the repository's own words too."""
    transcript = roomy(60_000, instructions=(Instruction(path="AGENTS.md", text="Use tabs."),))
    head = shown(transcript).request("model").messages
    transcript.commit(Steered(n=0, kind="message", by="ada", text="Keep the \u2028 name $total."))
    call = shell("plan", 1)
    transcript.reply(call)
    plan = (PlanItem(text="repair", status="doing"),)
    transcript.commit(Decided(call_id=call.id, decision="answered", by="bob", reason="Take the second one."))
    seen = Observation(call_id=call.id, tool="ask_person", status="ok")
    transcript.commit(Observed(observation=seen, plan=plan, files=tuple(f"f{n}.py" for n in range(120))))
    for n in range(40):
        spoken(transcript, f"step {n}")
    transcript.commit(Steered(n=1, kind="message", by="cy", text="Late words."))
    summarized(transcript)
    told = shown(transcript).request("model").messages
    assert told[: len(head)] == head
    notes, last = told[len(head)], told[-1]
    assert isinstance(notes, UserMessage)
    assert isinstance(last, UserMessage)
    for words in ("- ada: Keep the \u2028 name $total.", "- bob (answered): Take the second one.", "- f119.py"):
        assert words in notes.text
    assert "All is well so far." in notes.text
    assert "- 20 more" in notes.text
    assert "cy" not in notes.text, "they are in the part that stays"
    assert "Late words." in body(told)
    for words in ("Fix the sum.", "[doing] repair"):
        assert words in last.text


def test_the_next_summary_builds_on_the_notes() -> None:
    """Incremental: what is summarized already is not read, or paid for, again."""
    transcript = long_run()
    first = asked(transcript).through
    summarized(transcript, "Notes of the first half.")
    for n in range(40, 60):
        spoken(transcript, f"step {n + 1}")
    request = asked(transcript).request
    told = body(request.messages)
    assert "Notes of the first half." in told
    assert f"step {first} " in told
    assert f"step {first - 1} " not in told
    assert "TOLD: To save room" not in told, "the notes are shown as notes, once"
    assert request.reply_index == 1
    summarized(transcript, "Notes of both.")
    after = body(shown(transcript).request("model").messages)
    assert "Notes of both." in after
    assert "Notes of the first half." not in after


def test_a_second_summary_in_a_row_keeps_less_of_the_same() -> None:
    """It begins at a later reply, and what stays is still what it was."""
    transcript = long_run()
    summarized(transcript)
    before = shown(transcript).request("model").messages
    now = shown(transcript)
    wanted = now.summary(1)
    assert wanted is not None
    transcript.commit(now.compacted(wanted, Reply(text="Notes of more.")))
    after = shown(transcript).request("model").messages
    kept = after[2:-1]
    assert kept == before[-len(kept) :]
    assert len(kept) < len(before) / 2
    assert isinstance(kept[0], AssistantMessage)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(text=""),
        Reply(text="cut off", stop="length"),
        Reply(text="I cannot.", stop="refusal"),
        Reply(text=KB * 120),
    ],
    ids=["empty", "cut", "refused", "no shorter"],
)
def test_a_summary_of_no_use_replaces_nothing(reply: Reply) -> None:
    """Its cost is on record all the same."""
    transcript = long_run()
    now = shown(transcript)
    before, wanted = now.request("model"), now.summary(0)
    assert wanted is not None
    event = now.compacted(wanted, reply.model_copy(update={"cost_microusd": 7, "usage": Usage(input_tokens=5)}))
    assert (event.through, event.summary, event.cost_microusd, event.usage.input_tokens) == (0, "", 7, 5)
    transcript.commit(event)
    assert shown(transcript).request("model") == before
    assert (transcript.run.cost_microusd, transcript.run.tokens) == (7, 5)


def test_a_summary_that_is_no_valid_text_is_made_so() -> None:
    """T15: a model of one's own may answer half a surrogate pair."""
    transcript = long_run()
    assert summarized(transcript, "half \ud83d").summary == "half \ufffd"


def test_each_try_keeps_and_shows_less() -> None:
    """A provider that finds the request for a summary too long is shown half as much the next time."""
    transcript = long_run()
    first, second = asked(transcript, 0), asked(transcript, 1)
    assert second.through > first.through
    assert len(body(second.request.messages)) < len(body(first.request.messages)) * 2 / 3


def test_nothing_can_give_way_before_the_first_step() -> None:
    """A task that fills the context alone is not summarized."""
    assert shown(Transcript(task())).summary(0) is None
    one = Transcript(task())
    one.step("ls")
    assert shown(one).summary(0) is None


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["calls", "cut", "empty", "say", "summary", "refused"]), st.integers(1, 3)),
        max_size=30,
    )
)
def test_pairs_are_never_split(acts: list[tuple[str, int]]) -> None:
    """Whatever was pruned and summarized, and how often: each call has its result right after it, a summary shrinks
    what is sent, and the first message stays."""
    transcript = roomy(8_000)
    first = shown(transcript).request("model").messages[0]
    for kind, count in acts:
        step = transcript.run.steps + 1
        calls = [shell(f"{count}", step, n) for n in range(count)]
        match kind:
            case "calls":
                transcript.reply(*calls, text=KB)
                for call in calls:
                    transcript.observe(call, KB * 3 * count)
            case "cut":
                transcript.reply(*calls, text=KB * count, stop="length")
            case "empty":
                transcript.reply()
            case "say":
                transcript.commit(Steered(n=step, kind="message", by="ada", text=KB))
            case _ if (wanted := (now := shown(transcript)).summary(count - 1)) is not None:
                before = now.tokens
                event = now.compacted(wanted, Reply(text="Notes." if kind == "summary" else ""))
                transcript.commit(event)
                assert event.summary == "" or shown(transcript).tokens < before
        told = shown(transcript).request("model").messages
        assert told[0] == first
        for message, after in zip(told, [*told[1:], UserMessage("")], strict=True):
            ids = [call.id for call in message.reply.calls] if isinstance(message, AssistantMessage) else []
            results = after.results if isinstance(after, ToolResults) else ()
            assert ids == [result.call_id for result in results]


def test_the_last_step_stays_however_long_it_is() -> None:
    """And with it nothing before it, where it is too long alone."""
    small, large = (AssistantMessage(Reply(text=KB * size)) for size in (1, 9))
    assert compaction.first_kept([small, small, large], {1: 0, 2: 1, 3: 2}, 5_000) == 3
    assert compaction.first_kept([small, small, small], {1: 0, 2: 1, 3: 2}, 2_500) == 2
    assert compaction.first_kept([small], {}, 5_000) is None


def test_cutting_keeps_both_ends() -> None:
    """What was done stands at the beginning, what came of it at the end."""
    assert compaction.clipped("short") == "short"
    cut = compaction.clipped("begin " + KB * 10 + " end")
    assert cut.startswith("begin ")
    assert cut.endswith(" end")
    assert "[... 8,010 characters ...]" in cut


def test_a_result_at_the_edge_of_the_last_part_is_kept_or_pruned_whole() -> None:
    """The last bytes are counted over whole messages."""
    old, new = (ToolResults((ToolResult(f"c{n}", json.dumps({"output": KB * 2}), False),)) for n in range(2))
    size = compaction.size_bytes(new)
    assert compaction.pruned([old, new], 2 * size) == [old, new]
    assert compaction.pruned([old, new], 2 * size - 1)[1] == new
    assert "left out" in body(tuple(compaction.pruned([old, new], 2 * size - 1)[:1]))


# A long run


@dataclass(frozen=True)
class SeesAll:
    """A scripted model whose `expect` is looked for in all of the rendered context, not only in what is new."""

    inner: ScriptedModel

    @property
    def name(self) -> str:
        return self.inner.name

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        if request.purpose == "reply":
            request = replace(request, messages=(UserMessage(body(request.messages)),))
        return self.inner.reply(request, timeout_s=timeout_s, cancel=cancel)


def long_script(steps: int) -> ScriptedModel:
    """So many steps that fill the context, and at the end a write of the code word that is in sight then."""
    looks = "".join(
        f"- calls: [{{tool: run_command, arguments: {{command: look {n}}}}}]\n  text: {KB * 3}\n"
        for n in range(steps)
    )
    written = (
        "- expect: 'the code word is (?P<word>[a-z]+)'\n"
        "  calls: [{tool: run_command, arguments: {command: 'write ${word}'}}]\n"
        "- text: Written.\n"
    )
    return ScriptedModel("scripted:long", parse_script(looks + written, "long"))


def played(model: Model, prompt: str) -> MemoryHost:
    made = task(steps=400, context_tokens=RESERVE_TOKENS + 25_000)
    host = MemoryHost(made.model_copy(update={"prompt": prompt}), lambda command: (0, f"{command} {KB * 2}", "a"))
    assert "Written." in str(work(host, model, Toolset()))
    return host


def test_a_run_of_300_steps_still_knows_its_goal() -> None:
    """The value to be written at the end stands in the task only; the script finds it in what it is shown last,
    because the task is said again, however often the conversation in between was summarized."""
    host = played(long_script(300), "At the end write the code word; the code word is swordfish.")
    assert host.ran[-1] == "write swordfish"
    assert host.run.compactions >= 3
    assert (host.run.steps, len(host.ran)) == (302, 301)


def test_a_run_of_300_steps_still_has_its_first_message() -> None:
    """The value stands in the middle of a task that is too long to be said again whole: in the first message and
    nowhere else, so every summary must leave that alone."""
    prompt = f"{KB * 6} At the end write it: the code word is swordfish. {KB * 6}"
    host = played(SeesAll(long_script(307)), prompt)
    assert host.ran[-1] == "write swordfish"
    assert host.run.compactions >= 3
    told = shown(host).request("model").messages
    assert [one for one in told if isinstance(one, UserMessage) and "code word" in one.text] == [told[0]]
