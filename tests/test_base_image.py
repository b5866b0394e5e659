"""The image that an environment is made of: chosen by what the repository holds, or built of a Dockerfile."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from preparation import LIMITS, Bench
from repositories import MIB, commit_all
from sandboxes import owner
from tiny_images import forget, tiny

from worker import base_image
from worker.contract.cancel import Cancel
from worker.contract.errors import EnvironmentFault
from worker.contract.redact import Redactor
from worker.contract.surroundings import AUTO, Environment
from worker.contract.task import Check, Task
from worker.environments import Prepared, recorded
from worker.prepare import prepare
from worker.sandbox import building, images
from worker.sandbox.building import BUILD_LABEL
from worker.sandbox.prepared import GRACE_S, PreparedImages
from worker.sandbox.sandbox import DockerSandbox
from worker.toolbox import Cancelled


@pytest.mark.parametrize(
    ("tracked", "path", "chosen"),
    [
        (["setup.py", "src/a.py"], "", "python"),
        (["package.json"], "", "node"),
        (["package.json", "pyproject.toml"], "", "python"),
        (["pyproject.toml", "web/package.json", "web/src/x.js"], "web", "node"),
        (["pyproject.toml", "web/package.json", "web/src/x.js"], "web/src", "node"),
        (["pyproject.toml", "web/package.json"], "webs", "python"),
        (["docs/package.json", "Makefile"], "", "base"),
        (["my-package.json", "package.json5"], "", "base"),
        ([], "", "base"),
    ],
)
def test_the_image_fits_what_the_repository_holds(tracked: list[str], path: str, chosen: str) -> None:
    """The nearest folder that says something counts, from the one the work starts in upwards; python before node."""
    listing = "".join(f"{entry}\0" for entry in tracked).encode()
    cut = [listing[at : at + 5] for at in range(0, len(listing), 5)]
    assert base_image.chosen(cut, path) == chosen


def test_what_images_are_found_by_changes_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A further file in that list is no reason to build an image anew."""
    before = images.reference("python")
    table = images._table()
    table["images"]["python"]["found_by"].append("tox.ini")
    monkeypatch.setattr(images, "_table", lambda: table)
    assert "tox.ini" in images.found_by()["python"]
    assert images.reference("python") == before


def asked(bench: Bench, folder: Path, environment: Environment, **fields: Any) -> Task:
    """A task on the folder as it is now, with one more commit."""
    (folder / "README").write_text(secrets.token_hex(8))
    commit_all(folder)
    return bench.task(bench.repo(folder, **fields)).model_copy(update={"environment": environment})


@pytest.mark.docker
def test_a_chosen_image_is_the_one_that_setup_runs_in(bench: Bench, source: Path, gone: list[str]) -> None:
    """The journal says which it was, a second run takes the same, and so does whoever takes the run over."""
    (source / "web").mkdir()
    (source / "web" / "package.json").write_text("{}")
    (source / "setup.py").write_text("")
    task = asked(bench, source, Environment(image=AUTO, setup="node --version >/opt/made"), path="web")
    first, second = bench.prepare(task), bench.prepare(task)
    gone.append(first.image)
    assert (first.event().image_name, second.event().image_name) == ("node", "node")
    assert (second.reused, second.digest) == (True, first.digest)
    assert recorded(bench.archive, bench.sandbox, first.event()).event() == first.event().model_copy(
        update={"reused": True, "duration_ms": 0}
    )
    with bench.agent(task, second) as shell:
        assert shell.text("cut -c1 /opt/made; git status --porcelain; ls web") == "v\npackage.json\n"


@pytest.mark.docker
@pytest.mark.full
def test_a_chosen_image_needs_no_setup(bench: Bench, source: Path) -> None:
    """Calls run in it, and a repository that says nothing gets the base."""
    task = asked(bench, source, Environment(image=AUTO))
    prepared = bench.prepare(task)
    assert prepared.chosen == "base"
    assert prepared.image == bench.sandbox.image_id("base")
    with bench.agent(task, prepared) as shell:
        assert shell.run("git status && ! command -v python3").exit_code == 0


@pytest.mark.docker
@pytest.mark.full
def test_a_check_that_a_chosen_image_lacks_says_which_was_chosen(bench: Bench, source: Path) -> None:
    """Whoever left the choice to us learns of it where it did not fit."""
    task = asked(bench, source, Environment(image=AUTO))
    task = task.model_copy(update={"checks": (Check(name="tests", command="python3 -m pytest"),)})
    with pytest.raises(EnvironmentFault, match="python3: command not found") as told:
        bench.prepare(task)
    assert "not in base, which `image: auto` chose" in told.value.hint


@pytest.fixture
def base(sandbox: DockerSandbox) -> Iterator[str]:
    """The name of an image of a few megabytes that no registry has."""
    name = f"dawnfleet-test:{secrets.token_hex(6)}"
    image_id = tiny(sandbox, name, name)
    yield name
    forget(sandbox, image_id)


@pytest.fixture
def gone(sandbox: DockerSandbox) -> Iterator[list[str]]:
    """Names and ids of images that are removed after the test."""
    names: list[str] = []
    yield names
    for name in names:
        if (found := sandbox._engine.image(name)) is not None:
            forget(sandbox, str(found["Id"]))


def built_of(text: str, **fields: Any) -> Environment:
    return Environment(image="ci/Dockerfile", dockerfile=text, **fields)


def beside(sandbox: DockerSandbox, task: Task) -> list[str]:
    """What lies on the engine of a build beside its image."""
    name = base_image.asked(task, sandbox, redactor=Redactor({}), cancel=Cancel()).name or ""
    return [str(image["Id"]) for image in sandbox._engine.nameless(f"{BUILD_LABEL}={name.rpartition(':')[2]}")]


def kept(bench: Bench, task: Task) -> Prepared:
    """As a worker prepares that keeps images for other hosts."""
    return prepare(
        task,
        archive=bench.archive,
        sandbox=bench.sandbox,
        owner=owner(),
        redactor=bench.redactor,
        secrets={},
        cancel=bench.cancel,
        store_images=True,
    )


def refused(*_: object) -> None:
    raise AssertionError("nothing is built here")


@pytest.mark.docker
def test_a_dockerfile_is_built_once_for_all_repositories(
    bench: Bench, sandbox: DockerSandbox, source: Path, gone: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stages become one image under a name of ours, which a run's calls find, and nothing lies beside it. Another
    cache key asks for another image."""
    stages = "FROM python AS one\nRUN echo one >/one\nFROM python\nCOPY --from=one /one /two\nENV X=3\n"
    text = f"# {secrets.token_hex(6)}\n{stages}"
    task = asked(bench, source, built_of(text))
    first = bench.prepare(task)
    gone.append(first.image)
    with bench.agent(task, first) as shell:
        assert shell.text("cat /two; echo $X") == "one\n3\n"
    assert (sandbox._engine.image(first.image) or {})["RepoTags"] == [first.environment.image_name]
    assert first.environment.image_name.startswith("dawnfleet/prepared:")
    assert beside(sandbox, task) == []
    monkeypatch.setattr(building, "build", refused)
    second = bench.prepare(asked(bench, source, built_of(text)))
    assert (second.image, second.key == first.key) == (first.image, False)
    other = task.model_copy(update={"environment": built_of(text, cache_keys=("2026-12",))})
    again = base_image.asked(other, sandbox, redactor=Redactor({}), cancel=Cancel())
    assert again.name != first.environment.image_name


@pytest.mark.docker
def test_a_failing_build_says_how_it_ended(bench: Bench, sandbox: DockerSandbox, source: Path) -> None:
    """env/image with the masked end of what the build wrote; nothing of it is left, on the engine or stored."""
    bench.redactor = Redactor({"DOOR": "swordfish-123"})
    text = "FROM python\nRUN echo kept >/x\nRUN echo sword''fish-123 is the word; echo no such thing >&2; exit 7\n"
    task = asked(bench, source, built_of(text))
    with pytest.raises(EnvironmentFault, match=r"no image came of ci/Dockerfile: .* non-zero code: 7") as caught:
        bench.prepare(task)
    assert caught.value.reason == "image"
    assert "\n[secret DOOR] is the word\nno such thing" in caught.value.message
    assert "swordfish-123" not in caught.value.message
    assert beside(sandbox, task) == []
    assert list(bench.archive.list("environments/")) == []


@pytest.mark.docker
def test_a_dockerfile_that_holds_a_secret_is_refused(bench: Bench, source: Path) -> None:
    """Before anything is sent to the engine; what is said of it names the way to hand one to setup."""
    bench.redactor = Redactor({"DOOR": "swordfish-123"})
    task = asked(bench, source, built_of("FROM python\nENV TOKEN=swordfish-123\n"))
    with pytest.raises(EnvironmentFault, match="ci/Dockerfile holds the value of a secret") as caught:
        bench.prepare(task)
    assert (caught.value.reason, "setup_secrets" in caught.value.hint) == ("image", True)


@pytest.mark.docker
def test_a_base_that_is_nowhere_is_named(bench: Bench, source: Path) -> None:
    """env/image: the engine lacks it, and no registry gave it; the hint says how to bring it."""
    name = f"localhost:1/nowhere/{secrets.token_hex(6)}:1"
    with pytest.raises(EnvironmentFault, match=rf"no image {name}, and no registry gave it: .*localhost:1") as caught:
        bench.prepare(asked(bench, source, built_of(f"FROM {name}\n")))
    assert (caught.value.reason, f"docker pull {name}" in caught.value.hint) == ("image", True)


@pytest.mark.docker
@pytest.mark.full
def test_another_host_takes_a_built_image_from_the_archive(
    bench: Bench, sandbox: DockerSandbox, source: Path, base: str, gone: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the run that was prepared with it, and for another repository's; where the archive no longer says so, it is
    built anew."""
    text = f"FROM {base}\nRUN echo one >/one\n"
    task = asked(bench, source, built_of(text))
    first = kept(bench, task)
    gone += [first.image, first.environment.image_name]
    forget(sandbox, first.image)
    with monkeypatch.context() as patched:
        patched.setattr(building, "build", refused)
        assert recorded(bench.archive, sandbox, first.event()).image == first.image
        forget(sandbox, first.image)
        second = kept(bench, asked(bench, source, built_of(text)))
        assert second.image == first.image
        with bench.agent(task, second) as shell:
            assert shell.text("cat /one") == "one\n"
        forget(sandbox, first.image)
    bench.archive.delete([key for key in bench.archive.list("images/") if "/built-" in key])
    third = bench.prepare(asked(bench, source, built_of(text)))
    gone.append(third.image)
    with bench.agent(task, third) as shell:
        assert shell.text("cat /one") == "one\n"


@pytest.mark.docker
@pytest.mark.full
def test_setup_runs_anew_on_the_built_image(
    bench: Bench, sandbox: DockerSandbox, source: Path, gone: list[str]
) -> None:
    """Setup, and with `resetup` setup with the patch, run on what the Dockerfile made."""
    (source / "requirements.txt").write_text("old\n")
    text = f"# {secrets.token_hex(6)}\nFROM python\nRUN echo first >/opt/log\n"
    environment = built_of(text, setup="cat requirements.txt >>/opt/log", resetup="on_change")
    check = "grep -q new /opt/log && ! grep -q old /opt/log && grep -q first /opt/log"
    task = asked(bench, source, environment)
    task = task.model_copy(update={"checks": (Check(name="log", command=check),)})
    prepared, patch = bench.edited(task, "echo new >requirements.txt")
    verdict = bench.verdict(task, prepared, patch)
    digits = prepared.environment.image_name.rpartition(":")[2]
    of_it = sandbox._engine._api.images(filters={"label": f"{BUILD_LABEL}={digits}"})
    gone += [str(image["Id"]) for image in sorted(of_it, key=lambda one: -int(one["Created"]))]
    assert {check.status for check in verdict.checks} == {"green"}, verdict.checks
    assert [check.status for check in verdict.baseline] == ["red"]


@pytest.mark.docker
@pytest.mark.full
@pytest.mark.parametrize("why", ["cancel", "time"])
def test_a_build_that_is_cut_off_leaves_nothing(
    bench: Bench, sandbox: DockerSandbox, source: Path, base: str, why: str
) -> None:
    """Cancelled, or at the time limit of setup: its container is gone, and what its steps made."""
    limits = LIMITS.model_copy(update={"setup_timeout_s": 6.0 if why == "time" else 300.0})
    text = f"FROM {base}\nRUN echo kept >/x\nRUN cat </dev/zero >/dev/null\n"
    task = asked(bench, source, built_of(text)).model_copy(update={"limits": limits})
    if why == "cancel":

        def cancel() -> None:
            while not building_containers(sandbox, base):
                pass
            bench.cancel.set("cancelled by a person")

        threading.Thread(target=cancel, daemon=True).start()
        with pytest.raises(Cancelled, match="cancelled by a person"):
            bench.prepare(task)
    else:
        with pytest.raises(EnvironmentFault, match="did not come to an end within 6 s") as caught:
            bench.prepare(task)
        assert caught.value.reason == "image"
    assert building_containers(sandbox, base) == []
    assert beside(sandbox, task) == []


def building_containers(sandbox: DockerSandbox, base: str) -> list[str]:
    """Of steps of a build that never end by themselves."""
    listed = sandbox._engine._api.containers(all=True, filters={"ancestor": base})
    return [str(one["Id"]) for one in listed if "/dev/zero" in one["Command"]]


@pytest.mark.docker
@pytest.mark.full
def test_a_build_is_bounded_in_memory_and_size(bench: Bench, sandbox: DockerSandbox, source: Path, base: str) -> None:
    """By the limits that setup has."""
    limits = LIMITS.model_copy(update={"memory_bytes": 64 * MIB, "tmpfs_bytes": 16 * MIB, "workspace_bytes": 8 * MIB})
    for text, said in (
        ("FROM python\nRUN python3 -c 'x = bytearray(200 << 20)'\n", "the limit of memory is 64 MiB"),
        (f"FROM {base}\nRUN head -c 9000000 /dev/zero >/a\n", "non-zero code"),
        (f"FROM {base}\nRUN head -c 5M /dev/zero >/a; head -c 5M /dev/zero >/b\n", "outgrew the limit of 8 MiB"),
    ):
        task = asked(bench, source, built_of(text)).model_copy(update={"limits": limits})
        with pytest.raises(EnvironmentFault, match=said):
            bench.prepare(task)
        assert beside(sandbox, task) == []


@pytest.mark.docker
@pytest.mark.full
def test_a_built_image_counts_with_what_its_build_added(
    bench: Bench, sandbox: DockerSandbox, source: Path, base: str, gone: list[str], tmp_path: Path
) -> None:
    """All steps of it, and not what it is built on; what a build of a dead worker left goes after a while."""
    text = f"FROM {base}\nRUN head -c 3M /dev/zero >/a\nRUN head -c 1M /dev/zero >/b\n"
    prepared = bench.prepare(asked(bench, source, built_of(text)))
    gone.append(prepared.image)
    repository = f"dawnfleet-test/{secrets.token_hex(6)}"
    sandbox._engine.tag(prepared.image, repository, "x")
    ours = PreparedImages(sandbox._engine, tmp_path / "images", repository)
    ours.touch(prepared.image)
    mark = tmp_path / "images" / prepared.image.removeprefix("sha256:")
    os.utime(mark, (time.time() - 2 * GRACE_S,) * 2)
    assert ours.trim(4 * MIB + MIB // 2) == 0
    assert ours.trim(3 * MIB) == 1
