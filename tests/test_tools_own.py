"""A task's own tools: what may be brought, what a model is told, what is run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts import Hosts
from pydantic import ValidationError
from sandboxes import ARCHIVE

from scheduler.enqueue import freeze
from scheduler.manifests.reading import ManifestFault, load_tools, parse
from worker import loop
from worker.contract.events import Finished, Observation, Observed, Replied, Reply, ToolCall, digest
from worker.contract.task import TOOL_NAMES, Limits, OwnTool, PolicyRule, Repo, Task
from worker.models.protocol import ModelRequest
from worker.sandbox.protocol import Command
from worker.sandbox.sandbox import DockerSandbox
from worker.tools.tool import ToolContext
from worker.tools.toolset import TOOLS, Toolset, toolset

EXAMPLE = Path(__file__).with_name("examples") / "delete_file.yaml"
SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "pattern": "^[a-z]+$"},
        "deep": {"type": "array", "items": {"enum": [1]}},
    },
    "required": ["path"],
    "additionalProperties": False,
}
MANIFEST = """\
version: 1
name: night
targets: [{repo: https://git.example.org/a}]
task: {prompt: Fix it., model: openai/m}
tools:
  - name: NAME
    description: Does it.
    arguments: {type: object}
    command: "true"
"""


def own(**fields: Any) -> OwnTool:
    given = {"name": "tidy", "description": "Tidy a file.", "arguments": SCHEMA, "command": 'cat; echo "$0"'}
    return OwnTool.model_validate(given | fields)


def offered(*tools: OwnTool) -> Toolset:
    repo = Repo(url="https://git.example.org/a")
    return toolset(Task(run="r", batch="b", target="t", repo=repo, prompt="x", model="openai/m", tools=tools))


def told(arguments: str, /, **fields: Any) -> str:
    parsed = offered(own(**fields)).parse(ToolCall(id="c", name="tidy", arguments=arguments))
    assert isinstance(parsed, str)
    return parsed


def command(arguments: str, /, **fields: Any) -> Command:
    parsed = offered(own(**fields)).parse(ToolCall(id="c", name="tidy", arguments=arguments))
    assert not isinstance(parsed, str), parsed
    [made] = parsed[0].command(parsed[1], ToolContext(Limits(), (), "pkg", (), lambda _: None))
    assert isinstance(made, Command)
    return made


# What may be brought


def test_the_names_that_are_taken_are_those_of_our_tools() -> None:
    """The contract knows them without knowing the tools."""
    assert {tool.name for tool in TOOLS} == TOOL_NAMES


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "run_command"}, "run_command is a tool of Dawnfleet's own"),
        ({"name": "Tidy Up"}, "should match pattern"),
        ({"description": "two\nlines"}, "should match pattern"),
        ({"command": "a\0b"}, "cannot hold a NUL"),
        ({"arguments": {"type": "string"}}, "begin with `type: object`"),
        ({"arguments": {"type": "object", "properties": {"a": {"type": "objekt"}}}}, 'properties/a/type: "objekt"'),
        ({"arguments": {"type": "object", "$ref": "https://example.org/s.json"}}, "Retrieval is disabled"),
        ({"arguments": {"type": "object", "$ref": "file:///etc/passwd"}}, "Retrieval is disabled"),
        ({"arguments": {"type": "object", "properties": {"a": {"pattern": "(?=x)"}}}}, "is not a"),
        ({"arguments": {"type": "object", "description": "x" * 40_000}}, "longer than 32768 characters"),
        ({"arguments": {"type": "object", "default": float("nan")}}, "not JSON compliant"),
    ],
)
def test_a_tool_that_cannot_work_is_refused_at_submit(fields: dict[str, Any], said: str) -> None:
    """Not in the middle of a night, and no schema makes anybody fetch anything."""
    with pytest.raises(ValidationError) as caught:
        own(**fields)
    assert said in str(caught.value)


def test_a_manifest_brings_tools() -> None:
    """They stand in the task, which says that it is of a version that knows them."""
    loaded = parse(MANIFEST.replace("NAME", "tidy"), "m", Path("/"), Limits())
    [task] = freeze(loaded, [Repo(url="u")]).tasks
    assert (task.v, [tool.name for tool in task.tools]) == (2, ["tidy"])
    assert Task.model_validate_json(task.model_dump_json()) == task


def test_a_task_without_tools_is_written_as_before() -> None:
    """A submit that an earlier version wrote is completed, not contradicted."""
    text = MANIFEST.partition("tools:")[0]
    [task] = freeze(parse(text, "m", Path("/"), Limits()), [Repo(url="u")]).tasks
    assert task.v == 1
    assert "tools" not in task.model_dump()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            MANIFEST.replace("NAME", "ask_person"),
            "m:6:11 value tools[0].name ask_person is a tool of Dawnfleet's own; ",
        ),
        (
            MANIFEST.replace("NAME", "tidy") + MANIFEST.partition("tools:\n")[2].replace("NAME", "tidy"),
            "must differ: tidy",
        ),
        (MANIFEST.replace("NAME", "tidy").replace("command", "comand"), "m:9:5 unknown-key tools[0].comand is"),
        (
            MANIFEST.replace("NAME", "tidy").replace("{type: object}", "{}"),
            "m:8:16 value tools[0].arguments must describe",
        ),
        (MANIFEST.partition("tools:")[0] + "tools: 7\n", "m:5:8 type tools "),
    ],
)
def test_what_is_wrong_with_a_manifests_tools_is_told_with_its_place(text: str, line: str) -> None:
    """As every other mistake."""
    with pytest.raises(ManifestFault) as caught:
        parse(text, "m", Path("/"), Limits())
    assert line in "\n".join(caught.value.lines())


def test_a_deployments_tools_are_brought_by_every_task() -> None:
    """Beside those of the manifest; one name for two is refused."""
    text = MANIFEST.replace("NAME", "tidy")
    tools = load_tools(EXAMPLE)
    names = [tool.name for tool in parse(text, "m", Path("/"), Limits(), tools).manifest.tools]
    assert names == ["tidy", "delete_file"]
    with pytest.raises(ManifestFault, match="1 problem") as caught:
        parse(MANIFEST.replace("NAME", "delete_file"), "m", Path("/"), Limits(), tools)
    assert "tool names must differ: delete_file" in caught.value.lines()[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- {nam: x}", "is not known here (did you mean 'name'?)"),
        ("a: 1", ""),
        ("- [", ""),
        ("- name: search", "of Dawnfleet's"),
    ],
)
def test_what_is_wrong_with_a_deployments_tools_is_told_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    """In the file that DAWN_TOOLS names."""
    path = tmp_path / "tools.yaml"
    path.write_text(text)
    with pytest.raises(ManifestFault) as caught:
        load_tools(path)
    assert f"{path}:1:" in caught.value.lines()[0]
    assert said in "\n".join(caught.value.lines())


# What a model is told


def test_the_model_reads_the_schema_as_it_was_written() -> None:
    """After our own tools, so that a provider's cache of those hits."""
    spec = offered(own()).specs[-1]
    assert (spec.name, spec.description, spec.schema) == ("tidy", "Tidy a file.", SCHEMA)


def test_everything_that_does_not_fit_is_told_at_once() -> None:
    """T05: each with its path, then the schema; nothing is converted, nothing unknown is taken."""
    said = told('{"path": "NO", "deep": [1, "1"], "more": 1}')
    assert "- path: " in said
    assert "- deep.1: " in said
    assert "('more' was unexpected)" in said
    assert said.endswith(json.dumps(SCHEMA))


@pytest.mark.parametrize(
    "arguments",
    [
        "{",
        "[]",
        "null",
        '{"path": "a", "n": NaN}',
        '{"n": 1e999}',
        '{"path": "\\ud83d"}',
        "[" * 10_000,
        '{"deep": 1}',
    ],
)
def test_whatever_a_model_sends_becomes_words(arguments: str) -> None:
    """T01: no text is an exception, and none of it runs."""
    assert told(arguments, arguments={"type": "object", "required": ["path"]}).startswith("tidy: the arguments ")


def test_a_huge_argument_is_not_quoted_whole() -> None:
    """The model wrote it and need not read it again."""
    assert len(told(json.dumps({"path": "X" * 100_000}))) < 2_000


def test_an_empty_text_is_no_arguments() -> None:
    """As some providers send them."""
    assert command("", arguments={"type": "object"}).stdin == b"{}"


# What is run


def test_arguments_stand_beside_the_command_and_never_in_it() -> None:
    """H43: whatever they hold, the script is the task's, and stdin is one JSON document."""
    hostile = {"path": "$(touch x); `id` 'é' \" \n\\ EOF"}
    made = command(json.dumps(hostile), arguments={"type": "object"})
    assert made.payload == b'cat; echo "$0"'
    assert json.loads(made.stdin) == hostile
    assert made.cwd == "/workspace/repo/pkg"


@pytest.mark.parametrize(
    ("effect", "writes", "outside"), [("read", False, False), ("write", True, False), ("outside", True, True)]
)
def test_the_effect_decides_what_its_container_may(effect: str, writes: bool, outside: bool) -> None:
    """Reading mounts the workspace read-only; only `outside` has the network, and is on record before it starts."""
    made = command('{"path": "a"}', effect=effect)
    assert (made.writes, made.outside, made.network) == (writes, outside, outside)


def test_its_secrets_are_handed_as_files() -> None:
    """Those that it names and no other, of what the worker has."""
    tool = own(effect="outside", secrets=["FORGE"])
    parsed = offered(tool).parse(ToolCall(id="c", name="tidy", arguments='{"path": "x"}'))
    assert not isinstance(parsed, str)
    secrets = {"FORGE": "t0ken-of-the-forge", "OTHER": "an0ther-secret"}
    [made] = parsed[0].command(parsed[1], ToolContext(Limits(), (), "", (), lambda _: None, secrets=secrets))
    assert (made.secret_files, made.secrets, made.env) == ({"FORGE": "t0ken-of-the-forge"}, {}, {})
    assert command('{"path": "x"}', effect="outside", secrets=["FORGE"]).outside  # a replay has none, and asks
    assert offered(tool).specs == offered(own()).specs


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"secrets": ["FORGE"]}, "needs `effect: outside`"),
        ({"secrets": ["ghp_0815"], "effect": "outside"}, "must be the NAME of a secret"),
    ],
)
def test_a_secret_goes_outside_by_name_only(fields: dict[str, Any], said: str) -> None:
    """A tool that holds one may do what no rollback undoes."""
    with pytest.raises(ValidationError, match=said):
        own(**fields)


# In a container


class Deletes:
    """A model that deletes a file, then ends."""

    name = "test"

    def __init__(self, path: str) -> None:
        self.call = ToolCall(id="call_1_1", name="delete_file", arguments=json.dumps({"path": path}))

    def reply(self, request: ModelRequest, **_: Any) -> Reply:
        return Reply(calls=(self.call,), stop="calls") if request.step == 1 else Reply(text="Done.")


@pytest.fixture(scope="module")
def _hosts(tmp_path_factory: pytest.TempPathFactory, sandbox: DockerSandbox) -> Hosts:
    return Hosts(tmp_path_factory.mktemp("hosts") / "archive", sandbox, ARCHIVE)


@pytest.fixture
def hosts(_hosts: Hosts, request: pytest.FixtureRequest) -> Iterator[Hosts]:
    """A run whose task brings delete_file; the repository holds README. Secret files may not be deleted."""
    rule = PolicyRule(tool="delete_file", pattern="secret", action="deny", reason="keep secrets")
    limits = Limits(memory_bytes=256 * 2**20)
    name = f"run-{digest(request.node.name.encode())[:8]}"
    _hosts.fresh(name, tools=load_tools(EXAMPLE), v=2, policy=(rule,), limits=limits)
    return _hosts


def observed(hosts: Hosts) -> list[Observed]:
    return [record.event for record, _ in hosts.journal().read() if isinstance(record.event, Observed)]


def worked(hosts: Hosts, path: str) -> Observation:
    with hosts.host() as host:
        assert loop.work(host, Deletes(path), toolset(host.task)) == Finished(text="Done.")
    [event] = observed(hosts)
    return event.observation


@pytest.mark.docker
def test_the_example_deletes_a_file_and_its_effect_is_committed(hosts: Hosts) -> None:
    """The tool of README.md: run, snapshotted and journaled as any other."""
    seen = worked(hosts, "README")
    assert (seen.status, seen.output) == ("ok", "deleted README")
    [event] = observed(hosts)
    assert event.snapshot is not None
    assert event.files == ("README",)


@pytest.mark.docker
@pytest.mark.parametrize("path", ["../base", "$(touch x)", "x'; touch y; '", "a\nb", "é" * 20_000])
def test_an_argument_is_only_ever_data(hosts: Hosts, path: str) -> None:
    """H43: a shell never reads it, and an error is the program's own."""
    seen = worked(hosts, path)
    assert (seen.status, seen.exit_code) == ("error", 1)
    [event] = observed(hosts)
    assert event.files == ()
    assert "Error" in seen.output


@pytest.mark.docker
def test_policy_judges_it_as_any_call(hosts: Hosts) -> None:
    """A rule of the task names it and looks at its arguments."""
    seen = worked(hosts, "secret.key")
    assert (seen.status, seen.output) == ("denied", "keep secrets")


@pytest.mark.docker
def test_a_crash_in_its_middle_leaves_one_effect(hosts: Hosts) -> None:
    """It ran, its worker died before the append: rolled back and run again."""
    with hosts.host() as host:
        model = Deletes("README")
        host.commit(Replied(step=1, phase="model", reply=Reply(calls=(model.call,), stop="calls")))
        parsed = toolset(host.task).parse(model.call)
        assert not isinstance(parsed, str)
        [ran] = parsed[0].command(parsed[1], ToolContext(Limits(), (), "", (), lambda _: None))
        assert isinstance(ran, Command)
        assert host._workspace.run(ran, cancel=host.cancel).exit_code == 0
    assert worked(hosts, "README").output == "deleted README"
