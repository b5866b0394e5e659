"""Runs whose conversation is long, on the real engine: what the repository says, a full context, a provider that has
no room."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass, field

import pytest
from nights import FIX, LIMITS, Night, types

from worker.contract.cancel import Cancel
from worker.contract.errors import ProviderFault
from worker.contract.events import Compacted, Prepared, Reply, digest
from worker.contract.script import parse_script
from worker.contract.task import Repo
from worker.meter import RESERVE_TOKENS
from worker.models.protocol import ModelRequest
from worker.models.scripted import ScriptedModel
from worker.store import keys

pytestmark = pytest.mark.docker

LOOKS = """
- expect: Answers are even numbers
  text: I look around. {long}
  calls: [{tool: list_files, arguments: {}}]
- calls: [{tool: read_file, arguments: {path: answer.txt}}]
  text: "{long}"
- expect: Make it 42
  calls: [{tool: edit_file, arguments: {path: answer.txt, old_text: "41", new_text: "42"}}]
- text: The answer is 42 now.
"""


def with_instructions(night: Night) -> Repo:
    """The answer, beside what its repository tells agents."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, text in (("answer.txt", b"41\n"), ("AGENTS.md", b"Answers are even numbers.\n")):
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
    name = digest(out.getvalue())
    night.archive.create(keys.source(name), out.getvalue())
    return Repo(source=name, source_kind="folder", label="sample")


def test_a_summarized_run_ends_as_it_would_have(night: Night) -> None:
    """What the repository says is read once and recorded; when the room is used up, the task is said again beside the
    summary, the run ends verified, and its chain holds."""
    small = LIMITS.model_copy(update={"context_tokens": RESERVE_TOKENS + 7_000})
    script = LOOKS.replace("{long}", "word " * 2_000)
    journal = night.submit(repo=with_instructions(night), script=script, limits=small)
    assert night.work() == "sealed"
    run = journal.load()
    assert run.sealed is not None
    assert (run.sealed.outcome, run.sealed.verdict, run.compactions) == ("changed", "verified", 1), run.sealed
    events = [record.event for record, _ in journal.read()]
    assert [event.instructions[0].text for event in events if isinstance(event, Prepared)] == [
        "Answers are even numbers.\n"
    ]
    assert types(journal).index("compacted") > types(journal).index("observed")
    journal.verify()


@dataclass
class Full:
    """A model that finds everything too long from its fifth reply on."""

    inner: ScriptedModel
    asked: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.inner.name

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        self.asked.append(request.purpose)
        if len(self.asked) > 4:
            raise ProviderFault("context", "prompt is too long")
        return self.inner.reply(request, timeout_s=timeout_s, cancel=cancel)


def test_a_run_without_room_keeps_its_patch(night: Night) -> None:
    """T08: the edit of step 2 is measured and archived, although the provider refuses all that comes after step 4."""
    call, look, _ = FIX.strip().split("\n- ")
    script = "\n- ".join([call, look, *["calls: [{tool: list_files, arguments: {}}]\n  text: " + "word " * 999] * 2])
    model = Full(ScriptedModel("scripted:full", parse_script(script, "full")))
    journal = night.submit(script=script)
    assert night.work(open_model=lambda task: model) == "sealed"
    run = journal.load()
    assert run.sealed is not None
    assert (run.sealed.outcome, str(run.sealed.failure), run.sealed.verdict) == (
        "failed",
        "limit/context",
        "verified",
    )
    assert "patch.diff" in run.sealed.artifacts
    assert model.asked == ["reply"] * 5 + ["summary"] * 2
    assert not [record for record, _ in journal.read() if isinstance(record.event, Compacted)]
