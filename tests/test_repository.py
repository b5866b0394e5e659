"""The in-container programs repository.py and patch.py, run as processes on a temporary workspace."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from repositories import MIB, commit_all, git, packed_git, tar_of

TOOLBOX = Path(__file__).parents[1] / "sandbox_images" / "toolbox"
CAPS = {"bytes": 50 * MIB, "files": 50_000}

Tree = dict[str, tuple[str, bytes]]


@dataclass
class Place:
    """A workspace on disk and the two programs on it."""

    root: Path

    @property
    def repo(self) -> Path:
        return self.root / "repo"

    @property
    def base(self) -> Path:
        return self.root / "base"

    def run(self, program: str, request: dict[str, Any], **env: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-I", str(TOOLBOX / f"{program}.py")],
            input=json.dumps(request).encode(),
            env={
                "PATH": os.environ["PATH"],
                "DAWN_WORKSPACE": str(self.root),
                "TMPDIR": str(self.root.parent),
                **env,
            },
            capture_output=True,
            check=False,
        )
        assert done.stderr == b""
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        assert done.returncode == (3 if "error" in answer else 0)
        return answer

    def fetch(self, packed: bytes, kind: str = "git", ref: str | None = None, **caps: int) -> dict[str, Any]:
        (self.base / "source").write_bytes(packed)
        return self.run("repository", {"op": "fetch", "kind": kind, "ref": ref, "caps": {**CAPS, **caps}})

    def listing(self, without: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
        return [(path, mode, hashlib.sha256(data).hexdigest()) for path, (mode, data) in self.tree(without).items()]

    def tree(self, without: tuple[str, ...] = ()) -> Tree:
        """path -> (mode, content) of all files and links, `.git` left out: what Workspace.tree() is about."""
        found: Tree = {}
        for folder, folders, files in os.walk(self.repo):
            folders[:] = [name for name in folders if name != ".git"]
            links = [name for name in folders if (Path(folder) / name).is_symlink()]
            for name in [*files, *links]:
                path = Path(folder) / name
                relative = str(path.relative_to(self.repo))
                if name == ".git" or relative in without:
                    continue
                if path.is_symlink():
                    found[relative] = ("120000", os.fsencode(os.readlink(path)))
                else:
                    mode = "100755" if path.stat().st_mode & stat.S_IXUSR else "100644"
                    found[relative] = (mode, path.read_bytes())
        return dict(sorted(found.items()))

    def patch(
        self, without: tuple[str, ...] = (), file_bytes: int = MIB, patch_bytes: int = 20 * MIB
    ) -> dict[str, Any]:
        (self.base / "listing").write_text(json.dumps(self.listing(without)))
        request = {"op": "make", "file_bytes": file_bytes, "patch_bytes": patch_bytes}
        return self.run("patch", request)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return new_place(tmp_path, "work")


def new_place(tmp_path: Path, name: str) -> Place:
    made = Place(tmp_path / name)
    for folder in ("repo", "base", "home"):
        (made.root / folder).mkdir(parents=True)
    return made


def applied(tmp_path: Path, packed: bytes, place: Place, kind: str = "git") -> Tree:
    """The start commit in a place of its own, with the patches of `place` applied."""
    other = new_place(tmp_path, "other")
    other.fetch(packed, kind)
    for name in ("patch.diff", "submodules.diff"):
        (other.base / name).write_bytes((place.base / name).read_bytes())
    assert other.run("patch", {"op": "apply"}) == {}
    return other.tree()


# --- fetch


def test_fetch_checks_out_the_start_commit(place: Place, source: Path) -> None:
    """A packed repository becomes a work tree on its branch, with base, history and identity."""
    commit = git(source, "rev-parse", "HEAD")
    answer = place.fetch(packed_git(source / ".git"))
    assert len(answer.pop("print")) == 64
    assert answer == {"commit": commit, "branch": "main", "tracked": 4, "notes": [], "instructions": []}
    assert (place.base / "tracked").read_bytes() == b"b.bin\0f.txt\0ren.txt\0run.sh\0"
    assert (place.base / "commit").read_text().strip() == commit
    assert not (place.base / "source").exists()
    assert git(place.repo, "status", "--porcelain", "--branch") == "## main"
    assert git(place.repo, "config", "user.email") == "agent@dawnfleet.invalid"
    assert git(place.base / "git", "cat-file", "-t", f"{commit}:f.txt") == "blob"


@pytest.mark.parametrize("ref", ["v1", "older", "{commit}", "{short}"])
def test_a_ref_of_any_kind_is_found(place: Place, source: Path, ref: str) -> None:
    """Tag, branch, commit and abbreviated commit name the same start."""
    first = git(source, "rev-parse", "HEAD")
    git(source, "tag", "-a", "-m", "one", "v1")
    git(source, "branch", "older")
    (source / "f.txt").write_text("changed\n")
    commit_all(source)
    answer = place.fetch(packed_git(source / ".git"), ref=ref.format(commit=first, short=first[:8]))
    assert answer["commit"] == first
    assert (place.repo / "f.txt").read_text() == "one\ntwo\nthree\n"


def test_an_empty_repository_has_no_commits(place: Place, tmp_path: Path) -> None:
    """T41: the error says what is the matter."""
    folder = tmp_path / "empty"
    folder.mkdir()
    git(folder, "init", "--quiet")
    error = place.fetch(packed_git(folder / ".git"))["error"]
    assert error["kind"] == "repository"
    assert "no commits" in error["message"]


def test_a_dangling_head_lists_the_branches(place: Place, source: Path) -> None:
    """T42: HEAD names master, only trunk exists."""
    git(source, "branch", "--move", "main", "trunk")
    git(source, "symbolic-ref", "HEAD", "refs/heads/master")
    packed = packed_git(source / ".git")
    error = place.fetch(packed)["error"]
    assert (error["kind"], error["hint"]) == ("ref", "branches: trunk")
    assert place.fetch(packed, ref="trunk")["branch"] == "trunk"


def test_an_unknown_ref_lists_the_branches(place: Place, source: Path) -> None:
    """T42: so does a ref that nothing has."""
    error = place.fetch(packed_git(source / ".git"), ref="mian")["error"]
    assert error["kind"] == "ref"
    assert "'mian'" in error["message"]
    assert error["hint"] == "branches: main"


def test_a_shallow_source_lacks_an_older_commit(place: Place, source: Path, tmp_path: Path) -> None:
    """T43: the error names the cure; the commit that is there can be started from."""
    first = git(source, "rev-parse", "HEAD")
    (source / "f.txt").write_text("changed\n")
    second = commit_all(source)
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{source}", "shallow")
    packed = packed_git(tmp_path / "shallow" / ".git")
    error = place.fetch(packed, ref=first)["error"]
    assert error["kind"] == "ref"
    assert "--unshallow" in error["hint"]
    assert new_place(tmp_path, "again").fetch(packed)["commit"] == second


def test_no_setting_of_a_packed_repository_takes_effect(place: Place, source: Path, tmp_path: Path) -> None:
    """H39: configuration, hooks, filters and attributes of the source execute nothing and change no byte."""
    canary = tmp_path / "canary"
    (source / "crlf.txt").write_bytes(b"a\r\n$Id$\r\n")
    commit_all(source)
    (source / "wide.u").write_text("wide", "utf-16")
    (source / ".gitattributes").write_text(
        "*.txt text eol=crlf filter=evil ident\n*.u working-tree-encoding=UTF-16\n"
    )
    git(source, "add", "wide.u", ".gitattributes")
    git(source, "commit", "--quiet", "-m", "attributes")
    hook = source / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch '{canary}'\n")
    hook.chmod(0o755)
    for name in ("core.fsmonitor", "filter.evil.smudge", "filter.evil.clean", "uploadpack.packObjectsHook"):
        git(source, "config", name, f"touch '{canary}'; cat")
    answer = place.fetch(packed_git(source / ".git"))
    assert "error" not in answer
    assert not canary.exists()
    assert (place.repo / "crlf.txt").read_bytes() == b"a\r\n$Id$\r\n"
    assert (place.repo / "f.txt").read_bytes() == b"one\ntwo\nthree\n"
    assert (place.repo / "wide.u").read_bytes() == b"wide"
    assert git(place.repo, "status", "--porcelain") == ""


def test_broken_bytes_are_an_unreadable_repository(place: Place) -> None:
    """What is no archive at all is named so."""
    error = place.fetch(b"not a tar at all" * 100)["error"]
    assert error["kind"] == "repository"


def test_a_key_opens_ssh(place: Place, source: Path, tmp_path: Path) -> None:
    """ssh is given the key as a file that only its owner reads, outside of the workspace; it stays nowhere else."""
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA\n-----END OPENSSH PRIVATE KEY-----"
    programs = tmp_path / "bin"
    programs.mkdir()
    # Stands in for the network: git's own server answers on this machine.
    (programs / "ssh").write_text(
        f"""#!/bin/sh
        echo "$@" >>'{tmp_path}/said'
        for word; do case $before in -i) stat -c %a "$word" >'{tmp_path}/mode'; cat "$word" >'{tmp_path}/key';; esac
        before=$word; done
        exec git-upload-pack '{source}'
        """
    )
    (programs / "ssh").chmod(0o755)
    env = {"DAWN_REPO_SECRET": key, "PATH": f"{programs}:{os.environ['PATH']}"}
    url = "git@forge.example:team/repo.git"
    found = place.run("repository", {"op": "resolve", "url": url, "ref": None}, **env)
    assert found == {"commit": git(source, "rev-parse", "HEAD"), "branch": "main"}
    fetched = place.run("repository", {"op": "fetch", "kind": "url", "url": url, **found, "caps": CAPS}, **env)
    assert fetched["tracked"] == 4
    assert (tmp_path / "mode").read_text() == "600\n"
    assert (tmp_path / "key").read_text() == key + "\n"
    assert "PRIVATE KEY" not in (tmp_path / "said").read_text()
    assert git(place.repo, "remote", "get-url", "origin") == url
    assert subprocess.run(["grep", "-rqF", "b3BlbnNzaC1rZXktdjEA", place.root], check=False).returncode == 1


def test_a_key_is_not_used_for_a_submodule_elsewhere(place: Place, source: Path, tmp_path: Path) -> None:
    """A repository may name any host as its submodule's: only its own host is shown that we hold the key."""
    (source / ".gitmodules").write_text('[submodule "s"]\n\tpath = s\n\turl = git@evil.example:s.git\n')
    git(source, "add", ".gitmodules")
    git(source, "update-index", "--add", "--cacheinfo", f"160000,{git(source, 'rev-parse', 'HEAD')},s")
    git(source, "commit", "--quiet", "-m", "a submodule")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(f"#!/bin/sh\necho \"$@\" >>'{tmp_path}/said'\nexec git-upload-pack '{source}'\n")
    (programs / "ssh").chmod(0o755)
    env = {"DAWN_REPO_SECRET": "PRIVATE KEY", "PATH": f"{programs}:{os.environ['PATH']}"}
    request = {"op": "fetch", "kind": "url", "url": "git@forge.example:r.git", "branch": "main", "caps": CAPS}
    place.run("repository", {**request, "commit": git(source, "rev-parse", "HEAD")}, **env)
    keyed = {host: "-i /" in line for line in (tmp_path / "said").read_text().splitlines()
             for host in ("forge.example", "evil.example") if host in line}  # fmt: skip
    assert keyed == {"forge.example": True, "evil.example": False}


def test_a_token_does_not_open_ssh(place: Place) -> None:
    """A secret of the wrong kind is told apart before anything is tried."""
    request = {"op": "resolve", "url": "ssh://git@forge.example/repo.git", "ref": None}
    answer = place.run("repository", request, DAWN_REPO_SECRET="just-a-token")
    assert "no private key" in answer["error"]["message"]
    assert "just-a-token" not in str(answer)


@pytest.mark.parametrize("url", ["ext::sh -c 'touch canary'", "file:///etc", "--upload-pack=touch canary", "/etc"])
def test_no_other_transport_is_used(place: Place, url: str) -> None:
    """A URL is a place on the network: nothing on this machine is read or run for it."""
    answer = place.run("repository", {"op": "resolve", "url": url, "ref": None})
    assert answer["error"]["kind"] == "repository"
    assert "canary" not in os.listdir(place.root)


# --- folders and tarballs


def test_a_tarball_becomes_one_commit_with_a_fixed_id(place: Place, tmp_path: Path) -> None:
    """An sdist's single top folder goes, ignored files stay, and the id depends on content only."""
    members = (("setup.py", b"pass\n"), ("x/run+", b"#!/bin/sh\n"), (".gitignore", b"*.log\n"), ("a.log", b"kept"))
    first = place.fetch(tar_of(*members), "tarball")
    again = new_place(tmp_path, "again").fetch(tar_of(*reversed(members)), "tarball")
    assert first["commit"] == again["commit"]
    assert first["tracked"] == 4
    assert place.tree()["x/run"] == ("100755", b"#!/bin/sh\n")
    assert git(place.repo, "status", "--porcelain", "--ignored") == ""


def test_a_zip_is_a_tarball_too(place: Place, tmp_path: Path) -> None:
    """A zip gives the same commit as the tar of the same files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pkg-1.0/setup.py", b"pass\n")
    one = place.fetch(out.getvalue(), "tarball")
    other = new_place(tmp_path, "again").fetch(tar_of(("setup.py", b"pass\n")), "tarball")
    assert one["commit"] == other["commit"]


def test_a_folder_keeps_what_it_ignores_on_disk_only(place: Place) -> None:
    """Ignored files of a plain folder are there, but not part of its one commit; nested repositories lose .git."""
    packed = tar_of(
        ("a.py", b"1\n"),
        (".gitignore", b"/deps\n"),
        ("deps/d.js", b"d"),
        ("venv/python", "/usr/bin/python3"),
        ("nested/.git/HEAD", b"ref: refs/heads/x\n"),
        ("nested/n.py", b"n"),
        top="./",
    )
    answer = place.fetch(packed, "folder")
    assert (place.base / "tracked").read_bytes().split(b"\0")[:-1] == [
        b".gitignore",
        b"a.py",
        b"nested/n.py",
        b"venv/python",
    ]
    assert answer["tracked"] == 4
    assert (place.repo / "deps" / "d.js").read_bytes() == b"d"


# --- what a repository tells agents


def told(place: Place, path: str, *members: tuple[str, bytes | str]) -> list[list[str]]:
    """(path, text) of what is found when the work starts in that folder."""
    (place.base / "source").write_bytes(tar_of(*members))
    request = {"op": "fetch", "kind": "tarball", "ref": None, "caps": CAPS, "path": path}
    found: list[list[str]] = place.run("repository", request)["instructions"]
    return found


def test_instructions_come_from_the_start_folder_and_those_above(place: Place) -> None:
    """The nearest first; AGENTS.md before CLAUDE.md; no sibling's, no empty one, and none twice."""
    found = told(
        place,
        "a/b/c",
        ("AGENTS.md", b"root\n"),
        ("CLAUDE.md", b"never read\n"),
        ("a/AGENTS.md", b" \n"),
        ("a/CLAUDE.md", "../AGENTS.md"),
        ("a/b/c/CLAUDE.md", "notes.txt"),
        ("a/b/c/notes.txt", b"near \xff\n"),
        ("a/b/d/AGENTS.md", b"sibling\n"),
    )
    assert found == [["a/b/c/CLAUDE.md", "near \ufffd\n"], ["a/CLAUDE.md", "root\n"]]


def test_instructions_are_cut_where_they_are_a_book(place: Place) -> None:
    """32 KiB in all: the nearest is whole, the rest says how much is missing, on a whole character."""
    near, far = b"n" * 32_765, "é".encode() * 50
    found = told(place, "a", ("a/AGENTS.md", near), ("AGENTS.md", far))
    assert found[0] == ["a/AGENTS.md", near.decode()]
    assert found[1] == ["AGENTS.md", "é\n[... 97 more bytes of AGENTS.md are not shown here]"]


@pytest.mark.parametrize("content", [b"\0binary", "/etc/hostname"])
def test_what_is_no_text_of_the_repository_is_no_instruction(place: Place, content: bytes | str) -> None:
    """Neither bytes nor a link that leads out are read."""
    packed = tar_of(("f", b"x"), ("AGENTS.md", content), top="./")
    (place.base / "source").write_bytes(packed)
    request = {"op": "fetch", "kind": "folder", "ref": None, "caps": CAPS}
    assert place.run("repository", request)["instructions"] == []


@pytest.mark.parametrize(
    "members",
    [
        pytest.param([("../out", b"x")], id="dot-dot"),
        pytest.param([("link", ".."), ("link/out", b"x")], id="through-a-link"),
        pytest.param([("link", "/etc")], id="link-out"),
        pytest.param([("a/link", "../../out")], id="relative-link-out"),
    ],
)
def test_an_unsafe_tarball_is_refused(place: Place, members: list[tuple[str, bytes | str]]) -> None:
    """H35: nothing is written outside, and the error is about the repository."""
    before = sorted(os.listdir(place.root))
    error = place.fetch(tar_of(*members, top=""), "tarball")["error"]
    assert error["kind"] == "repository"
    assert sorted(os.listdir(place.root)) == before


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_a_member_that_is_no_file_is_refused(place: Place, kind: bytes) -> None:
    """H35, H37: hard links to what the archive does not hold, pipes and devices."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo("x")
        info.type, info.linkname = kind, "etc/passwd"
        tar.addfile(info)
    assert place.fetch(out.getvalue(), "tarball")["error"]["kind"] == "repository"


def test_an_absolute_member_is_refused(place: Place, tmp_path: Path) -> None:
    """H35: an absolute path is no path of the archive."""
    target = tmp_path / "canary"
    packed = tar_of((str(target), b"x"), top="")
    assert "unsafe path" in place.fetch(packed, "tarball")["error"]["message"]
    assert not target.exists()


def test_a_bomb_stops_at_the_caps(place: Place, tmp_path: Path) -> None:
    """H37: too many bytes or members end the unpacking."""
    big = tar_of(("zeros", bytes(3 * MIB)))
    assert "bytes" in place.fetch(big, "tarball", bytes=MIB)["error"]["message"]
    many = tar_of(*((f"f{n}", b"") for n in range(30)))
    assert "members" in new_place(tmp_path, "again").fetch(many, "tarball", files=20)["error"]["message"]


def test_a_member_over_the_caps_is_refused_unread(place: Place) -> None:
    """H37: a few kilobytes may stand for terabytes: not even passing them over is tried."""
    info = tarfile.TarInfo("zeros")
    info.size = 10**12
    packed = gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(MIB))
    assert "unpacks to more than" in place.fetch(packed, "tarball")["error"]["message"]


def test_a_commit_of_millions_of_files_is_refused(place: Place, source: Path) -> None:
    """A few small trees that name each other ten times over: counted before anything is checked out."""
    tree, kind, mode = git(source, "rev-parse", "HEAD:f.txt"), "blob", "100644"
    for _ in range(7):
        entries = "".join(f"{mode} {kind} {tree}\td{n}\n" for n in range(10))
        command = ["git", "-C", str(source), "mktree"]
        tree = subprocess.run(command, input=entries, check=True, capture_output=True, text=True).stdout.strip()
        kind, mode = "tree", "040000"
    git(source, "update-ref", "refs/heads/main", git(source, "commit-tree", "-m", "bomb", tree))
    answer = place.fetch(packed_git(source / ".git"), files=10_000)
    assert answer["error"]["message"] == "the commit holds more than 10,000 files"
    again = new_place(place.root.parent, "again").fetch(packed_git(source / ".git"), files=10**8, bytes=MIB)
    assert "larger than 1,048,576 bytes" in again["error"]["message"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("true", None),
        ("echo other >base/commit", "setup changed"),
        ("mkdir base/more", "setup changed"),
        ("rm base/git/HEAD; ln -s /etc/passwd base/git/HEAD", "setup changed"),
        ("mv repo elsewhere; ln -s elsewhere repo", "setup removed or replaced"),
        ("rm -r home", "setup removed or replaced"),
        ("p=base; for n in $(seq 60); do p=$p/d; mkdir $p || break; done 2>/dev/null", "setup changed"),
    ],
)
def test_what_setup_does_to_our_part_is_found(place: Place, source: Path, script: str, said: str | None) -> None:
    """Setup is root there and runs code of the repository; links are not followed, and its depth is bounded."""
    (place.root / "home").mkdir(exist_ok=True)
    fetched = place.fetch(packed_git(source / ".git"))
    subprocess.run(["sh", "-c", script], cwd=place.root, check=False)
    answer = place.run("repository", {"op": "prove", "print": fetched["print"]})
    assert answer == {} if said is None else said in answer["error"]["message"]


# --- patches


def test_a_patch_gives_the_exact_tree(place: Place, source: Path, tmp_path: Path) -> None:
    """T33, T34, T44: binary, mode, rename, deletion, new script, link, empty file and difficult names."""
    (source / "sp ace é.txt").write_text("a\n")
    (source / "x b").mkdir()
    (source / "x b" / "y.txt").write_text("b\n")
    (source / 'tab\tquote".txt').write_text("c\n")
    (source / "turns").write_text("into a link\n")
    commit_all(source)
    packed = packed_git(source / ".git")
    place.fetch(packed)
    repo = place.repo
    (repo / "b.bin").write_bytes(b"\0\1\3")
    (repo / "run.sh").chmod(0o755)
    (repo / "ren.txt").rename(repo / "renamed.txt")
    (repo / "f.txt").unlink()
    (repo / "f.txt").mkdir()
    (repo / "f.txt" / "inside").write_text("a folder now\n")
    (repo / "new.sh").write_text("#!/bin/sh\n")
    (repo / "new.sh").chmod(0o755)
    (repo / "link").symlink_to("run.sh")
    (repo / "turns").unlink()
    (repo / "turns").symlink_to("nowhere")
    (repo / "empty").touch()
    (repo / "sp ace é.txt").write_text("A")
    (repo / "x b" / "y.txt").write_bytes(b"B\r\n")
    (repo / 'tab\tquote".txt').write_text("C\n")
    (repo / "new\nline").write_text("d\n")
    (repo / os.fsdecode(b"byte\xff")).write_text("e\n")
    answer = place.patch()
    assert answer["left_out"] == {}
    assert {"sp ace é.txt", "x b/y.txt", 'tab\tquote".txt', "renamed.txt", "byte\\xff"} <= set(answer["files"])
    assert answer["files"]["b.bin"] is None
    assert answer["files"]["sp ace é.txt"] == [1, 1]
    assert b"rename from ren.txt" in (place.base / "patch.diff").read_bytes()
    assert applied(tmp_path, packed, place) == place.tree()


def test_no_change_is_an_empty_patch(place: Place, source: Path) -> None:
    """Touched but equal files are no change."""
    place.fetch(packed_git(source / ".git"))
    (place.repo / "f.txt").write_text("one\ntwo\nthree\n")
    answer = place.patch()
    assert answer == {"sizes": {"patch.diff": 0, "submodules.diff": 0}, "files": {}, "left_out": {}, "notes": []}


def test_committed_and_uncommitted_edits_alike(place: Place, source: Path) -> None:
    """T36: the patch is against the recorded start commit; a leftover stash is mentioned."""
    place.fetch(packed_git(source / ".git"))
    (place.repo / "f.txt").write_text("committed\n")
    git(place.repo, "commit", "--quiet", "-am", "mine")
    git(place.repo, "checkout", "--quiet", "-b", "branch")
    (place.repo / "run.sh").write_text("uncommitted\n")
    (place.repo / "ren.txt").write_text("stashed\n")
    git(place.repo, "stash", "push", "--", "ren.txt")
    git(place.repo, "pack-refs", "--all")
    answer = place.patch()
    assert set(answer["files"]) == {"f.txt", "run.sh"}
    assert "stash" in answer["notes"][0]


def test_a_patch_never_runs_what_the_agent_configured(place: Place, source: Path, tmp_path: Path) -> None:
    """H39: git configuration and attributes written by the agent execute nothing."""
    packed = packed_git(source / ".git")
    place.fetch(packed)
    canary = tmp_path / "canary"
    config = {
        "core.fsmonitor": f"touch '{canary}'",
        "diff.external": f"touch '{canary}'",
        "diff.evil.textconv": f"touch '{canary}'; cat",
        "diff.evil.command": f"touch '{canary}'",
        "filter.evil.clean": f"touch '{canary}'; cat",
        "filter.evil.smudge": f"touch '{canary}'; cat",
        "filter.evil.required": "true",
    }
    for name, value in config.items():
        git(place.repo, "config", name, value)
    (place.repo / ".gitattributes").write_text("* filter=evil diff=evil text eol=crlf\n")
    (place.repo / "f.txt").write_text("one\nTWO\nthree\n")
    answer = place.patch()
    assert answer["files"]["f.txt"] == [1, 1]
    assert applied(tmp_path, packed, place) == place.tree()
    assert not canary.exists()


def test_nested_repositories_are_plain_files(place: Place, source: Path) -> None:
    """T38: with or without a commit, no mode-160000 entry."""
    place.fetch(packed_git(source / ".git"))
    for name in ("vendor", "n2"):
        (place.repo / name).mkdir()
        git(place.repo / name, "init", "--quiet")
        (place.repo / name / "n.py").write_text("n\n")
    commit_all(place.repo / "vendor")
    (place.repo / "f.txt").write_text("edited\n")
    answer = place.patch()
    assert set(answer["files"]) == {"f.txt", "vendor/n.py", "n2/n.py"}
    assert b"160000" not in (place.base / "patch.diff").read_bytes()


def test_a_flood_of_files_leaves_the_edit_in(place: Place, source: Path) -> None:
    """T40: more new files than the patch has room for; it is bounded and says what it left out, with counts."""
    place.fetch(packed_git(source / ".git"))
    flood = place.repo / ".t"
    flood.mkdir()
    for number in range(1_500):
        (flood / f"{number:05}").write_text(os.urandom(511).hex() + "\n\n")
    (place.repo / "huge").write_bytes(bytes(MIB + 1))
    (place.repo / "f.txt").write_text("edited\n")
    answer = place.patch(patch_bytes=MIB)
    assert answer["files"]["f.txt"] == [1, 3]
    assert answer["sizes"]["patch.diff"] <= MIB
    assert (place.base / "patch.diff").stat().st_size == answer["sizes"]["patch.diff"]
    assert answer["left_out"][".t/"].endswith("files: the patch is full at 1,048,576 bytes")
    assert answer["left_out"]["huge"].startswith("a new file of 1,048,577 bytes")


def test_a_small_change_of_a_large_file_is_kept(place: Place, source: Path, tmp_path: Path) -> None:
    """The cap is on a file's part of the patch: an edit and a rename of a 3 MB file fit, its rewriting does not."""
    text = "".join(f"{number} some line of a large file\n" for number in range(100_000))
    for name in ("edited", "moved", "rewritten"):
        (source / name).write_text(f"{name}\n" + text)
    commit_all(source)
    packed = packed_git(source / ".git")
    place.fetch(packed)
    (place.repo / "edited").write_text("EDITED\n" + text)
    (place.repo / "moved").rename(place.repo / "moved.txt")
    (place.repo / "rewritten").write_text(text.upper())
    answer = place.patch()
    assert set(answer["files"]) == {"edited", "moved.txt"}
    assert set(answer["left_out"]) == {"rewritten"}


# --- submodules


def test_a_submodule_has_a_patch_of_its_own(place: Place, with_submodule: Path, tmp_path: Path) -> None:
    """T39: its files are tracked, an edit in it alone is not lost, and both patches give the exact tree."""
    packed = packed_git(with_submodule / ".git")
    answer = place.fetch(packed)
    assert answer["notes"] == []
    assert b"lib/sub/u.py\0" in (place.base / "tracked").read_bytes()
    assert git(place.repo / "lib" / "sub", "status", "--porcelain", "--branch") == "## HEAD (no branch)"
    assert git(place.repo, "status", "--porcelain") == ""
    (place.repo / "lib" / "sub" / "u.py").write_text("u = 2\n")
    (place.repo / "lib" / "sub" / "v.py").write_text("v = 1\n")
    answer = place.patch()
    assert answer["sizes"]["patch.diff"] == 0
    assert set(answer["files"]) == {"lib/sub/u.py", "lib/sub/v.py"}
    assert applied(tmp_path, packed, place) == place.tree()


def test_a_submodule_that_cannot_be_had_is_said(place: Place, with_submodule: Path) -> None:
    """T39: an empty submodule is a note, and files put there are left out loudly."""
    shutil.rmtree(with_submodule / ".git" / "modules")
    (note,) = place.fetch(packed_git(with_submodule / ".git"))["notes"]
    assert note.startswith("submodule lib/sub is left empty:")
    (place.repo / "lib" / "sub" / "u.py").write_text("u = 2\n")
    answer = place.patch()
    assert answer["left_out"] == {"lib/sub/u.py": "it lies in a submodule that was not fetched"}
    assert answer["sizes"] == {"patch.diff": 0, "submodules.diff": 0}
