"""A batch as a folder of plain pages: what is in it, what is not, and that nothing of it acts."""

from __future__ import annotations

import json
import posixpath
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from runs_made import Make, claimed, ended, name_runs, replied
from webs import site_of

from scheduler.cli.main import run as dawn
from scheduler.exports import staged
from scheduler.web import paper, static
from scheduler.web.page import Asked, Page, Way, address, cut
from scheduler.web.site import Site
from scheduler.web.static import MARK, Folder
from scheduler.web.ways import WAYS
from worker.contract.errors import ExitCode, NotFoundFault, UsageFault
from worker.store import keys
from worker.store.archive import Archive

BATCH = "night-0123456789ab"
HOSTILE = '"><script>alert(1)</script><a href="javascript:alert(2)">'
ACTING = {"script", "form", "button", "input", "select", "textarea", "iframe", "img", "object", "style", "base"}


class Seen(HTMLParser):
    """Elements and addresses of a document, as a browser's parser has them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.links: list[str] = []
        self.acting: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        for name, value in attrs:
            if name == "href":
                self.links.append(value or "")
            elif name.startswith(("on", "hx-")) or name in ("src", "action", "style"):
                self.acting.append(f"{tag} {name}")


def pages(folder: Path) -> dict[str, Seen]:
    """Every page of an export by its name."""
    found = sorted(folder.rglob("*.html"))
    return {path.relative_to(folder).as_posix(): Seen(path.read_text(encoding="utf-8")) for path in found}


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def batch(archive: Archive, make_run: Make) -> list[str]:
    """Two runs, whose words are hostile."""
    runs = {f"{BATCH}-cart-0": "cart", f"{BATCH}-calc-0": HOSTILE}
    for run, target in runs.items():
        make_run(run, claimed(), replied(text=HOSTILE), *ended(), batch=BATCH, target=target)
    name_runs(archive, runs)
    archive.create(keys.batch_manifest(BATCH), b"version: 1\nname: night\n")
    return list(runs)


def export(archive: Archive, place: Path, ways: Sequence[Way] = WAYS) -> static.Written:
    return Folder(site_of(archive, settings=None), BATCH, ways).write(place)


def test_every_link_of_the_folder_is_a_file_of_it(archive: Archive, batch: list[str], tmp_path: Path) -> None:
    """It opens from disk: no link leads out of it, nowhere is a file missing, and each page is reached from the
    first."""
    export(archive, tmp_path / "out")
    found, there = pages(tmp_path / "out"), names(tmp_path / "out")
    reached, todo = {"index.html"}, ["index.html"]
    while todo:
        page = todo.pop()
        for link in found[page].links:
            parts = urlsplit(link)
            assert (parts.scheme, parts.netloc, parts.query) == ("", "", ""), link
            target = posixpath.normpath(posixpath.join(posixpath.dirname(page), parts.path)) if parts.path else page
            assert target in there, f"{page} links {link}"
            if target in found and target not in reached:
                reached.add(target)
                todo.append(target)
    assert set(found) == reached
    assert {"runs/0001/index.html", "runs/0002/steps.html"} <= reached


def test_a_page_on_disk_neither_runs_nor_sends_nor_fetches(
    archive: Archive, batch: list[str], tmp_path: Path
) -> None:
    """H49: no element or attribute of any page acts, whatever a repository wrote, and a policy forbids it besides."""
    export(archive, tmp_path / "out")
    for name, page in pages(tmp_path / "out").items():
        assert not page.elements & ACTING, name
        assert page.acting == [], name
        assert f'content="{paper.POLICY}"' in (tmp_path / "out" / name).read_text(encoding="utf-8"), name


def test_names_of_files_come_from_us(archive: Archive, batch: list[str], tmp_path: Path) -> None:
    """Neither a target nor a branch nor a path names a file."""
    export(archive, tmp_path / "out")
    own = re.compile(
        r"(runs/\d+/(delegate-\d+/)?)?[a-z]+(-out|-s?\d+)?(-page-\d+|-file-\d+)*\.html|assets/[a-z-]+\.css"
    )
    assert [name for name in names(tmp_path / "out") - {MARK} if not own.fullmatch(name)] == []


def test_a_folder_of_somebody_else_is_left_alone(archive: Archive, batch: list[str], tmp_path: Path) -> None:
    """What this did not make it does not replace."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "index.html").write_text("mine")
    with pytest.raises(UsageFault, match="something else"):
        export(archive, tmp_path / "out")
    assert (tmp_path / "out" / "index.html").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == ["out"]


def made(place: Path, *names: str, say: str = "ours") -> None:
    """An export of these files."""
    with staged.tree(place, MARK, {}) as root:
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(say)


def held(folder: Path) -> dict[str, str]:
    """What is in a folder, beside its mark."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {name: path.read_text() for name, path in found.items() if path.is_file() and name != MARK}


def test_an_earlier_export_goes_and_what_a_person_put_there_stays(
    archive: Archive, batch: list[str], tmp_path: Path
) -> None:
    """A page that is no more does not stay behind, nor a folder without one; notes and links between the pages do."""
    out, notes = tmp_path / "out", tmp_path / "notes"
    notes.write_text("mine")
    made(out, "index.html", "runs/0009/index.html", "runs/0008/index.html")
    (out / "todo.txt").write_text("mine")
    (out / "runs" / "0008" / "why.txt").write_text("mine")
    (out / "link").symlink_to(notes)
    export(archive, out)
    found = held(out)
    assert [name for name, text in found.items() if text == "mine"] == ["todo.txt", "link", "runs/0008/why.txt"]
    assert "runs/0008/index.html" not in found
    assert not (out / "runs" / "0009").exists()
    assert found["index.html"] != "ours"
    assert sorted(json.loads((out / MARK).read_text())["files"]) == sorted(
        name for name, text in found.items() if text != "mine"
    )
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == ["out"]


@pytest.mark.parametrize("mine", ["new.html", "runs/0002", "runs"])
def test_what_a_person_put_in_the_way_is_not_replaced(mine: str, tmp_path: Path) -> None:
    """A file where a page or a folder of pages has to be: nothing of the folder changes."""
    out = tmp_path / "out"
    made(out, "index.html")
    (out / mine).parent.mkdir(exist_ok=True)
    (out / mine).write_text("mine")
    with pytest.raises(UsageFault, match="in the way"):
        made(out, "index.html", "new.html", "runs/0002/index.html", say="newer")
    assert held(out) == {"index.html": "ours", mine: "mine"}


def test_no_link_is_followed(tmp_path: Path) -> None:
    """A folder of pages that became a link to another place: nothing is removed there, and nothing written. Neither
    through a page that became one."""
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    made(out, "index.html", "runs/0001/index.html")
    (out / "runs").rename(elsewhere)
    (out / "runs").symlink_to(elsewhere)
    with pytest.raises(UsageFault, match="in the way"):
        made(out, "index.html", "runs/0001/index.html", say="newer")
    made(out, "index.html", say="newer")
    assert held(elsewhere) == {"0001/index.html": "ours"}
    assert (out / "runs").is_symlink()
    (out / "index.html").unlink()
    (out / "index.html").symlink_to(elsewhere / "0001" / "index.html")
    with pytest.raises(UsageFault, match="in the way"):
        made(out, "index.html", say="newest")
    made(out, "other.html")
    assert (out / "index.html").is_symlink()
    assert held(elsewhere) == {"0001/index.html": "ours"}


@pytest.mark.parametrize(
    "mark", ["", "[]", "{}", '{"files": ["../notes"]}', '{"files": ["/etc/hosts"]}', '{"files": ["a//b"]}', "link"]
)
def test_a_folder_with_a_mark_that_is_none_is_left_alone(mark: str, tmp_path: Path) -> None:
    """Only what this wrote there says what else it wrote, and it names nothing outside."""
    out, notes = tmp_path / "out", tmp_path / "notes"
    notes.write_text('{"files": []}')
    out.mkdir()
    if mark == "link":
        (out / MARK).symlink_to(notes)
    else:
        (out / MARK).write_text(mark)
    with pytest.raises(UsageFault, match="something else"):
        made(out, "index.html")
    assert held(out) == {}
    assert notes.read_text() == '{"files": []}'


KILLED: Final = """
import os, pathlib, signal, sys
from scheduler.exports import staged
def counted(act):
    def acted(self, *more, **words):
        left.pop() if left else os.kill(os.getpid(), signal.SIGKILL)
        return act(self, *more, **words)
    return acted
for place in sys.stdin.read().split():
    if (child := os.fork()) == 0:
        left = [None] * int(place)
        with staged.tree(pathlib.Path(place, "out"), sys.argv[1], {}) as root:
            for name in ("index.html", "new.html", "runs/2.html"):
                (root / name).parent.mkdir(exist_ok=True)
                (root / name).write_text("newer")
            for act in ("replace", "unlink", "rmdir", "mkdir"):
                setattr(pathlib.Path, act, counted(getattr(pathlib.Path, act)))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_an_export_that_is_killed_is_finished_by_the_next(tmp_path: Path) -> None:
    """Wherever it dies, what a person wrote is there, and another call makes of the rest what it would have been."""
    places = [tmp_path / str(at) for at in range(30)]
    for place in places:
        made(place / "out", "index.html", "old.html", "gone/1.html", "runs/1.html")
        (place / "out" / "runs" / "mine.txt").write_text("mine")
    script = [sys.executable, "-c", KILLED, MARK]
    told = " ".join(place.name for place in places)
    done = subprocess.run(script, cwd=tmp_path, input=told, check=True, capture_output=True, text=True)
    died = [int(line) for line in done.stdout.split()]
    assert set(died) == {-signal.SIGKILL, 0}
    assert died.index(0) > 10
    assert held(places[0] / "out")["index.html"] == "ours"
    for place, code in zip(places, died, strict=True):
        out = place / "out"
        assert held(out)["runs/mine.txt"] == "mine"
        if code:
            made(out, "index.html", "new.html", "runs/2.html", say="newer")
        assert held(out) == {
            "index.html": "newer", "new.html": "newer", "runs/2.html": "newer", "runs/mine.txt": "mine",
        }  # fmt: skip
        assert not (out / "gone").exists()


LONG = 250


def _rows(site: Site, asked: Asked) -> Page:
    slice = cut(LONG, asked)
    return Page("problem.html", "Rows", {"status": slice.page, "message": f"from {slice.start}", "hint": ""})


def _batch(site: Site, asked: Asked) -> Page:
    raise NotFoundFault("it is gone", hint="look elsewhere")


def test_each_page_of_a_long_table_has_a_file(
    archive: Archive, batch: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number in the query names a file; another query does not, and leads to the page without it."""
    folder = Folder(site_of(archive), BATCH, (Way("/batches/{batch}", _rows),))
    first = address("/batches/{batch}", batch=BATCH)
    assert (
        folder._file(first) == folder._file(f"{first}?page=1") == folder._file(f"{first}?sort=cost") == "index.html"
    )
    assert folder._file(f"{first}?page=3&sort=cost") == "index-page-3.html"
    assert folder._file(f"{first}?page=../../x") == "index.html"
    for elsewhere in ("https://evil.example/", "//evil.example", "javascript:alert(1)", "/runs/other", "/review"):
        assert folder._file(elsewhere) == "left-out.html"


def test_a_page_that_cannot_be_made_says_why(archive: Archive, batch: list[str], tmp_path: Path) -> None:
    """One page that is damaged or not there does not end the export."""
    export(archive, tmp_path / "out", (Way("/batches/{batch}", _batch), Way("/runs/{run}", _rows)))
    told = (tmp_path / "out" / "index.html").read_text()
    assert "it is gone" in told
    assert "look elsewhere" in told
    assert (tmp_path / "out" / "runs" / "0002" / "index.html").exists()


@pytest.mark.parametrize("bound", ["FILES_MAX", "BYTES_MAX"])
def test_a_full_folder_says_what_it_left_out(
    bound: str, archive: Archive, batch: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays within its bounds, and names the command that has the rest."""
    monkeypatch.setattr(static, bound, 2)
    done = export(archive, tmp_path / "out", (Way("/batches/{batch}", _rows), Way("/runs/{run}", _rows)))
    assert f"dawn show {batch[1]}" in done.left_out
    page = "left-out.html" if bound == "FILES_MAX" else "runs/0002/index.html"
    assert f"dawn show {batch[1]}" in (tmp_path / "out" / page).read_text()


def test_what_a_template_forgot_does_not_act() -> None:
    """Buttons, scripts and handlers go from whatever page; text and evidence inside a form stay."""
    told = paper.still(
        '<!doctype html>\n<head></head><form action="/x"><p onclick="f()" class=a>kept &lt;b&gt;</p>'
        '<button data-copy="<x>">gone</button><input name="a"></form><script>if (1 < 2) {}</script>'
        '<a href="/runs/r?a=1&amp;b=2#s" target=_blank>r</a><svg viewBox="0 0 1 1"><path d="M0 0"/></svg>',
        lambda to: f"to {to}",
    )
    assert told == (
        '<!doctype html>\n<head>\n<meta http-equiv="Content-Security-Policy" content="' + paper.POLICY + '"></head>'
        '<p class="a">kept &lt;b&gt;</p><a href="to /runs/r?a=1&amp;b=2#s">r</a>'
        '<svg viewBox="0 0 1 1"><path d="M0 0"/></svg>'
    )


@pytest.mark.parametrize("text", ["1 < 2", "<p>a<", "<p><![CDATA[x]]>", "<script>x", "<p title='>"])
def test_a_text_that_nothing_escaped_is_no_page(text: str) -> None:
    """H49: a document with a `<` that is no tag of ours is refused, not guessed at."""
    with pytest.raises(ValueError, match="escaped"):
        paper.still(text, str)


@pytest.mark.usefixtures("without_stack")
def test_the_command_tells_where_to_open_it(
    archive: Archive, batch: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first page's path, and how large it is."""
    assert dawn(["report", BATCH, "--static", "out"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'out' / 'index.html'}\n"
    assert f"open file://{tmp_path}/out/index.html" in err
    assert dawn(["report", BATCH, "--static", "out", "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["batch"], told["left_out"]) == ("dawn.static/1", BATCH, [])
    assert dawn(["report", BATCH, "--static", "out", "--store"]) == ExitCode.USAGE
