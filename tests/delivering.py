"""Owns what deliveries are tested in: sealed runs with a patch, a remote, a forge, and workers that die at any of
their acts. Refuses containers: the program that pushes runs as a process on a folder, or is modelled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from doubles import MemoryArchive, MemoryHints
from git_server import serving
from repositories import commit_all, first_commit, git

from worker import deliver
from worker.contract.cancel import Cancel
from worker.contract.delivered import Delivered, delivered
from worker.contract.delivery import Deliver
from worker.contract.environment import PreparedEnvironment
from worker.contract.events import Claimed, Prepared, Sealed, canonical, digest
from worker.contract.redact import Redactor
from worker.contract.run import Run
from worker.contract.settings import Settings
from worker.contract.task import Limits, Repo, Task
from worker.forges.protocol import Forge, PullRequest, marks_of
from worker.sandbox.protocol import Command, Output, Owner, Result
from worker.station import Station
from worker.store import keys
from worker.store.deliveries import read_deliveries
from worker.store.journal import Journal

TOOLBOX = Path(__file__).parents[1] / "sandbox_images" / "toolbox"
TOKEN = "token-of-a-forge-1"
AT = "2026-11-30T02:00:00.000+00:00"
PATH = "octocat/hello"


class Died(BaseException):
    """As kill -9: nothing of ours catches it."""


class Doors:
    """What passes, by name and number, and at which of it a worker dies: before it happens, or after. slow: programs
    end only when they are cancelled."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.dies_at = ""
        self.slow = False

    @contextmanager
    def passing(self, name: str) -> Iterator[None]:
        number = sum(point.startswith(f"{name} ") for point in self.passed) // 2 + 1
        self._at(f"{name} {number} before")
        yield
        self._at(f"{name} {number} after")

    def _at(self, point: str) -> None:
        self.passed.append(point)
        if point == self.dies_at:
            self.dies_at = ""
            raise Died(point)


class DoorArchive(MemoryArchive):
    """Each write passes a door."""

    def __init__(self, doors: Doors) -> None:
        super().__init__()
        self._doors = doors

    def create(self, key: str, data: bytes | Path) -> bool:
        with self._doors.passing(f"create {_kind(key)}"):
            return super().create(key, data)

    def overwrite(self, key: str, data: bytes) -> None:
        with self._doors.passing(f"overwrite {_kind(key)}"):
            super().overwrite(key, data)


def _kind(key: str) -> str:
    parts = key.split("/")
    return parts[2] if parts[0] == "runs" else parts[0]


class Remote(Protocol):
    """octocat/hello as git sees it. url: its address. start: the commit that runs began at."""

    url: str
    start: str

    def program(self, folder: Path, request: dict[str, Any], token: str) -> dict[str, Any]:
        """What deliver.py of the toolbox answers."""
        ...

    def tips(self) -> dict[str, str]:
        """Branch -> commit."""
        ...

    def person_pushes(self, branch: str, *, on: str = "", path: str = "theirs.txt") -> str:
        """A commit of somebody else's, on top of the branch, or of `on`."""
        ...

    def delete(self, branch: str) -> None: ...

    def patch(self, text: str) -> bytes:
        """A patch of f.txt against the start."""
        ...

    def land(self, patch: bytes) -> None:
        """Somebody brings the same change to main."""
        ...


@dataclass
class GitRemote:
    """A real repository behind git's own http-backend; the program runs as a process, with real git."""

    work: Path
    bare: Path
    url: str
    start: str

    def program(self, folder: Path, request: dict[str, Any], token: str) -> dict[str, Any]:
        env = {"PATH": os.environ["PATH"], "DAWN_WORKSPACE": str(folder), "TMPDIR": str(folder)}
        done = subprocess.run(
            [sys.executable, "-I", str(TOOLBOX / "deliver.py")],
            input=json.dumps(request).encode(),
            env={**env, "DAWN_REPO_SECRET": token},
            capture_output=True,
            check=False,
        )
        assert done.stderr == b"", done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def tips(self) -> dict[str, str]:
        said = git(self.bare, "for-each-ref", "--format=%(refname:short) %(objectname)", "refs/heads")
        return dict(line.split() for line in said.splitlines())

    def person_pushes(self, branch: str, *, on: str = "", path: str = "theirs.txt") -> str:
        git(self.work, "fetch", "--quiet", str(self.bare), f"+refs/heads/{on or branch}:refs/heads/theirs")
        git(self.work, "checkout", "--quiet", "theirs")
        (self.work / path).write_text("theirs\n")
        made = commit_all(self.work, "theirs")
        git(self.work, "push", "--quiet", "--force", str(self.bare), f"HEAD:refs/heads/{branch}")
        git(self.work, "checkout", "--quiet", "main")
        return made

    def delete(self, branch: str) -> None:
        git(self.bare, "update-ref", "-d", f"refs/heads/{branch}")

    def patch(self, text: str) -> bytes:
        (self.work / "f.txt").write_text(text)
        made = git(self.work, "diff", "--full-index", self.start)
        git(self.work, "checkout", "--quiet", "f.txt")
        return made.encode() + b"\n"

    def land(self, patch: bytes) -> None:
        (self.work / "p").write_bytes(patch)
        git(self.work, "apply", "p")
        (self.work / "p").unlink()
        commit_all(self.work, "by hand")
        git(self.work, "push", "--quiet", str(self.bare), "main")


@contextmanager
def git_remote(folder: Path, address: str = "127.0.0.1") -> Iterator[GitRemote]:
    work, bare = first_commit(folder / "work"), folder / "served" / f"{PATH}.git"
    bare.parent.mkdir(parents=True)
    git(folder, "clone", "--quiet", "--bare", str(work), str(bare))
    git(bare, "config", "http.receivepack", "true")
    with serving(folder / "served", TOKEN, address) as server:
        yield GitRemote(work, bare, f"{server.url}/{PATH}.git", git(work, "rev-parse", "HEAD"))


@dataclass
class ModelRemote:
    """The same, modelled: a commit is a digest of what makes it. It passes the suite that the real one does."""

    url: str = f"http://localhost/{PATH}.git"
    start: str = "5" * 40
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.branches["main"] = self.start
        self.commits[self.start] = {"parent": "", "run": "", "by": "ann", "patch": ""}

    def program(self, folder: Path, request: dict[str, Any], token: str) -> dict[str, Any]:
        if token != TOKEN:
            return _problem("refused", "cannot read: 401")
        if request["op"] == "push":
            if self.branches.get(request["branch"], "") != request["before"]:
                return _problem("repository", "the branch moved at this moment")
            self.branches[request["branch"]] = request["commit"]
            return {}
        patch = digest((folder / "base/patch.diff").read_bytes())
        made = digest(canonical([patch, request["commit"], request["message"], request["at"]]))[:40]
        run = next(line for line in request["message"].splitlines() if line.startswith("Dawnfleet-Run: "))
        self.commits[made] = {"parent": request["commit"], "run": run[15:], "by": request["name"], "patch": patch}
        base, tip = request["base"] or request["started"] or "main", self.branches.get(request["branch"], "")
        return {
            "commit": made,
            "base": base,
            "there": patch in [self.commits[one]["patch"] for one in self._line(self.branches[base])],
            "tip": tip,
            "tip_run": self.commits[tip]["run"] if tip else "",
            "tip_by": self.commits[tip]["by"] if tip else "",
            "holds": made in self._line(tip),
        }

    def tips(self) -> dict[str, str]:
        return dict(self.branches)

    def person_pushes(self, branch: str, *, on: str = "", path: str = "theirs.txt") -> str:
        return self._commit(branch, self.branches[on or branch], path)

    def delete(self, branch: str) -> None:
        del self.branches[branch]

    def patch(self, text: str) -> bytes:
        return text.encode()

    def land(self, patch: bytes) -> None:
        self._commit("main", self.branches["main"], digest(patch))

    def _commit(self, branch: str, parent: str, patch: str) -> str:
        made = digest(f"{branch} {parent} {patch} {len(self.commits)}".encode())[:40]
        self.commits[made] = {"parent": parent, "run": "", "by": "ann@example.org", "patch": patch}
        self.branches[branch] = made
        return made

    def _line(self, tip: str) -> Iterator[str]:
        while tip:
            yield tip
            tip = self.commits[tip]["parent"]


def _problem(kind: str, message: str) -> dict[str, Any]:
    return {"error": {"kind": kind, "message": message, "hint": ""}}


class Yard:
    """An engine on which only the program that pushes can be run."""

    engine_id = "yard"

    def __init__(self, folder: Path, remote: Remote, doors: Doors) -> None:
        self._folder, self._remote, self._doors = folder, remote, doors
        self.left: dict[str, Owner] = {}

    @contextmanager
    def workspace(self, owner: Owner, image: str, limits: Limits) -> Iterator[_Ground]:
        folder = self._folder / f"ground-{len(list(self._folder.glob('ground-*')))}"
        (folder / "base").mkdir(parents=True)
        self.left[f"volume:{folder.name}"] = owner
        died = False
        try:
            yield _Ground(folder, self._remote, self._doors)
        except Died:
            died = True
            raise
        finally:
            if not died:
                del self.left[f"volume:{folder.name}"]

    def owned(self, archive: str) -> list[tuple[Owner, str]]:
        return [(owner, name) for name, owner in self.left.items()]

    def remove(self, resource: str) -> None:
        del self.left[resource]


@dataclass
class _Ground:
    folder: Path
    remote: Remote
    doors: Doors

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        (self.folder / "base" / name).write_bytes(b"".join(chunks))

    def run(self, command: Command, *, cancel: Cancel) -> Result:
        assert (command.program, command.network, command.kind) == ("deliver", True, "toolbox")
        request = json.loads(command.payload)
        with self.doors.passing(request["op"]):
            answer = self.remote.program(self.folder, request, command.secrets["DAWN_REPO_SECRET"])
        cancelled = self.doors.slow and cancel.wait(60)
        path = self.folder / "said"
        path.write_text(json.dumps(answer) + "\n")
        size = path.stat().st_size
        return Result("ok", 3 if "error" in answer else 0, Output(path, size, size, size), 1, cancelled=cancelled)


@dataclass
class ModelForge:
    """A forge in memory that, like emulate, refuses no second pull request of a branch: whoever opens two is seen."""

    doors: Doors
    rows: list[PullRequest] = field(default_factory=list)
    titles: dict[int, str] = field(default_factory=dict)
    furnished: list[int] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)

    def find(self, branch: str) -> PullRequest | None:
        self._fail()
        found = [one for one in self.rows if one.branch == branch]
        return max(found, key=lambda one: (one.open, one.number), default=None)

    def ours(self) -> list[PullRequest]:
        return [one for one in self.rows if one.open and one.marks]

    def open(self, *, branch: str, base: str, title: str, body: str, draft: bool) -> PullRequest:
        with self.doors.passing("forge open"):
            number = len(self.rows) + 1
            url = f"http://localhost/pull/{number}"
            self.rows.append(PullRequest(number, url, "draft" if draft else "pr", branch, marks_of(body)))
            self.titles[number] = title
        return self.rows[-1]

    def update(self, number: int, *, title: str, body: str) -> None:
        with self.doors.passing("forge update"):
            self.rows[number - 1] = replace(self.rows[number - 1], marks=marks_of(body))
            self.titles[number] = title

    def furnish(self, number: int, *, labels: Sequence[str], reviewers: Sequence[str]) -> None:
        with self.doors.passing("forge furnish"):
            self.furnished.append(number)

    def become(self, number: int, state: Any) -> None:
        self.rows[number - 1] = replace(self.rows[number - 1], state=state)

    def _fail(self) -> None:
        if self.faults:
            raise self.faults.pop()


@dataclass
class DooredForge:
    """A real adapter, each of whose changes passes a door."""

    inner: Forge
    doors: Doors

    def find(self, branch: str) -> PullRequest | None:
        return self.inner.find(branch)

    def ours(self) -> list[PullRequest]:
        return self.inner.ours()

    def open(self, **words: Any) -> PullRequest:
        with self.doors.passing("forge open"):
            return self.inner.open(**words)

    def update(self, number: int, **words: Any) -> None:
        with self.doors.passing("forge update"):
            self.inner.update(number, **words)

    def furnish(self, number: int, **words: Any) -> None:
        with self.doors.passing("forge furnish"):
            self.inner.furnish(number, **words)


class World:
    """One repository, one forge, an archive, and workers that deliver."""

    def __init__(self, folder: Path, remote: Remote, forge: Forge | None = None) -> None:
        self.doors = Doors()
        self.remote = remote
        self.forge = ModelForge(self.doors)
        self.archive = DoorArchive(self.doors)
        self.now_s = 0.0
        self.hints = MemoryHints(lambda: self.now_s)
        self.yard = Yard(folder, remote, self.doors)
        self._forge: Forge = self.forge if forge is None else DooredForge(forge, self.doors)

    def sealed(
        self, run: str = "hello-1", text: str = "one\nzwei\n", *, verdict: Any = "verified", **asked: Any
    ) -> Run:
        """A sealed run whose patch makes f.txt that text. asked: words of `deliver`."""
        fields = {name: asked.pop(name) for name in ("target", "batch", "ordinal") if name in asked}
        repo = Repo(url=self.remote.url, label="hello", **asked.pop("repo", {}))
        words = Deliver(**({"kind": "pr", "token": "FORGE"} | asked))
        usual: dict[str, Any] = {"batch": "night-1", "target": "hello", "prompt": "Say two", "model": "anthropic/x"}
        task = Task(run=run, repo=repo, deliver=words, v=3, **(usual | fields))
        journal = Journal(self.archive, run)
        journal.submit(task, "ann", AT)
        folded = journal.load()
        environment = self._environment()
        artifacts = {
            "patch.diff": journal.put_blob(self.remote.patch(text)),
            "summary.md": journal.put_blob(b"# hello: changed\n\n> @ann closes #1\n"),
        }
        for event in (
            Claimed(worker="w", engine="e", lane="batch"),
            Prepared(
                environment_key=environment[0],
                environment=environment[1],
                commit=self.remote.start,
                image="i",
                reused=False,
            ),
            Sealed(outcome="changed", verdict=verdict, artifacts=artifacts),
        ):
            attempt = None if isinstance(event, Claimed) else folded.attempt
            folded = journal.append(folded, [event], attempt=attempt, at=AT)
        return folded

    def deliver(self, run: str = "hello-1", *, token: str = TOKEN) -> str:
        """What a worker makes of a doorbell."""
        station = Station(
            name="w",
            lane="main",
            settings=Settings(hint_poll_s=0.05),
            archive=self.archive,
            archive_id="a" * 12,
            hints=self.hints,  # type: ignore[arg-type]
            sandbox=self.yard,  # type: ignore[arg-type]
            redactor=Redactor({"FORGE": TOKEN}),
            secrets={"FORGE": token} if token else {},
            open_model=_no_model,
            now=lambda: AT,
        )
        return deliver.run(run, station, lambda url, asked, secret: self._forge)

    def dies(self, point: str, run: str = "hello-1") -> bool:
        """Whether a worker that delivers comes to that point, where it dies; its lease ends."""
        self.doors.passed.clear()
        self.doors.dies_at = point
        try:
            self.deliver(run)
        except Died:
            self.hints.drop_lease(f"deliver:{run}")
            return True
        finally:
            self.doors.dies_at = ""
        return False

    def fold(self, run: str = "hello-1") -> Delivered:
        return delivered(read_deliveries(self.archive, run))

    def acts(self, run: str = "hello-1") -> list[str]:
        return [f"{record.act} {record.step}" for record in read_deliveries(self.archive, run)]

    def _environment(self) -> tuple[str, str]:
        key, blob = digest(b"key"), digest(b"level 0")
        environment = PreparedEnvironment(
            key=key,
            commit=self.remote.start,
            branch="main",
            image_name="python",
            image="i",
            snapshot=blob,
            snapshot_bytes=1,
            listing=blob,
            tree=blob,
            tracked=1,
        )
        data = canonical(environment.model_dump(mode="json"))
        self.archive.create(keys.environment(key), data)
        return key, digest(data)


def _no_model(task: Task) -> Any:
    raise AssertionError("nobody asks a model")


Make = Callable[..., World]
