"""Where a task's work is done, as a manifest says it: image, Dockerfile and cache keys."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from scheduler.enqueue import Batch, freeze
from scheduler.manifests.manifest import Workplace
from scheduler.manifests.reading import ManifestFault, parse
from scheduler.manifests.schema import manifest_schema
from scheduler.reports.rows import summary
from scheduler.runs import View
from scheduler.work import work_key
from worker.contract.events import Prepared, digest
from worker.contract.run import Run
from worker.contract.surroundings import DOCKERFILE_CHARS_MAX, Environment
from worker.contract.task import Limits, Repo, Task
from worker.sandbox import images
from worker.store.mail import Mail

FROM = "FROM python\nRUN pip install x\n"


def manifest(environment: str, targets: str = "[{repo: https://git.example.org/a}]") -> str:
    return f"version: 1\nname: night\ntargets: {targets}\ntask: {{commands: [fix]}}\nenvironment:\n  {environment}\n"


def batch(text: str, folder: Path) -> Batch:
    loaded = parse(text, "night.yaml", folder, Limits())
    return freeze(loaded, [Repo(url=one.target.repo, label=one.id, commit="1" * 40) for one in loaded.targets])


def told(text: str, folder: Path) -> list[str]:
    with pytest.raises(ManifestFault) as caught:
        parse(text, "night.yaml", folder, Limits())
    return caught.value.lines()


def test_the_text_of_a_dockerfile_goes_with_the_task(tmp_path: Path) -> None:
    """Under the path that the manifest says; another text is another batch and other work, the same is the same."""
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "Dockerfile").write_text(FROM)
    text = manifest("image: {dockerfile: ci/Dockerfile}")
    first, again = batch(text, tmp_path), batch(text, tmp_path)
    assert first.tasks[0].environment == Environment(image="ci/Dockerfile", dockerfile=FROM)
    assert first == again
    (tmp_path / "ci" / "Dockerfile").write_text(FROM + "ENV X=1\n")
    other = batch(text, tmp_path)
    assert other.id != first.id
    assert work_key(other.tasks[0]) != work_key(first.tasks[0])


def test_a_target_may_have_an_image_of_its_own(tmp_path: Path) -> None:
    """Which then counts instead of the Dockerfile."""
    (tmp_path / "Dockerfile").write_text(FROM)
    targets = "[{repo: https://git.example.org/a, image: auto}, {repo: https://git.example.org/b}]"
    one, two = batch(manifest("image: {dockerfile: Dockerfile}", targets), tmp_path).tasks
    assert (one.environment.image, one.environment.dockerfile) == ("auto", None)
    assert (two.environment.image, two.environment.dockerfile) == ("Dockerfile", FROM)


def test_every_mistake_of_a_dockerfile_is_told_at_its_line(tmp_path: Path) -> None:
    """With file, line, column and what to do."""
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "Dockerfile").write_text("FROM python\n  COPY . /app\nRUN --mount=type=cache pip\n")
    assert told(manifest("image: {dockerfile: ci/Dockerfile}"), tmp_path) == [
        "ci/Dockerfile:2:3 value (document) COPY needs files: no file is sent along with a Dockerfile "
        "(the repository is not part of an image; fetch what is, with RUN)",
        "ci/Dockerfile:3:1 value (document) RUN --mount needs BuildKit, which is not used here (leave it out)",
    ]


def test_a_dockerfile_that_cannot_be_read_is_told_where_it_is_named(tmp_path: Path) -> None:
    """Missing, or too long to stand in every task."""
    text = manifest("image: {dockerfile: Dockerfile}")
    assert told(text, tmp_path)[0].startswith("night.yaml:6:23 file environment.image.dockerfile cannot read ")
    (tmp_path / "Dockerfile").write_text("FROM python\n" + "#" * DOCKERFILE_CHARS_MAX)
    assert "file environment.image.dockerfile Dockerfile is longer than 64 KiB" in told(text, tmp_path)[0]


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ("image: {dockerfil: x}", "6:11 unknown-key environment.image.dockerfil is not known here (did you mean"),
        ("image: 5", "6:10 type environment.image must be text"),
        ("cache_keys: [ok, 'two words']", "6:20 value environment.cache_keys[1] must match pattern"),
        ("cache_keys: 2026-11", "6:15 type environment.cache_keys must be a list"),
        ("dockerfile: FROM x", "6:3 unknown-key environment.dockerfile is not known here"),
    ],
)
def test_what_cannot_be_meant_is_told(tmp_path: Path, environment: str, said: str) -> None:
    """At its place, once."""
    assert any(f"night.yaml:{said}" in line for line in told(manifest(environment), tmp_path))


def test_only_new_words_make_a_task_newer(tmp_path: Path) -> None:
    """An older worker would look for an image called auto; what it can do it is given as before."""
    (tmp_path / "Dockerfile").write_text(FROM)
    newer = ("image: auto", "image: {dockerfile: Dockerfile}", "cache_keys: [a]")
    assert [version(manifest(one), tmp_path) for one in newer] == [3, 3, 3]
    assert [version(manifest(one), tmp_path) for one in ("image: node", "setup: make")] == [1, 1]
    targets = "[{repo: https://git.example.org/a, image: auto}]"
    assert version(manifest("setup: make", targets), tmp_path) == 3


def version(text: str, folder: Path) -> int:
    """Of the task of the first target, whose commit nobody knows yet."""
    loaded = parse(text, "night.yaml", folder, Limits())
    return freeze(loaded, [Repo(url="https://git.example.org/a")]).tasks[0].v


def test_a_changed_cache_key_is_other_work(tmp_path: Path) -> None:
    """What setup makes then may end otherwise, so nothing that was verified is reused."""
    one, other = (batch(manifest(f"cache_keys: [{word}]"), tmp_path).tasks[0] for word in ("a", "b"))
    assert work_key(one) != work_key(other)


def test_the_schema_says_what_each_key_is_for() -> None:
    """Also those that the manifest has from the task; and which files mean which image, as images.toml has it."""
    nouns = manifest_schema()["$defs"]
    assert all(one.get("description") for one in nouns["Workplace"]["properties"].values())
    assert "dockerfile" in nouns["FromDockerfile"]["properties"]
    said = nouns["Workplace"]["properties"]["image"]["description"]
    every = [name for names in images.found_by().values() for name in names]
    assert [name for name in every if name not in said] == []
    assert set(Workplace.model_fields) == set(Environment.model_fields) - {"dockerfile"}


def shown(environment: Environment, image_name: str | None, *, prepared: bool = True) -> str:
    task = Task(
        run="r", batch="b", target="t", repo=Repo(url="https://git.example.org/a"), commands=("fix",),
        environment=environment,
    )  # fmt: skip
    run = Run(id="r")
    if prepared:
        event = Prepared(
            environment_key="k", environment=digest(b""), commit="c", image="i", image_name=image_name, reused=True
        )
        run = run.model_copy(update={"prepared": event})
    return dict(summary(View(task, run, Mail(run)), datetime(2026, 12, 1, tzinfo=UTC)))["image"]


def test_a_person_is_shown_which_image_a_run_was_given() -> None:
    """The chosen one as soon as it is known, and of a Dockerfile its path."""
    assert shown(Environment(), None) == "python"
    assert shown(Environment(image="auto"), None, prepared=False) == "auto"
    assert shown(Environment(image="auto"), "node") == "node (auto)"
    assert shown(Environment(image="ci/Dockerfile", dockerfile=FROM), None) == "built of ci/Dockerfile"
