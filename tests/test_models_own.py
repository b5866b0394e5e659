"""A deployment's own models: programs that speak JSON lines, and entry points of installed packages."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
from model_server import ModelServer
from own_models import SECRETS

from worker.contract.cancel import Cancel
from worker.contract.errors import Fault, InvalidFault, ProviderFault
from worker.contract.events import Reply, ToolCall, Usage
from worker.contract.redact import redactor_from_env
from worker.contract.settings import Settings
from worker.models import processes
from worker.models.entry import EntryModel, open_entry
from worker.models.processes import Programs
from worker.models.program import ProgramModel
from worker.models.protocol import (
    AssistantMessage,
    Message,
    Model,
    ModelRequest,
    ToolResult,
    ToolResults,
    ToolSpec,
    UserMessage,
)

EXAMPLES = Path(__file__).with_name("examples")
TOOL = ToolSpec("run_command", "Run it.", {"type": "object", "properties": {"command": {"type": "string"}}})
OLD_CALL = ToolCall(id="call_1_1", original_id="theirs", name="run_command", arguments='{"command": "ls"}')


def ask(model: Model, *messages: Message, timeout_s: float = 30) -> Reply:
    asked = ModelRequest("Be brief.", messages or (UserMessage("go"),), (TOOL,), step=7, reply_index=0)
    return model.reply(asked, timeout_s=timeout_s, cancel=Cancel())


def refused(model: Model, timeout_s: float = 30) -> ProviderFault:
    with pytest.raises(ProviderFault) as caught:
        ask(model, timeout_s=timeout_s)
    return caught.value


def conversation(native: Any) -> tuple[Message, ...]:
    """Words, a reply with a call, its result."""
    earlier = Reply(text="I look.", calls=(OLD_CALL,), stop="calls", native=native)
    results = ToolResults((ToolResult("call_1_1", '{"output": "a"}', False),))
    return UserMessage("go \ud83d"), AssistantMessage(earlier), results


# Programs


def test_a_program_reads_the_whole_request(programs: Callable[..., ProgramModel]) -> None:
    """System, conversation with what it gave before, tools and limits, in words that are documented."""
    model = programs("for line in sys.stdin: print(json.dumps({'text': line}), flush=True)")
    asked = json.loads(ask(model, *conversation({"provider": "command", "native": {"state": [1]}})).text)
    assert asked == {
        "v": 1,
        "model": "large",
        "system": "Be brief.",
        "messages": [
            {"role": "user", "text": "go \ufffd"},
            {
                "role": "assistant",
                "text": "I look.",
                "calls": [{"id": "theirs", "name": "run_command", "arguments": {"command": "ls"}}],
                "native": {"state": [1]},
            },
            {"role": "tool", "results": [{"id": "theirs", "content": '{"output": "a"}', "is_error": False}]},
        ],
        "tools": [{"name": "run_command", "description": "Run it.", "schema": TOOL.schema}],
        "step": 7,
        "reply_index": 0,
        "purpose": "reply",
        "max_output_tokens": 16_384,
        "timeout_s": 30,
    }


def test_what_another_model_gave_is_not_shown_as_the_programs_own(programs: Callable[..., ProgramModel]) -> None:
    """A run that changes its model mixes no formats."""
    model = programs("for line in sys.stdin: print(json.dumps({'text': line}), flush=True)")
    asked = json.loads(ask(model, *conversation({"provider": "openai", "message": {}})).text)
    assert asked["messages"][1]["native"] is None


def test_everything_a_program_may_say_is_kept(programs: Callable[..., ProgramModel]) -> None:
    """Cost and usage too; arguments that are text stay as they are, broken ones included."""
    said = {
        "text": "a",
        "reasoning": "b",
        "calls": [{"name": "x", "arguments": "{bro", "id": "q"}, {"name": "y"}],
        "stop": "length",
        "usage": {"input_tokens": 3, "cache_read_tokens": 4, "cache_write_tokens": 5, "output_tokens": 6},
        "cost_usd": 0.0159,
        "model": "m-2",
        "native": ["n"],
    }
    reply = ask(programs(f"for line in sys.stdin: print({json.dumps(said)!r}, flush=True)"))
    assert (reply.text, reply.reasoning, reply.stop, reply.model) == ("a", "b", "length", "m-2")
    assert (reply.usage.total, reply.cost_microusd, reply.price_source) == (18, 15_900, "program")
    assert [(call.id, call.original_id, call.arguments) for call in reply.calls] == [
        ("call_7_1", "q", "{bro"),
        ("call_7_2", "", "{}"),
    ]
    assert reply.native == {"provider": "command", "native": ["n"]}


def test_what_a_program_nests_too_deep_does_not_come_back_to_it(programs: Callable[..., ProgramModel]) -> None:
    """Its words are kept, its native form is not: no journal could hold it."""
    said = f'{{"text": "a", "native": {"[" * 300}{"]" * 300}}}'
    reply = ask(programs(f"for line in sys.stdin: print({said!r}, flush=True)"))
    assert (reply.text, reply.native) == ("a", None)


def test_a_cost_that_is_not_told_is_unknown(programs: Callable[..., ProgramModel]) -> None:
    """Never 0 (T70)."""
    assert ask(programs("for line in sys.stdin: print('{}', flush=True)")).cost_microusd is None


def test_one_process_serves_many_requests(programs: Callable[..., ProgramModel]) -> None:
    """What it loaded is loaded once; a run after it gets the same process."""
    model = programs("for line in sys.stdin: print(json.dumps({'text': str(os.getpid())}), flush=True)")
    assert len({ask(model).text for _ in range(3)}) == 1


def test_a_program_is_given_the_models_secrets_and_no_other(programs: Callable[..., ProgramModel]) -> None:
    """In its environment, which argv and logs do not show."""
    model = programs(
        "for line in sys.stdin:\n"
        "    seen = {name: value for name, value in os.environ.items() if not name.startswith('LC_')}\n"
        "    print(json.dumps({'text': json.dumps(seen)}), flush=True)"
    )
    seen = json.loads(ask(model).text)
    assert seen == {"ACME": "hunter2-hunter2", "PATH": os.defpath, "LANG": "C.UTF-8"}


def test_the_models_secrets_are_masked() -> None:
    """As every other secret of a deployment, under the variable's name."""
    assert redactor_from_env(SECRETS).text("key=hunter2-hunter2") == "key=[secret DAWN_MODEL_SECRET_ACME]"


@pytest.mark.parametrize("stream", ["sys.stdout", "sys.stderr"])
def test_no_half_of_a_secret_is_shown_where_what_a_program_said_is_cut(
    programs: Callable[..., ProgramModel], stream: str
) -> None:
    """Wherever the cut falls in it: masked first, cut after (T67)."""
    model = programs(
        "said = 'a' * 490 + os.environ['ACME'] + 'b' * 490\n"
        f"for line in sys.stdin: print(said, file={stream}, flush=True); sys.exit(1)"
    )
    said = str(refused(model))
    assert ("aaa" in said) == (stream == "sys.stdout")
    assert ("bbb" in said) == (stream == "sys.stderr")
    assert "hunter" not in said
    assert "ter2" not in said


def test_programs_are_listed_in_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """One variable each, or all as JSON."""
    monkeypatch.setenv("DAWN_MODEL_PROGRAMS__MINE", "/opt/mine --fast")
    assert Settings().model_programs == {"mine": "/opt/mine --fast"}
    monkeypatch.delenv("DAWN_MODEL_PROGRAMS__MINE")
    monkeypatch.setenv("DAWN_MODEL_PROGRAMS", '{"mine": "/opt/mine"}')
    assert Settings().model_programs == {"mine": "/opt/mine"}


@pytest.mark.parametrize(
    ("lines", "reason", "retryable", "said"),
    [
        ("sys.exit('no GPU \\u001b[31m left')", "connection", True, "ended with exit code 1: no GPU"),
        ("sys.stdin.readline(); sys.exit(0)", "connection", True, "ended with exit code 0"),
        ("sys.stdin.readline(); print('half', end='')", "connection", True, "ended with exit code 0"),
        ("os.close(1); signal.pause()", "connection", True, "closed its stdout"),
        ("for line in sys.stdin: print('oops', flush=True)", "unavailable", False, "is no reply: oops"),
        ("for line in sys.stdin: print(flush=True)", "unavailable", False, "is no reply: an empty line"),
        ("for line in sys.stdin: print('[' * 100_000, flush=True)", "unavailable", False, "is no reply: [["),
        ("for line in sys.stdin: print('[]', flush=True)", "unavailable", False, "the line: "),
        ("for line in sys.stdin: print('{\"txt\": 1}', flush=True)", "unavailable", False, "txt: Extra inputs"),
        ("for line in sys.stdin: print('{\"cost_usd\": NaN}', flush=True)", "unavailable", False, "cost_usd: "),
        ("for line in sys.stdin: print('{}\\n{}', flush=True)", "unavailable", False, "more than one line"),
        ("for line in sys.stdin: print('x' * 1000, flush=True)", "unavailable", False, "more than 0 MiB"),
        ("print('{}', flush=True); signal.pause()", "unavailable", False, "before it had read"),
        (
            'for line in sys.stdin: print(\'{"error": {"message": "gone", "retryable": true, '
            '"retry_after_s": 3, "reason": "auth"}}\', flush=True)',
            "auth",
            True,
            "command:mine/large: gone",
        ),
    ],
)
def test_what_a_program_does_wrong_is_a_fault_of_its_kind(
    programs: Callable[..., ProgramModel],
    monkeypatch: pytest.MonkeyPatch,
    lines: str,
    reason: str,
    retryable: bool,
    said: str,
) -> None:
    """A crash may pass, a line that is no reply will not; each says what was seen."""
    if "1000" in lines:
        monkeypatch.setattr(processes, "LINE_BYTES_MAX", 999)
    model = programs(lines)
    big = UserMessage("x" * 2**20 if "pause" in lines else "go")
    with pytest.raises(ProviderFault) as caught:
        ask(model, big)
    assert (caught.value.reason, caught.value.retryable) == (reason, retryable)
    assert said in str(caught.value)
    assert caught.value.retry_after_s == (3 if reason == "auth" else None)


@pytest.mark.parametrize(
    "wrong", ["print('oops', flush=True)", "print('x' * 1000, flush=True)", "print('{', end=''); exit()"]
)
def test_an_answer_of_a_program_that_is_no_reply_may_have_cost_what_any_does(
    programs: Callable[..., ProgramModel], monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """Whatever it asked has been paid for: a budget counts it (F48)."""
    monkeypatch.setattr(processes, "LINE_BYTES_MAX", 999)
    assert refused(programs(f"for line in sys.stdin: {wrong}")).unheard


@pytest.mark.parametrize(
    "told",
    [{"usage": {"output_tokens": -1}}, {"usage": {"output_tokens": 2**53}}, {"cost_usd": -0.1}, {"cost_usd": 1e307}],
)
def test_a_program_cannot_give_back_what_others_used(programs: Callable[..., ProgramModel], told: Any) -> None:
    """Nor use what nobody can: tokens and costs below zero or beyond counting are no reply (T70)."""
    fault = refused(programs(f"for line in sys.stdin: print({json.dumps(told)!r}, flush=True)"))
    assert "what is no reply" in fault.message


def test_a_program_that_cannot_be_started_costs_nothing(
    programs: Callable[..., ProgramModel], tmp_path: Path
) -> None:
    """Nobody was asked."""
    model = programs("")
    (tmp_path / "program0").unlink()
    assert not refused(model).unheard


@pytest.mark.parametrize(("said", "waits_s"), [("1e400", None), ("1e12", 86_400)])
def test_a_wait_that_a_program_asks_for_has_an_end(
    programs: Callable[..., ProgramModel], said: str, waits_s: float | None
) -> None:
    """A day at most, and none where it is no time to wait."""
    error = f'{{"error": {{"message": "busy", "retryable": true, "retry_after_s": {said}}}}}'
    assert refused(programs(f"for line in sys.stdin: print({error!r}, flush=True)")).retry_after_s == waits_s


def test_after_a_failure_the_next_request_gets_a_new_process(
    programs: Callable[..., ProgramModel], tmp_path: Path
) -> None:
    """A crash in the middle costs one request, not the worker."""
    model = programs(
        "if not os.path.exists(sys.argv[1]): open(sys.argv[1], 'w'); sys.exit(3)\n"
        'for line in sys.stdin: print(\'{"text": "back"}\', flush=True)',
        str(tmp_path / "crashed"),
    )
    assert refused(model).retryable
    assert ask(model).text == "back"


def test_a_line_that_nobody_asked_for_answers_nothing(
    programs: Callable[..., ProgramModel], wait_until: Callable[..., Any], tmp_path: Path
) -> None:
    """It would be taken for the reply to the next request; its process is ended instead."""
    model = programs(
        "for line in sys.stdin:\n"
        '    print(\'{"text": "asked"}\', flush=True)\n'
        "    open(sys.argv[2]).read()\n"
        '    print(\'{"text": "unasked"}\', flush=True)\n'
        "    open(sys.argv[1], 'w')",
        str(tmp_path / "spoke"),
        str(tmp_path / "heard"),
    )
    os.mkfifo(tmp_path / "heard")
    assert ask(model).text == "asked"
    (tmp_path / "heard").write_text("")
    wait_until((tmp_path / "spoke").exists)
    assert ask(model).text == "asked"


def test_a_program_that_is_late_ends_with_its_children(
    programs: Callable[..., ProgramModel], wait_until: Callable[..., Any], tmp_path: Path
) -> None:
    """Nothing of it runs on beside the next request."""
    model = programs(
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "open(sys.argv[1], 'w').write(str(child.pid))\n"
        "signal.pause()",
        str(tmp_path / "child"),
    )
    assert refused(model, timeout_s=3).reason == "connection"
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: not Path(f"/proc/{child}").exists() or "(sleep) Z" in Path(f"/proc/{child}/stat").read_text())


def test_much_on_stderr_blocks_nothing(programs: Callable[..., ProgramModel]) -> None:
    """A chatty program is read while it thinks."""
    model = programs(
        "for line in sys.stdin:\n    sys.stderr.write('x' * 2**20)\n    print('{\"text\": \"done\"}', flush=True)"
    )
    assert [ask(model).text for _ in range(2)] == ["done", "done"]


def test_the_example_of_a_program_asks_ollama(model_server: ModelServer) -> None:
    """The thirty lines of README.md, over a real socket."""
    usage = {"prompt_eval_count": 5, "eval_count": 6}
    calls = [{"function": {"index": 0, "name": "run_command", "arguments": {"command": "ls"}}}]
    model_server.will_answer({"message": {"role": "assistant", "content": "", "tool_calls": calls}} | usage)
    model_server.will_answer({"message": {"role": "assistant", "content": "Done."}} | usage)
    listed = Programs({"ollama": f"{sys.executable} {EXAMPLES / 'ollama_model.py'} {model_server.url}"}, {})
    model = ProgramModel("command:ollama/qwen", "ollama", "qwen", listed)
    first = ask(model)
    assert [call.arguments for call in first.calls] == ['{"command": "ls"}']
    results = ToolResults((ToolResult(first.calls[0].id, "a.py", False),))
    last = ask(model, UserMessage("go"), AssistantMessage(first), results)
    assert (last.text, last.usage.total, last.cost_microusd) == ("Done.", 11, 0)
    sent = json.loads(model_server.bodies[1])
    assert sent["model"] == "qwen"
    assert [message["role"] for message in sent["messages"]] == ["system", "user", "assistant", "tool"]
    model_server.will_answer(b"", status=503)
    assert refused(model).reason == "connection"
    listed.close()


# Entry points


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a package with a module and entry points beside us, as pip would."""

    def install(entries: str, source: str) -> None:
        package = f"package_{tmp_path.name.replace('-', '_')}"
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[dawnfleet.models]\n{entries.format(package)}\n")
        (tmp_path / f"{package}.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)

    return install


def test_the_example_of_an_entry_point_begins_big_and_goes_on_small(
    installed: Callable[[str, str], None], model_server: ModelServer
) -> None:
    """The thirty lines of README.md, installed and asked over a real socket."""
    installed("thrifty = {}:open_model", (EXAMPLES / "thrifty_model.py").read_text())
    address = model_server.url.removeprefix("http://")
    model = open_entry(f"python:thrifty/{address}", f"thrifty/{address}", {"THRIFTY": "a key"})
    for index in (0, 5):
        answer = {"choices": [{"message": {"role": "assistant", "content": "Done."}}], "usage": {"prompt_tokens": 1}}
        model_server.will_answer(answer)
        request = ModelRequest("", (UserMessage("go"),), (), step=index + 1, reply_index=index)
        reply = model.reply(request, timeout_s=30, cancel=Cancel())
        assert (reply.text, reply.usage.total) == ("Done.", 1)
    assert [json.loads(body)["model"] for body in model_server.bodies] == ["acme-big", "acme-small"]
    assert model_server.headers[0]["authorization"] == "Bearer a key"


@pytest.mark.parametrize(
    ("source", "kind", "said"),
    [
        ("raise RuntimeError('broken package')", ProviderFault, "broken package"),
        ("def open_model(model, secrets): return secrets['MISSING']", ProviderFault, "MISSING"),
        (
            "from worker.contract.errors import InvalidFault\n"
            "def open_model(model, secrets): raise InvalidFault('no such model')",
            InvalidFault,
            "no such model",
        ),
    ],
)
def test_an_entry_point_that_cannot_be_opened_ends_the_run_with_its_words(
    installed: Callable[[str, str], None], source: str, kind: type[Fault], said: str
) -> None:
    """Not the worker."""
    installed("acme = {}:open_model", source)
    with pytest.raises(kind, match=said):
        open_entry("python:acme", "acme", {})


class Failing:
    name = "failing"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("answer", "reason", "retryable"),
    [
        (ProviderFault("auth", "no key"), "auth", False),
        (ConnectionResetError("reset"), "connection", True),
        (KeyError("choices"), "unavailable", False),
        (SystemExit(1), "unavailable", False),
        ("text", "unavailable", False),
        (Reply(text="x", native=object()), "unavailable", False),
        (Reply(text="x", usage=Usage(input_tokens=-1)), "unavailable", False),
        (Reply(text="x", cost_microusd=-1), "unavailable", False),
        (Reply(text="x", cost_microusd=10**16), "unavailable", False),
    ],
)
def test_what_an_entry_point_does_wrong_is_a_fault_of_its_kind(answer: Any, reason: str, retryable: bool) -> None:
    """Its own faults as they are, a lost connection to be tried again, and no other exception reaches the worker."""
    fault = refused(EntryModel("python:failing", Failing(answer)))
    assert (fault.reason, fault.retryable) == (reason, retryable)


@pytest.mark.parametrize(
    ("answer", "unheard"),
    [
        ("text", True),
        (KeyError("choices"), True),
        (ConnectionResetError("reset"), True),
        (URLError("no host"), False),
    ],
)
def test_an_entry_point_that_may_have_been_answered_may_have_cost(answer: Any, unheard: bool) -> None:
    """A budget counts what is no reply, and not what cannot have been sent (F48)."""
    assert refused(EntryModel("python:failing", Failing(answer))).unheard == unheard


def test_a_reply_of_an_entry_point_is_made_fit_for_the_journal() -> None:
    """Ids of this run, valid text, and the model's name where it gave none."""
    call = ToolCall(id="same", name="x", arguments="{}")
    reply = ask(EntryModel("python:acme", Failing(Reply(text="\ud83d", calls=(call, call)))))
    assert (reply.text, reply.model, reply.cost_microusd) == ("\ufffd", "python:acme", None)
    assert [(call.id, call.original_id) for call in reply.calls] == [("call_7_1", "same"), ("call_7_2", "same")]
