"""Environments on a real engine: fetched, set up, stored once, and refused with a reason."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from git_server import GitServer
from preparation import LIMITS, Bench
from repositories import MIB, commit_all, git, tar_of

from worker import prepare as prepare_module
from worker.contract.errors import EnvironmentFault
from worker.contract.events import SnapshotRef
from worker.contract.redact import Redactor
from worker.contract.task import Environment, Repo, Task
from worker.environments import find, recorded

pytestmark = pytest.mark.docker


def test_a_packed_repository_is_prepared_once(bench: Bench, source: Path) -> None:
    """The second preparation takes the first one's environment and baseline, and gets the same workspace."""
    task = bench.task(bench.repo(source), green="test -f f.txt", red="test -f missing")
    first, second = bench.prepare(task), bench.prepare(task)
    assert (first.reused, second.reused) == (False, True)
    assert (first.digest, first.baseline_digest) == (second.digest, second.baseline_digest)
    assert first.environment.commit == git(source, "rev-parse", "HEAD")
    assert first.baseline is not None
    assert [check.status for check in first.baseline.checks] == ["green", "red"]
    with bench.agent(task, second) as shell:
        assert shell.text("cat f.txt; git status --porcelain --branch; git log --oneline | wc -l; id -u") == (
            "one\ntwo\nthree\n## main\n1\n1000\n"
        )
        assert shell.workspace.snapshot().tree == first.environment.tree


def test_the_agent_can_commit_but_not_touch_base(bench: Bench, source: Path) -> None:
    """The repository and HOME are its own, with an identity; base is root's."""
    task = bench.task(bench.repo(source))
    with bench.agent(task, bench.prepare(task)) as shell:
        assert shell.run("echo x >new && git add new && git commit -qm mine").exit_code == 0
        assert shell.run("echo x >/workspace/base/commit").exit_code != 0
        assert shell.run("mv /workspace/base /workspace/other").exit_code != 0


def test_a_recorded_environment_is_found_by_digest(bench: Bench, source: Path) -> None:
    """Takeover takes what the journal names."""
    task = bench.task(bench.repo(source), green="true")
    prepared = bench.prepare(task)
    again = recorded(bench.archive, bench.sandbox, prepared.event())
    assert (again.environment, again.baseline, again.image) == (
        prepared.environment,
        prepared.baseline,
        prepared.image,
    )


def test_what_the_repository_tells_agents_is_recorded_once(bench: Bench, source: Path) -> None:
    """The journal has it masked, from the start folder up, and a later run takes it from the environment; a fork's
    own `prepared` does not say it again."""
    (source / "pkg").mkdir()
    (source / "AGENTS.md").write_text("Use tabs.\n")
    (source / "pkg" / "AGENTS.md").write_text("The password is swordfish-123.\n")
    commit_all(source)
    bench.redactor = Redactor({"DOOR": "swordfish-123"})
    task = bench.task(bench.repo(source, path="pkg"))
    first, second = bench.prepare(task), bench.prepare(task)
    near, far = first.event().instructions
    assert (near.path, far.path, far.text) == ("pkg/AGENTS.md", "AGENTS.md", "Use tabs.\n")
    assert "swordfish" not in near.text
    assert second.event().instructions == (near, far)
    level_0 = SnapshotRef(listing="a" * 64, tree="b" * 64, object="c" * 64)
    assert first.event(level_0).instructions == ()


def test_a_losing_builder_takes_the_winners(bench: Bench, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two builders of one key: both end with the env.json that was there first."""
    task = bench.task(bench.repo(source))
    real = find
    waiting = [None]  # the first look finds nothing, as it does for two that start together

    def blind_once(archive: object, key: str) -> object:
        return waiting.pop() if waiting else real(archive, key)  # type: ignore[arg-type]

    winner = bench.prepare(task)
    monkeypatch.setattr(prepare_module.environments, "find", blind_once)
    loser = bench.prepare(task)
    assert not loser.reused
    assert loser.digest == winner.digest


@pytest.fixture
def remove_image() -> Iterator[Callable[[str], None]]:
    """Remembers images that setup made and removes them after the test."""
    tags: list[str] = []
    yield tags.append
    subprocess.run(["docker", "rmi", "--force", *tags], check=True, capture_output=True)


def test_setup_becomes_an_image(bench: Bench, source: Path, remove_image: Callable[[str], None]) -> None:
    """setup runs as root with network and the host's certificates; what it installs is there for the agent."""
    script = "pip install --no-input --quiet --break-system-packages iniconfig==2.0.0 && touch built && id -u >who"
    task = bench.task(bench.repo(source), setup=script, installed="python3 -c 'import iniconfig'")
    prepared = bench.prepare(task)
    assert prepared.baseline is not None
    assert prepared.baseline.checks[0].status == "green", prepared.baseline.checks[0].tail
    assert prepared.environment.setup_tag is not None
    remove_image(prepared.environment.setup_tag)
    with bench.agent(task, prepared) as shell:
        assert shell.text("stat -c %u built; cat who") == "1000\n0\n"
    assert bench.prepare(task).reused


def test_a_prepared_image_that_is_gone_is_made_again(
    bench: Bench, source: Path, remove_image: Callable[[str], None]
) -> None:
    """The environment stays the one that is stored; only its image is new on this engine."""
    task = bench.task(bench.repo(source), setup="touch /opt/made")
    first = bench.prepare(task)
    assert first.environment.setup_tag is not None
    remove_image(first.environment.setup_tag)
    subprocess.run(["docker", "rmi", "--force", first.environment.setup_tag], check=True, capture_output=True)
    second = bench.prepare(task)
    assert (second.digest, second.reused) == (first.digest, False)
    with bench.agent(task, second) as shell:
        assert shell.run("test -e /opt/made").exit_code == 0


def test_a_failing_setup_says_how(bench: Bench, source: Path) -> None:
    """env/setup with the exit code and the end of the output; nothing is stored."""
    task = bench.task(bench.repo(source), setup="echo first; echo 'no such thing' >&2; exit 7")
    with pytest.raises(EnvironmentFault, match="ended with exit code 7: first\nno such thing") as caught:
        bench.prepare(task)
    assert caught.value.reason == "setup"
    assert list(bench.archive.list("environments/")) == []


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("rm -rf /workspace/repo; ln -s /etc /workspace/repo", "replaced the folder /workspace/repo"),
        ("echo other >/workspace/base/commit", "setup changed /workspace/base"),
        ("for n in $(seq 250); do mkdir d; cd d; done", "nested deeper"),
        ("for n in 1 2 3; do head -c 12M /dev/zero >/opt/$n; done", "outgrew its limit of 32 MiB"),
    ],
    ids=["repo", "base", "deep", "image"],
)
def test_a_setup_that_breaks_the_workspace_is_at_fault(bench: Bench, source: Path, script: str, said: str) -> None:
    """It runs code of the repository as root: what that breaks or fills is env/setup and not tried again."""
    limits = LIMITS.model_copy(update={"workspace_bytes": 32 * MIB})
    with pytest.raises(EnvironmentFault, match=said) as caught:
        bench.prepare(bench.task(bench.repo(source), setup=script, limits=limits))
    assert caught.value.reason == "setup"
    assert list(bench.archive.list("environments/")) == []


def test_a_source_that_eats_the_memory_is_at_fault(bench: Bench) -> None:
    """H37: a header that claims a name of a gigabyte is the repository's doing, not the engine's."""
    header = tarfile.TarInfo("name")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 2**30
    packed = gzip.compress(header.tobuf(tarfile.GNU_FORMAT), 1) + gzip.compress(bytes(64 * MIB), 1) * 17
    with pytest.raises(EnvironmentFault, match="out of memory") as caught:
        bench.prepare(bench.task(bench.source(packed, "tarball")))
    assert caught.value.reason == "repository"


def test_a_check_that_is_not_there_is_named(bench: Bench, source: Path) -> None:
    """env/check before any model is paid."""
    task = bench.task(bench.repo(source), lint="no-such-program --all")
    with pytest.raises(EnvironmentFault, match="'lint'") as caught:
        bench.prepare(task)
    assert caught.value.reason == "check"


@pytest.mark.parametrize(
    ("ref", "path", "reason"), [("nowhere", "", "ref"), (None, "no/such", "repository")], ids=["ref", "path"]
)
def test_what_the_repository_lacks_is_named(
    bench: Bench, source: Path, ref: str | None, path: str, reason: str
) -> None:
    """T42: an unknown ref lists the branches; an unknown folder is no surprise of the first call."""
    with pytest.raises(EnvironmentFault, match="no ") as caught:
        bench.prepare(bench.task(bench.repo(source, ref=ref, path=path)))
    assert caught.value.reason == reason


def test_an_empty_repository_is_named(bench: Bench, tmp_path: Path) -> None:
    """T41: no commits."""
    folder = tmp_path / "empty"
    folder.mkdir()
    git(folder, "init", "--quiet")
    with pytest.raises(EnvironmentFault, match="no commits") as caught:
        bench.prepare(bench.task(bench.repo(folder)))
    assert caught.value.reason == "repository"


def test_a_missing_image_is_named(bench: Bench, source: Path) -> None:
    """env/image."""
    task = bench.task(bench.repo(source))
    task = task.model_copy(update={"environment": task.environment.model_copy(update={"image": "no/such:image"})})
    with pytest.raises(EnvironmentFault) as caught:
        bench.prepare(task)
    assert caught.value.reason == "image"


def test_an_sdist_is_prepared(bench: Bench) -> None:
    """A tarball is unpacked and committed in the container, work starts below its top folder."""
    packed = tar_of(
        ("src/m.py", b"x = 1\n"), ("src/test_m.py", b"from m import x\n\ndef test_x():\n    assert x == 1\n")
    )
    task = bench.task(bench.source(packed, "tarball", path="src"), tests="pytest -q")
    prepared = bench.prepare(task)
    assert prepared.baseline is not None
    assert prepared.baseline.checks[0].status == "green", prepared.baseline.checks[0].tail
    assert prepared.environment.tracked == 2


TOKEN = "t0ken-of-the-night"


@pytest.fixture
def private(source: Path, tmp_path: Path, git_server: Callable[[str, str], GitServer]) -> GitServer:
    """`source` as the private repository /söurce repo.git of a server."""
    (tmp_path / "served").mkdir()
    git(tmp_path, "clone", "--quiet", "--bare", str(source), "served/söurce repo.git")
    return git_server("served", TOKEN)


def private_repo(server: GitServer, **fields: Any) -> Repo:
    return Repo(url=f"{server.url}/s%C3%B6urce%20repo.git", label="private", **fields)


def test_a_private_repository_is_opened_by_its_secret(bench: Bench, private: GitServer) -> None:
    """The token opens it, and stands in no file of the workspace, no object of the archive and no remote URL."""
    bench.secrets, bench.redactor = {"FORGE": TOKEN}, Redactor({"FORGE": TOKEN})
    task = bench.task(private_repo(private, secret="FORGE"))
    prepared = bench.prepare(task)
    assert TOKEN in private.seen
    assert bench.prepare(task).reused
    with bench.agent(task, prepared) as shell:
        assert shell.text("git remote get-url origin; git branch --show-current") == (
            f"{private.url}/s%C3%B6urce%20repo.git\nmain\n"
        )
        assert shell.run(f"grep -rq {TOKEN} /workspace").exit_code == 1
    assert TOKEN.encode() not in bench.everything_stored()


@pytest.mark.parametrize("secrets", [{}, {"FORGE": "wr0ng-token-value"}], ids=["none", "wrong"])
def test_a_closed_repository_says_what_it_needs(bench: Bench, private: GitServer, secrets: dict[str, str]) -> None:
    """env/repository, with a hint about the secret, and without the wrong one's value."""
    bench.secrets, bench.redactor = secrets, Redactor(secrets)
    repo = private_repo(private, secret="FORGE" if secrets else None)
    with pytest.raises(EnvironmentFault, match="cannot read") as caught:
        bench.prepare(bench.task(repo))
    assert caught.value.reason == "repository"
    assert "DAWN_SECRET_NAME" in caught.value.hint
    assert "wr0ng-token-value" not in str(caught.value)


def test_a_secret_without_value_is_named(bench: Bench, private: GitServer) -> None:
    """Nothing is started for a secret nobody set."""
    with pytest.raises(EnvironmentFault, match="secret FORGE") as caught:
        bench.prepare(bench.task(private_repo(private, secret="FORGE")))
    assert "DAWN_SECRET_FORGE" in caught.value.hint
    assert private.seen == []


def test_a_submodule_elsewhere_is_not_offered_the_secret(
    bench: Bench, source: Path, tmp_path: Path, git_server: Callable[[str, str], GitServer]
) -> None:
    """A repository cannot name another server to have its token sent there."""
    thief = git_server("thief", "another")
    git(tmp_path, "init", "--quiet", "--bare", "thief/u.git")
    git(source, "update-index", "--add", "--cacheinfo", f"160000,{git(source, 'rev-parse', 'HEAD')},sub")
    (source / ".gitmodules").write_text(f'[submodule "sub"]\n\tpath = sub\n\turl = {thief.url}/u.git\n')
    git(source, "add", ".gitmodules")
    git(source, "commit", "--quiet", "-m", "a submodule")
    (tmp_path / "served").mkdir()
    git(tmp_path, "clone", "--quiet", "--bare", str(source), "served/söurce repo.git")
    server = git_server("served", TOKEN)
    bench.secrets = {"FORGE": TOKEN}
    prepared = bench.prepare(bench.task(private_repo(server, secret="FORGE")))
    assert thief.seen
    assert set(thief.seen) == {""}
    assert prepared.environment.notes[0].startswith("submodule sub is left empty")


def test_a_moving_branch_is_another_environment(
    bench: Bench, source: Path, tmp_path: Path, private: GitServer
) -> None:
    """A URL's ref is resolved anew each time; an abbreviated commit is resolved too."""
    bench.secrets = {"FORGE": TOKEN}
    first = bench.prepare(bench.task(private_repo(private, secret="FORGE", ref="main")))
    (source / "f.txt").write_text("moved\n")
    moved = commit_all(source)
    git(source, "push", "--quiet", str(tmp_path / "served" / "söurce repo.git"), "main")
    second = bench.prepare(bench.task(private_repo(private, secret="FORGE", ref="main")))
    assert (first.environment.commit == moved, second.environment.commit == moved) == (False, True)
    short = bench.prepare(bench.task(private_repo(private, secret="FORGE", ref=moved[:10])))
    assert short.environment.commit == moved


@pytest.mark.docker
def test_a_start_that_must_be_green_is_refused_where_it_is_not(bench: Bench, source: Path) -> None:
    """baseline required: red on the untouched start ends the run before a model is paid; off: nothing is run; record,
    as without a word: measured, and it may be red."""
    task = bench.task(bench.repo(source), ok="true", broken="exit 3")
    with pytest.raises(EnvironmentFault, match="the untouched start is not green: check 'broken' is red") as caught:
        bench.prepare(task.model_copy(update={"baseline": "required"}))
    assert caught.value.reason == "check"
    assert bench.prepare(task.model_copy(update={"baseline": "off"})).baseline is None
    for policy in (None, "record"):
        measured = bench.prepare(task.model_copy(update={"baseline": policy})).baseline
        assert measured is not None
        assert [check.status for check in measured.checks] == ["green", "red"]


INDEX = "pass/word+of-the-index-0815"


@pytest.fixture
def handed(bench: Bench, source: Path) -> Callable[[str], Task]:
    """A task whose setup script is handed INDEX, which the bench's worker has."""
    bench.secrets, bench.redactor = {"INDEX": INDEX}, Redactor({"INDEX": INDEX})

    def task(script: str) -> Task:
        environment = Environment(setup=script, setup_secrets=("INDEX",))
        return bench.task(bench.repo(source)).model_copy(update={"environment": environment})

    return task


def setup_images() -> set[str]:
    """Of this engine: those that a setup made."""
    listing = ["docker", "image", "ls", "--quiet", "--no-trunc", prepare_module.SETUP_IMAGE]
    return {*subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split()}


def test_setup_reads_its_secret_from_memory_and_nothing_of_it_stays(
    bench: Bench, handed: Callable[[str], Task], remove_image: Callable[[str], None]
) -> None:
    """A file of root's that no later call has, and no variable. The environment is known by the secret's name: who
    has another value, or none, takes it too."""
    script = """cd ~
        sha256sum </run/secrets/INDEX >told; stat -c '%a %u' /run/secrets/INDEX >>told
        stat -f -c %T /run/secrets >>told; ls /run/secrets >>told
        cat /proc/[1s]*/environ /proc/[1s]*/cmdline | grep -caFf /run/secrets/INDEX >>told
        cp /run/secrets/INDEX /tmp/copy"""
    task = handed(script)
    prepared = bench.prepare(task)
    assert prepared.environment.setup_tag is not None
    remove_image(prepared.environment.setup_tag)
    with bench.agent(task, prepared) as shell:
        hashed = hashlib.sha256(INDEX.encode()).hexdigest()
        assert shell.text("cat ~/told") == f"{hashed}  -\n400 0\ntmpfs\nINDEX\n0\n"
        assert shell.text("ls -A /run/secrets /tmp") == "/run/secrets:\n\n/tmp:\n"
    inspected = subprocess.run(["docker", "image", "inspect", prepared.image], capture_output=True, check=True).stdout
    assert b"INDEX" not in inspected
    assert INDEX.encode() not in bench.everything_stored()
    bench.secrets = {}
    assert bench.prepare(task).digest == prepared.digest


def test_a_secret_that_setup_leaves_is_refused(bench: Bench, handed: Callable[[str], Task]) -> None:
    """env/setup that names the files in image, work tree and HOME, also of Base64, a link and a cache; there is no
    image and no environment then, and what is said holds no value."""
    script = """s=$(cat /run/secrets/INDEX)
        echo "x$s" >/opt/raw; printf 'user:%s' "$s" | base64 >/workspace/repo/.git/encoded
        mkdir -p ~/.cache; head -c 2097140 /dev/zero >~/.cache/late; echo "$s" >>~/.cache/late
        ln -s "/nowhere/$s" /opt/link; echo harmless >/opt/harmless"""
    task, before = handed(script), setup_images()
    with pytest.raises(EnvironmentFault) as caught:
        bench.prepare(task)
    assert (caught.value.reason, caught.value.message) == (
        "setup",
        "setup left the value of a secret in /workspace/repo/.git/encoded (secret INDEX), "
        "/workspace/home/.cache/late (secret INDEX), /opt/link (secret INDEX), /opt/raw (secret INDEX), "
        "where every later call would find it",
    )
    assert list(bench.archive.list("environments/")) == []
    assert setup_images() == before


def test_a_secret_of_setup_that_the_worker_lacks_is_named(bench: Bench, handed: Callable[[str], Task]) -> None:
    """env/setup, and which variable gives it one, before anything is fetched."""
    task = handed("true")
    bench.secrets = {}
    with pytest.raises(EnvironmentFault, match="the secret INDEX of setup has no value here") as caught:
        bench.prepare(task)
    assert (caught.value.reason, caught.value.hint) == ("setup", "set DAWN_SECRET_INDEX in the worker's environment")


@pytest.mark.full
def test_what_setup_prints_of_its_secret_is_masked(bench: Bench, handed: Callable[[str], Task]) -> None:
    """In the words of a setup that failed."""
    with pytest.raises(EnvironmentFault, match=r"exit code 7: it is \[secret INDEX\]"):
        bench.prepare(handed("echo it is $(cat /run/secrets/INDEX); exit 7"))


@pytest.mark.full
def test_an_image_too_large_to_be_searched_is_refused(bench: Bench, handed: Callable[[str], Task]) -> None:
    """Unlooked at it could hold the secret."""
    limits = LIMITS.model_copy(update={"workspace_bytes": 32 * MIB})
    with pytest.raises(EnvironmentFault, match="cannot be searched for secrets") as caught:
        bench.prepare(handed("true").model_copy(update={"limits": limits}))
    assert caught.value.reason == "setup"
