"""Scripts: what they may say, how they fail, and that they remember nothing."""

from __future__ import annotations

import json
import time

import pytest

from worker.contract.cancel import Cancel
from worker.contract.errors import InvalidFault, ProviderFault
from worker.contract.events import Reply, Usage
from worker.contract.script import parse_script
from worker.models.protocol import AssistantMessage, Message, ModelRequest, ToolResult, ToolResults, UserMessage
from worker.models.scripted import ScriptedModel


def scripted(text: str) -> ScriptedModel:
    return ScriptedModel("scripted:fix.yaml", parse_script(text, "fix.yaml"))


def ask(model: ScriptedModel, *messages: Message, index: int = 0, timeout_s: float = 30) -> Reply:
    request = ModelRequest("", (UserMessage("Fix it."), *messages), (), step=index + 1, reply_index=index)
    return model.reply(request, timeout_s=timeout_s, cancel=Cancel())


def observed(output: str, before: Reply | None = None) -> tuple[Message, ...]:
    """A reply and the observation of its call, as the loop shows it."""
    content = json.dumps({"tool_call_id": "call_1_1", "status": "error", "exit_code": 1, "output": output})
    return AssistantMessage(before or Reply()), ToolResults((ToolResult("call_1_1", content, True),))


def refusal_of(text: str) -> str:
    """What is said of a script that does not parse."""
    with pytest.raises(InvalidFault) as caught:
        parse_script(text, "fix.yaml")
    return str(caught.value)


def test_a_reply_says_what_the_script_says() -> None:
    """Text, reasoning, calls with our ids and theirs, usage, cost."""
    model = scripted("""
        - text: I look.
          reasoning: Where to begin?
          calls:
            - {tool: run_command, arguments: {command: ls -l, n: 1.5}, id: c1}
            - {tool: run_command, arguments: '{"command": "ls', id: c1}
            - tool: run_checks
          usage: {input_tokens: 10, output_tokens: 2}
          cost_usd: 0.1
    """)
    reply = ask(model)
    assert (reply.text, reply.reasoning, reply.stop) == ("I look.", "Where to begin?", "calls")
    assert [call.arguments for call in reply.calls] == ['{"command": "ls -l", "n": 1.5}', '{"command": "ls', "{}"]
    assert [(call.id, call.original_id) for call in reply.calls] == [
        ("call_1_1", "c1"),
        ("call_1_2", "c1"),
        ("call_1_3", ""),
    ]
    assert reply.usage == Usage(input_tokens=10, output_tokens=2)
    assert (reply.cost_microusd, reply.price_source, reply.model) == (100_000, "script", "scripted:fix.yaml")


def test_a_script_costs_nothing_unless_it_says_so_and_may_have_no_known_price() -> None:
    """0 by default, null for unknown (T70)."""
    assert ask(scripted("- text: a")).cost_microusd == 0
    assert ask(scripted("- {text: a, cost_usd: null}")).cost_microusd is None


@pytest.mark.parametrize("stop", ["length", "refusal", "content_filter"])
def test_a_script_can_be_cut_or_refuse(stop: str) -> None:
    """The stop reason is what the script says."""
    assert ask(scripted(f"- {{text: a, stop: {stop}}}")).stop == stop


def test_expect_finds_text_in_the_output_as_it_was_printed() -> None:
    """Over lines and quotes that JSON escapes; its groups are used by this reply and later ones."""
    model = scripted(r"""
        - calls: [{tool: run_command, arguments: {command: npm test}}]
        - expect: '(?m)^want "(?P<want>\d+)"$\n^got (\d+)$'
          text: ${want}, not ${1} or ${2}.
          calls: [{tool: edit_file, arguments: {path: a.js, edits: [{new: 'total = ${want}', keep: true}]}}]
        - text: It is ${want} now.
          calls: [{tool: run_command, arguments: '{"command": "echo ${want}'}]
    """)
    second = ask(model, *observed('1 test\nwant "40"\ngot 15\n', ask(model)), index=1)
    assert second.text == "40, not 40 or 15."
    assert json.loads(second.calls[0].arguments) == {"path": "a.js", "edits": [{"new": "total = 40", "keep": True}]}
    restored = Reply.model_validate_json(json.dumps(second.model_dump(mode="json")))
    third = ask(scripted(_text_of(model)), *observed("", restored), index=2)
    assert third.text == "It is 40 now."
    assert third.calls[0].arguments == '{"command": "echo 40'


def _text_of(model: ScriptedModel) -> str:
    """The script of a model, written anew: another process parses its own copy."""
    return json.dumps([reply.model_dump(exclude_unset=True) for (reply,) in model.script.turns])


def test_expect_finds_text_in_the_json_of_an_observation() -> None:
    """Exit code and status stand only there."""
    model = scripted("""
        - text: a
        - expect: '"exit_code": 1'
          text: It failed.
    """)
    assert ask(model, *observed("boom"), index=1).text == "It failed."


def test_expect_finds_text_in_peoples_words_and_not_in_what_came_before_the_last_reply() -> None:
    """Red checks come as words; an observation of an earlier step is not looked at again."""
    model = scripted("- text: a\n- {expect: 'red check', text: I see.}\n- {expect: boom, text: never}")
    assert ask(model, AssistantMessage(Reply()), UserMessage("a red check"), index=1).text == "I see."
    with pytest.raises(InvalidFault):
        ask(model, *observed("boom"), *observed("quiet"), index=2)


def test_expect_that_finds_nothing_fails_loudly() -> None:
    """With the reply's position, the expression and the start of what was seen."""
    model = scripted("- text: a\n- {expect: 'fail 0', text: b}")
    with pytest.raises(InvalidFault) as caught:
        ask(model, *observed("# fail 3" + "x" * 5000), index=1)
    message = str(caught.value)
    assert message.startswith("script fix.yaml, reply 2: expect 'fail 0' is not in '# fail 3xxx")
    assert len(message) < 700


def test_a_script_goes_on_by_what_it_sees() -> None:
    """The first case that fits is the reply; the last may fit always."""
    model = scripted("""
        - text: a
        - cases:
            - {expect: '# fail 0', text: Done.}
            - {expect: 'TypeError: (\\w+)', text: 'Now ${1}.', calls: [{tool: run_checks}]}
            - {text: I give up.}
    """)
    assert ask(model, *observed("# fail 0"), index=1).text == "Done."
    assert ask(model, *observed("TypeError: price"), index=1).text == "Now price."
    assert ask(model, *observed("# fail 1"), index=1).text == "I give up."


def test_a_group_that_took_no_part_is_empty() -> None:
    """An optional part that is absent does not stop the script."""
    model = scripted("- text: a\n- {expect: 'a(b)?', text: '<${1}>'}")
    assert ask(model, *observed("a"), index=1).text == "<>"


def test_what_no_expect_captures_is_text() -> None:
    """Shell variables need no quoting."""
    model = scripted("- calls: [{tool: run_command, arguments: {command: 'echo ${HOME} $1 ${1}'}}]")
    assert json.loads(ask(model).calls[0].arguments) == {"command": "echo ${HOME} $1 ${1}"}


def test_a_branch_that_never_captured_fails_loudly() -> None:
    """A variable of a case that was not taken has no value."""
    model = scripted("- text: a\n- cases: [{expect: '(?P<x>z)', text: b}, {text: c}]\n- text: ${x}")
    with pytest.raises(InvalidFault, match=r"\$\{x\} is used before an expect captured it"):
        ask(model, *observed("", ask(model, *observed(""), index=1)), index=2)


def test_a_script_that_ends_with_calls_fails_at_its_end() -> None:
    """Nobody finished, so it is no success."""
    with pytest.raises(InvalidFault, match="reply 2: the script has only 1 replies, and the last one has calls"):
        ask(scripted("- calls: [{tool: run_checks}]"), *observed(""), index=1)


def test_a_script_that_has_said_its_last_words_says_them_again() -> None:
    """Asked again after red checks, one that gives up still gives up."""
    model = scripted("- calls: [{tool: run_checks}]\n- {expect: x, text: I give up.}")
    assert ask(model, AssistantMessage(Reply()), UserMessage("Still red."), index=4).text == "I give up."


def test_a_delay_ends_in_the_reply() -> None:
    """delay_s is how long a reply takes."""
    began = time.monotonic()
    assert ask(scripted("- {text: late, delay_s: 0.2}")).text == "late"
    assert time.monotonic() - began >= 0.2


def test_a_delay_past_the_deadline_is_a_fault() -> None:
    """As a provider's would be."""
    with pytest.raises(ProviderFault) as caught:
        ask(scripted("- {text: late, delay_s: 600}"), timeout_s=0.1)
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "fix.yaml:1:1: a script is a list of at least one reply"),
        ("text: a", "fix.yaml:1:1: a script is a list"),
        ("- text: a\n- text: [", "fix.yaml:2:10: "),
        ("- text: a\n  text: b", "fix.yaml:2:3: [0].text is given twice, first on line 1"),
        ("- text: a\n- txt: b", "fix.yaml:2:3: [1].txt Extra inputs are not permitted"),
        ("- calls:\n  - arguments: {}", "fix.yaml:2:5: [0].calls[0].tool Field required"),
        ("- text: a\n- {text: b, expect: '('}", "fix.yaml:2:13: [1].expect is not a regular expression"),
        ("- {text: a, delay_s: -1}", "fix.yaml:1:13: [0].delay_s Input should be greater"),
        ("- {text: a, cost_usd: .inf}", "fix.yaml:1:13: [0].cost_usd Input should be a finite number"),
        ("- {text: a, cost_usd: 1.0e+307}", "fix.yaml:1:13: [0].cost_usd Input should be less"),
        ("- {text: a, usage: {input_tokens: -1}}", "fix.yaml:1:13: [0].usage counts tokens from 0 to"),
        ("- {text: a, stop: later}", "fix.yaml:1:13: [0].stop Input should be 'end'"),
        ("- calls: [{tool: a, arguments: [1]}]", "[0].calls[0].arguments should be a mapping or a string"),
        ("- calls: [{tool: a, arguments: {d: 2026-11-30}}]", "was read as a date: put it in quotes"),
        ("- calls: [{tool: a, arguments: {d: .inf}}]", "inf has no JSON form"),
        (
            "- text: '${x}'\n- {expect: '(?P<x>a)', text: b}",
            "fix.yaml:1:3: [0] uses ${x} before an expect captures it",
        ),
        ("- cases: [{text: a}, {text: b}]", "a case without expect always fits"),
        ("- cases: []", "should have at least 1 item"),
    ],
)
def test_a_script_that_does_not_parse_is_refused_with_file_line_and_column(text: str, said: str) -> None:
    """Before anything runs, and every fault at once."""
    assert said in refusal_of(text)


def test_every_fault_of_a_script_is_told_at_once() -> None:
    """One edit mends them all."""
    assert refusal_of("- {txt: a}\n- {delay_s: x}").count("fix.yaml:") == 2


def test_a_word_of_yaml_1_2_stays_a_word() -> None:
    """`no` and `on` are no booleans."""
    assert ask(scripted("- calls: [{tool: a, arguments: {answer: no}}]")).calls[0].arguments == '{"answer": "no"}'
