"""Owns how images travel between hosts through the archive, and how a host bounds those it has."""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from preparation import LIMITS, Bench
from sandboxes import owner
from tiny_images import forget, tiny

from worker.contract.cancel import Cancel
from worker.contract.environment import PreparedEnvironment
from worker.contract.errors import EnvironmentFault, IntegrityFault
from worker.contract.task import Environment, Task
from worker.environments import Prepared, recorded
from worker.prepare import prepare
from worker.sandbox.prepared import GRACE_S, PreparedImages
from worker.sandbox.protocol import Command
from worker.sandbox.sandbox import DockerSandbox
from worker.store import keys

pytestmark = pytest.mark.docker


@pytest.fixture
def image(sandbox: DockerSandbox) -> Iterator[tuple[str, str]]:
    """Name and id of an image that no registry has and no other test uses."""
    name = f"dawnfleet-test:{secrets.token_hex(6)}"
    image_id = tiny(sandbox, name, name)
    yield name, image_id
    forget(sandbox, image_id)


def prepared(bench: Bench, folder: Path, name: str, *, store: bool = True) -> tuple[Task, Prepared]:
    """A task in that image, prepared; another environment each time."""
    (folder / "README").write_text(secrets.token_hex(8))
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "start"]):
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *words], cwd=folder, check=True)
    task = bench.task(bench.repo(folder)).model_copy(update={"environment": Environment(image=name)})
    made = prepare(
        task,
        archive=bench.archive,
        sandbox=bench.sandbox,
        owner=owner(),
        redactor=bench.redactor,
        secrets={},
        cancel=Cancel(),
        store_images=store,
    )
    return task, made


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


def test_a_host_that_lacks_the_image_takes_it_from_the_archive(
    bench: Bench, sandbox: DockerSandbox, source: Path, image: tuple[str, str]
) -> None:
    """The first preparation stores it once; elsewhere it is loaded under the same id, and calls run in it."""
    name, image_id = image
    _, made = prepared(bench, source, name)
    assert made.environment.stored_image is not None
    key = keys.image(image_id, made.environment.stored_image)
    assert list(bench.archive.list("images/")) == [key]
    assert (bench.archive.size(key) or 0) < 16 * 2**20
    forget(sandbox, image_id)
    again = recorded(bench.archive, sandbox, made.event())
    assert again.image == image_id
    with sandbox.workspace(owner(), again.image, LIMITS) as workspace:
        result = workspace.run(Command(b"cat /marker"), cancel=Cancel())
        assert result.output.path.read_text() == name
    _, another = prepared(bench, source, image_id)
    assert another.environment.stored_image == made.environment.stored_image
    assert list(bench.archive.list("images/")) == [key]
    forget(sandbox, image_id)


def test_a_known_environment_needs_no_second_setup_elsewhere(
    bench: Bench, sandbox: DockerSandbox, source: Path, image: tuple[str, str]
) -> None:
    """The image that setup made travels too: where it is gone, it is loaded, not made anew with another id."""
    name, _ = image
    (source / "x").write_text("x")
    task, _ = prepared(bench, source, name)
    task = task.model_copy(update={"environment": Environment(image=name, setup="cat /marker >/made")})

    def ready() -> Prepared:
        return prepare(
            task,
            archive=bench.archive,
            sandbox=bench.sandbox,
            owner=owner(),
            redactor=bench.redactor,
            secrets={},
            cancel=Cancel(),
            store_images=True,
        )

    first = ready()
    forget(sandbox, first.image)
    second = ready()
    assert (second.image, second.reused) == (first.image, True)
    forget(sandbox, first.image)


def test_a_damaged_image_is_refused(
    bench: Bench, sandbox: DockerSandbox, source: Path, image: tuple[str, str]
) -> None:
    """What the archive gives must have the digest that env.json names, or nothing runs in it."""
    name, image_id = image
    _, made = prepared(bench, source, name)
    key = keys.image(image_id, str(made.environment.stored_image))
    data = bench.archive.get(key)
    bench.archive.overwrite(key, data[:-1024] + bytes(512) + b"x" * 512)
    forget(sandbox, image_id)
    with pytest.raises(IntegrityFault, match="does not have the digest"):
        recorded(bench.archive, sandbox, made.event())
    forget(sandbox, image_id)


def test_without_the_setting_a_missing_image_is_named(
    bench: Bench, sandbox: DockerSandbox, source: Path, image: tuple[str, str]
) -> None:
    """Nothing is stored, and another host says what is missing and which setting would have helped."""
    name, image_id = image
    _, made = prepared(bench, source, name, store=False)
    assert list(bench.archive.list("images/")) == []
    forget(sandbox, image_id)
    with pytest.raises(EnvironmentFault) as caught:
        recorded(bench.archive, sandbox, made.event())
    assert "DAWN_STORE_IMAGES" in caught.value.hint


def test_an_old_environment_without_the_field_is_read(bench: Bench) -> None:
    """stored_image is None where nobody stored it."""
    assert PreparedEnvironment.model_fields["stored_image"].default is None


@pytest.fixture
def three(sandbox: DockerSandbox, tmp_path: Path) -> Iterator[tuple[PreparedImages, list[str], int]]:
    """Three prepared images under a name of this test's own, used one after the other long ago; and a size."""
    repository = f"dawnfleet-test/{secrets.token_hex(6)}"
    images = PreparedImages(sandbox._engine, tmp_path / "images", repository)
    ids = [tiny(sandbox, f"{repository}:{number}", f"{repository}{number}") for number in range(3)]
    for number, image_id in enumerate(ids):
        images.touch(image_id)
        used = time.time() - 10 * GRACE_S + number
        os.utime(tmp_path / "images" / image_id.removeprefix("sha256:"), (used, used))
    size = next(int(image["Size"]) for image in sandbox._engine.images() if image["Id"] == ids[0])
    yield images, ids, size
    for image_id in ids:
        if sandbox._engine.image(image_id) is not None:
            forget(sandbox, image_id)


def held(sandbox: DockerSandbox, ids: list[str]) -> list[bool]:
    return [sandbox._engine.image(image_id) is not None for image_id in ids]


def test_the_least_recently_used_go_first(
    sandbox: DockerSandbox, three: tuple[PreparedImages, list[str], int]
) -> None:
    """With room for one and a half, the two that were used longest ago are removed."""
    images, ids, size = three
    assert images.trim(3 * size) == 0
    assert images.trim(size + size // 2) == 2
    assert held(sandbox, ids) == [False, False, True]


def test_one_in_use_stays(sandbox: DockerSandbox, three: tuple[PreparedImages, list[str], int]) -> None:
    """A workspace on it, in any process of this host, holds it; the next one goes instead."""
    images, ids, _ = three
    with images.hold(ids[0]):
        assert images.trim(0) == 2
        assert held(sandbox, ids) == [True, False, False]


def test_one_in_a_container_stays(sandbox: DockerSandbox, three: tuple[PreparedImages, list[str], int]) -> None:
    """The engine has the last word: what a container is made of is not removed."""
    images, ids, _ = three
    api = sandbox._engine._api
    container = api.create_container(ids[1], command=["sh"])["Id"]
    try:
        assert images.trim(0) == 2
        assert held(sandbox, ids) == [False, True, False]
    finally:
        api.remove_container(container)


def test_one_that_was_looked_for_a_moment_ago_stays(
    sandbox: DockerSandbox, three: tuple[PreparedImages, list[str], int]
) -> None:
    """Between finding an image and working with it nobody takes it away."""
    images, ids, _ = three
    images.touch(ids[2])
    assert images.trim(0) == 2
    assert held(sandbox, ids) == [False, False, True]
