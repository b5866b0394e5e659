"""A list of models: the first that can be had answers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from doubles import FreePacing, MemoryHints
from model_server import ModelServer

from scheduler.enqueue import freeze
from scheduler.manifests.reading import ManifestFault, parse
from worker.contract.cancel import Cancel
from worker.contract.errors import ProviderFault
from worker.contract.events import Reply
from worker.contract.settings import Settings
from worker.contract.task import Limits, Repo, Task
from worker.models.fallback import FallbackModel
from worker.models.open import open_model
from worker.models.processes import Programs
from worker.models.protocol import Model, ModelRequest, UserMessage

BUSY = ProviderFault("unavailable", "busy", retryable=True, retry_after_s=30)
DOWN = ProviderFault("connection", "refused", retryable=True)
MANIFEST = """\
version: 1
name: night
targets: [{repo: https://git.example.org/a}]
task: {prompt: Fix it., model: MODEL, fallbacks: [anthropic/b, openai/c]}
"""


class Says:
    """A model with one answer."""

    def __init__(self, name: str, answer: Reply | ProviderFault) -> None:
        self.name, self._answer = name, answer
        self.timeouts_s: list[float] = []

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        self.timeouts_s.append(timeout_s)
        if isinstance(self._answer, ProviderFault):
            raise self._answer
        return self._answer


def ask(model: Model, cancel: Cancel | None = None) -> Reply:
    request = ModelRequest("", (UserMessage("go"),), (), step=1, reply_index=0)
    return model.reply(request, timeout_s=30, cancel=cancel or Cancel())


def test_the_next_model_answers_where_the_first_cannot_be_had() -> None:
    """Within the time of one call; the reply says who gave it."""
    first, second, third = Says("a", BUSY), Says("b", Reply(text="Done.", model="b")), Says("c", BUSY)
    model = FallbackModel("a", (first, second, third))
    assert ask(model).model == "b"
    assert (first.timeouts_s, second.timeouts_s, third.timeouts_s) == ([10], [10], [])
    ask(model)
    assert len(first.timeouts_s) == 2  # each reply begins with the first again


def test_when_none_can_be_had_the_shortest_wait_counts() -> None:
    """Then the run waits, and parks, as with one model."""
    with pytest.raises(ProviderFault) as caught:
        ask(FallbackModel("a", (Says("a", BUSY), Says("b", DOWN))))
    assert caught.value is DOWN


@pytest.mark.parametrize("reason", ["auth", "bad_request", "context"])
def test_a_fault_that_another_model_would_hide_is_raised(reason: str) -> None:
    """A wrong key or name is the operator's to mend, and a context too long is for a summary."""
    other = Says("b", Reply(text="Done."))
    with pytest.raises(ProviderFault, match="wrong"):
        ask(FallbackModel("a", (Says("a", ProviderFault(reason, "wrong")), other)))
    assert other.timeouts_s == []


def test_a_manifest_names_them(model_server: ModelServer) -> None:
    """They stand in the task, and are opened with it; over a real socket the second provider answers."""
    loaded = parse(MANIFEST.replace("MODEL", "openai/a"), "m", Path("/"), Limits())
    [task] = freeze(loaded, [Repo(url="u")]).tasks
    assert (task.v, task.fallbacks) == (2, ("anthropic/b", "openai/c"))
    assert Task.model_validate_json(task.model_dump_json()) == task
    model_server.will_answer({"error": {"message": "overloaded"}}, 503)
    usage = {"input_tokens": 1, "output_tokens": 1}
    model_server.will_answer({"content": [{"type": "text", "text": "Done."}], "model": "b", "usage": usage})
    model = open_model(
        task,
        Settings(openai_base_url=model_server.url, anthropic_base_url=model_server.url),
        secrets_env={"ANTHROPIC_API_KEY": "a key"},
        recorded=lambda run: [],
        programs=Programs({}, {}),
        holds=MemoryHints(time.monotonic),
        pacing=FreePacing(),
    )
    assert model.name == "openai/a"
    assert (ask(model).text, len(model_server.bodies)) == ("Done.", 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MANIFEST.replace("MODEL", "replay:r"), "model replay:r has no fallbacks"),
        (MANIFEST.replace("MODEL", "openai/a").replace("openai/c", "gpt"), "unknown model 'gpt'"),
        (MANIFEST.replace("MODEL", "openai/a").replace("openai/c", "scripted:x"), "scripted:x cannot be a fallback"),
        (MANIFEST.replace("MODEL", "openai/a").replace("openai/c", "openai/a"), "twice"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(text: str, said: str) -> None:
    """With its place, as every other mistake."""
    with pytest.raises(ManifestFault) as caught:
        parse(text, "m", Path("/"), Limits())
    assert said in "\n".join(caught.value.lines())
