"""From a model's name to a model."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from doubles import FreePacing, MemoryHints

from worker.contract.errors import ExitCode, InvalidFault, ProviderFault, UsageFault
from worker.contract.events import Reply
from worker.contract.model_name import ModelName, parse_model_name
from worker.contract.settings import Rate, Settings
from worker.contract.task import Repo, Task
from worker.models.anthropic import AnthropicModel
from worker.models.held import HeldModel
from worker.models.open import open_model
from worker.models.openai import OpenAIModel
from worker.models.paced import PacedModel
from worker.models.processes import Programs
from worker.models.program import ProgramModel
from worker.models.protocol import Model
from worker.models.replay import ReplayModel
from worker.models.scripted import ScriptedModel


def nothing_recorded(run: str) -> Sequence[Reply]:
    raise AssertionError(run)


def opened(model: str, env: dict[str, str] | None = None, listed: Mapping[str, str] = {}, **settings: Any) -> Model:
    task = Task(
        run="r",
        batch="b",
        target="t",
        repo=Repo(url="https://example.com/r.git"),
        prompt="" if model == "none" else "Fix it.",
        commands=("true",),
        model=model,
        script="- text: hi" if model.startswith("scripted:") else None,
    )
    return open_model(
        task,
        Settings(**settings),
        secrets_env=env or {},
        recorded=nothing_recorded,
        programs=Programs(listed, env or {}),
        holds=MemoryHints(time.monotonic),
        pacing=FreePacing(),
    )


def held(model: Model) -> Any:
    """What asks behind the account that can be held."""
    assert isinstance(model, HeldModel)
    return model.model


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("none", ModelName("none")),
        ("scripted:demo/cart fix.yaml", ModelName("scripted", "demo/cart fix.yaml")),
        ("replay:r-1", ModelName("replay", "r-1")),
        ("anthropic/claude-x", ModelName("anthropic", "claude-x")),
        ("openai/meta/llama:free", ModelName("openai", "meta/llama:free")),
        ("command:mine/large", ModelName("command", "mine/large")),
        ("python:acme", ModelName("python", "acme")),
    ],
)
def test_a_model_name_is_read_and_written_alike(text: str, name: ModelName) -> None:
    """Every form, also with slashes and colons of the provider's own."""
    assert parse_model_name(text) == name
    assert str(name) == text


@pytest.mark.parametrize(
    "text",
    ["", "claude", "mistral/large", "openai", "openai/", "openai:x", "scripted:", "anthropic/ x", "openai/a\nb"],
)
def test_an_unknown_model_name_lists_the_known_forms(text: str) -> None:
    """With the plan's exit code for invalid tasks."""
    with pytest.raises(
        InvalidFault, match="known are none, scripted:FILE, replay:RUN, anthropic/NAME, openai/NAME, com"
    ):
        parse_model_name(text)


def test_each_name_opens_its_model() -> None:
    """Scripted, Anthropic, OpenAI; the name is kept."""
    keys = {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o"}
    kinds = {"scripted:x": ScriptedModel, "anthropic/claude-x": AnthropicModel, "openai/gpt-x": OpenAIModel}
    for name, kind in kinds.items():
        model = opened(name, keys)
        assert isinstance(model.model if isinstance(model, HeldModel) else model, kind)
        assert model.name == name


def test_a_replay_asks_for_the_replies_of_the_run_it_names() -> None:
    """The caller reads the archive, the model never does."""
    task = Task(run="r", batch="b", target="t", repo=Repo(url="u"), prompt="x", model="replay:r-9")
    asked: list[str] = []
    model = open_model(
        task,
        Settings(),
        secrets_env={},
        recorded=lambda run: asked.append(run) or [Reply(text="hi")],
        programs=Programs({}, {}),
        holds=MemoryHints(time.monotonic),
        pacing=FreePacing(),
    )
    assert isinstance(model, ReplayModel)
    assert asked == ["r-9"]


def test_a_program_is_opened_by_the_name_that_the_operator_gave_it() -> None:
    """With the model it is asked for behind a slash."""
    model = opened("command:mine/large", listed={"mine": "/bin/cat -u"})
    assert model.name == "command:mine/large"
    model = held(model)
    assert isinstance(model, ProgramModel)
    assert (model.name, model.program, model.model) == ("command:mine/large", "mine", "large")


@pytest.mark.parametrize("name", ["command:other", "command:/bin/cat", "command:../cat", "python:nobody"])
def test_only_what_the_deployment_has_can_be_named(name: str) -> None:
    """A manifest starts no program by its path; the fault says what there is and where to add."""
    with pytest.raises(InvalidFault, match=r"known are mine|there is none") as caught:
        opened(name, listed={"mine": "/bin/cat"})
    assert "of each worker" in caught.value.hint or "beside each worker" in caught.value.hint


@pytest.mark.parametrize("line", ["", "cat", "./cat", "/nowhere/cat", "/etc/passwd", "/bin/cat 'open"])
def test_a_program_that_cannot_run_is_refused_when_the_worker_starts(line: str) -> None:
    """Not in the middle of a night."""
    with pytest.raises(UsageFault, match="DAWN_MODEL_PROGRAMS: mine names no program"):
        Programs({"mine": line}, {})


def test_no_model_cannot_be_opened() -> None:
    """With none there is nothing to ask."""
    with pytest.raises(UsageFault):
        opened("none")


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_a_missing_key_names_the_variables(provider: str) -> None:
    """Before anything is sent."""
    with pytest.raises(ProviderFault) as caught:
        opened(f"{provider}/m", {f"{provider.upper()}_API_KEY": " "})
    assert caught.value.reason == "auth"
    assert f"set DAWN_{provider.upper()}_API_KEY or {provider.upper()}_API_KEY" in str(caught.value)
    assert caught.value.exit_code == ExitCode.TRY_LATER


def test_a_key_for_dawnfleet_wins_over_the_providers_own_variable() -> None:
    """So that a deployment can use another account than the person who runs it."""
    model = held(opened("openai/m", {"DAWN_OPENAI_API_KEY": "ours", "OPENAI_API_KEY": "theirs"}))
    assert isinstance(model, OpenAIModel)
    assert (model.account.key, model.account.key_name) == ("ours", "DAWN_OPENAI_API_KEY")


def test_a_compatible_server_of_ones_own_needs_no_key() -> None:
    """DAWN_OPENAI_BASE_URL names it."""
    model = held(opened("openai/m", openai_base_url="http://localhost:8080/v1"))
    assert isinstance(model, OpenAIModel)
    assert model.account.base_url == "http://localhost:8080/v1"


@pytest.mark.parametrize(
    ("name", "rated", "cache_is_free"),
    [("openai/m", "openai", False), ("anthropic/m", "anthropic", True), ("command:mine/large", "mine", False)],
)
def test_a_rate_is_kept_by_the_account_that_it_names(name: str, rated: str, cache_is_free: bool) -> None:
    """In turns between batches; other accounts have none. Anthropic counts nothing that it reads from its cache."""
    keys = {"OPENAI_API_KEY": "o", "ANTHROPIC_API_KEY": "a"}
    for rates in ({rated: Rate(tokens_per_min=7)}, {"other": Rate(tokens_per_min=7)}):
        model = opened(name, keys, {"mine": "/bin/cat"}, rates=rates)
        assert isinstance(model, HeldModel)
        assert isinstance(model.model, PacedModel) == (rated in rates)
        if isinstance(model.model, PacedModel):
            assert (model.model.account, model.model.batch, model.model.rate) == (model.account, "b", rates[rated])
            assert model.model.cache_is_free == cache_is_free


def test_opening_a_model_loads_no_sdk() -> None:
    """They take seconds, and most processes never ask one."""
    code = "import sys, worker.models.open; print({'anthropic', 'openai', 'genai_prices'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
