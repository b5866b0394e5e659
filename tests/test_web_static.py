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
from typing import Any
from urllib.parse import urlsplit

import pytest
from runs_made import Make, claimed, ended, name_runs, replied
from webs import site_of

from scheduler.cli.main import run as dawn
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


def test_an_earlier_export_is_replaced_as_a_whole(archive: Archive, batch: list[str], tmp_path: Path) -> None:
    """A page that is no more does not stay behind."""
    export(archive, tmp_path / "out")
    (tmp_path / "out" / "runs" / "0009").mkdir(parents=True)
    (tmp_path / "out" / "runs" / "0009" / "index.html").write_text("old")
    export(archive, tmp_path / "out")
    assert "runs/0009/index.html" not in names(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == ["out"]


def test_an_export_that_is_killed_leaves_the_earlier_one(tmp_path: Path) -> None:
    """What looks whole is whole."""
    half = """
import os, pathlib, signal
from scheduler.exports import staged
with staged.tree(pathlib.Path("out"), ".mark", "") as root:
    (root / "index.html").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    (tmp_path / "out").mkdir()
    for name in (".mark", "index.html"):
        (tmp_path / "out" / name).write_text("whole")
    done = subprocess.run([sys.executable, "-c", half], cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == {
        ".mark": "whole",
        "index.html": "whole",
    }


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
