"""The images of the sandbox: a tag says what is inside, and an engine gets them built, kept or loaded."""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.contract.errors import EnvironmentFault, UsageFault
from worker.sandbox import images, rootfs
from worker.sandbox.rootfs import AptSource, distribution_sources, host_sources, parse_deb822, parse_list


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the images' folder that a test may change."""
    copy = tmp_path / "sandbox_images"
    shutil.copytree(images.folder(), copy)
    monkeypatch.setattr(images, "folder", lambda: copy)
    return copy


def references() -> dict[str, str]:
    return {name: images.reference(name) for name in ("root", "base", *images.names())}


def changed(before: dict[str, str]) -> set[str]:
    now = references()
    return {name for name in before if before[name] != now[name]}


def test_names_are_those_a_task_may_say() -> None:
    """The toolbox and the task images; `base`, which they are built on, may be named beside them."""
    assert images.names() == ("toolbox", "python", "node")


def test_a_reference_is_a_pure_function(copied: Path) -> None:
    """The same files in another place, touched and compiled, have the same tags."""
    before = references()
    (copied / "toolbox" / "__pycache__").mkdir(exist_ok=True)
    (copied / "toolbox" / "__pycache__" / "keeper.cpython-311.pyc").write_bytes(b"compiled")
    for path in copied.rglob("*"):
        os.utime(path, (1, 1))
    assert changed(before) == set()


def test_a_changed_program_is_another_toolbox(copied: Path) -> None:
    """One more line in the keeper changes the toolbox's tag and no other."""
    before = references()
    with (copied / "toolbox" / "keeper.py").open("a") as file:
        file.write("# another line\n")
    assert changed(before) == {"toolbox"}


def test_a_changed_entry_is_another_image(copied: Path) -> None:
    """The entry in images.toml belongs to the image."""
    before = references()
    table = copied / "images.toml"
    table.write_text(table.read_text().replace("Node.js with", "Node.js and"))
    assert changed(before) == {"node"}


def test_a_changed_base_is_another_everything(copied: Path) -> None:
    """What an image is built on is part of it."""
    before = references()
    with (copied / "base" / "Dockerfile").open("a") as file:
        file.write("RUN true\n")
    assert changed(before) == {"base", *images.names()}


def test_an_unknown_image_is_named_with_the_known_ones() -> None:
    """Who misspells a name reads the list."""
    with pytest.raises(UsageFault, match="toolbox, python, node"):
        images.reference("ruby")


def test_the_wheel_carries_what_the_module_looks_for() -> None:
    """pyproject.toml puts the images' folder where an installed `folder()` looks, beside the module."""
    import tomllib

    root = Path(images.__file__).parents[2]
    build = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert build["force-include"] == {"sandbox_images": "worker/sandbox/image_files"}
    assert not (root / "worker" / "sandbox" / "image_files").exists()


ONE_LINE = """
# a comment
deb http://mirror.test/debian bookworm main contrib  # trailing
deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] https://vendor.test/apt stable main
deb-src http://mirror.test/debian bookworm main
deb http://mirror.test/debian bookworm-updates main
deb cdrom:[disc]/ bookworm main
"""
DEB822 = """
Types: deb deb-src
URIs: http://mirror.test/debian
Suites: bookworm bookworm-updates
# a comment between fields
Components: main
 contrib
Signed-By: /usr/share/keyrings/debian.gpg

Enabled: no
Types: deb
URIs: http://disabled.test/debian
Suites: bookworm
Components: main

Types: deb
URIs: http://inline.test/debian
Suites: bookworm-security
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mQINBF
 -----END PGP PUBLIC KEY BLOCK-----
"""


def test_one_line_sources_are_read() -> None:
    """Options, comments, several components; source packages are passed over."""
    assert parse_list(ONE_LINE)[:3] == [
        AptSource("http://mirror.test/debian", "bookworm", ("main", "contrib")),
        AptSource("https://vendor.test/apt", "stable", ("main",), "/usr/share/keyrings/x.gpg"),
        AptSource("http://mirror.test/debian", "bookworm-updates", ("main",)),
    ]


def test_deb822_sources_are_read() -> None:
    """Folded fields, several suites, disabled stanzas, a key inside the stanza."""
    key = "/usr/share/keyrings/debian.gpg"
    assert parse_deb822(DEB822) == [
        AptSource("http://mirror.test/debian", "bookworm", ("main", "contrib"), key),
        AptSource("http://mirror.test/debian", "bookworm-updates", ("main", "contrib"), key),
        AptSource("http://inline.test/debian", "bookworm-security", ("main",)),
    ]


def test_a_source_written_for_the_inside_reads_back() -> None:
    """What `line` writes, `parse_list` reads."""
    source = AptSource("http://mirror.test/debian", "bookworm", ("main", "contrib"), "/usr/share/keyrings/x.gpg")
    assert parse_list(source.line()) == [source]


def test_the_distribution_s_own_sources_are_chosen(tmp_path: Path) -> None:
    """The main suite comes first, its updates follow, a vendor's and a disc's are left out."""
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(ONE_LINE)
    (tmp_path / "sources.list.d" / "debian.sources").write_text(DEB822)
    (tmp_path / "sources.list.d" / "ignored.save").write_text(ONE_LINE)
    chosen = distribution_sources(host_sources(tmp_path), "bookworm")
    assert [source.suite for source in chosen] == [
        "bookworm", "bookworm", "bookworm-updates", "bookworm-updates", "bookworm-security",
    ]  # fmt: skip


def test_a_host_without_a_mirror_is_told_what_to_do() -> None:
    """No main suite of the host's release: the fault names it and the other way."""
    with pytest.raises(EnvironmentFault, match=r"no http mirror of trixie.*dawn images load"):
        distribution_sources(parse_list(ONE_LINE), "trixie")


def test_only_root_makes_a_base_by_debootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user is told to let root do it once, or to load images."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(EnvironmentFault, match="as root, or load images"), rootfs.debootstrapped(print):
        pass


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of images that builds in a second and without a network, gone from the engine afterwards."""
    root = io.BytesIO()
    with tarfile.open(fileobj=root, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    public = f"dawnfleet-test-{os.getpid()}:root"
    subprocess.run(["docker", "import", "-", public], input=root.getvalue(), check=True, stdout=subprocess.PIPE)
    (tmp_path / "images.toml").write_text(
        f'[root]\npublic = "{public}"\n[base]\nsummary = "b"\n'
        f'[images.tiny]\nsummary = "one"\nfor = {os.getpid()}\n[images.small]\nsummary = "two"\n'
    )
    for name in ("base", "tiny", "small"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "Dockerfile").write_text("ARG BELOW\nFROM ${BELOW}\nCOPY program.py /program.py\n")
        (tmp_path / name / "program.py").write_text(f"# {name}\n")
    monkeypatch.setattr(images, "folder", lambda: tmp_path)
    yield tmp_path
    tags = [*references().values(), public]
    subprocess.run(["docker", "rmi", "-f", *tags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.docker
def test_what_is_there_is_not_built_again(tiny: Path) -> None:
    """The first `ensure` builds, the second has nothing to say."""
    said: list[str] = []
    made = images.ensure(progress=said.append)
    assert made == {"tiny": images.reference("tiny"), "small": images.reference("small")}
    assert images.missing(("tiny", "small")) == []
    before = len(said)
    assert images.ensure(progress=said.append) == made
    assert (before > 0, len(said)) == (True, before)


@pytest.mark.docker
def test_a_changed_file_builds_that_image_only(tiny: Path) -> None:
    """A new version is built beside the old one, which stays."""
    old = images.ensure()
    (tiny / "tiny" / "program.py").write_text("# changed\n")
    said: list[str] = []
    new = images.ensure(progress=said.append)
    assert said == [f"building {new['tiny']}"]
    assert (new["small"], images.missing(("tiny", "small"))) == (old["small"], [])
    subprocess.run(["docker", "rmi", old["tiny"]], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.docker
def test_saved_images_load_on_a_host_without_them(tiny: Path) -> None:
    """`save` and `load` carry every image, and the same ones."""
    images.ensure()
    images.save(tiny / "all.tar")
    subprocess.run(["docker", "rmi", "-f", *references().values()], check=True, stdout=subprocess.DEVNULL)
    assert images.missing(("tiny", "small")) == ["tiny", "small"]
    images.load(tiny / "all.tar")
    assert images.missing(("root", "base", "tiny", "small")) == []


@pytest.mark.docker
def test_images_of_another_version_are_refused(tiny: Path) -> None:
    """A file saved before a program changed says which images it lacks."""
    images.save(tiny / "all.tar")
    (tiny / "tiny" / "program.py").write_text("# a newer version\n")
    with pytest.raises(EnvironmentFault, match=f"lacks {images.reference('tiny')}"):
        images.load(tiny / "all.tar")


@pytest.mark.docker
def test_two_builders_do_not_clash(tiny: Path) -> None:
    """The second waits for the first, and then finds the work done."""
    lock = os.open(
        Path(tempfile.gettempdir()) / f"dawnfleet-images-{os.getuid()}.lock", os.O_RDWR | os.O_CREAT, 0o600
    )
    fcntl.flock(lock, fcntl.LOCK_EX)
    waiting, said = threading.Event(), []

    def progress(text: str) -> None:
        said.append(text)
        waiting.set()

    second = threading.Thread(target=images.ensure, kwargs={"progress": progress})
    second.start()
    assert waiting.wait(timeout=30)
    for name in ("tiny", "small"):
        images._build(name, print)
    os.close(lock)
    second.join(timeout=30)
    assert said == ["another process is building images on this host: waiting for it"]


@pytest.mark.docker
def test_a_failing_build_says_why(tiny: Path) -> None:
    """The last lines of the build are in the fault."""
    (tiny / "tiny" / "Dockerfile").write_text("ARG BELOW\nFROM ${BELOW}\nCOPY absent /absent\n")
    with pytest.raises(EnvironmentFault, match="absent"):
        images.ensure(("tiny",))


def test_no_engine_is_try_later(tmp_path: Path) -> None:
    """The command exits with 75 and says what to start."""
    done = subprocess.run(
        [sys.executable, "-m", "worker.sandbox.images", "list"],
        env={**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/absent.sock"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "start dockerd" in done.stderr) == (75, True)


@pytest.mark.docker
def test_the_command_lists_what_the_engine_holds(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line an image: name, reference, missing or ready."""
    images.ensure(("tiny",))
    assert images.main(["list"]) == 0
    states = [line.split("\t")[::2] for line in capsys.readouterr().out.splitlines()]
    assert [state[:2] for state in states] == [["tiny", "ready"], ["small", "missing"]]


def run(name: str, script: str, *options: str) -> str:
    """What a script in a real image prints, without network, as the agent's user unless options say otherwise."""
    tag = images.ensure((name,))[name]
    argv = ["docker", "run", "--rm", "-i", "--network=none", "--user=1000", *options, tag, "sh", "-ec", script]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@pytest.mark.docker
def test_every_image_has_the_common_tools() -> None:
    """git works in anybody's folder and never pages; the user 1000 has a name; /workspace is there."""
    for name in images.names():
        out = run(
            name, "git config --system -l; rg --version | head -1; make --version | head -1; id -un; ls -d /workspace"
        )
        assert "safe.directory=*" in out
        assert "core.pager=cat" in out
        assert out.split()[-2:] == ["dawn", "/workspace"]


@pytest.mark.docker
def test_the_python_image_installs_packages(tmp_path: Path) -> None:
    """`python`, venv and pytest are there, and pip may write to the system because no mark forbids it."""
    script = """
        python -c 'import sys; print(sys.version_info[0])'; python -m venv --without-pip /tmp/venv; pytest --version
        mkdir /tmp/p; cd /tmp/p; echo 'print("installed")' > p.py
        echo 'from setuptools import setup; setup(name="p", version="1", py_modules=["p"])' > setup.py
        pip install -q --no-build-isolation --no-index .; cd /; python -m p
    """
    python, _, _, installed = run("python", script, "--user=0").split()
    assert (python, installed) == ("3", "installed")


@pytest.mark.docker
def test_the_node_image_runs_tests() -> None:
    """Node's own test runner and npm are there."""
    script = 'cd /tmp; echo \'require("node:test")("adds", () => {})\' > a.test.js; node --test; npm --version'
    assert "# pass 1" in run("node", script)


@pytest.mark.docker
def test_the_toolbox_s_keeper_needs_four_capabilities() -> None:
    """In its image, with a read-only root and no more rights than promised, the keeper takes over a volume."""
    capabilities = [f"--cap-add={name}" for name in ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID")]
    options = ["--network=none", "--read-only", "--cap-drop=ALL", *capabilities, "--tmpfs=/workspace:mode=755"]
    requests = [{"op": "hello", "limits": {}}, {"op": "own"}, {"op": "ignored"}]
    tag = images.ensure(("toolbox",))["toolbox"]
    done = subprocess.run(
        ["docker", "run", "--rm", "-i", *options, tag, "python3", "-I", "/opt/dawnfleet/keeper.py"],
        input="".join(json.dumps(request) + "\n" for request in requests).encode(),
        check=True,
        stdout=subprocess.PIPE,
    )
    assert [json.loads(line)["ok"] for line in done.stdout.splitlines()] == [True, True, True]
